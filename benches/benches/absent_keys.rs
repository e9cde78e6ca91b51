//! `exists` of 1,024 absent keys at once by a client on the server's host, against a shard with nine million objects, whose filter has
//! 64 MiB: from the caller's keys to the answers, hashing, routing and the few questions that go to the server all the same included.
//!
//! Run: `cargo bench -p lanner-benches --bench absent_keys`. One iteration is one key. What the server counts is compared with what the
//! filter's rate of false positives allows.

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

/// Enough for a filter of 64 MiB, or few when the bench is only tested.
fn objects() -> u32 {
    if std::env::args().any(|argument| argument == "--bench") { 9_000_000 } else { 50_000 }
}

/// Puts in batches that a connection has under way at a time.
fn fill(client: &Client) {
    for first in (0..objects()).step_by(250) {
        let key = |number| (format!("model/layer-1/block-{number:08}"), "");
        let items: Vec<(String, &str)> = (first..first + 250).map(key).collect();
        let outcomes = client.put_batch(&items, PutOptions::default()).expect("a server");
        outcomes.into_iter().for_each(|outcome| outcome.expect("room"));
    }
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
    fill(&client);
    println!(
        "{} objects, a filter of {} MiB for {} keys",
        number(&client, "/objects"),
        number(&client, "/filter_bytes") >> 20,
        number(&client, "/filter_capacity_keys"),
    );
    let absent = |batch: usize| -> Vec<String> {
        (0..BATCH).map(|number| format!("model/layer-2/block-{:08}", batch * BATCH + number)).collect()
    };
    let batches: Vec<Vec<String>> = (0..BATCHES).map(absent).collect();
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
            // The last batch may be longer than what was asked for.
            Clock.now().since(started).mul_f64(keys as f64 / (rounds * BATCH as u64) as f64)
        });
    });
    let to_server = number(&client, "/look_ups/exists/misses") - misses_before;
    println!("{:.2} % of {asked} keys went to the server", 100.0 * to_server as f64 / asked as f64);
    assert!(to_server * 100 <= asked, "{to_server} of {asked}");
    running.stop();
    running.join().expect("a clean end");
}

criterion_group!(benches, absent_keys);
criterion_main!(benches);
