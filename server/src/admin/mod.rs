//! What an operator sees of a server: metrics, health, the shards' own accounts.

pub mod board;
