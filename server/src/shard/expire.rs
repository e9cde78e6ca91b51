//! Time to live: an object whose time has ended is a miss at once; its memory is found by a hand that goes round the slots.
//!
//! The hand looks at 256 slots in each tick, as long as there is any object with a time to live: at a tick a
//! millisecond, ten million slots are gone round in 40 seconds. An order by expiry would cost each object 8 more bytes.

use super::Shard;
use super::quarantine::Departure;
use crate::memory::slots::{Life, SlotId};
use lanner_shared::time::Instant;

impl Shard {
    /// Whether the object's time to live has ended.
    #[inline]
    pub(super) fn is_expired(&self, now: Instant, slot: SlotId) -> bool {
        let expires = self.slots.expires_seconds(slot);
        expires != 0 && self.millis(now).0 / 1000 >= u64::from(expires)
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

    /// Looks at the next `tries` slots and ends what has expired.
    pub(super) fn end_expired(&mut self, now: Instant, tries: u32) {
        if self.mortal_objects == 0 {
            return;
        }
        for _ in 0..tries.min(self.slots.made()) {
            let slot = SlotId(self.expiry_cursor);
            self.expiry_cursor = if slot.0 + 1 < self.slots.made() { slot.0 + 1 } else { 0 };
            if self.slots.life(slot) == Life::Published && self.is_expired(now, slot) {
                self.depart(now, slot, Departure::Expired);
            }
        }
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
            assert_eq!(shard.list(at(3_000), b"", 0, |_, _| true).entries, 0);
            shard.tick_until_quiet(at(3_000));
            assert_eq!(shard.allocator.free_units(), before);
            assert_eq!(shard.stats(at(3_000)).hard_pinned_bytes, 0);
        }
        assert_eq!(shard.stats(at(30_000)).expired, 3);
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
