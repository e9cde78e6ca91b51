//! Touches on their way to a shard: reads that it took no part in, told afterwards, so that eviction knows of them.
//!
//! A ring of pairs of words, written by one client thread and read by one shard. The writer publishes many touches by one store;
//! where there is no room the rest is dropped: a touch is a hint, and nobody waits for one.
//!
//! | word | written by | read by | ordering |
//! |---|---|---|---|
//! | both words of a touch | client | shard | relaxed, ordered by `written` |
//! | `written` | client, after the touches | shard | release / acquire |
//! | `taken` | shard, after the touches | client | release / acquire |
//!
//! So a touch that was taken is whole: it never carries the time of the one that lay at its place before.

use crate::sync::{AtomicU64, Ordering};
use crate::time::Instant;

/// One object that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The object's slot.
    pub slot: u32,
    /// Which of the slot's objects.
    pub generation: u32,
    /// When, on this host's monotonic clock.
    pub read_at: Instant,
}

/// The place of a touch in the ring.
#[derive(Debug)]
#[repr(C)]
pub struct Place {
    object: AtomicU64,
    read_at: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Place>() == 16);

impl Place {
    /// A place that nothing was written to. Memory that is all zero is a ring of such.
    #[must_use]
    pub fn empty() -> Place {
        Place { object: AtomicU64::new(0), read_at: AtomicU64::new(0) }
    }
}

/// The shared part: places (a power of two of them) and both counters.
#[derive(Clone, Copy, Debug)]
pub struct TouchRing<'a> {
    /// The places.
    pub places: &'a [Place],
    /// Touches written since the beginning.
    pub written: &'a AtomicU64,
    /// Touches taken since the beginning.
    pub taken: &'a AtomicU64,
}

impl TouchRing<'_> {
    #[inline]
    fn place(&self, position: u64) -> &Place {
        // The mask keeps the index in bounds for any position; places are never none.
        &self.places[position as usize & (self.places.len() - 1)]
    }
}

/// The client's private half.
#[derive(Debug, Default)]
pub struct TouchWriter {
    written: u64,
}

impl TouchWriter {
    /// Publishes as many of `touches` as there is room for, and returns how many these are.
    pub fn publish(&mut self, ring: TouchRing<'_>, touches: impl Iterator<Item = Touch>) -> u64 {
        let taken = ring.taken.load(Ordering::Acquire);
        // A counter that runs ahead of the writer is a lie: then there is no room.
        let used = self.written.checked_sub(taken).unwrap_or(u64::MAX);
        let room = (ring.places.len() as u64).saturating_sub(used);
        let before = self.written;
        for touch in touches.take(usize::try_from(room).unwrap_or(0)) {
            let place = ring.place(self.written);
            place.object.store(u64::from(touch.generation) << 32 | u64::from(touch.slot), Ordering::Relaxed);
            place.read_at.store(touch.read_at.0, Ordering::Relaxed);
            self.written += 1;
        }
        ring.written.store(self.written, Ordering::Release);
        self.written - before
    }
}

/// The shard's private half.
#[derive(Debug, Default)]
pub struct TouchReader {
    taken: u64,
}

