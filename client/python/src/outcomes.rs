//! What a batch answers: a value for each item in its place. A miss is `None`, and what is no answer at all is an exception, raised or,
//! if the caller wishes, in the item's place.

use crate::errors::{OrRaise, exception, item};
use crate::interrupt;
use crate::keys::Key;
use lanner_client::Error;
use lanner_shared::key;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Which keys of a batch are none, so that the others can be asked about without them.
pub struct BadKeys(Vec<(usize, Error)>);

impl BadKeys {
    /// Those of `keys`, if the caller wants exceptions in their places. Else none: the call itself refuses the first.
    pub fn of(keys: &[Key], return_exceptions: bool) -> BadKeys {
        let refused = |(index, key): (usize, &Key)| Some((index, key::checked(key.as_ref(), index).err()?));
        BadKeys(if return_exceptions {
            keys.iter().enumerate().filter_map(refused).collect()
        } else {
            vec![]
        })
    }

    /// The items without those of bad keys.
    pub fn without<T>(&self, mut items: Vec<T>) -> Vec<T> {
        let mut refused = self.0.iter().map(|(index, _)| *index).peekable();
        let mut index = 0;
        if !self.0.is_empty() {
            items.retain(|_| {
                let is_bad = refused.next_if_eq(&index).is_some();
                index += 1;
                !is_bad
            });
        }
        items
    }

    /// The outcomes of what [`BadKeys::without`] left, and those of the bad keys in their places.
    pub fn merged<T>(self, outcomes: Vec<Result<T, Error>>) -> Vec<Result<T, Error>> {
        if self.0.is_empty() {
            return outcomes;
        }
        let (mut others, mut refused) = (outcomes.into_iter(), self.0.into_iter().peekable());
        let count = others.len() + refused.len();
        let item = |index| match refused.next_if(|(bad, _)| *bad == index) {
            Some((_, error)) => Some(Err(error)),
            None => others.next().map(|outcome| outcome.map_err(|error| error.at(index as u64))),
        };
        (0..count).filter_map(item).collect()
    }
}

/// The outcomes as a list; `hit` makes an item of a success. `miss` is what `NotFound` and `AlreadyExists` become.
pub fn list_of<'py, T>(
    py: Python<'py>,
    outcomes: Vec<Result<T, Error>>,
    return_exceptions: bool,
    miss: &Bound<'py, PyAny>,
    hit: impl Fn(T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    interrupt::raised(py)?;
    let answer = |outcome| match outcome {
        Ok(value) => hit(value),
        Err(Error::NotFound { .. } | Error::AlreadyExists { .. }) => Ok(miss.clone()),
        Err(error) if return_exceptions => Ok(item(py, &error)?.into_value(py).into_bound(py).into_any()),
        Err(error) => Err(exception(py, &error)),
    };
    let items = outcomes.into_iter().map(answer).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, items)
}

/// The outcome of one item: a miss is `None`.
pub fn found<T>(py: Python<'_>, outcome: Result<T, Error>) -> PyResult<Option<T>> {
    match outcome {
        Err(Error::NotFound { .. }) => Ok::<_, Error>(None).or_raise(py),
        outcome => outcome.map(Some).or_raise(py),
    }
}
