//! What the cores know about themselves, where the admin thread and `lanner top` can read it.
//!
//! Each core replaces its own entries about ten times a second; readers take whichever is there. No lock, one writer for
//! each entry.

use crate::eviction::adaptive::Decision;
use crate::shard::{Shard, ShardStats, TuningDecision};
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

    /// Replaces the report of a shard, and logs what it has decided since its last one. To be called by its core only.
    pub fn publish(&self, shard: ShardId, tenant: usize, report: ShardReport) {
        if let Some(entry) = self.entries.get(usize::from(shard.0) * self.tenants + tenant) {
            let before = entry.load();
            for decision in new_decisions(before.as_deref(), &report) {
                tracing::info!("shard {}, tenant {tenant}: order of eviction {decision}", shard.0);
            }
            for decision in new_tunings(before.as_deref(), &report) {
                tracing::info!("shard {}, tenant {tenant}: {}", shard.0, decision.text);
            }
            drop(before);
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

/// Decisions on the order of eviction that the report before didn't have; of very many at once only the last.
fn new_decisions<'a>(before: Option<&ShardReport>, report: &'a ShardReport) -> &'a [Decision] {
    let Some(adaptive) = &report.stats.adaptive else { return &[] };
    let adaptive_before = before.and_then(|before| before.stats.adaptive.as_ref());
    let new = adaptive.decisions_ever - adaptive_before.map_or(0, |before| before.decisions_ever);
    let first = adaptive.decisions.len().saturating_sub(usize::try_from(new).unwrap_or(usize::MAX));
    adaptive.decisions.get(first..).unwrap_or(&[])
}

/// The same of decisions on watermarks and leases.
fn new_tunings<'a>(
    before: Option<&ShardReport>,
    report: &'a ShardReport,
) -> impl Iterator<Item = &'a TuningDecision> {
    let tuning = &report.stats.tuning;
    let new = tuning.decisions_ever - before.map_or(0, |before| before.stats.tuning.decisions_ever);
    let first = tuning.decisions.len().saturating_sub(usize::try_from(new).unwrap_or(usize::MAX));
    tuning.decisions.iter().skip(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::adaptive::{Adaptive, Ranking};

    /// A report of a shard that has made so many decisions, of which it keeps the last three.
    fn report(decisions_ever: u64) -> ShardReport {
        let decision = |number| Decision {
            at_ms: number,
            from: Ranking::Density,
            to: Ranking::Recency,
            from_hits_per_mille: 100,
            to_hits_per_mille: 200,
            deviations: 9,
        };
        let mut adaptive = Adaptive::new(1, None).state();
        adaptive.decisions_ever = decisions_ever;
        adaptive.decisions = (decisions_ever.saturating_sub(3)..decisions_ever).map(decision).collect();
        let mut stats = ShardStats::default();
        stats.adaptive = Some(adaptive);
        let tuning = |number| TuningDecision { at_ms: number, text: String::new() };
        stats.tuning.decisions_ever = decisions_ever;
        stats.tuning.decisions = (decisions_ever.saturating_sub(3)..decisions_ever).map(tuning).collect();
        ShardReport { shard: 0, tenant: 0, at_ms: 0, stats, transport: TransportStats::default() }
    }

    /// Shows that each decision is new once, that those no longer kept are passed over, and that a fixed policy decides nothing.
    #[test]
    fn a_decision_is_new_once() {
        let new = |before: Option<u64>, now: u64| {
            let (before, now) = (before.map(report), report(now));
            let new: Vec<u64> =
                new_decisions(before.as_ref(), &now).iter().map(|decision| decision.at_ms).collect();
            assert!(
                new_tunings(before.as_ref(), &now).map(|decision| decision.at_ms).eq(new.iter().copied())
            );
            new
        };
        assert!(new(None, 0).is_empty());
        assert_eq!(new(None, 2), [0, 1]);
        assert_eq!(new(Some(2), 3), [2]);
        assert!(new(Some(3), 3).is_empty());
        assert_eq!(new(Some(3), 9), [6, 7, 8]);
        let fixed = ShardReport { stats: ShardStats::default(), ..report(0) };
        assert!(new_decisions(None, &fixed).is_empty());
    }
}
