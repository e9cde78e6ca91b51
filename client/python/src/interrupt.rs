//! Signals during a call. Python's own handlers only leave a note, which the main thread reads between two instructions; a call that waits is
//! one instruction, so it looks for notes itself. What a handler raises ends the call and is raised in its place.

use crate::fork::forks;
use pyo3::intern;
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};

thread_local! {
    /// The process, by its number of forks, for which it's settled whether this thread's calls look for notes. The thread that forks is the
    /// child's main thread, whichever it was of the parent's.
    static SET_UP_IN: Cell<Option<u64>> = const { Cell::new(None) };
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Has this thread's calls look for signals from now on, if it's the thread whose affair they are. The others mustn't: at the end of the
/// interpreter they would wait for a lock that nobody gives up any more.
pub fn heed_signals(py: Python<'_>) -> PyResult<()> {
    let process = Some(forks());
    if SET_UP_IN.get() != process {
        let threading = py.import(intern!(py, "threading"))?;
        let current = threading.call_method0(intern!(py, "get_ident"))?;
        if threading.call_method0(intern!(py, "main_thread"))?.getattr(intern!(py, "ident"))?.eq(current)? {
            lanner_client::interrupt_calls_if(Some(has_raised));
        }
        SET_UP_IN.set(process);
    }
    Ok(())
}

/// Runs the handlers of signals that have come; whether one of them raised an exception.
fn has_raised() -> bool {
    Python::attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    })
}

/// What a handler raised during this thread's last call, or raises now that it's over: a call that was connecting has looked for no notes.
/// Whatever became of the call, this is to be raised in its place.
pub fn raised(py: Python<'_>) -> PyResult<()> {
    RAISED.take().map_or(Ok(()), Err)?;
    py.check_signals()
}
