//! What a shard has done and how it stands, in one plain struct. Counts are exact: each is changed in one place, by the
//! event that it counts.

use super::Shard;
use super::quarantine::Departure;
use super::tuning::TuningState;
use crate::eviction::adaptive::AdaptiveState;
use crate::memory::extents::UNIT_BYTES;
use crate::memory::slots::SlotId;
use crate::radix::Radix;
use lanner_shared::time::Instant;
use lanner_shared::wire::Opcode;
use lanner_shared::wire::put::PutMode;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// Upper bounds of the classes of age at eviction, in tenths of a second; the last class has none.
pub const AGE_CLASS_TENTHS: [u32; 7] = [10, 100, 600, 6_000, 36_000, 216_000, 864_000];

/// Upper bounds, themselves included, of the classes of leading blocks found of a group; the last class has none.
pub const PREFIX_CLASS_BLOCKS: [u32; 7] = [0, 1, 2, 4, 8, 16, 31];

/// Hits and misses of one operation, in keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LookUps {
    /// The object was there.
    pub hits: u64,
    /// It wasn't.
    pub misses: u64,
}

/// Counts since the shard started, and how it stands. What ends in `_bytes` but `value_…` counts whole extents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ShardStats {
    /// By opcode, from 1.
    #[serde(serialize_with = "by_operation")]
    look_ups: [LookUps; Opcode::ALL.len()],
    /// Puts published with mode `Put`.
    pub puts: u64,
    /// Puts published with mode `Upsert`.
    pub upserts: u64,
    /// Puts refused because the key was present, at their beginning or end.
    pub puts_refused_existing: u64,
    /// Puts refused because there was no room.
    pub puts_refused_full: u64,
    /// Puts refused at the limit of unfinished puts or of objects.
    pub puts_refused_overloaded: u64,
    /// Unfinished puts ended by their transport.
    pub puts_aborted: u64,
    /// Unfinished puts ended with their peer.
    pub puts_ended_with_peer: u64,
    /// Unfinished puts ended for want of progress.
    pub puts_timed_out: u64,
    /// Value bytes of published puts.
    pub bytes_in: u64,
    /// Value bytes that transports have sent.
    pub bytes_out: u64,
    /// Reads past the shard of which it was told.
    pub touches: u64,
    /// Groups of chains that `match_chain` asked for by how many of their leading blocks were there, by the classes of
    /// [`PREFIX_CLASS_BLOCKS`]. The sum of those blocks are the hits of `match_chain`.
    pub prefix_blocks: [u64; PREFIX_CLASS_BLOCKS.len() + 1],
    /// Those of these groups that were answered as the last time, without a look-up of each block.
    pub groups_answered_again: u64,
    /// Parts of ranged reads' lists of keys that were answered as the last time, without a look-up of each key.
    pub lists_answered_again: u64,
    /// Objects evicted by the watermarks.
    pub evicted_ahead: u64,
    /// Objects evicted for a put that found no room.
    pub evicted_for_demand: u64,
    /// Objects evicted because they lay beside a victim and a put needed contiguous memory.
    pub evicted_as_neighbour: u64,
    /// Bytes of all evicted objects.
    pub evicted_bytes: u64,
    /// Objects removed by a client.
    pub removed: u64,
    /// Objects replaced by an upsert.
    pub overwritten: u64,
    /// Objects whose time to live ended.
    pub expired: u64,
    /// Evicted objects by how long they had been published, by the classes of [`AGE_CLASS_TENTHS`].
    pub age_at_eviction: [u64; AGE_CLASS_TENTHS.len() + 1],
    /// Sum of those ages, in tenths of a second.
    pub age_at_eviction_tenths: u64,
    /// Bytes given up because a free run beside them was damaged. Not zero: a fault.
    pub lost_bytes: u64,
    /// How often an allocation met a damaged free run. Not zero: a fault.
    pub damaged_runs_met: u64,

    /// Objects that can be found.
    pub objects: u64,
    /// Key and value bytes of the objects that can be found.
    pub content_bytes: u64,
    /// Puts begun and not ended.
    pub unfinished_puts: u64,
    /// Bytes under leases, hidden objects included.
    pub leased_bytes: u64,
    /// Bytes of hidden objects that wait for a lease or a transfer, and of ended puts that wait for their receive.
    pub quarantined_bytes: u64,
    /// Bytes of hard-pinned objects.
    pub hard_pinned_bytes: u64,
    /// For how long the oldest hard pin has held, in seconds; 0 without one.
    pub oldest_hard_pin_seconds: u64,
    /// Bytes that extents can take.
    pub capacity_bytes: u64,
    /// Bytes that they don't.
    pub free_bytes: u64,
    /// Bytes of the largest free run, exact to 1/32.
    pub largest_free_run_bytes: u64,
    /// Number of free runs.
    pub free_runs: u64,
    /// Bytes of memory beside the segment: index, key filter, slots, ghosts, kept answers, and the allocator's bits. Not the prefix index.
    pub index_bytes: u64,
    /// Objects stored while their policy still remembered that it had evicted them.
    pub ghost_hits: u64,
    /// What an adaptive policy does and why; `None` under another.
    pub adaptive: Option<AdaptiveState>,
    /// What the shard has set for itself and why.
    pub tuning: TuningState,
    /// Bytes of the prefix index; 0 without one.
    pub prefix_index_bytes: u64,
    /// Bytes of the key filter, which are among the `index_bytes`.
    pub filter_bytes: u64,
    /// Keys that the filter takes before it grows.
    pub filter_capacity_keys: u64,
    /// Parts of the filter that were rebuilt, to grow or to free counters that stuck.
    pub filter_parts_rebuilt: u64,
    /// Looks at keys on the shard that the filter answered by "not here". Clients that map it ask it themselves, uncounted.
    pub filter_negatives: u64,
    /// Looks at keys that it took for present and that were.
    pub filter_positives: u64,
    /// Looks at keys that it took for present and that weren't.
    pub filter_false_positives: u64,
    /// Keys that aren't there, made up by the shard, of which the filter was asked lately: what its rate of false positives is
    /// measured with, whoever asks it for what.
    pub filter_probes: u64,
    /// Those of them that it took for present.
    pub filter_probes_wrong: u64,
}

