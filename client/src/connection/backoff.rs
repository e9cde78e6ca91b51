//! When a transport that has failed is tried again, and why it failed. Shared by all threads' connections to a server; changed when one fails.

use lanner_shared::time::{Instant, duration_nanos};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The pause after a failure of something that had worked.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause; each failure of something that never worked doubles it up to here.
const LONGEST: Duration = Duration::from_secs(30);
/// So long behind the last pause a failure is a new one.
const CALM: Duration = Duration::from_secs(60);

/// A pause that grows.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// Nanoseconds of the monotonic clock. Two threads that fail at once both write, and either's word is good.
    until: AtomicU64,
    length: AtomicU64,
    failures: AtomicU64,
    /// The last that was heard of it is that it failed.
    is_doubted: AtomicBool,
    #[expect(clippy::disallowed_types, reason = "taken only when something has failed, or to say so")]
    reason: std::sync::Mutex<Option<Arc<str>>>,
}

impl Backoff {
    /// Something has failed, and why; `has_worked` if not before long. What fails within a pause fails for the same reason as what began it.
    pub fn failed(&self, now: Instant, has_worked: bool, reason: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.is_doubted.store(true, Ordering::Relaxed);
        if !self.is_over(now) {
            return;
        }
        *self.reason.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(reason.into());
        let is_new = has_worked || now.since(self.until()) >= CALM;
        let doubled = Duration::from_nanos(self.length.load(Ordering::Relaxed).saturating_mul(2));
        let length = if is_new { FIRST } else { doubled.clamp(FIRST, LONGEST) };
        self.length.store(duration_nanos(length), Ordering::Relaxed);
        self.until.store(now.plus(length).0, Ordering::Relaxed);
    }

    /// It was tried, and works.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nothing works that there isn't"))]
    pub fn works(&self) {
        self.is_doubted.store(false, Ordering::Relaxed);
    }

    /// Whether it has failed and wasn't seen to work since: nobody should wait for it.
    pub fn is_doubted(&self) -> bool {
        self.is_doubted.load(Ordering::Relaxed)
    }

    /// Whether it may be tried again.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.until()
    }

    /// From when on it may be tried again.
    pub fn until(&self) -> Instant {
        Instant(self.until.load(Ordering::Relaxed))
    }

    /// How often it has failed, and why the last time.
    pub fn failures(&self) -> (u64, Option<Arc<str>>) {
        let reason = self.reason.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        (self.failures.load(Ordering::Relaxed), reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_it_has_worked() {
        let backoff = Backoff::default();
        let mut now = Instant::ZERO.plus(Duration::from_secs(1_000));
        let mut pause_after = |has_worked| {
            backoff.failed(now, has_worked, "why");
            assert!(!backoff.is_over(now) && backoff.is_over(backoff.until()));
            let pause = backoff.until().since(now);
            now = backoff.until();
            pause.as_secs()
        };
        let pauses: Vec<u64> =
            [false, false, false, false, false, false, false, true, false].map(&mut pause_after).into();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 1, 2]);
    }

    /// All threads' connections fail together, each call that times out counts, and a network that swallows packets must not be met again and
    /// again at full length. Shows that they count once, that a long calm forgives, and that the reason stays to be read.
    #[test]
    fn what_fails_together_counts_once_and_says_why() {
        let backoff = Backoff::default();
        let start = Instant::ZERO.plus(Duration::from_secs(1_000));
        assert!(!backoff.is_doubted());
        for _ in 0..10 {
            backoff.failed(start, false, "no answer");
        }
        assert_eq!(backoff.until().since(start), FIRST);
        assert!(backoff.is_doubted());
        assert_eq!(backoff.failures(), (10, Some("no answer".into())));
        backoff.works();
        assert!(!backoff.is_doubted());
        // What fails behind it fails because of it, and says only that.
        backoff.failed(start.plus(FIRST / 2), true, "given up");
        assert_eq!(backoff.failures(), (11, Some("no answer".into())));
        let later = backoff.until();
        backoff.failed(later, false, "again");
        assert_eq!(backoff.until().since(later), 2 * FIRST);
        let calm = backoff.until().plus(CALM);
        backoff.failed(calm, false, "much later");
        assert_eq!(backoff.until().since(calm), FIRST);
        assert_eq!(backoff.failures(), (13, Some("much later".into())));
    }
}
