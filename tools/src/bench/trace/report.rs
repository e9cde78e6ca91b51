//! The outcome of a replay, as a table for people and as JSON for programs.

use std::io::{self, Write};

use bytesize::ByteSize;
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::TraceSettings;
use super::evictions::Evictions;
use super::replay::Outcome;
use crate::bench::environment::Environment;
use crate::bench::eviction::report::TraceSummary;
use crate::bench::histogram::LatencyHistogram;

/// A whole report.
#[derive(Clone, Debug, Serialize)]
pub struct TraceReport {
    /// The word behind `lanner bench`.
    pub benchmark: &'static str,
    /// Where it ran.
    pub environment: Environment,
    /// What was to be replayed.
    pub trace: TraceSummary,
    /// The replay; a list as in every report.
    pub results: Vec<Row>,
}

/// One replay.
#[derive(Clone, Debug)]
pub struct Row {
    transport: &'static str,
    block_bytes: usize,
    speed: f64,
    outcome: Outcome,
    evictions: Evictions,
    /// From the first request's beginning to the last one's end.
    seconds: f64,
}

impl Row {
    /// What came of a replay over `transport` that took so many seconds.
    #[must_use]
    pub fn new(
        transport: &'static str,
        settings: &TraceSettings,
        outcome: Outcome,
        evictions: Evictions,
        seconds: f64,
    ) -> Row {
        Row {
            transport,
            block_bytes: settings.blocks.bytes,
            speed: settings.speed,
            outcome,
            evictions,
            seconds,
        }
    }

    /// The part of all uses of blocks that were read.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        self.outcome.hits as f64 / self.outcome.uses.max(1) as f64
    }

    /// Requests in a second of the replay, whatever it waited for.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        self.outcome.requests as f64 / self.seconds.max(1e-9)
    }

    fn latencies(&self) -> [(&'static str, &LatencyHistogram); 3] {
        let Outcome { matching, reading, putting, .. } = &self.outcome;
        [("match", matching), ("read", reading), ("put", putting)]
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let outcome = &self.outcome;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("transport", self.transport)?;
        map.serialize_entry("block", &self.block_bytes)?;
        map.serialize_entry("speed", &self.speed)?;
        map.serialize_entry("iterations", &outcome.requests)?;
        map.serialize_entry("verified_bytes", &outcome.read_bytes)?;
        // A replay with a wrong byte has no report.
        map.serialize_entry("errors", &0)?;
        map.serialize_entry("uses", &outcome.uses)?;
        map.serialize_entry("hits", &outcome.hits)?;
        map.serialize_entry("hit_ratio", &self.hit_ratio())?;
        map.serialize_entry("expired", &outcome.expired)?;
        map.serialize_entry("stored", &outcome.stored)?;
        map.serialize_entry("already_there", &outcome.already_there)?;
        map.serialize_entry("refused", &outcome.refused)?;
        map.serialize_entry("read_bytes", &outcome.read_bytes)?;
        map.serialize_entry("written_bytes", &outcome.written_bytes)?;
        map.serialize_entry("evicted", &self.evictions)?;
        for (name, histogram) in self.latencies() {
            map.serialize_entry(&format!("{name}_us"), &histogram.summary_us(1))?;
        }
        map.serialize_entry("requests_per_second", &self.requests_per_second())?;
        map.serialize_entry("replay_seconds", &self.seconds)?;
        map.serialize_entry("most_late_seconds", &outcome.most_late.as_secs_f64())?;
        map.end()
    }
}

impl TraceReport {
    /// Prints the report as JSON.
    ///
    /// # Errors
    /// What `output` refuses.
    pub fn write_json(&self, output: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *output, self)?;
        writeln!(output)
    }

    /// Prints a few lines on the replay and a table of its latencies.
    ///
    /// # Errors
    /// What `output` refuses.
    pub fn write_table(&self, output: &mut impl Write) -> io::Result<()> {
        writeln!(output, "{}", self.environment.line())?;
        self.results.iter().try_for_each(|row| row.write_table(&self.trace.file, output))
    }
}

impl Row {
    fn write_table(&self, file: &str, output: &mut impl Write) -> io::Result<()> {
        let Outcome { requests, uses, hits, expired, stored, already_there, refused, .. } = &self.outcome;
        let [block, read, written, evicted] = [
            self.block_bytes as u64,
            self.outcome.read_bytes,
            self.outcome.written_bytes,
            self.evictions.bytes,
        ]
        .map(|bytes| ByteSize(bytes).display().iec());
        writeln!(
            output,
            "{file}, blocks of {block} over {}: {requests} requests in {:.1} s, {:.0} a second",
            self.transport,
            self.seconds,
            self.requests_per_second()
        )?;
        writeln!(
            output,
            "leading blocks hit: {hits} of {uses}, {:.4}; every byte of {read} compared, none wrong",
            self.hit_ratio()
        )?;
        writeln!(
            output,
            "stored: {stored} blocks, {written} ({already_there} were there, {refused} found no room); evicted: {} objects, {evicted}",
            self.evictions.objects
        )?;
        if *expired > 0 {
            writeln!(output, "leases that ended before {expired} blocks were read: misses")?;
        }
        if !self.outcome.most_late.is_zero() {
            writeln!(output, "the latest request began {:.3} s late", self.outcome.most_late.as_secs_f64())?;
        }
        self.write_latencies(output)
    }

    fn write_latencies(&self, output: &mut impl Write) -> io::Result<()> {
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["us a request", "requests", "p50", "p95", "p99", "max"]);
        for (name, histogram) in self.latencies() {
            let summary = histogram.summary_us(1);
            let mut cells = vec![Cell::new(name), right(histogram.rounds().to_string())];
            let numbers = [summary.p50, summary.p95, summary.p99, summary.max];
            cells.extend(numbers.map(|micros| right(format!("{micros:.1}"))));
            table.add_row(cells);
        }
        table.lines().try_for_each(|line| writeln!(output, "{}", line.trim_end()))
    }
}
