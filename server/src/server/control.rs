//! Whether a server is to go on: a few words that signals and cores write now and then, and that cores read.

use lanner_shared::time::{Clock, Instant};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

/// The state of a server's life.
#[derive(Debug)]
pub struct Control {
    /// When the drain ends, in nanoseconds of the monotonic clock; `u64::MAX` while nobody has asked for one.
    drain_ends: AtomicU64,
    drain: Duration,
    /// Cores that still have leases to honour.
    cores_with_leases: AtomicU16,
}

impl Control {
    /// A server of `cores` cores that serves; a drain takes at most `drain`.
    #[must_use]
    pub fn new(drain: Duration, cores: u16) -> Control {
        Control { drain_ends: AtomicU64::new(u64::MAX), drain, cores_with_leases: AtomicU16::new(cores) }
    }

    /// Begins to drain: nothing new is stored, no new lease outlives the drain, and the cores stop when it ends or when no
    /// lease is left.
    pub fn drain(&self) {
        let ends = Clock.now().plus(self.drain).0;
        let _ = self.drain_ends.compare_exchange(u64::MAX, ends, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Stops at once.
    pub fn stop(&self) {
        self.drain_ends.store(0, Ordering::Relaxed);
    }

    /// A core has no lease left to honour. To be called once for each core, while draining.
    pub fn core_is_drained(&self) {
        if self.cores_with_leases.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.stop();
        }
    }

    /// Whether a drain has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drain_ends.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether the cores are to stop now.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let ends = self.drain_ends.load(Ordering::Relaxed);
        ends != u64::MAX && Clock.now().0 >= ends
    }

    /// The longest lease that may be granted at `now`, once a drain has begun.
    #[must_use]
    pub fn lease_ttl_while_draining(&self, now: Instant) -> Option<Duration> {
        let ends = self.drain_ends.load(Ordering::Relaxed);
        (ends != u64::MAX).then(|| Instant(ends).since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_ends_by_itself_and_no_lease_outlives_it() {
        let control = Control::new(Duration::from_millis(30), 1);
        assert!(!control.is_draining() && !control.is_stopped());
        assert_eq!(control.lease_ttl_while_draining(Clock.now()), None);
        control.drain();
        control.drain();
        assert!(control.is_draining() && !control.is_stopped());
        assert!(control.lease_ttl_while_draining(Clock.now()).unwrap() <= Duration::from_millis(30));
        std::thread::sleep(Duration::from_millis(31));
        assert!(control.is_stopped());
        assert_eq!(control.lease_ttl_while_draining(Clock.now()), Some(Duration::ZERO));
    }

    #[test]
    fn a_drain_ends_at_once_when_the_last_core_has_no_lease() {
        let control = Control::new(Duration::from_secs(3600), 2);
        control.drain();
        control.core_is_drained();
        assert!(!control.is_stopped());
        control.core_is_drained();
        assert!(control.is_stopped());
    }
}
