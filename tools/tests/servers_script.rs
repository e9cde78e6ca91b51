//! `scripts/servers.sh`, with small programs in the place of servers: a script that leaves a server behind, or waits for one that has
//! died, costs whoever uses it an evening.

use std::path::Path;
use std::process::{Command, Output};

/// Runs a script under the options that all of ours use, in a folder of its own, with the functions loaded.
fn run(script: &str) -> Output {
    let functions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/servers.sh");
    let folder =
        std::env::temp_dir().join(format!("lanner-servers-{}-{}", std::process::id(), fastrand::u64(..)));
    std::fs::create_dir(&folder).expect("a folder");
    let text = format!("set -euo pipefail\nsource {}\ntrap stop_servers EXIT\n{script}", functions.display());
    let output = Command::new("bash").args(["-c", &text]).current_dir(&folder).output().expect("bash");
    std::fs::remove_dir_all(&folder).expect("removed");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks a script that has to succeed: what it prints.
fn check(script: &str, printed: &str) {
    let output = run(script);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), printed);
}

/// Shows that a server counts as started once it is ready, that its ready line is read, and that leaving the script ends it.
#[test]
fn a_server_is_ready_and_ends_with_the_script() {
    let output = run(r#"
        start_server a bash -c 'sleep 0.3; echo "ready listen=127.0.0.1:4711 boot=ab"; exec sleep 60'
        ready_field listen
        ready_field nothing || echo "no such field"
        echo "${SERVER_PIDS[0]}"
    "#);
    let stdout = text(&output.stdout);
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines[..2], ["127.0.0.1:4711", "no such field"], "{}", text(&output.stderr));
    assert!(!Path::new("/proc").join(lines[2]).exists(), "process {} was left behind", lines[2]);
}

/// Shows that a server which dies is not waited for, and that its last words are shown.
#[test]
fn a_server_that_dies_is_reported_at_once() {
    let output = run("start_server a bash -c 'echo port in use >&2; exit 2'; echo not reached");
    assert!(!output.status.success());
    assert_eq!(text(&output.stdout), "");
    assert!(text(&output.stderr).contains("port in use"), "{}", text(&output.stderr));
}

/// Shows that a server which never gets ready is given up, and is ended like the others.
#[test]
fn a_server_that_is_never_ready_is_given_up() {
    let output = run("READY_SECONDS=1\nstart_server a sleep 60 || { echo \"${SERVER_PIDS[0]}\"; exit 1; }");
    assert_eq!(output.status.code(), Some(1));
    let pid = text(&output.stdout).trim().to_owned();
    assert!(text(&output.stderr).contains("not ready after 1 s"), "{}", text(&output.stderr));
    assert!(!Path::new("/proc").join(&pid).exists(), "process {pid} was left behind");
}

/// Shows that a server which ignores SIGTERM is killed in the end, and that the script says so.
#[test]
fn a_server_that_will_not_drain_is_killed() {
    let output = run(r#"
        STOP_SECONDS=1
        start_server a bash -c 'trap "" TERM; echo "ready x=1"; while true; do sleep 0.1; done'
        stop_servers
        echo "left: ${#SERVER_PIDS[@]}"
    "#);
    assert_eq!(text(&output.stdout), "left: 0\n");
    assert!(text(&output.stderr).contains("was killed"), "{}", text(&output.stderr));
}

/// Shows which nodes there are for the lists that kernels write, and for a kernel that writes none.
#[test]
fn numa_nodes_are_listed() {
    for (list, nodes) in [("0", "0\n"), ("0-2", "0\n1\n2\n"), ("0,2-3", "0\n2\n3\n")] {
        check(&format!("mkdir nodes; echo {list} > nodes/has_cpu; NODE_FOLDER=nodes numa_nodes"), nodes);
    }
    check("NODE_FOLDER=none numa_nodes", "0\n");
}

/// Shows which CPUs a server gets beside a client: those of its node but the first, of those that are allowed; all if there is one only.
#[test]
fn a_server_leaves_a_cpu_to_its_client() {
    for (of_node, allowed, cores) in [
        ("0-3", "0-7", "1,2,3\n"),
        ("4-7", "0-5", "5\n"),
        ("0-1", "0-1", "1\n"),
        ("0", "0-3", "0\n"),
        ("8-11", "9-10", "10\n"),
    ] {
        let script = format!(
            "mkdir -p nodes/node2; echo {of_node} > nodes/node2/cpulist; printf 'Cpus_allowed_list:\\t{allowed}\\n' > status
            NODE_FOLDER=nodes STATUS_FILE=status server_cores 2"
        );
        check(&script, cores);
    }
    check(
        "printf 'Cpus_allowed_list:\\t2-4\\n' > status; NODE_FOLDER=none STATUS_FILE=status server_cores 0",
        "3,4\n",
    );
}
