//! The binary `lanner` as scripts see it: what it prints on which stream, and its exit status.

use std::process::{Command, Output};

fn lanner(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lanner"))
        .args(arguments)
        .env_remove("LANNER_URL")
        .output()
        .expect("the binary runs")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error} in {output:?}"))
}

/// Shows that the exit status of a check follows from its findings, and that a machine that tests run on has what Lanner needs.
#[test]
fn check_answers_with_its_exit_status() {
    let free_ports = [
        "check",
        "--json",
        "--memory",
        "1MiB",
        "--shards",
        "1",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ];
    let output = lanner(&free_ports);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(json(&output).as_array().is_some_and(|findings| findings.len() > 10));

    // As the server takes it: then there is one port to listen on.
    let without_admin = [&free_ports[..free_ports.len() - 1], &["off"]].concat();
    let output = lanner(&without_admin);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("admin port"), "{output:?}");

    let output = lanner(&["check", "--json", "--memory", "1PiB"]);
    assert_eq!(output.status.code(), Some(1));
    let findings = json(&output);
    let missing = |finding: &&serde_json::Value| {
        finding["verdict"] == "missing" && finding["what"] == "available memory"
    };
    assert_eq!(findings.as_array().expect("a list").iter().filter(missing).count(), 1, "{findings:#}");
}

/// Shows that wrong use is one message on standard error, nothing on standard output, and status 2.
#[test]
fn wrong_use_has_status_2_and_says_so_on_standard_error() {
    for arguments in [
        &["no-such-command"][..],
        &["check", "--listen", "nowhere"],
        &["bench", "floor", "--cores", "0,0"],
        &["bench", "floor", "--cold-memory", "1PiB"],
        &["bench", "floor", "--cold-memory", "4MiB", "--iterations", "1", "--cores", "0,99999"],
    ] {
        let output = lanner(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

/// Shows a whole small run: JSON of the promised form on standard output, no progress bar where nobody looks, a plot where it was wanted.
#[test]
fn floor_measures_prints_and_plots() {
    let plot = std::env::temp_dir().join(format!("lanner-floor-{}.svg", std::process::id()));
    let size = ["bench", "floor", "--json", "--cold-memory", "4MiB", "--iterations", "10", "--plot"];
    let output = lanner(&[&size[..], &[plot.to_str().expect("text")]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let report = json(&output);
    assert_eq!(report["benchmark"], "floor");
    let results = report["results"].as_array().expect("a list");
    assert!(results.iter().all(|row| row["iterations"] == 10 && row["errors"] == 0), "{report:#}");
    let svg = std::fs::read_to_string(&plot).expect("drawn");
    assert!(svg.contains("<svg") && svg.contains("gather-hot"));
    std::fs::remove_file(&plot).expect("removed");
}