impl TouchReader {
    /// Hands all touches that were published to `take`. At most as many as the ring has places, whatever a client that breaks the
    /// rules may say.
    pub fn take_all(&mut self, ring: TouchRing<'_>, mut take: impl FnMut(Touch)) {
        let written = ring.written.load(Ordering::Acquire);
        if written == self.taken {
            return;
        }
        let count = written.wrapping_sub(self.taken).min(ring.places.len() as u64);
        for position in self.taken..self.taken.wrapping_add(count) {
            let place = ring.place(position);
            let object = place.object.load(Ordering::Relaxed);
            let read_at = Instant(place.read_at.load(Ordering::Relaxed));
            take(Touch { slot: object as u32, generation: (object >> 32) as u32, read_at });
        }
        self.taken = written;
        ring.taken.store(written, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn touch(number: u64) -> Touch {
        Touch { slot: number as u32, generation: number as u32 + 7, read_at: Instant(number * 10) }
    }

    proptest! {
        /// Shows against a queue that touches come in order, once, and that only those without room are dropped.
        #[test]
        fn what_is_taken_is_what_was_published(steps in prop::collection::vec((0_u64..12, any::<bool>()), 1..40)) {
            let places: Vec<Place> = (0..8).map(|_| Place::empty()).collect();
            let (written, taken) = (AtomicU64::new(0), AtomicU64::new(0));
            let ring = TouchRing { places: &places, written: &written, taken: &taken };
            let (mut writer, mut reader, mut waiting, mut next) =
                (TouchWriter::default(), TouchReader::default(), Vec::new(), 0);
            for (count, takes) in steps {
                let published = writer.publish(ring, (next..next + count).map(touch));
                prop_assert_eq!(published, count.min(8 - waiting.len() as u64));
                waiting.extend((next..next + published).map(touch));
                next += count;
                if takes {
                    let mut got = Vec::new();
                    reader.take_all(ring, |touch| got.push(touch));
                    prop_assert_eq!(got, std::mem::take(&mut waiting));
                }
            }
        }
    }

    /// Shows that counters that are lies cost neither side more than a ring full of touches.
    #[test]
    fn counters_that_lie_are_bounded() {
        let places: Vec<Place> = (0..8).map(|_| Place::empty()).collect();
        for (written, taken) in [(u64::MAX, 0), (3, u64::MAX), (1 << 40, 1 << 50)] {
            let (written, taken) = (AtomicU64::new(written), AtomicU64::new(taken));
            let ring = TouchRing { places: &places, written: &written, taken: &taken };
            let mut count = 0;
            TouchReader::default().take_all(ring, |_| count += 1);
            assert!(count <= 8);
            taken.store(u64::MAX, Ordering::Relaxed);
            assert_eq!(TouchWriter::default().publish(ring, std::iter::repeat_n(touch(1), 100)), 0);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Every interleaving of a writer and a reader on a ring of two places, which three touches have to share.
    use super::*;
    use loom::sync::Arc;

    struct Shared {
        places: Vec<Place>,
        written: AtomicU64,
        taken: AtomicU64,
    }

    impl Shared {
        fn new() -> Arc<Shared> {
            let places = (0..2).map(|_| Place::empty()).collect();
            Arc::new(Shared { places, written: AtomicU64::new(0), taken: AtomicU64::new(0) })
        }
        fn ring(&self) -> TouchRing<'_> {
            TouchRing { places: &self.places, written: &self.written, taken: &self.taken }
        }
    }

    fn touch(number: u32) -> Touch {
        Touch { slot: number, generation: number, read_at: Instant(u64::from(number)) }
    }

    #[test]
    fn a_touch_never_carries_an_older_time() {
        loom::model(|| {
            let shared = Shared::new();
            let publishing = shared.clone();
            let writer = loom::thread::spawn(move || {
                let mut writer = TouchWriter::default();
                for number in 1..=3 {
                    writer.publish(publishing.ring(), std::iter::once(touch(number)));
                }
            });
            let mut reader = TouchReader::default();
            let mut last = 0;
            for _ in 0..2 {
                reader.take_all(shared.ring(), |taken| {
                    assert_eq!(taken, touch(taken.slot), "the time of another");
                    assert!(taken.slot > last);
                    last = taken.slot;
                });
                loom::thread::yield_now();
            }
            writer.join().unwrap();
        });
    }

    #[test]
    #[should_panic(expected = "the time of another")]
    fn a_time_written_after_its_publication_is_found() {
        // The planted fault: the counter is stored before the time. It shows that the test above can fail.
        loom::model(|| {
            let shared = Shared::new();
            let publishing = shared.clone();
            let writer = loom::thread::spawn(move || {
                let ring = publishing.ring();
                let place = ring.place(0);
                place.object.store(1 << 32 | 1, Ordering::Relaxed);
                publishing.written.store(1, Ordering::Release);
                place.read_at.store(1, Ordering::Relaxed);
            });
            TouchReader::default()
                .take_all(shared.ring(), |taken| assert_eq!(taken, touch(taken.slot), "the time of another"));
            writer.join().unwrap();
        });
    }
}
