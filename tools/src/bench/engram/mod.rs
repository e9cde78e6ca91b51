//! `bench engram`: look-ups in Engram tables through each mode, each held against what the machine could do without a store, all in
//! turns of one run.
//!
//! | mode | what a look-up is |
//! |---|---|
//! | `query` | `Client::read_ranges`: asks where the tables lie, then reads, every time |
//! | `snapshot` | `EngramSet::lookup_into` with `Freshness::Lease`: reads through the snapshot that the set keeps |
//! | `checked` | the same with `Freshness::Checked`: notices a table that was replaced |
//!
//! The limit over shared memory is a bare gather of as many rows out of as much memory, for `snapshot` and `checked`; over TCP an echo of
//! the same number of bytes each way. A look-up of several tokens is reported in microseconds a token.

pub mod history;
pub mod lookup;
pub mod preset;
pub mod tables;

use std::rc::Rc;

use bytesize::ByteSize;
use clap::ValueEnum;
use lanner_client::{Client, EngramConfig, TransportChoice};
use lanner_shared::wire::header::HEADER_BYTES;
use lanner_shared::wire::read::{EpochCheck, ReadBody, SegmentRange};
use lanner_shared::wire::read_ranges::{KeyRange, ReadRangesBody};

use super::floor::cores::CorePair;
use super::floor::echo::TcpEcho;
use super::floor::echo_server::Shape;
use super::floor::gather::Gather;
use super::floor::quiet::AfterQuiet;
use super::floor::segment::Segment;
use super::floor::tables::{TablePlace, bytes_of, places};
use super::histogram::LatencyHistogram;
use super::progress::Progress;
use super::report::{Report, Row};
use super::target;
use super::workload::{Plan, Workload, alternate};
use crate::exit::Failure;
use lookup::LookUp;
use preset::Preset;
use tables::StoredLayers;

/// How rows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Asks every time.
    Query,
    /// Through a snapshot.
    Snapshot,
    /// Through a snapshot that is checked for changes every time.
    Checked,
}

