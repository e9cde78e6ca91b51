//! bench latency and bench engram, as small as they get, and a wrong byte that they must not survive.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{TestServer, folder, json, run_lanner, text};

/// Shows a row for each combination, each with verified bytes, no errors and a limit measured in the same run, and that the store is as
/// empty afterwards as before.
#[test]
fn latency_measures_every_combination() {
    let server = TestServer::start();
    let small = ["--duration", "50ms", "--iterations", "100", "--warmups", "2", "--working-set", "100KB"];
    let report = json(
        &server.check(&[&["--json", "bench", "latency", "--size", "100,70KiB"], &small[..]].concat(), 0),
    );
    assert_eq!(report["benchmark"], "latency");
    let rows = report["results"].as_array().expect("a list");
    // exists is measured once for each transport.
    assert_eq!(rows.len(), 2 * (2 + 2 + 1));
    for row in rows {
        assert!(row["iterations"].as_u64() > Some(0) && row["verified_bytes"].as_u64() > Some(0), "{row:#}");
        assert!(row["errors"] == 0 && row["latency_us"]["p50"].as_f64() > Some(0.0), "{row:#}");
        assert!(row["ratio_p50"].is_f64() && row["operations_per_second"].is_f64(), "{row:#}");
    }
    for (flags, unit) in [(["--threads", "2"], "latency_us"), (["--depth", "8"], "us_per_operation")] {
        let line =
            [&["--json", "bench", "latency", "--op", "get", "--size", "64"], &small[..], &flags].concat();
        let report = json(&server.check(&line, 0));
        for row in report["results"].as_array().expect("a list") {
            assert!(row[unit]["p50"].is_f64() && row["ratio_p50"].is_null(), "{row:#}");
        }
    }
    assert_eq!(text(&server.check(&["ls"], 0)), "");
}

/// Shows a row for each combination of preset, tokens, mode and transport, the published results beside them, the files that were wanted,
/// and that the tables are gone afterwards.
#[test]
fn engram_measures_every_combination() {
    let server = TestServer::start();
    let folder = folder("engram");
    let (plot, written) = (folder.join("plot.svg"), folder.join("report.json"));
    let (plot, written) = (plot.to_str().expect("text"), written.to_str().expect("text"));
    let line = [
        "--json",
        "bench",
        "engram",
        "--preset",
        "ngram,store",
        "--tokens",
        "1,2",
        "--duration",
        "50ms",
        "--iterations",
        "100",
        "--warmups",
        "2",
        "--plot",
        plot,
        "--report",
        written,
    ];
    let report = json(&server.check(&line, 0));
    let rows = report["results"].as_array().expect("a list");
    assert_eq!(rows.len(), 2 * 2 * 3 * 2);
    for row in rows {
        let row_bytes = if row["preset"] == "ngram" { 48 * 264 } else { 8 * 64 };
        assert_eq!(row["verified_bytes"], 2 * row_bytes * row["tokens"].as_u64().expect("tokens"), "{row:#}");
        assert!(row["errors"] == 0 && row["us_per_token"]["p50"].as_f64() > Some(0.0), "{row:#}");
        // What asks first is held against no limit that doesn't.
        let has_limit = row["transport"] == "tcp" || row["mode"] != "query";
        assert_eq!(row["ratio_p50"].is_f64(), has_limit, "{row:#}");
    }
    assert_eq!(report["history"].as_array().map(Vec::len), Some(6 + 12));
    assert_eq!(json(&std::fs::read(written).expect("written")), report);
    assert!(std::fs::read_to_string(plot).expect("drawn").contains("preset=ngram"));
    assert_eq!(text(&server.check(&["ls"], 0)), "");
    std::fs::remove_dir_all(folder).expect("removed");
}

/// Shows that tables which somebody else stored are left alone unless told otherwise, and that sizes which don't fit are refused.
#[test]
fn what_is_in_the_way_is_said() {
    let server = TestServer::start();
    server.run_with_input(&["put", "engram:l0:h3"], b"somebody's");
    let engram = [
        "bench",
        "engram",
        "--preset",
        "store",
        "--mode",
        "query",
        "--tokens",
        "1",
        "--iterations",
        "10",
        "--transport",
        "tcp",
    ];
    let refused = server.run(&engram);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains("engram:l0:h3"), "{refused:?}");
    assert_eq!(server.check(&["get", "engram:l0:h3"], 0), b"somebody's");
    server.check(&[&engram[..], &["--replace"]].concat(), 0);
    server.check(&["bench", "engram", "--preset", "store", "--scale-rows", "100"], 2);
    server.check(&["bench", "latency", "--working-set", "1GiB"], 2);
    server.check(&["bench", "engram"], 2);
    let gone = run_lanner("lanner://127.0.0.1:1", &["bench", "latency"], b"");
    assert_eq!(gone.status.code(), Some(3), "{gone:?}");
}

/// A planted fault: another content under a table's key while rows are read. Shows that the benchmark fails with status 1 and says where.
#[test]
fn a_wrong_byte_fails_the_benchmark() {
    let server = TestServer::start();
    let running = Command::new(env!("CARGO_BIN_EXE_lanner"))
        .args([
            "--url",
            &server.url(""),
            "bench",
            "engram",
            "--preset",
            "store",
            "--mode",
            "checked",
            "--tokens",
            "1",
        ])
        .args(["--transport", "tcp", "--duration", "60s", "--iterations", "1000000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let is_stored = || server.run(&["exists", "engram:l0:h7"]).status.success();
    while !is_stored() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let planted = server.run_with_input(&["upsert", "engram:l0:h0"], &vec![0; 50_000 * 64]);
    assert!(planted.status.success(), "{planted:?}");
    let output = running.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("WRONG BYTES in row") && output.stdout.is_empty(), "{output:?}");
}
