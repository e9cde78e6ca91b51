//! The one writer of a filter: raises and lowers counters, and moves parts.
//!
//! Called by the shard, whose key filter decides when a part is rebuilt and where. What always holds: a counter that reached 15
//! sticks, because nobody knows any more how many keys raised it; only a rebuild of its part lowers it. Stores are plain stores: a
//! read-modify-write would make every core that reads the line wait.

use super::rebuild::Rebuild;
use super::{Counters, Filter, LINE_WORDS, Mark, PARTS, Place};
use crate::sync::{AtomicU64, Ordering, fence};

/// A counter that has this value keeps it.
const STUCK: u64 = 0xf;

/// What the writer keeps to itself.
#[derive(Debug)]
pub struct FilterWriter {
    /// How many counters stick in each part.
    stuck: Box<[u32]>,
    /// The part that is being rebuilt.
    under_way: Option<Rebuild>,
    /// Memory for the fingerprints of the next part.
    fingerprints: Vec<u32>,
}

impl Default for FilterWriter {
    fn default() -> FilterWriter {
        FilterWriter::of_parts(PARTS)
    }
}

impl FilterWriter {
    fn of_parts(parts: usize) -> FilterWriter {
        FilterWriter { stuck: vec![0; parts].into(), under_way: None, fingerprints: Vec::new() }
    }

    /// Raises the counters of a key that has come. Does nothing in a part that says nothing. Returns whether a counter sticks now
    /// that didn't before.
    #[inline]
    pub fn add(&mut self, filter: Filter<'_>, mark: Mark) -> bool {
        let place = FilterWriter::place(filter, mark.part);
        let stuck = raise(filter, mark, place);
        if let Some(count) = self.stuck.get_mut(usize::from(mark.part)).filter(|_| stuck > 0) {
            *count += stuck;
        }
        if let Some(rebuild) = &mut self.under_way {
            rebuild.add(mark);
        }
        stuck > 0
    }

    /// Lowers the counters of a key that was added and has gone.
    #[inline]
    pub fn remove(&mut self, filter: Filter<'_>, mark: Mark) {
        lower(filter, mark, FilterWriter::place(filter, mark.part));
        if let Some(rebuild) = &mut self.under_way {
            rebuild.remove(filter, mark);
        }
    }

    /// Begins to build a part anew in `lines` lines from `first_line` on, from the fingerprints of all its keys. Until that is complete,
    /// keys of the part may be added and removed as ever, and no other part may begin. No place, of this part or another, may lead to any
    /// of those lines.
    pub fn begin_rebuild(
        &mut self,
        filter: Filter<'_>,
        part: u16,
        (first_line, lines): (u32, u16),
        fingerprints: impl Iterator<Item = u32>,
    ) {
        debug_assert!(self.under_way.is_none(), "one part at a time");
        let version = FilterWriter::place(filter, part).version.wrapping_add(1);
        let mut waiting = std::mem::take(&mut self.fingerprints);
        waiting.extend(fingerprints);
        // Whoever sees a store to the new lines sees all places that were replaced before: those that led there.
        fence(Ordering::Release);
        self.under_way = Some(Rebuild::new(part, Place { first_line, lines, version }, waiting));
    }

    /// Goes on with the part that was begun, by at most `steps` keys and lines; has readers look at the new lines once they are complete.
    /// Returns the number of steps and the part that is complete now.
    pub fn rebuild_some(&mut self, filter: Filter<'_>, steps: u64) -> (u64, Option<u16>) {
        let Some(rebuild) = &mut self.under_way else { return (0, None) };
        let done = rebuild.advance(filter, steps);
        if done == steps {
            return (done, None);
        }
        let part = rebuild.part();
        let Some((place, stuck, fingerprints)) = self.under_way.take().map(Rebuild::complete) else {
            return (done, None);
        };
        self.fingerprints = fingerprints;
        if let Some(count) = self.stuck.get_mut(usize::from(part)) {
            *count = stuck;
        }
        if let Some(word) = filter.places.get(usize::from(part)) {
            word.store(place.word(), Ordering::Release);
        }
        (done, Some(part))
    }

    /// Whether a part was begun and isn't complete.
    #[inline]
    #[must_use]
    pub fn is_rebuilding(&self) -> bool {
        self.under_way.is_some()
    }

    /// [`FilterWriter::begin_rebuild`] and all that follows, at once.
    pub fn rebuild(
        &mut self,
        filter: Filter<'_>,
        part: u16,
        home: (u32, u16),
        fingerprints: impl Iterator<Item = u32>,
    ) {
        self.begin_rebuild(filter, part, home, fingerprints);
        self.rebuild_some(filter, u64::MAX);
    }

