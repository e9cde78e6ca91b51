//! Row ids of a look-up, and the ranges of table bytes that they amount to.

use super::config::EngramConfig;
use super::error::{EngramError, EngramResult};
use crate::snapshot::ranges::{Range, Ranges};

/// Row ids of shape [B, L, H], row-major: for each sequence and position one id for each head.
#[derive(Clone, Copy, Debug)]
pub struct RowIds<'a> {
    ids: &'a [i64],
    shape: [usize; 3],
}

impl<'a> RowIds<'a> {
    /// `ids` in the `shape` [B, L, H].
    ///
    /// # Errors
    /// [`EngramError::Empty`], or [`EngramError::Shape`] if there are more or fewer ids than that.
    pub fn new(ids: &'a [i64], shape: [usize; 3]) -> EngramResult<RowIds<'a>> {
        let [batch, length, heads] = shape;
        let count = batch.checked_mul(length).and_then(|tokens| tokens.checked_mul(heads));
        if ids.is_empty() || count == Some(0) {
            return Err(EngramError::Empty);
        }
        if count != Some(ids.len()) {
            return Err(EngramError::Shape { batch, length, heads, got: ids.len() });
        }
        Ok(RowIds { ids, shape })
    }

    /// Number of ids.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn as_slice(&self) -> &'a [i64] {
        self.ids
    }

    /// Checks the ids against the tables that they're for.
    #[inline]
    pub(super) fn check(&self, config: &EngramConfig) -> EngramResult<()> {
        let rows = config.table_vocab_sizes.as_slice();
        if self.shape[2] != rows.len() {
            return Err(EngramError::Heads { layer: config.layer, expected: rows.len(), got: self.shape[2] });
        }
        for (token, ids) in self.ids.chunks_exact(rows.len()).enumerate() {
            // A negative id is a huge unsigned one.
            let is_in_range = ids.iter().zip(rows).fold(true, |all, (id, rows)| all & ((*id as u64) < *rows));
            if !is_in_range {
                return Err(self.out_of_range(config, token));
            }
        }
        Ok(())
    }

    #[cold]
    fn out_of_range(&self, config: &EngramConfig, token: usize) -> EngramError {
        let rows = &config.table_vocab_sizes;
        let ids = &self.ids[token * rows.len()..];
        let head = ids.iter().zip(rows).position(|(id, rows)| *id as u64 >= *rows).unwrap_or(0);
        EngramError::OutOfRange {
            layer: config.layer,
            batch: token / self.shape[1],
            position: token % self.shape[1],
            head,
            id: ids[head],
            rows: rows[head],
        }
    }
}

/// The rows of one layer within a look-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerRows<'a> {
    pub ids: &'a [i64],
    /// Key index of the layer's first table.
    pub first_table: u32,
    pub heads: u32,
    pub row_bytes: u64,
    /// Where the layer's result starts.
    pub destination: u64,
}

/// The rows of a look-up, one layer after the other. The ids were checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a>(pub &'a [LayerRows<'a>]);

impl Ranges for Rows<'_> {
    fn count(&self) -> usize {
        self.0.iter().map(|layer| layer.ids.len()).sum()
    }

    fn range(&self, index: usize) -> Range {
        let mut at = index;
        for layer in self.0 {
            if at < layer.ids.len() {
                return Range {
                    key: layer.first_table + (at % layer.heads as usize) as u32,
                    source_offset: layer.ids[at] as u64 * layer.row_bytes,
                    length: layer.row_bytes,
                    destination_offset: layer.destination + at as u64 * layer.row_bytes,
                };
            }
            at -= layer.ids.len();
        }
        Range::default()
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = Range> {
        self.0.iter().flat_map(LayerRows::iter)
    }

    #[inline(always)]
    fn each(&self, mut act: impl FnMut(Range)) {
        for layer in self.0 {
            for range in layer.iter() {
                act(range);
            }
        }
    }

    /// A look-up has a row of each head, so of each table.
    #[inline]
    fn whole_key_set(&self) -> bool {
        true
    }

    #[inline]
    fn common_length(&self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        rest.iter().all(|layer| layer.row_bytes == first.row_bytes).then_some(first.row_bytes)
    }
}

impl LayerRows<'_> {
    /// The ranges in order, by counting up rather than by dividing: a division costs as much as copying a row.
    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = Range> {
        let mut head = 0;
        let mut destination_offset = self.destination;
        self.ids.iter().map(move |id| {
            let range = Range {
                key: self.first_table + head,
                source_offset: *id as u64 * self.row_bytes,
                length: self.row_bytes,
                destination_offset,
            };
            destination_offset += self.row_bytes;
            head = if head + 1 == self.heads { 0 } else { head + 1 };
            range
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engram::RowFormat;

    fn config() -> EngramConfig {
        EngramConfig { layer: 7, table_vocab_sizes: vec![10, 20, 30], row: RowFormat::Bytes(8) }
    }

    #[test]
    fn what_is_refused_names_the_place() {
        assert_eq!(RowIds::new(&[], [1, 1, 3]).unwrap_err(), EngramError::Empty);
        assert_eq!(RowIds::new(&[1], [0, 1, 3]).unwrap_err(), EngramError::Empty);
        let shape = EngramError::Shape { batch: 1, length: 2, heads: 3, got: 5 };
        assert_eq!(RowIds::new(&[1; 5], [1, 2, 3]).unwrap_err(), shape);
        assert!(RowIds::new(&[1; 5], [usize::MAX, 2, 3]).is_err());
        let heads = EngramError::Heads { layer: 7, expected: 3, got: 2 };
        assert_eq!(RowIds::new(&[1; 6], [1, 3, 2]).unwrap().check(&config()), Err(heads));
        let mut ids = [9; 18];
        assert_eq!(RowIds::new(&ids, [2, 3, 3]).unwrap().check(&config()), Ok(()));
        for (at, id, place, rows) in
            [(0, 10, [0, 0, 0], 10), (16, 20, [1, 2, 1], 20), (11, -1, [1, 0, 2], 30)]
        {
            ids[at] = id;
            let error = RowIds::new(&ids, [2, 3, 3]).unwrap().check(&config()).unwrap_err();
            let [batch, position, head] = place;
            assert_eq!(error, EngramError::OutOfRange { layer: 7, batch, position, head, id, rows });
            ids[at] = 9;
        }
    }

    #[test]
    fn both_ways_through_the_ranges_agree() {
        let ids: Vec<i64> = (0..12).collect();
        let layers = [
            LayerRows { ids: &ids[..6], first_table: 0, heads: 3, row_bytes: 8, destination: 0 },
            LayerRows { ids: &ids[6..], first_table: 3, heads: 2, row_bytes: 16, destination: 48 },
        ];
        let rows = Rows(&layers);
        let counted: Vec<Range> = rows.iter().collect();
        assert_eq!(counted.len(), rows.count());
        for (index, range) in counted.iter().enumerate() {
            assert_eq!(rows.range(index), *range);
        }
        assert_eq!(counted[7], Range { key: 4, source_offset: 7 * 16, length: 16, destination_offset: 64 });
    }
}
