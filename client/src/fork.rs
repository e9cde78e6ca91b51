//! What a process has of its own, and the child of its fork doesn't. A child has its parent's memory, and with it locks that threads held which aren't
//! there any more, and handles of devices that are the parent's: what it did through them it would do to the parent.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A static value that a process makes when it first needs it. It's never freed: a child leaves its parent's where it is.
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "devices alone need it"))]
#[derive(Debug)]
pub(crate) struct OfProcess<T: 'static>(AtomicPtr<T>);

#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "devices alone need it"))]
impl<T: Default + Sync + 'static> OfProcess<T> {
    /// One that isn't made yet.
    pub const fn new() -> OfProcess<T> {
        OfProcess(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The value. Allocates it the first time.
    pub fn get(&self) -> &'static T {
        let mut value = self.0.load(Ordering::Acquire);
        if value.is_null() {
            let made = Box::into_raw(Box::<T>::default());
            let null = std::ptr::null_mut();
            value = match self.0.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => made,
                Err(known) => {
                    // SAFETY: made above, and nobody else has had it.
                    drop(unsafe { Box::from_raw(made) });
                    known
                }
            };
        }
        // SAFETY: only this function stores pointers that aren't null, of boxes that are never freed once they are stored.
        unsafe { &*value }
    }

    /// For the child of a fork: the next [`OfProcess::get`] makes another one, and the parent's is touched by nobody. Frees nothing and takes no lock.
    pub fn forget(&self) {
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// For the child of a fork, before it uses any client: forgets the lanes and devices that came over from the parent, and closes nothing, for
/// their sockets, rings and device contexts are the parent's. Clients, snapshots and registered buffers that came over must be forgotten
/// (`std::mem::forget`), too, neither used nor dropped; the child connects anew with a client of its own. Frees nothing and takes no lock, so that a
/// `pthread_atfork` handler may call it.
pub fn forget_lanes() {
    crate::lane::forget_all();
    crate::connection::rdma::forget();
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "what the statics are")]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_child_has_another_value_and_waits_for_no_lock_of_its_parents() {
        static NUMBERS: OfProcess<Mutex<Vec<u32>>> = OfProcess::new();
        let parents = NUMBERS.get();
        let mut held = parents.lock().unwrap();
        held.push(1);
        assert!(std::ptr::eq(NUMBERS.get(), parents));
        // As in a child, with the lock in the hands of a thread that isn't there.
        NUMBERS.forget();
        assert!(NUMBERS.get().lock().unwrap().is_empty());
        assert!(!std::ptr::eq(NUMBERS.get(), parents));
        assert_eq!(*held, [1]);
    }

    #[test]
    fn threads_that_ask_together_get_one_value() {
        static NUMBERS: OfProcess<Mutex<Vec<u32>>> = OfProcess::new();
        std::thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || NUMBERS.get().lock().unwrap().push(number));
            }
        });
        assert_eq!(NUMBERS.get().lock().unwrap().len(), 8);
    }
}
