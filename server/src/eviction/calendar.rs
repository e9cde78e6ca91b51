//! Objects in the order of their last use, by class: for each class a row of *spans* of time, each a doubly linked list
//! through the slots. It has no memory for an object, and every call takes constant time but where it says otherwise.
//!
//! Used by the policies that rank by age. A span begins with a use that no span is near enough to: nearer than a quarter of a second, or
//! than an eighth of its age. As spans grow old, neighbours are joined to that length, so that some hundred and fifty spans of a class
//! cover years. Joining two lists touches the slots at their ends and no other. That works because a slot doesn't know its
//! span: only the links at the ends of a list lead to it, as numbers from [`FIRST_END`] on, which no slot has.
//!
//! What always holds: the spans of a row don't overlap and get older from front to back; in a span, who is to leave next is
//! at the back. Absent on purpose: the exact time of a use. What was used within one span is a tie.

use super::PolicyTime;
use crate::memory::slots::{FIRST_END, SlotId, Slots, USE_CLASSES};
use std::collections::VecDeque;

/// A span may be as long as this part of its age.
const LONGEST_SPAN_PART: u32 = 8;

/// Which end of its span an object comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpanEnd {
    /// Last to leave.
    Front,
    /// Next to leave.
    Back,
}

/// Uses within one stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// Number of the span in its calendar.
    pub number: u16,
    /// Of how many uses its objects are known.
    pub class: u8,
    /// When it began; the next one's beginning is its end.
    pub start: PolicyTime,
    front: SlotId,
    back: SlotId,
}

impl Span {
    /// Whether no object is in it.
    pub fn is_empty(&self) -> bool {
        self.back == SlotId::NONE
    }

    /// Who leaves next.
    pub fn back(&self) -> Option<SlotId> {
        self.back.some()
    }

    /// What stands in a link beyond the ends of its list.
    fn end(&self) -> SlotId {
        SlotId(FIRST_END + u32::from(self.number))
    }
}

/// Objects by class and time of use.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    spans: Vec<Span>,
    /// Numbers of spans that are in no row.
    vacant: Vec<u16>,
    /// For each class its spans, newest first.
    rows: [VecDeque<u16>; USE_CLASSES],
    units: [u64; USE_CLASSES],
    /// When the spans of each class were last joined.
    joined_at: [PolicyTime; USE_CLASSES],
    len: u32,
}

impl Calendar {
    /// Number of objects.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Units of the objects of a class.
    pub fn units(&self, class: u8) -> u64 {
        self.units.get(usize::from(class)).copied().unwrap_or(0)
    }

    /// Units of all objects.
    pub fn all_units(&self) -> u64 {
        self.units.iter().sum()
    }

    /// Bytes of memory beside the slots.
    pub fn bytes(&self) -> u64 {
        let links: usize = self.rows.iter().map(|row| row.capacity() * size_of::<u16>()).sum();
        (self.spans.capacity() * size_of::<Span>() + links) as u64
    }

