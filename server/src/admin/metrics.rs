//! `/metrics`: every metric in one table, from which both the text for Prometheus and `docs/metrics.md` are made.
//!
//! Names and units are stable; counters end in `_total`. What always holds: each metric is there from the start, at zero, for each
//! shard and tenant, so that a missing one means a broken scrape and nothing else.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use lanner_shared::wire::Opcode;

use super::health::Phase;
use super::{Account, Admin};
use crate::eviction::adaptive::{Ranking, ShadowStats};
use crate::shard::ShardStats;
use crate::shard::stats::{AGE_CLASS_TENTHS, PREFIX_CLASS_BLOCKS};
use crate::transport::stats::TransportStats;

/// A value and its labels beside `shard` and `tenant`.
type Samples<'a> = &'a mut dyn FnMut(&[(&str, &str)], u64);

/// Where a metric's values come from.
enum Source {
    /// One value of a shard of a tenant.
    Stats(fn(&ShardStats) -> u64),
    /// Several values of a shard of a tenant, told apart by the label that is named.
    Labelled(&'static str, fn(&ShardStats, Samples<'_>)),
    /// One value of a core, all tenants together.
    Transport(fn(&TransportStats) -> u64),
    /// A histogram of a shard of a tenant.
    Histogram(fn(&ShardStats) -> Distribution),
    /// One value of the whole server.
    Server(fn(&Admin) -> u64),
}

/// Sum, count, and the number in each class with the class's upper bound.
type Distribution = (f64, u64, Vec<(f64, u64)>);

/// A metric.
struct Metric {
    /// Without the `_total` of a counter.
    name: &'static str,
    kind: MetricType,
    help: &'static str,
    source: Source,
}

const fn counter(name: &'static str, help: &'static str, source: Source) -> Metric {
    Metric { name, kind: MetricType::Counter, help, source }
}

const fn gauge(name: &'static str, help: &'static str, source: Source) -> Metric {
    Metric { name, kind: MetricType::Gauge, help, source }
}

