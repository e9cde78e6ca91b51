//! What a batch answers: a value for each item in its place. A miss is `None`, and what is no answer at all is an exception, raised or,
//! if the caller wishes, in the item's place.

use crate::errors::exception;
use lanner_client::Error;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// The outcomes as a list; `hit` makes an item of a success. `miss` is what `NotFound` and `AlreadyExists` become.
pub fn list_of<'py, T>(
    py: Python<'py>,
    outcomes: Vec<Result<T, Error>>,
    return_exceptions: bool,
    miss: &Bound<'py, PyAny>,
    hit: impl Fn(T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let item = |outcome| match outcome {
        Ok(value) => hit(value),
        Err(Error::NotFound { .. } | Error::AlreadyExists { .. }) => Ok(miss.clone()),
        Err(error) if return_exceptions => Ok(exception(py, &error).into_value(py).into_bound(py).into_any()),
        Err(error) => Err(exception(py, &error)),
    };
    let items = outcomes.into_iter().map(item).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, items)
}

/// The outcome of one item: a miss is `None`.
pub fn found<T>(py: Python<'_>, outcome: Result<T, Error>) -> PyResult<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(exception(py, &error)),
    }
}
