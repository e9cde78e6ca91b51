//! `lanner.EngramStore` and `lanner.EngramSet`.

use crate::buffer::Export;
use crate::client::Client;
use crate::errors::{OrRaise, engram_arguments};
use crate::fork::{ForkSafe, Held};
use crate::ids::Ids;
use lanner_client::engram::{
    EngramConfig, EngramSet as RustSet, EngramStore as RustStore, RowFormat, RowIds,
};
use lanner_client::{Dtype, Freshness};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use smallvec::SmallVec;

/// The Engram tables of one layer, one for each head. Look-ups read through a cached snapshot and ask no server. Threads may share it.
///
/// ``table_vocab_sizes``: rows of each head's table. A row is ``row_bytes`` bytes, or ``embedding_dim`` elements of ``dtype``, named as torch does. Without a client
/// it has metadata only. ``EngramError`` for what can't be; asks nothing and doesn't block.
///
/// The keys are ``engram:l{layer}:h{head}`` and name neither model nor dtype: of a stored table nothing but its size in bytes is compared. Models whose tables
/// may be of one size need a tenant each, or a store.
#[pyclass(module = "lanner", frozen, weakref, subclass)]
pub struct EngramStore {
    client: Option<Py<Client>>,
    config: EngramConfig,
    store: ForkSafe<RustStore>,
}

/// What a row consists of: `row_bytes`, or `embedding_dim` elements of `dtype`.
fn row_format(
    py: Python<'_>,
    row_bytes: Option<u64>,
    dtype: Option<&str>,
    embedding_dim: Option<u64>,
) -> PyResult<RowFormat> {
    match (row_bytes, dtype, embedding_dim) {
        (Some(bytes), None, None) => Ok(RowFormat::Bytes(bytes)),
        (None, Some(dtype), Some(embedding_dim)) => {
            Ok(RowFormat::Elements { dtype: dtype.parse::<Dtype>().or_raise(py)?, embedding_dim })
        }
        _ => Err(PyValueError::new_err("a row is given as row_bytes, or as dtype and embedding_dim")),
    }
}

impl EngramStore {
    fn ours(&self, py: Python<'_>) -> PyResult<Held<RustStore>> {
        self.store.get(|| Self::made(py, self.client.as_ref(), &self.config))
    }

    fn made(py: Python<'_>, client: Option<&Py<Client>>, config: &EngramConfig) -> PyResult<RustStore> {
        match client {
            Some(client) => {
                let client = client.get().ours(py)?;
                RustStore::new(client.clone(), config.clone()).or_raise(py)
            }
            None => RustStore::metadata_only(config.clone()).or_raise(py),
        }
    }
}

#[pymethods]
impl EngramStore {
    #[new]
    #[pyo3(signature = (client, layer, table_vocab_sizes, *, row_bytes = None, dtype = None, embedding_dim = None))]
    fn new(
        py: Python<'_>,
        client: Option<Py<Client>>,
        layer: u32,
        table_vocab_sizes: Vec<u64>,
        row_bytes: Option<u64>,
        dtype: Option<&str>,
        embedding_dim: Option<u64>,
    ) -> PyResult<EngramStore> {
        let row = row_format(py, row_bytes, dtype, embedding_dim)?;
        let config = EngramConfig { layer, table_vocab_sizes, row };
        let store = Self::made(py, client.as_ref(), &config)?;
        Ok(EngramStore { client, config, store: ForkSafe::new(store) })
    }

    /// Stores all tables, one buffer for each head, row after row; or none: ``AlreadyExists`` if one is there. ``EngramError`` for a table of another
    /// size than is configured.
    fn populate(&self, py: Python<'_>, tables: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let exports = tables.iter().map(Export::of).collect::<PyResult<Vec<_>>>()?;
        let (store, tables) = (self.ours(py)?, exports.iter().map(Export::bytes).collect::<Vec<_>>());
        py.detach(|| store.populate(&tables)).or_raise(py)
    }

    /// Reads the rows of ``row_ids``, an int64 array or nested lists of shape [B, L, H], to the buffer ``out`` of shape [B, L, H, row], which is exactly as
    /// large. At most one lease old; with ``checked`` as it is now. ``EngramError`` names the id that is out of range, or a stored table of another size;
    /// ``MissingTables``. Over shared memory it doesn't wait for a server while the lease lasts.
    #[pyo3(signature = (row_ids, out, *, checked = false))]
    fn lookup_into(
        &self,
        py: Python<'_>,
        row_ids: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        checked: bool,
    ) -> PyResult<()> {
        let ids = Ids::of(row_ids)?;
        let rows = RowIds::new(ids.as_slice(), ids.shape()).or_raise(py)?;
        let mut export = Export::writable(out)?;
        ids.check_apart_from(&export)?;
        let (store, target) = (self.ours(py)?, export.bytes_mut());
        let outcome = py.detach(|| match checked {
            true => store.lookup_checked_into(rows, target),
            false => store.lookup_into(rows, target),
        });
        outcome.or_raise(py)
    }

