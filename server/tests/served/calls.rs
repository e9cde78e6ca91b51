//! Each call of the client, over each transport, with one and with two shards.

use crate::support::{TestServer, transports};
use lanner_client::{Client, ClientConfig, Error, Freshness, Pending, PutOptions, Range};
use lanner_shared::error::Bound;
use lanner_shared::time::Clock;
use lanner_shared::wire::MAX_BATCH;
use std::task::Poll;
use std::time::Duration;

/// Runs `test` over each transport, against one shard and against two.
fn everywhere(test: impl Fn(&Client)) {
    everywhere_with("64MiB", test);
}

/// [`everywhere`], with so much memory.
fn everywhere_with(memory: &str, test: impl Fn(&Client)) {
    for shards in ["1", "2"] {
        let server = TestServer::start(&["--shards", shards, "--memory", memory]);
        for transport in transports() {
            test(&server.client(transport));
        }
    }
}

fn value(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn values_of_all_sizes_come_back() {
    // Sizes around each boundary: a line, an inline payload, a queued payload, a staging buffer, a socket buffer.
    everywhere(|client| {
        for (seed, length) in [0, 1, 55, 56, 57, 1023, 1024, 1025, 32_768, 32_769, 262_144, 262_145, 3 << 20]
            .into_iter()
            .enumerate()
        {
            let key = format!("size {length}");
            client.upsert(key.as_bytes(), &value(seed as u8, length)).unwrap();
            assert_eq!(client.get(key.as_bytes()).unwrap(), value(seed as u8, length), "{length}");
            assert_eq!(client.size(key.as_bytes()), Ok(length as u64));
            assert!(client.remove(key.as_bytes()).unwrap());
        }
    });
}

#[test]
fn an_empty_value_is_not_a_missing_one() {
    everywhere(|client| {
        client.upsert(b"empty", b"").unwrap();
        assert_eq!(client.get(b"empty"), Ok(vec![]));
        assert_eq!(client.get(b"missing"), Err(Error::NotFound { index: 0 }));
        let both = client.get_batch(&[b"missing".as_slice(), b"empty"]).unwrap();
        assert_eq!(both, [Err(Error::NotFound { index: 0 }), Ok(vec![])]);
        assert_eq!(client.exists_batch(&[b"missing".as_slice(), b"empty"]).unwrap(), [false, true]);
    });
}

/// A reply that comes while another exchange of the call is asked about tells of itself only once. Shows that a call of several frames to
/// one shard, with a thread that sleeps at once, never sleeps past one: long frames, and short ones whose answers come several at a time.
/// Who does sleeps until the time-out, so that's what tells it from a machine that is busy: where seven others want each processor a round
/// was seen to take 6 s, ready to run and not let.
#[test]
fn a_call_that_sleeps_misses_no_answer() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let server = TestServer::start(&[]);
    for transport in transports() {
        let mut config: ClientConfig = server.url(&format!("transport={transport}")).parse().unwrap();
        (config.spin, config.timeout) = (Duration::ZERO, TIMEOUT);
        let client = Client::with_config(config).unwrap();
        client.upsert(b"key", b"value").unwrap();
        let keys = vec![b"key"; 4 * MAX_BATCH];
        let items: Vec<([u8; 1], &[u8])> = (0..16).map(|n| ([n], b"value".as_slice())).collect();
        let timed = |what: &str, rounds: u32, call: &dyn Fn()| {
            for round in 0..rounds {
                let began = Clock.now();
                call();
                let taken = Clock.now().since(began);
                // Awake at the end of its time, a call finds its answer after all.
                assert!(taken < TIMEOUT / 2, "{what} over {transport}, round {round}: {taken:?}");
            }
        };
        // Over RDMA, which there is only in the guest, a round of long frames takes a second.
        let (long, short) = if transport == "rdma" { (3, 100) } else { (20, 5_000) };
        timed("long frames", long, &|| {
            assert!(client.exists_batch(&keys).unwrap().into_iter().all(|is_there| is_there));
        });
        timed("short frames", short, &|| {
            let outcomes = client.upsert_batch(&items, PutOptions::default()).unwrap();
            assert!(outcomes.iter().all(Result::is_ok));
        });
    }
}

/// A put is a frame of its own, and a connection takes 4,096 requests at a time. Shows that a batch of more is no error.
#[test]
fn a_batch_of_puts_may_be_longer_than_a_connection_takes() {
    everywhere(|client| {
        let items: Vec<([u8; 4], [u8; 4])> =
            (0..5_000_u32).map(|n| (n.to_le_bytes(), n.to_be_bytes())).collect();
        assert!(client.upsert_batch(&items, PutOptions::default()).unwrap().iter().all(Result::is_ok));
        let keys: Vec<[u8; 4]> = items.iter().map(|item| item.0).collect();
        let values = client.get_batch(&keys).unwrap();
        assert!(values.iter().zip(&items).all(|(value, item)| value.as_deref() == Ok(&item.1)));
    });
}

