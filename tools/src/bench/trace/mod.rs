//! `bench trace`: a trace of requests, replayed against running servers as an inference engine would make them.
//!
//! Each request asks how much of its chain of blocks is there, reads that, compares every byte, and stores the rest. Time that goes into
//! making and comparing bytes is in no latency. What was stored stays, as it does in a cache: a second replay with the same seed
//! finds it, one with another seed has other keys.

pub mod blocks;
pub mod evictions;
pub mod replay;
pub mod report;

use lanner_client::Client;
use lanner_shared::chain::MAX_CHAIN_BLOCKS;
use lanner_shared::time::Clock;

use std::time::Duration;

use super::environment::Environment;
use super::eviction::report::TraceSummary;
use super::eviction::trace::Request;
use super::progress::Progress;
use crate::exit::Failure;
use crate::rdma_warning;
use blocks::Blocks;
use evictions::Evictions;
use replay::Replay;
use report::{Row, TraceReport};

/// How to replay.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// The servers, and over which transport.
    pub url: String,
    /// The trace as it was named.
    pub file: String,
    /// What the blocks are.
    pub blocks: Blocks,
    /// Seconds of the trace that pass in a second; 0 waits for nothing.
    pub speed: f64,
    /// No request is begun later than this after the first.
    pub duration: Option<Duration>,
}

/// Replays `requests` in their order, one after the other, on the calling thread.
///
/// # Errors
/// What the store says, a chain that is too long, a wrong byte.
pub fn measure(settings: &TraceSettings, requests: &[Request]) -> Result<TraceReport, Failure> {
    if let Some(request) = requests.iter().find(|request| request.blocks.len() > MAX_CHAIN_BLOCKS) {
        let text = format!(
            "a request at {} ms has {} blocks; a chain has {MAX_CHAIN_BLOCKS} at most",
            request.at_ms,
            request.blocks.len()
        );
        return Err(Failure::WrongUse(text));
    }
    let environment = Environment::gather();
    let client = Client::connect(&settings.url)?;
    let transport = client.transport_for(&settings.blocks.key(0))?;
    let before = Evictions::so_far(&client)?;
    let mut replay = Replay::new(&client, settings.blocks);
    let started = Clock.now();
    run(settings, requests, &mut replay)?;
    let seconds = Clock.now().since(started).as_secs_f64();
    let evictions = Evictions::so_far(&client)?.since(before);
    rdma_warning::warn(&client);
    Ok(TraceReport {
        benchmark: "trace",
        environment,
        trace: TraceSummary::of(settings.file.clone(), requests),
        results: vec![Row::new(transport, settings, replay.outcome, evictions, seconds)],
    })
}

fn run(settings: &TraceSettings, requests: &[Request], replay: &mut Replay<'_>) -> Result<(), Failure> {
    let progress = Progress::new("replaying", requests.len() as u64);
    let started = Clock.now();
    let first_ms = requests.first().map_or(0, |request| request.at_ms);
    for (request, done) in requests.iter().zip(1..) {
        let due = due_after(request.at_ms - first_ms, settings.speed);
        if settings.duration.is_some_and(|duration| Clock.now().since(started).max(due) >= duration) {
            break;
        }
        let passed = Clock.now().since(started);
        match due.checked_sub(passed) {
            Some(early) => std::thread::sleep(early),
            None if settings.speed > 0.0 => replay.outcome.begun_late(passed - due),
            None => {}
        }
        replay.request(&request.blocks)?;
        progress.set(done);
    }
    Ok(())
}

/// When a request that comes `trace_ms` after the first is due after the replay's start.
fn due_after(trace_ms: u64, speed: f64) -> Duration {
    if speed == 0.0 {
        return Duration::ZERO;
    }
    Duration::try_from_secs_f64(trace_ms as f64 / 1000.0 / speed).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows when requests are due, also at a speed so low that no clock gets there.
    #[test]
    fn time_is_scaled() {
        assert_eq!(due_after(1500, 0.0), Duration::ZERO);
        assert_eq!(due_after(1500, 1.0), Duration::from_millis(1500));
        assert_eq!(due_after(1500, 10.0), Duration::from_millis(150));
        assert_eq!(due_after(u64::MAX, 1e-300), Duration::MAX);
    }
}