/// All metrics, in the order in which they are shown.
const METRICS: &[Metric] = &[
    counter("lanner_hits", "Keys that an operation found", Source::Labelled("operation", hits)),
    counter("lanner_misses", "Keys that an operation didn't find", Source::Labelled("operation", misses)),
    counter("lanner_puts", "Objects stored under a key that was free", Source::Stats(|stats| stats.puts)),
    counter(
        "lanner_upserts",
        "Objects stored under a key that was free or taken",
        Source::Stats(|stats| stats.upserts),
    ),
    counter(
        "lanner_puts_refused",
        "Puts that stored nothing because the store refused them",
        Source::Labelled("reason", refusals),
    ),
    counter(
        "lanner_puts_unfinished",
        "Puts that began and stored nothing because they didn't end",
        Source::Labelled("reason", unfinished),
    ),
    counter("lanner_value_in_bytes", "Value bytes stored", Source::Stats(|stats| stats.bytes_in)),
    counter(
        "lanner_value_out_bytes",
        "Value bytes sent; what clients read from shared memory themselves isn't among them",
        Source::Stats(|stats| stats.bytes_out),
    ),
    counter(
        "lanner_touches",
        "Reads past the shard that it was told of",
        Source::Stats(|stats| stats.touches),
    ),
    Metric {
        name: "lanner_prefix_blocks",
        kind: MetricType::Histogram,
        help: "Leading blocks found of each group of up to 32 blocks of a chain that match_chain asked for",
        source: Source::Histogram(prefix_blocks),
    },
    counter(
        "lanner_groups_answered_again",
        "Those of these groups whose last answer was still right and given again",
        Source::Stats(|stats| stats.groups_answered_again),
    ),
    counter(
        "lanner_lists_answered_again",
        "Parts of ranged reads' lists of keys whose last answer was still right and given again",
        Source::Stats(|stats| stats.lists_answered_again),
    ),
    counter("lanner_evictions", "Objects evicted", Source::Labelled("reason", evictions)),
    counter("lanner_evicted_bytes", "Bytes of evicted objects", Source::Stats(|stats| stats.evicted_bytes)),
    Metric {
        name: "lanner_age_at_eviction_seconds",
        kind: MetricType::Histogram,
        help: "How long evicted objects had been stored",
        source: Source::Histogram(ages),
    },
    counter(
        "lanner_ghost_hits",
        "Objects stored again while the order of eviction remembered that it had evicted them",
        Source::Stats(|stats| stats.ghost_hits),
    ),
    counter(
        "lanner_shadow_hits",
        "Uses of sampled keys that would have been hits under each ranking of the adaptive policy; zero under another policy",
        Source::Labelled("ranking", shadow_hits),
    ),
    counter(
        "lanner_shadow_misses",
        "Uses of sampled keys that would have been misses",
        Source::Labelled("ranking", shadow_misses),
    ),
    gauge(
        "lanner_ranking",
        "1 for the ranking that the adaptive policy follows, 0 for the others",
        Source::Labelled("ranking", ranking),
    ),
    counter(
        "lanner_ranking_decisions",
        "How often the adaptive policy changed its ranking; /shards shows the reasons",
        Source::Stats(|stats| stats.adaptive.as_ref().map_or(0, |adaptive| adaptive.decisions_ever)),
    ),
    gauge(
        "lanner_sampled_keys_per_million",
        "The part of the keys that the adaptive policy watches, in millionths",
        Source::Stats(|stats| {
            stats.adaptive.as_ref().map_or(0, |adaptive| u64::from(adaptive.sampled_per_million))
        }),
    ),
    gauge(
        "lanner_lease_milliseconds",
        "Length of the leases that are granted; shorter than configured while leases keep puts from finding room, and in a drain",
        Source::Stats(|stats| stats.tuning.lease_ms.into()),
    ),
    gauge(
        "lanner_watermark_per_mille",
        "Thousandths of the memory: with fewer free, eviction ahead of demand begins, and with so many it ends",
        Source::Labelled("mark", watermarks),
    ),
    counter(
        "lanner_tuning_decisions",
        "How often the shard changed its watermarks or the length of its leases; /shards shows the reasons",
        Source::Stats(|stats| stats.tuning.decisions_ever),
    ),
    counter(
        "lanner_departures",
        "Objects that left for another reason than eviction",
        Source::Labelled("reason", departures),
    ),
    gauge("lanner_objects", "Objects that can be found", Source::Stats(|stats| stats.objects)),
    gauge(
        "lanner_unfinished_puts",
        "Puts that have begun and not ended",
        Source::Stats(|stats| stats.unfinished_puts),
    ),
    gauge(
        "lanner_capacity_bytes",
        "Bytes that objects can take",
        Source::Stats(|stats| stats.capacity_bytes),
    ),
    gauge("lanner_free_bytes", "Bytes that no object takes", Source::Stats(|stats| stats.free_bytes)),
    gauge(
        "lanner_largest_free_run_bytes",
        "Bytes of the largest free piece, exact to 1/32",
        Source::Stats(|stats| stats.largest_free_run_bytes),
    ),
    gauge("lanner_free_runs", "Number of free pieces", Source::Stats(|stats| stats.free_runs)),
    gauge(
        "lanner_lease_bytes",
        "Bytes of objects that a lease protects, removed ones included",
        Source::Stats(|stats| stats.leased_bytes),
    ),
    gauge(
        "lanner_quarantine_bytes",
        "Bytes of objects that are gone and whose memory waits for a lease or a transfer",
        Source::Stats(|stats| stats.quarantined_bytes),
    ),
    gauge(
        "lanner_hard_pinned_bytes",
        "Bytes of hard-pinned objects",
        Source::Stats(|stats| stats.hard_pinned_bytes),
    ),
    gauge(
        "lanner_oldest_hard_pin_seconds",
        "For how long the oldest hard pin has held; 0 without one",
        Source::Stats(|stats| stats.oldest_hard_pin_seconds),
    ),
    gauge(
        "lanner_content_bytes",
        "Key and value bytes of the objects that can be found",
        Source::Stats(|stats| stats.content_bytes),
    ),
    gauge(
        "lanner_index_bytes",
        "Bytes of memory beside the objects: index, key filter, slots, ghosts",
        Source::Stats(|stats| stats.index_bytes),
    ),
    gauge(
        "lanner_prefix_index_bytes",
        "Bytes of the prefix index; 0 without one",
        Source::Stats(|stats| stats.prefix_index_bytes),
    ),
    gauge(
        "lanner_filter_bytes",
        "Bytes of the key filter, which are among those of `lanner_index_bytes`",
        Source::Stats(|stats| stats.filter_bytes),
    ),
    gauge(
        "lanner_filter_capacity_keys",
        "Keys that the key filter takes before it grows",
        Source::Stats(|stats| stats.filter_capacity_keys),
    ),
    counter(
        "lanner_filter_parts_rebuilt",
        "Parts of the key filter that were rebuilt, to grow or to free counters that stuck",
        Source::Stats(|stats| stats.filter_parts_rebuilt),
    ),
    counter(
        "lanner_filter_looks",
        "Looks at the key filter: what it said, and whether that was right; those of clients that map it aren't counted",
        Source::Labelled("outcome", filter_looks),
    ),
    gauge(
        "lanner_filter_false_positives_per_million",
        "The rate at which the key filter takes absent keys for present ones, measured with made-up keys over the last minute or so",
        Source::Stats(|stats| stats.filter_probes_wrong * 1_000_000 / stats.filter_probes.max(1)),
    ),
    counter(
        "lanner_lost_bytes",
        "Bytes given up because memory was found damaged; not zero: a fault, please report it",
        Source::Stats(|stats| stats.lost_bytes),
    ),
    counter(
        "lanner_damaged_runs",
        "How often an allocation met damaged memory; not zero: a fault, please report it",
        Source::Stats(|stats| stats.damaged_runs_met),
    ),
    gauge(
        "lanner_tcp_connections",
        "Connections over TCP",
        Source::Transport(|transport| transport.tcp_connections),
    ),
    gauge("lanner_shm_lanes", "Lanes over shared memory", Source::Transport(|transport| transport.shm_lanes)),
    gauge(
        "lanner_rdma_connections",
        "Connections over RDMA",
        Source::Transport(|transport| transport.rdma_connections),
    ),
    counter(
        "lanner_rdma_failures",
        "RDMA connections that ended because a device said that something failed; not those of clients that had closed them or were killed",
        Source::Transport(|transport| transport.rdma_failures),
    ),
    counter(
        "lanner_rdma_values_read",
        "Values of puts that were read out of their clients' registered memory",
        Source::Transport(|transport| transport.rdma_values_read),
    ),
    counter(
        "lanner_connections_opened",
        "Connections and lanes that were opened",
        Source::Transport(|transport| transport.connections_opened),
    ),
    counter(
        "lanner_connections_closed",
        "Connections and lanes that have ended",
        Source::Transport(|transport| transport.connections_closed),
    ),
    counter(
        "lanner_connections_moved",
        "Connections that went to the core of the shard that a request was for",
        Source::Transport(|transport| transport.connections_moved),
    ),
    counter(
        "lanner_connections_refused",
        "Connections refused for want of room",
        Source::Transport(|transport| transport.connections_refused),
    ),
    counter(
        "lanner_accepts_failed",
        "How often the system could give no connection, mostly for want of file descriptors",
        Source::Transport(|transport| transport.accepts_failed),
    ),
    counter(
        "lanner_version_refusals",
        "Handshakes refused because client and server have no version in common",
        Source::Transport(|transport| transport.version_refusals),
    ),
    counter(
        "lanner_authentication_refusals",
        "Handshakes refused because tenant or token was wrong",
        Source::Transport(|transport| transport.authentication_refusals),
    ),
    counter(
        "lanner_protocol_errors",
        "Connections ended because the client broke the protocol",
        Source::Transport(|transport| transport.protocol_errors),
    ),
    counter(
        "lanner_stalled_peers",
        "Connections ended because the client took or sent nothing for too long",
        Source::Transport(|transport| transport.stalled_peers),
    ),
    counter(
        "lanner_received_bytes",
        "Bytes received, of whatever kind",
        Source::Transport(|transport| transport.received_bytes),
    ),
    counter(
        "lanner_sent_bytes",
        "Bytes sent, of whatever kind",
        Source::Transport(|transport| transport.sent_bytes),
    ),
    gauge(
        "lanner_ready",
        "1 while clients are served, 0 while the server starts or drains",
        Source::Server(|admin| u64::from(admin.health.phase() == Phase::Ready)),
    ),
    gauge(
        "lanner_uptime_seconds",
        "Seconds since the server started",
        Source::Server(|admin| admin.uptime_ms() / 1000),
    ),
    gauge(
        "lanner_memory_limit_bytes",
        "Bytes that the server uses if everything comes together, see /shards",
        Source::Server(|admin| admin.memory_plan.bytes_at_most()),
    ),
];

