//! How long a lease runs: one rule for each side, and the rule for renewing it.
//!
//! The server counts a lease from when it answers; the client from just before it asked, on its own clock, and
//! shortened by a margin for clocks that drift. So the client's lease always ends first, however slow the network is,
//! and the server needs no word from the client before it reuses memory (promise P1).

use crate::time::{Instant, duration_nanos};
use std::time::Duration;

/// The lease that a server grants unless it's configured otherwise.
pub const DEFAULT_LEASE_TTL: Duration = Duration::from_secs(5);
/// A shorter lease than this ends before its answer arrives: the client's margin alone takes a millisecond.
pub const MIN_LEASE_TTL: Duration = Duration::from_millis(10);
/// Two clocks may differ in speed by this much, in parts of a million. Quartz oscillators stay within 100.
pub const DRIFT_PARTS_PER_MILLION: u64 = 1_000;
/// A fixed part of the client's margin, for the grain of timers and of the server's lease field (1 ms).
pub const FIXED_MARGIN: Duration = Duration::from_millis(1);

/// A client's view of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerm {
    /// A one-sided read whose completion is seen at or after this is not valid.
    pub deadline: Instant,
    /// From here on the lease ought to be renewed: the middle of the window that remained when it was made.
    pub refresh_at: Instant,
}

impl LeaseTerm {
    /// A lease that has ended.
    pub const ENDED: LeaseTerm = LeaseTerm { deadline: Instant::ZERO, refresh_at: Instant::ZERO };

    /// The term of a lease of `granted`, asked for at `asked` and made use of from `made` on (when the answer was
    /// processed). All instants are the client's own.
    #[must_use]
    pub fn new(asked: Instant, made: Instant, granted: Duration) -> LeaseTerm {
        let deadline = client_deadline(asked, granted);
        let window = deadline.since(made);
        LeaseTerm { deadline, refresh_at: made.plus(window / 2) }
    }

    /// Whether a read that completed at `now` is valid.
    #[inline]
    #[must_use]
    pub fn covers(&self, now: Instant) -> bool {
        now < self.deadline
    }

    /// Whether the lease should be renewed before the next read.
    #[inline]
    #[must_use]
    pub fn needs_refresh(&self, now: Instant) -> bool {
        now >= self.refresh_at
    }

    /// The term that ends with the earlier of two leases.
    #[must_use]
    pub fn earlier(self, other: LeaseTerm) -> LeaseTerm {
        if other.deadline < self.deadline { other } else { self }
    }
}

/// When a client must stop using a lease of `granted` that it asked for at `asked`.
#[must_use]
pub fn client_deadline(asked: Instant, granted: Duration) -> Instant {
    let granted = duration_nanos(granted);
    let margin = granted / 1_000_000 * DRIFT_PARTS_PER_MILLION + duration_nanos(FIXED_MARGIN);
    asked.plus_nanos(granted.saturating_sub(margin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_stops_first_even_where_its_clock_is_slow() {
        // A client clock slower by the whole permitted drift must still end before the server's lease does, with an
        // answer that took no time at all, which is the worst case.
        for granted in [MIN_LEASE_TTL, DEFAULT_LEASE_TTL, Duration::from_secs(3600)] {
            let counted = client_deadline(Instant::ZERO, granted).0;
            let true_end = counted as u128 * (1_000_000 + u128::from(DRIFT_PARTS_PER_MILLION)) / 1_000_000;
            assert!(true_end < granted.as_nanos(), "{granted:?}");
        }
    }

    #[test]
    fn renewal_is_due_in_the_middle_of_what_remained() {
        let second = Duration::from_secs(1);
        let asked = Instant(0);
        let term = LeaseTerm::new(asked, asked.plus(second), 5 * second);
        assert_eq!(term.deadline, asked.plus(Duration::from_millis(4_994)));
        assert_eq!(term.refresh_at, asked.plus(Duration::from_millis(1_000 + 3_994 / 2)));
        assert!(!term.needs_refresh(term.refresh_at.minus(Duration::from_nanos(1))));
        assert!(term.needs_refresh(term.refresh_at) && term.covers(term.refresh_at));
        assert!(!term.covers(term.deadline));
    }

    #[test]
    fn an_answer_that_came_too_late_is_an_ended_lease() {
        let term = LeaseTerm::new(Instant(0), Instant(6_000_000_000), DEFAULT_LEASE_TTL);
        assert!(!term.covers(Instant(6_000_000_000)) && term.needs_refresh(Instant(6_000_000_000)));
    }
}
