//! What can be wrong with Engram tables or a look-up, and where.

use lanner_shared::Error;
use thiserror::Error as ThisError;

pub(super) type EngramResult<T> = Result<T, EngramError>;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum EngramError {
    /// A configuration that no tables can have.
    #[error(
        "layer {layer} is configured with {heads} heads and {row_bytes} bytes a row; both must be at least 1 and the tables countable"
    )]
    Config {
        /// The layer.
        layer: u32,
        /// Its heads.
        heads: usize,
        /// Bytes of a row.
        row_bytes: u64,
    },
    /// A look-up of nothing.
    #[error("the row ids are empty; give at least one token")]
    Empty,
    /// The ids aren't as many as their shape says.
    #[error("{got} row ids don't fill the shape [{batch}, {length}, {heads}]")]
    Shape {
        /// B.
        batch: usize,
        /// L.
        length: usize,
        /// H.
        heads: usize,
        /// Ids given.
        got: usize,
    },
    /// The last dimension isn't the number of heads.
    #[error("layer {layer} has {expected} heads, but the row ids have {got} for each token")]
    Heads {
        /// The layer.
        layer: u32,
        /// Heads of the layer.
        expected: usize,
        /// Heads of the ids.
        got: usize,
    },
    /// A row that the table doesn't have.
    #[error(
        "row id {id} at [{batch}, {position}, {head}] of layer {layer} is out of range: the table has {rows} rows"
    )]
    OutOfRange {
        /// The layer.
        layer: u32,
        /// Index in dimension B.
        batch: usize,
        /// Index in dimension L.
        position: usize,
        /// Index in dimension H.
        head: usize,
        /// The id.
        id: i64,
        /// Rows of the head's table.
        rows: u64,
    },
    /// The caller's buffer isn't exactly as large as the result.
    #[error("the result has {expected} bytes, the buffer {got}")]
    Output {
        /// Bytes of the result.
        expected: u64,
        /// Bytes of the buffer.
        got: u64,
    },
    /// Tables that aren't in the store.
    #[error("these tables are not in the store: {}; populate the layer first", .keys.join(", "))]
    MissingTables {
        /// Their keys.
        keys: Vec<String>,
    },
    /// Not a table for each head.
    #[error("layer {layer} has {expected} heads, but {got} tables were given")]
    TableCount {
        /// The layer.
        layer: u32,
        /// Heads of the layer.
        expected: usize,
        /// Tables given.
        got: usize,
    },
    /// A table of another size.
    #[error("the table of layer {layer}, head {head} should have {expected} bytes and has {got}")]
    TableShape {
        /// The layer.
        layer: u32,
        /// The head.
        head: usize,
        /// Rows times bytes of a row.
        expected: u64,
        /// What it has.
        got: u64,
    },
    /// There is neither a client nor local tables.
    #[error(
        "layer {layer} has neither a client nor local tables, only metadata; make it with one of them to look rows up"
    )]
    MetadataOnly {
        /// The layer.
        layer: u32,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] Error),
}
