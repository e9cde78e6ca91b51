//! Leases: until when the memory of an object may not be reused, how much memory that is, and what waits for it.
//!
//! Time is cut into 512 buckets, the longest lease being at most 510 of them, in a ring. Each bucket counts the units whose last
//! lease ends in it, and holds two queues: objects that eviction *set aside* because they were leased, and hidden ones in
//! *quarantine*. As a bucket passes, both are dealt with, a few at a time. So nothing is ever searched for ended leases.
//!
//! What always holds: an object that is set aside or quarantined hangs in the bucket of its lease's end; it's moved when
//! the lease is extended. A slot's lease end is exact to the millisecond, rounded up; the bucket only says when to look.

use super::Shard;
use crate::eviction::queue::Queue;
use crate::memory::extents::UNIT_BYTES;
use crate::memory::slots::{Life, ShardMillis, SlotId, Slots};
use lanner_shared::time::Instant;
use std::time::Duration;

const BUCKETS: u64 = 512;

/// What ends in one span of time.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    leased_units: u64,
    set_aside: Queue,
    quarantined: Queue,
}

/// Which of a bucket's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Published, wanted by eviction.
    SetAside,
    /// Hidden.
    Quarantined,
}

/// All leases of a shard by their ends.
#[derive(Debug)]
pub(super) struct LeaseWheel {
    buckets: Box<[Bucket]>,
    /// A bucket spans two to the power of this many milliseconds: dividing by a shift, at every lease.
    bucket_millis_log2: u32,
    /// Number of the first bucket whose leases still count.
    first_counted: u64,
    /// Number of the first bucket whose queues may have something that is due.
    first_undrained: u64,
    leased_units: u64,
    waiting: u32,
}

impl LeaseWheel {
    pub(super) fn new(max_lease_ttl: Duration) -> Self {
        // One bucket for the present moment, one for rounding up.
        let millis = u64::try_from(max_lease_ttl.as_millis()).unwrap_or(u64::MAX);
        Self {
            buckets: vec![Bucket::default(); BUCKETS as usize].into_boxed_slice(),
            bucket_millis_log2: millis.div_ceil(BUCKETS - 2).max(1).next_power_of_two().ilog2(),
            first_counted: 0,
            first_undrained: 0,
            leased_units: 0,
            waiting: 0,
        }
    }

    /// Stops counting the leases of buckets that have passed.
    pub(super) fn advance(&mut self, now: ShardMillis) {
        let current = self.bucket_number(now);
        let passed = current.saturating_sub(self.first_counted).min(BUCKETS);
        for number in self.first_counted..self.first_counted + passed {
            let bucket = self.bucket(number);
            let units = std::mem::take(&mut bucket.leased_units);
            self.leased_units = self.leased_units.saturating_sub(units);
        }
        self.first_counted = self.first_counted.max(current);
    }

    /// Counts `units` as leased until `end`. `advance` was called for the present moment.
    fn count(&mut self, end: ShardMillis, units: u32) {
        let number = self.bucket_number(end);
        self.bucket(number).leased_units += u64::from(units);
        self.leased_units += u64::from(units);
    }

    /// Takes back what `count` counted, if its bucket hasn't passed.
    pub(super) fn discount(&mut self, end: ShardMillis, units: u32) {
        let number = self.bucket_number(end);
        if end != ShardMillis::default() && number >= self.first_counted {
            let bucket = self.bucket(number);
            bucket.leased_units = bucket.leased_units.saturating_sub(u64::from(units));
            self.leased_units = self.leased_units.saturating_sub(u64::from(units));
        }
    }

    /// Has an object wait until its lease ends.
    pub(super) fn wait(&mut self, slots: &mut Slots, slot: SlotId, waiting: Waiting) {
        self.queue(slots.lease_end(slot), waiting).push_front(slots, slot);
        self.waiting += 1;
    }

