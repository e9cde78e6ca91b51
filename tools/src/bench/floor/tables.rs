//! Where the rows of Engram tables lie in a segment. Only what a gather needs: starts and numbers of rows.

use std::iter;

/// Bytes of a row of the preset `ngram`: 256 values of one byte and 8 bytes of scales.
pub const NGRAM_ROW_BYTES: usize = 264;

/// Tables of the preset `ngram`: two layers of 24.
pub const NGRAM_TABLES: usize = 48;

/// A table of rows of equal length that lie one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePlace {
    /// Offset of its first row in the segment.
    pub start: usize,
    /// Its rows.
    pub rows: u64,
}

/// Tables of so many rows of `row_bytes` each, one behind the other from offset 0. Each starts on a cache line, as values in a store do.
pub fn places(rows: impl IntoIterator<Item = u64>, row_bytes: usize) -> Vec<TablePlace> {
    let mut start = 0;
    let mut place = |rows: u64| {
        let table = TablePlace { start, rows };
        start = (start + rows as usize * row_bytes).next_multiple_of(64);
        table
    };
    rows.into_iter().map(&mut place).collect()
}

/// Rows of each of the tables of preset `ngram`, with `scale` times as many.
#[must_use]
pub fn ngram_rows(scale: u64) -> Vec<u64> {
    primes_from(17).take(NGRAM_TABLES).map(|prime| prime * scale).collect()
}

/// The tables of preset `ngram`, with `scale` times as many rows.
#[must_use]
pub fn ngram_tables(scale: u64) -> Vec<TablePlace> {
    places(ngram_rows(scale), NGRAM_ROW_BYTES)
}

/// Bytes that hold these tables of rows of `row_bytes`.
#[must_use]
pub fn bytes_of(tables: &[TablePlace], row_bytes: usize) -> u64 {
    tables.last().map_or(0, |table| table.start as u64 + table.rows * row_bytes as u64)
}

/// The scale at which the tables of preset `ngram` take about `bytes`, at least 1.
#[must_use]
pub fn ngram_scale_for(bytes: u64) -> u64 {
    let unscaled: u64 = primes_from(17).take(NGRAM_TABLES).sum::<u64>() * NGRAM_ROW_BYTES as u64;
    (bytes / unscaled).max(1)
}

fn primes_from(first: u64) -> impl Iterator<Item = u64> {
    let is_prime = |n: &u64| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    iter::successors(Some(first), |n| Some(n + 1)).filter(is_prime)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that the preset is the one that results are published for: 48 primes from 17 on, 1,594,560 bytes of rows.
    #[test]
    fn the_preset_is_the_published_one() {
        let tables = ngram_tables(1);
        assert_eq!(tables.iter().take(4).map(|table| table.rows).collect::<Vec<_>>(), [17, 19, 23, 29]);
        assert_eq!(tables.len(), 48);
        assert_eq!(tables.iter().map(|table| table.rows * 264).sum::<u64>(), 1_594_560);
    }

    /// Shows that tables don't overlap, at any scale, and that the scale hits the size asked for within one unscaled set.
    #[test]
    fn scaled_tables_lie_one_behind_the_other() {
        for bytes in [1, 3 << 20, 4 << 30] {
            let tables = ngram_tables(ngram_scale_for(bytes));
            for pair in tables.windows(2) {
                assert!(pair[0].start + pair[0].rows as usize * NGRAM_ROW_BYTES <= pair[1].start);
            }
            let total = bytes_of(&tables, NGRAM_ROW_BYTES);
            assert!(total.abs_diff(bytes) <= 1_600_000, "{total} for {bytes}");
        }
    }
}
