//! It is to go: hidden at once, whatever its leases and pins; its memory follows when nobody can read it any more.

use super::Shard;
use super::quarantine::Departure;
use lanner_shared::key::KeyHash;
use lanner_shared::time::Instant;
use lanner_shared::wire::Opcode;

impl Shard {
    /// Removes the object of a key. Returns whether there was one. Never fails for a lease or a pin.
    pub fn remove(&mut self, now: Instant, key: &[u8]) -> bool {
        let slot = self.find(now, KeyHash::of(key), key);
        self.counters.count_look_up(Opcode::Remove, slot.is_some());
        if let Some(slot) = slot {
            self.depart(now, slot, Departure::Removed);
        }
        slot.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at};

    /// Users misread the codes of a removal under a lease and retried for seconds (scenario 3). Shows that a removal under
    /// a lease succeeds once and then says missing, `exists` in between changes nothing, the key can be put again at
    /// once, and the leased bytes stay as they were to the end of the lease.
    #[test]
    fn a_removal_under_a_lease() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        shard.put(at(0), b"key", b"old").unwrap();
        let old = shard.get(at(0), b"key").unwrap();
        assert!(shard.remove(at(1), b"key"));
        assert!(!shard.exists(at(1), b"key"));
        assert!(!shard.remove(at(1), b"key"));
        shard.put(at(1), b"key", b"new").unwrap();
        shard.tick_until_quiet(at(4_999));
        assert_eq!(shard.segment().slice(old.value_offset, 3).unwrap(), b"old");
        assert_eq!(shard.value(at(4_999), b"key").unwrap(), b"new");
        assert_eq!(shard.stats(at(4_999)).quarantined_bytes, 128);
        shard.tick_until_quiet(at(5_200));
        assert_eq!(shard.stats(at(5_200)).quarantined_bytes, 0);
    }
}
