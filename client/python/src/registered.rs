//! `lanner.Registered`.

#![allow(
    clippy::disallowed_types,
    reason = "a device writes to one call's places at a time, whichever threads call"
)]

use crate::buffer::Export;
use crate::client::{Client, Options, check_lengths, read, stored};
use crate::errors::OrRaise;
use crate::fork::Owned;
use crate::keys::{Key, keys_of};
use crate::outcomes::{BadKeys, found};
use crate::ranges::ranges_of;
use crate::snapshot::Snapshot;
use lanner_client::{Freshness, Registered as RustRegistered, Registration};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyMemoryView};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Memory that devices read to and put from directly, made by ``Client.register``. The memory can't be resized meanwhile, and servers of the client can read
/// it. Places are ``(start, length)`` in bytes, ``ValueError`` for those outside it. Threads may share it, but one call waits for the other. After a fork the
/// child registers anew, and so does who has closed it (``RuntimeError``).
#[pyclass(module = "lanner", frozen, weakref)]
pub struct Registered {
    // Declared before the view: what is registered ends before the memory is let go.
    memory: Mutex<Option<Owned<RustRegistered<'static>>>>,
    view: Mutex<Option<Py<PyMemoryView>>>,
    bytes: usize,
}

/// A place in the memory: where it begins and how long it is, in bytes. As wide as to take what is no place, too.
type Place = (i128, i128);

impl Registered {
    /// Registers the memory of `buffer` for `client`.
    pub fn of(client: &Bound<'_, Client>, buffer: &Bound<'_, PyAny>) -> PyResult<Registered> {
        let (py, ours) = (client.py(), client.get().ours(client.py())?);
        let view = Export::view_of(buffer)?;
        let mut export = Export::writable(view.as_any())?;
        let (start, bytes) = (export.bytes_mut().as_mut_ptr(), export.len());
        // SAFETY: the view keeps the memory where it is until it's dropped, which is after what is made from this. That nobody else uses it
        // during a call is the caller's affair, as with every buffer of Python's.
        let memory: &'static mut [u8] = unsafe { std::slice::from_raw_parts_mut(start, bytes) };
        drop(export);
        let made = ours.register(memory).or_raise(py)?;
        Ok(Registered {
            memory: Mutex::new(Some(Owned::new(made))),
            view: Mutex::new(Some(view.unbind())),
            bytes,
        })
    }

    fn ranges(&self, places: &[Place]) -> PyResult<Vec<Range<usize>>> {
        let within = |start: i128, length: i128| {
            let (start, length) = (usize::try_from(start).ok()?, usize::try_from(length).ok()?);
            start.checked_add(length).filter(|end| *end <= self.bytes).map(|end| start..end)
        };
        let range = |&(start, length): &Place| match within(start, length) {
            Some(range) => Ok(range),
            None => Err(PyValueError::new_err(format!(
                "{length} bytes from {start} on are no place in {} bytes of registered memory",
                self.bytes
            ))),
        };
        places.iter().map(range).collect()
    }

    /// Calls `act` with the memory, without the GIL. One call at a time.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut RustRegistered<'static>) -> T + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            let mut memory = lock(&self.memory);
            let owned = memory.as_mut().ok_or("the registration was closed; register the memory again")?;
            let over =
                || "the registration belongs to the parent of this process; register the memory here, too";
            Ok(act(owned.ours_or(|| Err(over()))?))
        })
        .map_err(|text: &str| PyRuntimeError::new_err(text))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl Registered {
    /// Whether a device has the memory; without RDMA calls copy, as they do for any memory.
    #[getter]
    fn is_with_device(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |memory| memory.registration() == Registration::WithDevice)
    }

    /// Length of the memory in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    /// ``Client.get_into`` to ``length`` bytes from ``start`` on.
    fn get_into(&self, py: Python<'_>, key: Key, start: i128, length: i128) -> PyResult<Option<u64>> {
        let place = self.ranges(&[(start, length)])?.remove(0);
        let outcome = self.with(py, |memory| memory.get_into(key.as_ref(), place))?;
        found(py, outcome)
    }

    /// ``Client.get_into_batch`` to places that don't overlap.
    #[pyo3(signature = (keys, places, *, return_exceptions = false))]
    fn get_into_batch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
        places: Vec<Place>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        check_lengths(keys.len(), places.len(), "places")?;
        let bad = BadKeys::of(&keys, return_exceptions);
        let (keys, places) = (bad.without(keys), bad.without(self.ranges(&places)?));
        let outcomes = self.with(py, |memory| memory.get_into_batch(&keys, &places))?;
        read(py, bad.merged(outcomes.or_raise(py)?), return_exceptions)
    }

    /// ``Client.put_batch`` (with ``replace``: ``upsert_batch``) of the bytes at each place.
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, places, *, replace = false, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn put_batch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
        places: Vec<Place>,
        replace: bool,
        ttl: Option<f64>,
        pin: Option<&str>,
        group: Option<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        check_lengths(keys.len(), places.len(), "places")?;
        let options = Options::new(ttl, pin, group)?;
        let bad = BadKeys::of(&keys, return_exceptions);
        let items: Vec<(Key, Range<usize>)> =
            bad.without(keys.into_iter().zip(self.ranges(&places)?).collect());
        let outcomes = self.with(py, |memory| match replace {
            true => memory.upsert_batch(&items, options.as_rust()),
            false => memory.put_batch(&items, options.as_rust()),
        })?;
        stored(py, bad.merged(outcomes.or_raise(py)?), return_exceptions)
    }

    /// ``Snapshot.read_into`` this memory.
    #[pyo3(signature = (snapshot, ranges, *, checked = false))]
    fn read_from_snapshot(
        &self,
        py: Python<'_>,
        snapshot: &Snapshot,
        ranges: &Bound<'_, PyAny>,
        checked: bool,
    ) -> PyResult<()> {
        let (ranges, held) = (ranges_of(ranges)?, snapshot.held(py)?);
        let freshness = if checked { Freshness::Checked } else { Freshness::Lease };
        self.with(py, |memory| memory.read_ranges_from_snapshot(&held, &ranges, freshness))?.or_raise(py)
    }

    /// Ends the registration, when the call that uses it has returned; the memory can be resized and freed again. It ends by itself when nobody refers to this any more.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.memory).take()));
        drop(lock(&self.view).take());
    }

    fn __len__(&self) -> usize {
        self.bytes
    }
}
