//! `bench latency`: one call at a time (or several in flight, or several threads), each held against what the machine could do without
//! a store, in turns of one run.
//!
//! | call | over shared memory | over TCP | over RDMA |
//! |---|---|---|---|
//! | `exists`, `match` of a chain | round trip over a bare ring | echo of the same bytes each way | a message each way |
//! | `get` and `put` below 64 KiB | round trip over a bare ring | echo of the same bytes each way | a message each way and a READ of the value |
//! | `get` and `put` from 64 KiB on | `memcpy` from, or to, memory that no cache holds | transfer of the same bytes | a message each way and a READ of the value |
//!
//! What is copied or transferred lies, at the server's end, in as much memory as the objects take, or goes to one place after the other of as much
//! as the store has, 1 GiB at most.

pub mod calls;
pub mod chain;
pub mod values;

use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::thread;

use bytesize::ByteSize;
use clap::ValueEnum;
use lanner_client::{Client, TransportChoice};

use super::floor::copy::{ColdCopy, ColdWrite};
use super::floor::cores::CorePair;
use super::floor::echo::TcpEcho;
use super::floor::echo_server::Shape;
use super::floor::quiet::AfterQuiet;
use super::floor::ring::RingRoundTrip;
use super::floor::segment::Segment;
use super::histogram::LatencyHistogram;
use super::progress::Progress;
use super::report::{Report, Row};
use super::target;
use super::workload::{Plan, Workload, alternate};
use crate::exit::Failure;
use calls::{ExistsCall, GetCall, Memory, PipelinedGets, PutCall};
use chain::MatchCall;
use values::{Stored, Values};

/// From this size on a read over shared memory costs what copying costs, and below what asking costs.
const LARGE_BYTES: usize = 64 << 10;

/// Bytes of large values in a turn, where these aren't so long that 50 of them are more.
const BYTES_IN_A_TURN: usize = 64 << 20;

/// More memory is no colder.
const MOST_COLD_BYTES: u64 = 1 << 30;

/// Objects of one size, at most: more small ones say nothing new and take long to store.
const MOST_OBJECTS: u64 = 10_000;

/// Header and key of a request, or header of a reply: about what a call takes beside its value.
const FRAME_BYTES: usize = 64;

/// A call to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// Reads a value into the caller's buffer.
    Get,
    /// Stores a value under a key that is free.
    Put,
    /// Asks whether a key is there.
    Exists,
    /// Asks how much of a chain of blocks is there, and leases it; all of it is.
    Match,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Put => "put",
            Op::Exists => "exists",
            Op::Match => "match",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct LatencySettings {
    /// The servers.
    pub url: String,
    /// Over which transports.
    pub transports: Vec<TransportChoice>,
    /// Which calls.
    pub ops: Vec<Op>,
    /// Bytes of a value.
    pub sizes: Vec<usize>,
    /// Threads that call at the same time.
    pub threads: usize,
    /// Calls that each thread has in flight.
    pub depth: usize,
    /// Blocks of each chain that is matched.
    pub chain_blocks: usize,
    /// Chains that are matched in turn.
    pub chains: usize,
    /// Puts fill the servers first, and remove nothing.
    pub evicting: bool,
    /// Values go to and from registered memory.
    pub registered: bool,
    /// Bytes of all values of one size together.
    pub working_set: u64,
    /// How much, for each row.
    pub plan: Plan,
    /// Where.
    pub cores: CorePair,
    /// Seed of all random choices.
    pub seed: u64,
}

impl LatencySettings {
    /// Objects of a size that make up the working set.
    fn objects(&self, bytes: usize) -> u64 {
        (self.working_set / bytes.max(1) as u64).clamp(1, MOST_OBJECTS)
    }

    /// Calls that each thread has in flight: only gets can be more than one.
    fn depth_of(&self, op: Op) -> usize {
        if op == Op::Get { self.depth } else { 1 }
    }
}

/// One row's choices.
#[derive(Clone, Copy, Debug)]
struct Case {
    op: Op,
    transport: TransportChoice,
    bytes: usize,
}

/// Measures every combination, on the calling thread, which stays on the client's CPU afterwards.
///
/// # Errors
/// What the store says, what this machine refuses, a wrong byte or a missing result.
pub fn measure(settings: &LatencySettings, report: &mut Report) -> Result<(), Failure> {
    if settings.threads == 1 {
        settings.cores.pin_client()?;
    }
    check_room(settings)?;
    for transport in &settings.transports {
        let client = target::connect(&settings.url, *transport)?;
        for (size, bytes) in settings.sizes.iter().enumerate() {
            for op in &settings.ops {
                let bytes = if *op == Op::Match { chain::BLOCK_BYTES } else { *bytes };
                let case = Case { op: *op, transport: *transport, bytes };
                // What these cost doesn't depend on the value's size.
                let is_repeated = matches!(op, Op::Exists | Op::Match) && size > 0;
                if !is_repeated {
                    report.results.push(row(settings, &client, case)?);
                }
            }
        }
    }
    Ok(())
}

