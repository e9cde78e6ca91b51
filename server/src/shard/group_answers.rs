//! The last answer about each of the groups that chains are asked for again and again, so that the same question costs one comparison
//! of bytes and not a look-up for each block. For lists of keys [`super::list_answers`] does the same by the same means.
//!
//! An answer is kept when a group's blocks have been looked up one by one, with the bytes of the question as they came. It is given
//! again while all of this holds, which is looked at each time:
//! - The question is the same, byte by byte, or the front of it.
//! - Every block is still the answer to its key: the epoch word that they share is what it was, or, where another group that shares
//!   the word has moved it, every slot still has its object.
//! - No block's time to live has ended.
//! - At least half of the lease that the blocks have been granted is left. The new answer is promised what is left of it; where
//!   that is less than half, each block of the kept answer is granted a new lease first.
//!
//! So no lease is promised that isn't written in its block's slot (promise P1), and a chain that many requests ask for at a time has each
//! block's lease and place in the order of eviction moved once in half a lease, not once in a request.
//!
//! Answers are few and of bounded size: sets of two, of which the one whose lease ends first makes room. A list takes no place from a group whose
//! lease lasts, so that reads of ever other keys don't cost the chains theirs.

use super::Shard;
use crate::memory::slots::{Generation, Life, ShardMillis, SlotId, Slots};
use lanner_shared::chain::{GROUP_BLOCKS, PREFIX_BYTES};
use lanner_shared::time::Instant;
use lanner_shared::wire::{Descriptor, Opcode};
use zerocopy::{FromBytes, IntoBytes};

/// Memory of a segment for which its shard keeps one answer.
const SEGMENT_BYTES_PER_ANSWER: u64 = 512 << 10;
/// The most answers that a shard keeps, of 65,536 blocks.
const MOST_ANSWERS: u64 = 2048;
/// The longest question that is kept: 32 keys of 128 bytes, which hold two digests in hexadecimal digits. Our own connectors' keys do.
const MOST_KEY_BYTES: usize = GROUP_BLOCKS * (2 + 128);
/// Bytes that one answer takes, at most: vectors grow by doubling.
const MOST_ANSWER_BYTES: u64 = (size_of::<GroupAnswer>()
    + 2 * (MOST_KEY_BYTES + GROUP_BLOCKS * (size_of::<u16>() + size_of::<Descriptor>())))
    as u64;
/// Fewer blocks are looked up as fast.
const FEWEST_BLOCKS: usize = 2;
/// What no group's prefix is, for an answer without blocks, which is never right.
const NO_GROUP: [u8; PREFIX_BYTES] = [0; PREFIX_BYTES];
/// What the prefix of a list begins with, and no group's.
pub(super) const LIST_TAG: u8 = b'[';
/// 2 to the power of 64 by the golden ratio, as in Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// A part of a chain as it came: keys with their lengths, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct GroupQuestion<'a> {
    /// [`GroupPrefix::as_bytes`](lanner_shared::chain::GroupPrefix::as_bytes) of the group.
    pub prefix: &'a [u8; PREFIX_BYTES],
    /// The keys, and what stands behind them.
    pub keys: &'a [u8],
    /// Number of keys.
    pub blocks: usize,
}

/// An answer that was given.
#[derive(Debug)]
pub(super) struct GroupAnswer {
    /// What question the group's keys are asked with; [`NO_GROUP`] for none.
    prefix: [u8; PREFIX_BYTES],
    /// The keys of the blocks that were there, as they came.
    keys: Vec<u8>,
    /// Where in `keys` each ends.
    ends: Vec<u16>,
    /// One for each of them. All have the same epoch word.
    pub(super) blocks: Vec<Descriptor>,
    /// The earliest end of the blocks' leases.
    leased_until: ShardMillis,
    /// When the first of them ends, in seconds since the shard started; 0 for never.
    expires_seconds: u32,
}

/// The answers of a shard.
#[derive(Debug)]
pub(super) struct GroupAnswers {
    /// A power of two of them. Two neighbours are a set.
    pub(super) table: Box<[GroupAnswer]>,
    bytes: u64,
    #[cfg(any(test, feature = "planted-faults"))]
    pub(super) takes_lists_for_another: bool,
}

