//! From a key's hash to its object's slot.
//!
//! Called by the shard. 4,096 hash tables, chosen by the top 12 bits of the hash's low half, hold entries of 8 bytes: the
//! slot and 32 bits of the hash. A table that grows moves its entries by those 32 bits alone, without looking at a
//! slot or a key.
//!
//! The pause of a growth is bounded by the partition: with ten million objects one holds 2,441 entries in 4,096 buckets,
//! and moving them takes some 20 µs; with a billion, 244,000 entries take about 2 ms, once in each doubling.
//! A bucket costs 9 bytes (entry and control byte); tables are between 7/16 and 7/8 full, so an object costs 10.3 to
//! 20.6 bytes, 15.1 at ten million.
//!
//! What always holds: a slot is in the index at most once. Absent on purpose: the keys; equal fingerprints are told apart
//! by the caller's comparison with the key in the extent.

use super::slots::SlotId;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;
use lanner_shared::key::KeyHash;

const PARTITION_BITS: u32 = lanner_shared::filter::PART_BITS;

/// The most that an object costs in a table that has just grown: 9 bytes a bucket at a load of 7/16, rounded up.
pub const MAX_BYTES_PER_OBJECT: usize = 21;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Entry {
    slot: u32,
    /// The low 32 bits of the hash's low half; the partition has taken from the other end.
    fingerprint: u32,
}

const _: () = assert!(size_of::<Entry>() == 8);

impl Entry {
    /// What the table hashes by. A multiplication by an odd number maps 32 bits one to one and spreads them upwards,
    /// where hashbrown takes its control byte from, while the low bits choose the bucket.
    fn table_hash(fingerprint: u32) -> u64 {
        u64::from(fingerprint).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// The index of a shard.
#[derive(Debug)]
pub struct Index {
    partitions: Box<[HashTable<Entry>]>,
    len: u64,
}

impl Default for Index {
    fn default() -> Self {
        Self::new()
    }
}

impl Index {
    /// An empty index: 128 KiB.
    pub fn new() -> Self {
        Self { partitions: (0..1 << PARTITION_BITS).map(|_| HashTable::new()).collect(), len: 0 }
    }

    /// Number of keys.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slot of the key with this hash for which `is_match` says yes. It is asked for few others: those of the same
    /// partition and the same 32 bits.
    #[inline]
    pub fn get(&self, hash: KeyHash, mut is_match: impl FnMut(SlotId) -> bool) -> Option<SlotId> {
        let fingerprint = fingerprint(hash);
        self.partitions
            .get(partition(hash))?
            .find(Entry::table_hash(fingerprint), |entry| {
                entry.fingerprint == fingerprint && is_match(SlotId(entry.slot))
            })
            .map(|entry| SlotId(entry.slot))
    }

    /// Makes `slot` the answer for its key. Returns the slot that was the answer before, if there was one.
    pub fn set(
        &mut self,
        hash: KeyHash,
        slot: SlotId,
        mut is_match: impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        let fingerprint = fingerprint(hash);
        let table = self.partitions.get_mut(partition(hash))?;
        let found = table.entry(
            Entry::table_hash(fingerprint),
            |entry| entry.fingerprint == fingerprint && is_match(SlotId(entry.slot)),
            |entry| Entry::table_hash(entry.fingerprint),
        );
        match found {
            TableEntry::Occupied(mut occupied) => {
                Some(SlotId(std::mem::replace(&mut occupied.get_mut().slot, slot.0)))
            }
            TableEntry::Vacant(vacant) => {
                vacant.insert(Entry { slot: slot.0, fingerprint });
                self.len += 1;
                None
            }
        }
    }

    /// Takes this slot out, if it is in the index under this hash. Needs no look at the key.
    pub fn remove(&mut self, hash: KeyHash, slot: SlotId) -> bool {
        let fingerprint = fingerprint(hash);
        let Some(table) = self.partitions.get_mut(partition(hash)) else { return false };
        match table.find_entry(Entry::table_hash(fingerprint), |entry| entry.slot == slot.0) {
            Ok(occupied) => {
                occupied.remove();
                self.len -= 1;
                true
            }
            Err(_) => false,
        }
    }

    /// The low 32 bits of the hash of each key whose hash begins, in its low half, with the 12 bits of `part`.
    pub fn fingerprints(&self, part: u16) -> impl Iterator<Item = u32> + '_ {
        let table = self.partitions.get(usize::from(part));
        table.into_iter().flatten().map(|entry| entry.fingerprint)
    }

    /// Bytes of memory that the index takes.
    pub fn bytes(&self) -> u64 {
        let tables: usize = self.partitions.iter().map(HashTable::allocation_size).sum();
        (tables + self.partitions.len() * size_of::<HashTable<Entry>>()) as u64
    }
}

fn partition(hash: KeyHash) -> usize {
    (hash.low64 >> (64 - PARTITION_BITS)) as usize
}

fn fingerprint(hash: KeyHash) -> u32 {
    hash.low64 as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// A hash of which only a few values exist, so that partitions and fingerprints collide all the time.
    fn crowded_hash(key: u16) -> KeyHash {
        let partition = u64::from(key % 3);
        KeyHash { high64: 0, low64: partition << 52 | u64::from(key % 5) }
    }

    proptest! {
        /// Shows, against a map, that get, set and remove tell keys apart though nearly all have the same fingerprint
        /// and partition, and that the count is exact.
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((0u16..60, 0u8..3), 1..400)) {
            let mut index = Index::new();
            let mut model = HashMap::<u16, u32>::new();
            let mut keys_of_slots: Vec<u16> = Vec::new();
            for (key, operation) in steps {
                let hash = crowded_hash(key);
                let keys = &keys_of_slots.clone();
                let is_match = |slot: SlotId| keys[slot.0 as usize] == key;
                match operation {
                    0 | 1 => {
                        let slot = keys_of_slots.len() as u32;
                        let before = index.set(hash, SlotId(slot), is_match);
                        keys_of_slots.push(key);
                        prop_assert_eq!(before.map(|slot| slot.0), model.insert(key, slot));
                    }
                    _ => match model.remove(&key) {
                        Some(slot) => prop_assert!(index.remove(hash, SlotId(slot))),
                        None => prop_assert_eq!(index.get(hash, is_match), None),
                    },
                }
                prop_assert_eq!(index.len(), model.len() as u64);
            }
            for (key, slot) in model {
                let found = index.get(crowded_hash(key), |slot| keys_of_slots[slot.0 as usize] == key);
                prop_assert_eq!(found, Some(SlotId(slot)));
            }
        }
    }

