//! Registered buffers over each transport: the same bytes as from and to any other buffer, whether a device takes part or not.

use crate::support::{TestServer, transports};
use lanner_client::{Client, Error, Freshness, PutOptions, Range, Registration};
use lanner_shared::error::Bound;

const BYTES: usize = 6 << 20;

fn pattern(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8 ^ seed)).collect()
}

/// Runs `test` over each transport, against one shard and against two.
fn everywhere(test: impl Fn(&Client)) {
    for shards in ["1", "2"] {
        let server = TestServer::start(&["--shards", shards, "--memory", "160MiB"]);
        for transport in transports() {
            let client = server.client(transport);
            let mut byte = [0];
            let registration = client.register(&mut byte).unwrap().registration();
            let with_device = registration == Registration::WithDevice;
            assert_eq!(with_device, transport == "rdma", "{transport}");
            test(&client);
        }
    }
}

#[test]
fn values_of_all_sizes_go_and_come_back() {
    // Around each boundary: a short value, a message, a staging, a READ.
    let sizes = [0, 1, 4_096, 4_097, 8_192, 8_193, 262_145, 1 << 20, (1 << 20) + 1, 5 << 20];
    everywhere(|client| {
        let (mut source, mut target) = (pattern(7), vec![0; BYTES]);
        let source = client.register(&mut source).unwrap();
        let mut target = client.register(&mut target).unwrap();
        for (number, length) in sizes.into_iter().enumerate() {
            let key = format!("size {length}");
            // Where its first byte lies on a line or a page is the caller's choice.
            let place = number * 77..number * 77 + length;
            source.put(key.as_bytes(), place.clone(), PutOptions::default()).unwrap();
            let again = source.put(key.as_bytes(), place.clone(), PutOptions::default());
            assert_eq!(again, Err(Error::AlreadyExists { index: 0 }), "{length}");
            assert_eq!(client.get(key.as_bytes()).unwrap(), source[place.clone()], "{length}");
            target.fill(0xee);
            let got = target.get_into(key.as_bytes(), 13..13 + length).unwrap();
            assert_eq!(got as usize, length);
            assert_eq!(target[13..13 + length], source[place], "{length}");
            let others = target[..13].iter().chain(&target[13 + length..]);
            assert!(others.copied().all(|byte| byte == 0xee), "{length}: nothing else was written");
            assert!(client.remove(key.as_bytes()).unwrap());
        }
    });
}

#[test]
fn batches_keep_their_places() {
    everywhere(|client| {
        let (mut source, mut target) = (pattern(9), vec![0; BYTES]);
        let source = client.register(&mut source).unwrap();
        let mut target = client.register(&mut target).unwrap();
        let length = |number: usize| [100, 70_000, 9_000, 300_000][number % 4];
        let places: Vec<_> =
            (0..20).map(|number| number * 100_000..number * 100_000 + length(number)).collect();
        let keys: Vec<String> = (0..20).map(|number| format!("batch {number}")).collect();
        let items: Vec<_> = keys.iter().zip(places.iter().cloned()).collect();
        let outcomes = source.upsert_batch(&items, PutOptions::default()).unwrap();
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        client.remove(keys[4].as_bytes()).unwrap();
        // From the last to the first, and one that is too small.
        let mut to: Vec<_> =
            (0..20).rev().map(|number| number * 300_000..number * 300_000 + 300_000).collect();
        to[1].end = to[1].start + 10;
        let got = target.get_into_batch(&keys, &to).unwrap();
        for (number, outcome) in got.into_iter().enumerate() {
            let wanted = &source[places[number].clone()];
            match number {
                1 => assert_eq!(outcome, Err(Error::BufferTooSmall { index: 1, needed: 70_000, given: 10 })),
                4 => assert_eq!(outcome, Err(Error::NotFound { index: 4 })),
                _ => {
                    assert_eq!(outcome, Ok(wanted.len() as u64), "{number}");
                    assert_eq!(&target[to[number].start..][..wanted.len()], wanted, "{number}");
                }
            }
        }
    });
}

#[test]
fn ranges_come_to_their_places() {
    everywhere(|client| {
        let (first, second) = (pattern(1), pattern(2));
        client.upsert(b"first", &first).unwrap();
        client.upsert(b"second", &second).unwrap();
        let values = [&first, &second];
        let range = |key: u32, source_offset: u64, length: u64, destination_offset: u64| Range {
            key,
            source_offset,
            length,
            destination_offset,
        };
        let ranges = [
            range(0, 10, 264, 5_000),
            range(0, 274, 264, 5_264),
            range(1, 77, 3_000_000, 10_000),
            range(0, 5_999_999, 1, 0),
            range(1, 0, 0, 7),
            range(1, 3, 700_000, 3_100_000),
        ];
        let mut buffer = vec![0; 4 << 20];
        let mut buffer = client.register(&mut buffer).unwrap();
        let check = |buffer: &[u8]| {
            for Range { key, source_offset, length, destination_offset } in ranges {
                let [from, to, length] =
                    [source_offset, destination_offset, length].map(|number| number as usize);
                assert_eq!(buffer[to..to + length], values[key as usize][from..from + length]);
            }
        };
        buffer.read_ranges(&["first", "second"], &ranges).unwrap();
        check(&buffer);
        let mut snapshot = client.prepare_snapshot(&["first", "second"]).unwrap();
        for freshness in [Freshness::Lease, Freshness::Checked] {
            buffer.fill(0);
            buffer.read_ranges_from_snapshot(&snapshot, &ranges, freshness).unwrap();
            check(&buffer);
        }
        client.upsert(b"first", &first).unwrap();
        let stale = buffer.read_ranges_from_snapshot(&snapshot, &ranges, Freshness::Checked);
        assert_eq!(stale, Err(Error::EpochChanged));
        buffer.read_ranges_refreshing(&mut snapshot, &ranges, Freshness::Checked).unwrap();
        check(&buffer);
        let beyond =
            buffer.read_ranges_from_snapshot(&snapshot, &[range(0, 0, 5, (4 << 20) - 4)], Freshness::Lease);
        assert!(beyond.is_err(), "out of the buffer's bounds");
        let missing = buffer.read_ranges(&["first", "nowhere"], &ranges);
        assert_eq!(missing, Err(Error::NotFound { index: 1 }));
        // As a client's to any other buffer: of keys that no range needs nobody is asked, and ranges are checked first.
        let mut ordinary = vec![0; 4 << 20];
        let keys = ["nowhere", "first", "elsewhere"];
        for (ranges, outcome) in [
            (vec![range(1, 10, 264, 5_000)], Ok(())),
            (vec![range(1, 0, 1, 0), range(2, 0, 1, 1)], Err(Error::NotFound { index: 2 })),
            (
                vec![range(0, 0, 2, 0), range(1, 0, 8, (4 << 20) - 4)],
                Err(Error::OutOfBounds {
                    index: 1,
                    bound: Bound::Buffer,
                    end: (4 << 20) + 4,
                    length: 4 << 20,
                }),
            ),
        ] {
            assert_eq!(buffer.read_ranges(&keys, &ranges), outcome);
            assert_eq!(client.read_ranges(&keys, &ranges, &mut ordinary), outcome);
        }
        assert_eq!(buffer[5_000..5_264], ordinary[5_000..5_264]);
    });
}
