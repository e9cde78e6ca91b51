//! Devices that are taken away under a server and under a client, and come back. Soft-RoCE's driver waits until everyone has closed a device
//! that is to go, and tells nobody; so that the command returns at all shows that it was closed.

use crate::failures::{Process, Trouble, is_expected};
use crate::reads::run;
use crate::support::TestServer;
use lanner_client::{Client, Clock, Error, Freshness, PutOptions, Range, Registration};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const BYTES: usize = 100_000;

fn value(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|at| (at as u8).wrapping_mul(41).wrapping_add(seed) ^ (at >> 8) as u8).collect()
}

fn range() -> [Range; 1] {
    [Range { key: 0, source_offset: 0, length: BYTES as u64, destination_offset: 0 }]
}

/// Calls `client` in all ways until `is_over`; each call brings the right bytes or a typed error in time. How many brought bytes.
fn use_it(client: &Client, is_over: impl Fn() -> bool) -> u32 {
    let mut memory = vec![0; BYTES];
    let mut snapshot = None;
    let mut good = 0;
    while !is_over() {
        let began = Clock.now();
        let outcomes = [
            client.get(b"key").map(|read| assert!(read == value(1))),
            client.upsert(b"other", &value(2)),
            snapshot.take().map_or_else(
                || client.prepare_snapshot(&["key"]).map(|prepared| snapshot = Some(prepared)),
                |held| {
                    client
                        .read_ranges_from_snapshot(&held, &range(), &mut memory, Freshness::Lease)
                        .map(|()| assert!(memory == value(1)))
                },
            ),
        ];
        for outcome in outcomes {
            match outcome {
                Ok(()) => good += 1,
                Err(error) => assert!(is_expected(&error), "{error:?}"),
            }
        }
        assert!(Clock.now().since(began) < Duration::from_secs(10), "in time");
        std::thread::sleep(Duration::from_millis(20));
    }
    good
}

/// Uses the client until it's connected over `transport`, for at most so long.
fn use_until(client: &Client, transport: &str, longest: Duration) {
    let began = Clock.now();
    use_it(client, || {
        let now = client.transport_for(b"key");
        assert!(Clock.now().since(began) < longest, "{now:?} and not {transport}");
        now == Ok(transport)
    });
}

