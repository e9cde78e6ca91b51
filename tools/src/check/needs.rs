//! What a server with given flags asks of a machine, as sums with a line for each user.

use lanner_server::config::memory_plan::{RDMA_MESSAGE_BYTES, RDMA_RECEIVES, RDMA_SENDS};
use std::net::SocketAddr;

/// The kernel that first had everything the data path asks of io_uring: SINGLE_ISSUER came with 6.0, DEFER_TASKRUN with 6.1.
pub const KERNEL: (u32, u32) = (6, 1);

/// Memory that one shard locks: the buffers that its executor registers with its ring.
pub const LOCKED_BYTES_PER_SHARD: u64 = 1 << 20;

/// Memory that one shard locks beside its segment where there is RDMA: its messages, and the queues of a card that has its users make them
/// (mlx5), for some hundred connections.
pub const RDMA_BYTES_PER_SHARD: u64 =
    (RDMA_RECEIVES + RDMA_SENDS) as u64 * RDMA_MESSAGE_BYTES as u64 + (4 << 20);

/// Files that a server without a single client has open, with some room.
pub const OPEN_FILES_AT_REST: u64 = 256;

/// Files for some thousand clients: a socket for each shard and an eventfd for each shared-memory ring.
pub const OPEN_FILES_IN_SERVICE: u64 = 8192;

/// Bytes of the huge pages that a segment is made of.
pub const HUGE_PAGE: u64 = 2 << 20;

/// What the servers of this machine are to be started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// `--memory` of one server, in bytes.
    pub memory: u64,
    /// `--shards` of one server.
    pub shards: u32,
    /// `--listen`.
    pub listen: SocketAddr,
    /// `--admin`, unless it's off.
    pub admin: Option<SocketAddr>,
}

impl Needs {
    /// Bytes that a server locks without RDMA.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        u64::from(self.shards) * LOCKED_BYTES_PER_SHARD
    }

    /// Bytes that a server locks with RDMA, which pins the whole segment.
    #[must_use]
    pub fn locked_bytes_with_rdma(&self) -> u64 {
        let beside = u64::from(self.shards) * RDMA_BYTES_PER_SHARD;
        self.locked_bytes().saturating_add(beside).saturating_add(self.memory)
    }

    /// Huge pages that hold the memory of one server.
    #[must_use]
    pub fn huge_pages(&self) -> u64 {
        self.memory.div_ceil(HUGE_PAGE)
    }
}
