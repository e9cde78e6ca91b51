//! RDMA as both sides of Lanner use it.
//!
//! | module | what it decides or does |
//! |---|---|
//! | [`backlog`] | where messages wait that a server can't serve yet |
//! | [`choice`] | what `--rdma` says |
//! | [`inventory`] | which devices, ports and GIDs the kernel shows |
//! | [`grants`] | how many messages a client may send before the server has taken some up |
//! | [`locked_memory`] | whether the limit on locked memory is why a device refuses some |
//! | [`selection`] | which of them serve, and why |
//! | [`share`] | how a shard's connections share places |
//! | [`queue_pair`] | what may be posted when, and what is known to be done |
//! | [`planner`] | ranges to READ work requests |
//! | `verbs` (feature of that name) | the devices themselves |
//!
//! All but the inventory and `verbs` is logic without a device, a clock or a file. Frames, leases and connections are absent on
//! purpose: they are the server's and the client's.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod backlog;
pub mod choice;
pub mod grants;
pub mod inventory;
pub mod locked_memory;
pub mod planner;
pub mod queue_pair;
pub mod selection;
pub mod share;
#[cfg(feature = "verbs")]
pub mod verbs;

/// What a build without `verbs` says about RDMA.
pub const NOT_IN_BUILD: &str = "this build has no RDMA transport; build it with --features rdma";

/// How to get what a device needs at run time on Debian and what comes of it: the library, the part of it for each driver (the provider), and
/// what loads the kernel's modules. `dnf install rdma-core libibverbs` elsewhere.
pub const RUN_TIME_PACKAGES: &str = "sudo apt-get install -y libibverbs1 ibverbs-providers rdma-core";

/// Bytes of a message that either side has need no place of their own, where the device can do that: requests of a key and short answers.
pub const INLINE_BYTES: u32 = 220;

/// Whether this build can talk to devices.
pub const HAS_VERBS: bool = cfg!(feature = "verbs");
