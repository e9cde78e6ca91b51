//! Who leaves first when room is needed. One file for each policy; adding one is a file and a line in [`Policy`].
//!
//! Called by the shard's `evict`. A policy only orders objects. It's the shard that knows leases and pins: it asks for a
//! candidate, and then either evicts it or has it *set aside*, out of the policy's queues, until its lease ends. So a
//! leased object is looked at once for each lease and not again with each put (scenario 2).
//!
//! What always holds: a published object without a pin is in exactly one queue of its policy, or set aside, or it's a block on which others
//! hang ([`chain`]); each call but `next_candidate`, which is bounded by its `tries`, takes constant time, now and then with a slice of
//! some ten microseconds for what is learned. Absent on purpose: a clock (time is told), and memory for each object (the queues run through
//! the slots).

pub mod adaptive;
mod calendar;
pub mod chain;
mod ghosts;
pub mod lru;
pub mod queue;
pub mod replay;
pub mod s3_fifo;

use std::time::Duration;

use crate::memory::slots::{SlotId, Slots};
use adaptive::{Adaptive, AdaptiveState, Ranking};
pub use chain::ChainPlace;
pub use ghosts::GHOST_BYTES;
use lanner_shared::key::KeyHash;
use lru::Lru;
use s3_fifo::S3Fifo;

/// Time as policies tell it: quarters of a second since the shard started, for 34 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PolicyTime(u32);

impl PolicyTime {
    /// So long after the shard started.
    pub fn after(since_start: Duration) -> Self {
        Self(u32::try_from(since_start.as_millis() / 250).unwrap_or(u32::MAX))
    }

    /// Quarters of a second from `earlier` to this; 0 if that is later.
    fn since(self, earlier: PolicyTime) -> u32 {
        self.0.saturating_sub(earlier.0)
    }

    fn millis(self) -> u64 {
        u64::from(self.0) * 250
    }

    /// The low fifteen bits, which a slot keeps of its object's last use.
    fn low(self) -> u16 {
        self.0 as u16 & LOW_BITS
    }

    /// The last time not after this of which these are the low bits; what is older than two hours and a quarter seems younger.
    fn last(self, low: u16) -> PolicyTime {
        let ago = self.low().wrapping_sub(low) & LOW_BITS;
        PolicyTime(self.0.saturating_sub(u32::from(ago)))
    }
}

/// What [`PolicyTime::low`] gives.
const LOW_BITS: u16 = u16::MAX >> 1;

/// An order of eviction.
pub trait EvictionPolicy {
    /// What time it is; it never goes back. To be called before other calls, at least once in a few milliseconds while there are any.
    fn set_time(&mut self, now: PolicyTime);
    /// An object was published, which counts as a use.
    fn inserted(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash, place: ChainPlace);
    /// An object was read. It may be set aside.
    fn accessed(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash);
    /// An object that isn't set aside leaves for another reason than eviction. It's still published.
    fn removed(&mut self, slots: &mut Slots, slot: SlotId);
    /// An object that isn't set aside leaves as a victim. It's still published.
    fn evicted(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash);
    /// Who should leave next. It stays where it is until one of the other calls is made for it. Each object that gets
    /// another round instead takes one of the `tries`; `None` if they are used up or there is no object.
    fn next_candidate(&mut self, slots: &mut Slots, tries: &mut u32) -> Option<SlotId>;
    /// The candidate can't leave before its lease ends.
    fn set_aside(&mut self, slots: &mut Slots, slot: SlotId);
    /// The lease of an object that was set aside has ended.
    fn take_back(&mut self, slots: &mut Slots, slot: SlotId);
    /// Number of objects in the queues; those set aside and blocks on which others hang are not counted.
    fn queued(&self) -> u32;
}

/// Which policy a shard is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicyKind {
    /// [`adaptive`]
    #[default]
    Adaptive,
    /// [`adaptive`], but always by the same ranking.
    Ranked(Ranking),
    /// [`lru`]
    Lru,
    /// [`s3_fifo`]
    S3Fifo,
}

/// The policy of a shard. An enum rather than a trait object: each call is made for each request.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a shard has one")]
pub enum Policy {
    /// [`adaptive`]
    Adaptive(Adaptive),
    /// [`lru`]
    Lru(Lru),
    /// [`s3_fifo`]
    S3Fifo(S3Fifo),
}

impl Policy {
    /// A policy for a shard that holds up to `capacity_units`.
    pub fn new(kind: PolicyKind, capacity_units: u64) -> Self {
        match kind {
            PolicyKind::Adaptive => Policy::Adaptive(Adaptive::new(capacity_units, None)),
            PolicyKind::Ranked(ranking) => Policy::Adaptive(Adaptive::new(capacity_units, Some(ranking))),
            PolicyKind::Lru => Policy::Lru(Lru::default()),
            PolicyKind::S3Fifo => Policy::S3Fifo(S3Fifo::new(capacity_units)),
        }
    }

