//! The tables that `bench engram` stores: every byte of every row follows from its table and its number, so that any row can be checked.

use lanner_client::{Client, EngramConfig, EngramStore};

use crate::bench::progress::Progress;
use crate::exit::Failure;

/// The word at a place of a row: different for each table, row and place.
fn word(table: u64, row: u64, index: usize) -> [u8; 8] {
    let place = table << 52 ^ row << 12 ^ index as u64;
    (place ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).to_le_bytes()
}

/// Whether `bytes` are row `row` of table `table`, counted over all layers.
#[must_use]
pub fn is_row(table: u64, row: u64, bytes: &[u8]) -> bool {
    bytes.chunks(8).enumerate().all(|(index, part)| *part == word(table, row, index)[..part.len()])
}

fn table_of(table: u64, rows: u64, row_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; rows as usize * row_bytes];
    for (row, target) in bytes.chunks_exact_mut(row_bytes).enumerate() {
        for (index, part) in target.chunks_mut(8).enumerate() {
            part.copy_from_slice(&word(table, row as u64, index)[..part.len()]);
        }
    }
    bytes
}

/// Layers in the store; removed when dropped.
#[derive(Debug)]
pub struct StoredLayers(Vec<EngramStore>);

impl StoredLayers {
    /// Stores all tables of `layers`. Those of the same names that are in the store already are removed first if `replaces`.
    ///
    /// # Errors
    /// What the store says, tables that are in the store already.
    pub fn new(client: &Client, layers: &[EngramConfig], replaces: bool) -> Result<StoredLayers, Failure> {
        let mut stored = StoredLayers(Vec::new());
        let progress = Progress::new("storing tables", layers.len() as u64);
        let mut first_table = 0;
        for layer in layers {
            let store = EngramStore::new(client.clone(), layer.clone())?;
            if replaces {
                store.remove_from_store(true)?;
            } else {
                refuse_those_of_others(client, &store)?;
            }
            let tables = layer.table_vocab_sizes.iter().zip(first_table..);
            let tables: Vec<Vec<u8>> =
                tables.map(|(rows, table)| table_of(table, *rows, layer.row.bytes() as usize)).collect();
            store.populate(&tables)?;
            first_table += tables.len() as u64;
            stored.0.push(store);
            progress.set(stored.0.len() as u64);
        }
        Ok(stored)
    }
}

/// Tables that this run didn't store may be somebody's.
fn refuse_those_of_others(client: &Client, store: &EngramStore) -> Result<(), Failure> {
    let keys = store.keys();
    let there = client.exists_batch(&keys)?;
    match keys.iter().zip(there).find(|(_, is_there)| *is_there) {
        None => Ok(()),
        Some((key, _)) => Err(Failure::WrongUse(format!(
            "{key} is in the store already; measure on another server, or write --replace to remove the tables of layer {}",
            store.layer()
        ))),
    }
}

impl Drop for StoredLayers {
    fn drop(&mut self) {
        for store in &self.0 {
            // A store that has gone has nothing left to remove.
            let _ = store.remove_from_store(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a row is told from its neighbours, from the same row of another table, and from itself with a wrong byte.
    #[test]
    fn a_row_is_told_from_every_other() {
        for row_bytes in [64, 264] {
            let table = table_of(3, 100, row_bytes);
            let row = |number: usize| &table[number * row_bytes..][..row_bytes];
            for number in 0..100 {
                assert!(is_row(3, number as u64, row(number)));
                assert!(!is_row(3, number as u64 + 1, row(number)) && !is_row(4, number as u64, row(number)));
            }
            let mut wrong = row(50).to_vec();
            wrong[row_bytes - 1] ^= 1;
            assert!(!is_row(3, 50, &wrong));
        }
    }
}
