//! bench trace on small traces that can be counted by hand, wrong bytes that it must not survive, and bench latency's match.

use std::path::PathBuf;

use lanner_client::{Client, chain};
use lanner_tools::bench::trace::blocks::Blocks;

use crate::support::{TestServer, folder, json, text};

const BLOCK_BYTES: usize = 5000;
const BLOCKS: Blocks = Blocks { bytes: BLOCK_BYTES, seed: 1 };

/// Writes a trace of these chains, a request each 100 ms.
fn trace_of(name: &str, chains: &[Vec<u64>]) -> PathBuf {
    let lines = (0..).zip(chains).map(|(number, blocks)| {
        let at_ms = number * 100;
        format!("{{\"timestamp\": {at_ms}, \"hash_ids\": {blocks:?}}}\n")
    });
    let path = folder(name).join("trace.jsonl");
    std::fs::write(&path, lines.collect::<String>()).expect("written");
    path
}

/// Turns of one conversation, another one, a block that is twice in its chain, and a request without a whole block.
fn conversation() -> Vec<Vec<u64>> {
    vec![
        (0..40).collect(),
        (0..70).collect(),
        vec![100, 101],
        vec![],
        (0..69).chain([200, 201]).collect(),
        vec![300, 301, 301],
    ]
}

fn replay<'a>(trace: &'a str, url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--json", "--url", url, "bench", "trace", "--trace", trace, "--block", "5000B"], more].concat()
}

/// Shows hits, bytes and stored blocks that were counted by hand, over both transports and groups of blocks on several shards, that a
/// second replay finds all, that limits limit, and that the report is written.
#[test]
fn a_replay_counts_what_was_counted_by_hand() {
    let trace = trace_of("replay", &conversation());
    let written = trace.with_file_name("report.json");
    let (file, written) = (trace.to_str().expect("text"), written.to_str().expect("text"));
    for transport in ["shm", "tcp"] {
        let server = TestServer::start();
        let url = server.url(&format!("transport={transport}"));
        let report = json(&server.check(&replay(file, &url, &["--report", written]), 0));
        assert_eq!(json(&std::fs::read(written).expect("written")), report);
        assert_eq!((&report["benchmark"], &report["trace"]["uses"]), (&"trace".into(), &186.into()));
        let row = &report["results"][0];
        let count = |row: &serde_json::Value, name: &str| {
            row[name].as_u64().unwrap_or_else(|| panic!("{name} in {row:#}"))
        };
        assert_eq!((&row["transport"], count(row, "iterations")), (&transport.into(), 6));
        // 40 of the second turn and 69 of the fifth request.
        assert_eq!((count(row, "uses"), count(row, "hits")), (186, 109));
        assert_eq!(row["hit_ratio"], 109.0 / 186.0);
        // Block 301 is stored once.
        assert_eq!((count(row, "stored"), count(row, "already_there")), (76, 1));
        assert_eq!((count(row, "expired"), count(row, "refused")), (0, 0));
        assert_eq!(count(row, "verified_bytes"), 109 * BLOCK_BYTES as u64);
        assert_eq!(count(row, "written_bytes"), 76 * BLOCK_BYTES as u64);
        assert_eq!(count(&row["evicted"], "objects"), 0);
        for latency in ["match_us", "read_us", "put_us"] {
            assert!(row[latency]["p50"].as_f64() > Some(0.0), "{row:#}");
        }

        // At 10 times the trace's speed its half second takes 50 ms, and what is asked for is there.
        let again = json(&server.check(&replay(file, &url, &["--speed", "10"]), 0));
        let row = &again["results"][0];
        assert_eq!((count(row, "hits"), count(row, "stored")), (186, 0));
        assert!(row["replay_seconds"].as_f64() >= Some(0.05), "{row:#}");
        let other = ["--seed", "2", "--limit-requests", "2"];
        let row = &json(&server.check(&replay(file, &url, &other), 0))["results"][0];
        assert_eq!((count(row, "iterations"), count(row, "hits"), count(row, "stored")), (2, 40, 70));
        let brief = ["--speed", "1", "--duration", "150ms"];
        let row = &json(&server.check(&replay(file, &url, &brief), 0))["results"][0];
        assert_eq!(count(row, "iterations"), 2);
    }
    std::fs::remove_dir_all(trace.parent().expect("a folder")).expect("removed");
}

