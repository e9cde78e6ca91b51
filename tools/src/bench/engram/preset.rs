//! The data sets that results are published for.

use clap::ValueEnum;
use lanner_client::{EngramConfig, RowFormat};

use crate::bench::floor::tables::{NGRAM_TABLES, ngram_rows};

/// Bytes of a row of preset `ngram`: 256 fp8 values and 8 bytes of scales.
pub const NGRAM_ROW_BYTES: usize = crate::bench::floor::tables::NGRAM_ROW_BYTES;
/// Bytes of a row of preset `store`.
pub const STORE_ROW_BYTES: usize = 64;

/// A data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// One layer of 8 heads with 50,000 rows of 64 bytes each.
    Store,
    /// Layers 1 and 14, n-grams up to 4, 8 heads: 24 tables a layer of rows of 264 bytes, with the first 48 primes from 17 on as numbers
    /// of rows.
    Ngram,
}

impl Preset {
    /// The word for it on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Preset::Store => "store",
            Preset::Ngram => "ngram",
        }
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(self) -> usize {
        match self {
            Preset::Store => STORE_ROW_BYTES,
            Preset::Ngram => NGRAM_ROW_BYTES,
        }
    }

    /// The layers, with `scale` times the rows.
    #[must_use]
    pub fn layers(self, scale: u64) -> Vec<EngramConfig> {
        let row = RowFormat::Bytes(self.row_bytes() as u64);
        let layer = |layer, rows: &[u64]| EngramConfig { layer, table_vocab_sizes: rows.to_vec(), row };
        match self {
            Preset::Store => vec![layer(0, &[50_000 * scale; 8])],
            Preset::Ngram => {
                let rows = ngram_rows(scale);
                let (first, second) = rows.split_at(NGRAM_TABLES / 2);
                vec![layer(1, first), layer(14, second)]
            }
        }
    }

    /// Tokens in a call, as published.
    #[must_use]
    pub fn tokens(self) -> Vec<u64> {
        match self {
            Preset::Store => vec![1, 4, 16, 64, 128, 256],
            Preset::Ngram => vec![1, 4, 8],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(preset: Preset) -> u64 {
        let sizes = |layer: &EngramConfig| {
            (0..layer.table_vocab_sizes.len()).filter_map(|head| layer.table_bytes(head)).sum::<u64>()
        };
        preset.layers(1).iter().map(sizes).sum()
    }

    /// Shows that the data sets are the published ones.
    #[test]
    fn the_presets_are_the_published_ones() {
        assert_eq!((bytes(Preset::Store), bytes(Preset::Ngram)), (8 * 50_000 * 64, 1_594_560));
        let layers = Preset::Ngram.layers(1);
        let heads: Vec<(u32, usize)> =
            layers.iter().map(|layer| (layer.layer, layer.table_vocab_sizes.len())).collect();
        assert_eq!(heads, [(1, 24), (14, 24)]);
        assert_eq!(Preset::Ngram.layers(3)[0].table_vocab_sizes[..2], [51, 57]);
    }
}
