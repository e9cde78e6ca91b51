//! The last answer about each of the lists of keys that ranged reads ask for again and again: an Engram store names all of its tables anew
//! with each token.
//!
//! A list is kept in parts whose objects share an epoch word, as the tables of a layer do, each as if it were a group of a chain: when its answer is
//! right, what it costs, and what room it takes says [`super::group_answers`].

use super::Shard;
use super::group_answers::LIST_TAG;
use lanner_shared::chain::{GROUP_BLOCKS, PREFIX_BYTES};
use lanner_shared::key::KeyHash;
use lanner_shared::time::Instant;
use lanner_shared::wire::{Descriptor, Opcode, keys};
use smallvec::SmallVec;

/// The keys of a ranged read that haven't been found yet, as they came.
#[derive(Clone, Copy, Debug)]
pub struct ListQuestion<'a> {
    /// The hash of the first of them.
    pub first: KeyHash,
    /// The keys with their lengths, one behind the other.
    pub keys: &'a [u8],
    /// Number of keys.
    pub count: usize,
}

/// The objects of a ranged read's keys; on the stack for as many as a few layers of tables have.
pub type FoundList = SmallVec<[Descriptor; 64]>;

impl Shard {
    /// Appends the objects of the first keys of a list, if all of these were asked for in this order lately and are what they were, and counts a hit
    /// for each. Returns how many bytes the keys have. `None` if the first key is to be looked up.
    pub fn answer_list_again(
        &mut self,
        now: Instant,
        question: &ListQuestion<'_>,
        found: &mut FoundList,
    ) -> Option<usize> {
        let prefix = list_prefix(question.first);
        let (place, count, key_bytes) = self.group_answers.find(&prefix, question.keys, question.count)?;
        // Nobody is promised it: the bytes are copied, or the objects pinned, before anything else happens here.
        let _ = self.lease_again(now, place)?;
        found.extend_from_slice(&self.group_answers.table[place].blocks[..count]);
        self.counters.count_look_ups(Opcode::ReadRanges, count as u64, 0);
        self.counters.lists_answered_again += 1;
        Some(key_bytes)
    }

    /// Keeps where the objects of a list are, whose descriptors were made just before. `came` are the keys with their lengths.
    pub fn keep_list_answer(&mut self, now: Instant, keys: &[&[u8]], came: &[u8], found: &[Descriptor]) {
        let mut came = came;
        let mut at = 0;
        for part in found.chunk_by(|one, next| one.epoch_slot == next.epoch_slot) {
            for part in part.chunks(GROUP_BLOCKS) {
                let mut end = 0;
                let ends: SmallVec<[u16; GROUP_BLOCKS]> = keys[at..at + part.len()]
                    .iter()
                    .map(|key| {
                        end += keys::encoded_bytes(key);
                        end.min(usize::from(u16::MAX)) as u16
                    })
                    .collect();
                let prefix = list_prefix(KeyHash::of(keys[at]));
                self.keep_answer(now, &prefix, came, &ends, part);
                came = came.get(end..).unwrap_or_default();
                at += part.len();
            }
        }
    }
}

