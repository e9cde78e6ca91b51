//! `lanner bench make-trace`: traces of made-up traffic for `lanner bench eviction` and `lanner bench trace`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::bench::eviction::generate::{self, Kind};
use crate::bench::eviction::trace;
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner bench make-trace`.
#[derive(Debug, Args)]
pub struct MakeTraceArguments {
    /// Kinds of traffic at the same time
    #[arg(long, value_enum, value_delimiter = ',', required = true, value_name = "KIND,…")]
    mix: Vec<Kind>,
    /// Time that the trace covers
    #[arg(long, default_value_t = 60, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Where to write it; compressed if the name ends in .gz
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Makes the trace, writes it, and says what it holds.
///
/// # Errors
/// A file that can't be written.
pub fn run(arguments: &MakeTraceArguments, json: bool) -> Result<ExitStatus, Failure> {
    let requests = generate::generate(&arguments.mix, arguments.minutes, arguments.seed);
    trace::write(&arguments.out, &requests)?;
    let uses: usize = requests.iter().map(|request| request.blocks.len()).sum();
    let file = arguments.out.display().to_string();
    let mut output = io::stdout().lock();
    let written = if json {
        let facts = json!({ "file": file, "mix": arguments.mix, "requests": requests.len(), "uses": uses });
        writeln!(output, "{facts:#}")
    } else {
        writeln!(output, "{file}: {} requests, {uses} uses of blocks", requests.len())
    };
    written.map_err(Failure::Output)?;
    Ok(ExitStatus::Done)
}
