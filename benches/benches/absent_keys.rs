//! `exists` of 1,024 absent keys at once by a client on the server's host, against a shard with ten million objects, whose filter has
//! more than 64 MiB: from the caller's keys to the answers, hashing, routing and the few questions that go to the server all the same
//! included. Beside it, how often the filter is wrong while it grows as fast as a client can put.
//!
//! Run: `cargo bench -p lanner-benches --bench absent_keys`, alone on the machine. One iteration is one key. What the server counts says how many
//! keys came to it: at most 1 %, at any time. The best of the samples has to be within 40 ns a key.

use criterion::{Criterion, criterion_group, criterion_main};
use lanner_client::{Client, PutOptions};
use lanner_server::admin::board::Board;
use lanner_server::config::flags::{self, Asked};
use lanner_server::config::resolve::resolve;
use lanner_server::server::Server;
use lanner_shared::time::Clock;
use std::hint::black_box;
use std::sync::Arc;

/// Keys of a batch.
const BATCH: usize = 1024;
/// Batches: so many that the lines of their keys are in no cache when they come again.
const BATCHES: usize = 256;

/// Puts that a connection has under way at a time.
const PUTS: u32 = 250;
/// Puts between two looks at how often the filter is wrong.
const PUTS_BETWEEN_LOOKS: u32 = 25_000;
/// Batches of absent keys of such a look.
const BATCHES_OF_LOOK: usize = 8;
/// What a key may take on the client.
const MOST_NANOS_OF_KEY: f64 = 40.0;

/// Whether this is a measurement rather than a test that it still works.
fn is_measurement() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Enough for a filter of 64 MiB, or few when the bench is only tested.
fn objects() -> u32 {
    if is_measurement() { 10_000_000 } else { 50_000 }
}

/// Puts as fast as it can, and looks now and then at how many of absent keys the filter takes for present ones: in the middle of its growth,
/// too. Returns the largest share.
fn fill(client: &Client, absent: &[Vec<String>]) -> f64 {
    let mut largest = 0.0_f64;
    for first in (0..objects()).step_by(PUTS as usize) {
        let key = |number| (format!("model/layer-1/block-{number:08}"), "");
        let items: Vec<(String, &str)> = (first..first + PUTS).map(key).collect();
        let outcomes = client.put_batch(&items, PutOptions::default()).expect("a server");
        outcomes.into_iter().for_each(|outcome| outcome.expect("room"));
        if (first + PUTS).is_multiple_of(PUTS_BETWEEN_LOOKS) {
            largest = largest.max(share_to_server(client, &absent[..BATCHES_OF_LOOK]));
        }
    }
    largest
}

/// The share of absent keys that the server is asked about.
fn share_to_server(client: &Client, absent: &[Vec<String>]) -> f64 {
    let before = number(client, "/look_ups/exists/misses");
    for batch in absent {
        assert!(!client.exists_batch(batch).expect("a server").contains(&true));
    }
    let to_server = number(client, "/look_ups/exists/misses") - before;
    to_server as f64 / (absent.len() * BATCH) as f64
}

/// A number out of the shard's statistics.
fn number(client: &Client, name: &str) -> u64 {
    let (_, document) = client.stats().expect("a server").remove(0);
    let stats: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    stats.pointer(name).and_then(serde_json::Value::as_u64).expect("a number")
}

fn absent_keys(criterion: &mut Criterion) {
    let line =
        ["lanner-server", "--admin", "off", "--shards", "1", "--memory", "2GiB", "--listen", "127.0.0.1:0"];
    let Ok(Asked::Serve(flags)) = flags::parse(line) else { panic!("flags") };
    let config = resolve(*flags).expect("2 GiB of memory");
    let board = Arc::new(Board::new(config.shards(), config.tenants.len()));
    let running = Server::start(config, board).expect("a server");
    let client =
        Client::connect(&format!("lanner://{}?transport=shm", running.addresses[0])).expect("it serves");
    let absent = |batch: usize| -> Vec<String> {
        (0..BATCH).map(|number| format!("model/layer-2/block-{:08}", batch * BATCH + number)).collect()
    };
    let batches: Vec<Vec<String>> = (0..BATCHES).map(absent).collect();
    let wrong_while_growing = fill(&client, &batches);
    let filter_bytes = number(&client, "/filter_bytes");
    println!(
        "{} objects, a filter of {} MiB for {} keys; while it was filled at full speed at most {:.2} % false positives",
        number(&client, "/objects"),
        filter_bytes >> 20,
        number(&client, "/filter_capacity_keys"),
        100.0 * wrong_while_growing,
    );
    assert!(wrong_while_growing <= 0.01, "{wrong_while_growing}");
    assert!(!is_measurement() || filter_bytes >= 64 << 20, "{filter_bytes}");
    let mut best_nanos = f64::MAX;
    let (mut asked, misses_before) = (0_u64, number(&client, "/look_ups/exists/misses"));
    criterion.bench_function("exists of 1024 absent keys, each key", |bencher| {
        bencher.iter_custom(|keys| {
            let rounds = keys.div_ceil(BATCH as u64);
            let started = Clock.now();
            for round in 0..rounds {
                let answers = client.exists_batch(&batches[round as usize % BATCHES]).expect("a server");
                assert!(!black_box(answers).contains(&true));
            }
            asked += rounds * BATCH as u64;
            let spent = Clock.now().since(started);
            // Fewer batches come out of the caches.
            if rounds >= BATCHES as u64 {
                best_nanos = best_nanos.min(spent.as_nanos() as f64 / (rounds * BATCH as u64) as f64);
            }
            // The last batch may be longer than what was asked for.
            spent.mul_f64(keys as f64 / (rounds * BATCH as u64) as f64)
        });
    });
    let to_server = number(&client, "/look_ups/exists/misses") - misses_before;
    println!(
        "{best_nanos:.1} ns a key at best; {:.2} % of {asked} keys went to the server",
        100.0 * to_server as f64 / asked as f64
    );
    assert!(to_server * 100 <= asked, "{to_server} of {asked}");
    assert!(!is_measurement() || best_nanos <= MOST_NANOS_OF_KEY, "{best_nanos} ns a key");
    running.stop();
    running.join().expect("a clean end");
}

criterion_group!(benches, absent_keys);
criterion_main!(benches);
