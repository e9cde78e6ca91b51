//! The outcome of a measurement, for people as a table and for programs as JSON in the form that the command-line contract promises.

use std::io::{self, Write};

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::environment::Environment;
use super::histogram::Summary;

/// A whole report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the benchmark: the word behind `lanner bench`.
    pub benchmark: &'static str,
    /// Where it ran.
    pub environment: Environment,
    /// A row for each thing measured.
    pub results: Vec<Row>,
    /// What others have published for the same work on other machines, to be read as history.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Published>,
}

impl Report {
    /// A report without rows yet, of this machine as it is now: before the measurement puts threads on CPUs.
    #[must_use]
    pub fn new(benchmark: &'static str) -> Report {
        Report { benchmark, environment: Environment::gather(), results: Vec::new(), history: Vec::new() }
    }
}

/// A published result.
#[derive(Clone, Debug, Serialize)]
pub struct Published {
    /// What was measured, on what.
    pub source: &'static str,
    /// The data set.
    pub preset: &'static str,
    /// How it was read.
    pub mode: &'static str,
    /// Tokens in a call.
    pub tokens: u64,
    /// Median and, where published, 95th percentile.
    pub us_per_token: PublishedLatency,
}

/// The numbers of a published result, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PublishedLatency {
    /// The median.
    pub p50: f64,
    /// Of 100 calls, 95 took at most this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95: Option<f64>,
}

/// One thing measured.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was varied, by the names of the flags, in the order of the table's columns.
    pub varied: Vec<(&'static str, Value)>,
    /// Rounds recorded.
    pub iterations: u64,
    /// Bytes that were compared with what they should be.
    pub verified_bytes: u64,
    /// Rounds that gave no right answer.
    pub errors: u64,
    /// What [`Row::latency`] is called; it ends in the unit: `latency_us`, `us_per_token`.
    pub unit: &'static str,
    /// How long a round took.
    pub latency: Summary,
    /// The limit that was measured in the same run, in the same unit.
    pub floor: Option<Summary>,
    /// Operations in a second, all threads together, where that is what was asked for.
    pub operations_per_second: Option<f64>,
}

impl Row {
    /// The median as a multiple of the limit's.
    #[must_use]
    pub fn ratio_p50(&self) -> Option<f64> {
        self.floor.map(|floor| self.latency.p50 / floor.p50)
    }

    /// What was varied, as a label: the first value stands for itself, `gather-hot pages=4KiB tokens=8`.
    #[must_use]
    pub fn label(&self) -> String {
        let words = self.varied.iter().enumerate().map(|(index, (flag, value))| match index {
            0 => plain(value),
            _ => format!("{flag}={}", plain(value)),
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (flag, value) in &self.varied {
            map.serialize_entry(flag, value)?;
        }
        map.serialize_entry("iterations", &self.iterations)?;
        map.serialize_entry("verified_bytes", &self.verified_bytes)?;
        map.serialize_entry("errors", &self.errors)?;
        map.serialize_entry(self.unit, &self.latency)?;
        if let Some(rate) = self.operations_per_second {
            map.serialize_entry("operations_per_second", &rate)?;
        }
        if let (Some(floor), Some(ratio)) = (&self.floor, self.ratio_p50()) {
            map.serialize_entry("floor", floor)?;
            map.serialize_entry("ratio_p50", &ratio)?;
        }
        map.end()
    }
}

impl Report {
    /// Prints the report as JSON.
    ///
    /// # Errors
    /// What `output` refuses.
    pub fn write_json(&self, output: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *output, self)?;
        writeln!(output)
    }

    /// Prints the report as a table under a line on the machine.
    ///
    /// # Errors
    /// What `output` refuses.
    pub fn write_table(&self, output: &mut impl Write) -> io::Result<()> {
        writeln!(output, "{}", self.environment.line())?;
        let flags = self.flags();
        let has_floor = self.results.iter().any(|row| row.floor.is_some());
        let has_rate = self.results.iter().any(|row| row.operations_per_second.is_some());
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let mut header: Vec<&str> = flags.clone();
        header.extend(["rounds", "p50", "p95", "p99", "p99.9", "max", "unit"]);
        if has_rate {
            header.push("per second");
        }
        if has_floor {
            header.extend(["floor p50", "ratio"]);
        }
        table.set_header(header);
        for row in &self.results {
            table.add_row(row.cells(&flags, has_rate, has_floor));
        }
        write_lines(&table, output)?;
        self.write_history(output)
    }

    fn write_history(&self, output: &mut impl Write) -> io::Result<()> {
        let Some(first) = self.history.first() else { return Ok(()) };
        writeln!(output, "\nHistory, not a race: {}", first.source)?;
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["preset", "mode", "tokens", "p50", "p95", "unit"]);
        for Published { preset, mode, tokens, us_per_token, .. } in &self.history {
            let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
            let p95 = us_per_token.p95.map_or(String::new(), |p95| format!("{p95:.2}"));
            let p50 = format!("{:.2}", us_per_token.p50);
            table.add_row([
                Cell::new(preset),
                Cell::new(mode),
                right(tokens.to_string()),
                right(p50),
                right(p95),
                Cell::new("us per token"),
            ]);
        }
        write_lines(&table, output)
    }

