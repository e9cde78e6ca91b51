//! Chains of blocks: stored with their parents, matched in one round trip, over each transport, with one and with two shards.

use crate::by_hand::{frame, introduced, request};
use crate::hostile::error_and_end;
use crate::support::{TestServer, transports};
use lanner_client::{Client, Error, Freshness, PutOptions, Range, Snapshot, chain};
use lanner_shared::chain::{GroupPrefix, MAX_CHAIN_BLOCKS};
use lanner_shared::wire::{Opcode, match_chain};
use std::io::Write;

fn everywhere(test: impl Fn(&Client)) {
    everywhere_by_name(|client, _| test(client));
}

/// With the transport's name.
fn everywhere_by_name(test: impl Fn(&Client, &str)) {
    for shards in ["1", "2"] {
        let server = TestServer::start(&["--shards", shards]);
        for transport in transports() {
            let client = server.client(transport);
            test(&client, transport);
        }
    }
}

/// Keys as an engine has them: digests of any bytes, braces among them.
fn keys(chain: &str, blocks: usize) -> Vec<Vec<u8>> {
    let key = |block| [chain.as_bytes(), b"{}\xff\x00", &u32::to_be_bytes(block as u32)].concat();
    (0..blocks).map(key).collect()
}

fn value(block: usize) -> Vec<u8> {
    (0..300).map(|at| (at * 7 + block) as u8).collect()
}

fn store(client: &Client, keys: &[Vec<u8>], from: usize) -> Vec<Result<(), Error>> {
    let values: Vec<Vec<u8>> = (from..keys.len()).map(value).collect();
    client.put_chain(keys, from, &values, PutOptions::default()).unwrap()
}

/// Reads all blocks of a match and compares every byte.
fn check(client: &Client, snapshot: &Snapshot, blocks: usize) {
    assert_eq!(snapshot.len(), blocks);
    let range = |key| Range { key, source_offset: 0, length: 300, destination_offset: u64::from(key) * 300 };
    let ranges: Vec<Range> = (0..blocks as u32).map(range).collect();
    let mut bytes = vec![0; blocks * 300];
    client.read_ranges_from_snapshot(snapshot, &ranges, &mut bytes, Freshness::Checked).unwrap();
    (0..blocks).for_each(|block| assert_eq!(bytes[block * 300..][..300], value(block), "{block}"));
}

#[test]
fn a_chain_is_found_as_far_as_it_goes() {
    everywhere(|client| {
        let keys = keys("conversation", 100);
        assert!(client.match_chain(&keys).unwrap().is_empty());
        assert!(store(client, &keys[..70], 0).iter().all(Result::is_ok));
        check(client, &client.match_chain(&keys).unwrap(), 70);
        check(client, &client.match_chain(&keys[..33]).unwrap(), 33);
        // A later turn stores what is new; what is there stays as it is.
        let outcomes = store(client, &keys, 60);
        assert!(outcomes[..10].iter().all(|outcome| matches!(outcome, Err(Error::AlreadyExists { .. }))));
        assert!(outcomes[10..].iter().all(Result::is_ok));
        check(client, &client.match_chain(&keys).unwrap(), 100);
        let stored = chain::stored_keys(&keys);
        assert_eq!(client.remove_batch(&stored).unwrap(), vec![true; 100]);
        assert!(client.match_chain(&keys).unwrap().is_empty());
    });
}

#[test]
fn a_gap_is_the_end_wherever_it_is() {
    everywhere(|client| {
        let keys = keys("gaps", 100);
        let stored = chain::stored_keys(&keys);
        store(client, &keys, 0);
        // In the last group, at both ends of one in the middle, and at the very start.
        for gap in [98, 63, 32, 1, 0] {
            assert!(client.remove(&stored[gap]).unwrap());
            check(client, &client.match_chain(&keys).unwrap(), gap);
        }
    });
}

#[test]
fn chains_of_one_call_are_answered_each() {
    everywhere(|client| {
        let chains: Vec<Vec<Vec<u8>>> =
            [1, 40, 7, 64].iter().map(|blocks| keys(&format!("of {blocks}"), *blocks)).collect();
        chains.iter().for_each(|keys| drop(store(client, keys, 0)));
        let nowhere = keys("nowhere", 50);
        let asked = [&chains[0][..], &chains[3], &nowhere, &chains[3], &chains[1], &chains[2]];
        let matches = client.match_chains(&asked).unwrap();
        for (snapshot, blocks) in matches.iter().zip([1, 64, 0, 64, 40, 7]) {
            check(client, snapshot, blocks);
        }
        assert!(client.match_chains::<Vec<u8>>(&[]).unwrap().is_empty());
    });
}

/// A request of 4,096 blocks is in 128 groups; shows that the longest chain works with the longest keys too, which takes several
/// frames for each shard.
#[test]
fn the_longest_chain_has_the_longest_keys() {
    everywhere(|client| {
        let key =
            |block: usize| [vec![7; chain_key_bytes() - 4], u32::to_le_bytes(block as u32).to_vec()].concat();
        let keys: Vec<Vec<u8>> = (0..MAX_CHAIN_BLOCKS).map(key).collect();
        let values = vec![b"v"; 4000];
        let outcomes = client.put_chain(&keys, 0, &values, PutOptions::default()).unwrap();
        assert!(outcomes.iter().all(Result::is_ok));
        assert_eq!(client.match_chain(&keys).unwrap().len(), 4000);
        client.remove_batch(&chain::stored_keys(&keys)).unwrap();
    });
}

