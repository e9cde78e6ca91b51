//! S3-FIFO, weighted by bytes. Source: Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache
//! eviction", SOSP 2023.
//!
//! New objects enter the *small* queue, which has a tenth of the bytes; those used more than once there move to the
//! *main* queue, the others leave and are remembered by a *ghost*. An object whose ghost is still known enters main at
//! once. Main gives each object as many further rounds as it was used, at most three. An access writes two bits.
//!
//! The ghosts are a table of fingerprints in sets of four, each with the time of its eviction, where time is the number
//! of units evicted so far: a ghost is known as long as fewer units were evicted after it than main may hold. So the
//! ghost queue is weighted by bytes, too, and takes a fixed share of memory, whatever the size of objects. Where objects are
//! so small that a set overflows, its oldest ghost is forgotten early.

use super::EvictionPolicy;
use super::queue::Queue;
use crate::memory::slots::{MAX_FREQUENCY, SlotId, Slots};
use lanner_shared::key::KeyHash;

/// The small queue's share of the bytes: 1/10.
const SMALL_SHARE: u64 = 10;

/// Uses in the small queue above which an object moves to main.
const SMALL_USES: u8 = 1;

/// A ghost takes 8 bytes, so the table takes 1/512 of the segment.
const BYTES_PER_GHOST: u64 = 4096;

const GHOSTS_IN_SET: usize = 4;

/// The policy's state.
#[derive(Debug)]
pub struct S3Fifo {
    small: Queue,
    main: Queue,
    ghosts: Ghosts,
}

impl S3Fifo {
    /// A policy for a shard that holds up to `capacity_units`.
    pub fn new(capacity_units: u64) -> Self {
        Self { small: Queue::new(), main: Queue::new(), ghosts: Ghosts::new(capacity_units) }
    }

    /// Bytes of memory for the ghosts.
    pub fn bytes(&self) -> u64 {
        (self.ghosts.sets.len() * size_of::<GhostSet>()) as u64
    }

    fn queue_of(&mut self, slots: &Slots, slot: SlotId) -> &mut Queue {
        if slots.in_second_queue(slot) { &mut self.main } else { &mut self.small }
    }

    fn is_small_over_its_share(&self) -> bool {
        self.small.units() * SMALL_SHARE >= self.small.units() + self.main.units()
    }

    fn move_to_main(&mut self, slots: &mut Slots, slot: SlotId) {
        self.small.remove(slots, slot);
        slots.set_frequency(slot, 0);
        slots.set_in_second_queue(slot, true);
        self.main.push_front(slots, slot);
    }
}

impl EvictionPolicy for S3Fifo {
    fn inserted(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash) {
        let second = self.ghosts.take(hash);
        slots.set_in_second_queue(slot, second);
        self.queue_of(slots, slot).push_front(slots, slot);
    }

    fn accessed(&mut self, slots: &mut Slots, slot: SlotId) {
        let frequency = slots.frequency(slot);
        if frequency < MAX_FREQUENCY {
            slots.set_frequency(slot, frequency + 1);
        }
    }

    fn removed(&mut self, slots: &mut Slots, slot: SlotId) {
        self.queue_of(slots, slot).remove(slots, slot);
    }

    fn evicted(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash) {
        let units = slots.units(slot);
        // What main gives up had its rounds; the paper remembers those that never got there.
        let remembered = !slots.in_second_queue(slot);
        self.queue_of(slots, slot).remove(slots, slot);
        self.ghosts.count_evicted(units);
        if remembered {
            self.ghosts.add(hash);
        }
    }

    fn next_candidate(&mut self, slots: &mut Slots, tries: &mut u32) -> Option<SlotId> {
        while *tries > 0 {
            let from_small =
                self.main.is_empty() || (!self.small.is_empty() && self.is_small_over_its_share());
            let slot = if from_small { self.small.back()? } else { self.main.back()? };
            let frequency = slots.frequency(slot);
            if from_small && frequency > SMALL_USES {
                self.move_to_main(slots, slot);
            } else if !from_small && frequency > 0 {
                self.main.remove(slots, slot);
                slots.set_frequency(slot, frequency - 1);
                self.main.push_front(slots, slot);
            } else {
                return Some(slot);
            }
            *tries -= 1;
        }
        None
    }

    fn set_aside(&mut self, slots: &mut Slots, slot: SlotId) {
        self.queue_of(slots, slot).remove(slots, slot);
        slots.set_set_aside(slot, true);
    }

    fn take_back(&mut self, slots: &mut Slots, slot: SlotId) {
        slots.set_set_aside(slot, false);
        // To the back: it was next, and what it was used since then its frequency says.
        self.queue_of(slots, slot).push_back(slots, slot);
    }

    fn queued(&self) -> u32 {
        self.small.len() + self.main.len()
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Ghost {
    /// 32 bits of the hash, never 0; 0 stands for no ghost.
    fingerprint: u32,
    /// [`Ghosts::evicted_units`] when it left, wrapping.
    left_at: u32,
}

type GhostSet = [Ghost; GHOSTS_IN_SET];

/// The hashes of objects that left the small queue not long ago.
#[derive(Debug)]
struct Ghosts {
    sets: Box<[GhostSet]>,
    /// Units evicted so far, wrapping. A wrong answer after exactly 256 GiB of evictions costs one misplaced object.
    evicted_units: u32,
    /// A ghost is forgotten after this many units.
    memory_units: u32,
}

impl Ghosts {
    fn new(capacity_units: u64) -> Self {
        let bytes = capacity_units * crate::memory::extents::UNIT_BYTES;
        let sets = (bytes / BYTES_PER_GHOST).div_ceil(GHOSTS_IN_SET as u64).max(1);
        let main_units = capacity_units - capacity_units / SMALL_SHARE;
        Self {
            sets: vec![GhostSet::default(); sets as usize].into_boxed_slice(),
            evicted_units: 0,
            memory_units: u32::try_from(main_units).unwrap_or(u32::MAX),
        }
    }

    fn count_evicted(&mut self, units: u32) {
        self.evicted_units = self.evicted_units.wrapping_add(units);
    }

    fn add(&mut self, hash: KeyHash) {
        let now = self.evicted_units;
        let ghost = Ghost { fingerprint: ghost_fingerprint(hash), left_at: now };
        let set = self.set_of(hash);
        let age =
            |ghost: &Ghost| if ghost.fingerprint == 0 { u32::MAX } else { now.wrapping_sub(ghost.left_at) };
        if let Some(oldest) = set.iter_mut().max_by_key(|ghost| age(ghost)) {
            *oldest = ghost;
        }
    }

    /// Whether the hash is remembered; it no longer is after this.
    fn take(&mut self, hash: KeyHash) -> bool {
        let (now, memory_units, fingerprint) =
            (self.evicted_units, self.memory_units, ghost_fingerprint(hash));
        let known = self.set_of(hash).iter_mut().find(|ghost| ghost.fingerprint == fingerprint);
        let Some(ghost) = known else { return false };
        let age = now.wrapping_sub(ghost.left_at);
        *ghost = Ghost::default();
        age <= memory_units
    }

    fn set_of(&mut self, hash: KeyHash) -> &mut GhostSet {
        let number = (u128::from(hash.low64) * self.sets.len() as u128) >> 64;
        &mut self.sets[number as usize]
    }
}

/// Bits of the hash that `set_of` hardly uses.
fn ghost_fingerprint(hash: KeyHash) -> u32 {
    (hash.low64 as u32).max(1)
}
