//! `read_ranges`: ranges of objects by their keys, query and read in one round trip. The ordinary ranged read over TCP.

use super::body::BodyReader;
use super::keys;
use crate::error::{Error, Malformation, Result};
use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// What stands before the ranges and the keys; the header counts the ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadRangesBody {
    /// Number of keys behind the ranges.
    pub keys: le::U32,
    /// Zero.
    pub reserved: le::U32,
}

/// Bytes of the object of one of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyRange {
    /// Which key of this frame, from 0.
    pub key: le::U32,
    /// Zero.
    pub reserved: le::U32,
    /// First byte of the value.
    pub source_offset: le::U64,
    /// Number of bytes.
    pub length: le::U64,
}

const _: () = {
    assert!(size_of::<ReadRangesBody>() == 8);
    assert!(size_of::<KeyRange>() == 24);
    assert!(std::mem::offset_of!(KeyRange, source_offset) == 8);
};

/// The keys of a request; on the stack as long as they are no more than a layer's tables usually are.
pub type Keys<'a> = SmallVec<[&'a [u8]; 64]>;

/// A request's ranges and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// The ranges. Each names one of the keys.
    pub ranges: &'a [KeyRange],
    /// The keys.
    pub keys: Keys<'a>,
    /// The same with their lengths, as they came.
    pub key_bytes: &'a [u8],
}

/// The body of a request with `count` ranges.
pub fn decode(body: &[u8], count: usize) -> Result<Question<'_>> {
    let mut reader = BodyReader::new(body);
    let fixed: ReadRangesBody = reader.value()?;
    let ranges = reader.values::<KeyRange>(count)?;
    // Not reserved by what the peer announces, but by what it sent: each key takes three bytes at least.
    let announced = fixed.keys.get() as usize;
    let key_bytes = reader.rest();
    let mut found = Keys::new();
    for index in 0..announced {
        found.push(keys::next(&mut reader, index)?);
    }
    reader.end()?;
    match ranges.iter().find(|range| range.key.get() as usize >= announced) {
        Some(range) => {
            Err(Error::Malformed { reason: Malformation::Field, detail: u64::from(range.key.get()) })
        }
        None => Ok(Question { ranges, keys: found, key_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::body;

    fn frame(key: u32) -> Vec<u8> {
        let mut frame = Vec::new();
        body::append(&mut frame, &ReadRangesBody { keys: 1.into(), reserved: 0.into() });
        let range =
            KeyRange { key: key.into(), reserved: 0.into(), source_offset: 3.into(), length: 4.into() };
        body::append(&mut frame, &range);
        keys::append(&mut frame, b"k");
        frame
    }

    #[test]
    fn golden_bytes_and_every_truncation_refused() {
        let good = frame(0);
        let golden =
            b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x01\0k".as_slice();
        assert_eq!(good, golden);
        let question = decode(&good, 1).unwrap();
        assert_eq!((question.ranges.len(), question.keys.as_slice()), (1, [b"k".as_slice()].as_slice()));
        assert_eq!(question.key_bytes, b"\x01\0k");
        (0..good.len()).for_each(|length| assert!(decode(&good[..length], 1).is_err(), "{length}"));
    }

    #[test]
    fn a_range_of_no_key_is_refused() {
        assert_eq!(decode(&frame(1), 1), Err(Error::Malformed { reason: Malformation::Field, detail: 1 }));
    }
}