    /// Bytes of memory beside the slots.
    pub fn bytes(&self) -> u64 {
        match self {
            Policy::Adaptive(policy) => policy.bytes(),
            Policy::Lru(policy) => policy.bytes(),
            Policy::S3Fifo(policy) => policy.bytes(),
        }
    }

    /// Objects that came back while they were remembered; none under a policy that remembers none.
    pub fn ghost_hits(&self) -> u64 {
        match self {
            Policy::Adaptive(policy) => policy.ghost_hits(),
            Policy::Lru(_) => 0,
            Policy::S3Fifo(policy) => policy.ghost_hits(),
        }
    }

    /// What an adaptive policy does and why; `None` under another.
    pub fn adaptive_state(&self) -> Option<AdaptiveState> {
        match self {
            Policy::Adaptive(policy) => Some(policy.state()),
            _ => None,
        }
    }
}

/// Hands a call to the policy that the shard has.
macro_rules! dispatch {
    ($self:ident, $policy:ident => $call:expr) => {
        match $self {
            Policy::Adaptive($policy) => $call,
            Policy::Lru($policy) => $call,
            Policy::S3Fifo($policy) => $call,
        }
    };
}

impl EvictionPolicy for Policy {
    fn set_time(&mut self, now: PolicyTime) {
        dispatch!(self, policy => policy.set_time(now));
    }

    fn inserted(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash, place: ChainPlace) {
        dispatch!(self, policy => policy.inserted(slots, slot, hash, place));
    }

    fn accessed(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash) {
        dispatch!(self, policy => policy.accessed(slots, slot, hash));
    }

    fn removed(&mut self, slots: &mut Slots, slot: SlotId) {
        dispatch!(self, policy => policy.removed(slots, slot));
    }

    fn evicted(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash) {
        dispatch!(self, policy => policy.evicted(slots, slot, hash));
    }

    fn next_candidate(&mut self, slots: &mut Slots, tries: &mut u32) -> Option<SlotId> {
        dispatch!(self, policy => policy.next_candidate(slots, tries))
    }

    fn set_aside(&mut self, slots: &mut Slots, slot: SlotId) {
        dispatch!(self, policy => policy.set_aside(slots, slot));
    }

    fn take_back(&mut self, slots: &mut Slots, slot: SlotId) {
        dispatch!(self, policy => policy.take_back(slots, slot));
    }

    fn queued(&self) -> u32 {
        dispatch!(self, policy => policy.queued())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::extents::Extent;
    use crate::memory::slots::Life;
    use std::collections::HashMap;

    /// A cache of objects of any size under one policy, as small as one can be.
    struct Cache {
        slots: Slots,
        policy: Policy,
        slot_of: HashMap<u32, SlotId>,
        key_of: HashMap<SlotId, u32>,
        used: u64,
        capacity: u64,
    }

    impl Cache {
        fn new(kind: PolicyKind, capacity: u64) -> Self {
            Self {
                slots: Slots::new(1 << 20),
                policy: Policy::new(kind, capacity),
                slot_of: HashMap::new(),
                key_of: HashMap::new(),
                used: 0,
                capacity,
            }
        }

        fn hash(key: u32) -> KeyHash {
            KeyHash::of(&key.to_le_bytes())
        }

        fn access(&mut self, key: u32) -> bool {
            let Some(slot) = self.slot_of.get(&key).copied() else { return false };
            self.policy.accessed(&mut self.slots, slot, Self::hash(key));
            true
        }

        fn write(&mut self, key: u32, units: u32) {
            while self.used + u64::from(units) > self.capacity {
                self.evict();
            }
            let slot = self.slots.occupy(Extent { start: 0, units }).unwrap();
            self.slots.set_life(slot, Life::Published);
            self.policy.inserted(&mut self.slots, slot, Self::hash(key), ChainPlace::None);
            self.slot_of.insert(key, slot);
            self.key_of.insert(slot, key);
            self.used += u64::from(units);
        }

        fn evict(&mut self) -> u32 {
            let slot = self.policy.next_candidate(&mut self.slots, &mut 1_000_000).unwrap();
            let key = self.key_of.remove(&slot).unwrap();
            self.policy.evicted(&mut self.slots, slot, Self::hash(key));
            self.used -= u64::from(self.slots.units(slot));
            self.slots.vacate(slot);
            self.slot_of.remove(&key);
            key
        }

        /// Reads a key, and writes it if it isn't there; counts hits.
        fn replay(&mut self, trace: &[u32]) -> usize {
            let miss = |key: &&u32| {
                let hit = self.access(**key);
                if !hit {
                    self.write(**key, 1 + **key % 7);
                }
                !hit
            };
            trace.len() - trace.iter().filter(miss).count()
        }
    }

    /// Reads with a skew (a key's number is the fourth power of a uniform one, scaled), mixed with scans over keys that never
    /// come again.
    fn skewed_trace_with_scans(seed: u64) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut scanned = 1_000_000;
        let mut trace = Vec::new();
        for _ in 0..400 {
            for _ in 0..300 {
                trace.push((20_000.0 * random.f64().powi(4)) as u32);
            }
            for _ in 0..200 {
                trace.push(scanned);
                scanned += 1;
            }
        }
        trace
    }

