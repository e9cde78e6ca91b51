//! What `lanner-server` is told, by flags and by a TOML file, as types that can't hold a bad value.
//!
//! `lanner-server`'s `main` parses [`flags::Flags`] and calls [`resolve::resolve`] once; everything behind it takes a
//! [`ServerConfig`] and checks nothing again. [`settings`] lists each setting once, for flags and file alike; [`values`] says how
//! a value is written; [`machine`] asks this machine what there is to be had; [`memory_plan`] adds up all memory;
//! [`print`] shows the outcome as a file that can be fed back.
//!
//! What always holds: each error is one line that names the setting, what is wrong and what to write instead.

pub mod file;
pub mod flags;
pub mod machine;
pub mod memory_plan;
pub mod print;
pub mod resolve;
pub mod settings;
pub mod tenant;
pub mod values;

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::eviction::PolicyKind;
pub use lanner_rdma::choice::RdmaChoice;
use memory_plan::MemoryPlan;
use tenant::Tenant;
pub use values::{HugePages, LeaseLength, PollMode, ShmChoice, WatermarkChoice};

/// The configuration of one server, checked.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen for clients; at least one address. Port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// Where to serve metrics and health, if anywhere.
    pub admin: Option<SocketAddr>,
    /// The CPU of each shard; at least one, all different.
    pub cores: Vec<usize>,
    /// The NUMA node to bind the segments to.
    pub numa_node: Option<u32>,
    /// Bytes for objects, all shards and tenants together.
    pub memory_bytes: u64,
    /// Whether the segments are backed by huge pages.
    pub huge_pages: HugePages,
    /// Whether all of the segments' pages are taken at the start rather than when first used.
    pub prefault: bool,
    /// Whether and where shared memory is handed out.
    pub shm: ShmChoice,
    /// Whether RDMA is wanted.
    pub rdma: RdmaChoice,
    /// How long a lease is.
    pub lease_ttl: Duration,
    /// Whether leases may become shorter.
    pub lease_length: LeaseLength,
    /// When objects are evicted ahead of demand.
    pub watermarks: WatermarkChoice,
    /// What a shard without work does.
    pub poll: PollMode,
    /// Who is evicted first.
    pub policy: PolicyKind,
    /// Whether each value's checksum is kept in its header.
    pub value_checksums: bool,
    /// Whether each shard keeps its keys in order too.
    pub prefix_index: bool,
    /// The most connections that a shard has at a time.
    pub max_connections: u32,
    /// How long a drain waits for leases and connections.
    pub drain_timeout: Duration,
    /// Which messages go to standard error, as `tracing`'s filter directives.
    pub log: String,
    /// Whose objects are kept, each in segments of its own; at least one.
    pub tenants: Vec<Tenant>,
}

impl ServerConfig {
    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> u16 {
        // resolve() takes no more cores than `MAX_SHARDS`.
        self.cores.len() as u16
    }

    /// Bytes of the segment that `tenant` has on each shard: whole pages.
    #[must_use]
    pub fn segment_bytes(&self, tenant: &Tenant) -> u64 {
        let bytes = tenant.share.of(self.memory_bytes) / u64::from(self.shards());
        bytes / self.page_bytes() * self.page_bytes()
    }

    /// Bytes that segments are a multiple of. Under [`HugePages::Auto`] too segments are whole huge pages, where that leaves any.
    fn page_bytes(&self) -> u64 {
        let per_shard = self.memory_bytes / u64::from(self.shards());
        let is_large = per_shard >= 64 * crate::memory::segment::HUGE_PAGE_BYTES;
        match self.huge_pages {
            HugePages::On => crate::memory::segment::HUGE_PAGE_BYTES,
            HugePages::Auto if is_large => crate::memory::segment::HUGE_PAGE_BYTES,
            HugePages::Auto | HugePages::Off => 4096,
        }
    }

    /// All memory that a server with this configuration uses, line by line.
    #[must_use]
    pub fn memory_plan(&self) -> MemoryPlan {
        MemoryPlan::of(self)
    }
}

/// Why a server can't be started as it was told: one line, and what to write instead.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file named by `--config` can't be read.
    #[error("--config {path}: {source}; name a file that this user can read, or leave --config out", path = path.display())]
    UnreadableFile {
        /// The file as it was named.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file isn't TOML, has a key that nothing knows, or a value that can't be meant.
    #[error("{path}:{line}: {problem}", path = path.display())]
    File {
        /// The file as it was named.
        path: PathBuf,
        /// Line in the file, from 1.
        line: usize,
        /// What is wrong there and what to write.
        problem: String,
    },
    /// The command line can't be read.
    #[error("{0}")]
    CommandLine(String),
    /// A setting that can be read and still can't be meant, or that this machine can't fulfil.
    #[error("{setting}: {problem}")]
    Setting {
        /// The setting, as a flag or a table of the file.
        setting: &'static str,
        /// What is wrong and what to write.
        problem: String,
    },
}

impl ConfigError {
    /// An error in one setting.
    pub(crate) fn setting(setting: &'static str, problem: impl Into<String>) -> ConfigError {
        ConfigError::Setting { setting, problem: problem.into() }
    }
}
