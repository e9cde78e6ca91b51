//! What the cores know about themselves, where the admin thread and `lanner top` can read it.
//!
//! Each core replaces its own entries about ten times a second; readers take whichever is there. No lock, one writer for
//! each entry.

use crate::shard::{Shard, ShardStats};
use crate::transport::stats::TransportStats;
use arc_swap::ArcSwapOption;
use lanner_shared::ShardId;
use lanner_shared::time::Instant;
use serde::Serialize;
use std::sync::Arc;

/// One shard of one tenant, as its core described it.
#[derive(Clone, Debug, Serialize)]
pub struct ShardReport {
    /// Which shard.
    pub shard: u16,
    /// Index of the tenant.
    pub tenant: usize,
    /// When, in milliseconds of the server's monotonic clock.
    pub at_ms: u64,
    /// The shard's counts.
    pub stats: ShardStats,
    /// The core's connections, all tenants together.
    pub transport: TransportStats,
}

impl ShardReport {
    /// What `shard` says at `now`.
    pub fn new(shard: &mut Shard, tenant: usize, transport: TransportStats, now: Instant) -> ShardReport {
        ShardReport {
            shard: shard.config().shard.0,
            tenant,
            at_ms: now.millis(),
            stats: shard.stats(now),
            transport,
        }
    }
}

/// The latest reports of all shards.
#[derive(Debug)]
pub struct Board {
    tenants: usize,
    /// By shard, then by tenant.
    entries: Vec<ArcSwapOption<ShardReport>>,
}

impl Board {
    /// A board for so many shards and tenants, without any report yet.
    #[must_use]
    pub fn new(shards: u16, tenants: usize) -> Board {
        let entries = (0..usize::from(shards) * tenants).map(|_| ArcSwapOption::empty()).collect();
        Board { tenants, entries }
    }

    /// Replaces the report of a shard. To be called by its core only.
    pub fn publish(&self, shard: ShardId, tenant: usize, report: ShardReport) {
        if let Some(entry) = self.entries.get(usize::from(shard.0) * self.tenants + tenant) {
            entry.store(Some(Arc::new(report)));
        }
    }

    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> u16 {
        (self.entries.len() / self.tenants.max(1)) as u16
    }

    /// The latest report of a shard of a tenant, once there is one.
    #[must_use]
    pub fn report(&self, shard: u16, tenant: usize) -> Option<Arc<ShardReport>> {
        self.entries.get(usize::from(shard) * self.tenants + tenant)?.load_full()
    }

    /// All reports that there are, by shard, then by tenant.
    #[must_use]
    pub fn reports(&self) -> Vec<Arc<ShardReport>> {
        self.entries.iter().filter_map(ArcSwapOption::load_full).collect()
    }
}
