//! Where is it, and for how long may I read it: grants a lease and counts as an access.

use super::Shard;
use super::quarantine::Departure;
use crate::eviction::EvictionPolicy;
use crate::memory::slots::{Generation, SlotId};
use lanner_shared::extent::{EXTENT_ALIGN, value_offset};
use lanner_shared::key::KeyHash;
use lanner_shared::time::Instant;
use lanner_shared::wire::put::Pin;
use lanner_shared::wire::{Descriptor, Opcode};

/// A leased object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its slot.
    pub slot: SlotId,
    /// Which of the slot's objects.
    pub generation: Generation,
    /// Where the value starts, in bytes from the start of the segment.
    pub value_offset: u64,
    /// Length of the value.
    pub value_bytes: u64,
    /// The epoch word of its group.
    pub epoch_slot: u16,
    /// That word's value now.
    pub epoch: u32,
    /// The lease, in milliseconds from now.
    pub lease_ms: u32,
}

impl Found {
    /// The same in the form in which it travels.
    #[inline]
    pub fn descriptor(&self) -> Descriptor {
        let mut descriptor = Descriptor::without(0, 0);
        self.describe(&mut descriptor);
        descriptor
    }

    /// [`Found::descriptor`] to where it is wanted, field by field.
    #[inline]
    pub fn describe(&self, place: &mut Descriptor) {
        // Offsets of values are multiples of the unit and lie within u32 units by the making of the segment.
        place.value_offset_units = ((self.value_offset / EXTENT_ALIGN) as u32).into();
        place.slot = self.slot.0.into();
        place.generation = self.generation.0.into();
        place.epoch_slot = self.epoch_slot.into();
        place.status = 0.into();
        place.value_bytes = self.value_bytes.into();
        place.epoch = self.epoch.into();
        place.lease_ms = self.lease_ms.into();
    }
}

impl Shard {
    /// Finds the object of a key, grants a lease on it and notes an access. `operation` says in which count the hit or
    /// miss belongs.
    pub fn query(&mut self, now: Instant, key: &[u8], operation: Opcode) -> Option<Found> {
        self.query_hashed(now, KeyHash::of(key), key, operation)
    }

    /// [`Shard::query`] of a key whose hash is known.
    pub fn query_hashed(
        &mut self,
        now: Instant,
        hash: KeyHash,
        key: &[u8],
        operation: Opcode,
    ) -> Option<Found> {
        let slot = self.find(now, hash, key);
        self.answer(now, slot, operation)
    }

    /// [`Shard::query_hashed`] of a key that is likely there, as a block behind one that is: asking the filter first saves nothing.
    pub fn query_likely(
        &mut self,
        now: Instant,
        hash: KeyHash,
        key: &[u8],
        operation: Opcode,
    ) -> Option<Found> {
        let slot = self.locate(hash, key).and_then(|slot| self.unexpired(now, slot));
        self.answer(now, slot, operation)
    }

    /// Leases and describes what a look-up has found, and counts the look-up.
    #[inline]
    fn answer(&mut self, now: Instant, slot: Option<SlotId>, operation: Opcode) -> Option<Found> {
        let found = slot.and_then(|slot| self.found(now, slot));
        self.counters.count_look_up(operation, found.is_some());
        found
    }

    /// The published object of a key whose time has not ended. One whose time has is a miss, and leaves.
    pub(super) fn find(&mut self, now: Instant, hash: KeyHash, key: &[u8]) -> Option<SlotId> {
        let slot = self.look_up(hash, key)?;
        self.unexpired(now, slot)
    }

    fn unexpired(&mut self, now: Instant, slot: SlotId) -> Option<SlotId> {
        if self.is_expired(now, slot) {
            self.depart(now, slot, Departure::Expired);
            return None;
        }
        Some(slot)
    }

    /// Notes an access for the order of eviction.
    pub(super) fn note_access(&mut self, slot: SlotId) {
        let Some(hash) = self.hash(slot) else { return };
        match self.slots.pin(slot) {
            Pin::None => self.policy.accessed(&mut self.slots, slot, hash),
            Pin::Soft => self.soft_pinned.accessed(&mut self.slots, slot, hash),
            Pin::Hard => {}
        }
    }

    fn found(&mut self, now: Instant, slot: SlotId) -> Option<Found> {
        let header = *self.header(slot)?;
        let epoch_slot = header.epoch_slot.get();
        let found = Found {
            slot,
            generation: self.slots.generation(slot),
            value_offset: self.slots.extent(slot).byte_offset() + value_offset(header.key_bytes.get()),
            value_bytes: header.value_bytes.get(),
            epoch_slot,
            epoch: self.epoch(epoch_slot),
            lease_ms: self.grant_lease(now, slot),
        };
        self.note_access(slot);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at, put_request};
    use super::*;
    use lanner_shared::wire::put::PutRequest;

    /// Shows that a query finds the value and says all a reader needs, in the form that travels too, and that hits and
    /// misses are counted for each operation.
    #[test]
    fn a_query_says_where_and_until_when() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        let request = PutRequest { group: b"group", ..put_request(b"key") };
        shard.put_request(at(0), &request, b"value").unwrap();
        let found = shard.query(at(0), b"key", Opcode::Query).unwrap();
        assert_eq!((found.value_bytes, found.lease_ms), (5, 5000));
        assert_eq!(found.epoch_slot, lanner_shared::epoch::epoch_slot(b"group"));
        let descriptor = found.descriptor();
        assert_eq!(descriptor.value_offset(), found.value_offset);
        assert_eq!(shard.segment().slice(descriptor.value_offset(), 5).unwrap(), b"value");
        assert_eq!(shard.query(at(0), b"other", Opcode::Query), None);
        assert_eq!(shard.query(at(0), b"other", Opcode::ReadRanges), None);
        let stats = shard.stats(at(0));
        assert_eq!((stats.hits(Opcode::Query), stats.misses(Opcode::Query)), (1, 1));
        assert_eq!((stats.hits(Opcode::ReadRanges), stats.misses(Opcode::ReadRanges)), (0, 1));
    }
}
