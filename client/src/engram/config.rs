//! What a layer's tables look like.

use super::error::{EngramError, EngramResult};
use crate::dtype::Dtype;

/// What one row consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFormat {
    /// So many bytes, of whatever kind.
    Bytes(u64),
    /// So many elements of one type.
    Elements {
        /// The type.
        dtype: Dtype,
        /// How many.
        embedding_dim: u64,
    },
}

impl RowFormat {
    /// Bytes of a row.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            RowFormat::Bytes(bytes) => bytes,
            RowFormat::Elements { dtype, embedding_dim } => dtype.bytes().saturating_mul(embedding_dim),
        }
    }
}

/// The tables of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngramConfig {
    /// Number of the layer in its model.
    pub layer: u32,
    /// Rows of each head's table.
    pub table_vocab_sizes: Vec<u64>,
    /// What a row consists of.
    pub row: RowFormat,
}

impl EngramConfig {
    /// The epoch group of the layer's tables.
    #[must_use]
    pub fn group(&self) -> String {
        format!("engram:l{}", self.layer)
    }

    /// The key of a head's table. It names neither a model nor a dtype: a stored table of the same size in bytes is taken for this one, whatever
    /// it holds. Models that may have such tables need a tenant or a store each.
    #[must_use]
    pub fn key(&self, head: usize) -> String {
        format!("engram:l{}:h{head}", self.layer)
    }

    /// Bytes of a head's table, or `None` if there is no such head or they can't be counted.
    #[must_use]
    pub fn table_bytes(&self, head: usize) -> Option<u64> {
        self.table_vocab_sizes.get(head)?.checked_mul(self.row.bytes())
    }

    pub(super) fn check(&self) -> EngramResult<()> {
        let heads = self.table_vocab_sizes.len();
        let all_counted = (0..heads).all(|head| self.table_bytes(head).is_some());
        if heads == 0 || self.row.bytes() == 0 || !all_counted || heads > usize::from(u16::MAX) {
            return Err(EngramError::Config { layer: self.layer, heads, row_bytes: self.row.bytes() });
        }
        Ok(())
    }
}
