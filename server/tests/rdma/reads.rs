//! One-sided reads: whose bytes they bring, what they cost the server and the client, and when they don't count.

use crate::counting::ALLOCATIONS;
use crate::failures::Trouble;
use crate::support::TestServer;
use lanner_client::{Client, Clock, Error, Freshness, PutOptions, Range};
use lanner_server::admin::board::ShardReport;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const ROW: u64 = 264;
const TABLES: usize = 24;
const ROWS: u64 = 97;

fn key(table: usize) -> String {
    format!("table {table}")
}

fn table(table: usize) -> Vec<u8> {
    (0..ROWS * ROW)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8 ^ table as u8))
        .collect()
}

fn store_tables(client: &Client) {
    let items: Vec<(String, Vec<u8>)> = (0..TABLES).map(|number| (key(number), table(number))).collect();
    let outcomes = client.upsert_batch(&items, PutOptions::default()).unwrap();
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

/// Two rows of each table, as a token of an n-gram look-up reads them.
fn ranges(round: u64) -> Vec<Range> {
    let row = |table: u64, which: u64| Range {
        key: table as u32,
        source_offset: (round * 7 + table * 13 + which * 29) % ROWS * ROW,
        length: ROW,
        destination_offset: (table * 2 + which) * ROW,
    };
    (0..TABLES as u64).flat_map(|table| [row(table, 0), row(table, 1)]).collect()
}

fn check(ranges: &[Range], read: &[u8]) {
    for range in ranges {
        let (from, to) = (range.source_offset as usize, range.destination_offset as usize);
        let length = range.length as usize;
        assert_eq!(read[to..to + length], table(range.key as usize)[from..from + length], "{range:?}");
    }
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_snapshot_read_asks_the_server_nothing_and_allocates_nothing() {
    // P2, from both sides: the shards' counters and what their connections received stand still, and so does the client's allocator. That
    // the counters count is shown by one ordinary call. Half a lease later the shards would be told what was read; so it's a long one.
    let server = TestServer::start(&["--shards", "2", "--lease-ttl", "60s"]);
    let client = server.client("rdma");
    store_tables(&client);
    let keys: Vec<String> = (0..TABLES).map(key).collect();
    let snapshot = client.prepare_snapshot(&keys).unwrap();
    let mut rows = vec![0; TABLES * 2 * ROW as usize];
    let rounds: Vec<Vec<Range>> = (0..20).map(ranges).collect();
    client.read_ranges_from_snapshot(&snapshot, &rounds[0], &mut rows, Freshness::Checked).unwrap();
    // What came to the cores and went out from them: a report is at most 100 ms old.
    let counts = || {
        std::thread::sleep(Duration::from_millis(300));
        let reports = server.reports_when(|reports| reports.len() == 2);
        let bytes =
            |report: &Arc<ShardReport>| (report.transport.received_bytes, report.transport.sent_bytes);
        reports.iter().map(bytes).collect::<Vec<_>>()
    };
    let before = counts();
    for freshness in [Freshness::Lease, Freshness::Checked] {
        for ranges in &rounds {
            let allocations = ALLOCATIONS.get();
            client.read_ranges_from_snapshot(&snapshot, ranges, &mut rows, freshness).unwrap();
            assert_eq!(ALLOCATIONS.get(), allocations, "no allocation after the first read");
            check(ranges, &rows);
        }
    }
    assert_eq!(counts(), before, "no byte came to the server's cores, and none went out from them");
    assert!(client.exists(keys[0].as_bytes()).unwrap());
    assert_ne!(counts(), before, "an ordinary call is counted");
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn what_is_only_read_one_sided_survives_eviction() {
    // Half of a store's objects are read through a snapshot again and again, and the other half, which are newer, are not. None is asked about,
    // and all leases end at once. Then half of what there is has to make room: it's those that nobody has read.
    const BYTES: usize = 256 << 10;
    const OBJECTS: usize = 40;
    let server = TestServer::start(&["--memory", "16MiB", "--lease-ttl", "4s", "--policy", "lru"]);
    let client = server.client("rdma");
    let keys: Vec<String> = (0..OBJECTS).map(|number| format!("block {number}")).collect();
    for key in &keys {
        client.put(key.as_bytes(), &[7; BYTES]).unwrap();
    }
    let snapshot = client.prepare_snapshot(&keys).unwrap();
    let read: Vec<Range> = (0..OBJECTS as u32 / 2)
        .map(|key| Range { key, source_offset: 1_000, length: 8, destination_offset: u64::from(key) * 8 })
        .collect();
    let (mut bytes, asked) = (vec![0; OBJECTS * 4], Clock.now());
    while Clock.now().since(asked) < Duration::from_millis(2_500) {
        client.read_ranges_from_snapshot(&snapshot, &read, &mut bytes, Freshness::Lease).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    server.reports_when(|reports| reports[0].stats.leased_bytes == 0);
    // 16 MiB hold 40 of them and 22 more, with what each takes beside.
    for number in 0..36 {
        client.put(format!("new {number}").as_bytes(), &[8; BYTES]).unwrap();
    }
    let there = client.exists_batch(&keys).unwrap();
    let count = |part: &[bool]| part.iter().filter(|is_there| **is_there).count();
    let (hot, cold) = (count(&there[..OBJECTS / 2]), count(&there[OBJECTS / 2..]));
    assert_eq!(hot, OBJECTS / 2, "{cold} of those that weren't read are there");
    assert!(cold < OBJECTS / 2, "nothing had to go");
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_replaced_object_is_noticed_by_a_checked_read() {
    let server = TestServer::start(&[]);
    let client = server.client("rdma");
    store_tables(&client);
    let keys: Vec<String> = (0..TABLES).map(key).collect();
    let snapshot = client.prepare_snapshot(&keys).unwrap();
    let mut rows = vec![0; TABLES * 2 * ROW as usize];
    let ranges = ranges(3);
    client.read_ranges_from_snapshot(&snapshot, &ranges, &mut rows, Freshness::Checked).unwrap();
    check(&ranges, &rows);
    client.upsert(keys[5].as_bytes(), &table(50)).unwrap();
    let checked = client.read_ranges_from_snapshot(&snapshot, &ranges, &mut rows, Freshness::Checked);
    assert_eq!(checked, Err(Error::EpochChanged));
    // The old bytes are there as long as the lease is.
    client.read_ranges_from_snapshot(&snapshot, &ranges, &mut rows, Freshness::Lease).unwrap();
    check(&ranges, &rows);
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_read_that_completes_after_its_lease_does_not_count() {
    // P1: the network holds the READs up for longer than the lease has left. They complete, so the connection stays, and the bytes are not
    // reported.
    let server = TestServer::start(&["--lease-ttl", "400ms"]);
    let client = server.client("rdma");
    store_tables(&client);
    let keys: Vec<String> = (0..TABLES).map(key).collect();
    let mut rows = vec![0; TABLES * 2 * ROW as usize];
    let ranges = ranges(1);
    let (mut expired, mut rounds, mut fell_back) = (0, 0, false);
    while expired < 3 {
        rounds += 1;
        if rounds > 12 {
            assert!(expired > 0, "none of {rounds} reads was late");
            break;
        }
        let snapshot = client.prepare_snapshot(&keys).unwrap();
        let late = {
            let slow = ["tc qdisc add dev eth0 root netem delay 450ms"];
            let _slow = Trouble::begin(&slow, &["tc qdisc del dev eth0 root"]);
            client.read_ranges_from_snapshot(&snapshot, &ranges, &mut rows, Freshness::Lease)
        };
        match late {
            Err(error) => {
                assert_eq!(error, Error::LeaseExpired { index: 0 });
                expired += 1;
            }
            // A host that was held up ended the link; then the shard was asked, which looks at its own lease. Right bytes, and no late ones.
            Ok(()) => {
                check(&ranges, &rows);
                fell_back = true;
                let is_back = || client.transport_for(keys[0].as_bytes()) == Ok("rdma");
                (0..50).any(|_| {
                    is_back() || {
                        std::thread::sleep(Duration::from_millis(100));
                        false
                    }
                });
            }
        }
        // What was late is over; a new lease reads again.
        let snapshot = client.prepare_snapshot(&keys).unwrap();
        client.read_ranges_from_snapshot(&snapshot, &ranges, &mut rows, Freshness::Lease).unwrap();
        check(&ranges, &rows);
    }
    if fell_back {
        return;
    }
    assert_eq!(client.transport_for(keys[0].as_bytes()).unwrap(), "rdma");
    let failures: u64 =
        server.reports_when(|_| true).iter().map(|report| report.transport.rdma_failures).sum();
    assert_eq!(failures, 0, "held up, and not broken");
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_read_that_takes_longer_than_its_lease_ends_with_the_lease() {
    // Of ranges that need some seconds of READs and a lease of half a second, all were posted all the same, and the thread was told behind the last.
    let server = TestServer::start(&["--lease-ttl", "500ms"]);
    let client = server.client("rdma");
    let value = vec![7; 4 << 20];
    client.upsert(b"long", &value).unwrap();
    let ranges: Vec<Range> = (0..60_000_u64)
        .map(|at| Range { key: 0, source_offset: at * 64, length: 8, destination_offset: at * 8 })
        .collect();
    let mut read = vec![0; 60_000 * 8];
    let mut registered = vec![0; 60_000 * 8];
    let mut registered = client.register(&mut registered).unwrap();
    for is_registered in [false, true] {
        let snapshot = client.prepare_snapshot(&["long"]).unwrap();
        let began = Clock.now();
        let late = match is_registered {
            false => client.read_ranges_from_snapshot(&snapshot, &ranges, &mut read, Freshness::Checked),
            true => registered.read_ranges_from_snapshot(&snapshot, &ranges, Freshness::Checked),
        };
        let took = Clock.now().since(began);
        assert_eq!(late, Err(Error::LeaseExpired { index: 0 }), "{is_registered}: {took:?}");
        assert!(took < Duration::from_millis(1200), "{is_registered}: {took:?}");
        assert_eq!(client.transport_for(b"long").unwrap(), "rdma");
    }
    // Reads that are forgotten half way leave others their room, and what they have read isn't kept for ever.
    for _ in 0..6 {
        let snapshot = client.prepare_snapshot(&["long"]).unwrap();
        let mut forgotten = vec![0; 300_000];
        let range = [Range { key: 0, source_offset: 0, length: 300_000, destination_offset: 0 }];
        let call =
            client.submit_read_ranges_from_snapshot(&snapshot, &range, &mut forgotten, Freshness::Lease);
        std::mem::forget(call.unwrap());
        assert!(client.get(b"long").unwrap() == value);
    }
    assert_eq!(client.transport_for(b"long").unwrap(), "rdma");
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn more_is_asked_for_than_the_queues_hold() {
    // Ranges of 6 MiB in pieces of all sizes, which is many lists and more work requests than a queue has; and 3,000 calls under way at
    // once, which is more answers than a client has room for.
    let server = TestServer::start(&[]);
    let client = server.client("rdma");
    let value: Vec<u8> = (0..6_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    client.upsert(b"long", &value).unwrap();
    let snapshot = client.prepare_snapshot(&["long"]).unwrap();
    let (mut ranges, mut at, mut length) = (Vec::new(), 0, 1);
    while at + length < value.len() as u64 {
        // Every second byte range changes places with its neighbour, so that few can be merged.
        ranges.push(Range { key: 0, source_offset: at, length, destination_offset: at });
        at += length;
        length = length * 5 % 7_919 + 1;
    }
    let count = ranges.len();
    (0..count / 2).for_each(|pair| ranges.swap(pair * 2, pair * 2 + 1));
    assert!(count > 1_500, "{count} ranges");
    let mut read = vec![0; value.len()];
    client.read_ranges_from_snapshot(&snapshot, &ranges, &mut read, Freshness::Lease).unwrap();
    assert_eq!(read[..at as usize], value[..at as usize]);
    assert_eq!(client.get(b"long").unwrap(), value);

    let keys: Vec<[String; 1]> = (0..3_000).map(|number| [format!("short {number}")]).collect();
    let items: Vec<(&String, Vec<u8>)> =
        keys.iter().enumerate().map(|(number, [key])| (key, vec![number as u8; 1_500])).collect();
    assert!(client.put_batch(&items, PutOptions::default()).unwrap().iter().all(Result::is_ok));
    let calls: Vec<_> = keys.iter().map(|key| client.submit_get_batch(key).unwrap()).collect();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.wait().unwrap()[0].as_ref().unwrap(), &[number as u8; 1_500]);
    }
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn reads_that_are_under_way_at_once_come_to_their_own_places() {
    let server = TestServer::start(&["--shards", "2"]);
    let client = server.client("rdma");
    store_tables(&client);
    let keys: Vec<String> = (0..TABLES).map(key).collect();
    let snapshot = client.prepare_snapshot(&keys).unwrap();
    let rounds: Vec<Vec<Range>> = (0..12).map(ranges).collect();
    let mut buffers = vec![vec![0; TABLES * 2 * ROW as usize]; rounds.len()];
    let calls: Vec<_> = rounds
        .iter()
        .zip(&mut buffers)
        .map(|(ranges, buffer)| {
            client.submit_read_ranges_from_snapshot(&snapshot, ranges, buffer, Freshness::Lease).unwrap()
        })
        .collect();
    // Every third is given up while it's under way, and they're waited for from the last to the first: those before hold up none behind.
    for (number, call) in calls.into_iter().enumerate().rev() {
        if number % 3 == 2 {
            drop(call);
        } else {
            call.wait().unwrap();
        }
    }
    let is_checked = |(number, _): &(usize, _)| number % 3 != 2;
    for (_, (ranges, buffer)) in rounds.iter().zip(&buffers).enumerate().filter(is_checked) {
        check(ranges, buffer);
    }
    // What was given up has left nothing behind.
    for (ranges, buffer) in rounds.iter().zip(&mut buffers) {
        client.read_ranges_from_snapshot(&snapshot, ranges, buffer, Freshness::Lease).unwrap();
        check(ranges, buffer);
    }
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn two_hundred_connections_are_served() {
    let server = TestServer::start(&[]);
    let first = server.client("rdma");
    store_tables(&first);
    let clients: Vec<Client> = (0..200).map(|_| server.client("rdma")).collect();
    server.reports_when(|reports| reports[0].transport.rdma_connections >= 200);
    for (number, client) in clients.iter().enumerate() {
        let of_client = number % TABLES;
        assert_eq!(client.get(key(of_client).as_bytes()).unwrap(), table(of_client), "{number}");
    }
    drop(clients);
    server.reports_when(|reports| reports[0].transport.rdma_connections <= 2);
    assert_eq!(first.get(key(3).as_bytes()).unwrap(), table(3));
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_tenant_reads_its_own_objects_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenants.toml");
    std::fs::write(
        &file,
        "[[tenant]]\nname = \"a\"\ntoken = \"sa\"\n[[tenant]]\nname = \"b\"\ntoken = \"sb\"\n",
    )
    .unwrap();
    let server = TestServer::start(&["--config", file.to_str().unwrap()]);
    let client = |tenant: &str| {
        Client::connect(&server.url(&format!("transport=rdma&tenant={tenant}&token=s{tenant}"))).unwrap()
    };
    let (a, b) = (client("a"), client("b"));
    a.put(b"key", &[0xaa; 5_000]).unwrap();
    b.put(b"key", &[0xbb; 5_000]).unwrap();
    assert_eq!(a.get(b"key").unwrap(), [0xaa; 5_000]);
    assert_eq!(b.get(b"key").unwrap(), [0xbb; 5_000]);
    assert_eq!(a.transport_for(b"key").unwrap(), "rdma");
    a.put(b"only a's", &[1; 5_000]).unwrap();
    assert_eq!(b.get(b"only a's"), Err(Error::NotFound { index: 0 }));
}

/// Runs a command of the guest's, as root.
pub fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}
