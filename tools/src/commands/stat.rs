//! `lanner stat`: what is known of one object, or how each shard stands; with `--namespace` see `namespaces.rs`.

use std::ffi::OsString;

use bytesize::ByteSize;
use clap::Args;
use comfy_table::{Cell, CellAlignment, Table, presets};
use lanner_client::Client;
use serde_json::{Map, Value, json};

use super::store::{self, KeyFormat};
use super::{namespaces, prefix};
use crate::exit::{ExitStatus, Failure};
use crate::rdma_warning;

/// Flags of `lanner stat`.
#[derive(Args, Debug)]
pub struct StatArguments {
    /// The key of one object; without it, all shards
    #[arg(value_name = "KEY")]
    keys: Vec<OsString>,
    /// The keys are those of a chain's blocks, in order
    #[arg(long, requires = "keys")]
    chain: bool,
    /// The name spaces of engines' caches: what each stands for, and how much of the store is theirs. Lists every key
    #[arg(long, conflicts_with_all = ["keys", "chain"])]
    namespace: bool,
    #[command(flatten)]
    format: KeyFormat,
}

/// Prints what the store says of an object or of its shards.
///
/// # Errors
/// What the store says, output that can't be written.
pub fn run(arguments: &StatArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let client = store::connect(url)?;
    if arguments.namespace {
        namespaces::run(&client, json)?;
        return Ok(ExitStatus::Done);
    }
    let keys = arguments.format.parse_all(&arguments.keys)?;
    if arguments.chain {
        return prefix::stat(&client, &keys, arguments.format, json);
    }
    match keys.as_slice() {
        [] => shards(&client, json)?,
        [key] => object(&client, key, arguments.format, json)?,
        _ => return Err(Failure::WrongUse("one key, or --chain and the keys of a chain".to_owned())),
    }
    Ok(ExitStatus::Done)
}

fn object(client: &Client, key: &[u8], format: KeyFormat, json: bool) -> Result<(), Failure> {
    let value_bytes = client.size(key).map_err(Failure::of_key(&format.show(key)))?;
    let transport = client.transport_for(key)?;
    if json {
        let mut answer = store::about_key(key);
        answer.insert("value_bytes".to_owned(), value_bytes.into());
        answer.insert("transport".to_owned(), transport.into());
        if let Some(failures) = client.rdma_failures().into_iter().next() {
            answer.insert("rdma_failure".to_owned(), failures.reason.into());
        }
        return store::print_json(&answer);
    }
    rdma_warning::warn(client);
    store::print(format!("{}: {value_bytes} bytes, reached over {transport}\n", format.show(key)).as_bytes())
}

fn shards(client: &Client, json: bool) -> Result<(), Failure> {
    let stats = client.stats()?;
    rdma_warning::warn(client);
    let parse = |(at, (server, text)): (usize, &(String, String))| {
        // A server's shards come in their order.
        let shard = stats[..at].iter().filter(|(other, _)| other == server).count();
        let stats: Value = serde_json::from_str(text).unwrap_or_default();
        (server.clone(), shard, stats)
    };
    let stats: Vec<(String, usize, Value)> = stats.iter().enumerate().map(parse).collect();
    if json {
        let answer = |(server, shard, stats): &(String, usize, Value)| json!({ "server": server, "shard": shard, "stats": stats });
        return store::print_json(&stats.iter().map(answer).collect::<Vec<_>>());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(COLUMNS);
    for (server, shard, stats) in &stats {
        let mut cells = vec![Cell::new(server), Cell::new(shard).set_alignment(CellAlignment::Right)];
        let number = |name: &str| stats[name].as_u64().unwrap_or(0);
        cells.extend(cells_of(&number, &stats["look_ups"]));
        table.add_row(cells);
    }
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>();
    store::print(lines.as_bytes())
}

const COLUMNS: [&str; 14] = [
    "server",
    "shard",
    "objects",
    "used",
    "capacity",
    "leased",
    "hit rate",
    "puts",
    "evicted",
    "metadata B/object",
    "prefix index B/object",
    "filter",
    "filter load",
    "false positives",
];

/// All columns but the server's and the shard's.
fn cells_of(number: &dyn Fn(&str) -> u64, look_ups: &Value) -> Vec<Cell> {
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let size = |bytes: u64| right(ByteSize(bytes).display().iec().to_string());
    let (objects, capacity) = (number("objects"), number("capacity_bytes"));
    let each =
        |bytes: u64| right(bytes.checked_div(objects).map_or("-".to_owned(), |bytes| bytes.to_string()));
    let percent =
        |share: Option<f64>| right(share.map_or("-".to_owned(), |share| format!("{:.2} %", share * 100.0)));
    let evicted =
        ["evicted_ahead", "evicted_for_demand", "evicted_as_neighbour"].map(number).iter().sum::<u64>();
    vec![
        right(objects.to_string()),
        size(capacity.saturating_sub(number("free_bytes"))),
        size(capacity),
        size(number("leased_bytes")),
        right(hit_rate(look_ups).map_or("-".to_owned(), |rate| format!("{:.1} %", rate * 100.0))),
        right((number("puts") + number("upserts")).to_string()),
        right(evicted.to_string()),
        each(metadata_bytes(number)),
        each(number("prefix_index_bytes")),
        size(number("filter_bytes")),
        percent(share(objects, number("filter_capacity_keys"))),
        percent(share(number("filter_probes_wrong"), number("filter_probes"))),
    ]
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// What the objects take beside their keys and values: headers, padding, index, filter, slots and queues; not the prefix index.
fn metadata_bytes(number: &dyn Fn(&str) -> u64) -> u64 {
    let free = number("free_bytes") + number("quarantined_bytes");
    (number("capacity_bytes").saturating_sub(free) + number("index_bytes"))
        .saturating_sub(number("content_bytes"))
}

/// The part of the keys that were asked for and found, over all operations that read; `None` before the first.
#[must_use]
pub fn hit_rate(look_ups: &Value) -> Option<f64> {
    let empty = Map::new();
    let operations = look_ups.as_object().unwrap_or(&empty);
    let reads = operations.iter().filter(|(name, _)| *name != "remove" && *name != "put");
    let (hits, misses) = reads.fold((0, 0), |(hits, misses), (_, counts)| {
        let number = |name: &str| counts[name].as_u64().unwrap_or(0);
        (hits + number("hits"), misses + number("misses"))
    });
    (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows what counts as a read, and that no reads have no rate rather than one of zero.
    #[test]
    fn the_hit_rate_is_that_of_reads() {
        assert_eq!(hit_rate(&Value::Null), None);
        let look_ups = json!({
            "get": { "hits": 2, "misses": 1 }, "exists": { "hits": 1, "misses": 0 }, "remove": { "hits": 9, "misses": 9 }
        });
        assert_eq!(hit_rate(&look_ups), Some(0.75));
    }
}