impl GroupAnswers {
    pub(super) fn new(segment_bytes: u64) -> GroupAnswers {
        let table: Box<[GroupAnswer]> = (0..answers_of(segment_bytes)).map(|_| GroupAnswer::NONE).collect();
        let bytes = size_of_val(&*table) as u64;
        GroupAnswers {
            table,
            bytes,
            #[cfg(any(test, feature = "planted-faults"))]
            takes_lists_for_another: false,
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The two places where an answer about this group can be.
    #[inline]
    fn places(&self, prefix: &[u8; PREFIX_BYTES]) -> [usize; 2] {
        // A prefix holds a hash already; its digits have only to be mixed.
        let digits = prefix[1..].first_chunk().map_or(0, |digits| u64::from_le_bytes(*digits));
        let mixed = digits.wrapping_mul(GOLDEN_RATIO) >> 32;
        let place = mixed as usize & (self.table.len() - 1);
        [place, place ^ 1]
    }

    /// Where the answer about the first of so many `keys` is, about how many of them it is, and how many bytes these have.
    #[inline]
    pub(super) fn find(
        &self,
        prefix: &[u8; PREFIX_BYTES],
        keys: &[u8],
        count: usize,
    ) -> Option<(usize, usize, usize)> {
        self.places(prefix).into_iter().find_map(|place| {
            let answer = &self.table[place];
            if answer.prefix != *prefix {
                return None;
            }
            let count = count.min(answer.ends.len());
            let key_bytes = usize::from(*answer.ends.get(count.checked_sub(1)?)?);
            let is_same = keys.get(..key_bytes)? == answer.keys.get(..key_bytes)?;
            #[cfg(any(test, feature = "planted-faults"))]
            let is_same = is_same || self.takes_lists_for_another && prefix[0] == LIST_TAG;
            is_same.then_some((place, count, key_bytes))
        })
    }

    /// The place for a new answer about blocks with these keys. Of the same group it takes that of an answer about some of these blocks, or about
    /// these and more; two chains that part within the group each have their own. None for a list where both places are groups' whose lease lasts.
    fn place_for(&self, now: ShardMillis, prefix: &[u8; PREFIX_BYTES], keys: &[u8]) -> Option<usize> {
        let places = self.places(prefix);
        let is_replaced = |place: &usize| {
            let answer = &self.table[*place];
            answer.prefix == *prefix && (answer.keys.starts_with(keys) || keys.starts_with(&answer.keys))
        };
        let may_take = |place: &usize| {
            let answer = &self.table[*place];
            prefix[0] != LIST_TAG || answer.prefix[0] == LIST_TAG || answer.leased_until <= now
        };
        let sooner =
            || places.into_iter().filter(may_take).min_by_key(|place| self.table[*place].leased_until);
        places.into_iter().find(is_replaced).or_else(sooner)
    }

    /// Gives the place of an answer that isn't right any more to the next one.
    #[cold]
    fn forget(&mut self, place: usize) {
        self.table[place].prefix = NO_GROUP;
        self.table[place].leased_until = ShardMillis(0);
    }
}

fn answers_of(segment_bytes: u64) -> u64 {
    (segment_bytes / SEGMENT_BYTES_PER_ANSWER).clamp(2, MOST_ANSWERS).next_power_of_two()
}

/// Bytes of memory that the answers of a shard with such a segment take, at most.
pub(crate) fn most_answer_bytes(segment_bytes: u64) -> u64 {
    answers_of(segment_bytes) * MOST_ANSWER_BYTES
}

impl GroupAnswer {
    const NONE: GroupAnswer = GroupAnswer {
        prefix: NO_GROUP,
        keys: Vec::new(),
        ends: Vec::new(),
        blocks: Vec::new(),
        leased_until: ShardMillis(0),
        expires_seconds: 0,
    };

    fn heap_bytes(&self) -> u64 {
        let ends = self.ends.capacity() * size_of::<u16>();
        let blocks = self.blocks.capacity() * size_of::<Descriptor>();
        (self.keys.capacity() + ends + blocks) as u64
    }

    /// Whether each block is still the answer to its key, by its slot.
    fn is_published(&self, slots: &Slots) -> bool {
        self.blocks.iter().all(|block| {
            let slot = SlotId(block.slot.get());
            slots.life(slot) == Life::Published
                && slots.generation(slot) == Generation(block.generation.get())
        })
    }
}

impl Shard {
    /// Answers as before, if all blocks that `question` asks for were there and are: appends their descriptors, counts a hit for each,
    /// and returns how many bytes the question's keys have. `None` if they're to be looked up.
    pub fn answer_group_again(
        &mut self,
        now: Instant,
        question: &GroupQuestion<'_>,
        reply: &mut Vec<u8>,
    ) -> Option<usize> {
        let found = self.group_answers.find(question.prefix, question.keys, question.blocks);
        let (place, _, key_bytes) = found.filter(|(_, blocks, _)| *blocks == question.blocks)?;
        let lease_ms = self.lease_again(now, place)?;
        let start = reply.len();
        reply.extend_from_slice(self.group_answers.table[place].blocks[..question.blocks].as_bytes());
        for block in <[Descriptor]>::mut_from_bytes(&mut reply[start..]).unwrap_or_default() {
            block.lease_ms = lease_ms.into();
        }
        self.counters.count_look_ups(Opcode::MatchChain, question.blocks as u64, 0);
        self.count_prefix(question.blocks as u16);
        self.counters.groups_answered_again += 1;
        Some(key_bytes)
    }

    /// Keeps the answer about the leading blocks of `question` that are there, whose descriptors were made just before. `ends` says where
    /// the key of each ends. Long keys, and blocks of which some have other epoch words, are not worth a place.
    pub fn keep_group_answer(
        &mut self,
        now: Instant,
        question: &GroupQuestion<'_>,
        ends: &[u16],
        blocks: &[Descriptor],
    ) {
        self.keep_answer(now, question.prefix, question.keys, ends, blocks);
    }

    pub(super) fn keep_answer(
        &mut self,
        now: Instant,
        prefix: &[u8; PREFIX_BYTES],
        keys: &[u8],
        ends: &[u16],
        blocks: &[Descriptor],
    ) {
        let Some((ends, keys)) = ends.get(..blocks.len()).and_then(|ends| {
            let key_bytes = usize::from(*ends.last()?);
            (key_bytes <= MOST_KEY_BYTES).then_some((ends, keys.get(..key_bytes)?))
        }) else {
            return;
        };
        let shares_word =
            |block: &Descriptor| (block.epoch_slot, block.epoch) == (blocks[0].epoch_slot, blocks[0].epoch);
        if blocks.len() < FEWEST_BLOCKS || !blocks.iter().all(shares_word) {
            return;
        }
        let Some(place) = self.group_answers.place_for(self.millis_rounded_up(now), prefix, keys) else {
            return;
        };
        let ends_of_life = blocks.iter().map(|block| self.slots.expires_seconds(SlotId(block.slot.get())));
        let expires_seconds = ends_of_life.filter(|seconds| *seconds != 0).min().unwrap_or(0);
        let answer = &mut self.group_answers.table[place];
        let bytes_before = answer.heap_bytes();
        answer.prefix = *prefix;
        answer.expires_seconds = expires_seconds;
        answer.leased_until = earliest_lease_end(&self.slots, blocks);
        answer.keys.clear();
        answer.keys.extend_from_slice(keys);
        answer.ends.clear();
        answer.ends.extend_from_slice(ends);
        answer.blocks.clear();
        answer.blocks.extend_from_slice(blocks);
        self.group_answers.bytes += answer.heap_bytes() - bytes_before;
    }

    /// Whether all blocks of a kept answer are still what it says. Brings its epoch up to date.
    #[inline]
    fn is_still_right(&mut self, now: Instant, place: usize) -> bool {
        #[cfg(any(test, feature = "planted-faults"))]
        if self.planted_faults.repeats_old_answers {
            return true;
        }
        let answer = &self.group_answers.table[place];
        let Some(first) = answer.blocks.first() else { return false };
        if self.has_come(now, answer.expires_seconds) {
            return false;
        }
        let epoch = self.epoch(first.epoch_slot.get());
        if first.epoch.get() == epoch {
            return true;
        }
        if !answer.is_published(&self.slots) {
            return false;
        }
        self.group_answers.table[place].blocks.iter_mut().for_each(|block| block.epoch = epoch.into());
        true
    }

    /// [`Shard::lease_left`] of a kept answer that is still right; one that isn't gives up its place.
    #[inline]
    pub(super) fn lease_again(&mut self, now: Instant, place: usize) -> Option<u32> {
        if !self.is_still_right(now, place) {
            self.group_answers.forget(place);
            return None;
        }
        Some(self.lease_left(now, place))
    }

    /// How long the lease is that all blocks of a kept answer have from `now` on, in milliseconds: at least half as long as one granted now,
    /// for which new ones are granted where that is needed.
    #[inline]
    fn lease_left(&mut self, now: Instant, place: usize) -> u32 {
        #[cfg(any(test, feature = "planted-faults"))]
        if self.planted_faults.promises_without_lease {
            return self.lease_ms;
        }
        let left = |shard: &Shard| {
            let until = shard.group_answers.table[place].leased_until;
            until.0.saturating_sub(shard.millis_rounded_up(now).0).min(u64::from(shard.lease_ms)) as u32
        };
        if left(self) < self.lease_ms.div_ceil(2) {
            self.grant_again(now, place);
        }
        left(self)
    }

    #[inline(never)]
    fn grant_again(&mut self, now: Instant, place: usize) {
        let blocks = std::mem::take(&mut self.group_answers.table[place].blocks);
        for slot in blocks.iter().map(|block| SlotId(block.slot.get())) {
            self.grant_lease(now, slot);
            self.note_access(slot);
        }
        let answer = &mut self.group_answers.table[place];
        answer.leased_until = earliest_lease_end(&self.slots, &blocks);
        answer.blocks = blocks;
    }
}

fn earliest_lease_end(slots: &Slots, blocks: &[Descriptor]) -> ShardMillis {
    blocks.iter().map(|block| slots.lease_end(SlotId(block.slot.get()))).min().unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at, put_request};
    use super::*;
    use crate::eviction::PolicyKind;
    use lanner_shared::chain::GroupPrefix;
    use lanner_shared::wire::keys;
    use lanner_shared::wire::put::{PutMode, PutRequest};

    /// A group of blocks, and how it is asked for.
    pub(in crate::shard) struct Group {
        prefix: GroupPrefix,
        pub(in crate::shard) stored: Vec<Vec<u8>>,
        came: Vec<u8>,
        ends: Vec<u16>,
    }

    impl Group {
        /// Of five blocks.
        pub(in crate::shard) fn new(first: &str) -> Group {
            let blocks = [1, 2, 3, 4].map(|number| format!("{first}{number}"));
            Group::of(first, &blocks.each_ref().map(String::as_str))
        }

        fn of(first: &str, others: &[&str]) -> Group {
            let blocks = [&[first], others].concat();
            let prefix = GroupPrefix::of(blocks[0].as_bytes());
            let (mut came, mut ends) = (Vec::new(), Vec::new());
            for block in &blocks {
                keys::append(&mut came, block.as_bytes());
                ends.push(came.len() as u16);
            }
            let stored = blocks.iter().map(|block| prefix.stored_key(block.as_bytes()).to_vec()).collect();
            Group { prefix, stored, came, ends }
        }

        fn question(&self, blocks: usize) -> GroupQuestion<'_> {
            GroupQuestion { prefix: self.prefix.as_bytes(), keys: &self.came, blocks }
        }

        /// Looks the blocks up and keeps the answer.
        pub(in crate::shard) fn look_up(&self, shard: &mut TestShard, now: Instant) {
            let query = |key: &Vec<u8>| shard.query(now, key, Opcode::MatchChain);
            let found: Vec<Descriptor> =
                self.stored.iter().map_while(query).map(|found| found.descriptor()).collect();
            shard.keep_group_answer(now, &self.question(self.stored.len()), &self.ends, &found);
        }

        pub(in crate::shard) fn again(
            &self,
            shard: &mut TestShard,
            now: Instant,
            blocks: usize,
        ) -> Option<Vec<Descriptor>> {
            let mut reply = vec![7];
            let key_bytes = shard.answer_group_again(now, &self.question(blocks), &mut reply)?;
            assert_eq!(key_bytes, usize::from(self.ends[blocks - 1]));
            Some(<[Descriptor]>::ref_from_bytes(&reply[1..]).unwrap().to_vec())
        }
    }

