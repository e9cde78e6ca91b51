//! Time to live: an object whose time has ended is a miss at once; its memory is found by a hand that goes round the slots.
//!
//! The hand doesn't look at every slot. Slots are taken in blocks of 256, and of each block the earliest end is kept: four bytes for
//! 256 objects. A tick looks at 1,024 of those, so ten million slots are gone round in 40 ticks, and only blocks where something
//! is due are walked, one in a tick. An order by end would cost each object 8 bytes.
//!
//! What always holds: the end kept of a block is never later than the earliest one in it. It may be earlier, after an object left
//! before its time; then the block is walked once for nothing and the end is exact again.

use super::Shard;
use super::quarantine::Departure;
use crate::memory::slots::{Life, SlotId};
use lanner_shared::time::Instant;

/// Slots of a block.
const BLOCK_SLOTS: u32 = 256;
/// Blocks whose earliest end a tick looks at.
const LOOKS: usize = 1024;
/// No object of the block has an end.
const NO_END: u32 = u32::MAX;

/// The hand, and the earliest end in each block of slots, in seconds since the shard started.
#[derive(Debug, Default)]
pub(super) struct ExpiryHand {
    earliest: Vec<u32>,
    cursor: usize,
}

impl ExpiryHand {
    fn note(&mut self, slot: SlotId, expires_seconds: u32) {
        let block = (slot.0 / BLOCK_SLOTS) as usize;
        if self.earliest.len() <= block {
            self.earliest.resize(block + 1, NO_END);
        }
        self.earliest[block] = self.earliest[block].min(expires_seconds);
    }

    /// The next block with an end at `second` or before, among those that one tick looks at.
    fn next_due(&mut self, second: u64) -> Option<u32> {
        for _ in 0..LOOKS.min(self.earliest.len()) {
            let block = self.cursor;
            self.cursor = if block + 1 < self.earliest.len() { block + 1 } else { 0 };
            if self.earliest.get(block).is_some_and(|end| u64::from(*end) <= second) {
                return Some(block as u32);
            }
        }
        None
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        (self.earliest.capacity() * size_of::<u32>()) as u64
    }
}

impl Shard {
    /// Whether the object's time to live has ended.
    #[inline]
    pub(super) fn is_expired(&self, now: Instant, slot: SlotId) -> bool {
        self.has_come(now, self.slots.expires_seconds(slot))
    }

    /// Whether an end in seconds since the shard started, 0 for never, has come.
    #[inline]
    pub(super) fn has_come(&self, now: Instant, expires_seconds: u32) -> bool {
        expires_seconds != 0 && self.millis(now).0 / 1000 >= u64::from(expires_seconds)
    }

    /// The second at which an object published now ends: rounded up, so never early. 0 for never.
    pub(super) fn expiry(&self, now: Instant, ttl_seconds: u32) -> u32 {
        if ttl_seconds == 0 {
            return 0;
        }
        let passed = now.0.saturating_sub(self.config.started.0).div_ceil(1_000_000_000);
        let seconds = passed + u64::from(ttl_seconds);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }

    /// Tenths of a second since the shard started.
    pub(super) fn tenths(&self, now: Instant) -> u32 {
        u32::try_from(self.millis(now).0 / 100).unwrap_or(u32::MAX)
    }

    /// Notes that an object that is published now has an end.
    pub(super) fn note_expiry(&mut self, slot: SlotId, expires_seconds: u32) {
        if expires_seconds != 0 {
            self.expiry.note(slot, expires_seconds);
        }
    }

