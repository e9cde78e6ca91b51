//! Is it there: extends no lease and counts as no access, so that polling keeps nothing alive (scenario 2).

use super::Shard;
use lanner_shared::key::KeyHash;
use lanner_shared::time::Instant;
use lanner_shared::wire::Opcode;

impl Shard {
    /// Whether an object has this key. Changes nothing but counts.
    pub fn exists(&mut self, now: Instant, key: &[u8]) -> bool {
        let found = self.look_up(KeyHash::of(key), key).is_some_and(|slot| !self.is_expired(now, slot));
        self.counters.count_look_up(Opcode::Exists, found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at};

    /// A poller asked for all keys ten times a second, and eviction freed nothing for hours. Shows that a store that is
    /// polled all the time takes every put, and that polled keys have no lease.
    #[test]
    fn polling_keeps_nothing_alive() {
        let mut shard = TestShard::new(1 << 18, ShardConfig::default());
        let keys: Vec<[u8; 2]> = (0..2000u16).map(u16::to_le_bytes).collect();
        for (number, key) in keys.iter().enumerate() {
            shard.put(at(number as u64), key, &[1; 1000]).unwrap();
            let present = keys[..=number].iter().filter(|key| shard.exists(at(number as u64), *key)).count();
            assert!(present > 0);
        }
        assert_eq!(shard.leased_bytes(at(2000)), 0);
    }
}
