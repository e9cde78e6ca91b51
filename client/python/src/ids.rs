//! Row ids of Engram look-ups: int64 arrays of shape [B, L, H], or lists nested like that.

use crate::buffer::{self, Export};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// Row ids of one layer.
pub enum Ids<'py> {
    Array { export: Export<'py>, shape: [usize; 3] },
    Lists { ids: Vec<i64>, shape: [usize; 3] },
}

impl<'py> Ids<'py> {
    pub fn of(object: &Bound<'py, PyAny>) -> PyResult<Ids<'py>> {
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            return of_lists(object.extract()?);
        }
        let export = Export::of_integers(object)?;
        match *export.shape() {
            [batch, length, heads] => Ok(Ids::Array { export, shape: [batch, length, heads] }),
            ref shape => {
                Err(PyValueError::new_err(format!("row ids have the shape {shape:?}; they are [B, L, H]")))
            }
        }
    }

    pub fn as_slice(&self) -> &[i64] {
        match self {
            Ids::Array { export, .. } => export.integers(),
            Ids::Lists { ids, .. } => ids,
        }
    }

    /// `ValueError` if the ids lie in the memory of `out`: rows that are written there would change them while they're read.
    pub fn check_apart_from(&self, out: &Export<'_>) -> PyResult<()> {
        let Ids::Array { export, .. } = self else { return Ok(()) };
        buffer::check_apart([(export.address(), export.len()), (out.address(), out.len())].into_iter())
            .map_err(|_| {
                PyValueError::new_err(
                    "the row ids lie in the memory that the rows are written to; copy the ids first",
                )
            })
    }

    pub fn shape(&self) -> [usize; 3] {
        match self {
            Ids::Array { shape, .. } | Ids::Lists { shape, .. } => *shape,
        }
    }
}

fn of_lists<'py>(lists: Vec<Vec<Vec<i64>>>) -> PyResult<Ids<'py>> {
    let length = lists.first().map_or(0, Vec::len);
    let heads = lists.first().and_then(|rows| rows.first()).map_or(0, Vec::len);
    let is_even = lists.iter().all(|rows| rows.len() == length && rows.iter().all(|ids| ids.len() == heads));
    if !is_even {
        return Err(PyValueError::new_err("row ids are lists of different lengths; they are [B, L, H]"));
    }
    let shape = [lists.len(), length, heads];
    Ok(Ids::Lists { ids: lists.into_iter().flatten().flatten().collect(), shape })
}
