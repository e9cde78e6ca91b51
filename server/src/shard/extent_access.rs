//! Reading and writing the header and the key in front of a value.
//!
//! A header takes its place when a put begins, so that a walk over the segment knows the extent's length, and becomes
//! valid when the put ends. Until then its magic is [`UNFINISHED_MAGIC`], which no reader takes for a header.

use super::Shard;
use crate::memory::extents::{Extent, UNIT_BYTES};
use crate::memory::segment::Segment;
use crate::memory::slots::SlotId;
use lanner_shared::extent::{ExtentHeader, FLAG_VALUE_CRC, extent_bytes, value_offset};
use lanner_shared::key::KeyHash;
use zerocopy::{FromBytes, IntoBytes};

const HEADER_BYTES: u64 = size_of::<ExtentHeader>() as u64;

/// Marks the extent of a put that hasn't ended ("LNRU").
const UNFINISHED_MAGIC: u32 = u32::from_le_bytes(*b"LNRU");

/// The header at the start of an extent, borrowed where it lies.
#[inline]
pub(super) fn header_at(segment: &Segment, byte_offset: u64) -> Option<&ExtentHeader> {
    ExtentHeader::ref_from_bytes(segment.slice(byte_offset, HEADER_BYTES).ok()?).ok()
}

/// Units of an extent that holds a key and a value of these lengths; `None` where that can't be counted.
pub(super) fn units_for(key_bytes: u16, value_bytes: u64) -> Option<u64> {
    extent_bytes(key_bytes, value_bytes).map(|bytes| bytes / UNIT_BYTES)
}

/// How long the extent at `unit` is, by the header there. For walks.
pub(super) fn live_units(segment: &Segment, unit: u32) -> Option<u32> {
    let header = header_at(segment, u64::from(unit) * UNIT_BYTES)?;
    u32::try_from(units_for(header.key_bytes.get(), header.value_bytes.get())?).ok()
}

impl Shard {
    /// The header of the object in a slot.
    #[inline]
    pub(super) fn header(&self, slot: SlotId) -> Option<&ExtentHeader> {
        header_at(&self.segment, self.slots.extent(slot).byte_offset())
    }

    /// The key of the object in a slot.
    #[inline]
    pub(super) fn key(&self, slot: SlotId) -> Option<&[u8]> {
        let offset = self.slots.extent(slot).byte_offset();
        let key_bytes = header_at(&self.segment, offset)?.key_bytes.get();
        self.segment.slice(offset + HEADER_BYTES, u64::from(key_bytes)).ok()
    }

    /// The hash of the key of the object in a slot.
    pub(super) fn hash(&self, slot: SlotId) -> Option<KeyHash> {
        self.header(slot).map(ExtentHeader::hash)
    }

    /// The published object of a key, expired or not.
    #[inline]
    pub(super) fn locate(&self, hash: KeyHash, key: &[u8]) -> Option<SlotId> {
        self.index.get(hash, |slot| self.key(slot) == Some(key))
    }

    /// Writes the front of an unfinished extent: its header, not yet valid, and its key. Every byte that will belong
    /// neither to them nor to the value is zeroed, so that nothing of what lay here before can be read with the new
    /// object (promise P1).
    pub(super) fn write_front(&mut self, extent: Extent, mut header: ExtentHeader, key: &[u8]) -> Option<()> {
        header.magic = UNFINISHED_MAGIC.into();
        let start = extent.byte_offset();
        let value_start = start + value_offset(header.key_bytes.get());
        let value_end = value_start + header.value_bytes.get();
        let key_end = start + HEADER_BYTES + key.len() as u64;
        let zeros = [0; UNIT_BYTES as usize];
        let gap_before = zeros.get(..(value_start - key_end) as usize)?;
        let gap_behind = zeros.get(..(start + extent.byte_len() - value_end) as usize)?;
        self.segment.write(start, header.sealed().as_bytes()).ok()?;
        self.segment.write(start + HEADER_BYTES, key).ok()?;
        self.segment.write(key_end, gap_before).ok()?;
        self.segment.write(value_end, gap_behind).ok()
    }

    /// Makes the header of an unfinished extent valid: the last byte of the object to be written.
    pub(super) fn make_header_valid(&mut self, slot: SlotId) -> Option<()> {
        let start = self.slots.extent(slot).byte_offset();
        let unfinished = *header_at(&self.segment, start)?;
        let mut header = ExtentHeader::new(
            unfinished.hash(),
            unfinished.key_bytes.get(),
            unfinished.value_bytes.get(),
            unfinished.generation.get(),
            unfinished.epoch_slot.get(),
        );
        if self.config.value_checksums {
            let value_start = start + value_offset(header.key_bytes.get());
            let value = self.segment.slice(value_start, header.value_bytes.get()).ok()?;
            header.flags |= FLAG_VALUE_CRC;
            header.value_crc = crc32c::crc32c(value).into();
            header = header.sealed();
        }
        self.segment.write(start, header.as_bytes()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at};
    use super::*;

    /// Shows that the header of an unfinished put isn't valid though a walk can pass, that the finished one is, and that
    /// it holds the value's checksum if the configuration says so.
    #[test]
    fn a_header_becomes_valid_last() {
        let config = ShardConfig { value_checksums: true, ..ShardConfig::default() };
        let mut shard = TestShard::new(1 << 20, config);
        let ticket = shard.begin(at(0), b"key", b"value").unwrap();
        let start = shard.slots.extent(ticket.slot()).start;
        let header = *shard.header(ticket.slot()).unwrap();
        assert!(!header.is_valid());
        assert_eq!(live_units(&shard.segment, start), Some(2));
        shard.put_commit(at(0), ticket).unwrap();
        let header = *shard.header(ticket.slot()).unwrap();
        assert!(header.is_valid());
        assert_eq!((header.flags, header.value_crc.get()), (FLAG_VALUE_CRC, crc32c::crc32c(b"value")));
    }

    /// Shows that no byte of an earlier object is left in a later one's extent beside its value: each is 0 or its own.
    #[test]
    fn what_lay_there_before_is_gone() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        shard.put(at(0), b"first", &[0xaa; 300]).unwrap();
        assert!(shard.remove(at(0), b"first"));
        let ticket = shard.put(at(0), b"second key", &[0xbb; 70]).unwrap();
        let extent = shard.slots.extent(ticket.slot());
        let bytes = shard.segment.slice(extent.byte_offset(), extent.byte_len()).unwrap();
        assert!(!bytes[48..].contains(&0xaa));
    }
}