    /// Every flag that some row varies, in the order of their first appearance.
    fn flags(&self) -> Vec<&'static str> {
        let mut flags = Vec::new();
        for (flag, _) in self.results.iter().flat_map(|row| &row.varied) {
            if !flags.contains(flag) {
                flags.push(*flag);
            }
        }
        flags
    }
}

impl Row {
    fn cells(&self, flags: &[&str], has_rate: bool, has_floor: bool) -> Vec<Cell> {
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        let varied = |flag| {
            self.varied
                .iter()
                .find(|(name, _)| *name == flag)
                .map_or(String::new(), |(_, value)| plain(value))
        };
        let mut cells: Vec<Cell> = flags.iter().map(|flag| Cell::new(varied(*flag))).collect();
        cells.push(right(self.iterations.to_string()));
        let Summary { p50, p95, p99, p999, max, .. } = self.latency;
        cells.extend([p50, p95, p99, p999, max].map(|number| right(digits(number))));
        cells.push(Cell::new(self.unit.trim_start_matches("latency_").replace('_', " ")));
        if has_rate {
            cells.push(right(self.operations_per_second.map_or(String::new(), |rate| format!("{rate:.0}"))));
        }
        if has_floor {
            cells.push(right(self.floor.map_or(String::new(), |floor| digits(floor.p50))));
            cells.push(right(self.ratio_p50().map_or(String::new(), |ratio| format!("{ratio:.2}"))));
        }
        cells
    }
}

fn write_lines(table: &Table, output: &mut impl Write) -> io::Result<()> {
    table.lines().try_for_each(|line| writeln!(output, "{}", line.trim_end()))
}

/// A JSON value without quotation marks.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A number with about three digits that matter: more than the clock resolves would only look exact.
fn digits(number: f64) -> String {
    match number {
        n if n >= 100.0 => format!("{n:.0}"),
        n if n >= 10.0 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(limit: &str, tokens: Option<u64>, floor: Option<f64>) -> Row {
        let mut varied = vec![("limit", Value::from(limit))];
        varied.extend(tokens.map(|tokens| ("tokens", Value::from(tokens))));
        let summary = |p50| Summary { p25: p50 / 2.0, p50, p95: 2.0, p99: 30.0, p999: 400.0, max: 5000.0 };
        Row {
            varied,
            iterations: 10,
            verified_bytes: 264,
            errors: 0,
            unit: "us_per_token",
            latency: summary(1.5),
            floor: floor.map(summary),
            operations_per_second: None,
        }
    }

    fn report(results: Vec<Row>) -> Report {
        Report { benchmark: "floor", environment: Environment::gather(), results, history: Vec::new() }
    }

    /// Shows the JSON that the command-line contract promises, field by field.
    #[test]
    fn json_has_the_promised_form() {
        let mut output = Vec::new();
        report(vec![row("gather", Some(4), Some(0.5)), row("echo", None, None)])
            .write_json(&mut output)
            .expect("written");
        let value: Value = serde_json::from_slice(&output).expect("JSON");
        assert_eq!(value["benchmark"], "floor");
        assert!(value["environment"]["kernel"].is_string());
        let first = &value["results"][0];
        assert_eq!((&first["limit"], &first["tokens"]), (&Value::from("gather"), &Value::from(4)));
        assert_eq!(
            (&first["iterations"], &first["verified_bytes"], &first["errors"]),
            (&10.into(), &264.into(), &0.into())
        );
        assert_eq!(
            (&first["us_per_token"]["p50"], &first["us_per_token"]["p999"]),
            (&1.5.into(), &400.0.into())
        );
        assert_eq!((&first["floor"]["p50"], &first["ratio_p50"]), (&0.5.into(), &3.0.into()));
        let second = value["results"][1].as_object().expect("an object");
        assert!(!second.contains_key("floor") && !second.contains_key("tokens"));
    }

    /// Shows that rows which vary different flags share a table, and that limit and ratio appear only if some row has them.
    #[test]
    fn the_table_has_a_column_for_each_flag() {
        let text = |results| {
            let mut output = Vec::new();
            report(results).write_table(&mut output).expect("written");
            String::from_utf8(output).expect("text")
        };
        let with_floor = text(vec![row("gather", Some(4), Some(0.5)), row("echo", None, None)]);
        let columns: Vec<&str> = with_floor.lines().nth(1).expect("a header").split_whitespace().collect();
        assert_eq!(columns[..4], ["limit", "tokens", "rounds", "p50"]);
        assert!(with_floor.contains("3.00"), "{with_floor}");
        assert!(!text(vec![row("echo", None, None)]).contains("ratio"));
    }
}