    /// Removes the tables and returns how many there were. Without ``force`` not if one has another size than is configured (``EngramError``).
    #[pyo3(signature = (*, force = false))]
    fn remove_from_store(&self, py: Python<'_>, force: bool) -> PyResult<usize> {
        let store = self.ours(py)?;
        py.detach(|| store.remove_from_store(force)).or_raise(py)
    }

    /// The layer's number.
    #[getter]
    fn layer(&self) -> u32 {
        self.config.layer
    }

    /// How many heads, and tables, there are.
    #[getter]
    fn heads(&self) -> usize {
        self.config.table_vocab_sizes.len()
    }

    /// Rows of each head's table.
    #[getter]
    fn table_vocab_sizes(&self) -> Vec<u64> {
        self.config.table_vocab_sizes.clone()
    }

    /// Length of a row in bytes.
    #[getter]
    fn row_bytes(&self) -> u64 {
        self.config.row.bytes()
    }

    /// Elements of a row, if its format says so; else its bytes.
    #[getter]
    fn embedding_dim(&self) -> u64 {
        match self.config.row {
            RowFormat::Elements { embedding_dim, .. } => embedding_dim,
            RowFormat::Bytes(bytes) => bytes,
        }
    }

    /// The type of a row's elements, if its format says so; else ``uint8``.
    #[getter]
    fn dtype(&self) -> &'static str {
        match self.config.row {
            RowFormat::Elements { dtype, .. } => dtype.name(),
            RowFormat::Bytes(_) => Dtype::Uint8.name(),
        }
    }

    /// The key of each head's table.
    #[getter]
    fn keys(&self) -> Vec<String> {
        (0..self.config.table_vocab_sizes.len()).map(|head| self.config.key(head)).collect()
    }
}

/// The Engram tables of several layers, looked up in one batch. ``stores`` say which, in their order. Threads may share it.
#[pyclass(module = "lanner", frozen, weakref)]
pub struct EngramSet {
    client: Py<Client>,
    layers: Vec<EngramConfig>,
    set: ForkSafe<RustSet>,
}

#[pymethods]
impl EngramSet {
    #[new]
    fn new(py: Python<'_>, client: Py<Client>, stores: Vec<Bound<'_, EngramStore>>) -> PyResult<EngramSet> {
        let layers: Vec<EngramConfig> = stores.iter().map(|store| store.get().config.clone()).collect();
        let ours = client.get().ours(py)?;
        let set = RustSet::new(ours.clone(), layers.clone()).or_raise(py)?;
        Ok(EngramSet { client, layers, set: ForkSafe::new(set) })
    }

    /// ``row_ids`` has ids for each layer, as for ``EngramStore.lookup_into``; ``out`` gets the rows of the first layer, then those of the second, and so on.
    #[pyo3(signature = (row_ids, out, *, checked = false))]
    fn lookup_into(
        &self,
        py: Python<'_>,
        row_ids: Vec<Bound<'_, PyAny>>,
        out: &Bound<'_, PyAny>,
        checked: bool,
    ) -> PyResult<()> {
        if row_ids.len() != self.layers.len() {
            let text = format!(
                "{} arrays of row ids for {} layers; give each layer one",
                row_ids.len(),
                self.layers.len()
            );
            return Err(engram_arguments(py, text));
        }
        let ids = row_ids.iter().map(Ids::of).collect::<PyResult<SmallVec<[Ids; 4]>>>()?;
        let rows = ids.iter().map(|ids| RowIds::new(ids.as_slice(), ids.shape()).or_raise(py));
        let rows = rows.collect::<PyResult<SmallVec<[RowIds<'_>; 8]>>>()?;
        let mut export = Export::writable(out)?;
        ids.iter().try_for_each(|ids| ids.check_apart_from(&export))?;
        let freshness = if checked { Freshness::Checked } else { Freshness::Lease };
        let set = self.set.get(|| {
            let client = self.client.get().ours(py)?;
            RustSet::new(client.clone(), self.layers.clone()).or_raise(py)
        })?;
        let target = export.bytes_mut();
        py.detach(|| set.lookup_into(&rows, target, freshness)).or_raise(py)
    }

    /// The layers' numbers.
    #[getter]
    fn layers(&self) -> Vec<u32> {
        self.layers.iter().map(|layer| layer.layer).collect()
    }
}