/// The counts among the [`ShardStats`], as the shard keeps them.
pub(super) type Counters = ShardStats;

impl ShardStats {
    /// Bytes that the objects take beside their keys and values: headers, padding and what lies beside the segment. Exact while
    /// no put is unfinished.
    pub fn metadata_bytes(&self) -> u64 {
        let extents =
            self.capacity_bytes.saturating_sub(self.free_bytes).saturating_sub(self.quarantined_bytes);
        (extents + self.index_bytes).saturating_sub(self.content_bytes)
    }

    /// Keys that an operation found.
    pub fn hits(&self, operation: Opcode) -> u64 {
        self.look_ups_of(operation).hits
    }

    /// Keys that an operation didn't find.
    pub fn misses(&self, operation: Opcode) -> u64 {
        self.look_ups_of(operation).misses
    }

    /// Objects evicted, for whatever reason.
    pub fn evictions(&self) -> u64 {
        self.evicted_ahead + self.evicted_for_demand + self.evicted_as_neighbour
    }

    #[inline]
    pub(super) fn count_look_up(&mut self, operation: Opcode, hit: bool) {
        self.count_look_ups(operation, u64::from(hit), u64::from(!hit));
    }

    #[inline]
    pub(super) fn count_look_ups(&mut self, operation: Opcode, hits: u64, misses: u64) {
        if let Some(counts) = self.look_ups.get_mut(operation as usize - 1) {
            counts.hits += hits;
            counts.misses += misses;
        }
    }

    fn look_ups_of(&self, operation: Opcode) -> LookUps {
        self.look_ups.get(operation as usize - 1).copied().unwrap_or_default()
    }
}

/// Hits and misses under the names of their operations.
fn by_operation<S: Serializer>(
    look_ups: &[LookUps; Opcode::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(Opcode::ALL.len()))?;
    for (operation, counts) in Opcode::ALL.iter().zip(look_ups) {
        map.serialize_entry(operation.name(), counts)?;
    }
    map.end()
}

