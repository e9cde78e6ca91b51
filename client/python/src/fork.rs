//! Forks. A child has its parent's memory, so also its parent's connections: what it sent over them would mix with what the parent
//! sends, and closing them would end the parent's. So a child leaves them alone and makes everything anew when it first needs it.
//!
//! Absent on purpose: closing the descriptors. The server learns of the parent's end only after the child's; what it holds for the
//! parent until then is bounded, as for every client that is silent.

use arc_swap::{ArcSwap, Guard};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Forks between the process that loaded this module and this one. Written in the child of a fork, before it has a second thread.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Counts forks from now on. Asking for it twice would count each twice, so it's for the module's initialisation.
pub fn watch() -> PyResult<()> {
    // SAFETY: `in_child` is of the type asked for, lives as long as the program, and does what a child of a process with threads may:
    // it stores a number and swaps an empty list in, without allocating, freeing or locking.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    match failed {
        0 => Ok(()),
        number => Err(PyOSError::new_err((number, "watching for forks"))),
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    lanner_client::forget_lanes();
}

/// Forks between the process that loaded this module and this one: another number, another process.
pub fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Something that belongs to the process that made it.
pub struct Owned<T> {
    forks: u64,
    value: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    pub fn new(value: T) -> Owned<T> {
        Owned { forks: forks(), value: ManuallyDrop::new(value) }
    }

    fn is_ours(&self) -> bool {
        self.forks == forks()
    }

    /// The value; if it came over from a parent, what `make` makes in its place.
    pub fn ours_or<E>(&mut self, make: impl FnOnce() -> Result<T, E>) -> Result<&mut T, E> {
        if !self.is_ours() {
            *self = Owned::new(make()?);
        }
        Ok(&mut *self.value)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped here and nowhere else, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

/// What connections hang on: replaced as a whole, and made anew in the child of a fork. Threads share it without a lock.
pub struct ForkSafe<T> {
    current: ArcSwap<Owned<T>>,
}

/// A value of this process, for the length of a call.
pub struct Held<T>(Guard<Arc<Owned<T>>>);

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> ForkSafe<T> {
    pub fn new(value: T) -> ForkSafe<T> {
        ForkSafe { current: ArcSwap::from_pointee(Owned::new(value)) }
    }

    /// The value, unless it came over from a parent.
    pub fn ours(&self) -> Option<Held<T>> {
        let held = self.current.load();
        held.is_ours().then_some(Held(held))
    }

    /// The value; if it came over from a parent, what `make` makes in its place.
    pub fn get<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Held<T>, E> {
        if let Some(held) = self.ours() {
            return Ok(held);
        }
        self.replace(make()?);
        Ok(Held(self.current.load()))
    }

    /// Puts `value` in place of the one there is; calls that hold that one go on with it.
    pub fn replace(&self, value: T) {
        self.current.store(Arc::new(Owned::new(value)));
    }
}
