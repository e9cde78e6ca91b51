//! All memory of a server, as a sum with a line for each user (promise P5), and the limits that make the sum hold. The data path
//! takes its limits from here, so that what is printed and what is enforced are one number.
//!
//! `--print-config` prints the plan and `/shards` shows it. Absent on purpose: memory that the kernel takes for sockets, which
//! `net.ipv4.tcp_mem` bounds.

use lanner_shared::shm::lane_page::LANE_BYTES;
use serde::Serialize;

use super::ServerConfig;
use crate::eviction::{GHOST_BYTES, adaptive};
use crate::filter::KeyFilter;
use crate::memory::extents::UNIT_BYTES;
use crate::memory::{index, slots};
use crate::runtime::EXECUTOR_IO_MEMORY_BYTES;
use crate::shard::most_answer_bytes;

/// Bytes that a connection receives into. A put's value goes from the socket to the segment behind the first of them, so more
/// would only move fewer, larger frames.
pub const RECEIVE_BUFFER_BYTES: usize = 16 << 10;

/// Bytes of frames that have arrived in part, all connections of a shard together. A frame may have 16 MiB, so four
/// clients with the largest are received at a time and others wait; ordinary frames are whole in the receive buffer and take nothing.
pub const PARTIAL_FRAME_BYTES: u64 = 64 << 20;

/// Bytes of replies that wait to be sent, all connections of a shard together. Values of more than a kilobyte don't count: they are
/// sent from the segment.
pub const REPLY_BYTES: u64 = 64 << 20;

/// Connections of a shard at a time, unless configured otherwise: a client thread has one for each shard.
pub const DEFAULT_MAX_CONNECTIONS: u32 = 1024;

/// Shared-memory lanes of a shard at a time: a client thread on this host has one for each shard.
pub const SHM_LANES: u32 = 64;

/// Bytes of a message over RDMA; longer frames take several.
pub const RDMA_MESSAGE_BYTES: usize = lanner_shared::wire::join_rdma::MESSAGE_BYTES;
/// Messages of clients that a shard has room for at a time, of each tenant. A client that finds none waits.
pub const RDMA_RECEIVES: u32 = 256;
/// Answers that are under way over RDMA at a time, of each tenant on a shard.
pub const RDMA_SENDS: u32 = 128;
/// Answers of one RDMA connection that are under way at a time.
pub const RDMA_POSTS: u32 = 32;

/// The pump's own io_uring: its queues, and what it keeps of the operations in flight.
pub const RING_BYTES: u64 = 1 << 20;

/// The program, its threads' stacks and the admin endpoint, as far as they are touched.
pub const PROGRAM_BYTES: u64 = 32 << 20;

/// The smallest extent: a header and a key, then one unit of value.
const SMALLEST_OBJECT_BYTES: u64 = 2 * UNIT_BYTES;

/// Bytes that an object takes beside its extent, at most: its slot, its entry in the index, and its place in a chain.
const OBJECT_BYTES: u64 =
    (slots::BYTES_PER_OBJECT + index::MAX_BYTES_PER_OBJECT + slots::BYTES_PER_BLOCK) as u64;

/// The index's empty tables, the empty key filter and the other parts of a shard that are there before its first object.
const EMPTY_SHARD_BYTES: u64 = (256 << 10) + KeyFilter::EMPTY_BYTES;

/// Bytes of the key filter for an object, at most: 128 counters for at least 8 keys.
const FILTER_BYTES: u64 = 8;

/// Bytes of the prefix index for an object, at most (DESIGN §3). Most keys take some 20.
const PREFIX_INDEX_BYTES: u64 = 48;

/// One user of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryLine {
    /// Who uses it.
    pub name: &'static str,
    /// How many bytes, all shards together: exactly or at most, see `when`.
    pub bytes: u64,
    /// When it is used.
    pub when: When,
    /// How the number comes about.
    pub why: String,
}

/// When memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// From the start on.
    AtStart,
    /// As far as clients and objects need it; never more.
    AtMost,
}

/// The sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct MemoryPlan {
    lines: Vec<MemoryLine>,
}

