//! `lanner.Client`.

use crate::addresses::{self, Parts, Span};
use crate::buffer::{self, Export};
use crate::errors::OrRaise;
use crate::fork::{ForkSafe, Held};
use crate::interrupt;
use crate::keys::Key;
use crate::outcomes::{BadKeys, found, list_of};
use crate::ranges::ranges_of;
use crate::registered::Registered;
use crate::snapshot::Snapshot;
use lanner_client::{Client as RustClient, ClientConfig, Pin, PutOptions};
use lanner_shared::chain;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList};
use std::time::Duration;

/// A handle on one or more servers. See the stubs (`_lanner.pyi`) for what each call does.
#[pyclass(module = "lanner", frozen, weakref)]
pub struct Client {
    config: ClientConfig,
    client: ForkSafe<RustClient>,
}

/// What a put is told beside key and value.
pub struct Options {
    ttl: Option<Duration>,
    pin: Pin,
    group: Option<Key>,
}

impl Options {
    pub fn new(ttl: Option<f64>, pin: Option<&str>, group: Option<Key>) -> PyResult<Options> {
        let pin = match pin {
            None | Some("none") => Pin::None,
            Some("soft") => Pin::Soft,
            Some("hard") => Pin::Hard,
            Some(other) => {
                return Err(PyValueError::new_err(format!("pin '{other}' is none of none, soft, hard")));
            }
        };
        let seconds = |ttl: f64| {
            let duration = Duration::try_from_secs_f64(ttl).ok().filter(|duration| !duration.is_zero());
            duration.ok_or_else(|| {
                PyValueError::new_err(format!("a ttl of {ttl} seconds; it's a positive number"))
            })
        };
        Ok(Options { ttl: ttl.map(seconds).transpose()?, pin, group })
    }

    pub fn as_rust(&self) -> PutOptions<'_> {
        let group = self.group.as_ref().map_or(&b""[..], AsRef::as_ref);
        PutOptions { ttl: self.ttl, pin: self.pin, group }
    }
}

impl Client {
    /// The client of this process.
    pub fn ours(&self, py: Python<'_>) -> PyResult<Held<RustClient>> {
        interrupt::heed_signals(py)?;
        self.client.get(|| py.detach(|| RustClient::with_config(self.config.clone())).or_raise(py))
    }

    fn store(
        &self,
        py: Python<'_>,
        key: &Key,
        value: &Bound<'_, PyAny>,
        options: &Options,
        replaces: bool,
    ) -> PyResult<()> {
        let export = Export::of(value)?;
        let (client, bytes) = (self.ours(py)?, export.bytes());
        let outcome = py.detach(|| match replaces {
            true => client.upsert_with(key.as_ref(), bytes, options.as_rust()),
            false => client.put_with(key.as_ref(), bytes, options.as_rust()),
        });
        outcome.or_raise(py)
    }

