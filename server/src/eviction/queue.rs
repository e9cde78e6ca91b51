//! A doubly linked queue that runs through the slots themselves: no memory of its own for an object, removal without a
//! search, and the units in it counted.
//!
//! Used by the policies, by the quarantine and for what is set aside. A slot hangs in one queue at a time; which one is
//! known to whoever put it there. New ones come to the front, the oldest is at the back.

use crate::memory::slots::{SlotId, Slots};

/// A queue of slots.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    front: SlotId,
    back: SlotId,
    units: u64,
    len: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

impl Queue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { front: SlotId::NONE, back: SlotId::NONE, units: 0, len: 0 }
    }

    /// Units of all extents in it.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Number of slots in it.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The oldest one.
    pub fn back(&self) -> Option<SlotId> {
        self.back.some()
    }

    /// Adds a slot that hangs in no queue as the newest.
    pub fn push_front(&mut self, slots: &mut Slots, slot: SlotId) {
        slots.set_previous(slot, SlotId::NONE);
        slots.set_next(slot, self.front);
        match self.front.some() {
            Some(front) => slots.set_previous(front, slot),
            None => self.back = slot,
        }
        self.front = slot;
        self.count_in(slots, slot);
    }

    /// Adds a slot that hangs in no queue as the oldest: the next to come out.
    pub fn push_back(&mut self, slots: &mut Slots, slot: SlotId) {
        slots.set_next(slot, SlotId::NONE);
        slots.set_previous(slot, self.back);
        match self.back.some() {
            Some(back) => slots.set_next(back, slot),
            None => self.front = slot,
        }
        self.back = slot;
        self.count_in(slots, slot);
    }

    /// Takes out a slot that hangs in this queue.
    pub fn remove(&mut self, slots: &mut Slots, slot: SlotId) {
        let (previous, next) = (slots.previous(slot), slots.next(slot));
        match previous.some() {
            Some(previous) => slots.set_next(previous, next),
            None => self.front = next,
        }
        match next.some() {
            Some(next) => slots.set_previous(next, previous),
            None => self.back = previous,
        }
        slots.set_previous(slot, SlotId::NONE);
        slots.set_next(slot, SlotId::NONE);
        self.units = self.units.saturating_sub(u64::from(slots.units(slot)));
        self.len = self.len.saturating_sub(1);
    }

    /// Takes out the oldest.
    pub fn pop_back(&mut self, slots: &mut Slots) -> Option<SlotId> {
        let slot = self.back.some()?;
        self.remove(slots, slot);
        Some(slot)
    }

    /// All slots from the oldest to the newest. For tests and for people, not for the data path.
    pub fn iter<'a>(&'a self, slots: &'a Slots) -> impl Iterator<Item = SlotId> + 'a {
        std::iter::successors(self.back.some(), |slot| slots.previous(*slot).some())
    }

    fn count_in(&mut self, slots: &Slots, slot: SlotId) {
        self.units += u64::from(slots.units(slot));
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::extents::Extent;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Shows, against a deque, that order, length and units are right after any mix of additions at both ends and
        /// removals from anywhere.
        #[test]
        fn agrees_with_a_deque(steps in prop::collection::vec((0u8..4, 0usize..30), 1..300)) {
            let mut slots = Slots::new(30);
            let ids: Vec<_> = (0..30)
                .map(|number| slots.occupy(Extent { start: 0, units: number + 1 }).unwrap())
                .collect();
            let (mut queue, mut model) = (Queue::new(), VecDeque::new());
            for (operation, which) in steps {
                let id = ids[which];
                let place = model.iter().position(|other| *other == id);
                match (operation, place) {
                    (0, None) => {
                        queue.push_front(&mut slots, id);
                        model.push_front(id);
                    }
                    (1, None) => {
                        queue.push_back(&mut slots, id);
                        model.push_back(id);
                    }
                    (2, Some(place)) => {
                        queue.remove(&mut slots, id);
                        model.remove(place);
                    }
                    (3, _) => prop_assert_eq!(queue.pop_back(&mut slots), model.pop_back()),
                    _ => {}
                }
                prop_assert!(queue.iter(&slots).eq(model.iter().rev().copied()));
                prop_assert_eq!(queue.len() as usize, model.len());
                let units: u64 = model.iter().map(|id| u64::from(slots.units(*id))).sum();
                prop_assert_eq!(queue.units(), units);
            }
        }
    }
}