fn row(settings: &LatencySettings, client: &Client, case: Case) -> Result<Row, Failure> {
    let values = Values { run: fastrand::u64(..), bytes: case.bytes, seed: settings.seed };
    let count = settings.objects(case.bytes);
    let stored = match case.op {
        Op::Put | Op::Match => None,
        Op::Get | Op::Exists => Some(Arc::new(Stored::new(client, values, count)?)),
    };
    let depth = settings.depth_of(case.op);
    let make = |seed: u64| product(settings, client, stored.as_ref(), case, values, seed);
    let (verified_bytes, latencies, floor) = if settings.threads > 1 {
        let (verified_bytes, latencies) = many_threads(settings, &make)?;
        (verified_bytes, latencies, None)
    } else {
        one_thread(settings, client, case, depth, count, make(settings.seed))?
    };
    let parts = depth as u64;
    let rate = latencies.rounds_per_second() * (depth * settings.threads) as f64;
    let mut varied = vec![
        ("op", case.op.name().into()),
        ("transport", case.transport.name().into()),
        ("size", case.bytes.into()),
        ("threads", settings.threads.into()),
        ("depth", depth.into()),
    ];
    if settings.evicting {
        varied.push(("evicting", true.into()));
    }
    if settings.registered {
        varied.push(("registered", true.into()));
    }
    if case.op == Op::Match {
        varied.push(("chains", settings.chains.into()));
        varied.push(("chain-blocks", settings.chain_blocks.into()));
    }
    Ok(Row {
        varied,
        iterations: latencies.rounds(),
        verified_bytes,
        errors: 0,
        unit: if depth == 1 { "latency_us" } else { "us_per_operation" },
        latency: latencies.summary_us(parts),
        floor: floor.map(|floor: LatencyHistogram| floor.summary_us(1)),
        operations_per_second: Some(rate),
    })
}

/// Objects that evict each other would be missing when they are read. Refused before anything is measured.
fn check_room(settings: &LatencySettings) -> Result<(), Failure> {
    // Those are meant to.
    if settings.evicting {
        return Ok(());
    }
    // A chain's blocks are tiny.
    if settings.ops.iter().all(|op| *op == Op::Match) {
        return Ok(());
    }
    let servers = target::connect(&settings.url, TransportChoice::Auto)?.servers();
    let capacity: u64 = servers.iter().map(|server| server.capacity_bytes).sum();
    // Each thread that puts has objects of its own.
    let threads = if settings.ops.contains(&Op::Put) { settings.threads as u64 } else { 1 };
    let sizes = settings.sizes.iter().map(|bytes| settings.objects(*bytes) * *bytes as u64 * threads);
    let bytes = sizes.max().unwrap_or(0);
    if bytes <= capacity / 4 * 3 {
        return Ok(());
    }
    let [bytes, capacity] = [bytes, capacity].map(|bytes| ByteSize(bytes).display().iec());
    Err(Failure::WrongUse(format!(
        "a working set of {bytes} doesn't fit servers of {capacity} with room to spare; lower --working-set, or give them more --memory"
    )))
}

/// What a thread calls. `stored` is there for the calls that read values.
fn product(
    settings: &LatencySettings,
    client: &Client,
    stored: Option<&Arc<Stored>>,
    case: Case,
    values: Values,
    seed: u64,
) -> Box<dyn Workload> {
    let client = client.clone();
    let depth = settings.depth_of(case.op);
    let memory = if settings.registered { Memory::Registered } else { Memory::Plain };
    match (case.op, stored) {
        (Op::Match, _) => Box::new(MatchCall::new(client, (settings.chains, settings.chain_blocks), seed)),
        (Op::Exists, Some(stored)) => Box::new(ExistsCall::new(client, stored.clone(), seed)),
        (Op::Get, Some(stored)) if depth > 1 => {
            Box::new(PipelinedGets::new(client, stored.clone(), depth, seed))
        }
        (Op::Get, Some(stored)) => Box::new(GetCall::new(client, stored.clone(), memory, seed)),
        (Op::Put, _) | (_, None) => {
            // Each thread has keys of its own.
            let values = Values { run: fastrand::u64(..), ..values };
            let most = (!settings.evicting).then(|| settings.objects(case.bytes));
            Box::new(PutCall::new(client, values, memory, most))
        }
    }
}

type Measured = (u64, LatencyHistogram, Option<LatencyHistogram>);

/// The product in turns with its limit, if that can be had here.
fn one_thread(
    settings: &LatencySettings,
    client: &Client,
    case: Case,
    depth: usize,
    count: u64,
    mut product: Box<dyn Workload>,
) -> Result<Measured, Failure> {
    let verified_bytes = product.prepare()?;
    let mut floor = match case.transport {
        _ if depth > 1 => None,
        TransportChoice::Rdma => rdma_call(settings, client, case)?,
        _ if target::is_local(client) => Some(floor_of(settings, client, case, count)?),
        _ => None,
    };
    let has_floor = floor.is_some();
    let mut workloads: Vec<&mut dyn Workload> = vec![&mut *product];
    if let Some(floor) = &mut floor {
        floor.prepare()?;
        workloads.push(&mut **floor);
    }
    let name = format!("{}, {}", case.transport.name(), workloads[0].name());
    let mut histograms = alternate(
        &mut workloads,
        &plan_for(settings.plan, case),
        &Progress::new(name, settings.plan.rounds),
    )?;
    let floor = if has_floor { histograms.pop() } else { None };
    Ok((verified_bytes, histograms.remove(0), floor))
}

