//! The key filter of a shard: when its parts are rebuilt, how large they are, and how often it is wrong.
//!
//! Called by the shard: on publication and departure, before each look-up, and in each tick. The words, their layout and the rules
//! between writer and readers are `lanner_shared::filter`'s.
//!
//! **Size.** All parts have the same number of lines, but for a wave of growth that is under way. With more than
//! [`KEYS_OF_LINE_AT_MOST`] keys a line on average, each part is rebuilt a quarter longer. So the filter takes 6.4 to 8 bytes a key
//! (more below 160 thousand keys, where a quarter of a part is less than a line), and takes 0.6 to 0.3 % of absent keys for present
//! ones. It never shrinks: sealed memory can't be given back.
//!
//! **Growth in place.** Part `p` of `n` lines begins at line `p·n`. The wave goes from the last part to the first; a part's new home
//! lies behind all old homes of parts before it, so it overlaps at most with its own old one. Then the part goes by way of a spare place
//! behind all parts. A part is rebuilt from the 44 bits that the index keeps of each hash, at some 25 ns a key and without a look
//! at any object: 60 µs with ten million keys on the shard, 6 ms with a thousand million.
//!
//! What always holds: the filter has been told of exactly the keys that the index holds. Absent on purpose: any look at keys.

use crate::memory::index::Index;
use crate::memory::segment::{Segment, SegmentError};
use lanner_shared::filter::{
    FILTER_FORMAT, FILTER_MAGIC, Filter, FilterIdentity, FilterWriter, LINE_BYTES, LINES_OFFSET,
    MAX_PART_LINES, Mark, PARTS, PLACES_OFFSET,
};
use lanner_shared::key::KeyHash;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// With more keys a line than this, all parts together, the filter grows.
pub const KEYS_OF_LINE_AT_MOST: u64 = 10;
/// Keys a line that the largest filter has at the largest number of objects: 8 bytes a key.
const KEYS_OF_LINE_OF_LARGEST: u64 = 8;
/// Keys and lines of the parts that one slice rebuilds: some 50 µs. A part that has more is rebuilt whole.
const SLICE: u64 = 2048;

/// What the filter said so far, and how often it was wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilterUse {
    /// "Not here": the index wasn't asked.
    pub negatives: u64,
    /// "Maybe here", and the index had the key.
    pub positives: u64,
    /// "Maybe here", and the index hadn't.
    pub false_positives: u64,
}

/// A wave of growth.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// Lines that each part gets.
    lines: u32,
    /// Parts that still have the old number.
    parts_left: u16,
}

/// The filter of a shard.
#[derive(Debug)]
pub struct KeyFilter {
    memory: Segment,
    writer: FilterWriter,
    keys: u64,
    /// Lines of each part that no wave of growth has reached.
    lines: u32,
    max_lines: u32,
    growth: Option<Growth>,
    /// Parts in which too many counters stick.
    crowded: VecDeque<u16>,
    /// Counters that may stick in a part until it is rebuilt.
    stuck_limits: Box<[u32]>,
    parts_rebuilt: u64,
    used: FilterUse,
}

impl KeyFilter {
    /// Bytes of address space, and of memory at most, of a filter for so many objects.
    #[must_use]
    pub fn bytes_for(objects: u64) -> u64 {
        LINES_OFFSET + (PARTS as u64 + 1) * u64::from(max_lines(objects)) * LINE_BYTES
    }

    /// Bytes that a filter takes before the first key.
    pub const EMPTY_BYTES: u64 = LINES_OFFSET + PARTS as u64 * LINE_BYTES + (4 + 4) * PARTS as u64;

    /// A filter without keys in memory of [`KeyFilter::bytes_for`] bytes, all zero.
    ///
    /// # Errors
    /// [`SegmentError`] where the memory is too short for even the smallest filter.
    pub fn new(mut memory: Segment, objects: u64, identity: FilterIdentity) -> Result<Self, SegmentError> {
        let mut filled = identity;
        (filled.magic, filled.format) = (FILTER_MAGIC, FILTER_FORMAT.into());
        filled.file_bytes = memory.len().into();
        memory.write(0, filled.as_bytes())?;
        memory.slice(0, KeyFilter::bytes_for(0))?;
        let mut filter = KeyFilter {
            memory,
            writer: FilterWriter::default(),
            keys: 0,
            lines: 1,
            max_lines: max_lines(objects),
            growth: None,
            crowded: VecDeque::new(),
            stuck_limits: vec![1; PARTS].into_boxed_slice(),
            parts_rebuilt: 0,
            used: FilterUse::default(),
        };
        for part in 0..PARTS as u16 {
            filter.writer.rebuild(view(&filter.memory), part, (u32::from(part), 1), std::iter::empty());
        }
        Ok(filter)
    }

    /// The memory that clients map, if it is a file.
    #[must_use]
    pub fn memory(&self) -> &Segment {
        &self.memory
    }

