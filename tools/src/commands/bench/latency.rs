//! `lanner bench latency`: get, put, exists and match against their limits.

use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use lanner_client::TransportChoice;

use super::{CommonArguments, report};
use crate::bench::floor::cores::CorePair;
use crate::bench::latency::{self, LatencySettings, Op};
use crate::bench::workload::Plan;
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner bench latency`. The servers are those of `--url`; for figures to compare, none of their shards runs on the
/// client's CPU.
#[derive(Debug, Args)]
pub struct LatencyArguments {
    #[command(flatten)]
    common: CommonArguments,
    /// Calls to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "get,put,exists", value_name = "CALL,…")]
    op: Vec<Op>,
    /// Bytes of a value
    #[arg(long, value_delimiter = ',', default_value = "264,4KiB,1MiB", value_name = "SIZE,…")]
    size: Vec<ByteSize>,
    /// Transports to measure
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp", value_name = "shm,tcp,rdma")]
    transport: Vec<TransportChoice>,
    /// Threads that call at the same time; more than one are held against no limit
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Gets that each thread has in flight; more than one are held against no limit
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Blocks of the chain that match asks for
    #[arg(long, default_value_t = 247, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    chain_blocks: u16,
    /// Chains that match asks for in turn. A shard keeps answers about hundreds of them; with more, each block is looked up again
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    chains: u16,
    /// Put into full servers: fills them first, so that they evict whatever they hold. With --op put only
    #[arg(long)]
    evicting: bool,
    /// Read gets to and put from memory that is registered with the RDMA device
    #[arg(long)]
    registered: bool,
    /// Time for each row, its limit included
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Rounds of each row to record, at most
    #[arg(long, default_value_t = 1_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,
    /// Rounds of each row before anything is recorded
    #[arg(long, default_value_t = 100, value_name = "N")]
    warmups: u64,
    /// Bytes of all values of one size together, 10,000 values at most
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    working_set: ByteSize,
}

/// Measures and prints.
///
/// # Errors
/// What kept it from measuring or from writing its report; wrong bytes, missing results.
pub fn run(arguments: &LatencyArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    if arguments.evicting && arguments.op.iter().any(|op| *op != Op::Put) {
        return Err(Failure::WrongUse(
            "--evicting goes with --op put only: what the others ask for would be evicted".to_owned(),
        ));
    }
    let plan = Plan {
        warmups: arguments.warmups,
        rounds: arguments.iterations,
        duration: arguments.duration,
        rounds_in_a_turn: 200,
    };
    let size = |size: &ByteSize| {
        usize::try_from(size.as_u64())
            .map_err(|_| Failure::WrongUse(format!("--size {size} is no value's size here")))
    };
    let settings = LatencySettings {
        url: url.to_owned(),
        transports: arguments.transport.clone(),
        evicting: arguments.evicting,
        registered: arguments.registered,
        ops: arguments.op.clone(),
        sizes: arguments.size.iter().map(size).collect::<Result<_, _>>()?,
        threads: usize::from(arguments.threads),
        depth: usize::from(arguments.depth),
        chain_blocks: usize::from(arguments.chain_blocks),
        chains: usize::from(arguments.chains),
        working_set: arguments.working_set.as_u64(),
        plan,
        cores: arguments.common.cores.map_or_else(CorePair::of_this_machine, Ok)?,
        seed: arguments.common.seed,
    };
    report("latency", &arguments.common, json, |report| latency::measure(&settings, report))
}