    fn shard_with(group: &Group) -> TestShard {
        let config = ShardConfig { policy: PolicyKind::S3Fifo, ..ShardConfig::default() };
        let mut shard = TestShard::new(1 << 20, config);
        group.stored.iter().for_each(|key| {
            shard.put(at(0), key, key).unwrap();
        });
        group.look_up(&mut shard, at(0));
        shard
    }

    /// Shows that the question and its front are answered as a look-up answers them and counted as one, a longer one and one that differs
    /// in its last byte are not, and neither is one that ends in the middle of a key.
    #[test]
    fn the_same_question_has_the_same_answer() {
        let group = Group::new("block");
        let mut shard = shard_with(&group);
        let hits = shard.stats(at(0)).hits(Opcode::MatchChain);
        for blocks in 1..=5 {
            let again = group.again(&mut shard, at(0), blocks).unwrap();
            let query = |key: &Vec<u8>| shard.query(at(0), key, Opcode::Query).unwrap().descriptor();
            assert_eq!(again, group.stored[..blocks].iter().map(query).collect::<Vec<_>>());
        }
        let stats = shard.stats(at(0));
        assert_eq!((stats.hits(Opcode::MatchChain), stats.groups_answered_again), (hits + 15, 5));
        let ask = |shard: &mut TestShard, keys: &[u8], blocks| {
            let question = GroupQuestion { keys, blocks, ..group.question(5) };
            shard.answer_group_again(at(0), &question, &mut Vec::new())
        };
        assert_eq!(ask(&mut shard, &group.came, 6), None);
        assert_eq!(ask(&mut shard, &group.came, 0), None);
        assert_eq!(ask(&mut shard, &group.came[..group.came.len() - 1], 5), None);
        let mut other = group.came.clone();
        *other.last_mut().unwrap() ^= 1;
        assert_eq!(ask(&mut shard, &other, 5), None);
        assert!(ask(&mut shard, &other, 4).is_some());
        let elsewhere = Group::new("other");
        assert_eq!(elsewhere.again(&mut shard, at(0), 5), None);
    }