    /// A key has come into the index.
    #[inline]
    pub fn add(&mut self, hash: KeyHash) {
        self.keys += 1;
        let mark = Mark::of(hash);
        if self.writer.add(view(&self.memory), mark) {
            self.note_stuck(mark.part);
        }
        if self.keys > KEYS_OF_LINE_AT_MOST * u64::from(self.lines) * PARTS as u64
            && self.growth.is_none()
            && self.lines < self.max_lines
        {
            let lines = (self.lines + (self.lines / 4).max(1)).min(self.max_lines);
            self.growth = Some(Growth { lines, parts_left: PARTS as u16 });
        }
    }

    /// A key has gone from the index.
    #[inline]
    pub fn remove(&mut self, hash: KeyHash) {
        self.keys = self.keys.saturating_sub(1);
        self.writer.remove(view(&self.memory), Mark::of(hash));
    }

    /// Whether the index may have the key. `false` is certain.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        view(&self.memory).may_contain(hash)
    }

    /// The same for many keys, with their lines brought in together.
    pub fn may_contain_batch(&self, hashes: &[KeyHash], answers: &mut [bool]) {
        view(&self.memory).may_contain_batch(hashes, answers);
    }

    /// Counts a look: what the filter said, and whether the index then had the key.
    #[inline]
    pub fn count_use(&mut self, may_contain: bool, was_there: bool) {
        match (may_contain, was_there) {
            (false, _) => self.used.negatives += 1,
            (true, true) => self.used.positives += 1,
            (true, false) => self.used.false_positives += 1,
        }
    }

    /// Rebuilds some parts, if any are to be. Returns whether more are. `index` holds exactly the keys that were added.
    pub fn rebuild_slice(&mut self, index: &Index) -> bool {
        let mut done = 0;
        while done < SLICE {
            if let Some(growth) = self.growth {
                done += self.grow_one(growth, index);
            } else if let Some(part) = self.crowded.pop_front() {
                done += self.relieve(part, index);
            } else {
                return false;
            }
        }
        self.growth.is_some() || !self.crowded.is_empty()
    }

    /// Bytes that the filter takes for its counters, those of the lines in use.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let lines = self.growth.map_or(self.lines, |growth| growth.lines);
        LINES_OFFSET + u64::from(lines) * PARTS as u64 * LINE_BYTES
    }

    /// Keys of the filter: as many as the index has.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Keys that it takes before it grows, or, if it is at its largest, before it is fuller than it's made for.
    #[must_use]
    pub fn capacity_keys(&self) -> u64 {
        u64::from(self.growth.map_or(self.lines, |growth| growth.lines)) * PARTS as u64 * KEYS_OF_LINE_AT_MOST
    }

    /// Parts that were rebuilt, to grow or to free counters that stuck.
    #[must_use]
    pub fn parts_rebuilt(&self) -> u64 {
        self.parts_rebuilt
    }

    /// What it said so far.
    #[must_use]
    pub fn used(&self) -> FilterUse {
        self.used
    }

    /// Gives the next part of a wave its new home.
    fn grow_one(&mut self, growth: Growth, index: &Index) -> u64 {
        let Some(part) = growth.parts_left.checked_sub(1) else {
            self.lines = growth.lines;
            self.growth = None;
            return 0;
        };
        self.growth = Some(Growth { parts_left: part, ..growth });
        let number = u32::from(part);
        let (home, old_end) = (number * growth.lines, (number + 1) * self.lines);
        let mut done = 0;
        if home < old_end {
            done += self.rebuild(part, PARTS as u32 * growth.lines, growth.lines, index);
        }
        done + self.rebuild(part, home, growth.lines, index)
    }

    /// Frees the counters of a part that stuck for keys that have gone.
    fn relieve(&mut self, part: u16, index: &Index) -> u64 {
        let (number, lines) = (u32::from(part), self.lines);
        self.rebuild(part, PARTS as u32 * lines, lines, index)
            + self.rebuild(part, number * lines, lines, index)
    }

    fn rebuild(&mut self, part: u16, first_line: u32, lines: u32, index: &Index) -> u64 {
        let mut keys = 0;
        let fingerprints = index.fingerprints(part).inspect(|_| keys += 1);
        self.writer.rebuild(view(&self.memory), part, (first_line, lines as u16), fingerprints);
        self.parts_rebuilt += 1;
        if let Some(limit) = self.stuck_limits.get_mut(usize::from(part)) {
            // Those that are stuck now would be so again after the next rebuild.
            *limit = 2 * self.writer.stuck(part) + (lines / 4).max(1);
        }
        keys + u64::from(lines)
    }

    #[cold]
    fn note_stuck(&mut self, part: u16) {
        let Some(limit) = self.stuck_limits.get_mut(usize::from(part)) else { return };
        if self.writer.stuck(part) > *limit {
            // Not again before it is rebuilt.
            *limit = u32::MAX;
            self.crowded.push_back(part);
        }
    }
}

