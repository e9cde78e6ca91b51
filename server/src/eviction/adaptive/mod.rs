//! The order of eviction that learns from the traffic.
//!
//! Objects lie in a calendar by class (how many uses are known of them, [`uses`], remembered by a ghost while they are away) and
//! by their last use. Who leaves first is said by one of three rankings: the one with the fewest hits to expect
//! ([`density`], learned on a sample of the keys by the [`teacher`]), the least recently used, or what was used once before what
//! was used again. Each has a shadow on the sample, and the [`referee`] follows the one that does best on this very traffic.
//!
//! A use writes to the object's slot and no other: an object that was used is put where it belongs only when it would leave.
//!
//! What always holds: a use costs constant time, of which the sampled part is bounded per second; memory beside slots and ghosts is
//! bounded. Each change of mind is a [`Decision`] that says why. Absent on purpose: sizes (density is by object, not by byte:
//! chains consist of blocks of a size), and a say in admission: an object that isn't worth its place is the next to leave anyway. Watermarks and the
//! length of leases are tuned by what harms puts, which the shard sees (`crate::shard`, `tuning`).

mod density;
mod ranking;
mod referee;
mod teacher;
mod uses;

use serde::Serialize;

use super::calendar::SpanEnd;
use super::chain::{self, ChainPlace};
use super::ghosts::Ghosts;
use super::{EvictionPolicy, LOW_BITS, PolicyTime};
use crate::memory::slots::{SlotId, Slots};
use density::Density;
use lanner_shared::key::KeyHash;
pub use ranking::Ranking;
use ranking::Shelf;
use referee::Referee;
pub use referee::{Decision, ShadowStats};
use teacher::Teacher;

/// In a slot's time of last use: it was used since it was put onto the shelf, where it's put anew only when it's looked at. So a use
/// touches nothing but the object's own slot.
const USED_SINCE: u16 = 1 << 15;

const _: () = assert!(USED_SINCE & LOW_BITS == 0);

/// How often densities are worked out anew, and rankings compared, in quarters of a second. They rest on thousands of uses.
const CONCLUDED_EVERY: u32 = 16;

/// So the ghosts take 1/128 of the segment. Of a conversation that pauses for minutes it's known how often it went on only as long
/// as its ghosts are remembered: four times the ghosts of S3-FIFO are worth more than the objects that would fit into their memory.
pub const BYTES_PER_GHOST: u64 = 1024;

/// What sample, shadows and densities take, at most.
pub const MOST_SAMPLE_BYTES: u64 = 2 << 20;

/// What the policy does and why, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdaptiveState {
    /// The ranking that is followed.
    pub ranking: Ranking,
    /// How each ranking does on the sample.
    pub shadows: [ShadowStats; Ranking::ALL.len()],
    /// The share of the keys that is watched, in millionths.
    pub sampled_per_million: u32,
    /// Decisions since the shard started.
    pub decisions_ever: u64,
    /// The last decisions, the latest last.
    pub decisions: Vec<Decision>,
}

/// The policy's state.
#[derive(Debug)]
pub struct Adaptive {
    shelf: Shelf,
    ghosts: Ghosts,
    density: Density,
    teacher: Teacher,
    referee: Referee,
    now: PolicyTime,
    concluded_at: PolicyTime,
    /// Blocks with children, which aren't on the shelf.
    inner_blocks: u32,
    /// Objects that came back while their ghost was known.
    ghost_hits: u64,
}

impl Adaptive {
    /// A policy for a shard that holds up to `capacity_units`; it follows `fixed`, if given, and else the best.
    pub fn new(capacity_units: u64, fixed: Option<Ranking>) -> Self {
        Self {
            shelf: Shelf::default(),
            ghosts: Ghosts::new(capacity_units, BYTES_PER_GHOST),
            density: Density::new(),
            teacher: Teacher::new(capacity_units),
            referee: Referee::new(fixed),
            now: PolicyTime::default(),
            concluded_at: PolicyTime::default(),
            inner_blocks: 0,
            ghost_hits: 0,
        }
    }

    /// Bytes of memory beside the slots.
    pub fn bytes(&self) -> u64 {
        self.shelf.bytes() + self.ghosts.bytes() + self.density.bytes() + self.teacher.bytes()
    }

    /// Objects that came back while their ghost was known.
    pub fn ghost_hits(&self) -> u64 {
        self.ghost_hits
    }

    /// What it does and why.
    pub fn state(&self) -> AdaptiveState {
        AdaptiveState {
            ranking: self.referee.current(),
            shadows: self.referee.shadows(),
            sampled_per_million: (self.teacher.share() * 1e6) as u32,
            decisions_ever: self.referee.decisions_ever(),
            decisions: self.referee.decisions().cloned().collect(),
        }
    }

