//! A cache that consists of a policy and slots and holds no bytes: what a trace is replayed on.
//!
//! Called by `lanner bench eviction` and by tests. It does with the policy what a shard does, without leases and pins, so what it
//! shows of an order of eviction holds for a shard.

use std::collections::HashMap;
use std::time::Duration;

use super::adaptive::AdaptiveState;
use super::{ChainPlace, EvictionPolicy, Policy, PolicyTime};
use crate::memory::extents::Extent;
use crate::memory::slots::{Life, SlotId, Slots};
use lanner_shared::key::KeyHash;

/// Candidates looked at for a victim: as good as no limit.
const TRIES: u32 = 1 << 30;

/// Keys under a policy.
#[derive(Debug)]
pub struct ReplayCache {
    slots: Slots,
    policy: Policy,
    slot_of: HashMap<KeyHash, SlotId>,
    /// By slot.
    hashes: Vec<KeyHash>,
    used_units: u64,
    capacity_units: u64,
    evicted: u64,
}

impl ReplayCache {
    /// An empty cache for `capacity_units`.
    pub fn new(policy: Policy, capacity_units: u64) -> Self {
        Self {
            slots: Slots::new(u32::MAX),
            policy,
            slot_of: HashMap::new(),
            hashes: Vec::new(),
            used_units: 0,
            capacity_units,
            evicted: 0,
        }
    }

    /// Tells the time since the start, which never goes back.
    pub fn set_time(&mut self, since_start: Duration) {
        self.policy.set_time(PolicyTime::after(since_start));
    }

    /// Whether a key is here. No use.
    pub fn contains(&self, hash: KeyHash) -> bool {
        self.slot_of.contains_key(&hash)
    }

    /// Notes a use of a key; `false` if it isn't here.
    pub fn access(&mut self, hash: KeyHash) -> bool {
        let Some(slot) = self.slot_of.get(&hash).copied() else { return false };
        self.policy.accessed(&mut self.slots, slot, hash);
        true
    }

    /// Adds a key that isn't here, as an object that is no block of a chain. Evicts until there's room.
    pub fn insert(&mut self, hash: KeyHash, units: u32) {
        self.insert_at(hash, units, |_| ChainPlace::None);
    }

    /// Adds a block that isn't here behind its parent in its group, if it has one and that is here. Evicts until there's room.
    pub fn insert_block(&mut self, hash: KeyHash, units: u32, parent: Option<KeyHash>, depth: u32) {
        self.insert_at(hash, units, |cache| {
            let parent = parent.and_then(|parent| cache.slot_of.get(&parent).copied());
            ChainPlace::Block { parent, depth }
        });
    }

    /// Takes a key out for another reason than eviction; `false` if it isn't here.
    pub fn remove(&mut self, hash: KeyHash) -> bool {
        let Some(slot) = self.slot_of.remove(&hash) else { return false };
        self.policy.removed(&mut self.slots, slot);
        self.vacate(slot);
        true
    }

    /// Evicts one object and returns its hash; `None` if there is none.
    pub fn evict(&mut self) -> Option<KeyHash> {
        let slot = self.policy.next_candidate(&mut self.slots, &mut TRIES.clone())?;
        let hash = self.hashes.get(slot.0 as usize).copied()?;
        self.policy.evicted(&mut self.slots, slot, hash);
        self.slot_of.remove(&hash);
        self.vacate(slot);
        self.evicted += 1;
        Some(hash)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.slot_of.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.slot_of.is_empty()
    }

    /// Objects evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// What an adaptive policy does and why.
    pub fn adaptive_state(&self) -> Option<AdaptiveState> {
        self.policy.adaptive_state()
    }

    fn insert_at(&mut self, hash: KeyHash, units: u32, place: impl FnOnce(&Self) -> ChainPlace) {
        while self.used_units + u64::from(units) > self.capacity_units && self.evict().is_some() {}
        let Some(slot) = self.slots.occupy(Extent { start: 0, units }) else { return };
        self.slots.set_life(slot, Life::Published);
        let place = place(self);
        self.policy.inserted(&mut self.slots, slot, hash, place);
        self.slot_of.insert(hash, slot);
        let number = slot.0 as usize;
        if self.hashes.len() <= number {
            self.hashes.resize(number + 1, hash);
        }
        if let Some(place) = self.hashes.get_mut(number) {
            *place = hash;
        }
        self.used_units += u64::from(units);
    }