/// What stands for the prefix of a list that begins with such a key.
fn list_prefix(first: KeyHash) -> [u8; PREFIX_BYTES] {
    let mut prefix = [LIST_TAG; PREFIX_BYTES];
    prefix[1..9].copy_from_slice(&first.low64.to_le_bytes());
    prefix[9..17].copy_from_slice(&first.high64.to_le_bytes());
    prefix
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::group_answers::tests::Group;
    use super::super::test_support::{TestShard, at, put_request};
    use super::*;
    use lanner_shared::wire::put::{PutMode, PutRequest};

    /// Tables of two layers as a ranged read names them.
    struct List {
        tables: Vec<(Vec<u8>, &'static [u8])>,
    }

    impl List {
        fn new(shard: &mut TestShard) -> List {
            let table = |number: u32| {
                let layer: &[u8] = if number < 40 { b"layer 1" } else { b"layer 2" };
                (number.to_le_bytes().to_vec(), layer)
            };
            let list = List { tables: (0..60).map(table).collect() };
            for (key, group) in &list.tables {
                let request = PutRequest { group, ..put_request(key) };
                shard.put_request(at(0), &request, key).unwrap();
            }
            list
        }

        fn came(&self) -> Vec<u8> {
            let mut came = Vec::new();
            self.tables.iter().for_each(|(key, _)| keys::append(&mut came, key));
            came
        }

        fn look_up(&self, shard: &mut TestShard, now: Instant) {
            let query =
                |(key, _): &(Vec<u8>, _)| shard.query(now, key, Opcode::ReadRanges).unwrap().descriptor();
            let found: Vec<Descriptor> = self.tables.iter().map(query).collect();
            let keys: Vec<&[u8]> = self.tables.iter().map(|(key, _)| key.as_slice()).collect();
            shard.keep_list_answer(now, &keys, &self.came(), &found);
        }

        /// How many keys from the first on are answered again, each of them as a look-up does.
        fn again(&self, shard: &mut TestShard, now: Instant) -> usize {
            let (came, mut from, mut found) = (self.came(), 0, FoundList::new());
            while let Some((first, _)) = self.tables.get(found.len()) {
                let count = self.tables.len() - found.len();
                let question = ListQuestion { first: KeyHash::of(first), keys: &came[from..], count };
                let Some(bytes) = shard.answer_list_again(now, &question, &mut found) else { break };
                from += bytes;
            }
            for ((key, _), found) in self.tables.iter().zip(&found) {
                let known = shard.query(now, key, Opcode::Query).unwrap();
                assert_eq!((found.slot.get(), found.generation.get()), (known.slot.0, known.generation.0));
                assert_eq!(found.value_offset(), known.value_offset);
                assert_eq!(found.value_bytes.get(), known.value_bytes);
            }
            found.len()
        }
    }

    /// Shows that a list is answered again in parts that share an epoch word, of 32 keys at most, and that a part ends when one of its
    /// objects was removed or replaced, and no other does.
    #[test]
    fn a_list_has_the_same_answer_part_by_part() {
        let mut shard = TestShard::new(16 << 20, ShardConfig::default());
        let list = List::new(&mut shard);
        assert_eq!(list.again(&mut shard, at(0)), 0);
        list.look_up(&mut shard, at(0));
        let hits = shard.stats(at(0)).hits(Opcode::ReadRanges);
        assert_eq!(list.again(&mut shard, at(20_000)), 60);
        let stats = shard.stats(at(0));
        assert_eq!((stats.hits(Opcode::ReadRanges), stats.lists_answered_again), (hits + 60, 3));

        assert!(shard.remove(at(20_001), &list.tables[50].0));
        assert_eq!(list.again(&mut shard, at(20_001)), 40);
        let (key, group) = &list.tables[50];
        shard.put_request(at(20_001), &PutRequest { group, ..put_request(key) }, b"anew").unwrap();
        list.look_up(&mut shard, at(20_001));
        assert_eq!(list.again(&mut shard, at(20_001)), 60);

        let (key, group) = &list.tables[33];
        let upsert = PutRequest { group, mode: PutMode::Upsert, ..put_request(key) };
        shard.put_request(at(20_002), &upsert, b"newer and longer").unwrap();
        // Both parts of the layer share the word that has moved, and the first has all of its objects still.
        assert_eq!(list.again(&mut shard, at(20_002)), 32);
    }

    /// Shows that lists, however many, take no place from a group whose lease lasts, and that a group takes one from a list.
    #[test]
    fn lists_leave_chains_their_places() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        let list = List::new(&mut shard);
        list.look_up(&mut shard, at(0));
        // As many groups as there are places, and then some.
        let groups: Vec<Group> = (0..8).map(|number| Group::new(&format!("{number}: "))).collect();
        for group in &groups {
            group.stored.iter().for_each(|key| {
                shard.put(at(1), key, key).unwrap();
            });
            group.look_up(&mut shard, at(1));
        }
        assert_eq!(list.again(&mut shard, at(2)), 0);
        let known = |shard: &mut TestShard, now| {
            groups.iter().filter(|group| group.again(shard, now, 5).is_some()).count()
        };
        let before = known(&mut shard, at(2));
        assert!(before > 0);
        list.look_up(&mut shard, at(2));
        assert_eq!((list.again(&mut shard, at(2)), known(&mut shard, at(2))), (0, before));
        // Nobody has asked for the groups since.
        list.look_up(&mut shard, at(60_000));
        assert!(list.again(&mut shard, at(60_000)) > 0);
    }
}
