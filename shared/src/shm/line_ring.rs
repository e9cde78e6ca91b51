//! A single-producer, single-consumer ring of cache lines: how frames pass between a client thread and a shard.
//!
//! ```text
//! line:  0      4                                             64
//!        │ tag  │ 60 bytes of a frame                          │     tag = position of the line since the beginning, plus 1
//! ```
//!
//! A frame starts on a fresh line and takes as many as it needs. The tag tells the consumer that the line holds what it
//! waits for, so a short frame costs one transfer of one cache line each way and no counter is shared on the fast path: the
//! consumer's counter is published only once in a quarter of the ring, and read only by a producer that finds the ring full.
//! A frame may be longer than the ring: it streams through. The tag is 32 bits of the position: what stood in a line before is one lap old,
//! not 2^32 lines. So a question about a key of 34 bytes is one line, which one about a block by its SHA-256 is.
//!
//! All words are atomics and are copied out before anything looks at them, so a peer that breaks the rules can send
//! nonsense, but can't make this side read what changes under its hands. Waiting is absent on purpose: see [`super::park`].
//!
//! | word | written by | read by | ordering |
//! |---|---|---|---|
//! | data of a line | producer | consumer | relaxed, ordered by the tag |
//! | tag of a line | producer, after the data | consumer | release / acquire |
//! | consumed counter | consumer | producer | release / acquire |

use crate::prefetch::prefetch;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a frame that one line carries.
pub const LINE_DATA_BYTES: usize = HEAD_BYTES + 8 * WORDS;
const HEAD_BYTES: usize = 4;
const WORDS: usize = 7;
/// Lines that are asked for ahead of the one that is taken: about as many as a core can have under way.
const LINES_AHEAD: u64 = 12;

/// One cache line of a ring.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line {
    tag: AtomicU32,
    /// The first bytes, and the others.
    head: AtomicU32,
    data: [AtomicU64; WORDS],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Line>() == 64);
    assert!(std::mem::offset_of!(Line, head) == 4);
    assert!(std::mem::offset_of!(Line, data) == 8);
};

impl Line {
    /// An empty line. Memory that is all zero is a ring of empty lines.
    #[must_use]
    pub fn empty() -> Line {
        let data = std::array::from_fn(|_| AtomicU64::new(0));
        Line { tag: AtomicU32::new(0), head: AtomicU32::new(0), data }
    }

    /// Writes all that a line carries.
    #[inline]
    fn write(&self, bytes: &[u8; LINE_DATA_BYTES]) {
        let (head, words) = bytes.split_at(HEAD_BYTES);
        self.head.store(u32_of(head), Ordering::Relaxed);
        for (word, chunk) in self.data.iter().zip(words.as_chunks().0) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
    }

    /// Writes the words that the few `bytes` reach into.
    #[inline]
    fn write_start(&self, bytes: &[u8]) {
        let (head, words) = bytes.split_at(bytes.len().min(HEAD_BYTES));
        self.head.store(u32_of(head), Ordering::Relaxed);
        let (whole, rest) = words.as_chunks();
        let mut places = self.data.iter();
        for (chunk, place) in whole.iter().zip(places.by_ref()) {
            place.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        if let (false, Some(place)) = (rest.is_empty(), places.next()) {
            let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            place.store(word, Ordering::Relaxed);
        }
    }

    #[inline]
    fn read(&self) -> [u8; LINE_DATA_BYTES] {
        let mut bytes = [0; LINE_DATA_BYTES];
        let (head, words) = bytes.split_at_mut(HEAD_BYTES);
        head.copy_from_slice(&self.head.load(Ordering::Relaxed).to_le_bytes());
        for (chunk, word) in words.as_chunks_mut().0.iter_mut().zip(&self.data) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        bytes
    }
}

/// The shared part of a ring: its lines (a power of two of them) and the consumer's counter.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a> {
    /// The lines.
    pub lines: &'a [Line],
    /// Lines that the consumer has taken since the beginning, published now and then.
    pub consumed: &'a AtomicU64,
}

