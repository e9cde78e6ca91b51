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
//! behind all parts. A part is rebuilt from the 44 bits that the index keeps of each hash, without a look at any object and in slices: its
//! fingerprints are copied at once (some microseconds with ten million keys on the shard), and then so many counters are raised at a time.
//!
//! **Pace.** Each key that comes during a wave pays for [`STEPS_OF_KEY`] steps of it, beside the slices of the ticks. So a wave is over
//! before the shard has 5 % more keys than when it began, however fast they come: a part that waits for its rebuild is never much
//! fuller than one should be.
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
/// Keys and lines that a tick's slice rebuilds: some 20 µs.
const SLICE: u64 = 2048;
/// Keys and lines that each key pays for that comes during a wave.
const STEPS_OF_KEY: u64 = 32;
/// Copying the fingerprints of so many keys takes as long as a step.
const COPIES_OF_STEP: u64 = 8;

// A wave takes a step for each key, an eighth of one to copy it, and one for each line, of which there are a tenth to a fifth as many.
const _: () = assert!(STEPS_OF_KEY >= 20 * 3 / 2);

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

/// Looks at made-up keys, which show how often the filter is wrong whatever clients ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilterProbes {
    /// Looks.
    pub asked: u64,
    /// Looks after which the index would have been asked in vain.
    pub wrong: u64,
}

/// Made-up keys of one [`KeyFilter::probe`]: some microseconds.
const PROBES: usize = 128;
/// Looks after which both counts are halved, so that they tell of the last minute or so.
const PROBES_KEPT: u64 = 1 << 16;

/// A wave of growth.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// Lines that each part gets.
    lines: u32,
    /// Parts that have not begun to get them.
    parts_left: u16,
}

/// Where a part is to go.
#[derive(Debug, Clone, Copy)]
struct Move {
    part: u16,
    first_line: u32,
    lines: u32,
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
    /// Where the part that is being rebuilt goes then: it's on its way to the spare place.
    second_leg: Option<Move>,
    /// Parts in which too many counters stick.
    crowded: VecDeque<u16>,
    /// Counters that may stick in a part until it is rebuilt.
    stuck_limits: Box<[u32]>,
    parts_rebuilt: u64,
    used: FilterUse,
    probes: FilterProbes,
    /// Number of the last made-up key.
    last_probe: u64,
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
            second_leg: None,
            crowded: VecDeque::new(),
            stuck_limits: vec![1; PARTS].into_boxed_slice(),
            parts_rebuilt: 0,
            used: FilterUse::default(),
            probes: FilterProbes::default(),
            last_probe: 0,
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

    /// Asks the filter for some keys that nobody has, to measure how often it is wrong. To be called ten times a second or so.
    pub fn probe(&mut self, index: &Index) {
        let hashes: [KeyHash; PROBES] = std::array::from_fn(|_| {
            self.last_probe += 1;
            KeyHash::of(&[*b"\0made up", self.last_probe.to_le_bytes()].concat())
        });
        let mut answers = [false; PROBES];
        self.may_contain_batch(&hashes, &mut answers);
        for (hash, may_contain) in hashes.iter().zip(answers) {
            // Someone may have such a key after all.
            if may_contain && index.get(*hash, |_| true).is_some() {
                continue;
            }
            self.probes.asked += 1;
            self.probes.wrong += u64::from(may_contain);
        }
        if self.probes.asked >= PROBES_KEPT {
            self.probes = FilterProbes { asked: self.probes.asked / 2, wrong: self.probes.wrong / 2 };
        }
    }

    /// What the made-up keys of the last minute or so have shown.
    #[must_use]
    pub fn probes(&self) -> FilterProbes {
        self.probes
    }

    /// Goes on with what is to be rebuilt, if anything is, for some 20 µs. Returns whether there is more. `index` holds exactly the keys that
    /// were added.
    pub fn rebuild_slice(&mut self, index: &Index) -> bool {
        self.rebuild_some(index, SLICE)
    }

    /// The part of a wave that a key pays for that has just come. `index` holds exactly the keys that were added.
    #[inline]
    pub fn keep_pace(&mut self, index: &Index) {
        if self.growth.is_some() {
            self.rebuild_some(index, STEPS_OF_KEY);
        }
    }

