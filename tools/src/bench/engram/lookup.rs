//! The product's rounds: one look-up of random rows, of all layers in one batch.

use fastrand::Rng;
use lanner_client::{Client, EngramConfig, EngramSet, Freshness, Range, RowIds};
use lanner_shared::time::Clock;

use super::Mode;
use super::tables::is_row;
use crate::bench::workload::Workload;
use crate::exit::Failure;

/// Look-ups of so many tokens in one mode.
pub struct LookUp {
    client: Client,
    set: EngramSet,
    mode: Mode,
    tokens: usize,
    /// Rounds of which every byte is compared before anything is measured.
    warmups: u64,
    random: Rng,
    /// Row ids of each layer, [1, tokens, heads].
    ids: Vec<Vec<i64>>,
    /// What `query` reads: keys of all tables, and a range for each row.
    keys: Vec<String>,
    ranges: Vec<Range>,
    /// The first layer's [1, tokens, heads, row], then the second's.
    rows: Vec<u8>,
}

impl LookUp {
    /// Look-ups in `layers`, which are in the store.
    ///
    /// # Errors
    /// Layers that can't be meant.
    pub fn new(
        client: &Client,
        layers: &[EngramConfig],
        mode: Mode,
        tokens: u64,
        warmups: u64,
        seed: u64,
    ) -> Result<LookUp, Failure> {
        let tokens = tokens as usize;
        let ids: Vec<Vec<i64>> =
            layers.iter().map(|layer| vec![0; tokens * layer.table_vocab_sizes.len()]).collect();
        let keys_of = |layer: &EngramConfig| {
            (0..layer.table_vocab_sizes.len()).map(|head| layer.key(head)).collect::<Vec<_>>()
        };
        let bytes: u64 =
            layers.iter().zip(&ids).map(|(layer, ids)| ids.len() as u64 * layer.row.bytes()).sum();
        Ok(LookUp {
            client: client.clone(),
            set: EngramSet::new(client.clone(), layers.to_vec())?,
            mode,
            tokens,
            warmups,
            random: Rng::with_seed(seed),
            ranges: vec![Range::default(); ids.iter().map(Vec::len).sum()],
            ids,
            keys: layers.iter().flat_map(keys_of).collect(),
            rows: vec![0; bytes as usize],
        })
    }

    /// Chooses rows, and says in ranges what the same look-up is by key.
    fn draw(&mut self) {
        let mut ranges = self.ranges.iter_mut();
        let (mut first_table, mut destination_offset) = (0, 0);
        for (layer, ids) in self.set.layers().iter().zip(&mut self.ids) {
            let sizes = layer.table_vocab_sizes.iter().enumerate().cycle();
            for ((id, (head, rows)), range) in ids.iter_mut().zip(sizes).zip(&mut ranges) {
                let row = self.random.u64(0..*rows);
                *id = row as i64;
                let length = layer.row.bytes();
                *range = Range {
                    key: first_table + head as u32,
                    source_offset: row * length,
                    length,
                    destination_offset,
                };
                destination_offset += length;
            }
            first_table += layer.table_vocab_sizes.len() as u32;
        }
    }

    /// Looks up what was drawn, and returns the nanoseconds it took.
    fn look_up(&mut self) -> Result<u64, Failure> {
        let shape = |ids: &Vec<i64>| [1, self.tokens, ids.len() / self.tokens];
        let row_ids =
            self.ids.iter().map(|ids| RowIds::new(ids, shape(ids))).collect::<Result<Vec<_>, _>>()?;
        let before = Clock.now();
        match self.mode {
            Mode::Query => self.client.read_ranges(&self.keys, &self.ranges, &mut self.rows)?,
            Mode::Snapshot => self.set.lookup_into(&row_ids, &mut self.rows, Freshness::Lease)?,
            Mode::Checked => self.set.lookup_into(&row_ids, &mut self.rows, Freshness::Checked)?,
        }
        Ok(Clock.now().since(before).as_nanos() as u64)
    }

    /// Compares a row of the result.
    fn check_row(&self, index: usize) -> Result<(), Failure> {
        let Range { key, source_offset, length, destination_offset } = self.ranges[index];
        let bytes = &self.rows[destination_offset as usize..][..length as usize];
        if is_row(u64::from(key), source_offset / length, bytes) {
            return Ok(());
        }
        let (table, row) = (&self.keys[key as usize], source_offset / length);
        Err(Failure::Machine(format!("WRONG BYTES in row {row} of {table} ({} mode)", self.mode.name())))
    }
}

impl Workload for LookUp {
    fn name(&self) -> String {
        format!("{} of {} tokens", self.mode.name(), self.tokens)
    }

    /// The warm-ups, with every byte compared.
    fn prepare(&mut self) -> Result<u64, Failure> {
        let mut verified = 0;
        for _ in 0..self.warmups.max(1) {
            self.draw();
            self.rows.fill(0);
            self.look_up()?;
            (0..self.ranges.len()).try_for_each(|index| self.check_row(index))?;
            verified += self.rows.len() as u64;
        }
        Ok(verified)
    }

    /// One row of each round is compared too, after the time was taken.
    fn round(&mut self) -> Result<u64, Failure> {
        self.draw();
        let nanos = self.look_up()?;
        self.check_row(self.random.clone().usize(0..self.ranges.len()))?;
        Ok(nanos)
    }
}
