//! Leases, pins and eviction against real time: the scenarios in which stores of this kind returned foreign bytes, or filled up.

use crate::support::{TestServer, transports};
use lanner_client::{Client, Clock, Error, Freshness, Pin, PutOptions, Range};
use std::io::Read;
use std::time::Duration;

const KEY: &[u8] = b"leased";

fn range(length: u64) -> [Range; 1] {
    [Range { key: 0, source_offset: 0, length, destination_offset: 0 }]
}

/// Fills the store with other values, so that whatever memory is free is used again.
fn fill(client: &Client, megabytes: usize) {
    for i in 0..megabytes {
        client.upsert(format!("filler {i}").as_bytes(), &vec![0xee; 1 << 20]).unwrap();
    }
}

#[test]
fn a_snapshot_reads_the_old_bytes_while_its_lease_runs_and_says_so_when_it_has_ended() {
    // Scenario 12: the object is removed and the whole store overwritten behind the snapshot's back.
    let server = TestServer::start(&["--lease-ttl", "400ms", "--memory", "16MiB"]);
    for transport in transports() {
        let client = server.client(transport);
        client.upsert(KEY, &vec![0x11; 1 << 20]).unwrap();
        let snapshot = client.prepare_snapshot(&[KEY]).unwrap();
        assert!(client.remove(KEY).unwrap());
        let mut read = vec![0; 1 << 20];
        let mut reads = 0;
        let outcome = loop {
            fill(&client, 4);
            match client.read_ranges_from_snapshot(&snapshot, &range(1 << 20), &mut read, Freshness::Lease) {
                Ok(()) => assert!(read.iter().all(|byte| *byte == 0x11)),
                Err(error) => break error,
            }
            reads += 1;
        };
        assert_eq!(outcome, Error::LeaseExpired { index: 0 });
        assert!(reads > 0 && Clock.now() >= snapshot.deadline());
        assert_eq!(client.prepare_snapshot(&[KEY]).unwrap_err(), Error::NotFound { index: 0 });
    }
}

#[test]
fn a_slow_reader_gets_the_old_bytes_or_an_error_but_no_mixture() {
    // Scenario 1: a value of 8 MiB is read slowly over TCP, with a lease of 200 ms, while another client fills the store.
    let server = TestServer::start(&["--lease-ttl", "200ms", "--memory", "32MiB"]);
    let client = server.client("tcp");
    client.put(KEY, &vec![0x22; 8 << 20]).unwrap();
    let mut slow = crate::by_hand::introduced(&server);
    crate::by_hand::ask_for(&mut slow, KEY);
    let reader = std::thread::spawn(move || {
        // 24 bytes of header, 32 of descriptor, then the value, in steps that take about two seconds together.
        let mut all = vec![0; 56 + (8 << 20)];
        for piece in all.chunks_mut(512 << 10) {
            std::thread::sleep(Duration::from_millis(120));
            slow.read_exact(piece).unwrap();
        }
        all
    });
    for _ in 0..6 {
        fill(&client, 20);
        std::thread::sleep(Duration::from_millis(200));
    }
    let all = reader.join().unwrap();
    assert!(all[56..].iter().all(|byte| *byte == 0x22));
}

#[test]
fn removal_has_distinct_answers_and_asking_protects_nothing() {
    // Scenario 3.
    let server = TestServer::start(&["--lease-ttl", "200ms"]);
    let client = server.client("shm");
    client.put(KEY, b"value").unwrap();
    client.get(KEY).unwrap();
    assert!(client.remove(KEY).unwrap(), "a lease is no obstacle");
    assert!(!client.exists(KEY).unwrap());
    assert!(!client.remove(KEY).unwrap(), "gone");
    client.put(KEY, b"again").unwrap();
    let free = |server: &TestServer| {
        server.reports_when(|reports| reports[0].stats.quarantined_bytes == 0);
    };
    free(&server);
    client.exists(KEY).unwrap();
    client.remove(KEY).unwrap();
    free(&server);
}