/// Lines of a part in the largest filter for so many objects.
fn max_lines(objects: u64) -> u32 {
    let lines = objects.div_ceil(KEYS_OF_LINE_OF_LARGEST * PARTS as u64);
    lines.clamp(1, u64::from(MAX_PART_LINES)) as u32
}

/// The filter's words. Memory that is too short for them, which `new` refuses, would say "maybe" to everything.
#[inline]
fn view(memory: &Segment) -> Filter<'_> {
    Filter::new(memory.words(PLACES_OFFSET).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::slots::SlotId;
    use zerocopy::FromZeros;

    fn hash(number: u64) -> KeyHash {
        KeyHash::of(&number.to_le_bytes())
    }

    /// An index and its filter, kept alike.
    struct Pair {
        index: Index,
        filter: KeyFilter,
    }

    impl Pair {
        fn new(objects: u64) -> Pair {
            let memory = Segment::heap(KeyFilter::bytes_for(objects)).unwrap();
            let filter = KeyFilter::new(memory, objects, FilterIdentity::new_zeroed()).unwrap();
            Pair { index: Index::new(), filter }
        }

        fn add(&mut self, number: u64) {
            self.index.set(hash(number), SlotId(number as u32), |_| false);
            self.filter.add(hash(number));
        }

        fn remove(&mut self, number: u64) {
            assert!(self.index.remove(hash(number), SlotId(number as u32)));
            self.filter.remove(hash(number));
        }

        /// Share of absent keys that are taken for present ones.
        fn false_positives(&self) -> f64 {
            let absent = 1_000_000..1_100_000;
            let count = absent.clone().filter(|number| self.filter.may_contain(hash(*number))).count();
            count as f64 / (absent.end - absent.start) as f64
        }
    }

    /// Shows that a filter that grows with its keys denies none of them at any moment of the wave, takes at most 8 bytes a key as
    /// soon as there are 160 thousand, and stays below 1 % of false positives all the way; and that a wave is done in slices.
    #[test]
    fn it_grows_with_its_keys() {
        let mut pair = Pair::new(1 << 20);
        let (mut slices, mut measured) = (0, 0);
        for number in 0..600_000 {
            pair.add(number);
            if pair.filter.growth.is_some() {
                slices += 1;
                pair.filter.rebuild_slice(&pair.index);
                for older in [number, number / 2, number / 3] {
                    assert!(pair.filter.may_contain(hash(older)), "{older} of {number}");
                }
            }
            if number % 50_000 == 49_999 {
                while pair.filter.rebuild_slice(&pair.index) {}
                assert!((0..=number).all(|older| pair.filter.may_contain(hash(older))));
                let (share, bytes) = (pair.false_positives(), pair.filter.bytes() as f64 / number as f64);
                println!("{number} keys: {:.2} % false positives, {bytes:.1} bytes a key", 100.0 * share);
                assert!(share < 0.01, "{share}");
                assert!(number < 160_000 || bytes <= 8.2, "{bytes}");
                measured += 1;
            }
        }
        assert!(measured == 12 && slices > 1_000, "{slices} slices");
        assert_eq!(pair.filter.lines, 15);
    }

    /// Shows that a filter at its largest takes more keys than it's made for and still denies none, that full counters bring rebuilds
    /// with them but not for ever, and that after the keys have gone a rebuild leaves nothing behind.
    #[test]
    fn an_overfull_filter_is_relieved() {
        let mut pair = Pair::new(1);
        let keys = PARTS as u64 * 100;
        (0..keys).for_each(|number| pair.add(number));
        let mut slices = 0;
        while pair.filter.rebuild_slice(&pair.index) {
            slices += 1;
            assert!(slices < 10_000, "rebuilt for ever");
        }
        assert!((0..keys).all(|number| pair.filter.may_contain(hash(number))));
        let rebuilt = pair.filter.parts_rebuilt();
        (0..keys).for_each(|number| pair.remove(number));
        assert!(pair.false_positives() < 0.5);
        // Fewer keys, but so many stuck counters that the next one to stick has its part rebuilt.
        for part in 0..PARTS as u16 {
            pair.filter.crowded.push_back(part);
        }
        while pair.filter.rebuild_slice(&pair.index) {}
        assert!(pair.filter.parts_rebuilt() > rebuilt);
        assert_eq!(pair.false_positives(), 0.0);
    }

    /// Shows what clients find at the front of the file, and that memory that is too short is refused.
    #[test]
    fn the_file_names_its_shard() {
        let bytes = KeyFilter::bytes_for(1000);
        let identity = FilterIdentity { shard: 3.into(), boot_id: [7; 16], ..FilterIdentity::new_zeroed() };
        let filter = KeyFilter::new(Segment::heap(bytes).unwrap(), 1000, identity).unwrap();
        let page = filter.memory().slice(0, 64).unwrap();
        assert_eq!((&page[..8], page[12], page[16]), (&FILTER_MAGIC[..], 3, 7));
        assert_eq!(page[32..40], bytes.to_le_bytes());
        assert!(KeyFilter::new(Segment::heap(bytes - 1).unwrap(), 1000, identity).is_err());
    }
}
