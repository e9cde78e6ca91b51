//! `lanner.ShardedTensor` and `lanner.TensorSlice`.

#![allow(clippy::disallowed_types, reason = "a slice is for one read at a time, whichever threads call")]

use crate::buffer::Export;
use crate::client::Client;
use crate::errors::OrRaise;
use crate::fork::{ForkSafe, Held, Owned};
use lanner_client::Dtype;
use lanner_client::tensor::{ShardedTensor as RustTensor, TensorError, TensorSlice as RustSlice, TensorSpec};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use std::ops::Range;
use std::sync::Mutex;

/// A tensor in the store, cut along one axis into parts that different ranks write and of which any rank reads any partition. Made by ``create`` and ``open``.
/// Threads may share it.
#[pyclass(module = "lanner", frozen, weakref)]
pub struct ShardedTensor {
    client: Py<Client>,
    spec: TensorSpec,
    tensor: ForkSafe<RustTensor>,
}

impl ShardedTensor {
    fn of(client: &Bound<'_, Client>, tensor: RustTensor) -> ShardedTensor {
        let spec = tensor.spec().clone();
        ShardedTensor { client: client.clone().unbind(), spec, tensor: ForkSafe::new(tensor) }
    }

    fn ours(&self, py: Python<'_>) -> PyResult<Held<RustTensor>> {
        self.tensor.get(|| {
            let client = self.client.get().ours(py)?;
            py.detach(|| RustTensor::open_as(client.clone(), self.spec.clone())).or_raise(py)
        })
    }
}

#[pymethods]
impl ShardedTensor {
    /// Announces a tensor; every rank may do it. ``dtype`` as torch names it. ``parts``: how many of equal length (the first are longer by one if need be), or
    /// the length of each along ``split_axis``; 1 to 4096. ``TensorError`` if there can't be such a tensor, or the name stands for another one.
    #[staticmethod]
    #[pyo3(signature = (client, name, dtype, shape, *, split_axis = 0, parts))]
    fn create(
        client: &Bound<'_, Client>,
        name: &str,
        dtype: &str,
        shape: Vec<u64>,
        split_axis: usize,
        parts: &Bound<'_, PyAny>,
    ) -> PyResult<ShardedTensor> {
        let py = client.py();
        let dtype = dtype.parse::<Dtype>().or_raise(py)?;
        let spec = match parts.extract::<usize>() {
            Ok(count) => TensorSpec::evenly(name, dtype, &shape, split_axis, count).or_raise(py)?,
            Err(error) if parts.is_instance_of::<PyInt>() => return Err(error),
            Err(_) => {
                TensorSpec { name: name.into(), dtype, shape, split_axis, part_lengths: parts.extract()? }
            }
        };
        let ours = client.get().ours(py)?;
        let tensor = py.detach(|| RustTensor::create(ours.clone(), spec)).or_raise(py)?;
        Ok(ShardedTensor::of(client, tensor))
    }

    /// The tensor of this name; ``MissingParts`` if there is none.
    #[staticmethod]
    fn open(client: &Bound<'_, Client>, name: &str) -> PyResult<ShardedTensor> {
        let (py, ours) = (client.py(), client.get().ours(client.py())?);
        let tensor = py.detach(|| RustTensor::open(ours.clone(), name)).or_raise(py)?;
        Ok(ShardedTensor::of(client, tensor))
    }

    /// Stores part ``part``, row-major, in place of the one that may be there. ``TensorError`` if there is no such part, or ``data`` isn't exactly as large.
    fn write_part(&self, py: Python<'_>, part: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let export = Export::of(data)?;
        let (tensor, bytes) = (self.ours(py)?, export.bytes());
        py.detach(|| tensor.write_part(part, bytes)).or_raise(py)
    }

    /// The whole tensor, to be read. Reads nothing yet.
    fn whole(this: &Bound<'_, ShardedTensor>) -> PyResult<TensorSlice> {
        TensorSlice::of(this, 0, |tensor| tensor.whole())
    }