/// Turns of some milliseconds, whatever a round takes.
fn plan_for(plan: Plan, case: Case) -> Plan {
    let rounds_in_a_turn = match (case.transport, case.bytes) {
        // Where the device is one in software a round takes milliseconds.
        (TransportChoice::Rdma, _) => 10,
        (_, LARGE_BYTES..) => (BYTES_IN_A_TURN / case.bytes).max(50) as u64,
        (TransportChoice::Tcp, _) => 200,
        _ if case.op == Op::Match => 500,
        _ => 2000,
    };
    Plan { rounds_in_a_turn, ..plan }
}

/// Bare messages there and back, and a READ of the value by the side that wants it, if this machine has both devices.
fn rdma_call(
    settings: &LatencySettings,
    client: &Client,
    case: Case,
) -> Result<Option<Box<dyn Workload>>, Failure> {
    #[cfg(feature = "rdma")]
    if let Some(server) = client.servers().first() {
        use super::floor::rdma_call::{RdmaCall, Reads};
        let reads = match case.op {
            Op::Get => Reads::Near(case.bytes),
            Op::Put => Reads::Far(case.bytes),
            Op::Exists | Op::Match => Reads::Nothing,
        };
        let call = RdmaCall::new(&server.address, settings.cores, reads)?;
        return Ok(call.map(|call| Box::new(AfterQuiet(call)) as Box<dyn Workload>));
    }
    let _ = (settings, client, case);
    Ok(None)
}

fn floor_of(
    settings: &LatencySettings,
    client: &Client,
    case: Case,
    count: u64,
) -> Result<Box<dyn Workload>, Failure> {
    let cores = settings.cores;
    // So that it's as cold as the product's: objects that are read lie in as much memory as they take, and what is stored goes to one place
    // after the other of all the memory that there is.
    let capacity_bytes: u64 = client.servers().iter().map(|server| server.capacity_bytes).sum();
    let memory_bytes = match case.op {
        Op::Get => count * case.bytes as u64,
        Op::Put => capacity_bytes.min(MOST_COLD_BYTES).max(case.bytes as u64),
        Op::Exists | Op::Match => 0,
    };
    if case.transport == TransportChoice::Tcp {
        let shape = match case.op {
            Op::Exists => Shape { request: FRAME_BYTES, reply: FRAME_BYTES },
            Op::Get => Shape { request: FRAME_BYTES, reply: FRAME_BYTES + case.bytes },
            Op::Put => Shape { request: FRAME_BYTES + case.bytes, reply: FRAME_BYTES },
            Op::Match => chain::shape(settings.chain_blocks),
        };
        return Ok(Box::new(AfterQuiet(TcpEcho::new(cores, shape, memory_bytes as usize)?)));
    }
    if case.op == Op::Exists || case.bytes < LARGE_BYTES {
        return Ok(Box::new(AfterQuiet(RingRoundTrip::new(cores)?)));
    }
    let segment = Segment::new(memory_bytes, target::pages())?;
    if case.op == Op::Put {
        return Ok(Box::new(AfterQuiet(ColdWrite::new(segment, case.bytes))));
    }
    Ok(Box::new(AfterQuiet(ColdCopy::new(Rc::new(segment), case.bytes, settings.seed))))
}

/// Several threads at the same time, each with a connection of its own. There is no limit to hold them against.
fn many_threads(
    settings: &LatencySettings,
    make: &(dyn Fn(u64) -> Box<dyn Workload> + Sync),
) -> Result<(u64, LatencyHistogram), Failure> {
    let start = Barrier::new(settings.threads);
    let run = |thread: usize| {
        let mut product = make(settings.seed + thread as u64);
        let prepared = product.prepare();
        // Also after a failure, or the others would wait for ever.
        start.wait();
        let progress = Progress::hidden();
        let histograms = alternate(&mut [&mut *product], &settings.plan, &progress)?;
        Ok((prepared?, histograms))
    };
    let outcomes: Vec<Result<(u64, Vec<LatencyHistogram>), Failure>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..settings.threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let gone = |_| Err(Failure::Machine("a measuring thread panicked".to_owned()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(gone)).collect()
    });
    let mut all = LatencyHistogram::new();
    let mut verified_bytes = 0;
    for outcome in outcomes {
        let (verified, histograms) = outcome?;
        verified_bytes += verified;
        histograms.iter().for_each(|histogram| all.add(histogram));
    }
    Ok((verified_bytes, all))
}