fn hits(stats: &ShardStats, sample: Samples<'_>) {
    for operation in LOOK_UPS {
        sample(&[("operation", operation.name())], stats.hits(operation));
    }
}

fn misses(stats: &ShardStats, sample: Samples<'_>) {
    for operation in LOOK_UPS {
        sample(&[("operation", operation.name())], stats.misses(operation));
    }
}

/// The operations that look keys up.
const LOOK_UPS: [Opcode; 7] = [
    Opcode::Get,
    Opcode::Query,
    Opcode::Exists,
    Opcode::Remove,
    Opcode::ReadRanges,
    Opcode::LongestPrefix,
    Opcode::MatchChain,
];

fn filter_looks(stats: &ShardStats, sample: Samples<'_>) {
    sample(&[("outcome", "negative")], stats.filter_negatives);
    sample(&[("outcome", "positive")], stats.filter_positives);
    sample(&[("outcome", "false_positive")], stats.filter_false_positives);
}

fn refusals(stats: &ShardStats, sample: Samples<'_>) {
    sample(&[("reason", "exists")], stats.puts_refused_existing);
    sample(&[("reason", "full")], stats.puts_refused_full);
    sample(&[("reason", "overloaded")], stats.puts_refused_overloaded);
}

fn unfinished(stats: &ShardStats, sample: Samples<'_>) {
    sample(&[("reason", "aborted")], stats.puts_aborted);
    sample(&[("reason", "peer_gone")], stats.puts_ended_with_peer);
    sample(&[("reason", "timed_out")], stats.puts_timed_out);
}