    /// Ends what has expired in the next block of slots where something has. Returns whether there was one.
    pub(super) fn end_expired(&mut self, now: Instant) -> bool {
        if self.mortal_objects == 0 {
            return false;
        }
        let Some(block) = self.expiry.next_due(self.millis(now).0 / 1000) else { return false };
        let first = block * BLOCK_SLOTS;
        let mut earliest = NO_END;
        for slot in (first..self.slots.made().min(first + BLOCK_SLOTS)).map(SlotId) {
            let expires = self.slots.expires_seconds(slot);
            if self.slots.life(slot) != Life::Published || expires == 0 {
                continue;
            }
            if self.is_expired(now, slot) {
                self.depart(now, slot, Departure::Expired);
            } else {
                earliest = earliest.min(expires);
            }
        }
        if let Some(end) = self.expiry.earliest.get_mut(block as usize) {
            *end = earliest;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at, put_request};
    use lanner_shared::wire::put::{Pin, PutRequest};

    /// Shows that an object lives for at least its time and less than a second longer, is then a miss everywhere, and
    /// that its memory and its pin are gone without anyone asking for it.
    #[test]
    fn an_object_ends_with_its_time() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        let before = shard.allocator.free_units();
        for (round, pin) in [Pin::None, Pin::Soft, Pin::Hard].into_iter().enumerate() {
            let at = |millis| at(round as u64 * 10_000 + millis);
            let start = at(0).plus_nanos(1);
            let request = PutRequest { ttl_seconds: 2, pin, ..put_request(b"key") };
            shard.put_request(start, &request, b"value").unwrap();
            assert!(shard.exists(at(2_000), b"key"), "at least two seconds");
            assert!(!shard.exists(at(3_000), b"key"));
            assert_eq!(shard.list(at(3_000), b"", b"", |_, _| true).entries, 0);
            shard.tick_until_quiet(at(3_000));
            assert_eq!(shard.allocator.free_units(), before);
            assert_eq!(shard.stats(at(3_000)).hard_pinned_bytes, 0);
        }
        assert_eq!(shard.stats(at(30_000)).expired, 3);
        assert_eq!(shard.mortal_objects, 0);
    }

    /// The hand once looked at 256 slots in a tick, however few of them had an end: forty seconds for ten million objects. Shows that
    /// among half a million objects without an end a thousand with one leave within some ticks after it, a bounded number
    /// in each, and that ends which lie further ahead cost no walk.
    #[test]
    fn few_mortals_are_found_among_many() {
        let mut shard = TestShard::new(80 << 20, ShardConfig::default());
        for number in 0..500_000_u32 {
            let ttl_seconds = if number % 500 == 0 { 2 } else { 0 };
            let key = number.to_le_bytes();
            shard.put_request(at(0), &PutRequest { ttl_seconds, ..put_request(&key) }, b"value").unwrap();
        }
        let late = PutRequest { ttl_seconds: 100, ..put_request(b"late") };
        shard.put_request(at(0), &late, b"value").unwrap();
        // The key filter grows with so many keys, which is none of this test's business.
        shard.tick_until_quiet(at(0));
        assert!(!shard.tick(at(1_999)).more_is_due);
        let (mut ticks, mut expired) = (1, 0);
        while shard.tick(at(2_000)).more_is_due {
            let now_expired = shard.stats(at(2_000)).expired;
            assert!(now_expired - expired <= 256);
            (expired, ticks) = (now_expired, ticks + 1);
        }
        assert_eq!((expired, shard.mortal_objects), (1_000, 1));
        // As many as there are blocks with mortals in them.
        assert!(ticks < 1_010, "{ticks}");
        assert!(shard.exists(at(99_999), b"late"));
        assert!((0..3).any(|_| shard.tick(at(100_000)).more_is_due), "once round in two ticks");
        assert_eq!(shard.mortal_objects, 0);
    }

    /// Shows that a put takes the place of an expired object that nobody has swept away, and that this counts as expiry.
    #[test]
    fn a_put_takes_an_expired_place() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        let request = PutRequest { ttl_seconds: 1, ..put_request(b"key") };
        shard.put_request(at(0), &request, b"old").unwrap();
        let begun_before = shard.upsert_begin(at(500), b"key", b"upsert").unwrap();
        shard.put_commit(at(2_000), begun_before).unwrap();
        assert_eq!(shard.value(at(2_000), b"key").unwrap(), b"upsert");
        let stats = shard.stats(at(2_000));
        assert_eq!((stats.expired, stats.overwritten), (1, 0));
    }
}
