//! Time passes: all clean-up, each kind in a bounded slice, so that no request waits behind much of it.

use super::Shard;
use super::tuning::Seen;
use crate::memory::extents::UNIT_BYTES;
use lanner_shared::time::Instant;
use std::time::Duration;

/// Objects whose lease has ended, for each tick.
const ENDED_LEASES: u32 = 128;
/// Unfinished puts of peers that are gone, for each tick.
const GONE_PEERS_PUTS: u32 = 64;
/// Unfinished puts looked at for a time-out, for each tick.
const STALLED_PUTS: usize = 64;

/// How often the filter's rate of false positives is measured, at most.
const BETWEEN_PROBES: Duration = Duration::from_millis(100);

/// How often the shard looks whether it should set something else for itself.
const BETWEEN_TUNINGS: Duration = Duration::from_secs(1);

/// What a tick leaves to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickOutcome {
    /// Call again soon: a slice was used up.
    pub more_is_due: bool,
    /// Call again at this time at the latest, even if no request comes; `None` if nothing waits for time to pass.
    pub next_at: Option<Instant>,
}

impl Shard {
    /// Does what is due at `now`: ends leases, stalled puts, puts of peers that are gone, and objects whose time is over,
    /// and evicts ahead of demand. To be called about every millisecond while there are requests, else as the outcome
    /// says. Takes some tens of microseconds at most.
    pub fn tick(&mut self, now: Instant) -> TickOutcome {
        self.apply_touches();
        self.tell_policies_the_time(now);
        let more_leases = self.end_leases(now, ENDED_LEASES);
        let more_puts = self.end_puts_of_gone_peers(now, GONE_PEERS_PUTS);
        self.end_stalled_puts(now, STALLED_PUTS);
        let more_expired = self.end_expired(now);
        let more_evictions = self.evict_ahead(now);
        let more_of_filter = self.filter.rebuild_slice(&self.index);
        if now >= self.next_probe {
            self.filter.probe(&self.index);
            self.next_probe = now.plus(BETWEEN_PROBES);
        }
        if now >= self.next_tuning {
            self.tune(now);
            self.next_tuning = now.plus(BETWEEN_TUNINGS);
        }
        let more_is_due = more_leases || more_puts || more_expired || more_evictions || more_of_filter;
        TickOutcome { more_is_due, next_at: self.next_tick(now) }
    }

    fn tune(&mut self, now: Instant) {
        let counters = &self.counters;
        let seen = Seen {
            evicted_ahead: counters.evicted_ahead,
            evicted_on_demand: counters.evicted_for_demand + counters.evicted_as_neighbour,
            puts_refused_full: counters.puts_refused_full,
            leased_units: self.leased_bytes(now) / UNIT_BYTES,
            capacity_units: self.capacity_units(),
        };
        self.tuning.look(self.millis(now).0, seen);
        self.lease_ms = self.lease_limit_ms.min(self.tuning.lease_ms());
    }

    /// Whatever waits for time to pass is looked at once in a bucket of the leases' ring, or ten times a second.
    fn next_tick(&self, now: Instant) -> Option<Instant> {
        if self.leases.waiting() > 0 {
            return Some(now.plus(Duration::from_millis(self.leases.bucket_millis())));
        }
        if self.mortal_objects > 0 || self.unfinished_puts() > 0 {
            return Some(now.plus(Duration::from_millis(100)));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at};

    /// Shows that a shard with nothing to wait for may sleep for ever, that one with a quarantined object asks to be woken,
    /// and that following what it asks for leads to the memory being given back.
    #[test]
    fn an_idle_shard_may_sleep() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        assert_eq!(shard.tick(at(0)).next_at, None);
        shard.put(at(0), b"key", b"value").unwrap();
        shard.get(at(0), b"key").unwrap();
        assert_eq!(shard.tick(at(0)).next_at, None, "a lease alone needs no care");
        shard.remove(at(0), b"key");
        let (mut now, mut ticks) = (at(0), 0);
        while let Some(next) = shard.tick(now).next_at {
            assert!(next > now);
            (now, ticks) = (next, ticks + 1);
        }
        assert!(now < at(5_300) && ticks < 400, "{ticks} ticks until {now:?}");
        assert_eq!(shard.stats(now).quarantined_bytes, 0);
    }
}
