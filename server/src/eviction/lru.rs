//! Least recently used, where a write counts as a use.
//!
//! One row of the [`calendar`](super::calendar): used objects go to its front, the victim is at its back. An object that
//! is used while it's set aside (its frequency then says so) comes back to the front, others to where they were, at the back. Of the blocks
//! of chains only leaves are in it; what was used within the same span of time is a tie, which the deeper one loses.

use super::calendar::{Calendar, SpanEnd};
use super::chain::{self, ChainPlace};
use super::{EvictionPolicy, PolicyTime};
use crate::memory::slots::{SlotId, Slots};
use lanner_shared::key::KeyHash;

/// All objects are of one class.
const CLASS: u8 = 0;

/// The policy's state.
#[derive(Debug, Default)]
pub struct Lru {
    calendar: Calendar,
    now: PolicyTime,
}

impl Lru {
    /// Bytes of memory beside the slots.
    pub fn bytes(&self) -> u64 {
        self.calendar.bytes()
    }

    fn push(&mut self, slots: &mut Slots, slot: SlotId, used: PolicyTime, end: SpanEnd) {
        self.calendar.push(slots, slot, CLASS, (used, self.now), end);
    }

    fn push_as_used_now(&mut self, slots: &mut Slots, slot: SlotId) {
        let is_block = chain::is_block(slots, slot);
        // A request uses its blocks from the first to the deepest, so the later of a tie is the deeper one.
        self.push(slots, slot, self.now, if is_block { SpanEnd::Back } else { SpanEnd::Front });
    }

    /// Leaves are in the calendar unless they are set aside.
    fn leave(&mut self, slots: &mut Slots, slot: SlotId) {
        if !chain::has_children(slots, slot) {
            self.calendar.remove(slots, slot, CLASS);
        }
        if let Some(parent) = chain::detach(slots, slot).filter(|parent| !slots.is_set_aside(*parent)) {
            let used = self.now.last(slots.used_at(parent));
            self.push(slots, parent, used, SpanEnd::Back);
        }
    }
}

impl EvictionPolicy for Lru {
    fn set_time(&mut self, now: PolicyTime) {
        self.now = self.now.max(now);
    }

    fn inserted(&mut self, slots: &mut Slots, slot: SlotId, _hash: KeyHash, place: ChainPlace) {
        let parent = chain::attach(slots, slot, place);
        if let Some(parent) = parent.filter(|parent| !slots.is_set_aside(*parent)) {
            self.calendar.remove(slots, parent, CLASS);
        }
        slots.set_used_at(slot, self.now.low());
        self.push_as_used_now(slots, slot);
    }

    fn accessed(&mut self, slots: &mut Slots, slot: SlotId, _hash: KeyHash) {
        slots.set_used_at(slot, self.now.low());
        if slots.is_set_aside(slot) {
            slots.set_frequency(slot, 1);
        } else if !chain::has_children(slots, slot) {
            self.calendar.remove(slots, slot, CLASS);
            self.push_as_used_now(slots, slot);
        }
    }

    fn removed(&mut self, slots: &mut Slots, slot: SlotId) {
        self.leave(slots, slot);
    }

    fn evicted(&mut self, slots: &mut Slots, slot: SlotId, _hash: KeyHash) {
        self.leave(slots, slot);
    }

    fn next_candidate(&mut self, _slots: &mut Slots, _tries: &mut u32) -> Option<SlotId> {
        self.calendar.oldest(CLASS)?.back()
    }

    fn set_aside(&mut self, slots: &mut Slots, slot: SlotId) {
        self.calendar.remove(slots, slot, CLASS);
        slots.set_frequency(slot, 0);
        slots.set_set_aside(slot, true);
    }

    fn take_back(&mut self, slots: &mut Slots, slot: SlotId) {
        slots.set_set_aside(slot, false);
        if chain::has_children(slots, slot) {
            return;
        }
        if slots.frequency(slot) > 0 {
            self.push_as_used_now(slots, slot);
        } else {
            let oldest = self.calendar.oldest(CLASS).map_or(self.now, |span| span.start);
            self.push(slots, slot, oldest, SpanEnd::Back);
        }
    }

    fn queued(&self) -> u32 {
        self.calendar.len()
    }
}