    /// Puts an object onto the shelf where its class and last use belong.
    fn file(&mut self, slots: &mut Slots, slot: SlotId) {
        // A request uses its blocks from the first to the deepest, so the later of a tie is the deeper one. A parent that becomes a leaf is
        // next of those of its time, so that a chain that is being given up goes whole before another begins to.
        let end = if chain::is_block(slots, slot) { SpanEnd::Back } else { SpanEnd::Front };
        let used_at = slots.used_at(slot) & !USED_SINCE;
        slots.set_used_at(slot, used_at);
        self.shelf.push(slots, slot, (self.now.last(used_at), self.now), end, &self.density);
    }

    fn teach(&mut self, slots: &Slots, slot: SlotId, hash: KeyHash) {
        if self.teacher.watches(hash) {
            let units = slots.units(slot);
            self.referee.count(self.teacher.note_use(&mut self.density, hash, units, self.now));
        }
    }

    /// Takes a slot that isn't set aside off the shelf, and puts its parent onto it if that is a leaf now.
    fn leave(&mut self, slots: &mut Slots, slot: SlotId) {
        if chain::has_children(slots, slot) {
            self.inner_blocks -= 1;
        } else {
            self.shelf.remove(slots, slot);
        }
        if let Some(parent) = chain::detach(slots, slot).filter(|parent| !slots.is_set_aside(*parent)) {
            self.inner_blocks -= 1;
            self.file(slots, parent);
        }
    }
}

impl EvictionPolicy for Adaptive {
    fn set_time(&mut self, now: PolicyTime) {
        if now <= self.now {
            return;
        }
        self.now = now;
        self.teacher.tick(&mut self.density, self.shelf.len() + self.inner_blocks, now);
        if now.since(self.concluded_at) >= CONCLUDED_EVERY {
            self.density.conclude();
            self.concluded_at = now;
            self.referee.decide(now);
        }
    }

    fn inserted(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash, place: ChainPlace) {
        let ghost = self.ghosts.take(hash);
        self.ghost_hits += u64::from(ghost.is_some());
        slots.set_use_class(slot, ghost.map_or(0, |ghost| uses::after_use(ghost.class, self.now)));
        let parent = chain::attach(slots, slot, place);
        if let Some(parent) = parent.filter(|parent| !slots.is_set_aside(*parent)) {
            self.shelf.remove(slots, parent);
            self.inner_blocks += 1;
        }
        slots.set_used_at(slot, self.now.low());
        self.file(slots, slot);
        self.teach(slots, slot, hash);
    }

    fn accessed(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash) {
        // Uses within a quarter of a second belong together: a request asks for a chain and then reads it. And what is used all the
        // time costs no more than this.
        if slots.used_at(slot) & !USED_SINCE == self.now.low() {
            return;
        }
        slots.set_used_at(slot, self.now.low() | USED_SINCE);
        let class = uses::after_use(slots.use_class(slot), self.now);
        if slots.is_set_aside(slot) || chain::has_children(slots, slot) {
            slots.set_use_class(slot, class);
        } else {
            self.shelf.set_class(slots, slot, class);
        }
        self.teach(slots, slot, hash);
    }

    fn removed(&mut self, slots: &mut Slots, slot: SlotId) {
        self.leave(slots, slot);
    }

    fn evicted(&mut self, slots: &mut Slots, slot: SlotId, hash: KeyHash) {
        let (units, class) = (slots.units(slot), slots.use_class(slot));
        self.leave(slots, slot);
        self.ghosts.count_evicted(units);
        self.ghosts.add(hash, class);
    }

    fn next_candidate(&mut self, slots: &mut Slots, tries: &mut u32) -> Option<SlotId> {
        while *tries > 0 {
            let slot = self.shelf.next(self.referee.current(), &self.density, self.now)?;
            if slots.used_at(slot) & USED_SINCE == 0 {
                return Some(slot);
            }
            self.shelf.remove(slots, slot);
            self.file(slots, slot);
            *tries -= 1;
        }
        None
    }

    fn set_aside(&mut self, slots: &mut Slots, slot: SlotId) {
        self.shelf.remove(slots, slot);
        slots.set_set_aside(slot, true);
    }

    fn take_back(&mut self, slots: &mut Slots, slot: SlotId) {
        slots.set_set_aside(slot, false);
        if chain::has_children(slots, slot) {
            self.inner_blocks += 1;
        } else {
            self.file(slots, slot);
        }
    }

    fn queued(&self) -> u32 {
        self.shelf.len()
    }
}
