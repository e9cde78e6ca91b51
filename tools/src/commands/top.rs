//! `lanner top`: how a server's shards stand and what they do, live, from `/shards` of its admin endpoint.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use comfy_table::{Cell, CellAlignment, Table, presets};
use lanner_client::{ClientConfig, DEFAULT_PORT};
use serde_json::Value;

use super::stat::hit_rate;
use super::store;
use crate::exit::{ExitStatus, Failure};

/// Longer than an admin endpoint takes that answers at all.
const TIME_OUT: Duration = Duration::from_secs(2);

/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Flags of `lanner top`.
#[derive(Args, Debug)]
pub struct TopArguments {
    /// The server's admin endpoint; by default at the host of --url, one port higher
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// Time between two looks
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = humantime::parse_duration)]
    interval: Duration,
}

/// Prints again and again until it is interrupted, or once. Under `--json` each look is the endpoint's own answer, on a line.
///
/// # Errors
/// An endpoint that can't be reached or is none, output that can't be written.
pub fn run(arguments: &TopArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let admin = match &arguments.admin {
        Some(admin) => admin.clone(),
        None => admin_of(url)?,
    };
    let mut before = None;
    loop {
        let now = ask(&admin)?;
        if json {
            store::print_json(&now)?;
        } else {
            let clear = if io::stdout().is_terminal() && !arguments.once { CLEAR } else { "" };
            store::print(format!("{clear}{}", screen(&now, before.as_ref())).as_bytes())?;
        }
        if arguments.once {
            return Ok(ExitStatus::Done);
        }
        before = Some(now);
        thread::sleep(arguments.interval);
    }
}

/// Where the admin endpoint of the first server of `url` is, if it has the port that servers give it by default.
fn admin_of(url: &str) -> Result<String, Failure> {
    let config: ClientConfig = url.parse()?;
    let server = config.servers.first().map_or("", |server| &**server);
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
    let port: u16 = port.parse().unwrap_or(DEFAULT_PORT);
    Ok(format!("http://{host}:{}", port.saturating_add(1)))
}

fn ask(admin: &str) -> Result<Value, Failure> {
    let admin = if admin.contains("://") { admin.to_owned() } else { format!("http://{admin}") };
    let url = format!("{}/shards", admin.trim_end_matches('/'));
    let unreachable = |reason: String| {
        Failure::Unreachable(format!(
            "no admin endpoint at {admin}: {reason}; the server's --admin says where it is"
        ))
    };
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(TIME_OUT)).build().into();
    let mut answer = agent.get(&url).call().map_err(|error| unreachable(error.to_string()))?;
    let text = answer.body_mut().read_to_string().map_err(|error| unreachable(error.to_string()))?;
    serde_json::from_str(&text)
        .map_err(|_| unreachable("it answers with something else than shards".to_owned()))
}

/// A line on the server, and two tables with a line for each shard of each tenant: what goes in and out, and what the prefix path does.
/// Rates are those since the look `before`.
fn screen(now: &Value, before: Option<&Value>) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let uptime = Duration::from_secs(now["uptime_ms"].as_u64().unwrap_or(0) / 1000);
    let mut screen = format!(
        "lanner {}, {}, up {}, boot {}\n\n",
        text(&now["version"]),
        text(&now["phase"]),
        humantime::format_duration(uptime),
        text(&now["boot"])
    );
    let (mut traffic, mut prefix_path) = (table(&TRAFFIC), table(&PREFIX_PATH));
    let empty = Vec::new();
    for shard in now["shards"].as_array().unwrap_or(&empty) {
        let seconds = seconds_between(now, before);
        let earlier = before.filter(|_| seconds.is_some()).and_then(|before| same_shard(before, shard));
        traffic.add_row(traffic_of(shard, earlier, seconds));
        prefix_path.add_row(prefix_path_of(shard, earlier, seconds));
    }
    for line in traffic.lines().chain([String::new()]).chain(prefix_path.lines()) {
        screen.push_str(line.trim_end());
        screen.push('\n');
    }
    screen
}