    fn store_batch<'py>(
        &self,
        py: Python<'py>,
        keys: &[Key],
        values: &[Bound<'py, PyAny>],
        options: &Options,
        replaces: bool,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        check_lengths(keys.len(), values.len(), "values")?;
        let exports = values.iter().map(Export::of).collect::<PyResult<Vec<_>>>()?;
        let bad = BadKeys::of(keys, return_exceptions);
        let items: Vec<(&[u8], &[u8])> = bad
            .without(keys.iter().zip(&exports).map(|(key, export)| (key.as_ref(), export.bytes())).collect());
        let client = self.ours(py)?;
        let outcomes = py.detach(|| match replaces {
            true => client.upsert_batch(&items, options.as_rust()),
            false => client.put_batch(&items, options.as_rust()),
        });
        stored(py, bad.merged(outcomes.or_raise(py)?), return_exceptions)
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (url = "lanner://127.0.0.1:7411"))]
    fn new(py: Python<'_>, url: &str) -> PyResult<Client> {
        let config = url.parse::<ClientConfig>().or_raise(py)?;
        let client = py.detach(|| RustClient::with_config(config.clone())).or_raise(py)?;
        Ok(Client { config, client: ForkSafe::new(client) })
    }

    #[pyo3(signature = (key, value, *, ttl = None, pin = None, group = None))]
    fn put(
        &self,
        py: Python<'_>,
        key: Key,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        pin: Option<&str>,
        group: Option<Key>,
    ) -> PyResult<()> {
        self.store(py, &key, value, &Options::new(ttl, pin, group)?, false)
    }

    #[pyo3(signature = (key, value, *, ttl = None, pin = None, group = None))]
    fn upsert(
        &self,
        py: Python<'_>,
        key: Key,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        pin: Option<&str>,
        group: Option<Key>,
    ) -> PyResult<()> {
        self.store(py, &key, value, &Options::new(ttl, pin, group)?, true)
    }

    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, values, *, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn put_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        values: Vec<Bound<'py, PyAny>>,
        ttl: Option<f64>,
        pin: Option<&str>,
        group: Option<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        self.store_batch(py, &keys, &values, &Options::new(ttl, pin, group)?, false, return_exceptions)
    }

    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, values, *, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn upsert_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        values: Vec<Bound<'py, PyAny>>,
        ttl: Option<f64>,
        pin: Option<&str>,
        group: Option<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        self.store_batch(py, &keys, &values, &Options::new(ttl, pin, group)?, true, return_exceptions)
    }

    fn get<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let client = self.ours(py)?;
        let value = found(py, py.detach(|| client.get(key.as_ref())))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    #[pyo3(signature = (keys, *, return_exceptions = false))]
    fn get_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let client = self.ours(py)?;
        let bad = BadKeys::of(&keys, return_exceptions);
        let keys = bad.without(keys);
        let outcomes = bad.merged(py.detach(|| client.get_batch(&keys)).or_raise(py)?);
        list_of(py, outcomes, return_exceptions, &py.None().into_bound(py), |value| {
            Ok(PyBytes::new(py, &value).into_any())
        })
    }

    fn get_into(&self, py: Python<'_>, key: Key, buffer: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let mut export = Export::writable(buffer)?;
        let (client, target) = (self.ours(py)?, export.bytes_mut());
        found(py, py.detach(|| client.get_into(key.as_ref(), target)))
    }

    #[pyo3(signature = (keys, buffers, *, return_exceptions = false))]
    fn get_into_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        buffers: Vec<Bound<'py, PyAny>>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        check_lengths(keys.len(), buffers.len(), "buffers")?;
        let mut exports = buffers.iter().map(Export::writable).collect::<PyResult<Vec<_>>>()?;
        buffer::check_apart(exports.iter().map(|export| (export.address(), export.len())))?;
        let bad = BadKeys::of(&keys, return_exceptions);
        let keys = bad.without(keys);
        let mut targets: Vec<&mut [u8]> = bad.without(exports.iter_mut().map(Export::bytes_mut).collect());
        let client = self.ours(py)?;
        let outcomes = py.detach(|| client.get_into_batch(&keys, &mut targets)).or_raise(py)?;
        read(py, bad.merged(outcomes), return_exceptions)
    }

    fn exists(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        let client = self.ours(py)?;
        py.detach(|| client.exists(key.as_ref())).or_raise(py)
    }

    #[pyo3(signature = (keys, *, return_exceptions = false))]
    fn exists_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let client = self.ours(py)?;
        if !return_exceptions {
            return PyList::new(py, py.detach(|| client.exists_batch(&keys)).or_raise(py)?);
        }
        let bad = BadKeys::of(&keys, return_exceptions);
        let keys = bad.without(keys);
        flags(py, bad.merged(py.detach(|| client.exists_each(&keys)).or_raise(py)?))
    }

    fn remove(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        let client = self.ours(py)?;
        py.detach(|| client.remove(key.as_ref())).or_raise(py)
    }

    #[pyo3(signature = (keys, *, return_exceptions = false))]
    fn remove_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let client = self.ours(py)?;
        if !return_exceptions {
            return PyList::new(py, py.detach(|| client.remove_batch(&keys)).or_raise(py)?);
        }
        let bad = BadKeys::of(&keys, return_exceptions);
        let keys = bad.without(keys);
        flags(py, bad.merged(py.detach(|| client.remove_each(&keys)).or_raise(py)?))
    }

    fn size(&self, py: Python<'_>, key: Key) -> PyResult<Option<u64>> {
        let client = self.ours(py)?;
        found(py, py.detach(|| client.size(key.as_ref())))
    }

    #[pyo3(signature = (keys, *, return_exceptions = false))]
    fn size_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let client = self.ours(py)?;
        let bad = BadKeys::of(&keys, return_exceptions);
        let keys = bad.without(keys);
        let outcomes = py.detach(|| match return_exceptions {
            true => client.size_each(&keys),
            false => client.size_batch(&keys),
        });
        let outcomes = outcomes.or_raise(py)?;
        read(py, bad.merged(outcomes), return_exceptions)
    }

    fn read_ranges(
        &self,
        py: Python<'_>,
        keys: Vec<Key>,
        ranges: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (ranges, mut export) = (ranges_of(ranges)?, Export::writable(buffer)?);
        let (client, target) = (self.ours(py)?, export.bytes_mut());
        py.detach(|| client.read_ranges(&keys, &ranges, target)).or_raise(py)
    }

    #[pyo3(signature = (prefix = Key::empty(), *, limit = None))]
    fn list(&self, py: Python<'_>, prefix: Key, limit: Option<usize>) -> PyResult<Vec<(Py<PyBytes>, u64)>> {
        let client = self.ours(py)?;
        let limit = limit.unwrap_or(usize::MAX);
        let mut all = Vec::new();
        let outcome = py.detach(|| {
            client.list(prefix.as_ref(), |listed| {
                if all.len() < limit {
                    all.push(listed);
                }
                all.len() < limit
            })
        });
        outcome.or_raise(py)?;
        Ok(all.into_iter().map(|one| (PyBytes::new(py, &one.key).unbind(), one.value_bytes)).collect())
    }

    fn longest_prefix<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let client = self.ours(py)?;
        let prefix = py.detach(|| client.longest_prefix(key.as_ref())).or_raise(py)?;
        Ok(prefix.map(|prefix| PyBytes::new(py, prefix)))
    }

    fn prepare_snapshot(this: &Bound<'_, Client>, keys: Vec<Key>) -> PyResult<Snapshot> {
        Snapshot::prepare(this, keys.iter().map(|key| key.as_ref().into()).collect())
    }

    fn register(this: &Bound<'_, Client>, buffer: &Bound<'_, PyAny>) -> PyResult<Registered> {
        Registered::of(this, buffer)
    }

    fn match_chain(this: &Bound<'_, Client>, keys: Vec<Key>) -> PyResult<Snapshot> {
        Snapshot::of_chain(this, &keys)
    }

    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, start, values, *, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn put_chain<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        start: usize,
        values: Vec<Bound<'py, PyAny>>,
        ttl: Option<f64>,
        pin: Option<&str>,
        group: Option<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let options = Options::new(ttl, pin, group)?;
        let exports = values.iter().map(Export::of).collect::<PyResult<Vec<_>>>()?;
        let values: Vec<&[u8]> = exports.iter().map(Export::bytes).collect();
        let client = self.ours(py)?;
        let outcomes =
            py.detach(|| client.put_chain(&keys, start, &values, options.as_rust())).or_raise(py)?;
        stored(py, outcomes, return_exceptions)
    }

    #[pyo3(signature = (keys, addresses, sizes, *, return_exceptions = false))]
    fn get_into_addresses<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        addresses: Vec<usize>,
        sizes: Vec<usize>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let spans = Span::all(&addresses, &sizes)?;
        check_lengths(keys.len(), spans.len(), "addresses")?;
        buffer::check_apart(addresses.into_iter().zip(sizes))?;
        let bad = BadKeys::of(&keys, return_exceptions);
        let (keys, spans) = (bad.without(keys), bad.without(spans));
        let client = self.ours(py)?;
        let outcomes = py.detach(|| {
            // SAFETY: the caller of this function answers for its addresses; they don't overlap.
            let mut targets = unsafe { addresses::targets(&spans) };
            client.get_into_batch(&keys, &mut targets)
        });
        read(py, bad.merged(outcomes.or_raise(py)?), return_exceptions)
    }

    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, addresses, sizes, *, replace = false, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn put_from_addresses<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        addresses: Vec<usize>,
        sizes: Vec<usize>,
        replace: bool,
        ttl: Option<f64>,
        pin: Option<&str>,
        group: Option<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let options = Options::new(ttl, pin, group)?;
        let spans = Span::all(&addresses, &sizes)?;
        check_lengths(keys.len(), spans.len(), "addresses")?;
        let bad = BadKeys::of(&keys, return_exceptions);
        let (keys, spans) = (bad.without(keys), bad.without(spans));
        let client = self.ours(py)?;
        let outcomes = py.detach(|| {
            // SAFETY: the caller of this function answers for its addresses.
            let values = unsafe { addresses::values(&spans) };
            let items: Vec<(&[u8], &[u8])> =
                keys.iter().zip(values).map(|(key, value)| (key.as_ref(), value)).collect();
            match replace {
                true => client.upsert_batch(&items, options.as_rust()),
                false => client.put_batch(&items, options.as_rust()),
            }
        });
        stored(py, bad.merged(outcomes.or_raise(py)?), return_exceptions)
    }

    #[pyo3(signature = (keys, addresses, sizes, *, return_exceptions = false))]
    fn get_into_parts<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        addresses: Vec<Vec<usize>>,
        sizes: Vec<Vec<usize>>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        check_lengths(keys.len(), addresses.len(), "lists of addresses")?;
        let parts = Parts::all(&addresses, &sizes)?;
        buffer::check_apart(addresses.iter().flatten().copied().zip(sizes.iter().flatten().copied()))?;
        let bad = BadKeys::of(&keys, return_exceptions);
        let (keys, parts) = (bad.without(keys), bad.without(parts));
        let client = self.ours(py)?;
        let most = client.servers().iter().map(|server| server.max_value_bytes).max().unwrap_or(0) as usize;
        let outcomes = py.detach(|| {
            // SAFETY: the caller of this function answers for its addresses; they don't overlap.
            unsafe { addresses::read_parts(&parts, most, |targets| client.get_into_batch(&keys, targets)) }
        });
        read(py, bad.merged(outcomes.or_raise(py)?), return_exceptions)
    }

    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, addresses, sizes, *, replace = false, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn put_from_parts<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        addresses: Vec<Vec<usize>>,
        sizes: Vec<Vec<usize>>,
        replace: bool,
        ttl: Option<f64>,
        pin: Option<&str>,
        group: Option<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let options = Options::new(ttl, pin, group)?;
        check_lengths(keys.len(), addresses.len(), "lists of addresses")?;
        let parts = Parts::all(&addresses, &sizes)?;
        let bad = BadKeys::of(&keys, return_exceptions);
        let (keys, parts) = (bad.without(keys), bad.without(parts));
        let client = self.ours(py)?;
        let outcomes = py.detach(|| {
            // SAFETY: the caller of this function answers for its addresses.
            let values = parts.iter().map(|parts| unsafe { parts.value() });
            let items: Vec<_> = keys.iter().zip(values).collect();
            match replace {
                true => client.upsert_batch(&items, options.as_rust()),
                false => client.put_batch(&items, options.as_rust()),
            }
        });
        stored(py, bad.merged(outcomes.or_raise(py)?), return_exceptions)
    }

    fn servers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let client = self.ours(py)?;
        let describe = |server: lanner_client::ServerInfo| {
            let fields = PyDict::new(py);
            fields.set_item("address", server.address)?;
            fields.set_item("boot_id", PyBytes::new(py, &server.boot_id))?;
            fields.set_item("shards", server.shards)?;
            fields.set_item("capacity_bytes", server.capacity_bytes)?;
            fields.set_item("max_value_bytes", server.max_value_bytes)?;
            fields.set_item("lease_ms", server.lease_ms)?;
            Ok(fields)
        };
        client.servers().into_iter().map(describe).collect()
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let client = self.ours(py)?;
        py.detach(|| client.stats()).or_raise(py)
    }

    fn rdma_failures(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, String)>> {
        let failures = self.ours(py)?.rdma_failures();
        Ok(failures.into_iter().map(|of| (of.server, of.failures, of.reason)).collect())
    }

    fn transport_for(&self, py: Python<'_>, key: Key) -> PyResult<&'static str> {
        let client = self.ours(py)?;
        py.detach(|| client.transport_for(key.as_ref())).or_raise(py)
    }

    #[getter]
    fn url(&self) -> String {
        let transport = self.config.transport.name();
        format!("lanner://{}?transport={transport}", self.config.servers.join(","))
    }

    fn __repr__(&self) -> String {
        format!("lanner.Client('{}')", self.url())
    }
}

