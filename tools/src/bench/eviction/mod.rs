//! How often the server's orders of eviction hit on a trace, and how often anyone could who knew the future.
//!
//! A request hits the blocks before its first missing one and then writes the rest: a block of a chain is of no use without those
//! before it. What counts is the part of all uses of blocks that were such hits. No time is measured but the replay's own, and no
//! byte is stored.

pub mod belady;
pub mod generate;
pub mod plot;
pub mod replay;
pub mod report;
pub mod trace;

use lanner_shared::time::Clock;

use clap::ValueEnum;
use lanner_server::eviction::PolicyKind;
use serde::Serialize;

use super::progress::Progress;
use replay::Keys;
use report::Row;
use trace::Request;

/// What decides who is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Least recently used
    Lru,
    /// S3-FIFO with a small queue of a tenth
    S3Fifo,
    /// The server's default, which learns
    Adaptive,
    /// The bound: evicts what is used again last
    Belady,
}

impl Order {
    /// As it's written on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Order::Lru => "lru",
            Order::S3Fifo => "s3-fifo",
            Order::Adaptive => "adaptive",
            Order::Belady => "belady",
        }
    }

    fn policy(self) -> Option<PolicyKind> {
        match self {
            Order::Lru => Some(PolicyKind::Lru),
            Order::S3Fifo => Some(PolicyKind::S3Fifo),
            Order::Adaptive => Some(PolicyKind::Adaptive),
            Order::Belady => None,
        }
    }
}

/// Replays the trace once for each order and capacity, in that nesting.
#[must_use]
pub fn compare(requests: &[Request], orders: &[Order], capacities: &[u64], keys: Keys) -> Vec<Row> {
    let uses: u64 = requests.iter().map(|request| request.blocks.len() as u64).sum();
    let mut rows = Vec::new();
    for order in orders {
        for capacity in capacities {
            let name = format!("{} with {capacity} blocks", order.name());
            let progress = Progress::new(name, requests.len() as u64);
            let started = Clock.now();
            let (hits, evicted, adaptive) = match order.policy() {
                None => (belady::hits(requests, *capacity), None, None),
                Some(policy) => {
                    let outcome =
                        replay::replay(requests, policy, *capacity, keys, |done| progress.set(done));
                    (outcome.hits, Some(outcome.evicted), outcome.adaptive)
                }
            };
            let seconds = Clock.now().since(started).as_secs_f64();
            rows.push(Row { policy: *order, capacity: *capacity, uses, hits, evicted, seconds, adaptive });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::generate::{Kind, generate};
    use super::report::{EvictionReport, TraceSummary};
    use super::*;
    use crate::bench::environment::Environment;

    const KEYS: Keys = Keys { block_units: 1025, seed: 1 };
    const ORDERS: [Order; 4] = [Order::Lru, Order::S3Fifo, Order::Adaptive, Order::Belady];

    /// A trace of which each order's hits can be counted by hand.
    fn fixture() -> Vec<Request> {
        let chains: [&[u64]; 5] = [&[1, 2, 3], &[1, 2, 4], &[5], &[1, 2, 3], &[5, 6]];
        chains
            .iter()
            .zip(0..)
            .map(|(blocks, second)| Request { at_ms: second * 1000, blocks: blocks.to_vec() })
            .collect()
    }

    /// Shows hits that were counted by hand: with room for all blocks everyone hits what was there, 2 + 0 + 3 + 1; with room for
    /// three, LRU loses block 3 to 4, 4 to 5 and 5 to 3; with room for four, Belady keeps 1, 2, 3 and 5.
    #[test]
    fn hits_are_those_counted_by_hand() {
        let hits = |order, capacity| compare(&fixture(), &[order], &[capacity], KEYS)[0].hits;
        for order in ORDERS {
            assert_eq!(hits(order, 6), 6, "{order:?}");
        }
        assert_eq!(hits(Order::Lru, 3), 4);
        assert_eq!((hits(Order::Belady, 4), hits(Order::Belady, 3)), (6, 5));
    }

    /// Shows that the adaptive order is at least as good as the better of the two simple ones, within 0.005, on each kind of traffic and on
    /// a mix, at capacities from tight to ample, and that nobody beats the bound. A policy that learns nothing fails it: no simple one
    /// is the better on all.
    #[test]
    fn adaptive_is_as_good_as_the_better_one() {
        let mixes: [&[Kind]; 5] = [
            &[Kind::Chat],
            &[Kind::Agents],
            &[Kind::Documents],
            &[Kind::Scans],
            &[Kind::Chat, Kind::Agents, Kind::Documents, Kind::Scans],
        ];
        let (mut lru_wins, mut s3_fifo_wins) = (0, 0);
        for mix in mixes {
            let requests = generate(mix, 60, 3);
            for capacity in [2_000, 5_000] {
                let rows = compare(&requests, &ORDERS, &[capacity], KEYS);
                let [lru, s3_fifo, adaptive, belady] = [0, 1, 2, 3].map(|row: usize| rows[row].hit_ratio());
                assert!(
                    adaptive >= lru.max(s3_fifo) - 0.005,
                    "{mix:?} {capacity}: {lru} {s3_fifo} {adaptive}"
                );
                assert!(belady >= lru.max(s3_fifo).max(adaptive), "{mix:?} {capacity}: {belady} {adaptive}");
                lru_wins += usize::from(lru > s3_fifo + 0.01);
                s3_fifo_wins += usize::from(s3_fifo > lru + 0.01);
            }
        }
        assert!(lru_wins > 0 && s3_fifo_wins > 0, "{lru_wins} {s3_fifo_wins}");
    }

    /// Shows the report's JSON, its table with a column for each capacity, and its picture with a line for each order.
    #[test]
    fn reports_have_the_promised_form() {
        let report = EvictionReport {
            benchmark: "eviction",
            environment: Environment::gather(),
            trace: TraceSummary {
                file: "fixture".to_owned(),
                requests: 5,
                uses: 12,
                blocks: 6,
                seconds: 4.0,
            },
            results: compare(&fixture(), &ORDERS, &[3, 6], KEYS),
        };
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["benchmark"], "eviction");
        let row = &json["results"][5];
        assert_eq!(
            (&row["policy"], &row["capacity"], &row["hits"]),
            (&"adaptive".into(), &6.into(), &6.into())
        );
        assert_eq!(row["hit_ratio"], 0.5);
        assert_eq!(row["adaptive"]["ranking"], "density");
        let mut output = Vec::new();
        report.write_table(&mut output).expect("written");
        let text = String::from_utf8(output).expect("text");
        let line = text.lines().find(|line| line.trim_start().starts_with("s3-fifo")).expect("a line for it");
        assert_eq!(line.split_whitespace().nth(2), Some("0.5000"), "{text}");
        let path = std::env::temp_dir().join(format!("lanner-eviction-{}.svg", std::process::id()));
        plot::write_svg(&report, &path).expect("drawn");
        let svg = std::fs::read_to_string(&path).expect("written");
        assert!(ORDERS.iter().all(|order| svg.contains(&format!("\n{}\n", order.name()))), "{svg}");
        std::fs::remove_file(&path).expect("removed");
    }
}