    /// Shows that two chains which part within a group are both answered again, that a longer answer takes the place of a shorter one about the
    /// same blocks, and that an answer which is wrong makes room before one that is right.
    #[test]
    fn chains_that_part_have_a_place_each() {
        let (one, other) = (Group::of("front", &["a", "b"]), Group::of("front", &["a", "c", "d"]));
        assert_eq!(one.prefix, other.prefix);
        let mut shard = shard_with(&one);
        other.stored[2..].iter().for_each(|key| {
            shard.put(at(0), key, key).unwrap();
        });
        let shorter = GroupQuestion { blocks: 3, ..other.question(3) };
        let found: Vec<Descriptor> = other.stored[..3]
            .iter()
            .map(|key| shard.query(at(0), key, Opcode::MatchChain).unwrap().descriptor())
            .collect();
        shard.keep_group_answer(at(0), &shorter, &other.ends, &found);
        other.look_up(&mut shard, at(0));
        for _ in 0..3 {
            assert_eq!(one.again(&mut shard, at(1), 3).unwrap().len(), 3);
            assert_eq!(other.again(&mut shard, at(1), 4).unwrap().len(), 4);
        }
        shard.remove(at(1), &one.stored[2]);
        assert_eq!(one.again(&mut shard, at(1), 3), None);
        shard.put(at(1), &one.stored[2], b"").unwrap();
        one.look_up(&mut shard, at(1));
        assert_eq!(one.again(&mut shard, at(1), 3).unwrap().len(), 3);
        assert_eq!(other.again(&mut shard, at(1), 4).unwrap().len(), 4);
    }