impl Shard {
    /// Everything that the shard counts, now.
    pub fn stats(&mut self, now: Instant) -> ShardStats {
        let space = self.allocator.free_space();
        let oldest_pin = self.hard_pinned.back().map(|slot| self.age_tenths(now, slot));
        ShardStats {
            objects: self.index.len(),
            unfinished_puts: self.unfinished_puts(),
            leased_bytes: self.leased_bytes(now),
            hard_pinned_bytes: self.hard_pinned.units() * UNIT_BYTES,
            oldest_hard_pin_seconds: u64::from(oldest_pin.unwrap_or(0) / 10),
            capacity_bytes: self.allocator.range().byte_len(),
            free_bytes: space.free_units * UNIT_BYTES,
            largest_free_run_bytes: space.largest_run_units * UNIT_BYTES,
            free_runs: space.free_runs,
            index_bytes: self.bookkeeping_bytes(),
            ghost_hits: self.policy.ghost_hits(),
            adaptive: self.policy.adaptive_state(),
            tuning: self.tuning.state(self.lease_ms),
            prefix_index_bytes: self.radix.as_ref().map_or(0, Radix::bytes),
            filter_bytes: self.filter.bytes(),
            filter_capacity_keys: self.filter.capacity_keys(),
            filter_parts_rebuilt: self.filter.parts_rebuilt(),
            filter_negatives: self.filter.used().negatives,
            filter_positives: self.filter.used().positives,
            filter_false_positives: self.filter.used().false_positives,
            filter_probes: self.filter.probes().asked,
            filter_probes_wrong: self.filter.probes().wrong,
            ..self.counters.clone()
        }
    }

    /// Bytes of memory that the shard's objects take beside the segment.
    fn bookkeeping_bytes(&self) -> u64 {
        self.index.bytes()
            + self.filter.bytes()
            + self.slots.bytes()
            + self.policy.bytes()
            + self.expiry.bytes()
            + self.group_answers.bytes()
            + self.allocator.bookkeeping_bytes()
    }

    pub(super) fn count_publication(&mut self, slot: SlotId, mode: PutMode, value_bytes: u64) {
        match mode {
            PutMode::Put => self.counters.puts += 1,
            PutMode::Upsert => self.counters.upserts += 1,
        }
        self.counters.bytes_in += value_bytes;
        self.mortal_objects += u32::from(self.slots.expires_seconds(slot) != 0);
    }

    pub(super) fn count_departure(&mut self, now: Instant, slot: SlotId, departure: Departure) {
        self.mortal_objects -= u32::from(self.slots.expires_seconds(slot) != 0);
        let counters = &mut self.counters;
        match departure {
            Departure::EvictedAhead => counters.evicted_ahead += 1,
            Departure::EvictedForDemand => counters.evicted_for_demand += 1,
            Departure::EvictedAsNeighbour => counters.evicted_as_neighbour += 1,
            Departure::Removed => counters.removed += 1,
            Departure::Overwritten => counters.overwritten += 1,
            Departure::Expired => counters.expired += 1,
        }
        if departure.is_eviction() {
            let age = self.age_tenths(now, slot);
            let class = AGE_CLASS_TENTHS.partition_point(|bound| age >= *bound);
            if let Some(count) = self.counters.age_at_eviction.get_mut(class) {
                *count += 1;
            }
            self.counters.age_at_eviction_tenths += u64::from(age);
            self.counters.evicted_bytes += u64::from(self.slots.units(slot)) * UNIT_BYTES;
        }
    }

