//! The keys of a batch: for each its length in two bytes, then its bytes.

use super::body::BodyReader;
use crate::error::Result;
use crate::key;
use zerocopy::little_endian as le;

/// Bytes that `key` takes in a body.
#[must_use]
pub fn encoded_bytes(key: &[u8]) -> usize {
    2 + key.len()
}

/// Appends `key` (checked by the caller: at most [`key::MAX_KEY_BYTES`]).
#[inline]
pub fn append(frame: &mut Vec<u8>, key: &[u8]) {
    debug_assert!(key.len() <= key::MAX_KEY_BYTES);
    frame.extend_from_slice(&(key.len() as u16).to_le_bytes());
    frame.extend_from_slice(key);
}

/// The next key of `reader`; `index` is its place in the batch.
#[inline]
pub fn next<'a>(reader: &mut BodyReader<'a>, index: usize) -> Result<&'a [u8]> {
    let length = reader.value::<le::U16>()?.get();
    key::checked(reader.bytes(usize::from(length))?, index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn keys_of_any_bytes_survive() {
        let mut frame = Vec::new();
        let keys: [&[u8]; 3] = [b"a", &[0, 0xff, 0x80], &[7; 1024]];
        keys.iter().for_each(|key| append(&mut frame, key));
        let mut reader = BodyReader::new(&frame);
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(next(&mut reader, index).unwrap(), *key);
        }
        reader.end().unwrap();
    }

    #[test]
    fn a_key_of_no_or_too_many_bytes_is_refused_with_its_place() {
        for length in [0_u16, 1025, u16::MAX] {
            let mut frame = length.to_le_bytes().to_vec();
            frame.resize(2 + usize::from(length), 1);
            let refused = next(&mut BodyReader::new(&frame), 7);
            assert_eq!(refused, Err(Error::InvalidKey { index: 7, bytes: u64::from(length) }));
        }
    }
}
