//! Engram tables: embedding tables with one row for each n-gram hash, of which a model reads a few dozen rows a token.
//!
//! A layer has a table for each head, stored as one object each under `engram:l{layer}:h{head}`, all in the epoch group
//! `engram:l{layer}`. A look-up reads rows through a cached snapshot: it asks no server, and over shared memory it makes no
//! system call and allocates nothing. Of a stored table its size in bytes is compared, and nothing else: see [`EngramConfig::key`].
//!
//! | type | for |
//! |---|---|
//! | [`EngramStore`] | one layer |
//! | [`EngramSet`] | many layers, looked up in one batch |

mod config;
mod error;
mod rows;
mod set;
mod store;
mod tables;

pub use config::{EngramConfig, RowFormat};
pub use error::EngramError;
pub use rows::RowIds;
pub use set::EngramSet;
pub use store::EngramStore;
