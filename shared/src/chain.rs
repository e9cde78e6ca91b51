//! Chains of KV-cache blocks, and how their keys become keys of the store. One rule for all clients, described here and
//! nowhere else.
//!
//! Block *i* of a chain is of use only if the blocks 0..*i* are there. A chain is cut into groups of [`GROUP_BLOCKS`]: block *i*
//! belongs to group *i* / 32. All blocks of a group are placed by the key of the group's first block, so that a group is on one
//! shard and a long chain spreads over all of them. A block is stored under
//!
//! ```text
//! {hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh}key        h: XXH3-128 of the key of the group's first block, 32 hexadecimal digits
//! └─ placement tag, see crate::key ┘
//! ```
//!
//! The tag is the hash of the key rather than the key itself, so that keys may hold any bytes, `}` included, and have a fixed
//! cost of [`PREFIX_BYTES`]. Stored so, a block is an object like any other.

use crate::error::{Error, Result};
use crate::key::{KeyHash, MAX_KEY_BYTES};
use xxhash_rust::xxh3::xxh3_128;

/// Blocks of a chain that are placed together.
pub const GROUP_BLOCKS: usize = 32;
/// The longest chain, in blocks.
pub const MAX_CHAIN_BLOCKS: usize = 4096;
/// What stands before a block's key in the store.
pub const PREFIX_BYTES: usize = 34;
/// The longest key of a block, in bytes.
pub const MAX_BLOCK_KEY_BYTES: usize = MAX_KEY_BYTES - PREFIX_BYTES;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// What the stored keys of a group's blocks begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPrefix {
    bytes: [u8; PREFIX_BYTES],
    /// [`KeyHash::high64`] of all keys of the group.
    high64: u64,
}

impl GroupPrefix {
    /// That of the group whose first block has `first_key`.
    #[must_use]
    pub fn of(first_key: &[u8]) -> GroupPrefix {
        let mut bytes = [b'{'; PREFIX_BYTES];
        bytes[PREFIX_BYTES - 1] = b'}';
        let hash = xxh3_128(first_key).to_be_bytes();
        // By hand: formatting takes longer than all the rest that a group costs its client.
        for (digits, byte) in bytes[1..].chunks_exact_mut(2).zip(hash) {
            digits.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        GroupPrefix::with_hash(bytes)
    }

    /// The one that these bytes are, or `None` if they're none.
    #[must_use]
    pub fn from_bytes(bytes: [u8; PREFIX_BYTES]) -> Option<GroupPrefix> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let [b'{', digits @ .., b'}'] = &bytes else { return None };
        digits.iter().all(is_digit).then(|| GroupPrefix::with_hash(bytes))
    }

    fn with_hash(bytes: [u8; PREFIX_BYTES]) -> GroupPrefix {
        let tag = &bytes[1..PREFIX_BYTES - 1];
        GroupPrefix { bytes, high64: (xxh3_128(tag) >> 64) as u64 }
    }

    /// As it travels.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; PREFIX_BYTES] {
        &self.bytes
    }

    /// The key under which the block with `key` is stored.
    #[inline]
    #[must_use]
    pub fn stored_key(&self, key: &[u8]) -> StoredKey {
        let mut stored = StoredKey::new();
        stored.extend_from_slice(&self.bytes);
        stored.extend_from_slice(key);
        stored
    }

    /// The hash of a stored key of this group: [`KeyHash::of`] without hashing the tag again.
    #[inline]
    #[must_use]
    pub fn hash(&self, stored: &[u8]) -> KeyHash {
        KeyHash { high64: self.high64, low64: xxh3_128(stored) as u64 }
    }

    /// The hash that places the whole group.
    #[inline]
    #[must_use]
    pub fn placement(&self) -> KeyHash {
        KeyHash { high64: self.high64, low64: 0 }
    }
}

/// A key as it's stored; on the stack where the block's key is a digest.
pub type StoredKey = smallvec::SmallVec<[u8; 96]>;

/// `keys` if they are a chain: 1 to [`MAX_CHAIN_BLOCKS`] keys of 1 to [`MAX_BLOCK_KEY_BYTES`] bytes.
///
/// # Errors
/// `InvalidArgument` for the chain's length, `InvalidKey` with the place of a key.
pub fn checked<K: AsRef<[u8]>>(keys: &[K]) -> Result<&[K]> {
    if keys.is_empty() || keys.len() > MAX_CHAIN_BLOCKS {
        let text = format!("a chain of {} blocks; it has 1 to {MAX_CHAIN_BLOCKS}", keys.len());
        return Err(Error::InvalidArgument(text.into()));
    }
    for (index, key) in keys.iter().enumerate() {
        let bytes = key.as_ref().len();
        if bytes == 0 || bytes > MAX_BLOCK_KEY_BYTES {
            return Err(Error::InvalidKey { index: index as u64, bytes: bytes as u64 });
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::placement_tag;

    #[test]
    fn the_rule_is_what_the_protocol_says() {
        // A golden value: clients of another build must find the blocks.
        let prefix = GroupPrefix::of(b"a");
        assert_eq!(prefix.as_bytes(), b"{a96faf705af16834e6c632b61e964e1f}");
        let stored = prefix.stored_key(b"}b{");
        assert_eq!(&stored[..], b"{a96faf705af16834e6c632b61e964e1f}}b{");
        assert_eq!(placement_tag(&stored), b"a96faf705af16834e6c632b61e964e1f");
        assert_eq!(prefix.hash(&stored), KeyHash::of(&stored));
        assert_eq!(prefix.placement().high64, KeyHash::of(&stored).high64);
        assert_eq!(GroupPrefix::from_bytes(*prefix.as_bytes()), Some(prefix));
    }

    #[test]
    fn other_bytes_are_no_prefix() {
        let good = *GroupPrefix::of(b"a").as_bytes();
        for (at, byte) in [(0, b'('), (33, b')'), (5, b'}'), (5, b'F'), (32, 0)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(GroupPrefix::from_bytes(bad), None, "{at}");
        }
    }

    #[test]
    fn what_is_no_chain_is_refused() {
        assert!(checked::<&[u8]>(&[]).is_err());
        assert!(checked(&vec![b"k"; MAX_CHAIN_BLOCKS]).is_ok());
        assert!(checked(&vec![b"k"; MAX_CHAIN_BLOCKS + 1]).is_err());
        let keys = [vec![1; MAX_BLOCK_KEY_BYTES], vec![1; MAX_BLOCK_KEY_BYTES + 1]];
        assert_eq!(checked(&keys), Err(Error::InvalidKey { index: 1, bytes: 991 }));
        assert_eq!(checked(&[b"a".as_slice(), b""]), Err(Error::InvalidKey { index: 1, bytes: 0 }));
    }
}
