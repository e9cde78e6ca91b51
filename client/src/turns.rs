//! Turns at something that only so many threads may do at a time. For set-up only: whoever takes one may sleep.

use lanner_shared::time::{Clock, Instant};
use std::sync::Condvar;
use std::time::Duration;

/// So many turns.
#[derive(Debug)]
pub(crate) struct Turns {
    #[expect(clippy::disallowed_types, reason = "taken only while a connection is being made")]
    free: std::sync::Mutex<usize>,
    given_back: Condvar,
}

/// One of them, until it's dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// `count` of them.
    #[expect(clippy::disallowed_types, reason = "taken only while a connection is being made")]
    pub const fn new(count: usize) -> Turns {
        Turns { free: std::sync::Mutex::new(count), given_back: Condvar::new() }
    }

    /// A turn; `None` if none was free by `until`, which may have passed already. Sleeps until then.
    pub fn take(&self, until: Instant) -> Option<Turn<'_>> {
        let mut free = self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while *free == 0 {
            let left = until.since(Clock.now());
            if left.is_zero() {
                return None;
            }
            let waited = self.given_back.wait_timeout(free, left.max(Duration::from_micros(50)));
            free = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        *free -= 1;
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += 1;
        self.0.given_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_more_than_so_many_at_a_time_and_nobody_waits_beyond_his_time() {
        let turns = Turns::new(2);
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    let _turn = turns.take(Clock.now().plus(Duration::from_secs(20))).unwrap();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(2));
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(most.into_inner(), 2);
        let _both = [turns.take(Instant::ZERO).unwrap(), turns.take(Instant::ZERO).unwrap()];
        let began = Clock.now();
        assert!(turns.take(began.plus(Duration::from_millis(30))).is_none());
        let took = Clock.now().since(began);
        assert!(took >= Duration::from_millis(30) && took < Duration::from_secs(5), "{took:?}");
    }
}