impl Mode {
    /// The word for it on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Query => "query",
            Mode::Snapshot => "snapshot",
            Mode::Checked => "checked",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct EngramSettings {
    /// The servers.
    pub url: String,
    /// Over which transports.
    pub transports: Vec<TransportChoice>,
    /// The tables, one data set after the other.
    pub presets: Vec<Preset>,
    /// As many times the preset's rows.
    pub scale_rows: u64,
    /// Tokens in a call; those of the preset if there are none.
    pub tokens: Vec<u64>,
    /// How to read.
    pub modes: Vec<Mode>,
    /// Tables of the same names that are in the store may be removed.
    pub replaces: bool,
    /// How much, for each number of tokens on each transport.
    pub plan: Plan,
    /// Where.
    pub cores: CorePair,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Stores the tables, measures every combination on the calling thread, which stays on the client's CPU afterwards, and removes the
/// tables.
///
/// # Errors
/// What the store says, what this machine refuses, a wrong byte or a missing result.
pub fn measure(settings: &EngramSettings, report: &mut Report) -> Result<(), Failure> {
    settings.cores.pin_client()?;
    for preset in &settings.presets {
        measure_preset(settings, *preset, &mut report.results)?;
        report.history.extend(history::of(*preset));
    }
    Ok(())
}

fn measure_preset(settings: &EngramSettings, preset: Preset, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let layers = preset.layers(settings.scale_rows);
    let loading = target::connect(&settings.url, TransportChoice::Auto)?;
    check_room(&loading, &layers)?;
    let _stored = StoredLayers::new(&loading, &layers, settings.replaces)?;
    // Made once: filling gigabytes takes longer than measuring.
    let floor_tables = FloorTables::new(settings, preset, &layers, target::is_local(&loading))?;
    let tokens = if settings.tokens.is_empty() { preset.tokens() } else { settings.tokens.clone() };
    for transport in &settings.transports {
        let client = target::connect(&settings.url, *transport)?;
        for tokens in &tokens {
            let bench = Bench {
                settings,
                preset,
                layers: &layers,
                client: &client,
                transport: *transport,
                tokens: *tokens,
            };
            rows.extend(bench.rows(floor_tables.as_ref())?);
        }
    }
    Ok(())
}

/// Tables that evict each other would be missing when they are read.
fn check_room(client: &Client, layers: &[EngramConfig]) -> Result<(), Failure> {
    let capacity: u64 = client.servers().iter().map(|server| server.capacity_bytes).sum();
    let bytes: u64 = layers.iter().flat_map(table_sizes).sum();
    if bytes <= capacity / 10 * 9 {
        return Ok(());
    }
    let [bytes, capacity] = [bytes, capacity].map(|bytes| ByteSize(bytes).display().iec());
    Err(Failure::WrongUse(format!(
        "tables of {bytes} don't fit servers of {capacity}; lower --scale-rows, or give them more --memory"
    )))
}

fn table_sizes(layer: &EngramConfig) -> impl Iterator<Item = u64> {
    (0..layer.table_vocab_sizes.len()).filter_map(|head| layer.table_bytes(head))
}

/// The memory that the bare gather reads, of the same shape as the tables.
struct FloorTables {
    segment: Rc<Segment>,
    places: Vec<TablePlace>,
}

impl FloorTables {
    fn new(
        settings: &EngramSettings,
        preset: Preset,
        layers: &[EngramConfig],
        is_local: bool,
    ) -> Result<Option<FloorTables>, Failure> {
        let is_mapped = |transport| matches!(transport, TransportChoice::Auto | TransportChoice::Shm);
        if !is_local || !settings.transports.iter().copied().any(is_mapped) {
            return Ok(None);
        }
        let row_bytes = preset.row_bytes();
        let places =
            places(layers.iter().flat_map(|layer| layer.table_vocab_sizes.iter().copied()), row_bytes);
        let segment = Rc::new(Segment::new(bytes_of(&places, row_bytes), target::pages())?);
        Ok(Some(FloorTables { segment, places }))
    }
}

/// A limit, and the modes that are held against it.
type Floor = (Vec<Mode>, Box<dyn Workload>);

/// One number of tokens over one transport.
struct Bench<'a> {
    settings: &'a EngramSettings,
    preset: Preset,
    layers: &'a [EngramConfig],
    client: &'a Client,
    transport: TransportChoice,
    tokens: u64,
}

impl Bench<'_> {
    /// A row for each mode: all of them and their limits in turns.
    fn rows(&self, floor_tables: Option<&FloorTables>) -> Result<Vec<Row>, Failure> {
        let modes = &self.settings.modes;
        let mut products = Vec::new();
        let mut verified = Vec::new();
        for mode in modes {
            let mut product = LookUp::new(
                self.client,
                self.layers,
                *mode,
                self.tokens,
                self.settings.plan.warmups,
                self.settings.seed,
            )?;
            verified.push(product.prepare()?);
            products.push(product);
        }
        let mut floors = self.floors(floor_tables)?;
        for (_, floor) in &mut floors {
            floor.prepare()?;
        }
        let mut workloads: Vec<&mut dyn Workload> = Vec::new();
        workloads.extend(products.iter_mut().map(|product| product as &mut dyn Workload));
        workloads.extend(floors.iter_mut().map(|(_, floor)| floor as &mut dyn Workload));
        let name = format!("{}, {} tokens", self.transport.name(), self.tokens);
        let histograms =
            alternate(&mut workloads, &self.plan(), &Progress::new(name, self.settings.plan.rounds))?;
        let (products, floor_histograms) = histograms.split_at(modes.len());
        let floor_of = |mode: Mode| {
            let place = floors.iter().position(|(modes, _)| modes.contains(&mode))?;
            floor_histograms.get(place)
        };
        let rows = modes.iter().zip(products).zip(verified);
        Ok(rows
            .map(|((mode, latencies), verified)| self.row(*mode, latencies, floor_of(*mode), verified))
            .collect())
    }

    /// Turns of some milliseconds.
    fn plan(&self) -> Plan {
        let rounds_in_a_turn = match self.transport {
            TransportChoice::Tcp => 100,
            // Where the device is one in software a round takes milliseconds.
            TransportChoice::Rdma => 20,
            _ => 1000,
        };
        Plan { rounds_in_a_turn, ..self.settings.plan }
    }

