//! The Engram tables of one layer.

use super::config::EngramConfig;
use super::error::{EngramError, EngramResult};
use super::rows::{LayerRows, RowIds, Rows};
use super::tables::StoredTables;
use crate::call::put::PutOptions;
use crate::client::Client;
use crate::snapshot::Freshness;
use crate::snapshot::ranges::Ranges;
use lanner_shared::Error;

/// The Engram tables of one layer: metadata, and rows from the store or from local tables.
///
/// May be shared by threads; a look-up takes no lock.
#[derive(Debug)]
pub struct EngramStore {
    config: EngramConfig,
    tables: Tables,
}

#[derive(Debug)]
enum Tables {
    None,
    Local(Vec<Vec<u8>>),
    Stored(StoredTables),
}

impl EngramStore {
    /// The layer's tables in the store behind `client`. Asks it nothing yet.
    ///
    /// # Errors
    /// [`EngramError::Config`].
    pub fn new(client: Client, config: EngramConfig) -> EngramResult<EngramStore> {
        let tables = Tables::Stored(StoredTables::new(client, vec![config.clone()])?);
        Ok(EngramStore { config, tables })
    }

    /// Metadata only: sizes and keys, no rows.
    ///
    /// # Errors
    /// [`EngramError::Config`].
    pub fn metadata_only(config: EngramConfig) -> EngramResult<EngramStore> {
        config.check()?;
        Ok(EngramStore { config, tables: Tables::None })
    }

    /// Tables in this process's memory, looked up without any store.
    ///
    /// # Errors
    /// [`EngramError::Config`], [`EngramError::TableCount`], [`EngramError::TableShape`].
    pub fn with_local_tables(config: EngramConfig, tables: Vec<Vec<u8>>) -> EngramResult<EngramStore> {
        config.check()?;
        check_shapes(&config, &tables)?;
        Ok(EngramStore { config, tables: Tables::Local(tables) })
    }

    /// Number of the layer.
    #[must_use]
    pub fn layer(&self) -> u32 {
        self.config.layer
    }

    /// Number of heads.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.config.table_vocab_sizes.len()
    }

    /// Rows of each head's table.
    #[must_use]
    pub fn table_vocab_sizes(&self) -> &[u64] {
        &self.config.table_vocab_sizes
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.config.row.bytes()
    }

    /// Elements of a row, if its format says so; else its bytes.
    #[must_use]
    pub fn embedding_dim(&self) -> u64 {
        match self.config.row {
            super::RowFormat::Elements { embedding_dim, .. } => embedding_dim,
            super::RowFormat::Bytes(bytes) => bytes,
        }
    }

    /// Bytes of all tables.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        (0..self.heads()).filter_map(|head| self.config.table_bytes(head)).sum()
    }

    /// The key of each head's table.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        (0..self.heads()).map(|head| self.config.key(head)).collect()
    }

    /// Stores all tables, or none: if one can't be stored (one that is there already can't), those that this call stored
    /// are taken back. `tables` has one for each head, row after row.
    ///
    /// # Errors
    /// [`EngramError::TableCount`] and [`EngramError::TableShape`] before anything is stored; then what the store says.
    pub fn populate<T: AsRef<[u8]>>(&self, tables: &[T]) -> EngramResult<()> {
        check_shapes(&self.config, tables)?;
        let stored = self.stored()?;
        let items: Vec<(&String, &T)> = stored.keys().iter().zip(tables).collect();
        let group = self.config.group();
        let options = PutOptions { group: group.as_bytes(), ..PutOptions::default() };
        let outcomes = stored.client().put_batch(&items, options)?;
        stored.drop_snapshot();
        let Some(failure) = outcomes.iter().find_map(|outcome| outcome.as_ref().err()) else { return Ok(()) };
        // Of an unknown outcome too: half a layer in the store would be in the way of the next attempt.
        let is_mine =
            |outcome: &Result<(), Error>| matches!(outcome, Ok(()) | Err(Error::OutcomeUnknown { .. }));
        let mine: Vec<&String> = items
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| is_mine(outcome))
            .map(|((key, _), _)| *key)
            .collect();
        stored.client().remove_batch(&mine)?;
        Err(failure.clone().into())
    }

    /// The rows of `row_ids` of shape [B, L, H] in a new buffer of shape [B, L, H, row].
    ///
    /// # Errors
    /// As [`EngramStore::lookup_into`].
    pub fn lookup(&self, row_ids: RowIds<'_>) -> EngramResult<Vec<u8>> {
        let mut rows = vec![0; row_ids.count() * self.row_bytes() as usize];
        self.lookup_into(row_ids, &mut rows)?;
        Ok(rows)
    }

    /// Reads the rows of `row_ids` of shape [B, L, H] to `target`, which has the shape [B, L, H, row]. At most one lease
    /// old; [`EngramStore::lookup_checked_into`] for what is there now.
    ///
    /// # Errors
    /// What is wrong with the ids or the buffer, before anything is read; tables that are missing or of another shape;
    /// what the store says. After an error the buffer's contents are of no meaning.
    #[inline]
    pub fn lookup_into(&self, row_ids: RowIds<'_>, target: &mut [u8]) -> EngramResult<()> {
        self.lookup_with(row_ids, target, Freshness::Lease)
    }

    /// [`EngramStore::lookup_into`] of the tables as they are when the call begins.
    ///
    /// # Errors
    /// As [`EngramStore::lookup_into`].
    #[inline]
    pub fn lookup_checked_into(&self, row_ids: RowIds<'_>, target: &mut [u8]) -> EngramResult<()> {
        self.lookup_with(row_ids, target, Freshness::Checked)
    }

    #[inline]
    fn lookup_with(&self, row_ids: RowIds<'_>, target: &mut [u8], freshness: Freshness) -> EngramResult<()> {
        match &self.tables {
            Tables::Stored(stored) => stored.lookup_into(&[row_ids], target, freshness),
            Tables::Local(tables) => self.lookup_locally(tables, row_ids, target),
            Tables::None => Err(EngramError::MetadataOnly { layer: self.config.layer }),
        }
    }

    fn lookup_locally(&self, tables: &[Vec<u8>], row_ids: RowIds<'_>, target: &mut [u8]) -> EngramResult<()> {
        row_ids.check(&self.config)?;
        let (heads, row_bytes) = (self.heads() as u32, self.row_bytes());
        let expected = row_ids.count() as u64 * row_bytes;
        if expected != target.len() as u64 {
            return Err(EngramError::Output { expected, got: target.len() as u64 });
        }
        let layer = [LayerRows { ids: row_ids.as_slice(), first_table: 0, heads, row_bytes, destination: 0 }];
        for (range, row) in Rows(&layer).iter().zip(target.chunks_exact_mut(row_bytes as usize)) {
            let start = range.source_offset as usize;
            row.copy_from_slice(&tables[range.key as usize][start..start + row.len()]);
        }
        Ok(())
    }

    /// Removes the layer's tables from the store and returns how many there were; missing ones are ignored. Without
    /// `force`, nothing is removed if a table has another size than is configured here: it's another model's then.
    ///
    /// # Errors
    /// [`EngramError::TableShape`] without `force`; what the store says.
    pub fn remove_from_store(&self, force: bool) -> EngramResult<usize> {
        let stored = self.stored()?;
        if !force {
            let sizes = stored.client().size_batch(stored.keys())?;
            stored.check_tables(|index| sizes[index].as_ref().ok().copied())?;
        }
        let removed = stored.client().remove_batch(stored.keys())?;
        stored.drop_snapshot();
        Ok(removed.into_iter().filter(|was_there| *was_there).count())
    }

    fn stored(&self) -> EngramResult<&StoredTables> {
        match &self.tables {
            Tables::Stored(stored) => Ok(stored),
            _ => Err(EngramError::MetadataOnly { layer: self.config.layer }),
        }
    }
}

