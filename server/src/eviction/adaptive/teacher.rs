//! A sample of the keys, watched whether they are cached or not: what the densities are learned from, and on what the shadows of all
//! rankings show how each would do.
//!
//! A key is in the sample by its hash, so each use of it is seen, and a shadow of the same share of the memory hits as often as the
//! whole would (Waldspurger, Saemundsson, Ahmad and Park, "Cache modeling and optimization using miniature simulations", USENIX ATC 2017).
//! Blocks are sampled one by one, not by chain: under each ranking a block's predecessors are worth at least as much as it
//! is, so whether it's there says whether they are, and single blocks of many chains say more than whole chains of few.
//!
//! What always holds: at most [`MOST_WATCHED`] keys are watched, and about [`MOST_USES`] uses a second. Where there are more,
//! the share of the keys is halved. Absent on purpose: values and leases; a shadow evicts what it likes.

use hashbrown::HashTable;
use slab::Slab;

use super::density::Density;
use super::ranking::{Ranking, Shelf};
use super::uses;
use crate::eviction::PolicyTime;
use crate::eviction::calendar::SpanEnd;
use crate::memory::extents::Extent;
use crate::memory::slots::{SlotId, Slots};
use lanner_shared::key::KeyHash;

/// Keys watched at the same time, cached or not.
const MOST_WATCHED: usize = 8192;

/// For each object that is cached there's to be room for so many that were.
const WATCHED_PER_OBJECT: u64 = 8;

/// Uses watched in a second: at some 200 ns each, 0.4 % of the shard's time.
const MOST_USES: u64 = 20_000;

/// Half of the keys at most.
const HIGHEST_SHARE: u32 = u32::MAX / 2;

/// Keys looked at in each quarter of a second for the time they spent. A round takes four seconds, as densities are worked out.
const SETTLED_AT_ONCE: usize = MOST_WATCHED / 16;

/// Of so many keys the one not used for longest is forgotten when there are too many.
const FORGOTTEN_OF: usize = 16;

const RANKINGS: usize = Ranking::ALL.len();

/// A key of the sample.
#[derive(Debug)]
struct Watched {
    hash: u64,
    used: PolicyTime,
    /// Until when the time spent is counted.
    settled: PolicyTime,
    /// Uses known of it.
    class: u8,
    /// Where it is in each shadow.
    in_shadows: [SlotId; RANKINGS],
}

/// What would be cached under a ranking.
#[derive(Debug)]
struct Shadow {
    ranking: Ranking,
    /// An object's extent begins at the number of its key in the sample.
    slots: Slots,
    shelf: Shelf,
}

/// Which shadows hit, for one use of a key.
pub(super) type ShadowHits = [bool; RANKINGS];

/// The sample and the shadows.
#[derive(Debug)]
pub(super) struct Teacher {
    by_hash: HashTable<u32>,
    watched: Slab<Watched>,
    shadows: [Shadow; RANKINGS],
    /// Keys whose hash is below are in the sample.
    share: u32,
    capacity_units: u64,
    hand: usize,
    /// Uses watched since `second_began`.
    uses: u64,
    second_began: PolicyTime,
}

