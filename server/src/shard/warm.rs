//! Many keys at once: brings to the caches what the look-ups of a frame's keys are about to touch.
//!
//! A look-up waits for memory four times, each time for an address that the one before gave: the index's bucket, the slot, the
//! extent's header, and the next line with the rest of the key. Done key by key that is the whole cost of a look-up in a
//! large store. Here each of the four is done for all keys of a step before the next begins, in loops so short that the processor has
//! the misses of many keys under way at once. Nothing is decided here: the look-ups follow as if this hadn't been.
//!
//! Measured by `lanner-benches`, bench `look_ups`, two million objects, 64 keys in a frame: `exists` 1.11 to 0.53 us a key, `query`
//! 1.15 to 0.59.

use super::Shard;
use crate::memory::slots::SlotId;
use lanner_shared::key::KeyHash;
use smallvec::SmallVec;
use std::hint::black_box;

/// Keys that are worth bringing in together: some more than the misses that a core can have under way.
pub const WARMED_KEYS: usize = 32;
/// Fewer keys than this cost more here than they save.
const FEWEST_KEYS: usize = 3;
/// With fewer objects everything is in the caches anyway: of index, slot and header some 100 bytes each.
const FEWEST_OBJECTS: u64 = 1 << 14;
/// From a header to the end of most keys.
const NEXT_LINE_BYTES: u64 = 64;

impl Shard {
    /// Brings in what the first [`WARMED_KEYS`] of `keys` lead to. To be called just before they are looked up.
    #[inline]
    pub fn warm<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8]>) {
        if self.is_worth_warming(keys.len()) {
            let hashes: SmallVec<[KeyHash; WARMED_KEYS]> = keys.take(WARMED_KEYS).map(KeyHash::of).collect();
            self.warm_keys(&hashes);
        }
    }

    /// [`Shard::warm`] of keys whose hashes are known.
    #[inline]
    pub fn warm_hashed(&self, hashes: &[KeyHash]) {
        if self.is_worth_warming(hashes.len()) {
            hashes.chunks(WARMED_KEYS).for_each(|some| self.warm_keys(some));
        }
    }

    fn is_worth_warming(&self, keys: usize) -> bool {
        keys >= FEWEST_KEYS && self.index.len() >= FEWEST_OBJECTS
    }

    fn warm_keys(&self, hashes: &[KeyHash]) {
        let mut slots: SmallVec<[SlotId; WARMED_KEYS]> = SmallVec::new();
        // The first with the right fingerprint is, but for one in millions, the key's.
        slots.extend(hashes.iter().filter_map(|hash| self.index.get(*hash, |_| true)));
        let mut offsets: SmallVec<[u64; WARMED_KEYS]> = SmallVec::new();
        offsets.extend(slots.iter().map(|slot| self.slots.extent(*slot).byte_offset()));
        // Loads rather than prefetches: they need no unsafe code, and none of them waits for another.
        let touched = |offset: u64| self.segment.slice(offset, 1).map_or(0, |byte| u32::from(byte[0]));
        let sum: u32 =
            offsets.iter().map(|offset| touched(*offset) + touched(offset + NEXT_LINE_BYTES)).sum();
        black_box(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at};
    use super::*;

    /// Shows that warming changes nothing that can be seen, for keys that are there, that aren't, and that stand twice, and at the
    /// very end of the segment.
    #[test]
    fn warming_changes_nothing() {
        let objects = 2 * FEWEST_OBJECTS as u32;
        let mut shard = TestShard::new(8192 + u64::from(objects) * 128, ShardConfig::default());
        for number in 0..objects {
            shard.put(at(0), &number.to_le_bytes(), b"value").unwrap();
        }
        assert_eq!(shard.allocator.free_units(), 0);
        let before = shard.stats(at(1));
        let keys: Vec<[u8; 4]> = (0..2 * objects).map(u32::to_le_bytes).collect();
        for some in keys.chunks(WARMED_KEYS + 5) {
            let twice = [some, some].concat();
            shard.warm(twice.iter().map(<[u8; 4]>::as_slice));
        }
        assert_eq!(shard.stats(at(1)), before);
    }
}
