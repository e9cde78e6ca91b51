//! The limits of this machine: what the same bytes cost without a store. Each is a [`Workload`], so that a product's measurement can
//! take turns with it; [`measure`] runs them all by themselves.

pub mod copy;
pub mod cores;
#[cfg(feature = "rdma")]
pub mod device_pair;
pub mod echo;
pub mod echo_server;
pub mod gather;
pub mod peer;
mod places;
pub mod quiet;
#[cfg(feature = "rdma")]
pub mod rdma_call;
#[cfg(feature = "rdma")]
pub mod read_list;
pub mod ring;
pub mod segment;
pub mod tables;

use std::rc::Rc;

use copy::ColdCopy;
use cores::CorePair;
use echo::TcpEcho;
use echo_server::Shape;
use gather::Gather;
use lanner_client::TransportChoice;
#[cfg(feature = "rdma")]
use read_list::ReadList;
use ring::RingRoundTrip;
use segment::{Pages, Segment};
use serde_json::Value;

use super::histogram::LatencyHistogram;
use super::progress::Progress;
use super::report::{Report, Row};
use super::workload::{Plan, Workload, alternate};
use crate::check::needs::HUGE_PAGE;
use crate::check::probes;
use crate::exit::Failure;

/// Tokens in a call, as the preset `ngram` measures them.
const TOKENS: [u64; 3] = [1, 4, 8];

/// What a token of the preset `store` reads: rows of so many tables.
#[cfg(feature = "rdma")]
const STORE_TABLES: usize = 8;
#[cfg(feature = "rdma")]
const STORE_ROW_BYTES: usize = 64;
#[cfg(feature = "rdma")]
const STORE_ROWS: u64 = 10_000;

/// Bytes of large values.
const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Bytes that name a value: about what a request for one takes.
const SMALL_REQUEST: usize = 64;

/// Bytes that name one row in a request for many: an extent, an offset and a length.
const BYTES_TO_NAME_A_ROW: usize = 24;

