//! Tables of any number of layers behind one snapshot: what [`super::EngramStore`] and [`super::EngramSet`] share.
//!
//! The snapshot is replaced as a whole; threads that look up read it without a lock. What always holds: a snapshot that is
//! kept was checked against the configuration, so a row of a valid id lies within its table.

use super::config::EngramConfig;
use super::error::{EngramError, EngramResult};
use super::rows::{LayerRows, RowIds, Rows};
use crate::client::Client;
use crate::snapshot::{Freshness, Snapshot};
use arc_swap::ArcSwapOption;
use lanner_shared::Error;
use lanner_shared::time::Clock;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Layers of a set that are looked up without allocating.
const LAYERS_ON_STACK: usize = 8;

/// Stored tables.
#[derive(Debug)]
pub(super) struct StoredTables {
    client: Client,
    layers: Vec<EngramConfig>,
    /// All keys, layer by layer.
    keys: Vec<String>,
    snapshot: ArcSwapOption<Snapshot>,
    /// One thread refreshes, the others go on with what there is.
    is_refreshing: AtomicBool,
}

impl StoredTables {
    pub fn new(client: Client, layers: Vec<EngramConfig>) -> EngramResult<StoredTables> {
        layers.iter().try_for_each(EngramConfig::check)?;
        let keys_of = |layer: &EngramConfig| {
            (0..layer.table_vocab_sizes.len()).map(|head| layer.key(head)).collect::<Vec<_>>()
        };
        let keys = layers.iter().flat_map(keys_of).collect();
        let (snapshot, is_refreshing) = (ArcSwapOption::empty(), AtomicBool::new(false));
        Ok(StoredTables { client, layers, keys, snapshot, is_refreshing })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn layers(&self) -> &[EngramConfig] {
        &self.layers
    }

    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Forgets where the tables lie.
    pub fn drop_snapshot(&self) {
        self.snapshot.store(None);
    }

    /// Bytes of the result for these ids.
    pub fn result_bytes(&self, row_ids: &[RowIds<'_>]) -> u64 {
        self.layers.iter().zip(row_ids).map(|(layer, ids)| ids.count() as u64 * layer.row.bytes()).sum()
    }

    /// Reads the rows of `row_ids`, one for each layer, to `target`, which is exactly as large as the result.
    #[inline]
    pub fn lookup_into(
        &self,
        row_ids: &[RowIds<'_>],
        target: &mut [u8],
        freshness: Freshness,
    ) -> EngramResult<()> {
        let mut layers: SmallVec<[LayerRows<'_>; LAYERS_ON_STACK]> = SmallVec::new();
        let (mut first_table, mut destination) = (0, 0);
        for (config, ids) in self.layers.iter().zip(row_ids) {
            ids.check(config)?;
            let (heads, row_bytes) = (config.table_vocab_sizes.len() as u32, config.row.bytes());
            layers.push(LayerRows { ids: ids.as_slice(), first_table, heads, row_bytes, destination });
            first_table += heads;
            destination += ids.count() as u64 * row_bytes;
        }
        if destination != target.len() as u64 {
            return Err(EngramError::Output { expected: destination, got: target.len() as u64 });
        }
        self.read(&Rows(&layers), target, freshness)
    }

    #[inline]
    fn read(&self, rows: &Rows<'_>, target: &mut [u8], freshness: Freshness) -> EngramResult<()> {
        if let Some(snapshot) = &*self.snapshot.load() {
            match self.client.read_checked(snapshot, rows, target, freshness) {
                Ok(done) => {
                    if snapshot.needs_refresh(done) {
                        self.refresh_for_later(snapshot);
                    }
                    return Ok(());
                }
                Err(Error::LeaseExpired { .. } | Error::EpochChanged) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.read_afresh(rows, target, freshness)
    }

    /// The rows are read; the next look-up is to find a snapshot that lasts. What goes wrong here is that one's affair.
    #[cold]
    fn refresh_for_later(&self, old: &Arc<Snapshot>) {
        if self.is_refreshing.swap(true, Ordering::Acquire) {
            return;
        }
        if let Ok(fresh) = self.prepare() {
            // Unless the tables were replaced or removed meanwhile.
            self.snapshot.compare_and_swap(old, Some(fresh));
        }
        self.is_refreshing.store(false, Ordering::Release);
    }

    #[cold]
    fn read_afresh(&self, rows: &Rows<'_>, target: &mut [u8], freshness: Freshness) -> EngramResult<()> {
        let deadline = Clock.now().plus(self.client.inner.config().timeout);
        loop {
            let outcome = self.prepare().and_then(|snapshot| {
                self.snapshot.store(Some(snapshot.clone()));
                Ok(self.client.read_checked(&snapshot, rows, target, freshness).map(drop)?)
            });
            match outcome {
                // The tables changed in the very moment, or this thread was held up for a whole lease.
                Err(EngramError::Store(Error::LeaseExpired { .. } | Error::EpochChanged))
                    if Clock.now() < deadline => {}
                outcome => return outcome,
            }
        }
    }

    /// A new snapshot of all tables, if they are as configured.
    fn prepare(&self) -> EngramResult<Arc<Snapshot>> {
        match self.client.prepare_snapshot(&self.keys) {
            Ok(snapshot) => {
                self.check_tables(|index| snapshot.value_bytes(index))?;
                Ok(Arc::new(snapshot))
            }
            Err(Error::NotFound { .. }) => Err(self.missing_tables()?),
            Err(error) => Err(error.into()),
        }
    }

    fn missing_tables(&self) -> EngramResult<EngramError> {
        let are_there = self.client.exists_batch(&self.keys)?;
        let missing = self.keys.iter().zip(are_there).filter(|(_, is_there)| !is_there);
        Ok(EngramError::MissingTables { keys: missing.map(|(key, _)| key.clone()).collect() })
    }

    /// Whether tables of these sizes, by key index, are the configured ones.
    pub fn check_tables(&self, bytes_of: impl Fn(usize) -> Option<u64>) -> EngramResult<()> {
        let heads = |layer: &EngramConfig| 0..layer.table_vocab_sizes.len();
        let tables = self.layers.iter().flat_map(|layer| heads(layer).map(move |head| (layer, head)));
        for (index, (config, head)) in tables.enumerate() {
            let expected = config.table_bytes(head).unwrap_or(0);
            match bytes_of(index) {
                Some(got) if got != expected => {
                    return Err(EngramError::TableShape { layer: config.layer, head, expected, got });
                }
                _ => {}
            }
        }
        Ok(())
    }
}
