//! `lanner bench trace`: a trace, replayed against running servers.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;

use crate::bench::eviction::trace as requests;
use crate::bench::trace::blocks::Blocks;
use crate::bench::trace::{self, TraceSettings};
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner bench trace`. The servers are those of `--url`. What is stored stays there; another seed has other keys.
#[derive(Debug, Args)]
pub struct TraceArguments {
    /// A line of JSON for each request: {"timestamp": MS, "hash_ids": [BLOCK, …]}; .gz is unpacked
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Length of a block
    #[arg(long, default_value = "64KiB", value_name = "SIZE")]
    block: ByteSize,
    /// Seconds of the trace in a second; 0 is as fast as it goes
    #[arg(long, default_value = "0", value_name = "FACTOR", value_parser = speed)]
    speed: f64,
    /// Replay the first requests only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit_requests: Option<u64>,
    /// Begin no request after this time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Seed of keys and contents
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Also write the report as JSON into a file
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
}

fn speed(word: &str) -> Result<f64, String> {
    let speed: Option<f64> = word.parse().ok();
    speed
        .filter(|speed| speed.is_finite() && *speed >= 0.0)
        .ok_or_else(|| "0, or a number above it".to_owned())
}

/// Replays and prints.
///
/// # Errors
/// A trace that can't be read, what the store says, a wrong byte, a report that can't be written.
pub fn run(arguments: &TraceArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let mut requests = requests::read(&arguments.trace)?;
    if let Some(limit) = arguments.limit_requests {
        requests.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    let settings = TraceSettings {
        url: url.to_owned(),
        file: arguments.trace.display().to_string(),
        blocks: Blocks { bytes: block_bytes(arguments.block)?, seed: arguments.seed },
        speed: arguments.speed,
        duration: arguments.duration,
    };
    super::check_writable([&arguments.report])?;
    let report = trace::measure(&settings, &requests)?;
    let mut output = io::stdout().lock();
    let written = if json { report.write_json(&mut output) } else { report.write_table(&mut output) };
    written.and_then(|()| output.flush()).map_err(Failure::Output)?;
    if let Some(path) = &arguments.report {
        let written = File::create(path).and_then(|mut file| report.write_json(&mut file));
        written.map_err(|source| Failure::File { path: path.display().to_string(), source })?;
    }
    Ok(ExitStatus::Done)
}

/// Blocks without bytes would verify nothing, and no value is larger than this.
fn block_bytes(block: ByteSize) -> Result<usize, Failure> {
    let most = u64::from(u32::MAX);
    let wrong =
        || Failure::WrongUse(format!("--block {block} is no block's length: 1 byte to {}", ByteSize(most)));
    usize::try_from(block.as_u64())
        .ok()
        .filter(|bytes| (1..=most).contains(&(*bytes as u64)))
        .ok_or_else(wrong)
}
