//! A key as symbols: each byte is two half-bytes, the upper one first, and behind the last stands the end.
//!
//! The end is the lowest symbol. So keys are ordered as byte strings are, a key before all that it is a prefix of, and no byte needs
//! an escape.

/// Symbol 0 is the end of a key, 1 to 16 are the half-bytes.
pub const END: u32 = 0;

/// The symbol at a position: that of half a byte, or the end.
#[inline]
pub fn symbol_at(key: &[u8], position: u32) -> u32 {
    match key.get((position / 2) as usize) {
        Some(byte) if position.is_multiple_of(2) => u32::from(byte >> 4) + 1,
        Some(byte) => u32::from(byte & 0xf) + 1,
        None => END,
    }
}

/// How many bytes two keys have in common at their start.
#[inline]
pub fn shared_bytes(one: &[u8], other: &[u8]) -> usize {
    // Eight at a time: keys have long common starts.
    let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
    let equal = 8 * words.take_while(|(one, other)| one == other).count();
    equal + one[equal..].iter().zip(&other[equal..]).take_while(|(one, other)| one == other).count()
}

/// The first position at which two keys differ; `None` if they are the same.
#[inline]
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<u32> {
    let shared = shared_bytes(one, other);
    let position = 2 * shared as u32;
    match (one.get(shared), other.get(shared)) {
        (None, None) => None,
        (Some(one), Some(other)) if one >> 4 == other >> 4 => Some(position + 1),
        _ => Some(position),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_where_they_do() {
        for (one, other, position) in [
            (b"".as_slice(), b"".as_slice(), None),
            (b"a", b"a", None),
            (b"a", b"", Some(0)),
            (b"ab", b"a", Some(2)),
            (b"\x10", b"\x20", Some(0)),
            (b"\x11", b"\x12", Some(1)),
            (b"0123456789x\xff", b"0123456789x\xf0", Some(23)),
            (b"0123456789", b"01234567", Some(16)),
        ] {
            assert_eq!(first_difference(one, other), position, "{one:?} {other:?}");
            assert_eq!(first_difference(other, one), position);
            if let Some(position) = position {
                assert_eq!(symbol_at(one, position) < symbol_at(other, position), one < other);
            }
        }
        assert_eq!((symbol_at(b"\x0f", 0), symbol_at(b"\x0f", 1), symbol_at(b"\x0f", 2)), (1, 16, END));
    }
}
