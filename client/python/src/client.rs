//! `lanner.Client`.

use crate::addresses::{self, Parts, Span};
use crate::buffer::{self, Export};
use crate::errors::{OrRaise, of_servers};
use crate::fork::{ForkSafe, Held};
use crate::interrupt;
use crate::keys::{Key, buffers_of, keys_of};
use crate::outcomes::{BadKeys, found, list_of};
use crate::ranges::ranges_of;
use crate::registered::Registered;
use crate::snapshot::Snapshot;
use lanner_client::{Client as RustClient, ClientConfig, Error, Pin, PutOptions};
use lanner_shared::chain;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList};
use std::time::Duration;

/// A handle on one or more servers. Threads may share it: each has connections of its own, which are made when it first needs them and made
/// again when they are lost; the child of a fork makes its own. There is nothing to close: a thread's connections end with the thread, and those of
/// the thread that drops the last object that came from the client at once.
///
/// ``Client(url)`` connects to ``lanner://HOST:PORT[,HOST:PORT...][?transport=auto|tcp|shm|rdma&rdma=DEV[:PORT[:GID]]&tenant=...&token=...&timeout=5s&spin=200us]``
/// and blocks until each server has answered, so all of them must be there now; later each may go and come back. Raises ``ConnectionFailed``,
/// ``InvalidArgument``. ``timeout`` is the most that a call takes, ``spin`` how long it asks again and again before it sleeps.
///
/// What all calls have in common:
///
/// - A *key* is ``str`` (its UTF-8) or ``bytes``, 1 to 1024 bytes.
/// - A *buffer* is whatever has the buffer protocol (numpy arrays, ``bytearray``, ``memoryview``), a torch tensor in main memory, or an object with
///   DLPack. It is the caller's, must be contiguous, and is read or written where it is, without a copy. It is held until the call has returned, so it
///   isn't freed meanwhile, and resizing it raises (a torch tensor's from its first call on; numpy's ``resize(refcheck=False)`` doesn't look, and mustn't
///   be called). What else writes to it meanwhile is mixed with what is read. After an exception its contents mean nothing. ``TypeError`` for what has no
///   memory or holds addresses of Python's objects, ``BufferError`` for memory that isn't contiguous or, to be read to, not writable.
/// - Calls block unless they say otherwise: they release the GIL while they wait and end within the time-out. A signal's handler that raises
///   (``KeyboardInterrupt``) ends a call in the main thread within some 50 ms; while it connects, with the attempt.
/// - Servers that can't be reached raise ``ConnectionFailed``, ``Timeout`` among it. A change that raised ``Timeout`` or ``OutcomeUnknown`` may have
///   taken place, or take place yet.
/// - In batches each item has its outcome in its place, and a miss is ``None`` (of puts: ``False``, there was an object already). Whatever else
///   went wrong with an item is raised; with ``return_exceptions=True`` it stands in the item's place instead, also that its key is empty or too long,
///   or that its server can't be reached. What is wrong with the call as a whole is raised in any case: arguments of a wrong type, lists of different
///   lengths, memory that overlaps or can't be, a chain with a bad key.
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
        let seconds = |ttl: f64| match Duration::try_from_secs_f64(ttl) {
            Ok(duration) if !duration.is_zero() => Ok(duration),
            Err(_) if ttl > 0.0 => Err(PyValueError::new_err(format!(
                "a ttl of {ttl} seconds can't be counted; leave it away for an object without an end"
            ))),
            _ => Err(PyValueError::new_err(format!("a ttl of {ttl} seconds; it's a positive number"))),
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
        let client = match py.detach(|| RustClient::with_config(config.clone())) {
            // They say nothing of who has said so.
            Err(
                error @ (Error::Unauthenticated | Error::Malformed { .. } | Error::VersionMismatch { .. }),
            ) => {
                return Err(of_servers(py, &error, &config.servers));
            }
            outcome => outcome.or_raise(py)?,
        };
        Ok(Client { config, client: ForkSafe::new(client) })
    }

    /// Stores ``value`` (copied before the call returns) under ``key``; ``AlreadyExists`` if there is an object.
    ///
    /// ``ttl`` in seconds, more than 0, rounded up to whole ones. ``pin``: ``"soft"`` is evicted last, ``"hard"`` not before its ``ttl``, which it must have.
    /// ``group``: the epoch group that a change of this object is announced to. Raises ``Busy`` if the store is full, ``InvalidArgument`` for a value that no
    /// server takes.
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

    /// As ``put``, in place of the object that may be there. Readers that hold a lease go on reading that one.
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

    /// ``put`` of each key and its value; ``False`` where there was an object already. Items don't depend on each other: if one is raised, others may
    /// have been stored.
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, values, *, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn put_batch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
        #[pyo3(from_py_with = buffers_of)] values: Vec<Bound<'py, PyAny>>,
        ttl: Option<f64>,
        pin: Option<&str>,
        group: Option<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        self.store_batch(py, &keys, &values, &Options::new(ttl, pin, group)?, false, return_exceptions)
    }

    /// ``upsert`` of each key and its value; ``True`` for each that was stored. Items don't depend on each other.
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, values, *, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn upsert_batch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
        #[pyo3(from_py_with = buffers_of)] values: Vec<Bound<'py, PyAny>>,
        ttl: Option<f64>,
        pin: Option<&str>,
        group: Option<Key>,
        return_exceptions: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        self.store_batch(py, &keys, &values, &Options::new(ttl, pin, group)?, true, return_exceptions)
    }

    /// The value, or ``None`` if there is no object, which is not the same as ``b""``. Copies twice; see ``get_into``.
    fn get<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let client = self.ours(py)?;
        let value = found(py, py.detach(|| client.get(key.as_ref())))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    /// ``get`` of each key, in their order.
    #[pyo3(signature = (keys, *, return_exceptions = false))]
    fn get_batch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
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

    /// Reads the value to the start of ``buffer`` and returns its length in bytes; ``None`` if there is no object. ``InvalidArgument`` with ``needed``
    /// bytes if the buffer is too small.
    fn get_into(&self, py: Python<'_>, key: Key, buffer: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let mut export = Export::writable(buffer)?;
        let (client, target) = (self.ours(py)?, export.bytes_mut());
        found(py, py.detach(|| client.get_into(key.as_ref(), target)))
    }

    /// ``get_into`` of each key and its buffer. ``ValueError`` if two buffers overlap.
    #[pyo3(signature = (keys, buffers, *, return_exceptions = false))]
    fn get_into_batch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
        #[pyo3(from_py_with = buffers_of)] buffers: Vec<Bound<'py, PyAny>>,
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

    /// Whether there is an object. Extends no lease and counts as no access.
    fn exists(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        let client = self.ours(py)?;
        py.detach(|| client.exists(key.as_ref())).or_raise(py)
    }

    /// ``exists`` of each key.
    #[pyo3(signature = (keys, *, return_exceptions = false))]
    fn exists_batch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
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

    /// Removes the object; whether there was one. Readers that hold a lease on it go on reading.
    fn remove(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        let client = self.ours(py)?;
        py.detach(|| client.remove(key.as_ref())).or_raise(py)
    }

    /// ``remove`` of each key.
    #[pyo3(signature = (keys, *, return_exceptions = false))]
    fn remove_batch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
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

    /// Length of the value in bytes, or ``None`` if there is no object. Counts as an access.
    fn size(&self, py: Python<'_>, key: Key) -> PyResult<Option<u64>> {
        let client = self.ours(py)?;
        found(py, py.detach(|| client.size(key.as_ref())))
    }

    /// ``size`` of each key.
    #[pyo3(signature = (keys, *, return_exceptions = false))]
    fn size_batch<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
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

    /// Reads ranges of the objects as they are now to ``buffer``. A range is ``(key index, source offset, length, destination offset)``, all but the
    /// first in bytes; ``ranges`` is a list of them, in any order, or an int64 array of shape [n, 4]. They mustn't overlap in the buffer. ``NotFound`` with
    /// the ``index`` of the key that is missing (keys that no range is of aren't asked for), ``InvalidArgument`` with that of the range that is out of bounds,
    /// before anything is read.
    fn read_ranges(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
        ranges: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (ranges, mut export) = (ranges_of(ranges)?, Export::writable(buffer)?);
        let (client, target) = (self.ours(py)?, export.bytes_mut());
        py.detach(|| client.read_ranges(&keys, &ranges, target)).or_raise(py)
    }

    /// The keys that begin with ``prefix`` and the lengths of their values in bytes, in the order of keys; at most ``limit``. Needs all servers. Of what
    /// comes or goes meanwhile it may say either.
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

    /// The longest stored key that ``key`` begins with, or ``None``. Asks all shards.
    fn longest_prefix<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let client = self.ours(py)?;
        let prefix = py.detach(|| client.longest_prefix(key.as_ref())).or_raise(py)?;
        Ok(prefix.map(|prefix| PyBytes::new(py, prefix)))
    }

    /// Leases the objects, to be read many times without asking a server. One round trip. ``NotFound`` with the ``index`` of the first that is missing.
    /// All servers of the keys must answer.
    fn prepare_snapshot(
        this: &Bound<'_, Client>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
    ) -> PyResult<Snapshot> {
        Snapshot::prepare(this, keys.iter().map(|key| key.as_ref().into()).collect())
    }

    /// Registers a buffer with the RDMA devices that lead to the servers, once, for memory that is used again and again: some 100 us a mebibyte. The
    /// buffer is held until ``Registered.close``. Where no server is reached over RDMA, its calls copy as those to any memory do. ``SystemFailed`` if a
    /// device refuses: mostly the limit on locked memory (``ulimit -l``).
    fn register(this: &Bound<'_, Client>, buffer: &Bound<'_, PyAny>) -> PyResult<Registered> {
        Registered::of(this, buffer)
    }

    /// How many leading blocks of a chain are there, as a snapshot of exactly those (docs/chains.md), maybe of none. One round trip. Blocks of a server that
    /// can't be reached count as missing, as long as another one answers. ``InvalidArgument`` for what is no chain: of 1 to 4096 keys of 1 to 990 bytes.
    fn match_chain(
        this: &Bound<'_, Client>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
    ) -> PyResult<Snapshot> {
        Snapshot::of_chain(this, &keys)
    }

    /// Stores the blocks of the chain ``keys`` from block ``start`` on, one for each of ``values``; ``False`` for those that are there already. Keyword arguments
    /// as for ``put_batch``.
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, start, values, *, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn put_chain<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
        start: usize,
        #[pyo3(from_py_with = buffers_of)] values: Vec<Bound<'py, PyAny>>,
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

    /// ``get_into_batch`` to memory named by its address, of ``sizes`` bytes each. The caller answers for it: it must be there, and used by nobody else,
    /// until the call has returned; else the process ends in a crash or in wrong bytes.
    #[pyo3(signature = (keys, addresses, sizes, *, return_exceptions = false))]
    fn get_into_addresses<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
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

    /// ``put_batch`` (with ``replace``: ``upsert_batch``) from memory named by its address, of ``sizes`` bytes each, for which the caller answers.
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, addresses, sizes, *, replace = false, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn put_from_addresses<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
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

    /// As ``get_into_addresses``, each value spread over several pieces of memory in order. Values of more than one piece are copied once more; where that
    /// matters, read ranges of a snapshot.
    #[pyo3(signature = (keys, addresses, sizes, *, return_exceptions = false))]
    fn get_into_parts<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
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

    /// As ``put_from_addresses``, each value put together from several pieces of memory.
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (keys, addresses, sizes, *, replace = false, ttl = None, pin = None, group = None, return_exceptions = false))]
    fn put_from_parts<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
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

    /// Each server as it described itself when it was last connected to: ``address``, ``boot_id``, ``shards``, ``capacity_bytes``, ``max_value_bytes``, ``lease_ms``.
    /// Asks nothing and doesn't block.
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

    /// What each shard says of itself: the server's address, and a JSON object. Needs all servers.
    fn stats(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let client = self.ours(py)?;
        py.detach(|| client.stats()).or_raise(py)
    }

    /// Where RDMA was tried and has failed, so that calls go over TCP: the server's address, how often, and why the last time. Asks nothing and doesn't block.
    fn rdma_failures(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, String)>> {
        let failures = self.ours(py)?.rdma_failures();
        Ok(failures.into_iter().map(|of| (of.server, of.failures, of.reason)).collect())
    }

    /// ``"shm"``, ``"rdma"`` or ``"tcp"``: what this thread's connection for ``key`` uses. Connects if need be.
    fn transport_for(&self, py: Python<'_>, key: Key) -> PyResult<&'static str> {
        let client = self.ours(py)?;
        py.detach(|| client.transport_for(key.as_ref())).or_raise(py)
    }

    /// The servers and the transport, without tenant and token.
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
pub fn stored_keys<'py>(
    py: Python<'py>,
    #[pyo3(from_py_with = keys_of)] keys: Vec<Key>,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
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