    /// Shows that keys of two digests in hexadecimal digits, as our connectors' are, are short enough for whole groups, and longer ones aren't kept.
    #[test]
    fn keys_of_two_digests_are_kept() {
        for (bytes, is_kept) in [(128, true), (129, false)] {
            let key = |number: usize| format!("{number:0bytes$}");
            let keys: Vec<String> = (1..GROUP_BLOCKS).map(key).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let group = Group::of(&key(0), &keys);
            let mut shard = shard_with(&group);
            assert_eq!(group.again(&mut shard, at(0), GROUP_BLOCKS).is_some(), is_kept);
        }
    }

    /// Shows that an answer isn't given again after one of its blocks was removed, replaced, or came to the end of its time, not even for the
    /// blocks before it: their look-up tells.
    #[test]
    fn an_answer_ends_with_the_first_of_its_blocks() {
        let group = Group::new("block");
        let mut shard = shard_with(&group);
        assert!(shard.remove(at(1), &group.stored[3]));
        assert_eq!(group.again(&mut shard, at(1), 3), None);
        group.look_up(&mut shard, at(1));
        assert_eq!(group.again(&mut shard, at(1), 4), None);
        assert_eq!(group.again(&mut shard, at(1), 3).unwrap().len(), 3);

        let request = PutRequest { mode: PutMode::Upsert, ..put_request(&group.stored[1]) };
        shard.put_request(at(2), &request, b"newer").unwrap();
        assert_eq!(group.again(&mut shard, at(2), 3), None);

        shard.remove(at(2), &group.stored[2]);
        let mortal = PutRequest { ttl_seconds: 1, ..put_request(&group.stored[2]) };
        shard.put_request(at(2), &mortal, b"short").unwrap();
        group.look_up(&mut shard, at(2));
        assert_eq!(group.again(&mut shard, at(1_900), 3).unwrap().len(), 3);
        assert_eq!(group.again(&mut shard, at(2_002), 3), None);
    }

