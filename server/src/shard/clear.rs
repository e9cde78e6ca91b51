//! Contiguous room ahead of demand: while large values are being put, ticks clear the place for the next one, a slice at a
//! time, so that no put has to evict ten thousand small objects at once.
//!
//! ```text
//!  │ free run, growing ──────────────►│ anchor │ live │ live │ …
//!                                       leaves next
//! ```
//!
//! What always holds: between two slices nothing is remembered but the anchor, a live object behind the run, by slot and
//! generation; so whatever happens meanwhile, the walk goes on from where an extent really starts. What is cleared without success
//! (a leased object stands in the way, somebody else took the room) is bounded by [`Clearing::budget_units`] for each large put.

use super::Shard;
use super::extent_access::live_units;
use super::quarantine::Departure;
use crate::memory::extents::{Extent, ExtentError, Run};
use crate::memory::slots::{Generation, Life, SlotId};
use lanner_shared::time::Instant;
use std::time::Duration;

/// Puts of at least so many units (64 KiB) are cleared for. For smaller ones a few victims in the order of use make room.
const LARGE_UNITS: u32 = 1024;
/// Without a large put for this long nothing is cleared any more.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Steps for each tick: objects that leave, or that are passed because they can't.
const STEPS_AHEAD: u32 = 64;
/// Steps of a large put that comes before its room is ready: what is left of a window of 4 MiB of the smallest objects.
const STEPS_ON_DEMAND: u32 = 1 << 15;

/// What is being cleared.
#[derive(Debug, Default)]
pub(super) struct Clearing {
    /// Units of the largest put of late, and what an allocation in constant time may need beyond them; 0 if there is none.
    wanted_units: u32,
    /// When there was one last.
    wanted_at: Instant,
    /// Units that may still leave before the next large put comes.
    budget_units: u64,
    anchor: Option<(SlotId, Generation)>,
}

impl Shard {
    /// Takes note of a large put: another one is likely.
    pub(super) fn expect_another_large_put(&mut self, now: Instant, units: u32) {
        if units < LARGE_UNITS {
            return;
        }
        // A run is found by its bin, which is a thirty-second wide.
        let wanted = units.saturating_add(units / 16);
        let clearing = &mut self.clearing;
        clearing.wanted_units = clearing.wanted_units.max(wanted);
        clearing.wanted_at = now;
        clearing.budget_units = 2 * u64::from(clearing.wanted_units);
    }

    /// Clears a slice of the room for the next large put. Returns whether more is to be done.
    pub(super) fn clear_ahead(&mut self, now: Instant) -> bool {
        if self.clearing.wanted_units == 0 {
            return false;
        }
        if now.since(self.clearing.wanted_at) >= REMEMBERED {
            self.clearing = Clearing::default();
            return false;
        }
        self.clear(now, STEPS_AHEAD, Departure::EvictedAhead)
    }

    /// Finishes what ticks have begun, for a large put that is there now.
    pub(super) fn clear_on_demand(&mut self, now: Instant, units: u32) {
        if units >= LARGE_UNITS && self.clearing.anchor.is_some() {
            self.clear(now, STEPS_ON_DEMAND, Departure::EvictedAsNeighbour);
        }
    }

    /// Goes on clearing for up to `steps`. Returns whether they were used up before the room was ready.
    fn clear(&mut self, now: Instant, steps: u32, departure: Departure) -> bool {
        for _ in 0..steps {
            let wanted = u64::from(self.clearing.wanted_units);
            if self.allocator.free_space().largest_run_units >= wanted || self.clearing.budget_units == 0 {
                self.clearing.anchor = None;
                return false;
            }
            let Some(slot) = self.anchor(now) else { return false };
            match self.clear_step(now, slot, departure) {
                Ok(next) => self.clearing.anchor = next.map(|slot| (slot, self.slots.generation(slot))),
                Err(_) => {
                    self.counters.damaged_runs_met += 1;
                    self.clearing = Clearing::default();
                    return false;
                }
            }
        }
        true
    }

    /// Where to go on, or the next victim's place to begin at.
    fn anchor(&mut self, now: Instant) -> Option<SlotId> {
        let is_there = |(slot, generation): &(SlotId, Generation)| {
            self.slots.life(*slot) == Life::Published && self.slots.generation(*slot) == *generation
        };
        match self.clearing.anchor.filter(is_there) {
            Some((slot, _)) => Some(slot),
            None => self.next_victim(now, &mut STEPS_AHEAD.clone()),
        }
    }

    /// Has the object in `slot` leave, or passes it if it can't. Returns the next object.
    fn clear_step(
        &mut self,
        now: Instant,
        slot: SlotId,
        departure: Departure,
    ) -> Result<Option<SlotId>, ExtentError> {
        let extent = self.slots.extent(slot);
        if self.evictable_in(now, extent, false).is_none() {
            return self.next_published(extent.start + extent.units);
        }
        let run = self.allocator.free_run_before(&self.segment, extent.start)?;
        self.depart(now, slot, departure);
        self.clearing.budget_units = self.clearing.budget_units.saturating_sub(u64::from(extent.units));
        self.next_published(run.map_or(extent.start, |run| run.start))
    }