/// Takes the device `name` of `interface` away under a server and a client that are in use, and gives it back.
fn take_away_and_give_back(delete: &'static str, add: &'static [&'static str]) {
    let server = TestServer::start(&["--shm", "off"]);
    let client = Client::connect(&server.url("transport=auto&timeout=4s")).unwrap();
    client.put_with(b"key", &value(1), PutOptions::default()).unwrap();
    assert_eq!(client.transport_for(b"key").unwrap(), "rdma");
    let good = std::thread::scope(|scope| {
        let trouble = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            Trouble::begin(&[delete], add)
        });
        let good = use_it(&client, || trouble.is_finished());
        use_until(&client, "tcp", Duration::from_secs(10));
        assert_eq!(client.get(b"key").unwrap(), value(1));
        // What wants RDMA and nothing else is told.
        let only =
            Client::connect(&server.url("transport=rdma&timeout=4s")).and_then(|only| only.get(b"key"));
        assert!(matches!(only, Err(Error::RdmaUnreachable { .. })), "{only:?}");
        drop(trouble.join().unwrap());
        good
    });
    assert!(good > 0);
    use_until(&client, "rdma", Duration::from_secs(40));
    assert_eq!(client.get(b"key").unwrap(), value(1));
    let mut memory = value(3);
    let buffer = client.register(&mut memory).unwrap();
    buffer.upsert(b"key", 0..BYTES, PutOptions::default()).unwrap();
    assert_eq!(client.get(b"key").unwrap(), value(3));
    server.reports_when(|reports| reports[0].transport.rdma_values_read == 1);
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_server_whose_device_goes_serves_over_tcp_until_it_is_back() {
    take_away_and_give_back("rdma link delete rxe0", &["rdma link add rxe0 type rxe netdev eth0"]);
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_client_whose_device_goes_calls_over_tcp_until_it_is_back() {
    take_away_and_give_back("rdma link delete rxe1", &["rdma link add rxe1 type rxe netdev eth1"]);
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_device_that_says_that_it_has_failed_is_let_go_of_and_opened_again() {
    // No driver here reports IBV_EVENT_DEVICE_FATAL. So a library that is loaded before the C library's own turns the kernel's report of a port that
    // goes down into one of it, on its way to libibverbs.
    let library = std::env::current_exe().unwrap().with_file_name("device_fatal.so");
    assert!(library.exists(), "{}: scripts/rdma-vm/tests.sh builds it", library.display());
    let path = std::env::temp_dir().join("device_fatal.log");
    let log = std::fs::File::create(&path).unwrap();
    let server = Process::start_with("10.77.0.1:0", "fatal", &[("LD_PRELOAD", &library)], log.into());
    let client = Client::connect(&format!("lanner://{}?transport=auto&timeout=4s", server.address)).unwrap();
    client.put(b"key", &value(1)).unwrap();
    assert_eq!(client.transport_for(b"key").unwrap(), "rdma");
    let said = |text: &str| std::fs::read_to_string(&path).unwrap().contains(text);
    assert!(!said("the RDMA device has gone"));
    run("ip link set eth0 down");
    drop(Trouble::begin(
        &[],
        &[
            "ip link set eth0 up",
            "ip neigh replace 10.77.0.2 lladdr 02:77:00:00:00:02 dev eth0 nud permanent",
            "ip route replace 10.77.0.2 dev eth0 src 10.77.0.1 table 101",
        ],
    ));
    let began = Clock.now();
    use_it(&client, || {
        assert!(Clock.now().since(began) < Duration::from_secs(20), "the server hasn't noticed");
        said("the RDMA device has gone") && said("the RDMA device is back")
    });
    use_until(&client, "rdma", Duration::from_secs(40));
    assert_eq!(client.get(b"key").unwrap(), value(1));
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_connection_has_the_gid_of_the_address_that_it_came_to() {
    // A server that listens everywhere on a device with two addresses: a client that comes to the second one is answered from there, for the
    // network may lead nowhere else.
    run("ip addr add 10.77.0.9/32 dev eth0");
    let _restore = Trouble::begin(
        &[
            "ip route add 10.77.0.9 dev eth1 src 10.77.0.2 table 103",
            "ip rule add pref 9 to 10.77.0.9 iif lo lookup 103",
            "ip neigh replace 10.77.0.9 lladdr 02:77:00:00:00:01 dev eth1 nud permanent",
        ],
        &[
            "ip rule del pref 9",
            "ip route del 10.77.0.9 dev eth1 table 103",
            "ip addr del 10.77.0.9/32 dev eth0",
        ],
    );
    std::thread::sleep(Duration::from_millis(500));
    let server = TestServer::start(&["--listen", "0.0.0.0:0", "--rdma", "rxe0", "--shm", "off"]);
    let port = server.address().port();
    let put_and_get = |host: &str| {
        let client = Client::connect(&format!("lanner://{host}:{port}?transport=rdma&rdma=rxe1&timeout=4s"))?;
        client.upsert(b"key", &value(4))?;
        client.get(b"key")
    };
    assert_eq!(put_and_get("10.77.0.1"), Ok(value(4)));
    // RoCE's packets to the first address get lost from here on.
    let _lost = Trouble::begin(
        &[
            "tc qdisc add dev eth0 clsact",
            "tc filter add dev eth0 ingress protocol ip u32 match ip protocol 17 0xff match ip dst 10.77.0.1/32 action drop",
        ],
        &["tc qdisc del dev eth0 clsact"],
    );
    assert_eq!(put_and_get("10.77.0.9"), Ok(value(4)));
    assert!(put_and_get("10.77.0.1").is_err(), "nothing was lost");
}

/// Waits until `is_so`, for at most so long.
fn soon_is(what: &str, longest: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Clock.now();
    while !is_so() {
        assert!(Clock.now().since(began) < longest, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A device that is taken away under a registered buffer, which held it open for ever. `is_used`: calls go on through the buffer; else it lies
/// idle beside a client that calls.
fn take_away_under_a_registered_buffer(is_used: bool) {
    let server = TestServer::start(&["--shm", "off"]);
    let client = Client::connect(&server.url("transport=auto&timeout=4s")).unwrap();
    let mut memory = value(1);
    let mut buffer = client.register(&mut memory).unwrap();
    let mut unused = value(2);
    let unused = client.register(&mut unused).unwrap();
    let mut call = || {
        if is_used {
            buffer.fill(9);
            buffer.upsert(b"key", 0..BYTES, PutOptions::default())?;
            buffer.fill(0);
            buffer.get_into(b"key", 0..BYTES)?;
            assert!(buffer.iter().all(|byte| *byte == 9));
        } else {
            client.upsert(b"key", &value(5))?;
            assert_eq!(client.get(b"key")?, value(5));
        }
        Ok::<(), Error>(())
    };
    call().unwrap();
    assert_eq!(unused.registration(), Registration::WithDevice);
    // A device that comes back is another one, also the second time.
    for round in 0..if is_used { 2 } else { 1 } {
        std::thread::scope(|scope| {
            let gone = scope.spawn(|| run("rdma link delete rxe1"));
            soon_is("the device isn't let go of", Duration::from_secs(10), || {
                if let Err(error) = call() {
                    assert!(is_expected(&error), "{error:?}");
                }
                gone.is_finished()
            });
        });
        assert_eq!(unused.registration(), Registration::NotNeeded, "{round}");
        run("rdma link add rxe1 type rxe netdev eth1");
        soon_is("RDMA doesn't come back", Duration::from_secs(40), || {
            if let Err(error) = call() {
                assert!(is_expected(&error), "{error:?}");
            }
            client.transport_for(b"key") == Ok("rdma")
        });
    }
    // The report that there is may be older than the last call.
    let known = server.reports_when(|_| true)[0].at_ms;
    let before = server.reports_when(|reports| reports[0].at_ms > known)[0].transport.rdma_values_read;
    let after = before + 1;
    unused.upsert(b"unused", 0..BYTES, PutOptions::default()).unwrap();
    assert_eq!(unused.registration(), Registration::WithDevice);
    server.reports_when(|reports| reports[0].transport.rdma_values_read == after);
    assert_eq!(client.get(b"unused").unwrap(), value(2));
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_device_that_is_taken_away_is_not_held_by_a_registered_buffer_in_use() {
    take_away_under_a_registered_buffer(true);
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_device_that_is_taken_away_is_not_held_by_an_idle_registered_buffer() {
    take_away_under_a_registered_buffer(false);
}

/// Reads values of `client` to a registered buffer until `is_over`. How many calls brought bytes, all of them the right ones.
fn read_to_registered(client: &Client, seed: usize, is_over: impl Fn() -> bool) -> u64 {
    const LENGTH: usize = 64 << 10;
    let keys = ["0", "1", "2", "3"];
    let values: Vec<Vec<u8>> = (0..4).map(value).collect();
    let mut memory = vec![0; LENGTH];
    let mut buffer = client.register(&mut memory).unwrap();
    let mut snapshot = client.prepare_snapshot(&keys).unwrap();
    let (mut good, mut round) = (0, seed);
    while !is_over() {
        round += 1;
        // Neither bytes of the buffer's past nor of another list's may be taken for a value's.
        buffer.fill(0xab);
        let outcome = if round.is_multiple_of(3) {
            let key = round % keys.len();
            buffer.get_into(keys[key].as_bytes(), 0..LENGTH).map(|_| {
                assert!(buffer[..] == values[key][..LENGTH], "a get of {key}");
            })
        } else {
            let part = LENGTH / keys.len();
            let range = |place: usize| Range {
                key: ((round + place) % keys.len()) as u32,
                source_offset: (round * 8 % (LENGTH - part)) as u64,
                length: part as u64,
                destination_offset: (place * part) as u64,
            };
            let ranges: Vec<Range> = (0..keys.len()).map(range).collect();
            buffer.read_ranges_refreshing(&mut snapshot, &ranges, Freshness::Lease).map(|()| {
                for range in &ranges {
                    let (from, to) = (range.source_offset as usize, range.destination_offset as usize);
                    let is_right = buffer[to..to + part] == values[range.key as usize][from..from + part];
                    assert!(is_right, "{range:?}: {:x?}", &buffer[to..to + 16]);
                }
            })
        };
        match outcome {
            Ok(()) => good += 1,
            Err(error) => assert!(is_expected(&error), "{error:?}"),
        }
    }
    good
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_device_that_is_taken_away_under_reads_to_registered_memory_leaves_no_wrong_bytes() {
    // The first thread that saw the device go ended the registrations of all. A list that another one had posted straight to its buffer was then copied
    // over it from the lane's staging, and one that had been posted to the staging was taken for one that needs no copy.
    let server = TestServer::start(&["--shm", "off"]);
    let writer = Client::connect(&server.url("transport=tcp")).unwrap();
    for key in 0..4_u8 {
        writer.upsert(&[b'0' + key], &value(key)[..64 << 10]).unwrap();
    }
    for _ in 0..4 {
        // A new one doesn't wait before it tries RDMA.
        let client = Client::connect(&server.url("transport=auto&timeout=4s")).unwrap();
        let _back = Trouble::begin(&[], &["rdma link add rxe1 type rxe netdev eth1"]);
        assert!(read_until_the_device_has_gone(&client) > 0);
    }
}

/// Takes the client's device away under six threads that read to registered memory, and one that asks for its registration. How many reads brought
/// bytes, all of them the right ones.
fn read_until_the_device_has_gone(client: &Client) -> u64 {
    let (is_over, good) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let began = Clock.now();
    let over = move || is_over.load(Ordering::Relaxed) || Clock.now().since(began) > Duration::from_secs(30);
    std::thread::scope(|scope| {
        for seed in 0..6 {
            scope.spawn(move || good.fetch_add(read_to_registered(client, seed, over), Ordering::Relaxed));
        }
        // Whoever asks looks for devices that have gone, and the next call may register the buffer once more.
        scope.spawn(move || {
            let mut memory = vec![0; 4096];
            let buffer = client.register(&mut memory).unwrap();
            while !over() {
                for _ in 0..50 {
                    let _ = buffer.registration();
                    std::thread::sleep(Duration::from_micros(100));
                }
                // A lane that nobody calls over would hold the device open; whatever is called.
                let _ = client.exists(b"0");
            }
        });
        assert_eq!(client.transport_for(b"0"), Ok("rdma"));
        std::thread::sleep(Duration::from_millis(1_000));
        let gone = scope.spawn(|| run("rdma link delete rxe1"));
        soon_is("the device isn't let go of", Duration::from_secs(20), || {
            let outcome = client.exists(b"0");
            assert!(outcome.as_ref().map_or_else(is_expected, |is_there| *is_there), "{outcome:?}");
            gone.is_finished()
        });
        is_over.store(true, Ordering::Relaxed);
    });
    // Of a device that is going the kernel shows some of it to the end; that isn't a library without a provider for it.
    let failures = client.rdma_failures();
    assert!(!failures.is_empty() && !failures[0].reason.contains("provider"), "{failures:?}");
    good.load(Ordering::Relaxed)
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_client_whose_address_changes_goes_on_over_rdma_from_the_new_one() {
    // The new address gets the old one's place among the GIDs of the port. A client that remembered the old GID never got RDMA back.
    let server = TestServer::start(&["--shm", "off"]);
    let client = Client::connect(&server.url("transport=auto&timeout=4s")).unwrap();
    client.put_with(b"key", &value(1), PutOptions::default()).unwrap();
    assert_eq!(client.transport_for(b"key").unwrap(), "rdma");
    let renumber = |old: &str, new: &str| {
        run(&format!("ip addr del 10.77.0.{old}/24 dev eth1"));
        run(&format!("ip addr add 10.77.0.{new}/24 dev eth1 noprefixroute"));
        run(&format!("ip route replace 10.77.0.{new} dev eth0 src 10.77.0.1 table 101"));
        run(&format!("ip route replace 10.77.0.1 dev eth1 src 10.77.0.{new} table 102"));
        run(&format!("ip neigh replace 10.77.0.{new} lladdr 02:77:00:00:00:02 dev eth0 nud permanent"));
    };
    run("ip rule add pref 14 iif lo to 10.77.0.3 lookup 101");
    run("ip rule add pref 15 oif eth0 to 10.77.0.3 lookup 101");
    renumber("2", "3");
    use_until(&client, "tcp", Duration::from_secs(10));
    let back = || {
        use_until(&client, "rdma", Duration::from_secs(40));
        client.rdma_failures()
    };
    let failures = std::panic::catch_unwind(std::panic::AssertUnwindSafe(back));
    renumber("3", "2");
    run("ip rule del pref 14");
    run("ip rule del pref 15");
    let failures = failures.unwrap();
    assert!(!failures.is_empty());
}
