//! `lanner bench`: the measurements, one file for each with its flags, and what they have in common.

pub mod engram;
pub mod eviction;
pub mod floor;
pub mod latency;
pub mod make_trace;
pub mod trace;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::bench::floor::cores::CorePair;
use crate::bench::plot;
use crate::bench::report::Report;
use crate::exit::{ExitStatus, Failure};

/// The measurements.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure this machine's own limits: what the same bytes cost without a store
    Floor(floor::FloorArguments),
    /// Measure get, put, exists and match, each against its limit
    Latency(latency::LatencyArguments),
    /// Measure look-ups in Engram tables, each against its limit
    Engram(engram::EngramArguments),
    /// Replay a trace on the server's orders of eviction and compare how often each hits
    Eviction(eviction::EvictionArguments),
    /// Replay a trace against the servers: match, read, compare every byte, store the rest
    Trace(trace::TraceArguments),
    /// Make a trace of made-up traffic for `eviction` and `trace`
    MakeTrace(make_trace::MakeTraceArguments),
}

/// Flags that every measurement has.
#[derive(Debug, Args)]
pub struct CommonArguments {
    /// Draw the results into an SVG file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Also write the report as JSON into a file
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// CPUs of who asks and of who answers a limit [default: the first two cores of a NUMA node]
    #[arg(long, value_name = "CLIENT,SERVER")]
    cores: Option<CorePair>,
}

/// Runs a measurement and prints its report.
///
/// # Errors
/// What kept it from measuring or from writing its report.
pub fn run(command: &BenchCommand, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    match command {
        BenchCommand::Floor(arguments) => floor::run(arguments, url, json),
        BenchCommand::Latency(arguments) => latency::run(arguments, url, json),
        BenchCommand::Engram(arguments) => engram::run(arguments, url, json),
        BenchCommand::Eviction(arguments) => eviction::run(arguments, json),
        BenchCommand::Trace(arguments) => trace::run(arguments, url, json),
        BenchCommand::MakeTrace(arguments) => make_trace::run(arguments, json),
    }
}

/// Measures, prints the report, draws it if asked to, and says whether all went right. Rows that were measured before something went wrong
/// are reported too: they may have taken minutes.
fn report(
    benchmark: &'static str,
    common: &CommonArguments,
    json: bool,
    measure: impl FnOnce(&mut Report) -> Result<(), Failure>,
) -> Result<ExitStatus, Failure> {
    check_writable([&common.plot, &common.report])?;
    let mut report = Report::new(benchmark);
    let outcome = measure(&mut report);
    if outcome.is_ok() || !report.results.is_empty() {
        print(&report, common, json)?;
    }
    outcome?;
    let errors: u64 = report.results.iter().map(|row| row.errors).sum();
    Ok(if errors == 0 { ExitStatus::Done } else { ExitStatus::No })
}

/// Fails for files that couldn't be written after the measurement either.
fn check_writable<'a>(files: impl IntoIterator<Item = &'a Option<PathBuf>>) -> Result<(), Failure> {
    for path in files.into_iter().flatten() {
        let opened = File::options().append(true).create(true).open(path);
        opened.map_err(|source| Failure::File { path: path.display().to_string(), source })?;
    }
    Ok(())
}

fn print(report: &Report, common: &CommonArguments, json: bool) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let written = if json { report.write_json(&mut output) } else { report.write_table(&mut output) };
    written.and_then(|()| output.flush()).map_err(Failure::Output)?;
    if let Some(path) = &common.plot {
        plot::write_svg(report, path)?;
    }
    if let Some(path) = &common.report {
        let written = File::create(path).and_then(|mut file| report.write_json(&mut file));
        written.map_err(|source| Failure::File { path: path.display().to_string(), source })?;
    }
    Ok(())
}