fn check_shapes<T: AsRef<[u8]>>(config: &EngramConfig, tables: &[T]) -> EngramResult<()> {
    let (layer, heads) = (config.layer, config.table_vocab_sizes.len());
    if tables.len() != heads {
        return Err(EngramError::TableCount { layer, expected: heads, got: tables.len() });
    }
    for (head, table) in tables.iter().enumerate() {
        let (expected, got) = (config.table_bytes(head).unwrap_or(0), table.as_ref().len() as u64);
        if expected != got {
            return Err(EngramError::TableShape { layer, head, expected, got });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engram::RowFormat;

    fn config() -> EngramConfig {
        EngramConfig { layer: 3, table_vocab_sizes: vec![4, 5], row: RowFormat::Bytes(2) }
    }

    #[test]
    fn local_tables_are_looked_up_without_a_store() {
        let tables = vec![(0..8).collect::<Vec<u8>>(), (100..110).collect()];
        let store = EngramStore::with_local_tables(config(), tables).unwrap();
        let rows = store.lookup(RowIds::new(&[3, 4, 0, 1], [1, 2, 2]).unwrap()).unwrap();
        assert_eq!(rows, [6, 7, 108, 109, 0, 1, 102, 103]);
        let error = store.lookup_into(RowIds::new(&[0, 0], [1, 1, 2]).unwrap(), &mut [0; 3]).unwrap_err();
        assert_eq!(error, EngramError::Output { expected: 4, got: 3 });
    }

    #[test]
    fn metadata_needs_neither_and_says_so_when_asked_for_rows() {
        let store = EngramStore::metadata_only(config()).unwrap();
        assert_eq!(
            (store.heads(), store.row_bytes(), store.total_bytes(), store.embedding_dim()),
            (2, 2, 18, 2)
        );
        assert_eq!(store.keys(), ["engram:l3:h0", "engram:l3:h1"]);
        let error = store.lookup(RowIds::new(&[0, 0], [1, 1, 2]).unwrap()).unwrap_err();
        assert_eq!(error, EngramError::MetadataOnly { layer: 3 });
        assert!(
            store.populate(&[vec![0; 8], vec![0; 10]]).is_err() && store.remove_from_store(true).is_err()
        );
    }

    #[test]
    fn tables_of_the_wrong_shape_name_the_head() {
        let refused = |tables: Vec<Vec<u8>>| EngramStore::with_local_tables(config(), tables).unwrap_err();
        assert_eq!(refused(vec![vec![0; 8]]), EngramError::TableCount { layer: 3, expected: 2, got: 1 });
        let shape = EngramError::TableShape { layer: 3, head: 1, expected: 10, got: 9 };
        assert_eq!(refused(vec![vec![0; 8], vec![0; 9]]), shape);
        let no_heads = EngramConfig { table_vocab_sizes: vec![], ..config() };
        assert!(matches!(EngramStore::metadata_only(no_heads), Err(EngramError::Config { .. })));
        let endless = EngramConfig { table_vocab_sizes: vec![u64::MAX], ..config() };
        assert!(EngramStore::metadata_only(endless).is_err());
    }
}
