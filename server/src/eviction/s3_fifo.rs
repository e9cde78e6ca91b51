//! S3-FIFO, weighted by bytes. Source: Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache
//! eviction", SOSP 2023.
//!
//! New objects enter the *small* queue, which has a tenth of the bytes; those used more than once there move to the
//! *main* queue, the others leave and are remembered by a *ghost*. An object whose ghost is still known enters main at
//! once. Main gives each object as many further rounds as it was used, at most three. An access writes two bits.
//!
//! A ghost is known as long as fewer units were evicted after it than main may hold; see [`ghosts`](super::ghosts). Of the blocks of chains only
//! leaves are in the queues; one that becomes a leaf comes to the back of its queue, as those around it came before. The others
//! count towards the queues' bytes.

use super::chain::{self, ChainPlace};
use super::ghosts::Ghosts;
use super::queue::Queue;
use super::{EvictionPolicy, PolicyTime};
use crate::memory::slots::{MAX_FREQUENCY, SlotId, Slots};
use lanner_shared::key::KeyHash;

/// The small queue's share of the bytes: 1/10.
const SMALL_SHARE: u64 = 10;

/// Uses in the small queue above which an object moves to main.
const SMALL_USES: u8 = 1;

/// So the ghosts take 1/512 of the segment.
const BYTES_PER_GHOST: u64 = 4096;

/// One of the two queues.
#[derive(Debug, Default)]
struct Part {
    queue: Queue,
    /// Units of blocks that belong here and are no leaves.
    inner_units: u64,
}

impl Part {
    fn units(&self) -> u64 {
        self.queue.units() + self.inner_units
    }
}

/// The policy's state.
#[derive(Debug)]
pub struct S3Fifo {
    small: Part,
    main: Part,
    ghosts: Ghosts,
    /// A ghost is forgotten after this many units.
    ghost_memory_units: u64,
    /// Objects that came back while their ghost was known.
    ghost_hits: u64,
    now: PolicyTime,
}

impl S3Fifo {
    /// A policy for a shard that holds up to `capacity_units`.
    pub fn new(capacity_units: u64) -> Self {
        Self {
            small: Part::default(),
            main: Part::default(),
            ghosts: Ghosts::new(capacity_units, BYTES_PER_GHOST),
            ghost_memory_units: capacity_units - capacity_units / SMALL_SHARE,
            ghost_hits: 0,
            now: PolicyTime::default(),
        }
    }

    /// Objects that came back while their ghost was known.
    pub fn ghost_hits(&self) -> u64 {
        self.ghost_hits
    }

    /// Bytes of memory for the ghosts.
    pub fn bytes(&self) -> u64 {
        self.ghosts.bytes()
    }

    fn part_of(&mut self, slots: &Slots, slot: SlotId) -> &mut Part {
        if slots.in_second_queue(slot) { &mut self.main } else { &mut self.small }
    }

    fn is_small_over_its_share(&self) -> bool {
        self.small.units() * SMALL_SHARE >= self.small.units() + self.main.units()
    }

    fn move_to_main(&mut self, slots: &mut Slots, slot: SlotId) {
        self.small.queue.remove(slots, slot);
        slots.set_frequency(slot, 0);
        slots.set_in_second_queue(slot, true);
        self.main.queue.push_front(slots, slot);
    }

    /// Takes a slot that isn't set aside out of its queue, and puts its parent into one if that is a leaf now.
    fn leave(&mut self, slots: &mut Slots, slot: SlotId) {
        let units = u64::from(slots.units(slot));
        let has_children = chain::has_children(slots, slot);
        let part = self.part_of(slots, slot);
        if has_children {
            part.inner_units = part.inner_units.saturating_sub(units);
        } else {
            part.queue.remove(slots, slot);
        }
        if let Some(parent) = chain::detach(slots, slot).filter(|parent| !slots.is_set_aside(*parent)) {
            let units = u64::from(slots.units(parent));
            let part = self.part_of(slots, parent);
            part.inner_units = part.inner_units.saturating_sub(units);
            part.queue.push_back(slots, parent);
        }
    }
}

impl EvictionPolicy for S3Fifo {
    fn set_time(&mut self, now: PolicyTime) {
        self.now = self.now.max(now);
    }

    fn inserted(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash, place: ChainPlace) {
        let ghost = self.ghosts.take(hash);
        let second = ghost.is_some_and(|ghost| u64::from(ghost.units_ago) <= self.ghost_memory_units);
        self.ghost_hits += u64::from(second);
        slots.set_in_second_queue(slot, second);
        let parent = chain::attach(slots, slot, place);
        slots.set_used_at(slot, self.now.low());
        if let Some(parent) = parent.filter(|parent| !slots.is_set_aside(*parent)) {
            let units = u64::from(slots.units(parent));
            let part = self.part_of(slots, parent);
            part.queue.remove(slots, parent);
            part.inner_units += units;
        }
        self.part_of(slots, slot).queue.push_front(slots, slot);
    }

    fn accessed(&mut self, slots: &mut Slots, slot: SlotId, _hash: KeyHash) {
        // A request comes to a block more than once: it asks for the chain and then reads it.
        let is_again = chain::is_block(slots, slot) && slots.used_at(slot) == self.now.low();
        let frequency = slots.frequency(slot);
        if !is_again && frequency < MAX_FREQUENCY {
            slots.set_frequency(slot, frequency + 1);
        }
        slots.set_used_at(slot, self.now.low());
    }

    fn removed(&mut self, slots: &mut Slots, slot: SlotId) {
        self.leave(slots, slot);
    }

    fn evicted(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash) {
        let units = slots.units(slot);
        // What main gives up had its rounds; the paper remembers those that never got there.
        let remembered = !slots.in_second_queue(slot);
        self.leave(slots, slot);
        self.ghosts.count_evicted(units);
        if remembered {
            self.ghosts.add(hash, 0);
        }
    }

    fn next_candidate(&mut self, slots: &mut Slots, tries: &mut u32) -> Option<SlotId> {
        while *tries > 0 {
            let from_small = self.main.queue.is_empty()
                || (!self.small.queue.is_empty() && self.is_small_over_its_share());
            let slot = if from_small { self.small.queue.back()? } else { self.main.queue.back()? };
            let frequency = slots.frequency(slot);
            if from_small && frequency > SMALL_USES {
                self.move_to_main(slots, slot);
            } else if !from_small && frequency > 0 {
                self.main.queue.remove(slots, slot);
                slots.set_frequency(slot, frequency - 1);
                self.main.queue.push_front(slots, slot);
            } else {
                return Some(slot);
            }
            *tries -= 1;
        }
        None
    }

    fn set_aside(&mut self, slots: &mut Slots, slot: SlotId) {
        self.part_of(slots, slot).queue.remove(slots, slot);
        slots.set_set_aside(slot, true);
    }

    fn take_back(&mut self, slots: &mut Slots, slot: SlotId) {
        slots.set_set_aside(slot, false);
        let (units, has_children) = (u64::from(slots.units(slot)), chain::has_children(slots, slot));
        let part = self.part_of(slots, slot);
        if has_children {
            part.inner_units += units;
        } else {
            // To the back: it was next, and what it was used since then its frequency says.
            part.queue.push_back(slots, slot);
        }
    }

    fn queued(&self) -> u32 {
        self.small.queue.len() + self.main.queue.len()
    }
}
