//! Latencies of many rounds, kept as a histogram of three significant digits, and the numbers that reports show.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longer rounds count as this long: a minute, in nanoseconds.
const LONGEST_NANOS: u64 = 60_000_000_000;

/// Latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct LatencyHistogram(Histogram<u64>);

impl LatencyHistogram {
    /// An empty histogram; takes some 200 KiB and doesn't grow.
    #[must_use]
    pub fn new() -> LatencyHistogram {
        LatencyHistogram(
            Histogram::new_with_bounds(1, LONGEST_NANOS, 3).expect("constant bounds that are valid"),
        )
    }

    /// Adds a round. One of no measurable length counts as a nanosecond.
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos.max(1));
    }

    /// Rounds recorded.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.0.len()
    }

    /// Adds the rounds of another histogram.
    pub fn add(&mut self, other: &LatencyHistogram) {
        // Both have the same bounds, so there is nothing that could fail.
        let _ = self.0.add(&other.0);
    }

    /// Rounds in a second, if one follows the other at once.
    #[must_use]
    pub fn rounds_per_second(&self) -> f64 {
        1e9 / self.0.mean().max(1.0)
    }

    /// The numbers in microseconds, each divided by `parts`, the number of equal parts that a round consists of (tokens, say).
    #[must_use]
    pub fn summary_us(&self, parts: u64) -> Summary {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0 / parts as f64;
        Summary { p25: at(0.25), p50: at(0.5), p95: at(0.95), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram::new()
    }
}

/// A distribution in six numbers, in the unit that the name it stands under ends in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// A quarter of the rounds took at most this: what to compare on a machine that something else interrupts again and again.
    pub p25: f64,
    /// Half of the rounds took at most this.
    pub p50: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// The slowest round.
    pub max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that the numbers are those of a sorted list, to three digits, on rounds of 1 to 1000 us.
    #[test]
    fn quantiles_agree_with_a_sorted_list() {
        let mut histogram = LatencyHistogram::new();
        (1..=1000u64).rev().for_each(|micros| histogram.record(micros * 1000));
        let summary = histogram.summary_us(1);
        let wanted = [
            (summary.p25, 250.0),
            (summary.p50, 500.0),
            (summary.p95, 950.0),
            (summary.p99, 990.0),
            (summary.p999, 999.0),
            (summary.max, 1000.0),
        ];
        for (found, wanted) in wanted {
            assert!((found / wanted - 1.0).abs() < 0.002, "{found} is not {wanted}");
        }
        assert_eq!(histogram.rounds(), 1000);
        assert!((histogram.summary_us(8).max - summary.max / 8.0).abs() < 1e-9);
    }

    /// Shows that rounds beyond both ends are counted, not lost.
    #[test]
    fn extreme_rounds_are_counted() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(0);
        histogram.record(u64::MAX);
        assert_eq!(histogram.rounds(), 2);
    }
}
