//! Ranges of a read: a list of `(key index, source offset, length, destination offset)`, or an int64 array of shape [n, 4].

use crate::buffer::Export;
use lanner_client::Range;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// The ranges in `object`.
pub fn ranges_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<Range>> {
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let lists: Vec<[Number; 4]> = object.extract()?;
        let range = |(index, fields): (usize, [Number; 4])| {
            let numbers = fields.map(|field| field.0);
            let wrong =
                || PyValueError::new_err(format!("range {index} has a number that is negative or too large"));
            let [Some(key), Some(source_offset), Some(length), Some(destination_offset)] = numbers else {
                return Err(wrong());
            };
            let key = u32::try_from(key).map_err(|_| wrong())?;
            Ok(Range { key, source_offset, length, destination_offset })
        };
        return lists.into_iter().enumerate().map(range).collect();
    }
    let export = Export::of_integers(object)?;
    let shape = export.shape();
    if shape.len() != 2 || shape[1] != 4 {
        return Err(PyValueError::new_err(format!(
            "ranges have the shape {shape:?}; they are [n, 4]: key index, source offset, length, destination offset"
        )));
    }
    export.integers().chunks_exact(4).enumerate().map(|(index, fields)| range_of(index, fields)).collect()
}

/// An integer of Python's; none if it is negative or too large.
struct Number(Option<u64>);

impl<'py> FromPyObject<'_, 'py> for Number {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Number> {
        match object.extract::<u64>() {
            Ok(number) => Ok(Number(Some(number))),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => Ok(Number(None)),
            Err(error) => Err(error),
        }
    }
}

fn range_of(index: usize, fields: &[i64]) -> PyResult<Range> {
    let wrong = |_| {
        PyValueError::new_err(format!("range {index} has a number that is negative or too large: {fields:?}"))
    };
    Ok(Range {
        key: u32::try_from(fields[0]).map_err(wrong)?,
        source_offset: u64::try_from(fields[1]).map_err(wrong)?,
        length: u64::try_from(fields[2]).map_err(wrong)?,
        destination_offset: u64::try_from(fields[3]).map_err(wrong)?,
    })
}
