//! Tensors stored as the shards of a tensor-parallel group, and read in any other partition.
//!
//! A tensor of shape `[d0, …]` is cut along one axis into parts, each stored as one object, row-major, under
//! `tensor:{name}:p{part}`; what it looks like is stored under `tensor:{name}`. A reader asks for a slice along any axis; the
//! ranges of all parts that it needs are computed once ([`layout`]), a snapshot is kept, and all shards are read in parallel
//! straight into one contiguous buffer.

mod error;
mod layout;
mod sharded;
mod spec;

pub use error::TensorError;
pub use sharded::{ShardedTensor, TensorSlice};
pub use spec::TensorSpec;
