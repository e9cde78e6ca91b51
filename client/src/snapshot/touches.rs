//! Which objects of a snapshot were read without their shard's knowledge, until the shard is told.
//!
//! A bit for each object, set by every read over shared memory and RDMA, whichever thread it's on; now and then one of them takes all bits
//! and hands them in: to a ring in shared memory ([`crate::connection::shm`]), or in a message ([`crate::connection::Connection::send_touches`]). So an object that is read through a snapshot only is as safe from eviction
//! as one that is read by `get`. What always holds: a bit that was set is handed in by the first read after the pause, or with
//! the snapshot forgotten, whose refresh tells the shard as much.

use super::ranges::Ranges;
use lanner_shared::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time between two times that a snapshot's touches are handed in, where that is a store to shared memory. Much shorter than a lease, which is
/// how long an object that was read needs no touch.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// The bits of one snapshot.
#[derive(Debug, Default)]
pub(crate) struct Touches {
    words: Box<[AtomicU64]>,
    /// When they were handed in last.
    handed_in: AtomicU64,
}

impl Touches {
    /// No bit of `objects` is set. Their shards have just noted a use of each, when they were asked.
    pub fn new(objects: usize, asked: Instant) -> Touches {
        let words = (0..objects.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Touches { words, handed_in: AtomicU64::new(asked.0) }
    }

    /// Notes that what `ranges` name was read.
    #[inline]
    pub fn note<R: Ranges + ?Sized>(&self, ranges: &R) {
        match ranges.whole_key_set() {
            true => self.words.iter().for_each(|word| set(word, u64::MAX)),
            false => ranges.iter().for_each(|range| {
                if let Some(word) = self.words.get(range.key as usize / 64) {
                    set(word, 1 << (range.key % 64));
                }
            }),
        }
    }

    /// Whether they are to be handed in, `pause` after the last time; then that is the caller's to do, and no other thread's.
    #[inline]
    pub fn are_due(&self, now: Instant, pause: Duration) -> bool {
        let last = Instant(self.handed_in.load(Ordering::Relaxed));
        now >= last.plus(pause) && self.take_turn(last, now)
    }

    #[cold]
    fn take_turn(&self, last: Instant, now: Instant) -> bool {
        self.handed_in.compare_exchange(last.0, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Takes back all bits, and returns the places of those that were set.
    pub fn take(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let bits = word.swap(0, Ordering::Relaxed);
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        })
    }
}

/// Writes only where something changes: the words are shared by all threads that read.
#[inline]
fn set(word: &AtomicU64, bits: u64) {
    if word.load(Ordering::Relaxed) & bits != bits {
        word.fetch_or(bits, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::ranges::Range;

    #[test]
    fn each_object_that_was_read_is_told_once() {
        let touches = Touches::new(130, Instant::ZERO);
        let read = |key| Range { key, ..Range::default() };
        touches.note([read(0), read(129), read(64), read(0)].as_slice());
        assert_eq!(touches.take().collect::<Vec<_>>(), [0, 64, 129]);
        assert_eq!(touches.take().count(), 0);
    }

    #[test]
    fn one_thread_in_a_pause_hands_them_in() {
        let asked = Instant(1_000_000_000);
        let (touches, now) = (Touches::new(1, asked), asked.plus(PAUSE));
        let are_due = |now| touches.are_due(now, PAUSE);
        assert!(!are_due(asked), "asking was a use itself");
        assert!(are_due(now) && !are_due(now));
        assert!(!are_due(now.plus(PAUSE / 2)) && are_due(now.plus(PAUSE)));
    }
}
