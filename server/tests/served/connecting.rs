//! Many threads that connect at once: an engine's workers all make their first calls together. Found by a user: set-ups went one after the other
//! while each thread's time ran, and the one whose time was over failed all who waited.

use crate::support::{TestServer, slowed, transports};
use lanner_client::{Client, Clock, Error};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::Duration;

/// The first calls of so many threads, begun together: what came of each, and how long the longest took.
fn first_calls(client: &Client, threads: usize) -> (Vec<Result<bool, Error>>, Duration) {
    let together = Barrier::new(threads);
    let call = || {
        together.wait();
        let began = Clock.now();
        let outcome = client.exists(b"key");
        let took = Clock.now().since(began);
        // A connection ends with its thread.
        together.wait();
        (outcome, took)
    };
    let called: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(call)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let longest = called.iter().map(|(_, took)| *took).max().unwrap();
    (called.into_iter().map(|(outcome, _)| outcome).collect(), longest)
}

#[test]
fn the_first_calls_of_many_threads_all_succeed() {
    for transport in transports().into_iter().chain(["auto"]) {
        // Shared memory has 64 lanes a shard; beyond them `auto` takes another way.
        for threads in if transport == "shm" { [32, 60] } else { [100, 200] } {
            let server = TestServer::start(&[]);
            let client = Client::connect(&server.url(&format!("transport={transport}"))).unwrap();
            client.put(b"key", b"value").unwrap();
            let (outcomes, longest) = first_calls(&client, threads);
            let failed: Vec<_> = outcomes.iter().filter(|outcome| **outcome != Ok(true)).collect();
            assert!(failed.is_empty(), "{transport}, {threads}: {} failed: {failed:?}", failed.len());
            assert!(longest < slowed(Duration::from_secs(5)), "{transport}, {threads}: {longest:?}");
        }
    }
}

/// A way to `target` that lets one connection in at a time, each after so long.
fn slow_way(target: SocketAddr, each: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The threads end with the test's process; they hold nothing.
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            std::thread::sleep(each);
            let Ok(far) = TcpStream::connect(target) else { continue };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    address
}

#[test]
fn a_server_that_is_slow_to_take_connections_fails_nobody_who_waits_for_his_turn() {
    let server = TestServer::start(&[]);
    let address = slow_way(server.address(), Duration::from_millis(40));
    let client = Client::connect(&format!("lanner://{address}?transport=tcp")).unwrap();
    // Together they take twice as long as an attempt may.
    let (outcomes, longest) = first_calls(&client, 100);
    assert!(longest >= Duration::from_secs(3), "{longest:?}: nobody had to wait");
    let failed: Vec<_> = outcomes.iter().filter(|outcome| **outcome != Ok(false)).collect();
    assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());
}

#[test]
fn whoever_waits_for_his_turn_waits_no_longer_than_his_call_may_and_is_not_told_that_there_is_no_server() {
    let server = TestServer::start(&[]);
    let address = slow_way(server.address(), Duration::from_millis(100));
    let client = Client::connect(&format!("lanner://{address}?transport=tcp&timeout=1s")).unwrap();
    let (outcomes, longest) = first_calls(&client, 60);
    assert!(longest < slowed(Duration::from_millis(1800)), "{longest:?}");
    let served = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!((1..60).contains(&served), "{served} were served in time");
    for outcome in outcomes.into_iter().filter(Result::is_err) {
        assert!(matches!(outcome, Err(Error::Timeout { millis: 1000, .. })), "{outcome:?}");
    }
}