    fn age_tenths(&self, now: Instant, slot: SlotId) -> u32 {
        self.tenths(now).saturating_sub(self.slots.published_tenths(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at, put_request};
    use crate::eviction::PolicyKind;
    use crate::eviction::adaptive::MOST_SAMPLE_BYTES;
    use crate::memory::MAX_METADATA_BYTES;
    use lanner_shared::wire::put::PutRequest;

    /// Shows that evicted objects are counted in the class of their age, at its bounds, and that the sums agree.
    #[test]
    fn age_at_eviction_is_a_histogram() {
        for (age_millis, class) in [(0, 0), (999, 0), (1_000, 1), (9_999, 1), (10_000, 2), (90_000_000, 7)] {
            let mut shard = TestShard::new(8192 + 1024, ShardConfig::default());
            shard.put(at(0), b"old", &[1; 900]).unwrap();
            shard.put(at(age_millis), b"new", &[1; 900]).unwrap();
            let stats = shard.stats(at(age_millis));
            let mut expected = [0; 8];
            expected[class] = 1;
            assert_eq!(stats.age_at_eviction, expected, "{age_millis} ms");
            assert_eq!(stats.age_at_eviction_tenths, age_millis / 100);
            assert_eq!((stats.evictions(), stats.evicted_bytes), (1, 1024));
        }
    }

    /// Shows that an object's key and value are counted for as long as it can be found, whichever way it goes.
    #[test]
    fn contents_are_counted_while_they_can_be_found() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        let content = |shard: &mut TestShard| shard.stats(at(0)).content_bytes;
        shard.put(at(0), b"one", &[1; 100]).unwrap();
        shard.put(at(0), b"three", &[]).unwrap();
        assert_eq!(content(&mut shard), 108);
        shard.upsert(at(0), b"one", &[1; 7]).unwrap();
        assert_eq!(content(&mut shard), 15);
        assert!(shard.remove(at(0), b"three"));
        assert_eq!(content(&mut shard), 10);
        let mortal = PutRequest { ttl_seconds: 1, ..put_request(b"mortal") };
        shard.put_request(at(0), &mortal, &[1; 4]).unwrap();
        assert_eq!(content(&mut shard), 20);
        assert!(shard.get(at(3_000), b"mortal").is_none());
        assert_eq!(content(&mut shard), 10);
    }

    /// Shows that the default order of eviction learns from what a shard is asked: uses of sampled keys come to all shadows, what comes back
    /// is noticed, and that a fixed order has nothing to say.
    #[test]
    fn the_order_of_eviction_says_what_it_sees() {
        let mut shard = TestShard::new(8192 + 64 * 1024, ShardConfig::default());
        for number in 0..2_000u32 {
            let now = at(u64::from(number) * 300);
            shard.tick(now);
            let key = (number % 100).to_le_bytes();
            if shard.get(now, &key).is_none() {
                shard.put(now, &key, &[1; 900]).unwrap();
            }
        }
        let stats = shard.stats(at(700_000));
        let adaptive = stats.adaptive.unwrap();
        let watched = adaptive.shadows.map(|shadow| shadow.hits + shadow.misses);
        assert!(watched[0] > 500 && watched[0] < 1_500, "{watched:?} of 2,000 uses, of half of the keys");
        assert_eq!(watched, [watched[0]; 3]);
        assert!(stats.ghost_hits > 200, "{} came back", stats.ghost_hits);
        let config = ShardConfig { policy: PolicyKind::Lru, ..ShardConfig::default() };
        assert_eq!(TestShard::new(1 << 20, config).stats(at(0)).adaptive, None);
    }

    /// Shows the cost of an object beside its key and value: the extents' headers and padding for keys of 16 bytes, and everything beside
    /// the segment. With a sixteenth of ten million objects, as the index's tables, which double, are as full then as with ten million.
    #[test]
    fn metadata_is_within_its_limit() {
        let objects = 10_000_000u64 / 16;
        let mut shard = TestShard::new(130 << 20, ShardConfig::default());
        for number in 0..objects {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&number.to_le_bytes());
            shard.put(at(0), &key, &[1; 64]).unwrap();
        }
        let stats = shard.stats(at(0));
        assert_eq!(stats.objects, objects);
        assert_eq!(stats.content_bytes, objects * (16 + 64));
        // Sample and shadows of the adaptive order are as large with fewer objects: 0.2 bytes an object of ten million.
        let used = stats.metadata_bytes() - MOST_SAMPLE_BYTES;
        assert!(
            used <= objects * MAX_METADATA_BYTES as u64,
            "{} bytes an object",
            used as f64 / objects as f64
        );
    }
}
