//! How frames reach a core and answers leave it, one module for each transport. Set-up ([`handshake`]) apart from data path.
//!
//! | module | connections |
//! |---|---|
//! | [`tcp`] | sockets on the core's io_uring |
//! | [`shm`] | rings in shared memory, polled |
//! | [`rdma`] | queue pairs, whose completions are polled |
//!
//! A transport cuts nothing and decides nothing: bytes go to [`crate::service::inbound`], answers come from
//! [`crate::service::replies`].

pub mod handshake;
#[cfg(feature = "rdma")]
pub mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "rdma_absent.rs"]
pub mod rdma;
pub mod rdma_home;
pub mod shm;
pub mod stats;
pub mod tcp;

use crate::pump::mail::Post;
use crate::pump::ring::{Completion, Ring};
use crate::server::identity::Identity;
use crate::shard::Shard;
use lanner_shared::time::Instant;
use stats::TransportStats;
use std::sync::Arc;
use std::time::Duration;

/// What the transports of a core work on.
#[derive(Debug)]
pub struct Core {
    /// A shard for each tenant, in the order of the configuration.
    pub shards: Vec<Shard>,
    /// The core's io_uring.
    pub ring: Ring,
    /// The time, as last looked at. After something arrived it's looked at again before it's served: a lease that was
    /// counted from before its request was sent would end too early (promise P1).
    pub now: Instant,
    /// Counters of this core's connections.
    pub stats: TransportStats,
    /// The server is draining.
    pub is_draining: bool,
    /// Bytes that connections hold of requests that haven't arrived whole.
    pub partial_bytes: u64,
    /// Bytes that connections hold of answers that weren't taken yet.
    pub reply_bytes: u64,
    /// The ways to all cores' mail, by shard.
    pub posts: Vec<Post>,
    /// Who the server is.
    pub identity: Arc<Identity>,
}

/// A way for frames to reach a core.
pub trait Transport {
    /// Moves what can be moved without the ring. Whether there was anything.
    fn poll(&mut self, core: &mut Core) -> bool;

    /// An operation on the ring that this transport has begun has ended.
    fn completed(&mut self, core: &mut Core, completion: Completion);

    /// Some time has passed: ends connections whose peers owe something for too long.
    fn tick(&mut self, core: &mut Core);

    /// Whether the core must not sleep now.
    fn has_work(&self) -> bool;

    /// How long the core may sleep at most for this transport's sake.
    fn longest_sleep(&self) -> Duration {
        Duration::MAX
    }

    /// Number of connections.
    fn connections(&self) -> usize;
}