impl Ring<'_> {
    #[inline]
    fn line(&self, position: u64) -> &Line {
        // The mask keeps the index in bounds for any position; lines are never empty.
        &self.lines[position as usize & (self.lines.len() - 1)]
    }
}

/// The producer's private half.
#[derive(Debug, Default)]
pub struct Producer {
    produced: u64,
    /// The consumer's counter when last looked at.
    consumed: u64,
}

impl Producer {
    /// Writes as much of `bytes` as there is room for and returns how many bytes that was: all of them, or a multiple of
    /// [`LINE_DATA_BYTES`]; the caller passes the rest later. The rest of a frame must come before the next frame.
    #[inline]
    pub fn push(&mut self, ring: Ring<'_>, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() && self.has_room(ring) {
            let end = (done + LINE_DATA_BYTES).min(bytes.len());
            self.push_line(ring, &bytes[done..end]);
            done = end;
        }
        done
    }

    #[inline]
    fn has_room(&mut self, ring: Ring<'_>) -> bool {
        let size = ring.lines.len() as u64;
        if self.produced - self.consumed < size {
            return true;
        }
        let published = ring.consumed.load(Ordering::Acquire);
        // A counter that runs ahead of the producer or backwards is a lie; it is not believed.
        if published > self.consumed && published <= self.produced {
            self.consumed = published;
        }
        self.produced - self.consumed < size
    }

    #[inline]
    fn push_line(&mut self, ring: Ring<'_>, bytes: &[u8]) {
        let line = ring.line(self.produced);
        match bytes.try_into() {
            Ok(whole) => line.write(whole),
            Err(_) => line.write_start(bytes),
        }
        self.produced += 1;
        line.tag.store(tag_of(self.produced), Ordering::Release);
    }
}

