//! Epoch words: how a reader notices, without asking a server, that what it has leased was replaced.
//!
//! Each shard keeps [`EPOCH_SLOTS`] counters in the first page of its segment, where clients can read them one-sided.
//! An object belongs to one of them: that of its *epoch group* if the writer named one, else that of its placement
//! tag. The shard adds one whenever an object of the group stops being the answer to its key: overwritten, removed,
//! evicted, expired. Two groups may share a word; the price is a refresh too many, never one too few.

use xxhash_rust::xxh3::xxh3_64;

/// Number of epoch words of a shard.
pub const EPOCH_SLOTS: usize = 1024;

/// The epoch word of a group, or of a placement tag.
#[inline]
#[must_use]
pub fn epoch_slot(group: &[u8]) -> u16 {
    (xxh3_64(group) % EPOCH_SLOTS as u64) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_is_part_of_the_protocol() {
        // Golden values: client and server compute the slot on their own.
        assert_eq!([epoch_slot(b""), epoch_slot(b"engram:l1"), epoch_slot(b"engram:l14")], [194, 325, 192]);
    }
}
