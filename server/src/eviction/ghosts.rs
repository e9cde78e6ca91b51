//! The hashes of objects that left not long ago, each with how much it was used.
//!
//! Used by S3-FIFO and by the adaptive policy. A table of fingerprints in sets of four, each with the time of its leaving, where
//! time is the number of units evicted so far. So it's weighted by bytes and takes a fixed share of memory, whatever the
//! size of objects. Where objects are so small that a set overflows, its oldest ghost is forgotten early.

use crate::memory::extents::UNIT_BYTES;
use lanner_shared::key::KeyHash;

/// Bytes that a ghost takes.
pub const GHOST_BYTES: u64 = size_of::<Ghost>() as u64;

const GHOSTS_IN_SET: usize = 4;

/// The low bits of a ghost's mark hold its class of uses.
const CLASS_BITS: u32 = 3;

#[derive(Debug, Clone, Copy, Default)]
struct Ghost {
    /// 29 bits of the hash and the class; 0 stands for no ghost, as no fingerprint is 0.
    mark: u32,
    /// [`Ghosts::evicted_units`] when it left, wrapping.
    left_at: u32,
}

type GhostSet = [Ghost; GHOSTS_IN_SET];

/// What is known of an object that was here before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Remembered {
    /// Its class of uses when it left.
    pub class: u8,
    /// Units evicted since.
    pub units_ago: u32,
}

/// The ghosts of a shard.
#[derive(Debug)]
pub(super) struct Ghosts {
    sets: Box<[GhostSet]>,
    /// Units evicted so far, wrapping. A wrong answer after exactly 256 GiB of evictions costs one misplaced object.
    evicted_units: u32,
}

impl Ghosts {
    /// None yet, for a shard that holds up to `capacity_units`, and room for one in so many of its bytes.
    pub fn new(capacity_units: u64, bytes_per_ghost: u64) -> Self {
        let sets = (capacity_units * UNIT_BYTES / bytes_per_ghost).div_ceil(GHOSTS_IN_SET as u64).max(1);
        Self { sets: vec![GhostSet::default(); sets as usize].into_boxed_slice(), evicted_units: 0 }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        (self.sets.len() * size_of::<GhostSet>()) as u64
    }

    /// Counts an eviction, remembered or not.
    pub fn count_evicted(&mut self, units: u32) {
        self.evicted_units = self.evicted_units.wrapping_add(units);
    }

    /// Remembers an object that leaves.
    pub fn add(&mut self, hash: KeyHash, class: u8) {
        let now = self.evicted_units;
        let mark = fingerprint(hash) << CLASS_BITS | u32::from(class) & ((1 << CLASS_BITS) - 1);
        let age = |ghost: &Ghost| if ghost.mark == 0 { u32::MAX } else { now.wrapping_sub(ghost.left_at) };
        if let Some(oldest) = self.set_of(hash).iter_mut().max_by_key(|ghost| age(ghost)) {
            *oldest = Ghost { mark, left_at: now };
        }
    }

    /// What is known of an object that comes back; it's no ghost any more after this.
    pub fn take(&mut self, hash: KeyHash) -> Option<Remembered> {
        let (now, fingerprint) = (self.evicted_units, fingerprint(hash));
        let ghost = self.set_of(hash).iter_mut().find(|ghost| ghost.mark >> CLASS_BITS == fingerprint)?;
        let Ghost { mark, left_at } = std::mem::take(ghost);
        let class = (mark & ((1 << CLASS_BITS) - 1)) as u8;
        Some(Remembered { class, units_ago: now.wrapping_sub(left_at) })
    }

    fn set_of(&mut self, hash: KeyHash) -> &mut GhostSet {
        let number = (u128::from(hash.low64) * self.sets.len() as u128) >> 64;
        &mut self.sets[number as usize]
    }
}

/// Bits of the hash that `set_of` hardly uses, never 0.
fn fingerprint(hash: KeyHash) -> u32 {
    ((hash.low64 as u32) >> CLASS_BITS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a ghost is known once with its class and age, that the oldest of a full set makes room, and that others
    /// are not known.
    #[test]
    fn ghosts_are_remembered_once() {
        let hash = |number: u64| KeyHash { high64: 0, low64: number << CLASS_BITS };
        let mut ghosts = Ghosts::new(1, 4096);
        for number in 1..=5 {
            ghosts.count_evicted(10);
            ghosts.add(hash(number), number as u8);
        }
        assert_eq!(ghosts.take(hash(1)), None, "a set has four");
        assert_eq!(ghosts.take(hash(3)), Some(Remembered { class: 3, units_ago: 20 }));
        assert_eq!(ghosts.take(hash(3)), None);
        assert_eq!(ghosts.take(hash(9)), None);
        ghosts.add(hash(6), 7);
        assert_eq!(ghosts.take(hash(2)), Some(Remembered { class: 2, units_ago: 30 }), "there was room");
    }
}
