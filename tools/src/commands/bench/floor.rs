//! `lanner bench floor`: the limits of this machine by themselves.

use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use lanner_client::{ClientConfig, TransportChoice};

use super::{CommonArguments, report};
use crate::bench::floor::cores::CorePair;
use crate::bench::floor::{self, FloorSettings};
use crate::bench::workload::Plan;
use crate::check::probes;
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner bench floor`.
#[derive(Debug, Args)]
pub struct FloorArguments {
    #[command(flatten)]
    common: CommonArguments,
    /// Transports whose limits to measure; rdma between the two devices of this machine that lead to the server of the URL and back
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp", value_name = "shm,tcp,rdma")]
    transport: Vec<TransportChoice>,
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
}

/// Measures and prints.
///
/// # Errors
/// What kept it from measuring or from writing its report.
pub fn run(arguments: &FloorArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let settings = settings(arguments, url)?;
    report("floor", &arguments.common, json, |report| floor::measure(&settings, report))
}

fn settings(arguments: &FloorArguments, url: &str) -> Result<FloorSettings, Failure> {
    let servers = url.parse::<ClientConfig>()?.servers;
    let cold_bytes = arguments.cold_memory.as_u64();
    let available = probes::memory().available;
    // The rest of the machine keeps a tenth.
    let is_used = arguments
        .transport
        .iter()
        .any(|transport| !matches!(transport, TransportChoice::Tcp | TransportChoice::Rdma));
    if is_used && cold_bytes > available / 10 * 9 {
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
    let cores = arguments.common.cores.map_or_else(CorePair::of_this_machine, Ok)?;
    Ok(FloorSettings {
        transports: arguments.transport.clone(),
        server: servers.first().map_or_else(String::new, |server| server.to_string()),
        cores,
        plan,
        cold_bytes,
        seed: arguments.common.seed,
    })
}
