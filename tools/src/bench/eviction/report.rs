//! The outcome of a comparison of orders of eviction, as a table for people and as JSON for programs.

use std::collections::HashSet;
use std::io::{self, Write};

use comfy_table::{Cell, CellAlignment, Table, presets};
use lanner_server::eviction::adaptive::AdaptiveState;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::Order;
use super::trace::Request;
use crate::bench::environment::Environment;

/// A whole report.
#[derive(Clone, Debug, Serialize)]
pub struct EvictionReport {
    /// The word behind `lanner bench`.
    pub benchmark: &'static str,
    /// Where it ran.
    pub environment: Environment,
    /// What was replayed.
    pub trace: TraceSummary,
    /// A row for each order and capacity.
    pub results: Vec<Row>,
}

/// What a trace holds.
#[derive(Clone, Debug, Serialize)]
pub struct TraceSummary {
    /// The file as it was named.
    pub file: String,
    /// Requests in it.
    pub requests: u64,
    /// Uses of blocks by all requests.
    pub uses: u64,
    /// Different blocks.
    pub blocks: u64,
    /// From the first request to the last.
    pub seconds: f64,
}

impl TraceSummary {
    /// What the `requests` of a file are.
    #[must_use]
    pub fn of(file: String, requests: &[Request]) -> TraceSummary {
        let (first, last) = (requests.first(), requests.last());
        let span_ms = first.zip(last).map_or(0, |(first, last)| last.at_ms - first.at_ms);
        let blocks = requests.iter().flat_map(|request| &request.blocks);
        TraceSummary {
            file,
            requests: requests.len() as u64,
            uses: blocks.clone().count() as u64,
            blocks: blocks.collect::<HashSet<_>>().len() as u64,
            seconds: span_ms as f64 / 1000.0,
        }
    }
}

/// One order at one capacity.
#[derive(Clone, Debug)]
pub struct Row {
    /// Who was evicted first.
    pub policy: Order,
    /// Room for so many blocks.
    pub capacity: u64,
    /// Uses of blocks.
    pub uses: u64,
    /// Of which blocks before the first missing one of their request.
    pub hits: u64,
    /// Blocks evicted, where the server's code did it.
    pub evicted: Option<u64>,
    /// How long the replay took.
    pub seconds: f64,
    /// What an adaptive policy did and why.
    pub adaptive: Option<AdaptiveState>,
}

impl Row {
    /// The part of the uses that were hits.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.uses.max(1) as f64
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("policy", &self.policy)?;
        map.serialize_entry("capacity", &self.capacity)?;
        map.serialize_entry("iterations", &self.uses)?;
        map.serialize_entry("errors", &0)?;
        map.serialize_entry("hits", &self.hits)?;
        map.serialize_entry("hit_ratio", &self.hit_ratio())?;
        map.serialize_entry("evicted", &self.evicted)?;
        map.serialize_entry("replay_seconds", &self.seconds)?;
        if let Some(adaptive) = &self.adaptive {
            map.serialize_entry("adaptive", adaptive)?;
        }
        map.end()
    }
}

impl EvictionReport {
    /// Prints the report as JSON.
    ///
    /// # Errors
    /// What `output` refuses.
    pub fn write_json(&self, output: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *output, self)?;
        writeln!(output)
    }

    /// Prints a table with a row for each order and a column for each capacity, and what an adaptive order decided.
    ///
    /// # Errors
    /// What `output` refuses.
    pub fn write_table(&self, output: &mut impl Write) -> io::Result<()> {
        writeln!(output, "{}", self.environment.line())?;
        let TraceSummary { file, requests, uses, blocks, seconds } = &self.trace;
        writeln!(
            output,
            "{file}: {requests} requests in {seconds:.0} s, {uses} uses of {blocks} blocks; the part that leading blocks hit, by capacity"
        )?;
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let capacities = self.capacities();
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        let mut header = vec![Cell::new("policy")];
        header.extend(capacities.iter().map(|capacity| right(capacity.to_string())));
        header.push(right("million uses a second".to_owned()));
        table.set_header(header);
        for policy in self.policies() {
            let rows: Vec<&Row> = self.results.iter().filter(|row| row.policy == policy).collect();
            let mut cells = vec![Cell::new(policy.name())];
            cells.extend(rows.iter().map(|row| right(format!("{:.4}", row.hit_ratio()))));
            let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
            let uses: u64 = rows.iter().map(|row| row.uses).sum();
            cells.push(right(format!("{:.1}", uses as f64 / seconds / 1e6)));
            table.add_row(cells);
        }
        table.lines().try_for_each(|line| writeln!(output, "{}", line.trim_end()))?;
        self.write_decisions(output)
    }

    fn write_decisions(&self, output: &mut impl Write) -> io::Result<()> {
        for row in &self.results {
            for decision in row.adaptive.iter().flat_map(|adaptive| &adaptive.decisions) {
                let (policy, capacity) = (row.policy.name(), row.capacity);
                writeln!(output, "{policy} with {capacity} blocks, {decision}")?;
            }
        }
        Ok(())
    }

    /// Every capacity, in the order of the rows.
    #[must_use]
    pub fn capacities(&self) -> Vec<u64> {
        let mut capacities = Vec::new();
        for row in &self.results {
            if !capacities.contains(&row.capacity) {
                capacities.push(row.capacity);
            }
        }
        capacities
    }

    /// Every order, in the order of the rows.
    #[must_use]
    pub fn policies(&self) -> Vec<Order> {
        let mut policies = Vec::new();
        for row in &self.results {
            if !policies.contains(&row.policy) {
                policies.push(row.policy);
            }
        }
        policies
    }
}
