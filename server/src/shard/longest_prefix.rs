//! Which stored key is the longest that a key begins with: extends no lease and counts as no access.

use super::Shard;
use crate::memory::slots::SlotId;
use lanner_shared::key::KeyHash;
use lanner_shared::time::Instant;
use lanner_shared::wire::Opcode;

impl Shard {
    /// Length of the longest key on this shard that `key` begins with, `key` itself included; `None` if there is none. One search in
    /// the prefix index; without one, a look for each length.
    pub fn longest_prefix(&mut self, now: Instant, key: &[u8]) -> Option<usize> {
        let mut rest = key;
        let found = loop {
            match self.longest_slot(rest) {
                // Its time has ended and it hasn't been swept away: a shorter one may be alive.
                Some((slot, bytes)) if self.is_expired(now, slot) => rest = &rest[..bytes - 1],
                other => break other.map(|(_, bytes)| bytes),
            }
        };
        self.counters.count_look_up(Opcode::LongestPrefix, found.is_some());
        found
    }

    /// The object with the longest key that `key` begins with, and that key's length, expired or not.
    fn longest_slot(&self, key: &[u8]) -> Option<(SlotId, usize)> {
        if let Some(radix) = &self.radix {
            let slot = radix.longest_prefix(key, self.key_of())?;
            return Some((slot, self.key(slot)?.len()));
        }
        (1..=key.len()).rev().find_map(|bytes| {
            let prefix = &key[..bytes];
            let hash = KeyHash::of(prefix);
            let may_be_here = self.owns(hash) && self.filter.may_contain(hash);
            let slot = if may_be_here { self.locate(hash, prefix) } else { None };
            slot.map(|slot| (slot, bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at, put_request};
    use lanner_shared::wire::Opcode;
    use lanner_shared::wire::put::PutRequest;

    /// Shows, with a prefix index and without, that the longest key is found, the key itself included; that removed, evicted and
    /// expired ones aren't though a longer one was; that bytes above 0x7f are bytes; and that hits and misses are counted.
    #[test]
    fn the_longest_key_that_is_there() {
        for prefix_index in [true, false] {
            let config = ShardConfig { prefix_index, ..ShardConfig::default() };
            let mut shard = TestShard::new(1 << 20, config);
            assert_eq!(shard.longest_prefix(at(0), b"anything"), None);
            for key in [b"a".as_slice(), b"a\xff", b"a\xff\x80b", b"b"] {
                shard.put(at(0), key, b"value").unwrap();
            }
            let mortal = PutRequest { ttl_seconds: 1, ..put_request(b"a\xff\x80") };
            shard.put_request(at(0), &mortal, b"value").unwrap();
            let mut longest = |now, key: &[u8]| shard.longest_prefix(at(now), key);
            assert_eq!(longest(0, b"a\xff\x80bcd"), Some(4));
            assert_eq!(longest(0, b"a\xff\x80b"), Some(4));
            assert_eq!(longest(0, b"a\xff\x80c"), Some(3));
            assert_eq!(longest(0, b"a\xfe"), Some(1));
            assert_eq!(longest(0, b"c"), None);
            assert_eq!(longest(5_000, b"a\xff\x80c"), Some(2), "expired");
            assert!(shard.remove(at(5_000), b"a\xff"));
            assert_eq!(shard.longest_prefix(at(5_000), b"a\xff\x80c"), Some(1));
            let stats = shard.stats(at(5_000));
            assert_eq!((stats.hits(Opcode::LongestPrefix), stats.misses(Opcode::LongestPrefix)), (6, 2));
        }
    }
}
