//! Published results of the store that this work follows: over RDMA across two machines. Another machine and another transport, so
//! they are shown as history and not as a race.

use super::preset::Preset;
use crate::bench::report::{Published, PublishedLatency};

const SOURCE: &str = "published results of an earlier store, over RDMA across two machines";

/// Tokens in a call, median, and 95th percentile where it was published.
type Numbers = (u64, f64, Option<f64>);

const NGRAM_QUERY: [Numbers; 3] =
    [(1, 793.50, Some(820.70)), (4, 217.67, Some(222.68)), (8, 140.12, Some(148.38))];
const NGRAM_SNAPSHOT: [Numbers; 3] =
    [(1, 248.32, Some(258.24)), (4, 77.14, Some(79.02)), (8, 65.70, Some(70.93))];
const STORE_QUERY: [Numbers; 6] = [
    (1, 259.14, None),
    (4, 65.30, None),
    (16, 23.00, None),
    (64, 11.58, None),
    (128, 9.50, None),
    (256, 8.47, None),
];
const STORE_SNAPSHOT: [Numbers; 6] = [
    (1, 87.11, None),
    (4, 24.41, None),
    (16, 8.64, None),
    (64, 7.81, None),
    (128, 6.95, None),
    (256, 6.52, None),
];

/// What was published for a data set.
#[must_use]
pub fn of(preset: Preset) -> Vec<Published> {
    let (query, snapshot): (&[Numbers], &[Numbers]) = match preset {
        Preset::Store => (&STORE_QUERY, &STORE_SNAPSHOT),
        Preset::Ngram => (&NGRAM_QUERY, &NGRAM_SNAPSHOT),
    };
    let rows = [("query", query), ("snapshot", snapshot)].into_iter();
    let published = |mode: &'static str, (tokens, p50, p95): &Numbers| Published {
        source: SOURCE,
        preset: preset.name(),
        mode,
        tokens: *tokens,
        us_per_token: PublishedLatency { p50: *p50, p95: *p95 },
    };
    rows.flat_map(|(mode, numbers)| numbers.iter().map(move |numbers| published(mode, numbers))).collect()
}
