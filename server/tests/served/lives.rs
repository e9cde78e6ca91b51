//! Clients and servers that end and begin again: what is lost is said, what was read is right, nobody has to be restarted.

use crate::support::{TestServer, soon_within, transports};
use lanner_client::{Client, Clock, Error, Freshness, PutOptions, Range};
use lanner_shared::wire::Opcode;
use std::time::Duration;

fn soon<T>(attempt: impl FnMut() -> Result<T, Error>) -> T {
    soon_within(Duration::from_secs(5), attempt)
}

#[test]
fn a_client_outlives_its_server() {
    // Scenario 13: errors while the server is away, each within bounded time; then everything works by itself. And nothing
    // of the server's earlier life is ever read.
    for transport in transports() {
        let server = TestServer::start(&[]);
        let address = server.address().to_string();
        let client = server.client(transport);
        client.put(b"key", &[1; 5000]).unwrap();
        let snapshot = client.prepare_snapshot(&["key"]).unwrap();
        let first_life = client.servers()[0].boot_id;
        drop(server);
        for _ in 0..20 {
            let began = Clock.now();
            let error = client.get(b"key").unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. } | Error::ConnectionLost { .. }), "{error:?}");
            assert!(Clock.now().since(began) < Duration::from_secs(3));
        }
        let again = TestServer::start(&["--listen", &address]);
        assert!(!soon(|| client.exists(b"key")), "{transport}");
        let range = [Range { key: 0, source_offset: 0, length: 5000, destination_offset: 0 }];
        let old = client.read_ranges_from_snapshot(&snapshot, &range, &mut [0; 5000], Freshness::Lease);
        assert_eq!(old, Err(Error::LeaseExpired { index: 0 }), "{transport}");
        client.put(b"key", &[2; 5000]).unwrap();
        assert_eq!(client.get(b"key").unwrap(), [2; 5000]);
        assert_eq!(client.transport_for(b"key").unwrap(), transport);
        assert_ne!(client.servers()[0].boot_id, first_life);
        drop(again);
    }
}

#[test]
fn a_quick_restart_between_two_calls_goes_unnoticed_by_neither() {
    for transport in transports() {
        let server = TestServer::start(&["--shards", "1"]);
        let address = server.address().to_string();
        let client = server.client(transport);
        client.put(b"key", b"first life").unwrap();
        drop(server);
        // With another number of shards: where keys belong has changed too.
        let again = TestServer::start(&["--listen", &address, "--shards", "2"]);
        soon(|| match client.get(b"key") {
            Err(Error::NotFound { .. }) => Ok(()),
            Ok(_) => panic!("bytes of the earlier life"),
            Err(other) => Err(other),
        });
        for i in 0..20 {
            let key = format!("key {i}");
            soon(|| client.upsert(key.as_bytes(), key.as_bytes()));
            assert_eq!(soon(|| client.get(key.as_bytes())), key.as_bytes());
        }
        drop(again);
    }
}

