//! A look into a filter: one line of one part, or many keys at a time with their lines brought in together.

use super::{Counters, LINE_WORDS, Mark, PARTS, Place};
use crate::key::KeyHash;
use crate::sync::{AtomicU64, Ordering, fence};

/// Looks that are under way together in [`Filter::may_contain_batch`]: more than a core has line-fill buffers, few enough for the lines to
/// stay in the first cache until they are looked at.
pub const LOOKS_UNDER_WAY: usize = 32;

/// A look that has begun. By default one that finds nothing to look at, so that every key may be there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    counters: Option<Counters>,
    part: u16,
    /// The part's place when the look began.
    place: u64,
}

/// The shared words of a filter. Whoever reads them may be wrong about them in any way: a place that leads beyond the lines says
/// nothing, as one of no lines does.
#[derive(Clone, Copy, Debug)]
pub struct Filter<'a> {
    pub(super) places: &'a [AtomicU64],
    pub(super) lines: &'a [[AtomicU64; LINE_WORDS]],
}

impl<'a> Filter<'a> {
    /// The filter in `words`, which are those of its file from [`super::PLACES_OFFSET`] on.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Filter<'a> {
        let (places, lines) = words.split_at(PARTS.min(words.len()));
        Filter { places, lines: lines.as_chunks().0 }
    }

    /// Lines that there is address space for.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Whether the key with this hash may be there. `false` is certain, but for a key whose `put` is just under way.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        self.end(self.find(hash))
    }

    /// [`Filter::may_contain`] for each of `hashes`, into the `answers` at the same places. Takes a fraction of the time of as many
    /// single looks, because it waits for the memory of many lines at once. Looks at as many as the shorter slice has.
    pub fn may_contain_batch(&self, hashes: &[KeyHash], answers: &mut [bool]) {
        let mut looks = [Look::default(); LOOKS_UNDER_WAY];
        for (hashes, answers) in hashes.chunks(LOOKS_UNDER_WAY).zip(answers.chunks_mut(LOOKS_UNDER_WAY)) {
            for (look, hash) in looks.iter_mut().zip(hashes) {
                *look = self.begin(*hash);
            }
            for (answer, look) in answers.iter_mut().zip(&looks) {
                *answer = self.end(*look);
            }
        }
    }

    /// The first half of [`Filter::may_contain`]: asks for the memory that [`Filter::end`] will look at, and doesn't wait for it. For
    /// looks into several filters at once; at most [`LOOKS_UNDER_WAY`] are worth having under way.
    #[inline]
    #[must_use]
    pub fn begin(&self, hash: KeyHash) -> Look {
        let look = self.find(hash);
        if let Some(line) = look.counters.and_then(|counters| self.lines.get(counters.line)) {
            prefetch(line);
        }
        look
    }

    /// The second half: whether the key may be there.
    #[inline]
    #[must_use]
    pub fn end(&self, look: Look) -> bool {
        if look.counters.is_none_or(|counters| self.all_raised(counters)) {
            return true;
        }
        fence(Ordering::Acquire);
        let place = self.places.get(usize::from(look.part));
        place.is_none_or(|place| place.load(Ordering::Relaxed) != look.place)
    }

    #[inline]
    fn find(&self, hash: KeyHash) -> Look {
        let mark = Mark::of(hash);
        let Some(place) = self.places.get(usize::from(mark.part)) else { return Look::default() };
        let place = place.load(Ordering::Acquire);
        Look { counters: Counters::of(mark, Place::from_word(place)), part: mark.part, place }
    }

    /// Whether none of a key's counters is 0. Looks at all of them: a branch for each would be guessed wrong too often.
    #[inline]
    fn all_raised(&self, counters: Counters) -> bool {
        let Some(line) = self.lines.get(counters.line) else { return true };
        counters.each().fold(true, |all, (word, shift)| {
            let counter = line[word].load(Ordering::Relaxed) >> shift & 0xf;
            all & (counter != 0)
        })
    }
}

/// Asks for a line without waiting for it.
#[inline]
fn prefetch(line: &[AtomicU64; LINE_WORDS]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see, and SSE is part of every x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch changes neither memory nor registers nor flags.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}
