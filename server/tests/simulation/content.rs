//! What a value consists of: each byte says of which version it is and where in it it stands.
//!
//! So bytes of another version, of another object or of another place in the same value are told from the right ones, and
//! a mixture of two versions from either.

/// A version of a value; never given twice. The first eight bytes of a value are its number.
pub type Version = u64;

/// Values without bytes are all alike.
pub const EMPTY: Version = 0;
/// The length of the number.
const NUMBER_BYTES: u64 = 8;

/// A value of `length` bytes, which is 0 for [`EMPTY`] and at least eight for all others.
pub fn value(version: Version, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| byte(version, at)).collect()
}

/// The version that a value claims to be.
pub fn version_of(value: &[u8]) -> Version {
    value.first_chunk().map_or(EMPTY, |number| u64::from_le_bytes(*number))
}

/// Whether `bytes` are those of `version` from `offset` on.
pub fn is_of(version: Version, offset: u64, bytes: &[u8]) -> bool {
    (offset..).zip(bytes).all(|(at, found)| byte(version, at) == *found)
}

fn byte(version: Version, at: u64) -> u8 {
    let word = if at < NUMBER_BYTES { version } else { mix(version ^ mix(at / 8)) };
    word.to_le_bytes()[at as usize % 8]
}

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
