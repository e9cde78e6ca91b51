//! Calls that end early because their thread's program wants it: a key that a user pressed, say. For languages whose signal handlers only
//! leave a note, which a thread that waits in here would never read.

use std::cell::Cell;
use std::time::Duration;

/// How often a call that waits asks.
pub(crate) const EVERY: Duration = Duration::from_millis(50);

thread_local! {
    static IS_WANTED: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// From now on a call of this thread that waits asks `is_wanted` every 50 ms, and if the answer is yes it ends as if its time-out had come: with
/// [`Error::Timeout`](crate::Error::Timeout), so a change may or may not have taken place. `None` ends that. Connecting doesn't ask.
pub fn interrupt_calls_if(is_wanted: Option<fn() -> bool>) {
    IS_WANTED.set(is_wanted);
}

/// What to ask, if there is anything.
pub(crate) fn question() -> Option<fn() -> bool> {
    IS_WANTED.get()
}