    /// The indices ``start`` to ``end`` (without it) along ``axis``, to be read. Computes which bytes of which parts those are; reads nothing yet and doesn't block.
    /// ``TensorError`` if they aren't in the tensor, or lie in more pieces than can be listed (16777216).
    fn slice(this: &Bound<'_, ShardedTensor>, axis: usize, start: u64, end: u64) -> PyResult<TensorSlice> {
        TensorSlice::of(this, axis, |tensor| tensor.slice(axis, start, end))
    }

    /// Part ``index`` of the tensor cut evenly into ``count`` along ``axis``, whoever wrote it; as ``slice``.
    fn partition(
        this: &Bound<'_, ShardedTensor>,
        axis: usize,
        count: usize,
        index: usize,
    ) -> PyResult<TensorSlice> {
        TensorSlice::of(this, axis, |tensor| tensor.partition(axis, count, index))
    }

    /// Removes the tensor and its parts; whether there was one.
    fn remove(&self, py: Python<'_>) -> PyResult<bool> {
        let tensor = self.ours(py)?;
        py.detach(|| RustTensor::clone(&tensor).remove()).or_raise(py)
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.spec.name
    }

    /// The type of its elements, as torch names it.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.spec.dtype.name()
    }

    /// Its length along each axis.
    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.spec.shape.clone()
    }

    /// The axis that it's cut along.
    #[getter]
    fn split_axis(&self) -> usize {
        self.spec.split_axis
    }

    /// The length of each part along that axis.
    #[getter]
    fn part_lengths(&self) -> Vec<u64> {
        self.spec.part_lengths.clone()
    }
}

/// A slice of a tensor, to be read again and again. What is read may be one lease old, each part for itself: parts that were written again
/// since, or removed, are seen when the lease has ended; a slice made now reads what is there now. One read at a time: threads take a slice
/// each (``RuntimeError`` otherwise).
#[pyclass(module = "lanner", frozen, weakref)]
pub struct TensorSlice {
    tensor: Py<ShardedTensor>,
    axis: usize,
    indices: Range<u64>,
    bytes: u64,
    /// Held for the length of a read.
    slice: Mutex<Owned<RustSlice>>,
}

impl TensorSlice {
    fn of(
        tensor: &Bound<'_, ShardedTensor>,
        axis: usize,
        make: impl FnOnce(&RustTensor) -> Result<RustSlice, TensorError>,
    ) -> PyResult<TensorSlice> {
        let slice = make(&*tensor.get().ours(tensor.py())?).or_raise(tensor.py())?;
        let (tensor, indices, bytes) = (tensor.clone().unbind(), slice.indices(), slice.bytes());
        Ok(TensorSlice { tensor, axis, indices, bytes, slice: Mutex::new(Owned::new(slice)) })
    }
}

#[pymethods]
impl TensorSlice {
    /// Reads the slice, row-major, to ``buffer``, which is exactly as large: straight to it, from all shards in parallel, from the second
    /// time on without asking for anything first while the leases last. Blocks. ``MissingParts`` names the parts that aren't there,
    /// ``TensorError`` a buffer or a part of another size; then the buffer's contents mean nothing.
    fn read_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut export = Export::writable(buffer)?;
        let Ok(mut slice) = self.slice.try_lock() else {
            return Err(PyRuntimeError::new_err(
                "another thread is reading this slice, and it's for one read at a time: take a slice for each thread",
            ));
        };
        let slice = slice.ours_or(|| {
            let Range { start, end } = self.indices;
            self.tensor.get().ours(py)?.slice(self.axis, start, end).or_raise(py)
        })?;
        let target = export.bytes_mut();
        py.detach(|| slice.read_into(target)).or_raise(py)
    }

    /// Length of the slice in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// Its length along each axis.
    #[getter]
    fn shape(&self) -> Vec<u64> {
        let mut shape = self.tensor.get().spec.shape.clone();
        shape[self.axis] = self.indices.end - self.indices.start;
        shape
    }
}
