//! Exceptions. The tree is Python's (`lanner/errors.py`); here is which error becomes which.

use crate::interrupt;
use lanner_client::{EngramError, Error, TensorError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// The exception for an error of the client, to be raised.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    item(py, error).unwrap_or_else(|raised| raised)
}

/// The exception for an error of the client, to stand in a list; or what was raised while it was made, by the handler of a signal for one.
pub fn item(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    made(py, "of_code", error.code(), error.to_string(), &fields(error))
}

/// The exception for an error that the client met while it connected to one of these servers, to be raised.
pub fn of_servers(py: Python<'_>, error: &Error, servers: &[Box<str>]) -> PyErr {
    let who = if servers.len() == 1 { "" } else { "one of " };
    let text = format!("{who}{}: {error}", servers.join(", "));
    made(py, "of_code", error.code(), text, &[]).unwrap_or_else(|raised| raised)
}

/// The numbers of an error that a program acts upon; the rest is in its text.
fn fields(error: &Error) -> Vec<(&'static str, u64)> {
    match *error {
        Error::NotFound { index }
        | Error::AlreadyExists { index }
        | Error::LeaseExpired { index }
        | Error::InvalidKey { index, .. }
        | Error::OutOfBounds { index, .. }
        | Error::Overlap { index, .. } => vec![("index", index)],
        Error::BufferTooSmall { index, needed, .. } => vec![("index", index), ("needed", needed)],
        Error::StoreFull { retry_ms, .. } => vec![("retry_ms", retry_ms)],
        _ => vec![],
    }
}

/// The exception for what is wrong with Engram tables or a look-up.
pub fn engram(py: Python<'_>, error: &EngramError) -> PyErr {
    let name = match error {
        EngramError::Store(error) => return exception(py, error),
        EngramError::MissingTables { .. } => "MissingTables",
        _ => "EngramError",
    };
    named(py, name, error.to_string())
}

/// The exception for what is wrong with the arguments of a look-up, in these words.
pub fn engram_arguments(py: Python<'_>, text: String) -> PyErr {
    named(py, "EngramError", text)
}

/// The exception for what is wrong with a sharded tensor.
pub fn tensor(py: Python<'_>, error: &TensorError) -> PyErr {
    let name = match error {
        TensorError::Store(error) => return exception(py, error),
        TensorError::MissingParts { .. } | TensorError::NoTensor { .. } => "MissingParts",
        _ => "TensorError",
    };
    named(py, name, error.to_string())
}

fn made<'py, T: IntoPyObject<'py>>(
    py: Python<'py>,
    maker: &str,
    which: T,
    text: String,
    fields: &[(&str, u64)],
) -> PyResult<PyErr> {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let errors = ERRORS.get_or_try_init(py, || Ok::<_, PyErr>(py.import("lanner.errors")?.unbind()))?;
    let keywords = PyDict::new(py);
    for (name, value) in fields {
        keywords.set_item(name, value)?;
    }
    Ok(PyErr::from_value(errors.bind(py).getattr(maker)?.call((which, text), Some(&keywords))?))
}

/// The exception of this class with this text, to be raised.
fn named(py: Python<'_>, class: &str, text: String) -> PyErr {
    made(py, "of_name", class, text, &[]).unwrap_or_else(|raised| raised)
}

/// The outcome of a call as one of Python: what a signal's handler raised meanwhile, else the value or the exception for the error.
pub trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

/// The outcome of a call whose errors become exceptions by `exception`.
fn raised_or<T, E>(
    py: Python<'_>,
    outcome: Result<T, E>,
    exception: impl FnOnce(&E) -> PyErr,
) -> PyResult<T> {
    interrupt::raised(py)?;
    outcome.map_err(|error| exception(&error))
}

impl<T> OrRaise<T> for Result<T, Error> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        raised_or(py, self, |error| exception(py, error))
    }
}

impl<T> OrRaise<T> for Result<T, EngramError> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        raised_or(py, self, |error| engram(py, error))
    }
}

impl<T> OrRaise<T> for Result<T, TensorError> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        raised_or(py, self, |error| tensor(py, error))
    }
}