fn evictions(stats: &ShardStats, sample: Samples<'_>) {
    sample(&[("reason", "ahead")], stats.evicted_ahead);
    sample(&[("reason", "demand")], stats.evicted_for_demand);
    sample(&[("reason", "neighbour")], stats.evicted_as_neighbour);
}

fn shadow_hits(stats: &ShardStats, sample: Samples<'_>) {
    for ranking in Ranking::ALL {
        sample(&[("ranking", ranking.name())], shadow(stats, ranking).map_or(0, |shadow| shadow.hits));
    }
}

fn shadow_misses(stats: &ShardStats, sample: Samples<'_>) {
    for ranking in Ranking::ALL {
        sample(&[("ranking", ranking.name())], shadow(stats, ranking).map_or(0, |shadow| shadow.misses));
    }
}

fn shadow(stats: &ShardStats, ranking: Ranking) -> Option<ShadowStats> {
    stats.adaptive.as_ref()?.shadows.iter().find(|shadow| shadow.ranking == ranking).copied()
}

fn ranking(stats: &ShardStats, sample: Samples<'_>) {
    for ranking in Ranking::ALL {
        let is_followed = stats.adaptive.as_ref().is_some_and(|adaptive| adaptive.ranking == ranking);
        sample(&[("ranking", ranking.name())], u64::from(is_followed));
    }
}

fn watermarks(stats: &ShardStats, sample: Samples<'_>) {
    sample(&[("mark", "begin")], stats.tuning.begin_below_per_mille.into());
    sample(&[("mark", "end")], stats.tuning.end_at_per_mille.into());
}

fn departures(stats: &ShardStats, sample: Samples<'_>) {
    sample(&[("reason", "removed")], stats.removed);
    sample(&[("reason", "overwritten")], stats.overwritten);
    sample(&[("reason", "expired")], stats.expired);
}

/// All metrics of a server in Prometheus's text format.
///
/// # Errors
/// None that a string can give.
pub(super) fn as_text(admin: &Admin) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(Arc::new(admin.clone()))));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

/// One answer to Prometheus.
#[derive(Debug)]
struct Scrape(Arc<Admin>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let accounts = self.0.accounts();
        for metric in METRICS {
            metric.encode(&self.0, &accounts, &mut encoder)?;
        }
        Ok(())
    }
}

/// Counters have no exemplars here; the encoder wants to know of which type they aren't.
const NO_EXEMPLAR: Option<&Exemplar<[(&str, &str); 1], f64>> = None;

