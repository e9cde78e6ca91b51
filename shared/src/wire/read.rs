//! `read`: ranges of leased objects by their descriptors, without an index look-up. What a snapshot read is over TCP.
//!
//! The shard compares each range with the object's slot only: another generation, or bytes beyond the extent, and the
//! whole frame is answered by an error that names the range; nothing is sent. If an epoch word has another value than
//! the reader expects, the answer is `EpochChanged`.

use super::body::BodyReader;
use crate::error::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// What stands before the ranges (as many as the header counts) and the epoch checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadBody {
    /// Number of [`EpochCheck`]s behind the ranges.
    pub epoch_checks: le::U32,
    /// Zero.
    pub reserved: le::U32,
}

/// Bytes of one leased object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentRange {
    /// The object's slot.
    pub slot: le::U32,
    /// The generation in its descriptor.
    pub generation: le::U32,
    /// First byte, counted from the start of the segment.
    pub segment_offset: le::U64,
    /// Number of bytes.
    pub length: le::U64,
}

/// A reader's expectation of an epoch word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EpochCheck {
    /// Which word.
    pub epoch_slot: le::U16,
    /// Zero.
    pub reserved: le::U16,
    /// Its value when the lease was granted.
    pub epoch: le::U32,
}

const _: () = {
    assert!(size_of::<ReadBody>() == 8);
    assert!(size_of::<SegmentRange>() == 24);
    assert!(std::mem::offset_of!(SegmentRange, segment_offset) == 8);
    assert!(size_of::<EpochCheck>() == 8);
};

/// Ranges and epoch checks in the body of a request with `count` ranges.
pub fn decode(body: &[u8], count: usize) -> Result<(&[SegmentRange], &[EpochCheck])> {
    let mut reader = BodyReader::new(body);
    let fixed: ReadBody = reader.value()?;
    let ranges = reader.values(count)?;
    let checks = reader.values(fixed.epoch_checks.get() as usize)?;
    reader.end()?;
    Ok((ranges, checks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::body;

    #[test]
    fn golden_bytes_and_every_truncation_refused() {
        let mut frame = Vec::new();
        body::append(&mut frame, &ReadBody { epoch_checks: 1.into(), reserved: 0.into() });
        let range =
            SegmentRange { slot: 1.into(), generation: 2.into(), segment_offset: 3.into(), length: 4.into() };
        let check = EpochCheck { epoch_slot: 5.into(), reserved: 0.into(), epoch: 6.into() };
        body::append(&mut frame, &range);
        body::append(&mut frame, &check);
        assert_eq!(
            frame,
            [
                1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0,
                0, 5, 0, 0, 0, 6, 0, 0, 0
            ]
        );
        assert_eq!(decode(&frame, 1), Ok(([range].as_slice(), [check].as_slice())));
        (0..frame.len()).for_each(|length| assert!(decode(&frame[..length], 1).is_err(), "{length}"));
    }
}