    /// Shows that S3-FIFO is at least as good as LRU where scans wash over a skewed workload, at several capacities, and
    /// that both beat nothing by far: a policy that evicted the wrong end would fail.
    #[test]
    fn s3_fifo_withstands_scans() {
        for capacity in [500, 2_000, 8_000] {
            let trace = skewed_trace_with_scans(capacity);
            let lru = Cache::new(PolicyKind::Lru, capacity).replay(&trace);
            let s3_fifo = Cache::new(PolicyKind::S3Fifo, capacity).replay(&trace);
            println!("capacity {capacity}: lru {lru}, s3-fifo {s3_fifo} hits of {}", trace.len());
            assert!(s3_fifo >= lru, "capacity {capacity}: s3-fifo {s3_fifo} hits, lru {lru}");
            assert!(lru * 25 > trace.len());
        }
    }

    /// A write-heavy store under LRU evicted the newest object, because a written one had no access time (scenario 4).
    /// Shows that a write counts as a use: A, B, C written, A read, then D's until full; B and C go, then A, then D's.
    #[test]
    fn lru_counts_a_write_as_a_use() {
        let mut cache = Cache::new(PolicyKind::Lru, 6);
        for key in [1, 2, 3] {
            cache.write(key, 1);
        }
        cache.access(1);
        for key in [4, 5, 6] {
            cache.write(key, 1);
        }
        let order: Vec<u32> = (0..6).map(|_| cache.evict()).collect();
        assert_eq!(order, [2, 3, 1, 4, 5, 6]);
    }

    /// Shows S3-FIFO's rules one by one: once used leaves small as a victim, twice used moves to main, a ghost comes
    /// back into main, and an old ghost doesn't.
    #[test]
    fn s3_fifo_by_the_book() {
        // Objects of a tenth of a capacity that is large enough for a table of 156 ghosts.
        let mut cache = Cache::new(PolicyKind::S3Fifo, 10_000);
        for key in 0..10 {
            cache.write(key, 1_000);
        }
        cache.access(0);
        cache.access(1);
        cache.access(1);
        assert_eq!(cache.evict(), 0, "used once: still a victim");
        assert_eq!(cache.evict(), 2, "1 was used twice and is in main");
        assert!(cache.slots.in_second_queue(cache.slot_of[&1]));
        cache.write(2, 1_000);
        assert!(cache.slots.in_second_queue(cache.slot_of[&2]), "its ghost was known");
        for key in 20..30 {
            cache.write(key, 1_000);
        }
        cache.write(0, 1_000);
        assert!(
            !cache.slots.in_second_queue(cache.slot_of[&0]),
            "its ghost was forgotten: 10,000 units left since"
        );
    }

    /// Shows that an object set aside is no candidate until it is taken back, under both policies, that the rest is
    /// found meanwhile, and that with everything set aside there is no candidate at all.
    #[test]
    fn what_is_set_aside_is_not_looked_at_again() {
        for kind in [PolicyKind::Lru, PolicyKind::S3Fifo, PolicyKind::Adaptive] {
            let mut cache = Cache::new(kind, 3);
            for key in [1, 2, 3] {
                cache.write(key, 1);
            }
            let aside = cache.policy.next_candidate(&mut cache.slots, &mut 10).unwrap();
            cache.policy.set_aside(&mut cache.slots, aside);
            assert_eq!(cache.evict(), 2);
            assert_eq!(cache.evict(), 3);
            assert_eq!(cache.policy.next_candidate(&mut cache.slots, &mut 10), None);
            cache.policy.take_back(&mut cache.slots, aside);
            assert_eq!(cache.evict(), 1);
            assert_eq!(cache.policy.queued(), 0);
        }
    }

    /// Shows that an LRU object used while it was set aside comes back as used, and that tries bound a call.
    #[test]
    fn a_use_while_set_aside_counts() {
        let mut cache = Cache::new(PolicyKind::Lru, 3);
        for key in [1, 2] {
            cache.write(key, 1);
        }
        let aside = cache.slot_of[&1];
        cache.policy.set_aside(&mut cache.slots, aside);
        assert!(cache.access(1));
        cache.policy.take_back(&mut cache.slots, aside);
        assert_eq!(cache.evict(), 2);

        let mut cache = Cache::new(PolicyKind::S3Fifo, 10);
        for key in 0..10 {
            cache.write(key, 1);
            cache.access(key);
            cache.access(key);
        }
        let mut tries = 4;
        assert_eq!(cache.policy.next_candidate(&mut cache.slots, &mut tries), None);
        assert_eq!(tries, 0);
    }
}