    /// Where a part is now.
    #[inline]
    #[must_use]
    pub fn place(filter: Filter<'_>, part: u16) -> Place {
        let word = filter.places.get(usize::from(part));
        word.map_or(Place::default(), |word| Place::from_word(word.load(Ordering::Relaxed)))
    }

    /// Counters of a part that stick.
    #[inline]
    #[must_use]
    pub fn stuck(&self, part: u16) -> u32 {
        self.stuck.get(usize::from(part)).copied().unwrap_or(0)
    }
}

/// Raises the counters of a key in its part's lines at `place`. Returns how many of them stick now that didn't before.
#[inline]
pub(super) fn raise(filter: Filter<'_>, mark: Mark, place: Place) -> u32 {
    let Some((line, counters)) = line_of(filter, mark, place) else { return 0 };
    let mut stuck = 0;
    for (word, shift) in counters.each() {
        let before = line[word].load(Ordering::Relaxed);
        let counter = before >> shift & 0xf;
        if counter != STUCK {
            line[word].store(before + (1 << shift), Ordering::Relaxed);
            stuck += u32::from(counter + 1 == STUCK);
        }
    }
    stuck
}

/// Lowers the counters of a key in its part's lines at `place`.
#[inline]
pub(super) fn lower(filter: Filter<'_>, mark: Mark, place: Place) {
    let Some((line, counters)) = line_of(filter, mark, place) else { return };
    for (word, shift) in counters.each() {
        let before = line[word].load(Ordering::Relaxed);
        let counter = before >> shift & 0xf;
        if counter != STUCK && counter != 0 {
            line[word].store(before - (1 << shift), Ordering::Relaxed);
        }
    }
}

