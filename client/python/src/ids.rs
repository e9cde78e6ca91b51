//! Row ids of Engram look-ups: int64 arrays of shape [B, L, H], or lists nested like that.

use crate::buffer::{self, Export};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use smallvec::SmallVec;

/// Row ids of one layer, copied: they are checked once and read later, and must be the same both times whatever other threads of Python's
/// do to their array. A token's have room on the stack.
pub struct Ids {
    ids: SmallVec<[i64; 64]>,
    shape: [usize; 3],
    /// Address and length in bytes of the array that they come from.
    source: Option<(usize, usize)>,
}

impl Ids {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Ids> {
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            return of_lists(object.extract()?);
        }
        let export = Export::of_integers(object)?;
        match *export.shape() {
            [batch, length, heads] => Ok(Ids {
                ids: SmallVec::from_slice(export.integers()),
                shape: [batch, length, heads],
                source: Some((export.address(), export.len())),
            }),
            ref shape => {
                Err(PyValueError::new_err(format!("row ids have the shape {shape:?}; they are [B, L, H]")))
            }
        }
    }

    pub fn as_slice(&self) -> &[i64] {
        &self.ids
    }

    /// `ValueError` if the ids lie in the memory of `out`: a call that writes over its own arguments isn't meant.
    pub fn check_apart_from(&self, out: &Export<'_>) -> PyResult<()> {
        let Some(source) = self.source else { return Ok(()) };
        buffer::check_apart([source, (out.address(), out.len())].into_iter()).map_err(|_| {
            PyValueError::new_err(
                "the row ids lie in the memory that the rows are written to; copy the ids first",
            )
        })
    }

    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }
}

fn of_lists(lists: Vec<Vec<Vec<i64>>>) -> PyResult<Ids> {
    let length = lists.first().map_or(0, Vec::len);
    let heads = lists.first().and_then(|rows| rows.first()).map_or(0, Vec::len);
    let is_even = lists.iter().all(|rows| rows.len() == length && rows.iter().all(|ids| ids.len() == heads));
    if !is_even {
        return Err(PyValueError::new_err("row ids are lists of different lengths; they are [B, L, H]"));
    }
    let shape = [lists.len(), length, heads];
    Ok(Ids { ids: lists.into_iter().flatten().flatten().collect(), shape, source: None })
}
