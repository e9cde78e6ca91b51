//! May these bytes be read: the check of a range that a client gives by its descriptor, and late notice of reads that
//! passed the shard by.

use super::Shard;
use super::stats::PREFIX_CLASS_BLOCKS;
use crate::memory::slots::{Generation, Life, SlotId};
use lanner_shared::error::Bound;
use lanner_shared::time::Instant;
use lanner_shared::{Error, Result};

/// Touches that wait to be noted: some more than one turn of a busy core brings, 32 KiB.
const MOST_LATER_TOUCHES: usize = 4096;

impl Shard {
    /// Whether the `length` bytes at `segment_offset` belong to the object that the descriptor names. Touches the slot
    /// and nothing else. An object that was hidden meanwhile can be read for as long as its memory isn't reused: then the
    /// generation is another (promise P1).
    ///
    /// # Errors
    /// `LeaseExpired` for another generation, `OutOfBounds` (with the extent's length) for bytes beyond the extent; the
    /// index in either is 0, the caller's to set.
    #[inline]
    pub fn check_range(
        &self,
        slot: SlotId,
        generation: Generation,
        segment_offset: u64,
        length: u64,
    ) -> Result<()> {
        let Some(extent) = self.slots.readable(slot, generation) else {
            return Err(Error::LeaseExpired { index: 0 });
        };
        let start = segment_offset.checked_sub(extent.byte_offset());
        let end = start.and_then(|start| start.checked_add(length));
        match end {
            Some(end) if end <= extent.byte_len() => Ok(()),
            _ => {
                let end = end.unwrap_or(u64::MAX);
                Err(Error::OutOfBounds { index: 0, bound: Bound::Value, end, length: extent.byte_len() })
            }
        }
    }

    /// Notes a read that went past the shard (shared memory, one-sided), which its reader hands in later. Grants no lease;
    /// one of an object that is gone is ignored.
    pub fn touch(&mut self, slot: SlotId, generation: Generation) {
        if self.slots.life(slot) == Life::Published && self.slots.generation(slot) == generation {
            self.note_access(slot);
            self.counters.touches += 1;
        }
    }

    /// Counts a group of a chain that was matched, by how many of its leading blocks were there.
    pub fn count_prefix(&mut self, blocks: u16) {
        let class = PREFIX_CLASS_BLOCKS.partition_point(|bound| *bound < u32::from(blocks));
        if let Some(count) = self.counters.prefix_blocks.get_mut(class) {
            *count += 1;
        }
    }

    /// [`Shard::touch`], but not before [`Shard::apply_touches`]: an answer needn't wait until the order of eviction knows of it.
    #[inline]
    pub fn touch_later(&mut self, slot: SlotId, generation: Generation) {
        if self.later_touches.len() < MOST_LATER_TOUCHES {
            self.later_touches.push((slot, generation));
        } else {
            self.touch(slot, generation);
        }
    }

    /// Notes what [`Shard::touch_later`] put off. To be called when the answers are on their way; a tick and a choice of victims do
    /// so by themselves.
    #[inline]
    pub fn apply_touches(&mut self) {
        if self.later_touches.is_empty() {
            return;
        }
        let mut touches = std::mem::take(&mut self.later_touches);
        touches.drain(..).for_each(|(slot, generation)| self.touch(slot, generation));
        self.later_touches = touches;
    }

    /// Counts value bytes that a transport has sent from the segment.
    pub fn count_sent(&mut self, bytes: u64) {
        self.counters.bytes_out += bytes;
    }

    /// Whether a lease on the object still runs: what a transport that answers late may want to know.
    pub fn is_leased(&self, now: Instant, slot: SlotId, generation: Generation) -> bool {
        self.slots.generation(slot) == generation && !self.lease_has_ended(now, slot)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at};
    use super::*;

    /// Shows that a range is good exactly within its own object's extent, at every edge, that numbers near the end of
    /// u64 don't wrap, and that an unfinished, a reused and an unknown slot are all refused.
    #[test]
    fn a_range_belongs_to_its_object() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        shard.put(at(0), b"before", &[1; 64]).unwrap();
        shard.put(at(0), b"key", &[2; 64]).unwrap();
        let found = shard.get(at(0), b"key").unwrap();
        let check = |offset, length| shard.check_range(found.slot, found.generation, offset, length);
        assert_eq!(check(found.value_offset, 64), Ok(()));
        assert_eq!(check(found.value_offset + 64, 0), Ok(()));
        assert!(matches!(
            check(found.value_offset, 65),
            Err(Error::OutOfBounds { length: 128, end: 129, .. })
        ));
        assert!(matches!(check(found.value_offset - 65, 1), Err(Error::OutOfBounds { .. })));
        assert!(matches!(check(u64::MAX, 1), Err(Error::OutOfBounds { .. })));
        assert!(matches!(check(found.value_offset, u64::MAX), Err(Error::OutOfBounds { .. })));
        let expired = Err(Error::LeaseExpired { index: 0 });
        assert_eq!(shard.check_range(SlotId(99), Generation(0), found.value_offset, 1), expired);
        let other = Generation(found.generation.0 + 1);
        assert_eq!(shard.check_range(found.slot, other, found.value_offset, 1), expired);
        let ticket = shard.begin(at(0), b"unfinished", b"value").unwrap();
        let unfinished = shard.check_range(ticket.slot(), ticket.generation(), ticket.value_offset, 1);
        assert_eq!(unfinished, expired);
    }

    /// Shows that an object that is being sent keeps its bytes beyond its lease, and gives them back after the last send.
    #[test]
    fn a_send_holds_the_bytes() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        shard.put(at(0), b"key", b"value").unwrap();
        let before = shard.allocator.free_units();
        let found = shard.get(at(0), b"key").unwrap();
        shard.pin_for_send(found.slot, found.generation).unwrap();
        shard.pin_for_send(found.slot, found.generation).unwrap();
        assert!(shard.remove(at(1), b"key"));
        shard.tick_until_quiet(at(60_000));
        shard.unpin_after_send(at(60_000), found.slot, found.generation);
        assert_eq!(shard.segment().slice(found.value_offset, 5).unwrap(), b"value");
        assert_eq!(shard.allocator.free_units(), before);
        shard.unpin_after_send(at(60_000), found.slot, found.generation);
        assert_eq!(shard.allocator.free_units(), before + 2);
        assert!(shard.pin_for_send(found.slot, found.generation).is_err());
    }

    /// Shows that a send that ends before the lease does gives nothing back early, and one between the lease's end and the
    /// next tick gives it back at once, and only once.
    #[test]
    fn a_send_that_ends_around_the_leases_end() {
        for (send_ends, is_free_then) in [(at(4_999), false), (at(5_000), true)] {
            let mut shard = TestShard::new(1 << 20, ShardConfig::default());
            let before = shard.allocator.free_units();
            shard.put(at(0), b"key", b"value").unwrap();
            let found = shard.get(at(0), b"key").unwrap();
            shard.pin_for_send(found.slot, found.generation).unwrap();
            shard.remove(at(0), b"key");
            shard.unpin_after_send(send_ends, found.slot, found.generation);
            assert_eq!(shard.allocator.free_units() == before, is_free_then);
            shard.tick_until_quiet(at(20_000));
            assert_eq!(shard.allocator.free_units(), before);
        }
    }
}