impl Metric {
    fn encode(
        &self,
        admin: &Admin,
        accounts: &[Account<'_>],
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(self.name, self.help, None, self.kind)?;
        let mut outcome = Ok(());
        let mut sample = |labels: &[(&str, &str)], value: u64| {
            let mut encode = || {
                let mut family = metric.encode_family(&labels)?;
                match self.kind {
                    MetricType::Counter => family.encode_counter(&value, NO_EXEMPLAR),
                    _ => family.encode_gauge(&value),
                }
            };
            outcome = outcome.and_then(|()| encode());
        };
        for account in accounts {
            let shard = account.shard.to_string();
            let whose = [("shard", shard.as_str()), ("tenant", account.tenant)];
            match self.source {
                Source::Stats(value) => sample(&whose, value(&account.stats)),
                Source::Labelled(_, values) => values(&account.stats, &mut |labels, value| {
                    sample(&[&whose[..], labels].concat(), value);
                }),
                Source::Transport(value) if account.is_first_of_shard => {
                    sample(&whose[..1], value(&account.transport))
                }
                Source::Transport(_) | Source::Server(_) | Source::Histogram(_) => {}
            }
        }
        if let Source::Server(value) = self.source {
            sample(&[], value(admin));
        }
        outcome?;
        if let Source::Histogram(distribution) = self.source {
            for account in accounts {
                let labels = [("shard", account.shard.to_string()), ("tenant", account.tenant.to_owned())];
                let (sum, count, classes) = distribution(&account.stats);
                metric
                    .encode_family(&labels)?
                    .encode_histogram::<[(&str, &str); 1]>(sum, count, &classes, None)?;
            }
        }
        Ok(())
    }
}

/// In seconds.
fn ages(stats: &ShardStats) -> Distribution {
    let bounds = AGE_CLASS_TENTHS.iter().map(|tenths| f64::from(*tenths) / 10.0).chain([f64::INFINITY]);
    let classes = bounds.zip(stats.age_at_eviction).collect();
    (stats.age_at_eviction_tenths as f64 / 10.0, stats.age_at_eviction.iter().sum(), classes)
}

/// In blocks.
fn prefix_blocks(stats: &ShardStats) -> Distribution {
    let bounds = PREFIX_CLASS_BLOCKS.iter().map(|blocks| f64::from(*blocks)).chain([f64::INFINITY]);
    let classes = bounds.zip(stats.prefix_blocks).collect();
    (stats.hits(Opcode::MatchChain) as f64, stats.prefix_blocks.iter().sum(), classes)
}

/// The table of `docs/metrics.md`.
#[must_use]
pub fn as_document() -> String {
    let mut text = "# Metrics\n\nWhat `/metrics` on the admin address (`--admin`, 127.0.0.1 and the port above that of `--listen` by default, so 7412) answers, in Prometheus's text format. \
        Every metric is there from the start, at zero.\nThe labels `shard` and `tenant` name the shard's number and the tenant (empty: the default one).\n\n\
        | metric | kind | labels | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for metric in METRICS {
        let suffix = if matches!(metric.kind, MetricType::Counter) { "_total" } else { "" };
        let labels = match metric.source {
            Source::Stats(_) | Source::Histogram(_) => "shard, tenant".to_owned(),
            Source::Labelled(label, values) => {
                let mut words = Vec::new();
                values(&ShardStats::default(), &mut |labels, _| {
                    words.extend(labels.iter().map(|(_, value)| format!("`{value}`")));
                });
                format!("shard, tenant, {label}: {}", words.join(" "))
            }
            Source::Transport(_) => "shard".to_owned(),
            Source::Server(_) => String::new(),
        };
        text.push_str(&format!(
            "| `{}{suffix}` | {} | {labels} | {} |\n",
            metric.name,
            metric.kind.as_str(),
            metric.help
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Shows that the documentation lists what the server has. After a change: LANNER_WRITE_DOCS=1 cargo test -p lanner-server metrics
    #[test]
    fn the_document_lists_what_there_is() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
        if std::env::var_os("LANNER_WRITE_DOCS").is_some() {
            std::fs::write(&path, as_document()).expect("written");
        }
        let written = std::fs::read_to_string(&path).expect("docs/metrics.md");
        assert!(
            written == as_document(),
            "docs/metrics.md is out of date: LANNER_WRITE_DOCS=1 cargo test -p lanner-server metrics"
        );
    }

    /// Shows that names follow Prometheus's habits: one prefix, letters and underscores, units in full, none twice.
    #[test]
    fn names_are_as_prometheus_wants_them() {
        let mut names = std::collections::HashSet::new();
        for metric in METRICS {
            assert!(names.insert(metric.name), "{} stands twice", metric.name);
            assert!(
                metric.name.starts_with("lanner_") && !metric.name.ends_with("_total"),
                "{}",
                metric.name
            );
            assert!(
                metric.name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'),
                "{}",
                metric.name
            );
        }
    }

    /// Shows that the histogram's classes are cumulative in the end, as Prometheus wants them, by its own encoder: count and sum agree.
    #[test]
    fn ages_add_up() {
        let mut stats = ShardStats::default();
        for (class, age_tenths) in [(0, 5), (0, 9), (7, 900_000)] {
            stats.age_at_eviction[class] += 1;
            stats.age_at_eviction_tenths += age_tenths;
        }
        let (sum, count, classes) = ages(&stats);
        assert_eq!((sum, count, classes.len()), (90_001.4, 3, 8));
        assert_eq!(classes[0], (1.0, 2));
        assert_eq!(classes[7], (f64::INFINITY, 1));
    }
}