impl Teacher {
    /// For a shard that holds up to `capacity_units`.
    pub fn new(capacity_units: u64) -> Self {
        let shadow =
            |ranking| Shadow { ranking, slots: Slots::new(MOST_WATCHED as u32), shelf: Shelf::default() };
        Self {
            by_hash: HashTable::new(),
            watched: Slab::new(),
            shadows: Ranking::ALL.map(shadow),
            share: HIGHEST_SHARE,
            capacity_units,
            hand: 0,
            uses: 0,
            second_began: PolicyTime::default(),
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        let watched = self.watched.capacity() * size_of::<Watched>() + self.by_hash.allocation_size();
        let shadows = self.shadows.iter().map(|shadow| shadow.slots.bytes() + shadow.shelf.bytes());
        watched as u64 + shadows.sum::<u64>()
    }

    /// The share of the keys that is watched.
    pub fn share(&self) -> f64 {
        f64::from(self.share) / f64::from(u32::MAX)
    }

    /// Whether a key is in the sample.
    #[inline]
    pub fn watches(&self, hash: KeyHash) -> bool {
        sample_number(hash.low64) < self.share
    }

    /// Notes a use of a key of the sample, by an object of so many units. Returns which shadows hit.
    pub fn note_use(
        &mut self,
        density: &mut Density,
        hash: KeyHash,
        units: u32,
        now: PolicyTime,
    ) -> ShadowHits {
        self.uses += 1;
        let hash = hash.low64;
        let found = self.by_hash.find(hash, |number| self.hash_of(*number) == Some(hash)).copied();
        let number = match found {
            Some(number) => {
                self.note_return(density, number, now);
                number
            }
            None => self.begin_watching(density, hash, now),
        };
        let capacity = (self.capacity_units as f64 * self.share()) as u64;
        let Some(watched) = self.watched.get_mut(number as usize) else { return ShadowHits::default() };
        let (class, places) = (watched.class, watched.in_shadows);
        let mut hits = ShadowHits::default();
        for (ranking, shadow) in self.shadows.iter_mut().enumerate() {
            let place = places.get(ranking).copied().unwrap_or(SlotId::NONE);
            let (place, hit) = shadow.note_use(place, (number, units), class, now, density);
            if let Some(hits) = hits.get_mut(ranking) {
                *hits = hit;
            }
            if let Some(watched) = self.watched.get_mut(number as usize) {
                watched.in_shadows[ranking] = place;
            }
            while shadow.shelf.units() > capacity {
                let Some(evicted) = shadow.evict(density, now) else { break };
                if let Some(watched) = self.watched.get_mut(evicted as usize) {
                    watched.in_shadows[ranking] = SlotId::NONE;
                }
            }
        }
        hits
    }

    /// Counts the time that some of the keys have spent, and keeps their number within bounds. To be called when a quarter of a
    /// second has begun, with the number of objects that are cached.
    pub fn tick(&mut self, density: &mut Density, objects: u32, now: PolicyTime) {
        for _ in 0..SETTLED_AT_ONCE.min(self.watched.capacity()) {
            let number = self.turn_hand();
            let Some(watched) = self.watched.get_mut(number) else { continue };
            settle(density, watched, now);
            if sample_number(watched.hash) >= self.share {
                self.forget(number as u32);
            }
        }
        if now.since(self.second_began) >= 4 {
            let seconds = u64::from(now.since(self.second_began) / 4);
            self.set_share(objects, self.uses / seconds);
            (self.uses, self.second_began) = (0, now);
        }
    }

    fn set_share(&mut self, objects: u32, uses: u64) {
        let expected = (u64::from(objects) * WATCHED_PER_OBJECT) as f64 * self.share();
        let most = MOST_WATCHED as f64;
        if expected > most || uses > MOST_USES {
            self.share /= 2;
        } else if expected < most / 4.0 && uses < MOST_USES / 4 && self.share <= HIGHEST_SHARE / 2 {
            self.share *= 2;
        }
    }

    fn hash_of(&self, number: u32) -> Option<u64> {
        self.watched.get(number as usize).map(|watched| watched.hash)
    }

    fn note_return(&mut self, density: &mut Density, number: u32, now: PolicyTime) {
        let Some(watched) = self.watched.get_mut(number as usize) else { return };
        settle(density, watched, now);
        density.note_hit(watched.class, now.since(watched.used));
        (watched.used, watched.settled) = (now, now);
        watched.class = uses::after_use(watched.class, now);
    }

    fn begin_watching(&mut self, density: &mut Density, hash: u64, now: PolicyTime) -> u32 {
        if self.watched.len() >= MOST_WATCHED {
            self.forget_one(density, now);
        }
        let number = self.watched.insert(Watched {
            hash,
            used: now,
            settled: now,
            class: 0,
            in_shadows: [SlotId::NONE; RANKINGS],
        }) as u32;
        let watched = &self.watched;
        self.by_hash.insert_unique(hash, number, |number| {
            watched.get(*number as usize).map_or(0, |watched| watched.hash)
        });
        number
    }

    /// Forgets a key that wasn't used for long.
    fn forget_one(&mut self, density: &mut Density, now: PolicyTime) {
        let looked_at =
            (0..FORGOTTEN_OF).map(|_| self.turn_hand()).collect::<smallvec::SmallVec<[usize; 16]>>();
        let used = |number: &usize| self.watched.get(*number).map_or(now, |watched| watched.used);
        if let Some(number) = looked_at.into_iter().min_by_key(used) {
            if let Some(watched) = self.watched.get_mut(number) {
                settle(density, watched, now);
            }
            self.forget(number as u32);
        }
    }

    fn forget(&mut self, number: u32) {
        let Some(watched) = self.watched.try_remove(number as usize) else { return };
        if let Ok(entry) = self.by_hash.find_entry(watched.hash, |other| *other == number) {
            entry.remove();
        }
        for (shadow, place) in self.shadows.iter_mut().zip(watched.in_shadows) {
            shadow.remove(place);
        }
    }

    fn turn_hand(&mut self) -> usize {
        let number = self.hand;
        self.hand = if number + 1 < self.watched.capacity() { number + 1 } else { 0 };
        number
    }
}

impl Shadow {
    /// A use of a key that is in `place` if at all. Returns where it is now, and whether it was there.
    fn note_use(
        &mut self,
        place: SlotId,
        (number, units): (u32, u32),
        class: u8,
        now: PolicyTime,
        density: &Density,
    ) -> (SlotId, bool) {
        let hit = place != SlotId::NONE;
        self.remove(place);
        let Some(slot) = self.slots.occupy(Extent { start: number, units }) else {
            return (SlotId::NONE, hit);
        };
        self.slots.set_use_class(slot, class);
        self.shelf.push(&mut self.slots, slot, (now, now), SpanEnd::Front, density);
        (slot, hit)
    }