    /// The limits that can be had here.
    fn floors(&self, tables: Option<&FloorTables>) -> Result<Vec<Floor>, Failure> {
        let mut floors: Vec<Floor> = Vec::new();
        let read_modes = || vec![Mode::Snapshot, Mode::Checked];
        if self.transport == TransportChoice::Tcp {
            if target::is_local(self.client) {
                for (modes, request) in [
                    (read_modes(), self.read_request_bytes()),
                    (vec![Mode::Query], self.query_request_bytes()),
                ] {
                    if modes.iter().any(|mode| self.settings.modes.contains(mode)) {
                        let shape =
                            Shape { request, reply: HEADER_BYTES + self.ranges() * self.preset.row_bytes() };
                        floors.push((
                            modes,
                            Box::new(AfterQuiet(TcpEcho::new(self.settings.cores, shape, 0)?)),
                        ));
                    }
                }
            }
        } else if self.transport == TransportChoice::Rdma {
            floors.extend(self.read_list()?.map(|floor| (read_modes(), floor)));
        } else if let Some(FloorTables { segment, places }) = tables {
            let (tokens, seed) = (self.tokens, self.settings.seed);
            let gather: Box<dyn Workload> = match self.preset {
                Preset::Ngram => Box::new(Gather::<{ preset::NGRAM_ROW_BYTES }>::new(
                    segment.clone(),
                    places.clone(),
                    tokens,
                    seed,
                )),
                Preset::Store => Box::new(Gather::<{ preset::STORE_ROW_BYTES }>::new(
                    segment.clone(),
                    places.clone(),
                    tokens,
                    seed,
                )),
            };
            floors.push((read_modes(), gather));
        }
        Ok(floors)
    }

    /// READs of as many rows by a bare loop, if this machine has both devices.
    fn read_list(&self) -> Result<Option<Box<dyn Workload>>, Failure> {
        #[cfg(feature = "rdma")]
        if let Some(server) = self.client.servers().first() {
            let rows = self.layers.iter().flat_map(|layer| layer.table_vocab_sizes.iter().copied());
            let row_bytes = self.preset.row_bytes();
            let list = super::floor::read_list::ReadList::new(
                &server.address,
                places(rows, row_bytes),
                row_bytes,
                self.tokens,
                self.settings.seed,
            )?;
            return Ok(list.map(|list| Box::new(list) as Box<dyn Workload>));
        }
        Ok(None)
    }

    fn tables(&self) -> usize {
        self.layers.iter().map(|layer| layer.table_vocab_sizes.len()).sum()
    }

    /// Rows of a call.
    fn ranges(&self) -> usize {
        self.tables() * self.tokens as usize
    }

    /// Bytes of the request for a read through a snapshot: the layers' epochs are checked in `checked` only, for which a few bytes more
    /// make no difference.
    fn read_request_bytes(&self) -> usize {
        let ranges = self.ranges() * size_of::<SegmentRange>();
        HEADER_BYTES + size_of::<ReadBody>() + ranges + self.layers.len() * size_of::<EpochCheck>()
    }

    /// Bytes of the request for a read by key: each key has a length of two bytes before it.
    fn query_request_bytes(&self) -> usize {
        let keys = self
            .layers
            .iter()
            .flat_map(|layer| (0..layer.table_vocab_sizes.len()).map(|head| layer.key(head)));
        let key_bytes: usize = keys.map(|key| size_of::<u16>() + key.len()).sum();
        HEADER_BYTES + size_of::<ReadRangesBody>() + self.ranges() * size_of::<KeyRange>() + key_bytes
    }

    fn row(
        &self,
        mode: Mode,
        latencies: &LatencyHistogram,
        floor: Option<&LatencyHistogram>,
        verified_bytes: u64,
    ) -> Row {
        let mut varied = vec![
            ("transport", self.transport.name().into()),
            ("preset", self.preset.name().into()),
            ("mode", mode.name().into()),
            ("tokens", self.tokens.into()),
        ];
        if self.settings.scale_rows != 1 {
            varied.push(("scale-rows", self.settings.scale_rows.into()));
        }
        Row {
            varied,
            iterations: latencies.rounds(),
            verified_bytes,
            errors: 0,
            unit: "us_per_token",
            latency: latencies.summary_us(self.tokens),
            floor: floor.map(|floor| floor.summary_us(self.tokens)),
            operations_per_second: None,
        }
    }
}