#[test]
fn a_batch_keeps_its_positions() {
    everywhere(|client| {
        let keys: Vec<String> = (0..10).map(|i| format!("k{i}")).collect();
        let items: Vec<(&String, Vec<u8>)> =
            keys.iter().enumerate().map(|(i, key)| (key, value(i as u8, 100 + i))).collect();
        client
            .upsert_batch(&items, PutOptions::default())
            .unwrap()
            .into_iter()
            .for_each(|outcome| outcome.unwrap());
        assert!(client.remove(b"k4").unwrap());
        // k3 stands twice.
        let asked: Vec<&str> = keys.iter().map(String::as_str).chain(["k3"]).collect();
        let got = client.get_batch(&asked).unwrap();
        for (at, outcome) in got.iter().enumerate() {
            let number = if at == 10 { 3 } else { at };
            match number {
                4 => assert_eq!(outcome, &Err(Error::NotFound { index: 4 })),
                _ => assert_eq!(outcome.as_ref().unwrap(), &items[number].1),
            }
        }
    });
}

#[test]
fn put_and_upsert_say_what_they_found() {
    everywhere(|client| {
        client.remove(b"once").unwrap();
        client.put(b"once", b"first").unwrap();
        assert_eq!(client.put(b"once", b"second"), Err(Error::AlreadyExists { index: 0 }));
        // Refused with a payload that takes long to send, the connection goes on.
        assert_eq!(client.put(b"once", &value(1, 2 << 20)), Err(Error::AlreadyExists { index: 0 }));
        assert_eq!(client.get(b"once").unwrap(), b"first");
        client.upsert(b"once", b"third").unwrap();
        assert_eq!(client.get(b"once").unwrap(), b"third");
        assert!(client.remove(b"once").unwrap() && !client.remove(b"once").unwrap());
        assert!(!client.exists(b"once").unwrap());
    });
}

#[test]
fn a_buffer_that_is_too_small_is_said_to_be() {
    everywhere(|client| {
        client.upsert(b"large", &value(2, 5000)).unwrap();
        client.upsert(b"small", &value(3, 50)).unwrap();
        let (mut little, mut enough) = ([0; 100], [0; 6000]);
        let too_small = Error::BufferTooSmall { index: 0, needed: 5000, given: 100 };
        assert_eq!(client.get_into(b"large", &mut little), Err(too_small.clone()));
        assert_eq!(client.get_into(b"large", &mut enough), Ok(5000));
        assert_eq!(enough[..5000], value(2, 5000));
        let mut other = [0; 100];
        let outcomes = client
            .get_into_batch(&["large", "large", "small"], &mut [&mut little, &mut enough, &mut other])
            .unwrap();
        assert_eq!(outcomes, [Err(too_small), Ok(5000), Ok(50)]);
        assert_eq!(other[..50], value(3, 50));
    });
}

#[test]
fn ranges_are_read_through_a_snapshot_and_without() {
    everywhere(|client| {
        let (one, two) = (value(4, 1000), value(5, 3000));
        client.upsert(b"one", &one).unwrap();
        client.upsert(b"two", &two).unwrap();
        let keys = ["one", "two"];
        let range = |key, source_offset, length, destination_offset| Range {
            key,
            source_offset,
            length,
            destination_offset,
        };
        let ranges =
            [range(1, 2000, 1000, 0), range(0, 0, 10, 1500), range(0, 5, 10, 1000), range(1, 0, 0, 1999)];
        let mut expected = vec![0; 2000];
        expected[..1000].copy_from_slice(&two[2000..]);
        expected[1500..1510].copy_from_slice(&one[..10]);
        expected[1000..1010].copy_from_slice(&one[5..15]);

        let mut read = vec![0; 2000];
        client.read_ranges(&keys, &ranges, &mut read).unwrap();
        assert_eq!(read, expected);

        let mut snapshot = client.prepare_snapshot(&keys).unwrap();
        for freshness in [Freshness::Lease, Freshness::Checked] {
            let mut read = vec![0; 2000];
            client.read_ranges_from_snapshot(&snapshot, &ranges, &mut read, freshness).unwrap();
            assert_eq!(read, expected);
        }
        // The old bytes stay for the lease; a checked read notices the change and follows it.
        client.upsert(b"one", &value(9, 1000)).unwrap();
        let mut read = vec![0; 2000];
        client.read_ranges_from_snapshot(&snapshot, &ranges, &mut read, Freshness::Lease).unwrap();
        assert_eq!(read, expected);
        let checked = client.read_ranges_from_snapshot(&snapshot, &ranges, &mut read, Freshness::Checked);
        assert_eq!(checked, Err(Error::EpochChanged));
        client.read_ranges_refreshing(&mut snapshot, &ranges, &mut read, Freshness::Checked).unwrap();
        assert_eq!(read[1500..1510], value(9, 1000)[..10]);

        let beyond = [range(0, 0, 1, 0), range(0, 999, 2, 10)];
        let error = Error::OutOfBounds { index: 1, bound: Bound::Value, end: 1001, length: 1000 };
        assert_eq!(client.read_ranges(&keys, &beyond, &mut read), Err(error.clone()));
        assert_eq!(
            client.read_ranges_from_snapshot(&snapshot, &beyond, &mut read, Freshness::Lease),
            Err(error)
        );
        let missing = ["one", "nothing"];
        assert_eq!(client.read_ranges(&missing, &ranges, &mut read), Err(Error::NotFound { index: 1 }));
        assert_eq!(client.prepare_snapshot(&missing).unwrap_err(), Error::NotFound { index: 1 });
    });
}