    fn rebuild_some(&mut self, index: &Index, steps: u64) -> bool {
        let mut left = steps;
        while left > 0 {
            if !self.writer.is_rebuilding() {
                let Some(next) = self.next_move() else { return false };
                left = left.saturating_sub(self.begin(next, index) / COPIES_OF_STEP);
            }
            let (done, complete) = self.writer.rebuild_some(view(&self.memory), left);
            left = left.saturating_sub(done);
            if let Some(part) = complete {
                self.rebuilt(part);
            }
        }
        true
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

    /// The part that is to be rebuilt next, and where.
    fn next_move(&mut self) -> Option<Move> {
        if let Some(second_leg) = self.second_leg.take() {
            return Some(second_leg);
        }
        if let Some(growth) = self.growth {
            if let Some(part) = growth.parts_left.checked_sub(1) {
                self.growth = Some(Growth { parts_left: part, ..growth });
                return Some(self.first_leg(part, growth.lines));
            }
            self.lines = growth.lines;
            self.growth = None;
        }
        let part = self.crowded.pop_front()?;
        Some(self.first_leg(part, self.lines))
    }

    /// A part's way to its home of `lines` lines, by way of the spare place if its home overlaps with where it is.
    fn first_leg(&mut self, part: u16, lines: u32) -> Move {
        let number = u32::from(part);
        let home = Move { part, first_line: number * lines, lines };
        if home.first_line >= (number + 1) * self.lines {
            return home;
        }
        self.second_leg = Some(home);
        Move { first_line: PARTS as u32 * lines, ..home }
    }

    /// Returns the number of keys.
    fn begin(&mut self, Move { part, first_line, lines }: Move, index: &Index) -> u64 {
        let mut keys = 0;
        let fingerprints = index.fingerprints(part).inspect(|_| keys += 1);
        self.writer.begin_rebuild(view(&self.memory), part, (first_line, lines as u16), fingerprints);
        keys
    }

    fn rebuilt(&mut self, part: u16) {
        self.parts_rebuilt += 1;
        let lines = self.growth.map_or(self.lines, |growth| growth.lines);
        if let Some(limit) = self.stuck_limits.get_mut(usize::from(part)) {
            // Those that are stuck now would be so again after the next rebuild.
            *limit = 2 * self.writer.stuck(part) + (lines / 4).max(1);
        }
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
            self.filter.keep_pace(&self.index);
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

    /// Shows that a filter that grows with its keys, as fast as they can come and without a single tick, denies none of them at any
    /// moment of a wave, is never fuller than 5 % above its design load, takes at most 8 bytes a key and its head as soon as there are
    /// 200 thousand, and stays below 1 % of false positives all the way, in the middle of waves too.
    #[test]
    fn it_grows_with_its_keys() {
        let mut pair = Pair::new(1 << 20);
        let (mut in_waves, mut measured) = (0, 0);
        for number in 0..600_000 {
            pair.add(number);
            let capacity = KEYS_OF_LINE_AT_MOST * u64::from(pair.filter.lines) * PARTS as u64;
            assert!(pair.filter.keys() * 100 <= capacity * 105, "{number} keys, made for {capacity}");
            let is_in_wave = pair.filter.growth.is_some();
            if is_in_wave {
                for older in [number, number / 2, number / 3] {
                    assert!(pair.filter.may_contain(hash(older)), "{older} of {number}");
                }
            }
            // Some 5 % of the keys from the last look on: in the middle of a wave, where there is one.
            if number % 2_048 == 0 && (is_in_wave || number % 51_200 == 0) {
                assert!((0..=number).step_by(7).all(|older| pair.filter.may_contain(hash(older))));
                let share = pair.false_positives();
                println!("{number} keys, in a wave: {is_in_wave}: {:.2} % false positives", 100.0 * share);
                assert!(share < 0.01, "{share}");
                in_waves += u32::from(is_in_wave);
                measured += 1;
            }
            let bytes = pair.filter.bytes() as f64 / (number + 1) as f64;
            assert!(number < 200_000 || bytes <= 8.2, "{bytes} bytes a key");
        }
        assert!(in_waves > 10 && measured > in_waves, "{in_waves} of {measured} looks were in waves");
        assert_eq!(pair.filter.lines, 15);
    }

    /// Shows that the rate that is measured with made-up keys is the one that other keys see, and follows it down.
    #[test]
    fn made_up_keys_show_how_often_it_is_wrong() {
        let mut pair = Pair::new(1 << 20);
        let measured = |pair: &mut Pair| {
            (0..4 * PROBES_KEPT / PROBES as u64).for_each(|_| pair.filter.probe(&pair.index));
            let FilterProbes { asked, wrong } = pair.filter.probes();
            assert!(asked > PROBES_KEPT / 4 && asked < PROBES_KEPT);
            wrong as f64 / asked as f64
        };
        (0..160_000).for_each(|number| pair.add(number));
        let (share, seen) = (measured(&mut pair), pair.false_positives());
        assert!((share - seen).abs() < 0.002 && share > 0.003, "{share}, where others see {seen}");
        (0..160_000).for_each(|number| pair.remove(number));
        let share = measured(&mut pair);
        assert!(share < 0.001, "{share} in an empty filter");
    }

    /// Shows that a slice is as long as it says however large the parts are: a wave of few huge parts takes as many slices as
    /// their keys and lines make, not as many as there are parts.
    #[test]
    fn a_large_part_takes_several_slices() {
        let mut pair = Pair::new(1 << 20);
        // All in one part.
        for number in 0..10_000_u64 {
            let hash = KeyHash { high64: 0, low64: 9 << 52 | number };
            pair.index.set(hash, SlotId(number as u32), |_| false);
            pair.filter.add(hash);
        }
        pair.filter.crowded = VecDeque::from([9]);
        let mut slices = 0;
        while pair.filter.rebuild_slice(&pair.index) {
            slices += 1;
        }
        // To the spare place and back.
        assert!((10..15).contains(&slices), "{slices}");
        assert!(
            (0..10_000).all(|number| pair.filter.may_contain(KeyHash { high64: 0, low64: 9 << 52 | number }))
        );
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