    /// Evicts an object and returns the number of its key.
    fn evict(&mut self, density: &Density, now: PolicyTime) -> Option<u32> {
        let slot = self.shelf.next(self.ranking, density, now)?;
        let number = self.slots.extent(slot).start;
        self.remove(slot);
        Some(number)
    }

    fn remove(&mut self, place: SlotId) {
        if place != SlotId::NONE {
            self.shelf.remove(&mut self.slots, place);
            // A slot that isn't published may be vacated; `occupy` made it unfinished.
            self.slots.vacate(place);
        }
    }
}

fn settle(density: &mut Density, watched: &mut Watched, now: PolicyTime) {
    density.note_exposure(watched.class, watched.settled.since(watched.used), now.since(watched.used));
    watched.settled = now;
}

/// Where a key stands among those that may be sampled. Bits of the hash's low half: the high one is that of the placement tag,
/// which the blocks of a group have in common.
fn sample_number(hash: u64) -> u32 {
    (hash >> 16) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::adaptive::MOST_SAMPLE_BYTES;

    fn hash(key: u64) -> KeyHash {
        KeyHash::of(&key.to_le_bytes())
    }

    /// Uses of keys under a clock that goes on by a quarter of a second after each `in_a_quarter`. Returns how often each shadow hit.
    fn run(
        teacher: &mut Teacher,
        keys: impl Iterator<Item = u64>,
        in_a_quarter: usize,
        objects: u32,
    ) -> [u64; 3] {
        let mut density = Density::new();
        let mut hits = [0; 3];
        for (number, key) in keys.enumerate() {
            let now = PolicyTime((number / in_a_quarter) as u32);
            if number % in_a_quarter == 0 {
                teacher.tick(&mut density, objects, now);
                density.conclude();
            }
            if teacher.watches(hash(key)) {
                let outcome = teacher.note_use(&mut density, hash(key), 10, now);
                hits.iter_mut().zip(outcome).for_each(|(count, hit)| *count += u64::from(hit));
            }
        }
        hits
    }

    /// Shows that with hundreds of thousands of keys the sample keeps to its number and its memory, and its share follows the number of
    /// objects that are cached.
    #[test]
    fn the_sample_is_bounded() {
        let mut teacher = Teacher::new(1_000_000);
        run(&mut teacher, (0..300_000).map(|number| number % 150_000), 4_000, 100_000);
        assert!(teacher.watched.len() <= MOST_WATCHED);
        assert_eq!(teacher.by_hash.len(), teacher.watched.len());
        let (bytes, shelves) = (
            teacher.bytes() + Density::new().bytes(),
            teacher.shadows.each_ref().map(|shadow| shadow.shelf.len()),
        );
        assert!(bytes <= MOST_SAMPLE_BYTES, "{bytes} bytes");
        assert!(shelves.iter().all(|len| *len > 100 && *len as usize <= MOST_WATCHED), "{shelves:?}");
        let expected = MOST_WATCHED as f64 / (8.0 * 100_000.0);
        assert!((expected / 2.0..=expected).contains(&teacher.share()), "{} of the keys", teacher.share());
    }

    /// Shows that much traffic lowers the share, so that the cost of a second is bounded.
    #[test]
    fn the_uses_watched_are_bounded() {
        let mut teacher = Teacher::new(1_000_000);
        run(&mut teacher, (0..3_000_000).map(|number| number % 500), 100_000, 500);
        let uses = teacher.share() * 400_000.0;
        assert!(uses <= MOST_USES as f64 * 1.5, "{uses} uses a second are watched");
    }

    /// A loop over a few more keys than fit, under which the least recently used is always the one needed next; then keys of which the
    /// recent ones come back. Shows that the shadow of recency hits nothing in the one and more than the others hit in the other, as
    /// the whole would.
    #[test]
    fn shadows_hit_as_the_whole_would() {
        let mut teacher = Teacher::new(10 * 1_000);
        let [density, recency, _] = run(&mut teacher, (0..60_000).map(|number| number % 1_200), 300, 1_000);
        assert_eq!(recency, 0);
        assert!(density > 1_000, "{density}");
        let mut teacher = Teacher::new(10 * 1_000);
        let [density, recency, segmented] =
            run(&mut teacher, (600..60_000u64).map(|number| number / 2 - number % 2 * 300), 300, 1_000);
        assert!(recency > 5_000 && recency > 2 * segmented, "{recency} {segmented}");
        assert!(density * 10 > recency * 9, "{density} {recency}");
    }
}
