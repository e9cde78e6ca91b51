//! What knows the keys beside the index: the filter that says "not here", and the prefix index that has them in order.
//!
//! Called where an object becomes, or ends to be, the answer to its key: in publication and departure, the only two places that change
//! the index. What always holds: index, filter and prefix index know the same keys.

use super::{Shard, ShardConfig};
use crate::filter::KeyFilter;
use crate::memory::segment::{Segment, SegmentError};
use crate::memory::slots::{SlotId, Slots};
use lanner_shared::extent::{EXTENT_ALIGN, ExtentHeader};
use lanner_shared::filter::FilterIdentity;
use lanner_shared::key::KeyHash;
use lanner_shared::wire::Opcode;
use zerocopy::FromZeros;

/// The most objects that a segment can hold: with a header and a key each, and one unit of value. Those without a value can be more, and
/// then the filter is fuller than it's made for.
fn objects_of(segment_bytes: u64) -> u64 {
    segment_bytes / (2 * EXTENT_ALIGN)
}

/// The filter of a shard on `segment`.
pub(super) fn filter(
    config: &ShardConfig,
    segment: &Segment,
    memory: Segment,
) -> Result<KeyFilter, SegmentError> {
    let identity = FilterIdentity {
        shard: config.shard.0.into(),
        shards: config.shards.into(),
        boot_id: config.boot_id,
        ..FilterIdentity::new_zeroed()
    };
    KeyFilter::new(memory, objects_of(segment.len()), identity)
}

impl Shard {
    /// Bytes of the key filter's memory for a segment of this length. They are taken as far as there are keys.
    #[must_use]
    pub fn filter_bytes(segment_bytes: u64) -> u64 {
        KeyFilter::bytes_for(objects_of(segment_bytes))
    }

    /// The filter's memory, for clients to map.
    pub fn filter_memory(&self) -> &Segment {
        self.filter.memory()
    }

    /// The object in `slot` has become the answer to its key. `replaces` says that another one was, which is still there.
    pub(super) fn know_key(&mut self, slot: SlotId, hash: KeyHash, replaces: bool) {
        if !replaces {
            self.filter.add(hash);
            self.filter.keep_pace(&self.index);
        }
        let Some(radix) = self.radix.as_mut() else { return };
        let key_of = |slot| key_in(&self.segment, &self.slots, slot);
        if let Some(key) = key_of(slot) {
            radix.insert(key, slot, key_of);
        }
    }

    /// The object in `slot`, the answer to its key, is so no more, and no other is.
    pub(super) fn forget_key(&mut self, slot: SlotId, hash: KeyHash) {
        self.filter.remove(hash);
        let Some(radix) = self.radix.as_mut() else { return };
        if let Some(key) = key_in(&self.segment, &self.slots, slot) {
            radix.remove(key, slot);
        }
    }

    /// The published object of a key that a client asks for, expired or not. The filter is asked first, and the outcome counted.
    #[inline]
    pub(super) fn look_up(&mut self, hash: KeyHash, key: &[u8]) -> Option<SlotId> {
        let may_be_there = self.filter.may_contain(hash);
        let slot = if may_be_there { self.locate(hash, key) } else { None };
        self.filter.count_use(may_be_there, slot.is_some());
        slot
    }

    /// Whether the filter says that no key with this hash is here: then counted as a miss of `operation`. Else nothing is.
    #[inline]
    pub fn is_certainly_absent(&mut self, hash: KeyHash, operation: Opcode) -> bool {
        if self.filter.may_contain(hash) {
            return false;
        }
        self.filter.count_use(false, false);
        self.counters.count_look_up(operation, false);
        true
    }

    /// The slot's key.
    pub(super) fn key_of<'a>(&'a self) -> impl Fn(SlotId) -> Option<&'a [u8]> {
        |slot| key_in(&self.segment, &self.slots, slot)
    }
}

/// The key of the object in a slot, where only parts of the shard can be borrowed.
fn key_in<'a>(segment: &'a Segment, slots: &Slots, slot: SlotId) -> Option<&'a [u8]> {
    let offset = slots.extent(slot).byte_offset();
    let key_bytes = super::extent_access::header_at(segment, offset)?.key_bytes.get();
    segment.slice(offset + size_of::<ExtentHeader>() as u64, u64::from(key_bytes)).ok()
}
