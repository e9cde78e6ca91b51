//! Prefixes, lists in order and the key filter, over each transport and with one and two shards.

use crate::support::{TestServer, transports};
use lanner_client::{Client, Error, Fallback};
use lanner_shared::wire::Opcode;
use std::sync::atomic::{AtomicU32, Ordering};

fn everywhere(flags: &[&str], test: impl Fn(&Client)) {
    for shards in ["1", "2"] {
        let server = TestServer::start(&[&["--shards", shards], flags].concat());
        for transport in transports() {
            test(&server.client(transport));
        }
    }
}

/// Shows, with a prefix index and without, that the longest stored key is found on whatever shard it is, and that a missed `get` falls
/// back to it if it's told to and says what it found.
#[test]
fn the_longest_prefix_counts() {
    for flags in [["--prefix-index", "true"], ["--prefix-index", "false"]] {
        everywhere(&flags, |client| {
            let keys: Vec<Vec<u8>> =
                (1..=40).map(|bytes| vec![0x80 + bytes % 2; usize::from(bytes)]).collect();
            let prompt = vec![0x81; 64];
            assert_eq!(client.longest_prefix(b"nothing like it"), Ok(None));
            assert_eq!(
                client.get_with(b"nothing like it", Fallback::Prefix),
                Err(Error::NotFound { index: 0 })
            );
            for key in &keys {
                client.upsert(key, key).unwrap();
                let found = client.longest_prefix(&prompt).unwrap().unwrap().len();
                assert_eq!(found, (key.len() - 1) / 2 * 2 + 1, "39 bytes of 0x81 at most");
            }
            assert_eq!(client.get_with(&prompt, Fallback::Prefix), Ok((&prompt[..39], vec![0x81; 39])));
            assert_eq!(client.get_with(&prompt, Fallback::None), Err(Error::NotFound { index: 0 }));
            assert_eq!(
                client.get_with(&keys[6], Fallback::Prefix),
                Ok((keys[6].as_slice(), keys[6].clone()))
            );
            assert!(client.remove(&keys[38]).unwrap());
            let asked = [prompt.as_slice(), b"\x82", &keys[2]];
            let found = client.longest_prefix_batch(&asked).unwrap();
            assert_eq!(found, [Some(&prompt[..37]), None, Some(keys[2].as_slice())]);
            // A tag places a key, and what it begins with may lie elsewhere all the same.
            client.upsert(b"{tag", b"short").unwrap();
            assert_eq!(client.longest_prefix(b"{tag}:7"), Ok(Some(b"{tag".as_slice())));
            client.upsert(b"{tag}", b"longer").unwrap();
            assert_eq!(client.longest_prefix(b"{tag}:7"), Ok(Some(b"{tag}".as_slice())));
            for key in keys.iter().map(Vec::as_slice).chain([b"{tag".as_slice(), b"{tag}"]) {
                client.remove(key).unwrap();
            }
            assert_eq!(client.longest_prefix(&prompt), Ok(None));
            assert_eq!(client.longest_prefix(b""), Err(Error::InvalidKey { index: 0, bytes: 0 }));
        });
    }
}

/// Shows that absent keys are found out without the server over shared memory, that it is asked for the others, and that the answers are
/// those of a server that is asked for all.
#[test]
fn absent_keys_are_found_out_without_the_server() {
    for shards in ["1", "2"] {
        let server = TestServer::start(&["--shards", shards]);
        let (shm, tcp) = (server.client("shm"), server.client("tcp"));
        let keys: Vec<String> = (0..4_000).map(|number| format!("filter {number}")).collect();
        for key in keys.iter().step_by(4) {
            shm.put(key.as_bytes(), b"value").unwrap();
        }
        let expected: Vec<bool> = (0..4_000).map(|number| number % 4 == 0).collect();
        assert_eq!(shm.exists_batch(&keys).unwrap(), expected);
        let counted = |misses: u64| {
            let asked = |reports: &[std::sync::Arc<_>]| count(reports, misses);
            server.reports_when(asked);
        };
        // 1,000 hits, and of 3,000 absent keys the few that the filter takes for present ones: up to 0.7 % and chance, by how far it has grown.
        counted(50);
        assert_eq!(tcp.exists_batch(&keys).unwrap(), expected);
        counted(3_050);
        assert_eq!(shm.exists_batch(&["none of them"; 20]).unwrap(), [false; 20]);
        assert_eq!(shm.exists_batch(&[""; 20]), Err(Error::InvalidKey { index: 0, bytes: 0 }));
    }
}

/// Whether all hits have been counted, and if so that at most `misses` misses have.
fn count(reports: &[std::sync::Arc<lanner_server::admin::board::ShardReport>], misses: u64) -> bool {
    let of = |counts: fn(&lanner_server::shard::ShardStats) -> u64| {
        reports.iter().map(|report| counts(&report.stats)).sum::<u64>()
    };
    let (hits, missed) = (of(|stats| stats.hits(Opcode::Exists)), of(|stats| stats.misses(Opcode::Exists)));
    let is_counted = hits >= 1_000 && (misses < 3_000 || hits >= 2_000);
    assert!(!is_counted || missed <= misses, "{missed} misses");
    is_counted
}

/// Shows that what one client has put is never called absent to another that hears of it, while the filter grows.
#[test]
fn what_was_put_is_not_denied() {
    let server = TestServer::start(&[]);
    let put = AtomicU32::new(0);
    let key = |number: u32| format!("growing {number}");
    const KEYS: u32 = 100_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = server.client("shm");
            for number in 0..KEYS {
                client.put(key(number).as_bytes(), b"").unwrap();
                put.store(number + 1, Ordering::Release);
            }
        });
        let client = server.client("shm");
        let mut rounds = 0;
        loop {
            let known = put.load(Ordering::Acquire);
            let recent: Vec<String> = (known.saturating_sub(200)..known).map(key).collect();
            assert!(client.exists_batch(&recent).unwrap().iter().all(|is_there| *is_there), "after {known}");
            rounds += 1;
            if known == KEYS {
                break;
            }
        }
        assert!(rounds > 100);
    });
    let reports =
        server.reports_when(|reports| reports.iter().all(|report| report.stats.objects == u64::from(KEYS)));
    assert!(reports.iter().all(|report| report.stats.filter_parts_rebuilt > 4_096), "it has grown");
}
