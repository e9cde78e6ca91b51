//! Exceptions. The tree is Python's (`lanner/errors.py`); here is which error becomes which.

use lanner_client::{EngramError, Error, TensorError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// The exception for an error of the client; if the call ended because a signal's handler raised one, that.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    if let Some(raised) = crate::interrupt::take_raised() {
        return raised;
    }
    made(py, "of_code", error.code(), error.to_string(), &fields(error))
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
    made(py, "of_name", name, error.to_string(), &[])
}

/// The exception for what is wrong with the arguments of a look-up, in these words.
pub fn engram_arguments(py: Python<'_>, text: String) -> PyErr {
    made(py, "of_name", "EngramError", text, &[])
}

/// The exception for what is wrong with a sharded tensor.
pub fn tensor(py: Python<'_>, error: &TensorError) -> PyErr {
    let name = match error {
        TensorError::Store(error) => return exception(py, error),
        TensorError::MissingParts { .. } | TensorError::NoTensor { .. } => "MissingParts",
        _ => "TensorError",
    };
    made(py, "of_name", name, error.to_string(), &[])
}

fn made<'py, T: IntoPyObject<'py>>(
    py: Python<'py>,
    maker: &str,
    which: T,
    text: String,
    fields: &[(&str, u64)],
) -> PyErr {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let make = || {
        let errors = ERRORS.get_or_try_init(py, || Ok::<_, PyErr>(py.import("lanner.errors")?.unbind()))?;
        let keywords = PyDict::new(py);
        for (name, value) in fields {
            keywords.set_item(name, value)?;
        }
        errors.bind(py).getattr(maker)?.call((which, text), Some(&keywords))
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

/// A result of the client as one of Python.
pub trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Error> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error))
    }
}

impl<T> OrRaise<T> for Result<T, EngramError> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| engram(py, &error))
    }
}

impl<T> OrRaise<T> for Result<T, TensorError> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| tensor(py, &error))
    }
}
