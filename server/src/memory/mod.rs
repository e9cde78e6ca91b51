//! Where a shard's bytes lie: the segment itself, the extents in it, the entry of each object, the index over keys.
//!
//! Called by `shard` only. Nothing here knows of requests, time or policies; nothing here blocks or asks the system
//! for anything after the segment is made.

pub mod extents;
pub mod segment;