#[test]
fn keys_are_listed_by_prefix() {
    everywhere(|client| {
        let mut expected = Vec::new();
        for i in 0..300_u16 {
            let key = [b"list\xff".as_slice(), &i.to_be_bytes()].concat();
            client.upsert(&key, &value(0, usize::from(i))).unwrap();
            expected.push((key, u64::from(i)));
        }
        let mut listed = Vec::new();
        client
            .list(b"list\xff", |entry| {
                listed.push((entry.key, entry.value_bytes));
                true
            })
            .unwrap();
        assert_eq!(listed, expected, "in order, from however many shards");
        client.list(b"nothing like it", |_| panic!("there is none")).unwrap();
    });
}

#[test]
fn many_calls_overlap_on_one_thread() {
    everywhere(|client| {
        let keys: Vec<[String; 1]> = (0..64).map(|i| [format!("overlap {i}")]).collect();
        for (i, [key]) in keys.iter().enumerate() {
            client.upsert(key.as_bytes(), &value(i as u8, 264)).unwrap();
        }
        let pending: Vec<_> = keys.iter().map(|key| client.submit_get_batch(key).unwrap()).collect();
        // Taken in the opposite order: answers that arrive before they are asked for are put by.
        for (i, pending) in pending.into_iter().enumerate().rev() {
            assert_eq!(pending.wait().unwrap(), [Ok(value(i as u8, 264))]);
        }
        // Dropped half way, and the connection still works.
        for key in &keys {
            drop(client.submit_get_batch(key).unwrap());
        }
        assert_eq!(client.get(b"overlap 7").unwrap(), value(7, 264));
    });
}

/// Shows that answers too long to come at once end whole and in the right buffers, in whatever order their calls look for them: the one that
/// has begun with its answer, another one, one that waits.
#[test]
fn long_answers_overlap_on_one_thread() {
    everywhere(|client| {
        let long: Vec<u8> = (0..700_001_usize).map(|at| (at % 251) as u8).collect();
        let keys: Vec<[String; 1]> = (0..6).map(|i| [format!("long overlap {i}")]).collect();
        let expected = |i: usize| &long[i..long.len() - 100_000 * i];
        for (i, [key]) in keys.iter().enumerate() {
            client.upsert(key.as_bytes(), expected(i)).unwrap();
        }
        for skipped in 1..4 {
            let mut pending: Vec<_> =
                keys.iter().map(|key| Some(client.submit_get_batch(key).unwrap())).collect();
            let (mut done, mut turn) = (0, 0);
            while done < 4 {
                let at = turn * skipped % keys.len() + usize::from(turn % 5 == 0);
                turn += 1;
                let Some(call) = pending.get_mut(at) else { continue };
                if let Some(Poll::Ready(values)) = call.as_mut().map(Pending::poll) {
                    let value = values.unwrap().remove(0).unwrap();
                    assert!(value == expected(at), "value {at} has foreign bytes");
                    *call = None;
                    done += 1;
                } else if turn > 300 {
                    // Some order of looking reaches only some of the calls.
                    break;
                }
            }
            for (at, call) in pending.into_iter().enumerate() {
                let Some(call) = call else { continue };
                assert!(
                    call.wait().unwrap().remove(0).unwrap() == expected(at),
                    "value {at} has foreign bytes"
                );
            }
        }
    });
}