/// Up to four bytes as a little-endian word.
#[inline]
fn u32_of(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// The tag of the last of `lines` lines since the beginning.
#[inline]
fn tag_of(lines: u64) -> u32 {
    lines as u32
}

/// The lines of a frame that lacks `bytes` that are taken at once: all of them, or half a ring, which a producer always gets room for.
#[inline]
fn lines_at_once(ring: Ring<'_>, bytes: usize) -> u64 {
    bytes.div_ceil(LINE_DATA_BYTES).min(ring.lines.len() / 2).max(1) as u64
}

/// The consumer's private half.
#[derive(Debug, Default)]
pub struct Consumer {
    consumed: u64,
    published: u64,
}

impl Consumer {
    /// Whether a line is there to be taken.
    #[inline]
    #[must_use]
    pub fn is_ready(&self, ring: Ring<'_>) -> bool {
        ring.line(self.consumed).tag.load(Ordering::Acquire) == tag_of(self.consumed + 1)
    }

    /// Whether as many lines are there as [`Consumer::take`] takes at once of a frame that lacks `bytes`, at least one line.
    #[inline]
    #[must_use]
    pub fn is_ready_for(&self, ring: Ring<'_>, bytes: usize) -> bool {
        let last = self.consumed + lines_at_once(ring, bytes);
        ring.line(last - 1).tag.load(Ordering::Acquire) == tag_of(last)
    }

    /// Appends to `frame` the next lines of one that lacks `bytes`, if they are all there. Whether they were. Of a frame longer than half
    /// the ring these aren't its last ones.
    ///
    /// Lines that are being written are left alone until the last one is there: each look at one would take it away from the core that
    /// writes it. Then those ahead are asked for, so that they come from the other core many at a time.
    #[inline]
    pub fn take(&mut self, ring: Ring<'_>, bytes: usize, frame: &mut Vec<u8>) -> bool {
        if !self.is_ready_for(ring, bytes) {
            return false;
        }
        let lines = lines_at_once(ring, bytes);
        let last = self.consumed + lines;
        frame.reserve(lines as usize * LINE_DATA_BYTES);
        // Of a frame's first line it isn't known yet how many follow: likely one.
        for position in self.consumed + 1..last.min(self.consumed + LINES_AHEAD).max(self.consumed + 2) {
            prefetch(std::ptr::from_ref(ring.line(position)).cast(), 1);
        }
        while self.consumed < last {
            if self.consumed + LINES_AHEAD < last {
                prefetch(std::ptr::from_ref(ring.line(self.consumed + LINES_AHEAD)).cast(), 1);
            }
            // Each line is there if the last one is, unless the peer breaks the rules.
            let Some(line) = self.pop(ring) else { return false };
            frame.extend_from_slice(&line);
        }
        true
    }

    /// Takes the next line, if it's there.
    #[inline]
    pub fn pop(&mut self, ring: Ring<'_>) -> Option<[u8; LINE_DATA_BYTES]> {
        if !self.is_ready(ring) {
            return None;
        }
        let bytes = ring.line(self.consumed).read();
        self.consumed += 1;
        // A quarter keeps a producer that waits for room going: it then has at most a quarter of the ring unpublished, so
        // what the consumer still has to take is enough to make it publish.
        if self.consumed - self.published >= (ring.lines.len() as u64 / 4).max(1) {
            self.published = self.consumed;
            ring.consumed.store(self.consumed, Ordering::Release);
        }
        Some(bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(count: usize) -> Vec<Line> {
        (0..count).map(|_| Line::empty()).collect()
    }

    proptest! {
        #[test]
        fn frames_of_any_length_stream_through_in_order(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..400), 1..30),
            takes in prop::collection::vec(0_usize..5, 1..50),
        ) {
            // A ring of four lines, so that it's full nearly always; the consumer takes in irregular steps.
            let (lines, consumed) = (lines(4), AtomicU64::new(0));
            let ring = Ring { lines: &lines, consumed: &consumed };
            let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
            let mut takes = takes.into_iter().cycle();
            let mut taken = Vec::new();
            for frame in &frames {
                let mut done = 0;
                let (mut frame_taken, lines_of_frame) = (Vec::new(), frame.len().div_ceil(LINE_DATA_BYTES));
                while frame_taken.len() < lines_of_frame * LINE_DATA_BYTES {
                    if done < frame.len() {
                        done += producer.push(ring, &frame[done..]);
                    }
                    // At least one line a turn, or nothing would ever move.
                    match takes.next().unwrap() {
                        0 => drop(consumer.take(ring, frame.len() - frame_taken.len(), &mut frame_taken)),
                        lines => (0..lines).for_each(|_| frame_taken.extend(consumer.pop(ring).into_iter().flatten())),
                    }
                }
                frame_taken.truncate(frame.len());
                taken.push(frame_taken);
            }
            prop_assert_eq!(taken, frames);
            prop_assert!(consumer.pop(ring).is_none());
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_a_lying_counter_changes_nothing() {
        let (lines, consumed) = (lines(4), AtomicU64::new(0));
        let ring = Ring { lines: &lines, consumed: &consumed };
        let mut producer = Producer::default();
        assert_eq!(producer.push(ring, &[1; 400]), 4 * LINE_DATA_BYTES);
        for lie in [5, u64::MAX] {
            consumed.store(lie, Ordering::Release);
            assert_eq!(producer.push(ring, &[1; LINE_DATA_BYTES]), 0);
        }
        consumed.store(1, Ordering::Release);
        assert_eq!(producer.push(ring, &[1; 400]), LINE_DATA_BYTES);
    }

    #[test]
    fn tags_may_wrap() {
        let (lines, consumed) = (lines(4), AtomicU64::new(0));
        let ring = Ring { lines: &lines, consumed: &consumed };
        let start = u64::from(u32::MAX) - 5;
        consumed.store(start, Ordering::Release);
        let mut producer = Producer { produced: start, consumed: start };
        let mut consumer = Consumer { consumed: start, published: start };
        for number in 0..12 {
            assert_eq!(producer.push(ring, &[number; 70]), 70);
            let mut frame = Vec::new();
            assert!(consumer.take(ring, 70, &mut frame));
            assert_eq!(frame[..70], [number; 70]);
            assert!(!consumer.is_ready(ring));
        }
    }

    #[test]
    fn old_contents_are_never_taken_for_new_ones() {
        // Data that looks like the tag of the next lap lies in every word of the ring.
        let (lines, consumed) = (lines(4), AtomicU64::new(0));
        let ring = Ring { lines: &lines, consumed: &consumed };
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        let like_a_tag: Vec<u8> = (0..LINE_DATA_BYTES / 4).flat_map(|_| 5_u32.to_le_bytes()).collect();
        for _ in 0..4 {
            assert_eq!(producer.push(ring, &like_a_tag), LINE_DATA_BYTES);
            assert!(consumer.pop(ring).is_some());
        }
        assert!(consumer.pop(ring).is_none());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Every interleaving of a producer and a consumer on a ring of four lines, which is small enough to wrap.
    use super::*;
    use loom::sync::Arc;

    struct Shared {
        lines: Vec<Line>,
        consumed: AtomicU64,
    }

    impl Shared {
        fn new(count: usize) -> Arc<Shared> {
            Arc::new(Shared {
                lines: (0..count).map(|_| Line::empty()).collect(),
                consumed: AtomicU64::new(0),
            })
        }
        fn ring(&self) -> Ring<'_> {
            Ring { lines: &self.lines, consumed: &self.consumed }
        }
    }

    #[test]
    fn a_frame_of_several_lines_is_taken_whole() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Shared::new(4);
            let pushing = shared.clone();
            let producer = loom::thread::spawn(move || {
                let mut producer = Producer::default();
                for number in 1..=2_u8 {
                    let (frame, mut done) = ([number; 100], 0);
                    while done < frame.len() {
                        match producer.push(pushing.ring(), &frame[done..]) {
                            0 => loom::thread::yield_now(),
                            pushed => done += pushed,
                        }
                    }
                }
            });
            let mut consumer = Consumer::default();
            for number in 1..=2_u8 {
                let mut frame = Vec::new();
                while !consumer.take(shared.ring(), 100, &mut frame) {
                    assert!(frame.is_empty());
                    loom::thread::yield_now();
                }
                assert_eq!(frame[..100], [number; 100]);
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn what_is_popped_is_what_was_pushed() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Shared::new(2);
            let pushing = shared.clone();
            let producer = loom::thread::spawn(move || {
                let mut producer = Producer::default();
                for number in 1..=3_u8 {
                    while producer.push(pushing.ring(), &[number; 16]) == 0 {
                        loom::thread::yield_now();
                    }
                }
            });
            let mut consumer = Consumer::default();
            for number in 1..=3_u8 {
                let bytes = loop {
                    match consumer.pop(shared.ring()) {
                        Some(bytes) => break bytes,
                        None => loom::thread::yield_now(),
                    }
                };
                assert_eq!(bytes[..16], [number; 16]);
            }
            producer.join().unwrap();
        });
    }

    #[test]
    #[should_panic(expected = "torn")]
    fn a_tag_published_before_its_data_is_found() {
        // The planted fault: data stored after the tag. It shows that the test above can fail.
        loom::model(|| {
            let shared = Shared::new(2);
            let pushing = shared.clone();
            let producer = loom::thread::spawn(move || {
                let ring = pushing.ring();
                ring.line(0).tag.store(1, Ordering::Release);
                ring.line(0).head.store(7, Ordering::Relaxed);
            });
            let mut consumer = Consumer::default();
            if let Some(bytes) = consumer.pop(shared.ring()) {
                assert_eq!(bytes[0], 7, "torn");
            }
            producer.join().unwrap();
        });
    }
}