    fn vacate(&mut self, slot: SlotId) {
        self.used_units -= u64::from(self.slots.units(slot));
        self.slots.vacate(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::PolicyKind;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const KINDS: [PolicyKind; 3] = [PolicyKind::Adaptive, PolicyKind::S3Fifo, PolicyKind::Lru];

    fn cache(kind: PolicyKind, capacity: u64) -> ReplayCache {
        ReplayCache::new(Policy::new(kind, capacity), capacity)
    }

    fn hash(key: u32) -> KeyHash {
        KeyHash::of(&key.to_le_bytes())
    }

    /// Room for three, a chain of three put at one moment, then an unrelated object (scenario 5): any of the three was dropped at random.
    /// Shows that the deepest goes, under each policy, and that what survives of a chain is its beginning.
    #[test]
    fn the_deepest_block_goes_first() {
        for kind in KINDS {
            let mut cache = cache(kind, 3);
            for block in 0..3 {
                cache.insert_block(hash(block), 1, block.checked_sub(1).map(hash), block);
            }
            cache.insert(hash(10), 1);
            let present = [0, 1, 2, 10].map(|key| cache.contains(hash(key)));
            assert_eq!(present, [true, true, false, true], "{kind:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Shows, on random trees of blocks with uses, removals and evictions at random times, that no policy evicts a block
        /// before those that hang on it, that it evicts only what is there, and that everything can be evicted in the end.
        #[test]
        fn leaves_go_first(
            kind in 0usize..3,
            steps in prop::collection::vec((0u8..10, 0u32..60, 0u64..3_000), 1..400),
        ) {
            // Block n hangs on n / 2, if that is here when it comes.
            let mut cache = cache(KINDS[kind], 30);
            let mut parents: HashMap<u32, Option<u32>> = HashMap::new();
            let mut millis = 0;
            let number_of = |hash_found: KeyHash| (0..60).find(|number| hash(*number) == hash_found).unwrap();
            for (action, number, pause) in steps {
                millis += pause;
                cache.set_time(Duration::from_millis(millis));
                if action == 0 {
                    if cache.remove(hash(number)) {
                        parents.remove(&number);
                        parents.values_mut().for_each(|parent| *parent = parent.filter(|parent| *parent != number));
                    }
                } else if !cache.access(hash(number)) {
                    while cache.used_units >= 30 {
                        let gone = number_of(cache.evict().unwrap());
                        prop_assert!(parents.remove(&gone).is_some(), "{} wasn't there", gone);
                        prop_assert!(!parents.values().any(|parent| *parent == Some(gone)), "{} had children", gone);
                    }
                    let parent = Some(number / 2).filter(|parent| *parent != number && parents.contains_key(parent));
                    cache.insert_block(hash(number), 1, parent.map(hash), number.ilog2_or_zero());
                    parents.insert(number, parent);
                }
                prop_assert_eq!(cache.len(), parents.len());
            }
            while let Some(gone) = cache.evict() {
                let gone = number_of(gone);
                prop_assert!(parents.remove(&gone).is_some());
                prop_assert!(!parents.values().any(|parent| *parent == Some(gone)));
            }
            prop_assert!(parents.is_empty());
        }
    }

    trait Log2 {
        fn ilog2_or_zero(self) -> u32;
    }

    impl Log2 for u32 {
        fn ilog2_or_zero(self) -> u32 {
            self.checked_ilog2().unwrap_or(0)
        }
    }

    /// Shows that two chains used at the same moment give up their deeper groups first, and that under LRU time comes before
    /// depth.
    #[test]
    fn of_a_tie_the_deeper_group_goes_first() {
        let mut cache = cache(PolicyKind::Lru, 8);
        let chain = |cache: &mut ReplayCache, first: u32| {
            for (group, depth) in [(0, 0), (1, 32)] {
                let start = first + 2 * group;
                cache.insert_block(hash(start), 1, None, depth);
                cache.insert_block(hash(start + 1), 1, Some(hash(start)), depth + 1);
            }
        };
        chain(&mut cache, 0);
        cache.set_time(Duration::from_secs(10));
        chain(&mut cache, 10);
        let order: Vec<_> = std::iter::from_fn(|| cache.evict()).collect();
        let expected = [3, 2, 1, 0, 13, 12, 11, 10].map(hash);
        assert_eq!(order, expected);
        assert_eq!(order.iter().collect::<HashSet<_>>().len(), 8);
    }
}