/// The first change after a restart went to the earlier life, and nobody could say what had become of it. Shows that it takes place, whatever was
/// asked last.
#[test]
fn the_first_change_after_a_restart_takes_place() {
    for transport in transports() {
        let mut server = TestServer::start(&[]);
        let address = server.address().to_string();
        let client = server.client(transport);
        for round in 0..4_u8 {
            client.upsert(b"key", &[round; 5000]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            drop(server);
            server = TestServer::start(&["--listen", &address]);
            match round {
                0 => client.put(b"key", b"first").unwrap(),
                1 => assert!(!client.remove(b"key").unwrap()),
                2 => client.put(b"key", &[9; 1 << 20]).unwrap(),
                _ => assert_eq!(
                    client.put_batch(&[(b"key", b"first")], PutOptions::default()),
                    Ok(vec![Ok(())])
                ),
            }
        }
    }
}

#[test]
fn a_restart_with_another_number_of_shards_is_nobody_s_error() {
    // A call that had been routed when the connection ended went to a shard that its keys don't belong to any more, and its caller was told so.
    let keys: Vec<String> = (0..40).map(|i| format!("key {i}")).collect();
    let items: Vec<(&str, &str)> = keys.iter().map(|key| (&**key, &**key)).collect();
    let is_moved = |error: &Error| matches!(error, Error::WrongShard { .. });
    for transport in transports() {
        let mut server = TestServer::start(&["--shards", "1"]);
        let address = server.address().to_string();
        let client = server.client(transport);
        let again = |server: TestServer, shards: &str| {
            drop(server);
            TestServer::start(&["--listen", &address, "--shards", shards])
        };
        for round in 0..6 {
            soon(|| client.exists_batch(&keys));
            server = again(server, "2");
            let (mut buffer, ranges) = ([0; 40], keys.iter().enumerate());
            let ranges: Vec<Range> = ranges
                .map(|(at, _)| Range {
                    key: at as u32,
                    source_offset: 0,
                    length: 1,
                    destination_offset: at as u64,
                })
                .collect();
            // The first call after the restart is another one in each round.
            let asked: Result<(), Error> = match round {
                0 => client
                    .get_batch(&keys)
                    .map(|got| assert!(got.iter().all(|one| !one.as_ref().is_err_and(is_moved)))),
                1 => client.exists_batch(&keys).map(|found| assert_eq!(found, [false; 40])),
                2 => client.remove_batch(&keys).map(drop),
                3 => client.read_ranges(&keys, &ranges, &mut buffer),
                4 => client.match_chain(&keys).map(|found| assert_eq!(found.len(), 0)),
                _ => client.query_batch(&keys).map(drop),
            };
            assert!(!asked.as_ref().is_err_and(is_moved), "{transport} {round}: {asked:?}");
            server = again(server, "1");
            soon(|| client.exists_batch(&keys));
            server = again(server, "2");
            for stored in client.upsert_batch(&items, PutOptions::default()).unwrap() {
                assert!(!stored.as_ref().is_err_and(is_moved), "{transport} {round}: {stored:?}");
            }
            soon(|| {
                client
                    .upsert_batch(&items, PutOptions::default())?
                    .into_iter()
                    .collect::<Result<Vec<()>, _>>()
            });
            for (key, value) in &items {
                assert_eq!(client.get(key.as_bytes()).unwrap(), value.as_bytes(), "{transport} {round}");
            }
            server = again(server, "1");
        }
    }
}

#[test]
fn a_writer_that_dies_half_way_leaves_nothing_behind() {
    // Scenario 6: a value of 10 MiB, of which 4 arrive.
    let server = TestServer::start(&[]);
    let client = server.client("tcp");
    let mut dying = crate::by_hand::introduced(&server);
    crate::by_hand::begin_put(&mut dying, b"key", 10 << 20, &vec![1; 4 << 20]);
    server.reports_when(|reports| reports[0].stats.unfinished_puts == 1);
    // Meanwhile the key is free for others.
    assert!(!client.exists(b"key").unwrap());
    client.put(b"key", b"another writer's").unwrap();
    let before = server.reports_when(|_| true)[0].stats.free_bytes;
    drop(dying);
    let reports = server.reports_when(|reports| reports[0].stats.unfinished_puts == 0);
    // All but what the other writer's value took since.
    assert!(reports[0].stats.free_bytes > before + (10 << 20) - 4096, "the memory came back");
    assert_eq!(client.get(b"key").unwrap(), b"another writer's");
}

#[test]
fn threads_that_put_the_same_keys_get_an_answer_for_each() {
    // Scenario 7.
    let server = TestServer::start(&["--shards", "2"]);
    for transport in transports() {
        let client = server.client(transport);
        let keys: Vec<String> = (0..500).map(|i| format!("{transport} {i}")).collect();
        let stored: usize = std::thread::scope(|scope| {
            let thread = |number: u8| {
                let (client, keys) = (&client, &keys);
                scope.spawn(move || {
                    let there = client.exists_batch(keys).unwrap();
                    let missing: Vec<(&String, [u8; 100])> = keys
                        .iter()
                        .zip(there)
                        .filter(|(_, there)| !there)
                        .map(|(key, _)| (key, [number; 100]))
                        .collect();
                    let outcomes = client.put_batch(&missing, PutOptions::default()).unwrap();
                    assert!(
                        outcomes
                            .iter()
                            .all(|outcome| matches!(outcome, Ok(()) | Err(Error::AlreadyExists { .. })))
                    );
                    outcomes.iter().filter(|outcome| outcome.is_ok()).count()
                })
            };
            let threads: Vec<_> = (0..4).map(thread).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(stored, 500, "each key was stored exactly once");
        assert!(
            client.get_batch(&keys).unwrap().iter().all(|value| value
                .as_ref()
                .unwrap()
                .iter()
                .all(|b| *b == value.as_ref().unwrap()[0]))
        );
    }
}

#[test]
fn connections_are_few_and_stay() {
    // Scenario 21: many small transfers over as many connections as there are threads and shards.
    let server = TestServer::start(&["--shards", "2"]);
    let client = server.client("tcp");
    for i in 0..5_000_u32 {
        let key = (i % 100).to_le_bytes();
        client.upsert(&key, &[7; 50]).unwrap();
        client.get(&key).unwrap();
    }
    let reports =
        server.reports_when(|reports| reports.iter().all(|report| report.stats.hits(Opcode::Get) > 1_000));
    let opened: u64 = reports.iter().map(|report| report.transport.connections_opened).sum();
    assert!(opened <= 4, "{opened} connections: {reports:#?}");
}

#[test]
fn a_client_that_ends_gives_its_connections_back() {
    let server = TestServer::start(&[]);
    for transport in transports() {
        for _ in 0..3 {
            let client: Client = server.client(transport);
            let in_thread = client.clone();
            std::thread::spawn(move || in_thread.exists(b"key").unwrap()).join().unwrap();
        }
    }
    // The last client's lane of this thread lives until the thread opens another client's or ends.
    server.reports_when(|reports| {
        let transport = &reports[0].transport;
        transport.tcp_connections + transport.shm_lanes <= 2 && transport.connections_opened >= 12
    });
}

#[test]
fn a_path_that_swallows_packets_costs_one_call() {
    // Scenario 23: a proxy forwards for a while, then drops everything silently, then a new connection works.
    let server = TestServer::start(&[]);
    let proxy = crate::proxy::Proxy::start(server.address());
    let url = format!("lanner://{}?transport=tcp&timeout=300ms", proxy.address());
    let client = Client::connect(&url).unwrap();
    client.put(b"key", b"value").unwrap();
    proxy.swallow_open_connections();
    let began = Clock.now();
    let error = client.get(b"key").unwrap_err();
    assert!(matches!(error, Error::Timeout { millis: 300, .. }), "{error:?}");
    assert!(Clock.now().since(began) < Duration::from_secs(2));
    assert_eq!(client.get(b"key").unwrap(), b"value", "the next call is normal");
}

#[test]
fn a_frozen_server_costs_no_more_than_the_time_out() {
    // The system takes the connection for a process that is stopped, and nobody says anything over it.
    let frozen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("lanner://{}?timeout=300ms", frozen.local_addr().unwrap());
    let began = Clock.now();
    let refused = Client::connect(&url).and_then(|client| client.get(b"key")).unwrap_err();
    let taken = Clock.now().since(began);
    assert!(taken < Duration::from_millis(1500), "{taken:?}: {refused}");
}

#[test]
fn a_peer_that_answers_a_byte_at_a_time_costs_no_more_than_the_time_out() {
    let peer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("lanner://{}?transport=tcp&timeout=300ms", peer.local_addr().unwrap());
    let dripping = std::thread::spawn(move || {
        let (mut stream, _) = peer.accept().unwrap();
        while std::io::Write::write_all(&mut stream, &[0]).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let began = Clock.now();
    let refused = Client::connect(&url).and_then(|client| client.get(b"key")).unwrap_err();
    let taken = Clock.now().since(began);
    assert!(taken < Duration::from_millis(1500), "{taken:?}: {refused}");
    dripping.join().unwrap();
}

#[test]
fn keys_spread_over_two_servers_and_one_of_them_may_end() {
    for transport in transports() {
        let servers = [TestServer::start(&["--shards", "2"]), TestServer::start(&[])];
        let addresses = servers.each_ref().map(|server| server.address().to_string());
        let url = |addresses: [&String; 2]| {
            format!("lanner://{},{}?transport={transport}", addresses[0], addresses[1])
        };
        let client = Client::connect(&url([&addresses[0], &addresses[1]])).unwrap();
        let keys: Vec<String> = (0..300).map(|i| format!("spread {i}")).collect();
        let items: Vec<(&String, &[u8])> = keys.iter().map(|key| (key, key.as_bytes())).collect();
        assert!(client.put_batch(&items, PutOptions::default()).unwrap().iter().all(Result::is_ok));
        // Another client, told of them in another order, looks in the same places.
        let other = Client::connect(&url([&addresses[1], &addresses[0]])).unwrap();
        for (key, value) in keys.iter().zip(other.get_batch(&keys).unwrap()) {
            assert_eq!(value.unwrap(), key.as_bytes());
        }
        let [staying, leaving] = servers;
        let counts = staying.reports_when(|reports| reports.iter().all(|report| report.stats.objects > 20));
        let staying_count: u64 = counts.iter().map(|report| report.stats.objects).sum();
        assert!((60..240).contains(&staying_count), "{staying_count} of 300");
        drop(leaving);
        let readable = keys.iter().filter(|key| match client.get(key.as_bytes()) {
            Ok(value) => value == key.as_bytes(),
            Err(Error::Unreachable { .. } | Error::ConnectionLost { .. }) => false,
            Err(other) => panic!("{other}"),
        });
        assert_eq!(readable.count() as u64, staying_count, "{transport}");
    }
}

/// A client that came while all lanes of a shard were taken stayed with TCP for good. Shows that it gets one once there are.
#[test]
fn a_client_that_found_no_lane_gets_one_later() {
    if !transports().contains(&"shm") {
        return;
    }
    let server = TestServer::start(&[]);
    let client = Client::connect(&server.url("")).unwrap();
    client.put(b"key", b"value").unwrap();
    // With that of this thread these are all.
    let (taken, given_back) = (std::sync::Barrier::new(64), std::sync::Barrier::new(64));
    let other = Client::connect(&server.url("")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..63 {
            scope.spawn(|| {
                other.get(b"key").unwrap();
                taken.wait();
                given_back.wait();
            });
        }
        taken.wait();
        let late = Client::connect(&server.url("")).unwrap();
        assert_eq!(late.get(b"key").unwrap(), b"value");
        assert_eq!(late.transport_for(b"key").unwrap(), "tcp");
        given_back.wait();
        let name = || match (late.get(b"key"), late.transport_for(b"key")?) {
            (Ok(_), "shm") => Ok(()),
            _ => Err(Error::NotFound { index: 0 }),
        };
        soon_within(Duration::from_secs(10), name);
    });
}

#[test]
fn a_connection_that_is_made_later_has_a_time_of_its_own() {
    // The time of what connects within a call counts from when the first of it did. Outside calls it counted from whatever this thread had connected
    // last, so that a client that only asked for its transport had no time left for another connection, ever.
    let server = TestServer::start(&["--shards", "2"]);
    let client = Client::connect(&server.url("transport=tcp&timeout=300ms")).unwrap();
    assert_eq!(client.transport_for(b"key"), Ok("tcp"));
    std::thread::sleep(Duration::from_millis(400));
    for number in 0..20 {
        assert_eq!(client.transport_for(format!("key {number}").as_bytes()), Ok("tcp"), "{number}");
    }
}

/// With one of two servers gone every batch failed as a whole, and so did the question how much of a chain is there: an engine lost the cache
/// of both. Shows that what the other one has is still had, in batches and in chains, and that a chain is an error only if nobody answers.
#[test]
fn one_dead_server_takes_only_its_own_keys() {
    for transport in transports() {
        let servers = [TestServer::start(&[]), TestServer::start(&[])];
        let [one, other] = [servers[0].address(), servers[1].address()];
        let client = Client::connect(&format!("lanner://{one},{other}?transport={transport}")).unwrap();
        let keys: Vec<String> = (0..64).map(|i| format!("spread {i}")).collect();
        let chain: Vec<Vec<u8>> = (0..320_u32).map(|i| i.to_le_bytes().to_vec()).collect();
        for key in &keys {
            client.put(key.as_bytes(), key.as_bytes()).unwrap();
        }
        let stored = client.put_chain(&chain, 0, &chain, PutOptions::default()).unwrap();
        assert!(stored.iter().all(Result::is_ok));
        assert_eq!(client.match_chain(&chain).unwrap().len(), 320, "{transport}");
        let [one, other] = servers;
        drop(other);
        let values = client.get_batch(&keys).unwrap();
        let is_right = |(key, value): (&String, &Result<Vec<u8>, Error>)| match value {
            Ok(value) => *value == key.as_bytes(),
            Err(error) => error.is_about_the_way(),
        };
        assert!(keys.iter().zip(&values).all(is_right), "{transport}: {values:?}");
        let found = values.iter().filter(|value| value.is_ok()).count();
        assert!((10..=54).contains(&found), "{transport}: {found} of 64");
        let leading = client.match_chain(&chain).unwrap();
        assert!(leading.len() < 320 && leading.len().is_multiple_of(32), "{transport}: {}", leading.len());
        let length = |block| leading.value_bytes(block).unwrap_or(0);
        assert!((0..leading.len()).all(|block| length(block) == 4));
        drop(one);
        let nobody = soon(|| match client.match_chain(&chain) {
            Ok(_) => Err(Error::NotFound { index: 0 }),
            Err(error) => Ok(error),
        });
        assert!(nobody.is_about_the_way(), "{transport}: {nobody}");
    }
}
