//! Instants, and the one place that reads the system's clock.
//!
//! Everything that decides takes an [`Instant`] as an argument, so that a simulator can drive it. Only what acts
//! (pumps, lanes, tools) owns a [`Clock`]. Wall-clock time is absent on purpose: leases and time-outs must not jump.

use std::time::Duration;

/// A point on a monotonic clock, in nanoseconds since an origin that only its own process (or simulation) knows.
///
/// Instants of two machines can't be compared; leases travel as durations for that reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// Earlier than everything that happens.
    pub const ZERO: Instant = Instant(0);
    /// Later than everything that happens.
    pub const NEVER: Instant = Instant(u64::MAX);

    /// The instant `duration` later; [`Instant::NEVER`] where that can't be counted.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(duration_nanos(duration)))
    }

    /// The instant `nanos` nanoseconds later; [`Instant::NEVER`] where that can't be counted.
    #[must_use]
    pub fn plus_nanos(self, nanos: u64) -> Instant {
        Instant(self.0.saturating_add(nanos))
    }

    /// The instant `duration` earlier, not before [`Instant::ZERO`].
    #[must_use]
    pub fn minus(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(duration_nanos(duration)))
    }

    /// How long before `self` the instant `earlier` was; zero if it wasn't before.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds since the clock's origin, rounded down.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// `duration` in nanoseconds, at most `u64::MAX` (584 years).
#[must_use]
pub fn duration_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The system's monotonic clock (`CLOCK_MONOTONIC`, read through the vDSO without a system call).
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// The time now.
    #[inline]
    #[must_use]
    pub fn now(self) -> Instant {
        #[cfg(feature = "simulation")]
        if let Some(simulated) = simulation::now() {
            return simulated;
        }
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

/// A clock of a simulator's making, for the thread that sets it.
#[cfg(feature = "simulation")]
pub mod simulation {
    use super::Instant;
    use std::cell::Cell;

    thread_local! {
        static SOURCE: Cell<Option<fn() -> Instant>> = const { Cell::new(None) };
    }

    /// From now on [`super::Clock`] asks `source` on this thread, or the system again. `source` may let time pass, and the rest of the
    /// simulated world go on meanwhile: a thread can be held up wherever it looks at the clock.
    pub fn set_clock(source: Option<fn() -> Instant>) {
        SOURCE.set(source);
    }

    pub(super) fn now() -> Option<Instant> {
        SOURCE.get().map(|source| source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate_rather_than_wrap() {
        // A lease or deadline that can't be counted lies at the end of time, never in the past.
        assert_eq!(Instant(5).plus(Duration::MAX), Instant::NEVER);
        assert_eq!(Instant(5).minus(Duration::from_secs(1)), Instant::ZERO);
        assert_eq!(Instant(5).since(Instant(9)), Duration::ZERO);
    }

    #[test]
    fn the_clock_does_not_run_backwards() {
        let before = Clock.now();
        assert!(Clock.now() >= before);
    }
}