/// What to measure the limits with.
#[derive(Clone, Debug)]
pub struct FloorSettings {
    /// The limits of which transports.
    pub transports: Vec<TransportChoice>,
    /// A server's `HOST:PORT`, whose address says between which RDMA devices; it isn't asked for anything.
    pub server: String,
    /// Where.
    pub cores: CorePair,
    /// How much, for each limit.
    pub plan: Plan,
    /// Bytes of the memory that no cache holds.
    pub cold_bytes: u64,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Measures every limit, one after the other, on the calling thread, which stays on the client's CPU afterwards.
///
/// # Errors
/// What this machine refuses, or a wrong byte.
pub fn measure(settings: &FloorSettings, report: &mut Report) -> Result<(), Failure> {
    settings.cores.pin_client()?;
    let results = &mut report.results;
    for transport in &settings.transports {
        match transport {
            TransportChoice::Tcp => echoes(settings, results)?,
            TransportChoice::Rdma => rdma(settings, results)?,
            TransportChoice::Shm | TransportChoice::Auto => {
                gathers(settings, results)?;
                let flags = vec![("limit", "ring".into())];
                results.push(row(settings, flags, PER_CALL, &mut RingRoundTrip::new(settings.cores)?)?);
            }
        }
    }
    Ok(())
}

/// The unit of a row, and into how many parts a round falls.
type Unit = (&'static str, u64);

const PER_CALL: Unit = ("latency_us", 1);

/// Gathers from hot tables, then from cold ones on each kind of page, and copies of large values from the cold memory.
fn gathers(settings: &FloorSettings, results: &mut Vec<Row>) -> Result<(), Failure> {
    let hot_tables = tables::ngram_tables(1);
    let hot = Rc::new(Segment::new(tables::bytes_of(&hot_tables, tables::NGRAM_ROW_BYTES), Pages::Small)?);
    for tokens in TOKENS {
        let mut gather = Gather::<{ tables::NGRAM_ROW_BYTES }>::new(
            hot.clone(),
            hot_tables.clone(),
            tokens,
            settings.seed,
        );
        results.push(row(
            settings,
            gather_flags("gather-hot", Pages::Small, tokens),
            ("us_per_token", tokens),
            &mut gather,
        )?);
    }
    for pages in kinds_of_pages(settings.cold_bytes) {
        let cold_tables = tables::ngram_tables(tables::ngram_scale_for(settings.cold_bytes));
        let bytes = tables::bytes_of(&cold_tables, tables::NGRAM_ROW_BYTES).max(settings.cold_bytes);
        let cold = Rc::new(Segment::new(bytes, pages)?);
        for tokens in TOKENS {
            let mut gather = Gather::<{ tables::NGRAM_ROW_BYTES }>::new(
                cold.clone(),
                cold_tables.clone(),
                tokens,
                settings.seed,
            );
            results.push(row(
                settings,
                gather_flags("gather-cold", pages, tokens),
                ("us_per_token", tokens),
                &mut gather,
            )?);
        }
        for bytes in SIZES.into_iter().filter(|bytes| *bytes as u64 <= settings.cold_bytes) {
            let flags =
                vec![("limit", "copy-cold".into()), ("pages", pages.label().into()), ("size", bytes.into())];
            results.push(row(
                settings,
                flags,
                PER_CALL,
                &mut ColdCopy::new(cold.clone(), bytes, settings.seed),
            )?);
        }
    }
    Ok(())
}

/// Echoes of the sizes that reads of the preset `ngram` have, and transfers of large values.
fn echoes(settings: &FloorSettings, results: &mut Vec<Row>) -> Result<(), Failure> {
    let tokens_shape = |tokens: u64| {
        let rows = tables::NGRAM_TABLES * tokens as usize;
        Shape { request: rows * BYTES_TO_NAME_A_ROW, reply: rows * tables::NGRAM_ROW_BYTES }
    };
    let one_row = Shape { request: SMALL_REQUEST, reply: tables::NGRAM_ROW_BYTES };
    let shapes = [one_row].into_iter().chain(TOKENS.map(tokens_shape));
    let transfers = SIZES.map(|reply| ("tcp-transfer", Shape { request: SMALL_REQUEST, reply }));
    for (limit, shape) in shapes.map(|shape| ("tcp-echo", shape)).chain(transfers) {
        let flags =
            vec![("limit", limit.into()), ("request", shape.request.into()), ("size", shape.reply.into())];
        results.push(row(settings, flags, PER_CALL, &mut TcpEcho::new(settings.cores, shape, 0)?)?);
    }
    Ok(())
}

/// Lists of READs as the presets' reads are, and calls with a value and without, between the two devices of this machine that lead to the server.
#[cfg(feature = "rdma")]
fn rdma(settings: &FloorSettings, results: &mut Vec<Row>) -> Result<(), Failure> {
    use rdma_call::{RdmaCall, Reads};
    let elsewhere = || {
        Failure::WrongUse(format!(
            "{} isn't reached from one RDMA device of this machine to another; between two machines there are ib_read_lat and ib_send_lat",
            settings.server
        ))
    };
    // Milliseconds a round where the device is one in software.
    let settings =
        &FloorSettings { plan: Plan { rounds_in_a_turn: 10, ..settings.plan }, ..settings.clone() };
    let ngram = (tables::ngram_tables(1), tables::NGRAM_ROW_BYTES);
    let store = (tables::places([STORE_ROWS; STORE_TABLES], STORE_ROW_BYTES), STORE_ROW_BYTES);
    for (places, row_bytes) in [ngram, store] {
        for tokens in TOKENS {
            let reads = places.len() as u64 * tokens;
            let list = ReadList::new(&settings.server, places.clone(), row_bytes, tokens, settings.seed)?;
            let flags = vec![
                ("limit", "read-list".into()),
                ("reads", reads.into()),
                ("size", row_bytes.into()),
                ("tokens", tokens.into()),
            ];
            results.push(row(settings, flags, ("us_per_token", tokens), &mut list.ok_or_else(elsewhere)?)?);
        }
    }
    let values = SIZES
        .into_iter()
        .flat_map(|bytes| [("rdma-get", Reads::Near(bytes), bytes), ("rdma-put", Reads::Far(bytes), bytes)]);
    for (limit, reads, bytes) in [("rdma-messages", Reads::Nothing, 0)].into_iter().chain(values) {
        let mut call = RdmaCall::new(&settings.server, settings.cores, reads)?.ok_or_else(elsewhere)?;
        let flags = vec![("limit", limit.into()), ("size", bytes.into())];
        results.push(row(settings, flags, PER_CALL, &mut call)?);
    }
    Ok(())
}

#[cfg(not(feature = "rdma"))]
fn rdma(_: &FloorSettings, _: &mut Vec<Row>) -> Result<(), Failure> {
    Err(Failure::WrongUse(format!("--transport rdma: {}", lanner_rdma::NOT_IN_BUILD)))
}

fn gather_flags(limit: &'static str, pages: Pages, tokens: u64) -> Vec<(&'static str, Value)> {
    vec![("limit", limit.into()), ("pages", pages.label().into()), ("tokens", tokens.into())]
}

/// Small pages, and huge ones where enough are free.
fn kinds_of_pages(bytes: u64) -> Vec<Pages> {
    let free: u64 = probes::numa_nodes().iter().filter_map(|node| Some(node.huge_pages?.free)).sum();
    // One more for rounding up.
    let huge = (bytes.div_ceil(HUGE_PAGE) < free).then_some(Pages::Huge);
    [Pages::Small].into_iter().chain(huge).collect()
}

/// Measures one workload by itself.
fn row(
    settings: &FloorSettings,
    varied: Vec<(&'static str, Value)>,
    (unit, parts): Unit,
    workload: &mut dyn Workload,
) -> Result<Row, Failure> {
    let verified_bytes = workload.prepare()?;
    let progress = Progress::new(workload.name(), settings.plan.rounds);
    let histograms = alternate(&mut [workload], &settings.plan, &progress)?;
    let latencies: &LatencyHistogram = &histograms[0];
    Ok(Row {
        varied,
        iterations: latencies.rounds(),
        verified_bytes,
        errors: 0,
        unit,
        latency: latencies.summary_us(parts),
        floor: None,
        operations_per_second: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Shows that every limit is measured on this machine, at a size that tests can afford: each row has its rounds and
    /// verified bytes, and a latency that isn't zero.
    #[test]
    fn every_limit_is_measured() {
        let plan = Plan { warmups: 1, rounds: 20, duration: Duration::from_secs(1), rounds_in_a_turn: 10 };
        let cores = CorePair::of_this_machine().expect("two CPUs");
        // On a thread of its own, which is what stays on one CPU.
        let settings = FloorSettings {
            transports: vec![TransportChoice::Shm, TransportChoice::Tcp],
            server: String::new(),
            cores,
            plan,
            cold_bytes: 8 << 20,
            seed: 1,
        };
        let measuring = move || {
            let mut report = Report::new("floor");
            measure(&settings, &mut report).map(|()| report)
        };
        let report = std::thread::spawn(measuring).join().expect("no panic").expect("measured");
        for row in &report.results {
            assert!((1..=20).contains(&row.iterations) && row.verified_bytes > 0, "{row:?}");
            assert!(row.latency.p50 > 0.0 && row.latency.p50 <= row.latency.max, "{row:?}");
        }
        let limits = |name: &str| report.results.iter().filter(|row| row.varied[0].1 == name).count();
        assert_eq!(
            (limits("gather-hot"), limits("ring"), limits("tcp-echo"), limits("tcp-transfer")),
            (3, 1, 4, 6)
        );
        assert!(limits("gather-cold") >= 3 && limits("copy-cold") >= 6);
    }
}
