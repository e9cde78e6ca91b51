//! Lanner's server: the shards that hold the data, and what drives them.
//!
//! `memory` (where bytes lie), `eviction` (who goes first) and `shard` (what a request does) decide, and know neither
//! clock nor socket. What acts on the world lies in modules of its own beside them.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod admin;
pub mod config;
pub mod eviction;
pub mod filter;
pub mod memory;
pub mod pump;
pub mod radix;
pub mod runtime;
pub mod server;
pub mod service;
pub mod shard;
pub mod transport;