    /// Has an object wait no longer.
    pub(super) fn stop_waiting(&mut self, slots: &mut Slots, slot: SlotId, waiting: Waiting) {
        self.queue(slots.lease_end(slot), waiting).remove(slots, slot);
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// The next object whose wait is over; it no longer waits.
    pub(super) fn pop_due(&mut self, slots: &mut Slots, now: ShardMillis) -> Option<(SlotId, Waiting)> {
        if self.waiting == 0 {
            self.first_undrained = self.bucket_number(now);
            return None;
        }
        // After a long sleep everything is due, and one turn of the ring finds it.
        let current = self.bucket_number(now);
        self.first_undrained = self.first_undrained.max(current.saturating_sub(BUCKETS));
        while self.first_undrained < current {
            for waiting in [Waiting::Quarantined, Waiting::SetAside] {
                let number = self.first_undrained;
                let bucket = self.bucket(number);
                let queue = match waiting {
                    Waiting::Quarantined => &mut bucket.quarantined,
                    Waiting::SetAside => &mut bucket.set_aside,
                };
                // Behind what is due there may be objects of the ring's next turn.
                let due = queue.back().filter(|slot| slots.lease_end(*slot) <= now);
                if let Some(slot) = due {
                    queue.remove(slots, slot);
                    self.waiting -= 1;
                    return Some((slot, waiting));
                }
            }
            self.first_undrained += 1;
        }
        None
    }

    /// Units under leases, hidden objects included; a lease counts until its bucket has passed.
    pub(super) fn leased_units(&self) -> u64 {
        self.leased_units
    }

    /// Number of objects set aside or in quarantine.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// When the next bucket with leases has passed, at most 512 buckets ahead; `None` without a lease.
    pub(super) fn next_end(&mut self) -> Option<ShardMillis> {
        let first = self.first_counted;
        let next = (first..first + BUCKETS).find(|number| self.bucket(*number).leased_units > 0)?;
        Some(ShardMillis((next + 1) << self.bucket_millis_log2))
    }

    /// Milliseconds that a bucket spans.
    pub(super) fn bucket_millis(&self) -> u64 {
        1 << self.bucket_millis_log2
    }

    #[inline]
    fn bucket_number(&self, time: ShardMillis) -> u64 {
        time.0 >> self.bucket_millis_log2
    }

    fn queue(&mut self, end: ShardMillis, waiting: Waiting) -> &mut Queue {
        let number = self.bucket_number(end);
        let bucket = self.bucket(number);
        match waiting {
            Waiting::SetAside => &mut bucket.set_aside,
            Waiting::Quarantined => &mut bucket.quarantined,
        }
    }

    fn bucket(&mut self, number: u64) -> &mut Bucket {
        &mut self.buckets[(number % BUCKETS) as usize]
    }
}

impl Shard {
    /// Grants the object a lease from `now` on, of the current length. Returns it in whole milliseconds.
    pub(super) fn grant_lease(&mut self, now: Instant, slot: SlotId) -> u32 {
        let end = self.millis_rounded_up(now.plus_nanos(u64::from(self.lease_ms) * 1_000_000));
        let old_end = self.slots.lease_end(slot);
        if end > old_end {
            let units = self.slots.units(slot);
            let is_set_aside = self.slots.is_set_aside(slot);
            self.leases.advance(self.millis(now));
            if is_set_aside {
                self.leases.stop_waiting(&mut self.slots, slot, Waiting::SetAside);
            }
            self.leases.discount(old_end, units);
            self.leases.count(end, units);
            self.slots.set_lease_end(slot, end);
            if is_set_aside {
                self.leases.wait(&mut self.slots, slot, Waiting::SetAside);
            }
        }
        self.lease_ms
    }

    /// Whether the last lease on the object has ended at `now`.
    #[inline]
    pub(super) fn lease_has_ended(&self, now: Instant, slot: SlotId) -> bool {
        let now = self.millis(now);
        #[cfg(any(test, feature = "planted-faults"))]
        let now = ShardMillis(now.0 + self.planted_faults.lease_ends_early_by_millis);
        self.slots.lease_end(slot) <= now
    }

    /// Units under leases now, published or hidden.
    pub(super) fn leased_bytes(&mut self, now: Instant) -> u64 {
        self.leases.advance(self.millis(now));
        self.leases.leased_units() * UNIT_BYTES
    }

    /// Milliseconds from `now` until some lease has ended; 0 if there is none.
    pub(super) fn millis_until_a_lease_ends(&mut self, now: Instant) -> u64 {
        let now = self.millis(now);
        self.leases.advance(now);
        self.leases.next_end().map_or(0, |end| end.0.saturating_sub(now.0).max(1))
    }