    /// Shows that an object of another group that shares the epoch word ends no answer, and that the epoch which is answered is the word's.
    #[test]
    fn another_groups_departure_moves_the_epoch() {
        let group = Group::new("block");
        let mut shard = shard_with(&group);
        let tag = lanner_shared::key::placement_tag(&group.stored[0]).to_vec();
        let stranger = PutRequest { group: &tag, ..put_request(b"stranger") };
        shard.put_request(at(0), &stranger, b"").unwrap();
        let before = group.again(&mut shard, at(0), 5).unwrap();
        assert!(shard.remove(at(0), b"stranger"));
        let after = group.again(&mut shard, at(0), 5).unwrap();
        assert!(before.iter().zip(&after).all(|(before, after)| after.epoch == before.epoch.get() + 1));
        assert_eq!(after[0].epoch.get(), shard.epoch(after[0].epoch_slot.get()));
    }

    /// Shows that whatever lease is promised, each block's slot has it, that it is never less than half of a whole one, that slots are
    /// written only where less is left, and that a block which is asked for in this way alone stays in use for the order of eviction.
    #[test]
    fn a_promised_lease_is_granted() {
        let group = Group::new("block");
        let mut shard = shard_with(&group);
        let first = SlotId(group.again(&mut shard, at(0), 1).unwrap()[0].slot.get());
        for millis in (0..30_000).step_by(333) {
            let before = shard.slots.lease_end(first).0;
            for block in group.again(&mut shard, at(millis), 5).unwrap() {
                let lease = u64::from(block.lease_ms.get());
                assert!((2_500..=5_000).contains(&lease), "{lease} at {millis}");
                let end = shard.slots.lease_end(SlotId(block.slot.get())).0;
                assert!(end >= millis + lease, "{end} at {millis}");
                assert!(end == before || end == millis + 5_000);
            }
        }
        assert!(shard.slots.frequency(first) > 0);
    }

    /// Shows that the table takes no more answers, and no more memory for them, than it says.
    #[test]
    fn answers_are_of_bounded_number_and_size() {
        let mut shard = TestShard::new(4 << 20, ShardConfig::default());
        let bytes = |shard: &TestShard| shard.group_answers.bytes();
        let empty = bytes(&shard);
        assert!(empty < most_answer_bytes(4 << 20));
        for number in 0..200 {
            let group = Group::new(&format!("{number}: {}", "x".repeat(number * 3)));
            group.stored.iter().for_each(|key| {
                shard.put(at(number as u64), key, b"").unwrap();
            });
            group.look_up(&mut shard, at(number as u64));
        }
        let held = |answer: &GroupAnswer| answer.heap_bytes();
        assert_eq!(bytes(&shard), empty + shard.group_answers.table.iter().map(held).sum::<u64>());
        assert!(bytes(&shard) <= most_answer_bytes(4 << 20));
        let kept = shard.group_answers.table.iter().filter(|answer| answer.prefix != NO_GROUP).count();
        assert_eq!(kept, shard.group_answers.table.len());
    }
}