/// Shows that rows that fill many frames come right, from a snapshot and by key, which they did not over TCP when the first bytes of one frame's
/// answer had come and the call looked for the next frame's.
#[test]
fn rows_of_many_frames_come_right() {
    everywhere(|client| {
        let table: Vec<u8> = (0..264 * 1_000_usize).map(|at| (at / 264 + at % 264 * 7) as u8).collect();
        let keys: Vec<String> = (0..4).map(|i| format!("rows {i}")).collect();
        for (i, key) in keys.iter().enumerate() {
            client.upsert(key.as_bytes(), &table[i..]).unwrap();
        }
        let row = |at: usize| Range {
            key: (at % 4) as u32,
            source_offset: (at * 7 % 999 * 264) as u64,
            length: 264,
            destination_offset: (at * 264) as u64,
        };
        let ranges: Vec<Range> = (0..8_000).map(row).collect();
        let is_right = |target: &[u8]| {
            target.chunks(264).enumerate().all(|(at, found)| {
                let start = at % 4 + at * 7 % 999 * 264;
                *found == table[start..start + 264]
            })
        };
        let snapshot = client.prepare_snapshot(&keys).unwrap();
        for _ in 0..5 {
            let mut target = vec![0; 8_000 * 264];
            client.read_ranges_from_snapshot(&snapshot, &ranges, &mut target, Freshness::Lease).unwrap();
            assert!(is_right(&target), "from a snapshot");
            let mut target = vec![0; 8_000 * 264];
            client.read_ranges(&keys, &ranges, &mut target).unwrap();
            assert!(is_right(&target), "by key");
        }
    });
}

/// A value that its caller didn't poll for stood in the way of every other call of its thread, for ever if it was forgotten. Shows that others
/// go round it, that it's stored all the same once its owner goes on, that forgotten ones change nothing for the calls behind them however
/// many they are, and that one that is dropped leaves those alone that were asked over the same connection.
#[test]
fn a_value_half_written_stands_in_nobodys_way() {
    // What waits for the rest of a value holds memory.
    everywhere_with("512MiB", |client| {
        let long = value(3, 16 << 20);
        let items = [("half written", &long)];
        let half_written = || {
            // A server that is quick enough takes all of it at once.
            let attempts = std::iter::repeat_with(|| {
                let mut put = client.submit_upsert_batch(&items, PutOptions::default()).unwrap();
                put.poll().is_pending().then_some(put)
            });
            attempts.take(1_000).flatten().next().expect("no buffer between takes 16 MiB at once")
        };
        let is_quick = || {
            let started = Clock.now();
            assert!(!client.exists(b"nobody's").unwrap());
            client.upsert(b"another", b"value").unwrap();
            assert_eq!(client.get(b"another").unwrap(), b"value");
            assert!(Clock.now().since(started) < Duration::from_secs(2));
        };
        let put = half_written();
        is_quick();
        assert_eq!(put.wait().unwrap(), [Ok(())]);
        assert!(client.get(b"half written").unwrap() == long);
        for _ in 0..12 {
            std::mem::forget(half_written());
            is_quick();
        }
        let keys = ["another"];
        let asked = client.submit_get_batch(&keys).unwrap();
        let small = [("a third", b"value")];
        let stored = client.submit_upsert_batch(&small, PutOptions::default()).unwrap();
        drop(half_written());
        is_quick();
        assert_eq!(stored.wait().unwrap(), [Ok(())]);
        assert_eq!(asked.wait().unwrap(), [Ok(b"value".to_vec())]);
    });
}

#[test]
fn bad_keys_are_refused_with_their_place() {
    everywhere(|client| {
        let long = vec![1; 1025];
        assert_eq!(client.get(b""), Err(Error::InvalidKey { index: 0, bytes: 0 }));
        assert_eq!(
            client.exists_batch(&[b"a".as_slice(), &long]),
            Err(Error::InvalidKey { index: 1, bytes: 1025 })
        );
        client.upsert(&long[..1024], b"longest key").unwrap();
        assert_eq!(client.get(&long[..1024]).unwrap(), b"longest key");
    });
}

#[test]
fn each_thread_has_a_lane_of_its_own() {
    everywhere(|client| {
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                scope.spawn(move || {
                    for i in 0..200_u32 {
                        let key = format!("thread {thread} {i}");
                        client.upsert(key.as_bytes(), &value(thread, 300)).unwrap();
                        assert_eq!(client.get(key.as_bytes()).unwrap(), value(thread, 300));
                    }
                });
            }
        });
    });
}

#[test]
fn an_answer_longer_than_the_ring_arrives_although_the_client_dawdles() {
    // 4,000 descriptors are 128,000 bytes, twice a reply ring. The client lets the shard fall asleep before it takes any.
    let server = TestServer::start(&[]);
    let client = server.client("shm");
    let keys: Vec<String> = (0..4_000).map(|i| format!("dawdle {i}")).collect();
    let pending = client.submit_get_batch(&keys).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let answers = pending.wait().unwrap();
    assert!(
        answers.iter().enumerate().all(|(at, answer)| *answer == Err(Error::NotFound { index: at as u64 }))
    );
}
