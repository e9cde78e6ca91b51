//! Room is needed: ahead of demand by watermarks, for a put that finds none, and contiguous where memory lies in pieces.
//!
//! The policy says who should go. Three kinds of objects can't, and each is met once rather than again and again: a leased
//! one is set aside until its lease ends; a hard-pinned one hangs in no queue of candidates; a soft-pinned one is asked
//! when no other is left.
//!
//! Where as many units were freed as a put needs, or many objects, and still no free run is long enough, memory is in pieces. Then the
//! *neighbourhood* of the next victim goes: a walk forward from it, over free runs and objects that may be evicted, to the
//! first contiguous window that is long enough. What can't leave ends a window, and the next begins behind it.

use super::Shard;
use super::extent_access::live_units;
use super::lease::Waiting;
use super::quarantine::Departure;
use crate::eviction::{EvictionPolicy, PolicyTime};
use crate::memory::extents::{Extent, ExtentError, Run, UNIT_BYTES};
use crate::memory::slots::{Life, SlotId};
use lanner_shared::time::Instant;
use lanner_shared::wire::put::Pin;
use lanner_shared::{Error, Result};

/// When to evict ahead of demand, in thousandths of the shard's memory that are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this, eviction begins.
    pub begin_below_per_mille: u16,
    /// At this, it ends.
    pub end_at_per_mille: u16,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self { begin_below_per_mille: 10, end_at_per_mille: 20 }
    }
}

/// Victims for each tick.
const VICTIMS_AHEAD: u32 = 64;
/// Candidates that a tick looks at.
const TRIES_AHEAD: u32 = 512;
/// Candidates that a put looks at; a leased one costs some 100 ns and is met once for each lease.
const TRIES_ON_DEMAND: u32 = 4096;
/// Single victims of a put before it clears a neighbourhood.
const VICTIMS_BEFORE_NEIGHBOURHOOD: u32 = 64;
/// Extents that a put looks at to find a contiguous window: those of 24 MiB in rows of 264 B.
const WALK_ON_DEMAND: u32 = 1 << 16;
/// Objects whose lease has ended that a put deals with before it evicts.
const ENDED_LEASES_ON_DEMAND: u32 = 256;
/// Unfinished puts of peers that are gone that a put ends before it evicts.
const GONE_PEERS_PUTS_ON_DEMAND: u32 = 64;

impl Shard {
    /// An extent of `units`, by eviction if need be.
    ///
    /// # Errors
    /// [`Error::StoreFull`] if leases, pins and unfinished puts leave no room, or none that a bounded search finds.
    pub(super) fn make_room(&mut self, now: Instant, units: u32) -> Result<Extent> {
        if let Some(extent) = self.allocate(units) {
            return Ok(extent);
        }
        self.apply_touches();
        self.tell_policies_the_time(now);
        self.end_leases(now, ENDED_LEASES_ON_DEMAND);
        self.end_puts_of_gone_peers(now, GONE_PEERS_PUTS_ON_DEMAND);
        let mut tries = TRIES_ON_DEMAND;
        let (mut freed_units, mut victims) = (0, 0);
        loop {
            if let Some(extent) = self.allocate(units) {
                return Ok(extent);
            }
            let Some(victim) = self.next_victim(now, &mut tries) else { break };
            // A put that is large among small objects would otherwise evict its own length twice.
            if freed_units >= u64::from(units) || victims >= VICTIMS_BEFORE_NEIGHBOURHOOD {
                if !self.evict_neighbourhood(now, victim, units) {
                    break;
                }
                if self.slots.life(victim) != Life::Published {
                    continue;
                }
                // The window was one free run, one of the few that constant time doesn't find: any other will do.
            }
            let free_before = self.allocator.free_units();
            self.depart(now, victim, Departure::EvictedForDemand);
            freed_units += self.allocator.free_units() - free_before;
            victims += 1;
        }
        Err(self.store_full(now, units))
    }