    /// All spans in use, in no order.
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.rows.iter().flatten().filter_map(|number| self.spans.get(usize::from(*number)))
    }

    /// The span under a number, if it's the one that began then and not a later one of that number.
    pub fn span_since(&self, number: u16, class: u8, start: PolicyTime) -> Option<&Span> {
        let span = self.spans.get(usize::from(number))?;
        (span.class == class && span.start == start).then_some(span)
    }

    /// The oldest span of a class in which there is an object. Drops empty ones on the way.
    pub fn oldest(&mut self, class: u8) -> Option<Span> {
        let row = self.rows.get_mut(usize::from(class))?;
        while let Some(number) = row.back().copied() {
            let span = self.spans.get(usize::from(number)).copied()?;
            if !span.is_empty() {
                return Some(span);
            }
            row.pop_back();
            self.vacant.push(number);
        }
        None
    }

    /// Adds a slot that hangs in no list, as used at `used`, which isn't later than `now`. Returns its span if it's the only
    /// one in it.
    pub fn push(
        &mut self,
        slots: &mut Slots,
        slot: SlotId,
        class: u8,
        (used, now): (PolicyTime, PolicyTime),
        end: SpanEnd,
    ) -> Option<Span> {
        let number = self.span_for(slots, class, used, now)?;
        let span = self.spans.get_mut(usize::from(number))?;
        let beyond = span.end();
        match end {
            SpanEnd::Front => {
                slots.set_previous(slot, beyond);
                slots.set_next(slot, span.front.some().unwrap_or(beyond));
                match span.front.some() {
                    Some(front) => slots.set_previous(front, slot),
                    None => span.back = slot,
                }
                span.front = slot;
            }
            SpanEnd::Back => {
                slots.set_next(slot, beyond);
                slots.set_previous(slot, span.back.some().unwrap_or(beyond));
                match span.back.some() {
                    Some(back) => slots.set_next(back, slot),
                    None => span.front = slot,
                }
                span.back = slot;
            }
        }
        let alone = (span.front == span.back).then_some(*span);
        self.len += 1;
        if let Some(units) = self.units.get_mut(usize::from(class)) {
            *units += u64::from(slots.units(slot));
        }
        alone
    }

    /// Counts an object that hangs here among another class. It stays in its span until it's taken out.
    pub fn reclassify(&mut self, units: u32, from: u8, to: u8) {
        if let Some(from) = self.units.get_mut(usize::from(from)) {
            *from = from.saturating_sub(u64::from(units));
        }
        if let Some(to) = self.units.get_mut(usize::from(to)) {
            *to += u64::from(units);
        }
    }

    /// Takes out a slot that hangs here, of the class that it was added or reclassified to.
    pub fn remove(&mut self, slots: &mut Slots, slot: SlotId, class: u8) {
        let (previous, next) = (slots.previous(slot), slots.next(slot));
        match self.span_beyond(previous) {
            Some(span) => span.front = if next.0 >= FIRST_END { SlotId::NONE } else { next },
            None => slots.set_next(previous, next),
        }
        match self.span_beyond(next) {
            Some(span) => span.back = if previous.0 >= FIRST_END { SlotId::NONE } else { previous },
            None => slots.set_previous(next, previous),
        }
        slots.set_previous(slot, SlotId::NONE);
        slots.set_next(slot, SlotId::NONE);
        self.len = self.len.saturating_sub(1);
        if let Some(units) = self.units.get_mut(usize::from(class)) {
            *units = units.saturating_sub(u64::from(slots.units(slot)));
        }
    }

    fn span_beyond(&mut self, link: SlotId) -> Option<&mut Span> {
        let number = link.0.checked_sub(FIRST_END)?;
        self.spans.get_mut(number as usize)
    }

    /// The span that a use at `used` belongs to: one that is there, or else a new one. Before the first new span in a quarter of a second
    /// it walks over the row.
    fn span_for(&mut self, slots: &mut Slots, class: u8, used: PolicyTime, now: PolicyTime) -> Option<u16> {
        let (place, found) = self.span_at(class, used)?;
        let is_near = |span: &Span| used.since(span.start) <= now.since(used) / LONGEST_SPAN_PART;
        if let Some(span) = found.filter(is_near) {
            return Some(span.number);
        }
        let joined_at = self.joined_at.get_mut(usize::from(class))?;
        let place = if *joined_at == now {
            place
        } else {
            *joined_at = now;
            self.join_old_spans(slots, class, now);
            self.span_at(class, used)?.0
        };
        let number = self.make_span(class, used)?;
        self.rows.get_mut(usize::from(class))?.insert(place, number);
        Some(number)
    }

    /// The newest span of a class that doesn't begin after `used`, and where in the row it is or would be.
    fn span_at(&self, class: u8, used: PolicyTime) -> Option<(usize, Option<Span>)> {
        let row = self.rows.get(usize::from(class))?;
        let span_of = |number: &u16| self.spans.get(usize::from(*number)).copied();
        let place = row.partition_point(|number| span_of(number).is_some_and(|span| span.start > used));
        Some((place, row.get(place).and_then(span_of)))
    }

    fn make_span(&mut self, class: u8, start: PolicyTime) -> Option<u16> {
        let number = match self.vacant.pop() {
            Some(number) => number,
            // 65,535 spans are never reached: a row has a few hundred at most.
            None => u16::try_from(self.spans.len()).ok().filter(|number| *number < u16::MAX)?,
        };
        let span = Span { number, class, start, front: SlotId::NONE, back: SlotId::NONE };
        match self.spans.get_mut(usize::from(number)) {
            Some(place) => *place = span,
            None => self.spans.push(span),
        }
        Some(number)
    }

    /// Joins neighbours that are short for their age, and drops spans without objects.
    fn join_old_spans(&mut self, slots: &mut Slots, class: u8, now: PolicyTime) {
        let Some(row) = self.rows.get_mut(usize::from(class)) else { return };
        let old = std::mem::take(row);
        let mut kept: VecDeque<u16> = VecDeque::with_capacity(old.len() + 1);
        // When the span kept last ends: the beginning of the one before it.
        let mut end_of_kept = now;
        for number in old {
            let Some(span) = self.spans.get(usize::from(number)).copied() else { continue };
            if span.is_empty() {
                self.vacant.push(number);
                continue;
            }
            let newer = kept.back().and_then(|number| self.spans.get(usize::from(*number))).copied();
            match newer {
                Some(newer)
                    if end_of_kept.since(span.start) <= now.since(newer.start) / LONGEST_SPAN_PART =>
                {
                    self.join(slots, newer, span);
                    kept.pop_back();
                    self.vacant.push(newer.number);
                }
                Some(newer) => end_of_kept = newer.start,
                None => {}
            }
            kept.push_back(number);
        }
        if let Some(row) = self.rows.get_mut(usize::from(class)) {
            *row = kept;
        }
    }

    /// Puts the objects of `newer` in front of those of `older`. Neither is empty.
    fn join(&mut self, slots: &mut Slots, newer: Span, older: Span) {
        slots.set_next(newer.back, older.front);
        slots.set_previous(older.front, newer.back);
        slots.set_previous(newer.front, older.end());
        if let Some(span) = self.spans.get_mut(usize::from(older.number)) {
            span.front = newer.front;
        }
        if let Some(span) = self.spans.get_mut(usize::from(newer.number)) {
            (span.front, span.back) = (SlotId::NONE, SlotId::NONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::extents::Extent;
    use proptest::prelude::*;

    /// All objects of a class, next to leave first, by the links in both directions.
    fn listed(calendar: &Calendar, slots: &Slots, class: u8) -> Vec<SlotId> {
        let mut all = Vec::new();
        for number in calendar.rows[usize::from(class)].iter().rev() {
            let span = calendar.spans[usize::from(*number)];
            let is_slot = |slot: &SlotId| slot.0 < FIRST_END;
            let backwards: Vec<_> =
                std::iter::successors(span.back(), |slot| Some(slots.previous(*slot)).filter(is_slot))
                    .collect();
            let mut forwards: Vec<_> =
                std::iter::successors(span.front.some(), |slot| Some(slots.next(*slot)).filter(is_slot))
                    .collect();
            forwards.reverse();
            assert_eq!(backwards, forwards);
            all.extend(backwards);
        }
        all
    }

    proptest! {
        /// Shows, against a list sorted by time, that objects used in any order of calls and at any intervals come out oldest
        /// first, that removal from anywhere keeps the order of the rest, and that units and number are right.
        #[test]
        fn agrees_with_a_sorted_list(steps in prop::collection::vec((0u8..2, 0usize..40, 0u32..400), 1..400)) {
            let mut slots = Slots::new(40);
            let ids: Vec<_> = (0..40)
                .map(|number| slots.occupy(Extent { start: 0, units: number + 1 }).unwrap())
                .collect();
            let mut calendar = Calendar::default();
            let mut model: Vec<(PolicyTime, SlotId)> = Vec::new();
            let mut now = PolicyTime(5);
            for (class, which, pause) in steps {
                let id = ids[which];
                now = PolicyTime(now.0 + pause * pause / 2_000);
                match model.iter().position(|(_, other)| *other == id) {
                    Some(place) => {
                        let _ = model.remove(place);
                        calendar.remove(&mut slots, id, (which % 2) as u8);
                    }
                    None => {
                        let _ = calendar.push(&mut slots, id, (which % 2) as u8, (now, now), SpanEnd::Front);
                        model.push((now, id));
                    }
                }
                let of_class = |number: &SlotId| ids.iter().position(|id| id == number).unwrap() % 2 == usize::from(class);
                let expected: Vec<_> = model.iter().map(|(_, id)| *id).filter(of_class).collect();
                prop_assert_eq!(listed(&calendar, &slots, class), expected.clone());
                prop_assert_eq!(calendar.oldest(class).and_then(|span| span.back()), expected.first().copied());
                let units: u64 = expected.iter().map(|id| u64::from(slots.units(*id))).sum();
                prop_assert_eq!((calendar.units(class), calendar.len() as usize), (units, model.len()));
            }
        }
    }

    /// Shows that a day of uses, one each quarter of a second, is kept in few spans, of which the young ones are short; and that
    /// an object with an old time of use comes in among those of that time.
    #[test]
    fn old_spans_are_joined() {
        let mut slots = Slots::new(400_000);
        let mut calendar = Calendar::default();
        let uses = 24 * 3_600 * 4;
        let ids: Vec<_> = (0..=uses).map(|_| slots.occupy(Extent { start: 0, units: 1 }).unwrap()).collect();
        for time in 1..=uses {
            let now = PolicyTime(time);
            calendar.push(&mut slots, ids[time as usize], 0, (now, now), SpanEnd::Front);
        }
        assert!(calendar.spans().count() < 150, "{} spans", calendar.spans().count());
        let late = PolicyTime(uses / 2);
        calendar.push(&mut slots, ids[0], 0, (late, PolicyTime(uses)), SpanEnd::Back);
        let order = listed(&calendar, &slots, 0);
        let place = order.iter().position(|id| *id == ids[0]).unwrap() as u32;
        assert!(place.abs_diff(uses / 2) <= uses / 2 / LONGEST_SPAN_PART, "{place}");
        assert_eq!(order.len() as u32, uses + 1);
    }
}
