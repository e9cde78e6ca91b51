//! `lanner bench engram`: look-ups in Engram tables against their limits.

use std::time::Duration;

use clap::Args;
use lanner_client::TransportChoice;

use super::{CommonArguments, report};
use crate::bench::engram::preset::Preset;
use crate::bench::engram::{self, EngramSettings, Mode};
use crate::bench::floor::cores::CorePair;
use crate::bench::workload::Plan;
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner bench engram`. The servers are those of `--url`; for figures to compare, none of their shards runs on the client's
/// CPU.
#[derive(Debug, Args)]
pub struct EngramArguments {
    #[command(flatten)]
    common: CommonArguments,
    /// Tables to look up in; they are stored first and removed afterwards
    #[arg(long, value_enum, value_delimiter = ',', required = true, value_name = "store|ngram")]
    preset: Vec<Preset>,
    /// Tokens in a call [default: those that results are published for]
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    tokens: Vec<u64>,
    /// How to read
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "query,snapshot,checked",
        value_name = "MODE,…"
    )]
    mode: Vec<Mode>,
    /// Transports to measure
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp", value_name = "shm,tcp,rdma")]
    transport: Vec<TransportChoice>,
    /// Look-ups before anything is recorded, every byte of which is compared
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    warmups: u64,
    /// Look-ups of each row to record, at most
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,
    /// Time for each number of tokens on each transport, limits included
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// As many times the rows of the preset, for tables that no cache holds
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    scale_rows: u64,
    /// Remove tables of the same names that are in the store already
    #[arg(long)]
    replace: bool,
}

/// Measures and prints.
///
/// # Errors
/// What kept it from measuring or from writing its report; wrong bytes, missing results.
pub fn run(arguments: &EngramArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let plan = Plan {
        warmups: arguments.warmups,
        rounds: arguments.iterations,
        duration: arguments.duration,
        rounds_in_a_turn: 1000,
    };
    let settings = EngramSettings {
        url: url.to_owned(),
        transports: arguments.transport.clone(),
        presets: arguments.preset.clone(),
        scale_rows: arguments.scale_rows,
        tokens: arguments.tokens.clone(),
        modes: arguments.mode.clone(),
        replaces: arguments.replace,
        plan,
        cores: arguments.common.cores.map_or_else(CorePair::of_this_machine, Ok)?,
        seed: arguments.common.seed,
    };
    report("engram", &arguments.common, json, |report| engram::measure(&settings, report))
}