    /// Deals with up to `tries` objects whose lease has ended: gives memory back, puts the others back in their queues.
    /// Returns whether more are due.
    pub(super) fn end_leases(&mut self, now: Instant, tries: u32) -> bool {
        let now_millis = self.millis(now);
        self.leases.advance(now_millis);
        for _ in 0..tries {
            match self.leases.pop_due(&mut self.slots, now_millis) {
                None => return false,
                Some((slot, Waiting::SetAside)) => self.take_back(slot),
                Some((slot, Waiting::Quarantined)) => {
                    debug_assert_eq!(self.slots.life(slot), Life::Hidden);
                    self.slots.set_set_aside(slot, false);
                    // With a transfer under way it stays hidden; the end of that transfer releases it.
                    self.release_if_unused(now, slot);
                }
            }
        }
        true
    }

    /// Whole milliseconds since the shard started, rounded down: what has certainly passed.
    #[inline]
    pub(super) fn millis(&self, now: Instant) -> ShardMillis {
        ShardMillis(now.0.saturating_sub(self.config.started.0) / 1_000_000)
    }

    /// Whole milliseconds since the shard started, rounded up: an end that is never early.
    #[inline]
    pub(super) fn millis_rounded_up(&self, end: Instant) -> ShardMillis {
        ShardMillis(end.0.saturating_sub(self.config.started.0).div_ceil(1_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at, at_nanos};
    use super::*;

    fn shard() -> TestShard {
        let lease_ttl = Duration::from_millis(100);
        TestShard::new(1 << 20, ShardConfig { lease_ttl, max_lease_ttl: lease_ttl, ..ShardConfig::default() })
    }

    /// Shows that a lease granted at a fraction of a millisecond holds for its full length, to the nanosecond before.
    #[test]
    fn no_lease_ends_early() {
        let mut shard = shard();
        shard.put(at(0), b"key", b"value").unwrap();
        let granted = at_nanos(7_000_001);
        let found = shard.get(granted, b"key").unwrap();
        assert_eq!(found.lease_ms, 100);
        assert!(!shard.lease_has_ended(at_nanos(107_000_000), found.slot));
        assert!(!shard.lease_has_ended(at_nanos(107_999_999), found.slot));
        assert!(shard.lease_has_ended(at(108), found.slot));
    }

    /// Shows that leased bytes are counted once for an object however often it's leased, follow the last lease, and
    /// are gone when it ends, through many turns of the ring.
    #[test]
    fn leased_bytes_follow_the_last_lease() {
        let mut shard = shard();
        shard.put(at(0), b"key", &[1; 64]).unwrap();
        for round in 0..5_000 {
            let start = round * 130;
            assert_eq!(shard.leased_bytes(at(start)), 0, "round {round}");
            shard.get(at(start), b"key").unwrap();
            shard.get(at(start + 20), b"key").unwrap();
            assert_eq!(shard.leased_bytes(at(start + 119)), 128);
            assert_eq!(shard.millis_until_a_lease_ends(at(start + 119)), 2);
            assert_eq!(shard.leased_bytes(at(start + 121)), 0);
        }
        assert_eq!(shard.millis_until_a_lease_ends(at(5_000 * 130)), 0);
    }

    /// Shows that a lease of which memory was given back between its end and its bucket's end isn't counted off twice.
    #[test]
    fn giving_memory_back_ends_the_count() {
        let lease_ttl = Duration::from_millis(100);
        let max_lease_ttl = Duration::from_secs(60);
        let config = ShardConfig { lease_ttl, max_lease_ttl, ..ShardConfig::default() };
        let mut shard = TestShard::new(1 << 20, config);
        shard.put(at(0), b"a", &[1; 64]).unwrap();
        shard.put(at(0), b"b", &[1; 64]).unwrap();
        shard.get(at(0), b"a").unwrap();
        shard.get(at(0), b"b").unwrap();
        assert!(shard.remove(at(100), b"a"));
        assert_eq!(shard.leased_bytes(at(100)), 128, "one object's bytes");
        assert_eq!(shard.leased_bytes(at(1000)), 0);
    }

    /// Shows that a shorter lease granted later doesn't cut an earlier one short.
    #[test]
    fn a_later_shorter_lease_shortens_nothing() {
        let mut shard = shard();
        shard.put(at(0), b"key", b"value").unwrap();
        let found = shard.get(at(0), b"key").unwrap();
        shard.set_lease_ttl(Duration::from_millis(10));
        assert_eq!(shard.get(at(1), b"key").unwrap().lease_ms, 10);
        assert!(!shard.lease_has_ended(at(99), found.slot));
    }
}
