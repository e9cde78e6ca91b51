//! From the answer to a key to free memory: hiding an object, and the one place that gives an extent back.
//!
//! Called by every event that ends an object. Promise P1 rests on [`Shard::release_if_unused`]: nothing else frees memory.

use super::Shard;
use super::lease::Waiting;
use crate::eviction::EvictionPolicy;
use crate::memory::slots::{Generation, Life, SlotId};
use lanner_shared::error::Limit;
use lanner_shared::key::KeyHash;
use lanner_shared::time::Instant;
use lanner_shared::wire::put::Pin;
use lanner_shared::{Error, Result};

/// Why an object stops being the answer to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// To make room, before anybody waited for it.
    EvictedAhead,
    /// To make room for a put.
    EvictedForDemand,
    /// To make room for a put that needs contiguous memory: a neighbour of a victim.
    EvictedAsNeighbour,
    /// A client asked for it.
    Removed,
    /// A newer version took its place in the index.
    Overwritten,
    /// Its time to live ended.
    Expired,
}

impl Departure {
    pub(super) fn is_eviction(self) -> bool {
        matches!(self, Departure::EvictedAhead | Departure::EvictedForDemand | Departure::EvictedAsNeighbour)
    }
}

impl Shard {
    /// Ends a published object: no query finds it from now on, its group's epoch changes, and its memory is given back
    /// when nobody can read it any more.
    pub(super) fn depart(&mut self, now: Instant, slot: SlotId, departure: Departure) {
        if let Some(hash) = self.hash(slot) {
            if self.index.remove(hash, slot) {
                self.forget_key(slot, hash);
            }
            self.depart_from_taken_place(now, slot, departure);
        }
    }

    /// The same for an object whose place in the index a newer one has taken.
    pub(super) fn depart_from_taken_place(&mut self, now: Instant, slot: SlotId, departure: Departure) {
        let Some(header) = self.header(slot).copied() else { return };
        self.leave_queues(slot, departure.is_eviction().then_some(header.hash()));
        // Saturating: a header that was damaged must not take the shard down with it.
        self.counters.content_bytes = self.counters.content_bytes.saturating_sub(header.content_bytes());
        self.count_departure(now, slot, departure);
        self.slots.set_life(slot, Life::Hidden);
        self.bump_epoch(header.epoch_slot.get());
        self.hide_until_unused(now, slot);
    }

    /// Has the extent of a hidden object wait for the end of its last lease and transfer, or gives it back at once.
    pub(super) fn hide_until_unused(&mut self, now: Instant, slot: SlotId) {
        self.counters.quarantined_bytes += self.slots.extent(slot).byte_len();
        if self.lease_has_ended(now, slot) {
            self.release_if_unused(now, slot);
        } else {
            self.leases.wait(&mut self.slots, slot, Waiting::Quarantined);
            self.slots.set_set_aside(slot, true);
        }
    }

    /// Gives the extent of a hidden object back, unless a lease or a transfer can still read it. The slot gets another
    /// generation. Promise P1: nothing else frees an extent that was readable.
    pub(super) fn release_if_unused(&mut self, now: Instant, slot: SlotId) {
        let is_hidden = self.slots.life(slot) == Life::Hidden;
        let is_in_use = self.slots.in_flight(slot) > 0;
        #[cfg(any(test, feature = "planted-faults"))]
        let is_in_use = is_in_use && !self.planted_faults.forgets_transfers;
        if !is_hidden || is_in_use || !self.lease_has_ended(now, slot) {
            return;
        }
        if self.slots.is_set_aside(slot) {
            self.leases.stop_waiting(&mut self.slots, slot, Waiting::Quarantined);
        }
        let extent = self.slots.extent(slot);
        self.leases.discount(self.slots.lease_end(slot), extent.units);
        self.counters.quarantined_bytes -= extent.byte_len();
        // With a damaged free run beside it, the memory is rather lost than handed out twice.
        self.give_back_unused(extent);
        self.slots.vacate(slot);
    }

    /// Keeps the extent of an object from being reused while a transfer reads it, whatever its lease.
    ///
    /// # Errors
    /// [`Error::LeaseExpired`] if the slot holds another object by now; [`Error::Overloaded`] with 65,535 transfers of
    /// the one object under way.
    pub fn pin_for_send(&mut self, slot: SlotId, generation: Generation) -> Result<()> {
        let life = self.slots.life(slot);
        let readable = matches!(life, Life::Published | Life::Hidden);
        if !readable || self.slots.generation(slot) != generation {
            return Err(Error::LeaseExpired { index: 0 });
        }
        self.begin_transfer(slot)
    }

    /// Ends what [`Shard::pin_for_send`] began. The memory is given back if it was only this that it waited for.
    pub fn unpin_after_send(&mut self, now: Instant, slot: SlotId, generation: Generation) {
        if self.slots.generation(slot) == generation && self.slots.in_flight(slot) > 0 {
            self.end_transfer(now, slot);
        }
    }

    pub(super) fn begin_transfer(&mut self, slot: SlotId) -> Result<()> {
        if self.slots.begin_transfer(slot) {
            Ok(())
        } else {
            let limit = u64::from(u16::MAX);
            Err(Error::Overloaded { what: Limit::Transfers, limit })
        }
    }

    pub(super) fn end_transfer(&mut self, now: Instant, slot: SlotId) {
        if self.slots.end_transfer(slot) == 0 {
            self.release_if_unused(now, slot);
        }
    }

    /// Takes a published object out of whatever queue it hangs in. A victim's hash goes to the policy.
    fn leave_queues(&mut self, slot: SlotId, evicted: Option<KeyHash>) {
        if self.slots.is_set_aside(slot) {
            self.leases.stop_waiting(&mut self.slots, slot, Waiting::SetAside);
            self.take_back(slot);
        }
        match (self.slots.pin(slot), evicted) {
            (Pin::None, Some(hash)) => self.policy.evicted(&mut self.slots, slot, hash),
            (Pin::None, None) => self.policy.removed(&mut self.slots, slot),
            (Pin::Soft, _) => self.soft_pinned.removed(&mut self.slots, slot),
            (Pin::Hard, _) => self.hard_pinned.remove(&mut self.slots, slot),
        }
    }
}