    /// Shows that a slot that isn't there isn't removed in another's stead, and that an empty index finds nothing.
    #[test]
    fn removes_only_the_very_slot() {
        let mut index = Index::new();
        let hash = KeyHash::of(b"key");
        assert_eq!(index.get(hash, |_| true), None);
        index.set(hash, SlotId(1), |_| false);
        assert!(!index.remove(hash, SlotId(2)));
        assert!(index.remove(hash, SlotId(1)));
        assert!(index.is_empty());
    }

    /// Shows the cost of an object at a million keys with real hashes, and that each key is asked for once or hardly
    /// more: fingerprints are spread.
    #[test]
    fn costs_what_the_page_says() {
        let mut index = Index::new();
        let count = 1_000_000;
        let hash = |number: u32| KeyHash::of(&number.to_le_bytes());
        (0..count).for_each(|number| {
            index.set(hash(number), SlotId(number), |slot| slot.0 == number);
        });
        assert_eq!(index.len(), u64::from(count));
        let each = index.bytes() as f64 / f64::from(count);
        assert!(each <= MAX_BYTES_PER_OBJECT as f64, "{each} bytes an object");
        let mut asked = 0;
        for number in 0..count {
            let found = index.get(hash(number), |slot| {
                asked += 1;
                slot.0 == number
            });
            assert_eq!(found, Some(SlotId(number)));
        }
        assert!(asked < count + 10, "{asked} comparisons for {count} keys");
    }
}