#[inline]
fn line_of<'a>(
    filter: Filter<'a>,
    mark: Mark,
    place: Place,
) -> Option<(&'a [AtomicU64; LINE_WORDS], Counters)> {
    let counters = Counters::of(mark, place)?;
    Some((filter.lines.get(counters.line)?, counters))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::key::KeyHash;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn words(lines: usize) -> Vec<AtomicU64> {
        (0..PARTS + 8 * lines).map(|_| AtomicU64::new(0)).collect()
    }

    fn hash(number: u64) -> KeyHash {
        KeyHash::of(&number.to_le_bytes())
    }

    /// A filter of `lines` lines, all parts alike.
    fn laid_out(words: &[AtomicU64]) -> (Filter<'_>, FilterWriter) {
        let (filter, mut writer) = (Filter::new(words), FilterWriter::default());
        let each = (filter.lines() / PARTS) as u32;
        for part in 0..PARTS as u32 {
            writer.rebuild(filter, part as u16, (part * each, each as u16), std::iter::empty());
        }
        (filter, writer)
    }

    /// Shows the share of absent keys that are taken for present ones, at both ends of the load that a growing filter
    /// has, with real hashes; that none of the present ones is missed; that a batch answers as single looks do; and that after all keys
    /// have gone again no counter is left raised.
    #[test]
    fn few_absent_keys_are_taken_for_present_ones() {
        let lines = 8;
        let words = words(PARTS * lines);
        let (filter, mut writer) = laid_out(&words);
        for (keys_in_line, limit) in [(8, 0.004), (10, 0.007)] {
            let keys = (PARTS * lines * keys_in_line) as u64;
            assert!((0..keys).all(|key| !writer.add(filter, Mark::of(hash(key)))), "no counter sticks");
            let hashes: Vec<KeyHash> = (0..2 * keys).map(hash).collect();
            let mut answers = vec![false; hashes.len()];
            filter.may_contain_batch(&hashes, &mut answers);
            assert!(hashes.iter().zip(&answers).all(|(hash, answer)| filter.may_contain(*hash) == *answer));
            let (present, absent) = answers.split_at(keys as usize);
            assert!(present.iter().all(|answer| *answer));
            let share = absent.iter().filter(|answer| **answer).count() as f64 / keys as f64;
            let bytes = 64.0 / keys_in_line as f64;
            println!("{bytes:.1} bytes a key: {:.2} % false positives", 100.0 * share);
            assert!(share < limit && share > limit / 4.0, "{share}");
            (0..keys).for_each(|key| writer.remove(filter, Mark::of(hash(key))));
            assert!(words[PARTS..].iter().all(|word| word.load(Ordering::Relaxed) == 0));
        }
    }

    proptest! {
        /// Shows, against a plain count of keys and however parts are moved in between, slice by slice while keys come and go, that a key
        /// that is there is never denied, with so few lines that most counters stick; and that with room enough nothing of a key that
        /// has gone is left behind.
        #[test]
        fn what_is_there_is_never_denied(
            lines_of_part in prop::sample::select(vec![2_u32, 200]),
            steps in prop::collection::vec((0_u32..300, 0_u8..13), 1..600),
        ) {
            let words = words(4 * lines_of_part as usize);
            let (filter, mut writer) = (Filter::new(&words), FilterWriter::default());
            let mark = |key: u32| Mark { part: (key % 2) as u16, fingerprint: key };
            let hash_of = |key: u32| KeyHash { high64: 0, low64: u64::from(key % 2) << 52 | u64::from(key) };
            let mut keys = BTreeMap::<u32, bool>::new();
            // Two parts, and two spare places that they move to in turn.
            let mut homes = [0, 1].map(|number| number * lines_of_part);
            let mut spare = [2, 3].map(|number| number * lines_of_part);
            for part in 0..2_u16 {
                writer.rebuild(filter, part, (homes[usize::from(part)], lines_of_part as u16), std::iter::empty());
            }
            for (key, step) in steps {
                match step {
                    0..6 => if keys.insert(key, true).is_none() {
                        writer.add(filter, mark(key));
                    },
                    6..9 => if keys.remove(&key).is_some() {
                        writer.remove(filter, mark(key));
                    },
                    _ if writer.is_rebuilding() => {
                        writer.rebuild_some(filter, u64::from(key));
                    }
                    _ => {
                        let part = (key % 2) as usize;
                        std::mem::swap(&mut homes[part], &mut spare[part]);
                        let fingerprints = keys.keys().copied().filter(|key| key % 2 == part as u32);
                        writer.begin_rebuild(filter, part as u16, (homes[part], lines_of_part as u16), fingerprints);
                    }
                }
                for key in keys.keys() {
                    prop_assert!(filter.may_contain(hash_of(*key)), "{}", key);
                }
            }
            writer.rebuild_some(filter, u64::MAX);
            for key in keys.keys() {
                prop_assert!(filter.may_contain(hash_of(*key)), "{}", key);
                writer.remove(filter, mark(*key));
            }
            if lines_of_part == 200 {
                prop_assert!((0..300).all(|key| !filter.may_contain(hash_of(key))), "something was left behind");
            }
        }
    }

    /// Shows that full counters stick, that this is counted, and that a rebuild frees them.
    #[test]
    fn full_counters_stick_until_their_part_is_rebuilt() {
        let words = words(2);
        let (filter, mut writer) = (Filter::new(&words), FilterWriter::default());
        let mark = Mark { part: 3, fingerprint: 12_345 };
        let hash = KeyHash { high64: 0, low64: 3 << 52 | 12_345 };
        assert!(filter.may_contain(hash), "a part without lines says nothing");
        writer.rebuild(filter, 3, (0, 1), std::iter::empty());
        assert!(!filter.may_contain(hash));
        let sticking = (0..100).filter(|_| writer.add(filter, mark)).count();
        assert!((1..=5).contains(&sticking));
        (0..100).for_each(|_| writer.remove(filter, mark));
        assert!(filter.may_contain(hash));
        assert!((4..=5).contains(&writer.stuck(3)));
        writer.rebuild(filter, 3, (1, 1), std::iter::empty());
        assert_eq!((writer.stuck(3), filter.may_contain(hash)), (0, false));
    }

    /// Shows that a reader of nonsense places, or of too short a file, gets an answer that does no harm.
    #[test]
    fn nonsense_says_nothing() {
        let words = words(1);
        words[0].store(u64::MAX, Ordering::Relaxed);
        let hash = KeyHash { high64: 0, low64: 5 };
        for filter in [Filter::new(&words), Filter::new(&words[..0]), Filter::new(&words[..10])] {
            let mut answers = [false; 3];
            filter.may_contain_batch(&[hash; 3], &mut answers);
            assert_eq!((filter.may_contain(hash), answers), (true, [true; 3]));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Every interleaving of the writer with readers: a key whose `put` has returned is never denied, whatever is moved meanwhile.
    use super::*;
    use crate::key::KeyHash;
    use loom::sync::Arc;

    /// A filter of two parts, small enough for loom.
    struct Shared {
        places: Vec<AtomicU64>,
        lines: Vec<[AtomicU64; LINE_WORDS]>,
        /// What stands for the answer to a `put`.
        returned: AtomicU64,
    }

    impl Shared {
        fn new(lines: usize) -> Arc<Shared> {
            let word = |_| AtomicU64::new(0);
            Arc::new(Shared {
                places: (0..2).map(word).collect(),
                lines: (0..lines).map(|_| std::array::from_fn(word)).collect(),
                returned: AtomicU64::new(0),
            })
        }

        fn filter(&self) -> Filter<'_> {
            Filter { places: &self.places, lines: &self.lines }
        }
    }

    const OLD: u32 = 7;
    const NEW: u32 = 9;

    fn hash(part: u64, fingerprint: u32) -> KeyHash {
        KeyHash { high64: 0, low64: part << 52 | u64::from(fingerprint) }
    }

    fn bounded(preemptions: usize) -> loom::model::Builder {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model
    }

    /// One writer puts a key, two readers look for it.
    fn one_key_is_put(put: impl Fn(&Shared, &mut FilterWriter) + Send + Sync + Copy + 'static) {
        bounded(2).check(move || {
            let shared = Shared::new(1);
            let mut writer = FilterWriter::of_parts(2);
            writer.rebuild(shared.filter(), 0, (0, 1), [OLD].into_iter());
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || {
                        let is_put = shared.returned.load(Ordering::Acquire) == 1;
                        let is_there = shared.filter().may_contain(hash(0, NEW));
                        assert!(is_there || !is_put, "denied");
                    })
                })
                .collect();
            put(&shared, &mut writer);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }

    const NEW_MARK: Mark = Mark { part: 0, fingerprint: NEW };

    #[test]
    fn a_key_that_was_put_is_never_denied() {
        one_key_is_put(|shared, writer| {
            writer.add(shared.filter(), NEW_MARK);
            shared.returned.store(1, Ordering::Release);
        });
    }

    #[test]
    #[should_panic(expected = "denied")]
    fn a_put_that_returns_too_early_is_found() {
        // The planted fault that shows that the test above can fail.
        one_key_is_put(|shared, writer| {
            shared.returned.store(1, Ordering::Release);
            writer.add(shared.filter(), NEW_MARK);
        });
    }

    /// A key comes while its part is rebuilt, between two slices: the new lines have it, too.
    fn a_key_comes_in_between(put: impl Fn(&Shared, &mut FilterWriter) + Send + Sync + Copy + 'static) {
        bounded(2).check(move || {
            let shared = Shared::new(2);
            let mut writer = FilterWriter::of_parts(2);
            writer.rebuild(shared.filter(), 0, (0, 1), [OLD].into_iter());
            let reader = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let is_put = shared.returned.load(Ordering::Acquire) == 1;
                    let are_there = [OLD, NEW].map(|key| shared.filter().may_contain(hash(0, key)));
                    assert!(are_there[0] && (are_there[1] || !is_put), "denied");
                })
            };
            writer.begin_rebuild(shared.filter(), 0, (1, 1), [OLD].into_iter());
            writer.rebuild_some(shared.filter(), 2);
            put(&shared, &mut writer);
            writer.rebuild_some(shared.filter(), u64::MAX);
            reader.join().unwrap();
        });
    }

    #[test]
    fn a_key_that_comes_while_its_part_is_rebuilt_is_never_denied() {
        a_key_comes_in_between(|shared, writer| {
            writer.add(shared.filter(), NEW_MARK);
            shared.returned.store(1, Ordering::Release);
        });
    }

    #[test]
    #[should_panic(expected = "denied")]
    fn a_key_that_the_new_lines_lack_is_found() {
        // The planted fault that shows that the test above can fail.
        a_key_comes_in_between(|shared, _| {
            raise(shared.filter(), NEW_MARK, FilterWriter::place(shared.filter(), 0));
            shared.returned.store(1, Ordering::Release);
        });
    }

    /// A part moves away and another takes its lines: the case that the second look at the place is for.
    fn parts_move(look: impl Fn(&Shared) -> bool + Send + Sync + Copy + 'static) {
        bounded(3).check(move || {
            let shared = Shared::new(2);
            let mut writer = FilterWriter::of_parts(2);
            writer.rebuild(shared.filter(), 0, (0, 1), [OLD].into_iter());
            let reader = {
                let shared = shared.clone();
                loom::thread::spawn(move || assert!(look(&shared), "denied"))
            };
            writer.rebuild(shared.filter(), 0, (1, 1), [OLD].into_iter());
            writer.rebuild(shared.filter(), 1, (0, 1), std::iter::empty());
            reader.join().unwrap();
        });
    }

    #[test]
    fn a_key_is_never_denied_while_its_part_moves() {
        parts_move(|shared| shared.filter().may_contain(hash(0, OLD)));
    }

    #[test]
    fn nor_in_a_batch() {
        parts_move(|shared| {
            let mut answers = [false];
            shared.filter().may_contain_batch(&[hash(0, OLD)], &mut answers);
            answers[0]
        });
    }

    #[test]
    #[should_panic(expected = "denied")]
    fn without_the_second_look_loom_finds_the_denial() {
        // The planted fault that shows that the tests above can fail.
        parts_move(|shared| {
            let mark = Mark::of(hash(0, OLD));
            let place = Place::from_word(shared.places[0].load(Ordering::Acquire));
            let (line, counters) = line_of(shared.filter(), mark, place).unwrap();
            counters.each().all(|(word, shift)| line[word].load(Ordering::Relaxed) >> shift & 0xf != 0)
        });
    }
}
