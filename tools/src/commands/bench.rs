//! `lanner bench`: the measurements, each with flags of its own, and what they have in common.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Subcommand};

use crate::bench::floor::cores::CorePair;
use crate::bench::floor::{self, FloorSettings};
use crate::bench::plot;
use crate::bench::report::Report;
use crate::bench::workload::Plan;
use crate::check::probes;
use crate::exit::{ExitStatus, Failure};

/// The measurements.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure this machine's own limits: what the same bytes cost without a store
    Floor(FloorArguments),
}

/// Flags that every measurement has.
#[derive(Debug, Args)]
pub struct CommonArguments {
    /// Draw the results into an SVG file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

/// Flags of `lanner bench floor`.
#[derive(Debug, Args)]
pub struct FloorArguments {
    #[command(flatten)]
    common: CommonArguments,
    /// Rounds of each limit to record, at most
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,
    /// Rounds of each limit before anything is recorded
    #[arg(long, default_value_t = 5, value_name = "N")]
    warmups: u64,
    /// Time for each limit, at most
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Memory to read from where no cache is to help; several times the largest cache
    #[arg(long, default_value = "4GiB", value_name = "SIZE")]
    cold_memory: ByteSize,
    /// CPUs of client and server [default: the first two cores of a NUMA node]
    #[arg(long, value_name = "CLIENT,SERVER")]
    cores: Option<CorePair>,
}

/// Runs a measurement and prints its report.
///
/// # Errors
/// What kept it from measuring or from writing its report.
pub fn run(command: &BenchCommand, json: bool) -> Result<ExitStatus, Failure> {
    match command {
        BenchCommand::Floor(arguments) => {
            let report = floor::measure(&floor_settings(arguments)?)?;
            finish(&report, &arguments.common, json)
        }
    }
}

fn floor_settings(arguments: &FloorArguments) -> Result<FloorSettings, Failure> {
    let cold_bytes = arguments.cold_memory.as_u64();
    let available = probes::memory().available;
    // The rest of the machine keeps a tenth.
    if cold_bytes > available / 10 * 9 {
        let (wanted, available) =
            (arguments.cold_memory.display().iec(), ByteSize(available).display().iec());
        return Err(Failure::WrongUse(format!(
            "--cold-memory {wanted} doesn't fit: {available} are available"
        )));
    }
    let plan = Plan {
        warmups: arguments.warmups,
        rounds: arguments.iterations,
        duration: arguments.duration,
        rounds_in_a_turn: 100,
    };
    let cores = arguments.cores.map_or_else(CorePair::of_this_machine, Ok)?;
    Ok(FloorSettings { cores, plan, cold_bytes, seed: arguments.common.seed })
}

/// Prints a report, draws it if asked to, and says whether all went right.
fn finish(report: &Report, common: &CommonArguments, json: bool) -> Result<ExitStatus, Failure> {
    let mut output = io::stdout().lock();
    let written = if json { report.write_json(&mut output) } else { report.write_table(&mut output) };
    written.and_then(|()| output.flush()).map_err(Failure::Output)?;
    if let Some(path) = &common.plot {
        plot::write_svg(report, path)?;
    }
    let errors: u64 = report.results.iter().map(|row| row.errors).sum();
    Ok(if errors == 0 { ExitStatus::Done } else { ExitStatus::No })
}
