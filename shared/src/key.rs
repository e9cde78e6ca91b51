//! Keys, their hash, and the shard that a key belongs to.
//!
//! The hash is part of the protocol: both sides compute it, and it never changes with a build or a processor.

use crate::error::{Error, Result};
use memchr::memchr;
use xxhash_rust::xxh3::xxh3_128;

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;

/// The number of a shard within its server, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// The hash of a key: 64 bits that place it and 64 bits that find it on its shard.
///
/// `high64` is the high half of XXH3-128 (Collet, <https://github.com/Cyan4973/xxHash>, seed 0) of the *placement
/// tag*, `low64` the low half of XXH3-128 of the whole key. A key without a tag is its own tag, so its hash is plain
/// XXH3-128. Keys with one tag share `high64` and so live on one shard, and differ in `low64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash {
    /// Chooses the shard; the same for all keys with one placement tag.
    pub high64: u64,
    /// Chooses the place in the shard's index.
    pub low64: u64,
}

impl KeyHash {
    /// The hash of `key`.
    #[inline]
    #[must_use]
    pub fn of(key: &[u8]) -> KeyHash {
        let whole = xxh3_128(key);
        let tag = placement_tag(key);
        let high = if tag.len() == key.len() { whole } else { xxh3_128(tag) };
        KeyHash { high64: (high >> 64) as u64, low64: whole as u64 }
    }

    /// The shard, of `shards` (at least 1), that the key belongs to.
    ///
    /// Multiply-shift range reduction: Lemire, "Fast random integer generation in an interval", 2019.
    #[inline]
    #[must_use]
    pub fn shard(self, shards: u16) -> ShardId {
        ShardId(((u128::from(self.high64) * u128::from(shards)) >> 64) as u16)
    }
}

/// The bytes that place `key`: those between the first `{` and the next `}`, or the whole key where there is no such
/// pair or nothing between them.
#[inline]
#[must_use]
pub fn placement_tag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr(b'{', key) else { return key };
    let behind = &key[open + 1..];
    match memchr(b'}', behind) {
        Some(length) if length > 0 => &behind[..length],
        _ => key,
    }
}

/// `key` if it is one: 1 to [`MAX_KEY_BYTES`] bytes. `index` is its place in the caller's batch, for the error.
pub fn checked(key: &[u8], index: usize) -> Result<&[u8]> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(Error::InvalidKey { index: index as u64, bytes: key.len() as u64 });
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_what_the_protocol_says() {
        // Golden values: they may never change, or clients of another build would look on the wrong shard. The first is
        // XXH3-128's published value for "a".
        let cases: [(&[u8], u64, u64); 3] = [
            (b"a", 0xa96f_af70_5af1_6834, 0xe6c6_32b6_1e96_4e1f),
            (b"engram:l1:h0", 0xcc83_9c33_7f2b_7b27, 0x8bf5_0da4_4204_8338),
            (b"{a}:block", 0xa96f_af70_5af1_6834, 0xa982_3bd0_9cfa_0026),
        ];
        for (key, high64, low64) in cases {
            assert_eq!(KeyHash::of(key), KeyHash { high64, low64 }, "{:x?}", KeyHash::of(key));
        }
    }

    #[test]
    fn a_tag_is_what_stands_between_the_first_braces() {
        for (key, tag) in [
            ("plain", "plain"),
            ("{tag}x", "tag"),
            ("x{tag}y{other}", "tag"),
            ("{}x", "{}x"),
            ("{open", "{open"),
            ("}{a}", "a"),
            ("{{a}}", "{a"),
        ] {
            assert_eq!(placement_tag(key.as_bytes()), tag.as_bytes(), "{key}");
        }
    }

    #[test]
    fn keys_spread_over_shards_and_tags_stay_together() {
        let mut count = [0_u32; 7];
        for i in 0..70_000 {
            count[usize::from(KeyHash::of(format!("key {i}").as_bytes()).shard(7).0)] += 1;
        }
        // 10,000 expected on each; six standard deviations are about 560.
        assert!(count.iter().all(|n| (9_400..10_600).contains(n)), "{count:?}");
        let shard = |key: String| KeyHash::of(key.as_bytes()).shard(7);
        assert!((0..100).all(|i| shard(format!("{{conversation 7}}:{i}")) == shard("conversation 7".into())));
    }

    #[test]
    fn a_key_has_1_to_1024_bytes() {
        assert!(checked(&[0xff; MAX_KEY_BYTES], 0).is_ok());
        assert_eq!(checked(b"", 3), Err(Error::InvalidKey { index: 3, bytes: 0 }));
        assert_eq!(checked(&[0; 1025], 4), Err(Error::InvalidKey { index: 4, bytes: 1025 }));
    }
}