    /// Uses noted from now on count as of `now`.
    pub(super) fn tell_policies_the_time(&mut self, now: Instant) {
        let now = PolicyTime::after(now.since(self.config.started));
        self.policy.set_time(now);
        self.soft_pinned.set_time(now);
    }

    /// Evicts the next victim, if there is one.
    pub(super) fn evict_one(&mut self, now: Instant, departure: Departure) -> bool {
        let victim = self.next_victim(now, &mut TRIES_AHEAD.clone());
        if let Some(victim) = victim {
            self.depart(now, victim, departure);
        }
        victim.is_some()
    }

    /// Evicts up to a slice if the free memory is below the watermark. Returns whether more is to be done.
    pub(super) fn evict_ahead(&mut self, now: Instant) -> bool {
        let capacity = self.capacity_units();
        let mark = |per_mille: u16| capacity * u64::from(per_mille) / 1000;
        let Watermarks { begin_below_per_mille, end_at_per_mille } = self.tuning.watermarks();
        if self.allocator.free_units() < mark(begin_below_per_mille) {
            self.is_evicting_ahead = true;
        }
        let mut tries = TRIES_AHEAD;
        for _ in 0..VICTIMS_AHEAD {
            let reached = self.allocator.free_units() >= mark(end_at_per_mille);
            self.is_evicting_ahead &= !reached;
            if !self.is_evicting_ahead {
                return false;
            }
            let Some(victim) = self.next_victim(now, &mut tries) else { return tries == 0 };
            self.depart(now, victim, Departure::EvictedAhead);
        }
        true
    }

    /// Whether a put may soon have to evict: what was read past the shard is worth hearing of first.
    #[inline]
    pub fn is_short_of_room(&self) -> bool {
        let begin_below = u64::from(self.tuning.watermarks().begin_below_per_mille);
        self.allocator.free_units() * 1000 < self.capacity_units() * begin_below
    }

    pub(super) fn capacity_units(&self) -> u64 {
        u64::from(self.allocator.range().units)
    }

    /// Puts an object whose lease has ended back among the candidates.
    pub(super) fn take_back(&mut self, slot: SlotId) {
        match self.slots.pin(slot) {
            Pin::Soft => self.soft_pinned.take_back(&mut self.slots, slot),
            _ => self.policy.take_back(&mut self.slots, slot),
        }
    }

    /// Gives an extent back that no object was made in.
    pub(super) fn give_back_unused(&mut self, extent: Extent) {
        if self.allocator.free(&mut self.segment, extent).is_err() {
            self.counters.lost_bytes += extent.byte_len();
        }
    }

    /// A damaged free run counts as no room: the extent that it would give is never handed out.
    fn allocate(&mut self, units: u32) -> Option<Extent> {
        let outcome = self.allocator.allocate(&mut self.segment, units);
        if outcome.is_err() {
            self.counters.damaged_runs_met += 1;
        }
        outcome.ok().flatten()
    }

    /// The next object that may be evicted now. Those that may not yet are set aside on the way.
    fn next_victim(&mut self, now: Instant, tries: &mut u32) -> Option<SlotId> {
        while *tries > 0 {
            let unpinned = self.policy.next_candidate(&mut self.slots, tries);
            let candidate = match unpinned {
                None if *tries > 0 => self.soft_pinned.next_candidate(&mut self.slots, tries)?,
                other => other?,
            };
            if self.lease_has_ended(now, candidate) {
                return Some(candidate);
            }
            match unpinned {
                Some(_) => self.policy.set_aside(&mut self.slots, candidate),
                None => self.soft_pinned.set_aside(&mut self.slots, candidate),
            }
            self.leases.wait(&mut self.slots, candidate, Waiting::SetAside);
            *tries -= 1;
        }
        None
    }