#[test]
fn polling_does_not_keep_a_store_full() {
    // Scenario 2: somebody asks for every key all the time while others keep putting.
    let server = TestServer::start(&["--memory", "16MiB"]);
    let client = server.client("shm");
    let keys: Vec<String> = (0..60).map(|i| format!("polled {i}")).collect();
    for round in 0..8 {
        for (i, key) in keys.iter().enumerate() {
            client
                .upsert(key.as_bytes(), &vec![i as u8; 400 << 10])
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
            client.exists_batch(&keys).unwrap();
        }
    }
    let reports = server.reports_when(|reports| reports[0].stats.evictions() > 100);
    assert_eq!(reports[0].stats.puts_refused_full, 0);
}

#[test]
fn a_full_store_says_what_fills_it_and_when_to_come_back() {
    // Scenario 8: nothing is called a success that isn't, and hard pins end.
    let server = TestServer::start(&["--memory", "8MiB"]);
    let client = server.client("tcp");
    let pinned = PutOptions { pin: Pin::Hard, ttl: Some(Duration::from_secs(2)), ..PutOptions::default() };
    let mut stored = 0;
    let error = loop {
        match client.put_with(format!("pinned {stored}").as_bytes(), &vec![1; 512 << 10], pinned) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    let Error::StoreFull { needed, pinned, .. } = error else { panic!("{error:?}") };
    assert!(needed > 512 << 10 && pinned > 7 << 20 && stored >= 14);
    assert!(!client.exists(format!("pinned {stored}").as_bytes()).unwrap());
    assert_eq!(client.put(b"too large", &vec![0; 9 << 20]).unwrap_err().code(), 9);
    std::thread::sleep(Duration::from_millis(3_200));
    client.put(b"after the pins", &vec![2; 512 << 10]).unwrap();
}

#[test]
fn four_times_the_capacity_can_be_put() {
    let server = TestServer::start(&["--memory", "32MiB"]);
    for transport in ["shm", "tcp"] {
        let client = server.client(transport);
        let sizes = [264, 4 << 10, 64 << 10, 1 << 20];
        let mut written = 0;
        let mut i = 0;
        while written < 128 << 20 {
            let size = sizes[i % sizes.len()];
            client.upsert(format!("{transport} {i}").as_bytes(), &vec![i as u8; size]).unwrap();
            written += size;
            i += 1;
        }
        assert_eq!(client.get(format!("{transport} {}", i - 1).as_bytes()).unwrap()[0], (i - 1) as u8);
    }
}

/// Two objects are equally old and leased through one snapshot; one of them is read through it, which no server sees, the other
/// isn't. Shows that the one that was read outlives younger objects, that the other is the first to go, and so what the
/// touches are for.
#[test]
fn what_is_read_through_snapshots_only_survives() {
    let server = TestServer::start(&["--policy", "lru", "--lease-ttl", "2s"]);
    let client = server.client("shm");
    let megabyte = vec![7; 1 << 20];
    client.put(b"read", &megabyte).unwrap();
    client.put(b"unread", &megabyte).unwrap();
    let snapshot = client.prepare_snapshot(&[b"read".as_slice(), b"unread"]).unwrap();
    (0..20).for_each(|i| client.put(format!("younger {i}").as_bytes(), &megabyte).unwrap());
    std::thread::sleep(Duration::from_millis(60));
    let mut byte = [0];
    let range = Range { key: 0, source_offset: 9, length: 1, destination_offset: 0 };
    client.read_ranges_from_snapshot(&snapshot, &[range], &mut byte, Freshness::Lease).unwrap();
    let is_told =
        |reports: &[std::sync::Arc<lanner_server::admin::board::ShardReport>]| reports[0].stats.touches == 1;
    server.reports_when(is_told);
    std::thread::sleep(Duration::from_millis(2_200));
    for i in 0..200 {
        client.put(format!("new {i}").as_bytes(), &megabyte).unwrap();
        if !client.exists(b"unread").unwrap() {
            break;
        }
    }
    assert!(!client.exists(b"unread").unwrap() && client.exists(b"read").unwrap());
}
