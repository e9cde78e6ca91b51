//! Three answers to the question who leaves first, over one and the same calendar of objects by class and last use. So
//! changing one's mind costs nothing: no object moves.
//!
//! Used by the adaptive policy for what is cached, and by the shadows for what would be.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use super::density::Density;
use crate::eviction::PolicyTime;
use crate::eviction::calendar::{Calendar, Span, SpanEnd};
use crate::memory::slots::{SlotId, Slots, USE_CLASSES};

/// Who leaves first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ranking {
    /// Whoever has the fewest hits to expect for the time.
    Density,
    /// The least recently used.
    Recency,
    /// The least recently used of those used once while they have more than a tenth of the bytes, else of the others. What
    /// S3-FIFO does, but that a use counts at once.
    Segmented,
}

impl Ranking {
    /// All of them; the first is what a shard begins with.
    pub const ALL: [Ranking; 3] = [Ranking::Density, Ranking::Recency, Ranking::Segmented];

    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Ranking::Density => "density",
            Ranking::Recency => "recency",
            Ranking::Segmented => "segmented",
        }
    }
}

/// The part of the bytes that objects used once may have under [`Ranking::Segmented`]: 1/10.
const USED_ONCE_SHARE: u64 = 10;

/// How long an order of spans is followed, in quarters of a second; spans that get objects meanwhile are added to it.
const ORDER_LASTS: u32 = 4;

/// A span's place in the order of density, worst first: density (as the bits of a positive float, which sort as it does), and what
/// tells the span from a later one of its number.
type Place = Reverse<(u32, PolicyTime, u16, u8)>;

/// Objects in an order of eviction. The class of an object is that in its slot.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    calendar: Calendar,
    /// Spans by density, under [`Ranking::Density`]. Each span with an object is in it, others may be.
    order: BinaryHeap<Place>,
    /// When `order` was made; `None` if it has to be made anew.
    ordered_at: Option<PolicyTime>,
}

impl Shelf {
    /// Number of objects.
    pub fn len(&self) -> u32 {
        self.calendar.len()
    }

    /// Units of all objects.
    pub fn units(&self) -> u64 {
        self.calendar.all_units()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.calendar.bytes() + (self.order.capacity() * size_of::<Place>()) as u64
    }

    /// Adds an object as used at `used`, which isn't later than `now`.
    pub fn push(
        &mut self,
        slots: &mut Slots,
        slot: SlotId,
        (used, now): (PolicyTime, PolicyTime),
        end: SpanEnd,
        density: &Density,
    ) {
        let filled = self.calendar.push(slots, slot, slots.use_class(slot), (used, now), end);
        if let Some(span) = filled.filter(|_| self.ordered_at.is_some()) {
            self.order.push(place(&span, density, now));
            // Spans that are filled and emptied again and again must not make it grow.
            if self.order.len() > 4096 {
                self.ordered_at = None;
            }
        }
    }

    /// Gives an object another class. It stays where it is until it's taken out and added again.
    pub fn set_class(&mut self, slots: &mut Slots, slot: SlotId, class: u8) {
        self.calendar.reclassify(slots.units(slot), slots.use_class(slot), class);
        slots.set_use_class(slot, class);
    }

    /// Takes an object out.
    pub fn remove(&mut self, slots: &mut Slots, slot: SlotId) {
        self.calendar.remove(slots, slot, slots.use_class(slot));
    }

    /// Who is to leave next.
    pub fn next(&mut self, ranking: Ranking, density: &Density, now: PolicyTime) -> Option<SlotId> {
        match ranking {
            Ranking::Density => self.worst(density, now),
            Ranking::Recency => self.oldest(0..USE_CLASSES as u8),
            Ranking::Segmented => {
                let used_once = self.calendar.units(0) * USED_ONCE_SHARE > self.calendar.all_units();
                let first = if used_once { self.oldest(0..1) } else { self.oldest(1..USE_CLASSES as u8) };
                first.or_else(|| self.oldest(0..USE_CLASSES as u8))
            }
        }
    }

    fn oldest(&mut self, classes: std::ops::Range<u8>) -> Option<SlotId> {
        let oldest = classes.filter_map(|class| self.calendar.oldest(class)).min_by_key(|span| span.start);
        oldest.and_then(|span| span.back())
    }

    fn worst(&mut self, density: &Density, now: PolicyTime) -> Option<SlotId> {
        if self.ordered_at.is_none_or(|at| now.since(at) >= ORDER_LASTS) {
            self.order.clear();
            self.order.extend(
                self.calendar.spans().filter(|span| !span.is_empty()).map(|span| place(span, density, now)),
            );
            self.ordered_at = Some(now);
        }
        loop {
            let Reverse((_, start, number, class)) = *self.order.peek()?;
            let span = self.calendar.span_since(number, class, start);
            match span.and_then(Span::back) {
                Some(slot) => return Some(slot),
                None => self.order.pop(),
            };
        }
    }
}

fn place(span: &Span, density: &Density, now: PolicyTime) -> Place {
    let worth = density.of(span.class, now.since(span.start));
    Reverse((worth.to_bits(), span.start, span.number, span.class))
}