    /// Evicts all objects of the first contiguous window of `units` that is found from the victim on, soft-pinned ones
    /// only if there's no other window. Returns whether there was one.
    fn evict_neighbourhood(&mut self, now: Instant, victim: SlotId, units: u32) -> bool {
        let mut window = std::mem::take(&mut self.window);
        let found = [false, true].into_iter().any(|may_take_soft_pinned| {
            self.find_window(now, victim, units, may_take_soft_pinned, &mut window).unwrap_or_else(|_| {
                self.counters.damaged_runs_met += 1;
                false
            })
        });
        if found {
            for slot in window.iter().copied() {
                let is_victim = slot == victim;
                let departure =
                    if is_victim { Departure::EvictedForDemand } else { Departure::EvictedAsNeighbour };
                self.depart(now, slot, departure);
            }
        }
        self.window = window;
        found
    }

    /// Fills `window` with the objects between which nothing but free memory lies and that, with it, span `units`. Returns
    /// whether there is such a window. Walks from the victim to the end and then from the start, at most once round.
    fn find_window(
        &self,
        now: Instant,
        victim: SlotId,
        units: u32,
        may_take_soft_pinned: bool,
        window: &mut Vec<SlotId>,
    ) -> Result<bool, ExtentError> {
        window.clear();
        let victim_start = self.slots.extent(victim).start;
        let free_before = self.allocator.free_run_before(&self.segment, victim_start)?;
        let mut unit = free_before.map_or(victim_start, |run| run.start);
        let (mut spanned, mut has_wrapped) = (0, false);
        for _ in 0..WALK_ON_DEMAND {
            if has_wrapped && spanned == 0 && unit > victim_start {
                break;
            }
            match self.allocator.run_at(&self.segment, unit, live_units)? {
                None => {
                    if has_wrapped {
                        break;
                    }
                    (unit, spanned, has_wrapped) = (self.allocator.range().start, 0, true);
                    window.clear();
                    continue;
                }
                Some(Run::Free(run)) => {
                    spanned += u64::from(run.units);
                    unit = run.start + run.units;
                }
                Some(Run::Live(extent)) => {
                    unit = extent.start + extent.units;
                    match self.evictable_in(now, extent, may_take_soft_pinned) {
                        Some(slot) => {
                            spanned += u64::from(extent.units);
                            window.push(slot);
                        }
                        None => {
                            spanned = 0;
                            window.clear();
                        }
                    }
                }
            }
            if spanned >= u64::from(units) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The object in an extent, if it may be evicted now. What the index doesn't lead to is unfinished or quarantined.
    fn evictable_in(&self, now: Instant, extent: Extent, may_take_soft_pinned: bool) -> Option<SlotId> {
        let header = super::extent_access::header_at(&self.segment, extent.byte_offset())?;
        let slot = self.index.get(header.hash(), |slot| self.slots.extent(slot) == extent)?;
        let pin_allows = match self.slots.pin(slot) {
            Pin::None => true,
            Pin::Soft => may_take_soft_pinned,
            Pin::Hard => false,
        };
        let evictable = pin_allows
            && self.slots.life(slot) == Life::Published
            && self.slots.in_flight(slot) == 0
            && self.lease_has_ended(now, slot);
        evictable.then_some(slot)
    }

    /// Says what stands in the way.
    fn store_full(&mut self, now: Instant, units: u32) -> Error {
        self.counters.puts_refused_full += 1;
        Error::StoreFull {
            needed: u64::from(units) * UNIT_BYTES,
            leased: self.leased_bytes(now),
            pinned: self.hard_pinned.units() * UNIT_BYTES,
            retry_ms: self.millis_until_a_lease_ends(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at, put_request};
    use super::*;
    use crate::eviction::PolicyKind;
    use lanner_shared::wire::put::PutRequest;

    /// A shard with room for 16 objects of 64 KiB under LRU, so that the order of eviction is plain, and no watermarks.
    fn shard() -> TestShard {
        let config = ShardConfig {
            policy: PolicyKind::Lru,
            watermarks: Watermarks { begin_below_per_mille: 0, end_at_per_mille: 0 },
            ..ShardConfig::default()
        };
        TestShard::new(8192 + 16 * 65_536, config)
    }

    /// A value that, with its key, takes exactly 64 KiB.
    static BLOCK: [u8; 65_536 - 64] = [7; 65_536 - 64];

    fn fill(shard: &mut TestShard) {
        (0..16u8).for_each(|key| {
            shard.put(at(0), &[key], &BLOCK).unwrap();
        });
        assert_eq!(shard.allocator.free_units(), 0);
    }

    /// Shows that a put into a full shard evicts the least recently used object and no other, which is a miss then.
    #[test]
    fn a_full_shard_takes_a_put() {
        let mut shard = shard();
        fill(&mut shard);
        shard.put(at(0), b"new", &BLOCK).unwrap();
        let present: Vec<bool> = (0..16u8).map(|key| shard.exists(at(0), &[key])).collect();
        assert_eq!(present, [[false].as_slice(), &[true; 15]].concat());
        assert_eq!(shard.stats(at(0)).evicted_for_demand, 1);
    }

    /// Shows that leased objects stay and others go in their stead; that with all leased the error says how much and
    /// until when; that this refusal costs no second look at each object; and that a put succeeds once leases end.
    #[test]
    fn leased_objects_stay() {
        let mut shard = shard();
        fill(&mut shard);
        (0..15u8).for_each(|key| assert!(shard.get(at(0), &[key]).is_some()));
        shard.put(at(1), b"a", &BLOCK).unwrap();
        assert!(!shard.exists(at(1), &[15]), "the only one without a lease");
        shard.get(at(1), b"a").unwrap();
        let full = shard.begin(at(2), b"b", &BLOCK).unwrap_err();
        let Error::StoreFull { needed: 65_536, leased: 1_048_576, pinned: 0, retry_ms } = full else {
            panic!("{full:?}")
        };
        assert!((4_998..=5_020).contains(&retry_ms), "{retry_ms}");
        assert_eq!((shard.policy.queued(), shard.leases.waiting()), (0, 16));
        shard.put(at(2 + retry_ms), b"b", &BLOCK).unwrap();
        assert_eq!(shard.stats(at(6_000)).puts_refused_full, 1);
    }

    /// Shows that hard-pinned objects stay and are named in the error, and that soft-pinned ones go, but last.
    #[test]
    fn pins_withstand() {
        let mut shard = shard();
        for key in 0..16u8 {
            let pin = if key < 8 { Pin::Soft } else { Pin::None };
            let key = [key];
            shard.put_request(at(0), &PutRequest { pin, ..put_request(&key) }, &BLOCK).unwrap();
        }
        for key in 16..32u8 {
            let key = [key];
            let request = PutRequest { pin: Pin::Hard, ttl_seconds: 60, ..put_request(&key) };
            shard.put_request(at(0), &request, &BLOCK).unwrap();
            let unpinned_gone = (8..16u8).all(|key| !shard.exists(at(0), &[key]));
            let soft_present = (0..8u8).all(|key| shard.exists(at(0), &[key]));
            assert!(unpinned_gone || soft_present, "a soft-pinned object went before an unpinned one");
        }
        let full = shard.begin(at(1), b"x", &BLOCK).unwrap_err();
        assert_eq!(full, Error::StoreFull { needed: 65_536, leased: 0, pinned: 1_048_576, retry_ms: 0 });
        assert_eq!(shard.stats(at(1_000)).hard_pinned_bytes, 1_048_576);
        assert_eq!(shard.stats(at(1_000)).oldest_hard_pin_seconds, 1);
        shard.put(at(61_000), b"x", &[]).unwrap_err();
        shard.tick_until_quiet(at(61_000));
        shard.put(at(61_000), b"x", &BLOCK).unwrap();
    }

    /// Shows that in a store full of rows a large put succeeds by evicting neighbours, though single victims in the order
    /// of use would leave only holes, and that rows under a lease are not among them.
    #[test]
    fn a_large_put_clears_a_neighbourhood() {
        let mut shard = shard();
        let rows = 16 * 65_536 / 384;
        let key = |number: u32| number.to_le_bytes();
        for number in 0..rows {
            shard.put(at(0), &key(number), &[1; 264]).unwrap();
        }
        // Touched in a scattered order, so that the order of use isn't that of places.
        let mut found = Vec::new();
        for step in 0..rows {
            let slot =
                shard.locate(lanner_shared::KeyHash::of(&key(step * 997 % rows)), &key(step * 997 % rows));
            let slot = slot.unwrap();
            let generation = shard.slots.generation(slot);
            shard.touch(slot, generation);
        }
        for number in [10, rows / 2, rows - 10] {
            found.push((number, shard.get(at(0), &key(number)).unwrap()));
        }
        shard.put(at(1), b"large", &[9; 300_000]).unwrap();
        let stats = shard.stats(at(1));
        assert!(stats.evicted_as_neighbour > 300 && stats.evicted_for_demand < 900, "{stats:?}");
        for (number, found) in found {
            assert_eq!(shard.get(at(1), &key(number)).unwrap().value_offset, found.value_offset);
        }
        assert_eq!(shard.value(at(1), b"large").unwrap(), [9; 300_000]);
    }

    /// Shows that with a leased object in the middle of every possible window a large put is refused, nothing but as many
    /// victims as it asked for is lost, and the search ends.
    #[test]
    fn no_window_no_put() {
        let mut shard = shard();
        fill(&mut shard);
        (0..16u8).filter(|key| key % 2 == 0).for_each(|key| assert!(shard.get(at(0), &[key]).is_some()));
        let refused = shard.begin(at(1), b"large", &[1; 100_000]);
        assert!(matches!(refused, Err(Error::StoreFull { leased: 524_288, .. })), "{refused:?}");
        assert_eq!(shard.stats(at(1)).evictions(), 2);
    }

    /// Shows that ticks keep memory free between the watermarks, in slices, so that a put then evicts nothing itself.
    #[test]
    fn eviction_runs_ahead_of_demand() {
        let watermarks = Watermarks { begin_below_per_mille: 100, end_at_per_mille: 200 };
        let mut shard = TestShard::new(1 << 20, ShardConfig { watermarks, ..ShardConfig::default() });
        let capacity = u64::from(shard.allocator.range().units);
        for number in 0..20_000u32 {
            shard.put(at(0), &number.to_le_bytes(), &[1; 64]).unwrap();
            if number % 32 == 0 {
                shard.tick(at(0));
            }
        }
        let free = shard.allocator.free_units();
        assert!((capacity / 10 - 64..=capacity / 5 + 64).contains(&free), "{free} of {capacity}");
        let stats = shard.stats(at(0));
        assert_eq!(stats.evicted_for_demand + stats.evicted_as_neighbour, 0);
        assert_eq!(stats.evicted_ahead + stats.objects, 20_000, "nothing accepted is lost silently (P6)");
    }

    /// What a put was told is stored stays while nothing needs its room, however large it is against the shard, and small
    /// objects stay beside it (an early version cleared room ahead for a next large put, and took the last one for it).
    #[test]
    fn nothing_goes_while_there_is_room() {
        let mut shard = TestShard::new(64 << 20, ShardConfig::default());
        for small in 0..20u8 {
            shard.put(at(0), &[small], &[small; 500 << 10]).unwrap();
        }
        shard.put(at(1), b"large", &vec![1; 40 << 20]).unwrap();
        for millis in 0..200 {
            shard.tick(at(2 + millis));
        }
        assert!(shard.exists(at(300), b"large"));
        assert!((0..20u8).all(|small| shard.exists(at(300), &[small])));
        assert_eq!(shard.stats(at(300)).evictions(), 0);
    }
}
