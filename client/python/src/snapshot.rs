//! `lanner.Snapshot`.

use crate::buffer::Export;
use crate::client::Client;
use crate::errors::{OrRaise, exception};
use crate::fork::{ForkSafe, Held};
use crate::keys::Key;
use crate::ranges::ranges_of;
use lanner_client::{Clock, Error, Freshness, Snapshot as RustSnapshot};
use pyo3::prelude::*;
use std::time::Duration;

/// Leased descriptors of a set of objects, made by ``Client.prepare_snapshot`` and ``Client.match_chain``: prepared once and read from many times without
/// asking a server. Reads see the versions that were leased. Threads may share it.
#[pyclass(module = "lanner", frozen, weakref)]
pub struct Snapshot {
    client: Py<Client>,
    keys: Vec<Box<[u8]>>,
    /// Replaced as a whole by a refresh; reads that are under way go on with the old one.
    snapshot: ForkSafe<RustSnapshot>,
}

impl Snapshot {
    /// The snapshot of this process.
    pub fn held(&self, py: Python<'_>) -> PyResult<Held<RustSnapshot>> {
        // What came over from a parent has ended for this process.
        self.snapshot.ours().ok_or_else(|| exception(py, &Error::LeaseExpired { index: 0 }))
    }

    /// A snapshot of `keys`.
    pub fn prepare(client: &Bound<'_, Client>, keys: Vec<Box<[u8]>>) -> PyResult<Snapshot> {
        let (py, ours) = (client.py(), client.get().ours(client.py())?);
        let snapshot = py.detach(|| ours.prepare_snapshot(&keys)).or_raise(py)?;
        Ok(Snapshot { client: client.clone().unbind(), keys, snapshot: ForkSafe::new(snapshot) })
    }

    /// A snapshot of the leading blocks of a chain that are there.
    pub fn of_chain(client: &Bound<'_, Client>, keys: &[Key]) -> PyResult<Snapshot> {
        let (py, ours) = (client.py(), client.get().ours(client.py())?);
        let snapshot = py.detach(|| ours.match_chain(keys)).or_raise(py)?;
        let stored = lanner_client::chain::stored_keys(&keys[..snapshot.len()]);
        let keys = stored.iter().map(|key| key[..].into()).collect();
        Ok(Snapshot { client: client.clone().unbind(), keys, snapshot: ForkSafe::new(snapshot) })
    }
}

#[pymethods]
impl Snapshot {
    /// Reads ranges through the snapshot and nothing else, to ``buffer``; ranges as for ``Client.read_ranges``, their key index being a place in the
    /// snapshot. ``Stale`` if the lease ended before the read was done, or, with ``checked``, if an object has been replaced: then nothing counts as read. With
    /// ``refresh`` it asks the servers again when that is due, and once more after ``Stale``. ``InvalidArgument`` with the ``index`` of a range that is out of
    /// bounds, before anything is read. Over shared memory it doesn't wait for a server.
    #[pyo3(signature = (ranges, buffer, *, checked = false, refresh = false))]
    fn read_into(
        &self,
        py: Python<'_>,
        ranges: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        checked: bool,
        refresh: bool,
    ) -> PyResult<()> {
        let (ranges, mut export) = (ranges_of(ranges)?, Export::writable(buffer)?);
        let target = export.bytes_mut();
        let freshness = if checked { Freshness::Checked } else { Freshness::Lease };
        if refresh && self.needs_refresh() {
            self.refresh(py)?;
        }
        let mut read = || {
            let client = self.client.get().ours(py)?;
            // What came over from a parent has ended for this process.
            let Some(snapshot) = self.snapshot.ours() else {
                return Ok(Err(Error::LeaseExpired { index: 0 }));
            };
            Ok::<_, PyErr>(
                py.detach(|| client.read_ranges_from_snapshot(&snapshot, &ranges, target, freshness)),
            )
        };
        match read()? {
            Err(Error::LeaseExpired { .. } | Error::EpochChanged) if refresh => {
                self.refresh(py)?;
                read()?.or_raise(py)
            }
            outcome => outcome.or_raise(py),
        }
    }

    /// Asks again for all keys: new versions, new leases. If that fails (``NotFound`` with the ``index`` of a key that is gone) the snapshot stays as it was.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        let client = self.client.get().ours(py)?;
        let fresh = py.detach(|| client.prepare_snapshot(&self.keys)).or_raise(py)?;
        self.snapshot.replace(fresh);
        Ok(())
    }

    /// Whether the middle of the lease window that remained when it was made has passed.
    #[getter]
    fn needs_refresh(&self) -> bool {
        self.snapshot.ours().is_none_or(|snapshot| snapshot.needs_refresh(Clock.now()))
    }

    /// Seconds until the earliest lease ends; 0 if one has.
    #[getter]
    fn remaining(&self) -> f64 {
        self.snapshot
            .ours()
            .map_or(Duration::ZERO, |snapshot| snapshot.deadline().since(Clock.now()))
            .as_secs_f64()
    }

    /// Length of the value of the key at ``index`` in bytes. ``IndexError`` if there is no such key. Doesn't block.
    fn value_bytes(&self, py: Python<'_>, index: usize) -> PyResult<u64> {
        let bytes = self.snapshot.ours().map(|snapshot| snapshot.value_bytes(index));
        match bytes {
            Some(Some(bytes)) => Ok(bytes),
            Some(None) => {
                let text = format!("there is no key {index} in a snapshot of {} keys", self.keys.len());
                Err(pyo3::exceptions::PyIndexError::new_err(text))
            }
            None => Err(exception(py, &Error::LeaseExpired { index: index as u64 })),
        }
    }

    fn __len__(&self) -> usize {
        self.keys.len()
    }
}
