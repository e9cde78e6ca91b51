//! How a sleeper is woken without a system call while nobody sleeps.
//!
//! The classic two-sided check (an *eventcount*; Dekker's argument): the sleeper sets its flag and then looks for work once
//! more; the waker publishes work and then looks at the flag. With a sequentially consistent fence between each pair, at
//! least one of them sees the other, so no wake-up is lost.

use crate::sync::{AtomicU32, Ordering, fence};

/// Announces that the caller is about to sleep. It must look for work once more before it does, and call [`awake`] after.
pub fn announce(parked: &AtomicU32) {
    parked.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Takes the announcement back.
pub fn awake(parked: &AtomicU32) {
    parked.store(0, Ordering::Relaxed);
}

/// Whether the other side must be woken. To be called after the work for it was published.
#[inline]
pub fn must_wake(parked: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    parked.load(Ordering::Relaxed) != 0
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Every interleaving of one waker and one sleeper: work that was published is seen or the sleeper is woken.
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let parked = Arc::new(AtomicU32::new(0));
            let work = Arc::new(AtomicU32::new(0));
            let waker = {
                let (parked, work) = (parked.clone(), work.clone());
                loom::thread::spawn(move || {
                    work.store(1, Ordering::Release);
                    must_wake(&parked)
                })
            };
            announce(&parked);
            let seen = work.load(Ordering::Acquire) == 1;
            let woken = waker.join().unwrap();
            assert!(seen || woken);
        });
    }

    #[test]
    #[should_panic(expected = "lost")]
    fn without_the_fence_loom_finds_the_lost_wake_up() {
        // The planted fault that shows that the test above can fail.
        loom::model(|| {
            let parked = Arc::new(AtomicU32::new(0));
            let work = Arc::new(AtomicU32::new(0));
            let waker = {
                let (parked, work) = (parked.clone(), work.clone());
                loom::thread::spawn(move || {
                    work.store(1, Ordering::Release);
                    parked.load(Ordering::Relaxed) != 0
                })
            };
            parked.store(1, Ordering::Relaxed);
            let seen = work.load(Ordering::Acquire) == 1;
            let woken = waker.join().unwrap();
            assert!(seen || woken, "lost");
        });
    }
}
