//! What a Lanner server and its clients must agree on.
//!
//! | module | holds |
//! |---|---|
//! | [`key`] | keys, their hash, and the shard that a key belongs to |
//! | [`chain`] | chains of blocks: how their keys become keys of the store |
//! | [`lease`] | how long a lease runs, on either side, and when to renew it |
//! | [`extent`] | the header that makes an extent in a segment describe itself |
//! | [`filter`] | the layout of a shard's Bloom filter, its reader and its writer |
//! | [`epoch`] | the words that tell a reader that a group of keys has changed |
//! | [`wire`] | the frames, one file for each message |
//! | [`prefetch`] | asking for bytes before they are read |
//! | [`shm`] | the layouts in shared memory: segment page, rings, staging buffer |
//! | [`auth`] | the challenge that a tenant's token answers |
//! | [`error`] | every error, with a stable code and its cure |
//! | [`time`] | instants and the one place that reads the system's clock |
//!
//! Nothing here opens a socket, starts a thread or asks for the time on its own account.

pub mod auth;
pub mod chain;
pub mod copy;
pub mod epoch;
pub mod error;
pub mod extent;
pub mod filter;
pub mod key;
pub mod lease;
pub mod prefetch;
pub mod shm;
mod sync;
pub mod time;
pub mod wire;

pub use error::{Error, Result};
pub use key::{KeyHash, ShardId};