/// Shows that a store that is too small for the trace evicts, that this is told, and that what is still there is right.
#[test]
fn evictions_are_told() {
    let chains: Vec<Vec<u64>> = (0..100).map(|chain| (chain * 100..chain * 100 + 20).collect()).collect();
    let trace = trace_of("evictions", &[chains.clone(), chains].concat());
    let server = TestServer::with_flags(&["--memory", "64MiB", "--shards", "1"]);
    let url = server.url("");
    let line = ["--json", "--url", &url, "bench", "trace", "--trace", trace.to_str().expect("text")];
    let report = json(&server.check(&line, 0));
    let row = &report["results"][0];
    // 2,000 blocks of 64 KiB are 125 MiB.
    assert!(row["evicted"]["objects"].as_u64() > Some(500), "{row:#}");
    assert!(row["evicted"]["bytes"].as_u64() > Some(500 << 16), "{row:#}");
    std::fs::remove_dir_all(trace.parent().expect("a folder")).expect("removed");
}

/// A planted fault: another value, of which one byte differs, or of another length, under the key of a chain's block. Shows that the replay
/// ends with status 1 over both transports and names the block.
#[test]
fn a_wrong_byte_fails_the_replay() {
    let trace = trace_of("wrong-byte", &[(0..40).collect()]);
    let file = trace.to_str().expect("text");
    let keys: Vec<[u8; 16]> = (0..40).map(|number| BLOCKS.key(number)).collect();
    for transport in ["shm", "tcp"] {
        let server = TestServer::start();
        let url = server.url(&format!("transport={transport}"));
        server.check(&replay(file, &url, &[]), 0);
        let client = Client::connect(&url).expect("a server");
        let mut value = vec![0; BLOCK_BYTES];
        BLOCKS.fill(35, &mut value);
        value[4321] ^= 1;
        let short = value[..4000].to_vec();
        for (planted, said) in
            [(value, "block 35: wrong from byte 4321 on"), (short, "block 35: 4000 bytes long")]
        {
            client.upsert(&chain::stored_keys(&keys)[35], &planted).expect("planted");
            let output = server.run(&replay(file, &url, &[]));
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let complaint = text(&output.stderr);
            assert!(complaint.contains("WRONG BYTES") && complaint.contains(said), "{complaint}");
            assert!(output.stdout.is_empty(), "{output:?}");
        }
    }
    std::fs::remove_dir_all(trace.parent().expect("a folder")).expect("removed");
}

/// Shows what is refused before anything is replayed: chains that are too long, blocks without bytes, speeds that are none.
#[test]
fn what_can_not_be_replayed_is_said() {
    let server = TestServer::start();
    let trace = trace_of("refused", &[(0..4097).collect()]);
    let file = trace.to_str().expect("text");
    let refused = server.run(&["bench", "trace", "--trace", file]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains("4097 blocks"), "{refused:?}");
    for wrong in [["--block", "0"], ["--speed", "-1"], ["--speed", "inf"], ["--limit-requests", "0"]] {
        server.check(&[&["bench", "trace", "--trace", file], &wrong[..]].concat(), 2);
    }
    assert_eq!(text(&server.check(&["ls"], 0)), "");
    std::fs::remove_dir_all(trace.parent().expect("a folder")).expect("removed");
}

/// Shows a row of `match` for each transport, with a limit measured in the same run and every byte of the chain compared, and that the
/// chain is gone afterwards.
#[test]
fn a_match_is_held_against_its_limit() {
    let server = TestServer::start();
    let line = ["--json", "bench", "latency", "--op", "match", "--chain-blocks", "70", "--duration", "50ms"];
    let report = json(&server.check(&[&line[..], &["--iterations", "100", "--warmups", "2"]].concat(), 0));
    let rows = report["results"].as_array().expect("a list");
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!((&row["op"], &row["chain-blocks"]), (&"match".into(), &70.into()), "{row:#}");
        assert_eq!(row["verified_bytes"], 70 * 16);
        assert!(row["ratio_p50"].is_f64() && row["errors"] == 0, "{row:#}");
    }
    assert_eq!(text(&server.check(&["ls"], 0)), "");
}
