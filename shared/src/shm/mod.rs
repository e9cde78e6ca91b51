//! Layouts and protocols in shared memory.
//!
//! | what | who maps it, and how | file |
//! |---|---|---|
//! | a segment: its page, then extents | server read and write; clients of its tenant read only, sealed | [`segment_page`] |
//! | a lane: its page, two rings, a staging buffer | server and one client thread, both read and write | [`lane_page`], [`line_ring`], [`touch_ring`], [`lane_memory`] |
//!
//! What a client can write is never trusted: the server copies a frame out of a ring before it looks at it, and a
//! counter that a client writes is checked against the ring's size at each use.

pub mod grant;
pub mod lane_memory;
pub mod lane_page;
pub mod line_ring;
pub mod park;
pub mod segment_page;
pub mod touch_ring;
