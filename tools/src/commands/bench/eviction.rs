//! `lanner bench eviction`: orders of eviction on a trace, by the server's own code.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Args;

use crate::bench::environment::Environment;
use crate::bench::eviction::replay::Keys;
use crate::bench::eviction::report::{EvictionReport, TraceSummary};
use crate::bench::eviction::trace;
use crate::bench::eviction::{self, Order, plot};
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner bench eviction`. No server is asked.
#[derive(Debug, Args)]
pub struct EvictionArguments {
    /// A line of JSON for each request: {"timestamp": MS, "hash_ids": [BLOCK, …]}; .gz is unpacked
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Blocks that fit
    #[arg(long, value_delimiter = ',', default_value = "2000,5000,10000,20000,50000", value_name = "N,…", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    capacity: Vec<u64>,
    /// Orders of eviction to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "lru,s3-fifo,adaptive,belady",
        value_name = "POLICY,…"
    )]
    policy: Vec<Order>,
    /// Length of a block
    #[arg(long, default_value = "64KiB", value_name = "SIZE")]
    block: ByteSize,
    /// Gives the blocks other keys, of which an order that samples keys samples others
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Draw the results into an SVG file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Also write the report as JSON into a file
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
}

/// Replays and prints.
///
/// # Errors
/// A trace that can't be read, a report that can't be written.
pub fn run(arguments: &EvictionArguments, json: bool) -> Result<ExitStatus, Failure> {
    let requests = trace::read(&arguments.trace)?;
    super::check_writable([&arguments.plot, &arguments.report])?;
    let keys = Keys { block_units: block_units(arguments.block)?, seed: arguments.seed };
    let report = EvictionReport {
        benchmark: "eviction",
        environment: Environment::gather(),
        trace: TraceSummary::of(arguments.trace.display().to_string(), &requests),
        results: eviction::compare(&requests, &arguments.policy, &arguments.capacity, keys),
    };
    let mut output = io::stdout().lock();
    let written = if json { report.write_json(&mut output) } else { report.write_table(&mut output) };
    written.and_then(|()| output.flush()).map_err(Failure::Output)?;
    if let Some(path) = &arguments.plot {
        plot::write_svg(&report, path)?;
    }
    if let Some(path) = &arguments.report {
        let written = File::create(path).and_then(|mut file| report.write_json(&mut file));
        written.map_err(|source| Failure::File { path: path.display().to_string(), source })?;
    }
    Ok(ExitStatus::Done)
}

/// What a block takes with its header and key, in the server's units of memory.
fn block_units(block: ByteSize) -> Result<u32, Failure> {
    let units = block.as_u64().div_ceil(64) + 1;
    let most = u64::from(u32::MAX / 2);
    u32::try_from(units).ok().filter(|units| u64::from(*units) < most).ok_or_else(|| {
        Failure::WrongUse(format!(
            "--block {block} is no block's length: at most {}",
            ByteSize(most * 64).display().iec()
        ))
    })
}
