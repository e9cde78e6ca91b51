//! Memory that both sides' devices use directly: what a server reads out of a client's, and who has it back when something ends meanwhile.

use crate::failures::{Process, Trouble, VICTIM, is_expected, soon, until_rdma, victim};
use crate::support::TestServer;
use lanner_client::{Client, Clock, Error, Freshness, PutOptions, Range};
use std::time::Duration;

const BYTES: usize = 3 << 20;

/// A value that is told from every other one by each of its bytes' neighbourhood.
fn value(seed: u64) -> Vec<u8> {
    (0..BYTES as u64 / 8)
        .flat_map(|at| (at ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_long_value_is_read_by_the_server_and_a_short_one_is_sent() {
    let server = TestServer::start(&[]);
    let client = server.client("rdma");
    let mut memory = value(1);
    let buffer = client.register(&mut memory).unwrap();
    for (number, (length, is_read)) in
        [(100, 0), (8 << 10, 0), (9 << 10, 1), (BYTES, 2)].into_iter().enumerate()
    {
        let key = format!("value {number}");
        buffer.put(key.as_bytes(), 0..length, PutOptions::default()).unwrap();
        server.reports_when(|reports| reports[0].transport.rdma_values_read == is_read);
        assert_eq!(client.get(key.as_bytes()).unwrap(), buffer[..length]);
    }
    // One that isn't registered goes in messages.
    client.put(b"ordinary", &value(2)).unwrap();
    assert_eq!(client.get(b"ordinary").unwrap(), value(2));
    server.reports_when(|reports| reports[0].stats.puts == 5 && reports[0].transport.rdma_values_read == 2);
}

/// Makes what the client's device sends crawl: a value takes seconds.
const SLOW: [&str; 1] = ["tc qdisc add dev eth1 root netem rate 16mbit limit 10000"];
const FAST: &[&str] = &["tc qdisc del dev eth1 root"];
/// The server's device hears nothing any more.
const DEAF: [&str; 2] = [
    "tc qdisc add dev eth0 clsact",
    "tc filter add dev eth0 ingress protocol ip u32 match ip protocol 17 0xff action drop",
];
const HEARING: &[&str] = &["tc qdisc del dev eth0 clsact"];

/// Puts a value that doesn't get through, whatever `interfere` does to it, and overwrites the buffer at once. What the key holds then, if
/// anything, is what was put: the server either had all of it or forgets it, memory and all.
fn put_in_vain(timeout: &str, interfere: impl Fn() -> Option<Trouble> + Sync) {
    let server = TestServer::start(&["--shm", "off"]);
    let free_bytes = server.reports_when(|reports| !reports.is_empty())[0].stats.free_bytes;
    let client = Client::connect(&server.url(&format!("transport=auto&timeout={timeout}"))).unwrap();
    let mut memory = value(0);
    let mut failures = 0_u64;
    for round in 1..=3_u64 {
        until_rdma(&client);
        memory.copy_from_slice(&value(round));
        let mut buffer = client.register(&mut memory).unwrap();
        let key = format!("key {round}");
        let began = Clock.now();
        let slow = Trouble::begin(&SLOW, FAST);
        let outcome = std::thread::scope(|scope| {
            let trouble = scope.spawn(&interfere);
            let outcome = buffer.put(key.as_bytes(), 0..BYTES, PutOptions::default());
            // The buffer is the caller's: what it writes now must never be seen under the key.
            buffer.fill(0xdb);
            drop(trouble.join().unwrap());
            outcome
        });
        // A device that still could would read on now, of memory that is registered all the while.
        drop(slow);
        let taken = Clock.now().since(began);
        assert!(taken < Duration::from_secs(10), "{taken:?}");
        server.reports_when(|reports| reports[0].stats.unfinished_puts == 0);
        let stored = soon(|| match client.get(key.as_bytes()) {
            Err(Error::NotFound { .. }) => Ok(None),
            other => other.map(Some),
        });
        match (&outcome, stored) {
            (_, Some(stored)) => assert!(stored == value(round), "half a value, or what was never put"),
            (Err(error), None) => {
                assert!(is_expected(error), "{error:?}");
                failures += 1;
                // Whatever ended the call, the lane's next tries wait.
                let counted = client.rdma_failures();
                assert!(counted.first().is_some_and(|counted| counted.failures >= failures), "{counted:?}");
            }
            (Ok(()), None) => panic!("success was said of what isn't there"),
        }
        drop(buffer);
        soon(|| client.remove(key.as_bytes()));
    }
    assert!(failures > 0, "every value got through");
    // Removed values wait for their readers' leases.
    let began = Clock.now();
    while server.reports_when(|_| true)[0].stats.free_bytes != free_bytes {
        assert!(
            Clock.now().since(began) < Duration::from_secs(20),
            "memory of a put that was given up is lost"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_put_that_times_out_while_its_value_is_read_gives_the_buffer_back_unread() {
    // Nothing is wrong but the time: the server's device is in the middle of the value, and goes on with whoever lets it.
    put_in_vain("700ms", || None);
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_link_that_drops_while_a_value_is_read_leaves_nothing_of_it() {
    put_in_vain("4s", || {
        std::thread::sleep(Duration::from_millis(300));
        Some(Trouble::begin(&DEAF, HEARING))
    });
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_read_that_times_out_writes_nothing_more_to_the_buffer() {
    // The device writes to the caller's memory itself. What the server's device still sends, at a crawl, when the call gives up must not come to a buffer that
    // is the caller's again, neither then nor when the network is well.
    let server = TestServer::start(&["--shm", "off"]);
    let writer = server.client("rdma");
    writer.put(b"key", &value(1)).unwrap();
    let client = Client::connect(&server.url("transport=auto&timeout=700ms")).unwrap();
    let snapshot = soon(|| client.prepare_snapshot(&["key"]));
    let ranges = [Range { key: 0, source_offset: 0, length: BYTES as u64, destination_offset: 0 }];
    let mut memory = vec![0; BYTES];
    let mut buffer = client.register(&mut memory).unwrap();
    buffer.read_ranges_from_snapshot(&snapshot, &ranges, Freshness::Lease).unwrap();
    assert!(buffer[..] == value(1));
    let mut failures = 0;
    for round in 0..4_u8 {
        until_rdma(&client);
        let snapshot = soon(|| client.prepare_snapshot(&["key"]));
        let slow = Trouble::begin(
            &["tc qdisc add dev eth0 root netem rate 16mbit limit 10000"],
            &["tc qdisc del dev eth0 root"],
        );
        let outcome = match round % 2 {
            0 => buffer.read_ranges_from_snapshot(&snapshot, &ranges, Freshness::Lease),
            _ => buffer.get_into(b"key", 0..BYTES).map(drop),
        };
        buffer.fill(0xdb);
        drop(slow);
        match outcome {
            Ok(()) => {}
            Err(error) => {
                assert!(is_expected(&error), "{error:?}");
                failures += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(1_500));
        assert!(buffer.iter().all(|byte| *byte == 0xdb), "a device wrote to memory that was given back");
    }
    assert!(failures > 0, "every read got through");
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_client_that_is_killed_while_its_value_is_read_leaves_whole_values_only() {
    if let Ok(url) = std::env::var(VICTIM) {
        let client = Client::connect(&url).unwrap();
        let put_for_ever = || {
            let mut memory = value(5);
            let buffer = client.register(&mut memory).unwrap();
            loop {
                let _ = buffer.upsert(b"key", 0..BYTES / 8, PutOptions::default());
            }
        };
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(put_for_ever)));
            println!("putting");
        });
    }
    let server = TestServer::start(&[]);
    let client = server.client("rdma");
    for round in 0..3_u64 {
        let test = "registered::a_client_that_is_killed_while_its_value_is_read_leaves_whole_values_only";
        let mut victim = victim(test, &server, "putting");
        // All of its threads are at it.
        let read = |count| server.reports_when(|reports| reports[0].transport.rdma_values_read >= count);
        let before = read(0)[0].transport.rdma_values_read;
        read(before + 12);
        std::thread::sleep(Duration::from_millis(37 * round));
        victim.kill().unwrap();
        victim.wait().unwrap();
        server.reports_when(|reports| {
            reports[0].transport.rdma_connections == 1 && reports[0].stats.unfinished_puts == 0
        });
        match client.get(b"key") {
            Ok(stored) => assert!(stored == value(5)[..BYTES / 8], "half a value"),
            Err(error) => assert_eq!(error, Error::NotFound { index: 0 }),
        }
    }
    // The end of a client is no failure of a device's, though the READs that were under way fail by it.
    let known = server.reports_when(|_| true)[0].at_ms;
    let failures = server.reports_when(|reports| reports[0].at_ms > known)[0].transport.rdma_failures;
    assert_eq!(failures, 0);
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_server_that_is_killed_while_it_reads_a_value_is_an_error_in_time() {
    let mut server = Process::start("10.77.0.1:0", "first");
    let address = server.address.clone();
    let client = Client::connect(&format!("lanner://{address}?transport=rdma&timeout=4s")).unwrap();
    let mut memory = value(3);
    let mut buffer = client.register(&mut memory).unwrap();
    buffer.put(b"before", 0..BYTES, PutOptions::default()).unwrap();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400));
        server.kill();
        server
    });
    let (began, mut puts) = (Clock.now(), 0);
    let error = loop {
        match buffer.upsert(b"key", 0..BYTES, PutOptions::default()) {
            Ok(()) => puts += 1,
            Err(error) => break error,
        }
        assert!(Clock.now().since(began) < Duration::from_secs(20));
    };
    assert!(puts > 0 && is_expected(&error), "{puts} puts, then {error:?}");
    drop(killer.join().unwrap());
    let _again = Process::start(&address, "again");
    buffer.copy_from_slice(&value(4));
    soon(|| buffer.upsert(b"key", 0..BYTES, PutOptions::default()));
    let mut read = vec![0; BYTES];
    let mut read = client.register(&mut read).unwrap();
    soon(|| read.get_into(b"key", 0..BYTES));
    assert!(read[..] == value(4), "what was put last");
}
