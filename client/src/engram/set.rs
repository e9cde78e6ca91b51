//! Engram tables of many layers, looked up in one batch.

use super::config::EngramConfig;
use super::error::{EngramError, EngramResult};
use super::rows::RowIds;
use super::tables::StoredTables;
use crate::client::Client;
use crate::snapshot::Freshness;

/// The tables of several layers behind one snapshot: a look-up of all layers is one batch, to each shard one frame.
///
/// May be shared by threads; a look-up takes no lock. The tables are stored and removed by each layer's
/// [`super::EngramStore`]; a set notices when its leases end, or at once with [`Freshness::Checked`].
#[derive(Debug)]
pub struct EngramSet {
    tables: StoredTables,
}

impl EngramSet {
    /// The tables of these layers in the store behind `client`. Asks it nothing yet.
    ///
    /// # Errors
    /// [`EngramError::Config`].
    pub fn new(client: Client, layers: Vec<EngramConfig>) -> EngramResult<EngramSet> {
        Ok(EngramSet { tables: StoredTables::new(client, layers)? })
    }

    /// The layers, in the order of the results.
    #[must_use]
    pub fn layers(&self) -> &[EngramConfig] {
        self.tables.layers()
    }

    /// Bytes of the result for these ids.
    #[must_use]
    pub fn result_bytes(&self, row_ids: &[RowIds<'_>]) -> u64 {
        self.tables.result_bytes(row_ids)
    }

    /// Reads the rows of each layer's ids to `target`: the first layer's [B, L, H, row], then the second's, and so on.
    ///
    /// # Errors
    /// [`EngramError::TableCount`] unless there are ids for each layer; else as
    /// [`super::EngramStore::lookup_into`].
    #[inline]
    pub fn lookup_into(
        &self,
        row_ids: &[RowIds<'_>],
        target: &mut [u8],
        freshness: Freshness,
    ) -> EngramResult<()> {
        let layers = self.tables.layers();
        if row_ids.len() != layers.len() {
            let layer = layers.first().map_or(0, |layer| layer.layer);
            return Err(EngramError::TableCount { layer, expected: layers.len(), got: row_ids.len() });
        }
        self.tables.lookup_into(row_ids, target, freshness)
    }
}