    /// The first published object from `unit` on, where an extent or a free run starts. What is unfinished or waits for its
    /// readers is passed, up to a limit: then the clearing begins anew elsewhere.
    fn next_published(&self, mut unit: u32) -> Result<Option<SlotId>, ExtentError> {
        for _ in 0..STEPS_AHEAD {
            match self.allocator.run_at(&self.segment, unit, live_units)? {
                None => return Ok(None),
                Some(Run::Free(run)) => unit = run.start + run.units,
                Some(Run::Live(extent)) => match self.published_in(extent) {
                    Some(slot) => return Ok(Some(slot)),
                    None => unit = extent.start + extent.units,
                },
            }
        }
        Ok(None)
    }

    /// The object in an extent that its key leads to, if it has one.
    pub(super) fn published_in(&self, extent: Extent) -> Option<SlotId> {
        let header = super::extent_access::header_at(&self.segment, extent.byte_offset())?;
        self.index.get(header.hash(), |slot| self.slots.extent(slot) == extent)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{TestShard, at, put_request};
    use super::super::{ShardConfig, Watermarks};
    use super::*;
    use lanner_shared::wire::put::{Pin, PutRequest};

    const LARGE: usize = 1 << 20;

    /// A shard full of rows, without watermarks, so that nothing but large puts makes ticks evict.
    fn full_of_rows() -> TestShard {
        let watermarks = Watermarks { begin_below_per_mille: 0, end_at_per_mille: 0 };
        let mut shard = TestShard::new(16 << 20, ShardConfig { watermarks, ..ShardConfig::default() });
        for row in 0..50_000_u32 {
            shard.put(at(0), &row.to_le_bytes(), &[1; 264]).unwrap();
        }
        shard
    }

    fn evicted_by_puts(shard: &mut TestShard) -> u64 {
        let stats = shard.stats(at(1));
        stats.evicted_for_demand + stats.evicted_as_neighbour
    }

    /// A put of 4 MiB into a store full of rows took 9 ms in one call, during which the shard served nobody. Shows that after
    /// a first large put each tick makes a bounded part of the room for the next one, which then evicts nothing itself.
    #[test]
    fn the_next_large_put_finds_its_room() {
        let mut shard = full_of_rows();
        for round in 0..5_u8 {
            let before = evicted_by_puts(&mut shard);
            shard.put(at(1), &[round], &[round; LARGE]).unwrap();
            assert!(round == 0 || evicted_by_puts(&mut shard) == before, "round {round}");
            let (mut gone, mut ticks) = (shard.stats(at(1)).evicted_ahead, 0);
            while shard.tick(at(1)).more_is_due {
                let now_gone = shard.stats(at(1)).evicted_ahead;
                assert!(now_gone - gone <= u64::from(STEPS_AHEAD));
                (gone, ticks) = (now_gone, ticks + 1);
            }
            assert!(ticks > 30, "{ticks}: in slices");
        }
        assert_eq!(shard.value(at(1), &[4]).unwrap(), [4; LARGE]);
    }

    /// Shows that with leased and pinned rows everywhere, so that no room can be made, ticks stop evicting after twice what the put
    /// wanted, and that a leased row isn't touched.
    #[test]
    fn clearing_in_vain_ends() {
        let mut shard = full_of_rows();
        let rows: Vec<u32> = (0..50_000_u32).filter(|row| shard.exists(at(0), &row.to_le_bytes())).collect();
        let leased: Vec<u32> = rows.iter().copied().step_by(100).collect();
        leased.iter().for_each(|row| assert!(shard.get(at(0), &row.to_le_bytes()).is_some()));
        let soft = PutRequest { pin: Pin::Soft, ..put_request(b"pinned") };
        shard.put_request(at(0), &soft, &[1; 264]).unwrap();
        assert!(shard.begin(at(1), b"large", &[1; LARGE]).is_err());
        let before = shard.stats(at(1)).evictions();
        for _ in 0..10_000 {
            shard.tick(at(1));
        }
        assert!(!shard.tick(at(1)).more_is_due);
        let evicted = shard.stats(at(1)).evictions() - before;
        assert!((1..3 * LARGE as u64 / 320).contains(&evicted), "{evicted}");
        assert!(leased.iter().all(|row| shard.exists(at(1), &row.to_le_bytes())));
        assert!(shard.exists(at(1), b"pinned"));
    }

    /// Shows that clearing ends when large puts do.
    #[test]
    fn no_large_put_no_clearing() {
        let mut shard = full_of_rows();
        shard.put(at(1), b"large", &[1; LARGE]).unwrap();
        let later = at(1 + 10_000);
        let before = shard.stats(later).evictions();
        assert!(!shard.tick(later).more_is_due);
        assert_eq!(shard.stats(later).evictions(), before);
    }
}
