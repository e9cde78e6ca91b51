//! A thread that moves a long value doesn't sleep. By itself in its process, so that the shard has a processor.

use lanner_client::Client;
use lanner_server::admin::board::Board;
use lanner_server::config::flags::{self, Asked};
use lanner_server::config::resolve::resolve;
use lanner_server::server::Server;
use std::sync::Arc;

const VALUE_BYTES: usize = 16 << 20;
/// A sleep for each staging buffer of the value would be 64.
const MOST_SLEEPS: u64 = 15;
const ROUNDS: usize = 20;

/// How often this thread has slept.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("a thread's status");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.expect("it says so").trim().parse().expect("a number")
}

/// A put over shared memory that took longer than a call spins was written a staging buffer at a time, with 100 us of sleep behind each: three times
/// as slow. Shows that nobody sleeps as long as the value moves, in a moment in which nobody else wants the processors.
#[test]
fn nobody_sleeps_while_a_long_value_moves() {
    let line = "s --listen 127.0.0.1:0 --admin off --huge-pages off --memory 96MiB --shards 1 --poll busy";
    let Ok(Asked::Serve(flags)) = flags::parse(line.split(' ')) else { panic!("flags") };
    let running = Server::start(resolve(*flags).unwrap(), Arc::new(Board::new(1, 1))).unwrap();
    let value = vec![7; VALUE_BYTES];
    for transport in ["shm", "tcp"] {
        let client =
            Client::connect(&format!("lanner://{}?transport={transport}", running.addresses[0])).unwrap();
        let count = |act: &dyn Fn()| {
            let before = sleeps();
            act();
            sleeps() - before
        };
        let quietly = |act: &dyn Fn()| (0..ROUNDS).any(|_| count(act) <= MOST_SLEEPS);
        assert!(quietly(&|| client.upsert(b"key", &value).unwrap()), "put, {transport}");
        assert!(quietly(&|| assert!(client.get(b"key").unwrap() == value)), "get, {transport}");
    }
    running.stop();
    running.join().unwrap();
}