impl MemoryPlan {
    /// The plan of a server with this configuration.
    #[must_use]
    pub fn of(config: &ServerConfig) -> MemoryPlan {
        let shards = u64::from(config.shards());
        let segments: u64 =
            config.tenants.iter().map(|tenant| config.segment_bytes(tenant)).sum::<u64>() * shards;
        let parts = shards * config.tenants.len() as u64;
        let connections = u64::from(config.max_connections);
        let objects = segments / SMALLEST_OBJECT_BYTES;
        let lines = vec![
            line("segments", segments, When::AtStart, format!("objects: {parts} segments, from --memory")),
            line(
                "free-run bits",
                segments / UNIT_BYTES / 8,
                When::AtMost,
                format!("one bit for each {UNIT_BYTES} bytes of a segment"),
            ),
            line(
                "shards",
                parts * EMPTY_SHARD_BYTES,
                When::AtStart,
                "empty index, key filter and lease wheel of each".to_owned(),
            ),
            line(
                "slots and index",
                objects * OBJECT_BYTES,
                When::AtMost,
                format!(
                    "{OBJECT_BYTES} bytes an object; this is for segments full of the smallest, objects of 4 KiB take 1/{}",
                    4096 / SMALLEST_OBJECT_BYTES
                ),
            ),
            line(
                "order of eviction",
                segments / adaptive::BYTES_PER_GHOST * GHOST_BYTES + parts * adaptive::MOST_SAMPLE_BYTES,
                When::AtMost,
                format!(
                    "{GHOST_BYTES} bytes for each {} of a segment to remember what was evicted, and a sample of the keys",
                    adaptive::BYTES_PER_GHOST
                ),
            ),
            line(
                "answers about chains",
                config
                    .tenants
                    .iter()
                    .map(|tenant| shards * most_answer_bytes(config.segment_bytes(tenant)))
                    .sum(),
                When::AtMost,
                "what was said of the groups of blocks that are asked for again and again".to_owned(),
            ),
            line(
                "key filters",
                objects * FILTER_BYTES,
                When::AtMost,
                format!("{FILTER_BYTES} bytes an object, as far as there are objects"),
            ),
            line(
                "prefix indexes",
                if config.prefix_index { objects * PREFIX_INDEX_BYTES } else { 0 },
                When::AtMost,
                format!("up to {PREFIX_INDEX_BYTES} bytes an object, from --prefix-index"),
            ),
            line(
                "receive buffers",
                shards * connections * RECEIVE_BUFFER_BYTES as u64,
                When::AtMost,
                format!("{} KiB for each of --max-connections", RECEIVE_BUFFER_BYTES >> 10),
            ),
            line("partial frames", shards * PARTIAL_FRAME_BYTES, When::AtMost, "64 MiB a shard".to_owned()),
            line(
                "replies",
                shards * REPLY_BYTES,
                When::AtMost,
                "64 MiB a shard that wait for slow clients".to_owned(),
            ),
            line(
                "shared-memory lanes",
                if config.shm == super::ShmChoice::Off {
                    0
                } else {
                    shards * u64::from(SHM_LANES) * LANE_BYTES as u64
                },
                When::AtMost,
                format!("{SHM_LANES} clients' threads a shard, {} KiB each", LANE_BYTES >> 10),
            ),
            line(
                "RDMA messages",
                if config.rdma == super::RdmaChoice::Off {
                    0
                } else {
                    parts * u64::from(RDMA_RECEIVES + RDMA_SENDS) * RDMA_MESSAGE_BYTES as u64
                },
                When::AtMost,
                format!(
                    "{} of {} KiB for each segment",
                    RDMA_RECEIVES + RDMA_SENDS,
                    RDMA_MESSAGE_BYTES >> 10
                ),
            ),
            line("rings", shards * RING_BYTES, When::AtStart, "each shard's own io_uring".to_owned()),
            line(
                "glommio",
                shards * EXECUTOR_IO_MEMORY_BYTES as u64,
                When::AtStart,
                "each executor's io_memory".to_owned(),
            ),
            line("program", PROGRAM_BYTES, When::AtStart, "code, stacks, admin endpoint".to_owned()),
        ];
        MemoryPlan { lines }
    }

    /// A line for each user.
    #[must_use]
    pub fn lines(&self) -> &[MemoryLine] {
        &self.lines
    }

    /// Bytes of all segments.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.lines.iter().filter(|line| line.name == "segments").map(|line| line.bytes).sum()
    }

    /// Bytes that are used from the start on.
    #[must_use]
    pub fn bytes_at_start(&self) -> u64 {
        self.lines.iter().filter(|line| line.when == When::AtStart).map(|line| line.bytes).sum()
    }

    /// Bytes that are used if everything comes together.
    #[must_use]
    pub fn bytes_at_most(&self) -> u64 {
        self.lines.iter().map(|line| line.bytes).sum()
    }
}

fn line(name: &'static str, bytes: u64, when: When, why: String) -> MemoryLine {
    MemoryLine { name, bytes, when, why }
}