fn chain_key_bytes() -> usize {
    lanner_shared::chain::MAX_BLOCK_KEY_BYTES
}

#[test]
fn what_is_no_chain_is_refused() {
    everywhere(|client| {
        let none: [&[u8]; 0] = [];
        assert!(matches!(client.match_chain(&none), Err(Error::InvalidArgument(_))));
        assert_eq!(
            client.match_chain(&[b"a".as_slice(), b""]).unwrap_err(),
            Error::InvalidKey { index: 1, bytes: 0 }
        );
        let too_many = client.put_chain(&[b"a"], 1, &[b"v"], PutOptions::default());
        assert!(matches!(too_many, Err(Error::InvalidArgument(_))));
        let beyond = client.put_chain(&[b"a"], usize::MAX, &[b"v"], PutOptions::default());
        assert!(matches!(beyond, Err(Error::InvalidArgument(_))));
    });
}

/// Frames that no client of this project sends. Shows that each is answered by a typed error, and ends its connection where
/// nothing behind it can be understood.
#[test]
fn groups_that_are_none_are_refused() {
    let server = TestServer::start(&[]);
    let good = GroupPrefix::of(b"a");
    let bodies: [Vec<u8>; 4] = [
        b"{XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX}\x01\x00\x01\x00a".to_vec(),
        [good.as_bytes().as_slice(), b"\x00\x00"].concat(),
        [good.as_bytes().as_slice(), b"\x21\x00"].concat(),
        [good.as_bytes().as_slice(), b"\x02\x00\x01\x00a"].concat(),
    ];
    for body in bodies {
        let mut stream = introduced(&server);
        stream.write_all(&frame(request(Opcode::MatchChain, 1), |frame| frame.extend(&body))).unwrap();
        assert!(matches!(error_and_end(stream), Error::Malformed { .. }), "{body:?}");
    }
    let mut stream = introduced(&server);
    let behind = frame(request(Opcode::MatchChain, 1), |frame| {
        match_chain::append_group(frame, &good, &[b"a"]);
        frame.push(0);
    });
    stream.write_all(&behind).unwrap();
    assert!(matches!(error_and_end(stream), Error::Malformed { .. }));
}

/// Shows that matches, searches for prefixes and questions for many keys are under way together on one thread, each with the outcome that
/// its blocking form has; that one that is dropped harms no other; and that of absent keys hardly any comes to a server that has handed
/// out its filter.
#[test]
fn questions_overlap_on_one_thread() {
    everywhere_by_name(|client, transport| {
        let (long, short) = (keys("overlap", 80), keys("overlap too", 5));
        store(client, &long[..50], 0).into_iter().chain(store(client, &short, 0)).for_each(drop);
        client.upsert(b"overlap/a", b"").unwrap();
        let chains = [&long[..], &short[..], &long[60..]];
        let prefixes = [b"overlap/a/b".as_slice(), b"other", b"overlap/a"];
        let mut asked: Vec<String> = (0..1_000).map(|number| format!("overlap/absent {number}")).collect();
        asked.push("overlap/a".to_owned());
        let misses = || -> u64 {
            let stats = client.stats().unwrap();
            let of = |document: &str| {
                let stats: serde_json::Value = serde_json::from_str(document).unwrap();
                stats.pointer("/look_ups/exists/misses").and_then(serde_json::Value::as_u64).unwrap()
            };
            stats.iter().map(|(_, document)| of(document)).sum()
        };
        let before = misses();
        let matching = client.submit_match_chains(&chains).unwrap();
        let searching = client.submit_longest_prefix_batch(&prefixes).unwrap();
        drop(client.submit_match_chains(&chains).unwrap());
        let existing = client.submit_exists_batch(&asked).unwrap();
        let exist = existing.wait().unwrap();
        assert!(exist.ends_with(&[false, true]) && exist.iter().filter(|exists| **exists).count() == 1);
        assert_eq!(
            searching.wait().unwrap(),
            [Some(b"overlap/a".as_slice()), None, Some(b"overlap/a".as_slice())]
        );
        let matches = matching.wait().unwrap();
        for (snapshot, blocks) in matches.iter().zip([50, 5, 0]) {
            check(client, snapshot, blocks);
        }
        let came = misses() - before;
        assert_eq!(client.exists_batch(&asked).unwrap(), exist);
        assert!(if transport == "shm" { came < 50 } else { came == 1_000 }, "{came} over {transport}");
    });
}

/// Over shared memory a call of so many chains was refused, for its frames are shorter there and only so many may be without an answer. Shows
/// that the call waits for its own answers instead.
#[test]
fn a_call_may_be_longer_than_a_connection_takes_at_a_time() {
    let server = TestServer::start(&[]);
    for transport in transports() {
        let client = server.client(transport);
        let chains: Vec<[String; 1]> = (0..40_000).map(|chain| [format!("{transport} {chain}")]).collect();
        let stored = client.put_chain(&chains[39_999], 0, &[b"block"], PutOptions::default()).unwrap();
        assert!(stored.iter().all(Result::is_ok));
        let asked: Vec<&[String]> = chains.iter().map(|chain| chain.as_slice()).collect();
        let found: Vec<usize> =
            client.match_chains(&asked).unwrap().iter().map(|found| found.len()).collect();
        assert_eq!((found.len(), found.iter().sum::<usize>(), found[39_999]), (40_000, 1, 1), "{transport}");
    }
}
