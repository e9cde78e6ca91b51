//! When a transport that has failed is tried again. Shared by all threads' connections to a server; changed when one fails.

use lanner_shared::time::{Instant, duration_nanos};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The pause after a failure of something that had worked.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause; each failure of something that never worked doubles it up to here.
const LONGEST: Duration = Duration::from_secs(30);

/// A pause that grows.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// Nanoseconds of the monotonic clock. Two threads that fail at once both write, and either's word is good.
    until: AtomicU64,
    length: AtomicU64,
}

impl Backoff {
    /// Something has failed; `has_worked` if not at once.
    pub fn failed(self: &Arc<Self>, now: Instant, has_worked: bool) {
        let doubled = Duration::from_nanos(self.length.load(Ordering::Relaxed).saturating_mul(2));
        let length = if has_worked { FIRST } else { doubled.clamp(FIRST, LONGEST) };
        self.length.store(duration_nanos(length), Ordering::Relaxed);
        self.until.store(now.plus(length).0, Ordering::Relaxed);
    }

    /// Whether it may be tried again.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.until()
    }

    /// From when on it may be tried again.
    pub fn until(&self) -> Instant {
        Instant(self.until.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_it_has_worked() {
        let backoff = Arc::new(Backoff::default());
        let pause_after = |has_worked| {
            let now = Instant::ZERO.plus(Duration::from_secs(1_000));
            backoff.failed(now, has_worked);
            assert!(!backoff.is_over(now) && backoff.is_over(backoff.until()));
            backoff.until().since(now).as_secs()
        };
        assert!(backoff.is_over(Instant::ZERO));
        let pauses: Vec<u64> =
            [false, false, false, false, false, false, false, true, false].map(pause_after).into();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 1, 2]);
    }
}
