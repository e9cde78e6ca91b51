//! Where the bytes of a leased object are, and until when.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// Tells a reader where an object's value lies in its shard's segment, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Descriptor {
    /// Where the value starts in the segment, in units of 64 bytes.
    pub value_offset_units: le::U32,
    /// The object's slot in its shard.
    pub slot: le::U32,
    /// The slot's generation; another one means another object.
    pub generation: le::U32,
    /// The object's epoch word.
    pub epoch_slot: le::U16,
    /// 0 if the object was found; else the code of an error, and all other fields but `value_bytes` are zero.
    pub status: le::U16,
    /// Length of the value in bytes. Also valid with the status of `BufferTooSmall`.
    pub value_bytes: le::U64,
    /// The epoch word when the lease was granted.
    pub epoch: le::U32,
    /// The lease that was granted, in milliseconds from when the server answered.
    pub lease_ms: le::U32,
}

const _: () = {
    assert!(size_of::<Descriptor>() == 32);
    assert!(std::mem::offset_of!(Descriptor, epoch_slot) == 12);
    assert!(std::mem::offset_of!(Descriptor, value_bytes) == 16);
    assert!(std::mem::offset_of!(Descriptor, lease_ms) == 28);
};

impl Descriptor {
    /// The answer for a key that gets none, with the code of the reason.
    #[must_use]
    pub fn without(status: u16, value_bytes: u64) -> Descriptor {
        Descriptor {
            value_offset_units: 0.into(),
            slot: 0.into(),
            generation: 0.into(),
            epoch_slot: 0.into(),
            status: status.into(),
            value_bytes: value_bytes.into(),
            epoch: 0.into(),
            lease_ms: 0.into(),
        }
    }

    /// Where the value starts in the segment, in bytes.
    #[inline]
    #[must_use]
    pub fn value_offset(&self) -> u64 {
        u64::from(self.value_offset_units.get()) * crate::extent::EXTENT_ALIGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let descriptor = Descriptor {
            value_offset_units: 0x0403_0201.into(),
            slot: 0x0807_0605.into(),
            generation: 0x0c0b_0a09.into(),
            epoch_slot: 0x0e0d.into(),
            status: 0x100f.into(),
            value_bytes: 0x1817_1615_1413_1211.into(),
            epoch: 0x1c1b_1a19.into(),
            lease_ms: 0x201f_1e1d.into(),
        };
        let golden: Vec<u8> = (1..=32).collect();
        assert_eq!(descriptor.as_bytes(), golden);
        assert_eq!(descriptor.value_offset(), 0x0403_0201 * 64);
    }
}
