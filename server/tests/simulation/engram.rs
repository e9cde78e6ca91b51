//! Engram tables in the simulated world: one layer, small tables, rows that say where they belong.

use crate::settings::{ENGRAM_ROW_BYTES, ENGRAM_ROWS};
use fastrand::Rng;
use lanner_client::{Client, EngramConfig, EngramStore, RowFormat, RowIds};

/// A row that was looked up: the key of its table, its first byte there, and what was read.
pub type FoundRow = (Vec<u8>, u64, Vec<u8>);

pub fn store(client: Client) -> EngramStore {
    let row = RowFormat::Bytes(ENGRAM_ROW_BYTES);
    let config = EngramConfig { layer: 1, table_vocab_sizes: ENGRAM_ROWS.to_vec(), row };
    EngramStore::new(client, config).expect("a valid configuration")
}

/// Looks up a random row of each head, or says that it couldn't.
pub fn look_up(store: &EngramStore, random: &mut Rng) -> Option<Vec<FoundRow>> {
    let ids: Vec<i64> = ENGRAM_ROWS.iter().map(|rows| random.i64(0..*rows as i64)).collect();
    let row_ids = RowIds::new(&ids, [1, 1, ENGRAM_ROWS.len()]).ok()?;
    let mut target = vec![0xee; ENGRAM_ROWS.len() * ENGRAM_ROW_BYTES as usize];
    store.lookup_into(row_ids, &mut target).ok()?;
    let rows = target.chunks(ENGRAM_ROW_BYTES as usize).zip(ids).enumerate();
    let found = rows.map(|(head, (row, id))| {
        (format!("engram:l1:h{head}").into_bytes(), id as u64 * ENGRAM_ROW_BYTES, row.to_vec())
    });
    Some(found.collect())
}