/// The keys under which the blocks of a chain are stored (docs/chains.md).
#[pyfunction]
pub fn stored_keys<'py>(py: Python<'py>, keys: Vec<Key>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    for (index, key) in keys.iter().enumerate() {
        chain::checked(std::slice::from_ref(key)).map_err(|error| error.at(index as u64)).or_raise(py)?;
    }
    Ok(lanner_client::chain::stored_keys(&keys).iter().map(|key| PyBytes::new(py, key)).collect())
}

pub fn check_lengths(keys: usize, others: usize, name: &str) -> PyResult<()> {
    if keys == others {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{keys} keys and {others} {name}; give each key one")))
}

/// The outcomes of puts: whether each was stored, or was there already.
pub fn stored<'py>(
    py: Python<'py>,
    outcomes: Vec<lanner_client::Result<()>>,
    return_exceptions: bool,
) -> PyResult<Bound<'py, PyList>> {
    list_of(py, outcomes, return_exceptions, &flag(py, false), |()| Ok(flag(py, true)))
}

/// The outcomes of questions whether something is or was there, each with its exception.
fn flags<'py>(py: Python<'py>, outcomes: Vec<lanner_client::Result<bool>>) -> PyResult<Bound<'py, PyList>> {
    list_of(py, outcomes, true, &flag(py, false), |is_there| Ok(flag(py, is_there)))
}

fn flag(py: Python<'_>, flag: bool) -> Bound<'_, PyAny> {
    PyBool::new(py, flag).to_owned().into_any()
}

/// The outcomes of reads: lengths in bytes.
pub fn read<'py>(
    py: Python<'py>,
    outcomes: Vec<lanner_client::Result<u64>>,
    return_exceptions: bool,
) -> PyResult<Bound<'py, PyList>> {
    list_of(py, outcomes, return_exceptions, &py.None().into_bound(py), |bytes| {
        Ok(bytes.into_pyobject(py)?.into_any())
    })
}
