//! Where a shard's bytes lie: the segment itself, the extents in it, the entry of each object, the index over keys.
//!
//! Called by `shard` and `eviction`. Nothing here knows of requests, time or policies; nothing here blocks or asks the
//! system for anything after the segment is made, but for heap memory as the number of objects grows.

pub mod extents;
pub mod index;
pub mod segment;
pub mod slots;

/// Bytes that an object costs beside its key and value, at most (DESIGN §3).
pub const MAX_METADATA_BYTES: usize = 112;

const _: () = assert!(
    size_of::<lanner_shared::extent::ExtentHeader>() + slots::BYTES_PER_OBJECT + index::MAX_BYTES_PER_OBJECT
        <= MAX_METADATA_BYTES
);
