//! `lanner.ShardedTensor` and `lanner.TensorSlice`.

use crate::buffer::Export;
use crate::client::Client;
use crate::errors::OrRaise;
use crate::fork::{ForkSafe, Held, Owned};
use lanner_client::Dtype;
use lanner_client::tensor::{ShardedTensor as RustTensor, TensorSlice as RustSlice, TensorSpec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A tensor in the store, cut along one axis into parts that different ranks write.
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
            Ok(0) => return Err(no_parts()),
            Ok(count) => TensorSpec::evenly(name, dtype, &shape, split_axis, count),
            Err(_) => {
                TensorSpec { name: name.into(), dtype, shape, split_axis, part_lengths: parts.extract()? }
            }
        };
        let ours = client.get().ours(py)?;
        let tensor = py.detach(|| RustTensor::create(ours.clone(), spec)).or_raise(py)?;
        Ok(ShardedTensor::of(client, tensor))
    }

    #[staticmethod]
    fn open(client: &Bound<'_, Client>, name: &str) -> PyResult<ShardedTensor> {
        let (py, ours) = (client.py(), client.get().ours(client.py())?);
        let tensor = py.detach(|| RustTensor::open(ours.clone(), name)).or_raise(py)?;
        Ok(ShardedTensor::of(client, tensor))
    }

    fn write_part(&self, py: Python<'_>, part: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let export = Export::of(data)?;
        let (tensor, bytes) = (self.ours(py)?, export.bytes());
        py.detach(|| tensor.write_part(part, bytes)).or_raise(py)
    }

    fn whole(this: &Bound<'_, ShardedTensor>) -> PyResult<TensorSlice> {
        TensorSlice::of(this, 0, 0, this.get().spec.shape[0])
    }

    fn slice(this: &Bound<'_, ShardedTensor>, axis: usize, start: u64, end: u64) -> PyResult<TensorSlice> {
        TensorSlice::of(this, axis, start, end)
    }

    fn partition(
        this: &Bound<'_, ShardedTensor>,
        axis: usize,
        count: usize,
        index: usize,
    ) -> PyResult<TensorSlice> {
        if count == 0 {
            return Err(no_parts());
        }
        let spec = &this.get().spec;
        let cut = TensorSpec::evenly(&spec.name, spec.dtype, &spec.shape, axis, count);
        let start: u64 = cut.part_lengths.iter().take(index).sum();
        TensorSlice::of(this, axis, start, start + cut.part_lengths.get(index).copied().unwrap_or(0))
    }

    fn remove(&self, py: Python<'_>) -> PyResult<bool> {
        let tensor = self.ours(py)?;
        py.detach(|| RustTensor::clone(&tensor).remove()).or_raise(py)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.spec.name
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.spec.dtype.name()
    }

    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.spec.shape.clone()
    }

    #[getter]
    fn split_axis(&self) -> usize {
        self.spec.split_axis
    }

    #[getter]
    fn part_lengths(&self) -> Vec<u64> {
        self.spec.part_lengths.clone()
    }
}

fn no_parts() -> PyErr {
    PyValueError::new_err("a tensor can't be cut into 0 parts; give 1 or more")
}

/// A slice of a tensor, ready to be read again and again. One read at a time: threads take a slice each.
#[pyclass(module = "lanner", weakref)]
pub struct TensorSlice {
    tensor: Py<ShardedTensor>,
    axis: usize,
    start: u64,
    end: u64,
    slice: Owned<RustSlice>,
}

impl TensorSlice {
    fn of(tensor: &Bound<'_, ShardedTensor>, axis: usize, start: u64, end: u64) -> PyResult<TensorSlice> {
        let slice = Self::made(tensor.py(), tensor.get(), (axis, start, end))?;
        Ok(TensorSlice { tensor: tensor.clone().unbind(), axis, start, end, slice: Owned::new(slice) })
    }

    fn made(py: Python<'_>, tensor: &ShardedTensor, at: (usize, u64, u64)) -> PyResult<RustSlice> {
        let (axis, start, end) = at;
        tensor.ours(py)?.slice(axis, start, end).or_raise(py)
    }
}

#[pymethods]
impl TensorSlice {
    fn read_into(&mut self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut export = Export::writable(buffer)?;
        let (tensor, at) = (self.tensor.get(), (self.axis, self.start, self.end));
        let slice = self.slice.ours_or(|| Self::made(py, tensor, at))?;
        let target = export.bytes_mut();
        py.detach(|| slice.read_into(target)).or_raise(py)
    }

    #[getter]
    fn nbytes(&mut self, py: Python<'_>) -> PyResult<u64> {
        let (tensor, at) = (self.tensor.get(), (self.axis, self.start, self.end));
        Ok(self.slice.ours_or(|| Self::made(py, tensor, at))?.bytes())
    }

    #[getter]
    fn shape(&self) -> Vec<u64> {
        let mut shape = self.tensor.get().spec.shape.clone();
        shape[self.axis] = self.end - self.start;
        shape
    }
}