/// What goes in and out.
const TRAFFIC: [&str; 14] = [
    "shard",
    "tenant",
    "objects",
    "used",
    "of",
    "leased",
    "quarantined",
    "hit rate",
    "reads/s",
    "puts/s",
    "in/s",
    "out/s",
    "tcp",
    "shm",
];

/// Filter, chains and the order of eviction.
const PREFIX_PATH: [&str; 13] = [
    "shard",
    "tenant",
    "filter",
    "load",
    "false positives",
    "prefix found",
    "evicted/s",
    "on demand",
    "ghosts/s",
    "age out",
    "lease",
    "kept free",
    "order",
];

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

fn same_shard<'a>(before: &'a Value, shard: &Value) -> Option<&'a Value> {
    let is_same = |other: &&Value| other["shard"] == shard["shard"] && other["tenant"] == shard["tenant"];
    before["shards"].as_array()?.iter().find(is_same)
}

/// Seconds between two looks at the same life of a server.
fn seconds_between(now: &Value, before: Option<&Value>) -> Option<f64> {
    let before = before.filter(|before| before["boot"] == now["boot"])?;
    let millis = now["uptime_ms"].as_u64()?.checked_sub(before["uptime_ms"].as_u64()?)?;
    (millis > 0).then_some(millis as f64 / 1000.0)
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

fn number(shard: &Value, name: &str) -> u64 {
    shard["stats"][name].as_u64().unwrap_or(0)
}

/// How often what `count` counts happens in a second.
fn rate(
    shard: &Value,
    before: Option<&Value>,
    seconds: Option<f64>,
    count: &dyn Fn(&Value) -> u64,
) -> Option<f64> {
    Some(count(shard).saturating_sub(count(before?)) as f64 / seconds?)
}

fn counted(rate: Option<f64>) -> Cell {
    right(rate.map_or("-".to_owned(), |rate| format!("{rate:.0}")))
}

fn percent(part: u64, whole: u64, decimals: usize) -> Cell {
    let share = (whole > 0).then(|| 100.0 * part as f64 / whole as f64);
    right(share.map_or("-".to_owned(), |share| format!("{share:.decimals$} %")))
}

/// The first two cells of each row.
fn whose(shard: &Value) -> [Cell; 2] {
    let tenant = shard["tenant"].as_str().filter(|tenant| !tenant.is_empty()).unwrap_or("(default)");
    [right(shard["shard"].to_string()), Cell::new(tenant)]
}

fn traffic_of(shard: &Value, before: Option<&Value>, seconds: Option<f64>) -> Vec<Cell> {
    let rate = |count: &dyn Fn(&Value) -> u64| rate(shard, before, seconds, count);
    let sized = |rate: Option<f64>| right(rate.map_or("-".to_owned(), |rate| size(rate as u64)));
    let capacity = number(shard, "capacity_bytes");
    let hit_rate = hit_rate(&shard["stats"]["look_ups"]);
    let cells = [
        right(number(shard, "objects").to_string()),
        right(size(capacity.saturating_sub(number(shard, "free_bytes")))),
        right(size(capacity)),
        right(size(number(shard, "leased_bytes"))),
        right(size(number(shard, "quarantined_bytes"))),
        right(hit_rate.map_or("-".to_owned(), |rate| format!("{:.1} %", rate * 100.0))),
        counted(rate(&reads)),
        counted(rate(&|value| number(value, "puts") + number(value, "upserts"))),
        sized(rate(&|value| value["transport"]["received_bytes"].as_u64().unwrap_or(0))),
        sized(rate(&|value| value["transport"]["sent_bytes"].as_u64().unwrap_or(0))),
        right(shard["transport"]["tcp_connections"].to_string()),
        right(shard["transport"]["shm_lanes"].to_string()),
    ];
    whose(shard).into_iter().chain(cells).collect()
}

/// How much of what a function counts came since the look before.
type Since<'a> = &'a dyn Fn(Count<'_>) -> u64;
type Count<'a> = &'a dyn Fn(&Value) -> u64;

fn prefix_path_of(shard: &Value, before: Option<&Value>, seconds: Option<f64>) -> Vec<Cell> {
    let rate = |count: &dyn Fn(&Value) -> u64| rate(shard, before, seconds, count);
    let since = |count: &dyn Fn(&Value) -> u64| count(shard).saturating_sub(before.map_or(0, count));
    let on_demand =
        |value: &Value| number(value, "evicted_for_demand") + number(value, "evicted_as_neighbour");
    let evictions = |value: &Value| number(value, "evicted_ahead") + on_demand(value);
    let tuning = &shard["stats"]["tuning"];
    let per_mille = |name: &str| tuning[name].as_u64().unwrap_or(0) as f64 / 10.0;
    let cells = [
        right(size(number(shard, "filter_bytes"))),
        percent(number(shard, "objects"), number(shard, "filter_capacity_keys"), 0),
        percent(number(shard, "filter_probes_wrong"), number(shard, "filter_probes"), 2),
        right(prefix_found(&since)),
        counted(rate(&evictions)),
        percent(since(&on_demand), since(&evictions), 0),
        counted(rate(&|value| number(value, "ghost_hits"))),
        right(age_at_eviction(&since, &evictions)),
        right(format!("{} ms", tuning["lease_ms"].as_u64().unwrap_or(0))),
        right(format!("{:.1} - {:.1} %", per_mille("begin_below_per_mille"), per_mille("end_at_per_mille"))),
        Cell::new(order(&shard["stats"])),
    ];
    whose(shard).into_iter().chain(cells).collect()
}

/// Leading blocks that were there of a group of up to 32 that was asked for since the look before, on average.
fn prefix_found(since: Since<'_>) -> String {
    let groups = since(&|value| {
        let classes = value["stats"]["prefix_blocks"].as_array();
        classes.into_iter().flatten().filter_map(Value::as_u64).sum()
    });
    let blocks = since(&|value| value["stats"]["look_ups"]["match_chain"]["hits"].as_u64().unwrap_or(0));
    match groups {
        0 => "-".to_owned(),
        groups => format!("{:.1} of a group", blocks as f64 / groups as f64),
    }
}

/// How long what was evicted since the look before had been stored, on average.
fn age_at_eviction(since: Since<'_>, evictions: Count<'_>) -> String {
    match since(evictions) {
        0 => "-".to_owned(),
        evicted => {
            let tenths = since(&|value| number(value, "age_at_eviction_tenths"));
            humantime::format_duration(Duration::from_secs(tenths / 10 / evicted)).to_string()
        }
    }
}

/// Which order of eviction an adaptive policy follows, with what each would hit of the uses that it watches.
fn order(stats: &Value) -> String {
    let Some(followed) = stats["adaptive"]["ranking"].as_str() else { return "fixed".to_owned() };
    let rates = stats["adaptive"]["shadows"].as_array().into_iter().flatten().filter_map(|shadow| {
        let (hits, misses) = (shadow["hits"].as_u64()?, shadow["misses"].as_u64()?);
        let rate = hits as f64 * 100.0 / (hits + misses).max(1) as f64;
        Some(format!("{} {rate:.0} %", shadow["ranking"].as_str()?))
    });
    format!("{followed} ({})", rates.collect::<Vec<_>>().join(", "))
}

/// Keys that were looked up, found or not.
fn reads(shard: &Value) -> u64 {
    let operations = shard["stats"]["look_ups"].as_object();
    let counts = operations.into_iter().flatten().filter(|(name, _)| *name != "remove" && *name != "put");
    counts
        .map(|(_, counts)| counts["hits"].as_u64().unwrap_or(0) + counts["misses"].as_u64().unwrap_or(0))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(uptime_ms: u64, boot: &str, puts: u64) -> Value {
        json!({
            "version": "1", "boot": boot, "phase": "ready", "uptime_ms": uptime_ms,
            "shards": [{
                "shard": 0, "tenant": "", "stats": { "puts": puts, "objects": 5, "look_ups": {} },
                "transport": { "tcp_connections": 3, "shm_lanes": 1 }
            }]
        })
    }

    /// Of the shard's line in the first table.
    fn words(screen: &str) -> Vec<String> {
        screen.lines().nth(3).unwrap_or("").split_whitespace().map(str::to_owned).collect()
    }

    /// Shows that rates are those between two looks, and that there are none after a restart or at the first look.
    #[test]
    fn rates_are_those_between_two_looks() {
        let puts_per_second = |before: Option<Value>| {
            let words = words(&screen(&answer(3000, "b", 500), before.as_ref()));
            // Rates of bytes have a unit.
            words.iter().any(|word| word == "250")
        };
        assert!(puts_per_second(Some(answer(1000, "b", 0))));
        assert!(!puts_per_second(Some(answer(1000, "a", 0))));
        assert!(!puts_per_second(None));
    }

    /// Shows which order of eviction is followed and how each would do, what left how old, and that a fixed policy says so.
    #[test]
    fn the_order_of_eviction_is_shown() {
        let mut adaptive = answer(1000, "b", 0);
        adaptive["shards"][0]["stats"]["adaptive"] = json!({
            "ranking": "density",
            "shadows": [{ "ranking": "density", "hits": 30, "misses": 70 }, { "ranking": "recency", "hits": 1, "misses": 9 }],
        });
        adaptive["shards"][0]["stats"]["evicted_ahead"] = json!(4);
        adaptive["shards"][0]["stats"]["age_at_eviction_tenths"] = json!(4 * 900);
        let text = screen(&adaptive, None);
        assert!(text.contains("density (density 30 %, recency 10 %)") && text.contains("1m 30s"), "{text}");
        assert!(screen(&answer(1000, "b", 0), None).contains("fixed"));
    }

    /// Shows filter, prefixes and memory that waits for leases, as the server counts them, and that what was counted before the last look
    /// doesn't come into averages.
    #[test]
    fn the_prefix_path_is_shown() {
        let with = |groups: u64, blocks: u64, demand: u64| {
            let mut answer = answer(1000 + groups, "b", 0);
            let stats = &mut answer["shards"][0]["stats"];
            stats["prefix_blocks"] = json!([groups / 2, 0, 0, 0, 0, 0, 0, groups / 2]);
            stats["look_ups"] = json!({ "match_chain": { "hits": blocks, "misses": 1 } });
            stats["filter_bytes"] = json!(64 << 20);
            stats["filter_capacity_keys"] = json!(10);
            stats["filter_probes"] = json!(1000);
            stats["filter_probes_wrong"] = json!(6);
            stats["quarantined_bytes"] = json!(3 << 20);
            stats["tuning"] =
                json!({ "lease_ms": 2500, "begin_below_per_mille": 10, "end_at_per_mille": 25 });
            stats["evicted_ahead"] = json!(300);
            stats["evicted_for_demand"] = json!(demand);
            answer
        };
        let text = screen(&with(10, 160, 100), None);
        for shown in
            ["64.0 MiB", "50 %", "0.60 %", "16.0 of a group", "25 %", "3.0 MiB", "2500 ms", "1.0 - 2.5 %"]
        {
            assert!(text.contains(shown), "{shown} in {text}");
        }
        let text = screen(&with(20, 180, 100), Some(&with(10, 160, 100)));
        assert!(text.contains("2.0 of a group") && !text.contains("25 %"), "{text}");
    }
}
