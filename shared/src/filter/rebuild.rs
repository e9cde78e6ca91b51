//! A part of a filter on its way to new lines, in slices of the caller's choice.
//!
//! Called by the writer only. The new lines are filled while readers still look at the old ones; keys that come and go meanwhile change both.
//! What always holds: the counters of the new lines, and the keys that wait for theirs, are together exactly the part's keys.

use super::writer::{lower, raise};
use super::{Filter, Mark, Place};
use crate::sync::Ordering;

/// A part under way. No reader sees its new lines before [`Rebuild::place`] is published.
#[derive(Debug)]
pub(super) struct Rebuild {
    part: u16,
    place: Place,
    /// Lines, from the first on, that are zero by now or were. No counter is raised before all are.
    cleared: u16,
    /// Keys whose counters aren't raised in the new lines yet.
    waiting: Vec<u32>,
    stuck: u32,
}

impl Rebuild {
    /// Of a part with the keys `waiting`, in lines that no place leads to. Nothing is written yet.
    pub fn new(part: u16, place: Place, waiting: Vec<u32>) -> Rebuild {
        Rebuild { part, place, cleared: 0, waiting, stuck: 0 }
    }

    pub fn part(&self) -> u16 {
        self.part
    }

    /// Clears lines and raises counters, at most `steps` of both together. Returns how many it was; the rebuild is complete when it
    /// was fewer.
    pub fn advance(&mut self, filter: Filter<'_>, steps: u64) -> u64 {
        let clearing = u64::from(self.place.lines - self.cleared).min(steps) as u16;
        let first = self.place.first_line as usize + usize::from(self.cleared);
        for line in filter.lines.get(first..first + usize::from(clearing)).unwrap_or_default() {
            line.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        self.cleared += clearing;
        let raising = (self.waiting.len() as u64).min(steps - u64::from(clearing));
        let kept = self.waiting.len() - raising as usize;
        let (part, place) = (self.part, self.place);
        for fingerprint in self.waiting.drain(kept..) {
            self.stuck += raise(filter, Mark { part, fingerprint }, place);
        }
        u64::from(clearing) + raising
    }

    /// A key of the part has come.
    #[inline]
    pub fn add(&mut self, mark: Mark) {
        if mark.part == self.part {
            self.waiting.push(mark.fingerprint);
        }
    }

    /// A key of the part has gone. Which of several with one fingerprint makes no difference.
    #[inline]
    pub fn remove(&mut self, filter: Filter<'_>, mark: Mark) {
        if mark.part != self.part {
            return;
        }
        match self.waiting.iter().position(|fingerprint| *fingerprint == mark.fingerprint) {
            Some(at) => drop(self.waiting.swap_remove(at)),
            None => lower(filter, mark, self.place),
        }
    }

    /// The place to publish, the counters that stick there, and the memory of the keys, for the next rebuild.
    pub fn complete(self) -> (Place, u32, Vec<u32>) {
        (self.place, self.stuck, self.waiting)
    }
}
