//! Taking a body apart, and putting one together behind its header.

use super::header::{HEADER_BYTES, Header};
use crate::error::{Error, Malformation, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Takes a body apart from its start; each step checks that the bytes are there.
#[derive(Clone, Copy, Debug)]
pub struct BodyReader<'a> {
    rest: &'a [u8],
}

impl<'a> BodyReader<'a> {
    /// A reader at the start of `body`.
    #[must_use]
    pub fn new(body: &'a [u8]) -> BodyReader<'a> {
        BodyReader { rest: body }
    }

    /// The next `count` bytes.
    #[inline]
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.too_short(count))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next struct.
    #[inline]
    pub fn value<T: FromBytes + Copy>(&mut self) -> Result<T> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| self.too_short(size_of::<T>()))?;
        self.rest = rest;
        Ok(value)
    }

    /// The next `count` structs, in place.
    #[inline]
    pub fn values<T: FromBytes + Immutable + KnownLayout>(&mut self, count: usize) -> Result<&'a [T]> {
        let bytes = size_of::<T>().checked_mul(count).ok_or_else(|| self.too_short(usize::MAX))?;
        let taken = self.bytes(bytes)?;
        <[T]>::ref_from_bytes(taken).map_err(|_| self.too_short(bytes))
    }

    /// All that is left.
    #[inline]
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Nothing may be left.
    #[inline]
    pub fn end(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.too_short(0)) }
    }

    #[cold]
    fn too_short(&self, _wanted: usize) -> Error {
        Error::Malformed { reason: Malformation::Body, detail: self.rest.len() as u64 }
    }
}

/// Appends room for a header to `frame` and returns where it starts.
#[inline]
pub fn begin(frame: &mut Vec<u8>) -> usize {
    let start = frame.len();
    frame.extend_from_slice(&[0; HEADER_BYTES]);
    start
}

/// Writes `header` to where [`begin`] left room; the body is what was appended since.
#[inline]
pub fn finish(frame: &mut [u8], start: usize, mut header: Header, version: u8) {
    header.body_bytes = (frame.len() - start - HEADER_BYTES) as u32;
    frame[start..start + HEADER_BYTES].copy_from_slice(header.encode(version).as_bytes());
}

/// Appends `count` structs of zeros to a body, to be written in place: a struct that is put together elsewhere and then copied waits for
/// its own fields to leave the processor's store buffer.
#[inline]
pub fn places<T: FromBytes + IntoBytes + KnownLayout>(frame: &mut Vec<u8>, count: usize) -> &mut [T] {
    let start = frame.len();
    frame.resize(start + count * size_of::<T>(), 0);
    // Wire structs have no alignment; of one that had, there would be no place.
    <[T]>::mut_from_bytes(&mut frame[start..]).unwrap_or_default()
}

/// Appends a struct to a body.
#[inline]
pub fn append<T: IntoBytes + Immutable>(frame: &mut Vec<u8>, value: &T) {
    frame.extend_from_slice(value.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::little_endian as le;

    #[test]
    fn a_reader_never_goes_beyond_the_body() {
        let mut reader = BodyReader::new(&[1, 0, 2, 0, 3]);
        assert_eq!(reader.values::<le::U16>(2).unwrap(), [le::U16::new(1), le::U16::new(2)]);
        assert!(reader.value::<le::U16>().is_err());
        assert!(reader.end().is_err());
        assert_eq!(reader.bytes(1).unwrap(), [3]);
        assert!(reader.values::<le::U64>(usize::MAX).is_err());
        assert!(reader.end().is_ok());
    }
}
