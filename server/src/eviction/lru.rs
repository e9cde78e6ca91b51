//! Least recently used, where a write counts as a use.
//!
//! One queue: inserted and accessed objects go to its front, the victim is at its back. An object that is used while it's
//! set aside (its frequency then says so) comes back to the front, others to the back, where they were.

use super::EvictionPolicy;
use super::queue::Queue;
use crate::memory::slots::{SlotId, Slots};
use lanner_shared::key::KeyHash;

/// The policy's state.
#[derive(Debug, Default)]
pub struct Lru {
    queue: Queue,
}

impl EvictionPolicy for Lru {
    fn inserted(&mut self, slots: &mut Slots, slot: SlotId, _hash: KeyHash) {
        self.queue.push_front(slots, slot);
    }

    fn accessed(&mut self, slots: &mut Slots, slot: SlotId) {
        if slots.is_set_aside(slot) {
            slots.set_frequency(slot, 1);
        } else {
            self.queue.remove(slots, slot);
            self.queue.push_front(slots, slot);
        }
    }

    fn removed(&mut self, slots: &mut Slots, slot: SlotId) {
        self.queue.remove(slots, slot);
    }

    fn evicted(&mut self, slots: &mut Slots, slot: SlotId, _hash: KeyHash) {
        self.queue.remove(slots, slot);
    }

    fn next_candidate(&mut self, _slots: &mut Slots, _tries: &mut u32) -> Option<SlotId> {
        self.queue.back()
    }

    fn set_aside(&mut self, slots: &mut Slots, slot: SlotId) {
        self.queue.remove(slots, slot);
        slots.set_frequency(slot, 0);
        slots.set_set_aside(slot, true);
    }

    fn take_back(&mut self, slots: &mut Slots, slot: SlotId) {
        slots.set_set_aside(slot, false);
        if slots.frequency(slot) > 0 {
            self.queue.push_front(slots, slot);
        } else {
            self.queue.push_back(slots, slot);
        }
    }

    fn queued(&self) -> u32 {
        self.queue.len()
    }
}
