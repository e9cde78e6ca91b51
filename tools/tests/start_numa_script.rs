//! `scripts/start-numa`, with a small program in the place of the server: that each node has one, and that none is left behind.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Shows that the URL of all servers is printed once they are ready, that flags reach them, and that SIGTERM ends them with the script.
#[test]
fn servers_start_and_end_with_the_script() {
    let folder = std::env::temp_dir().join(format!("lanner-start-numa-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let program = folder.join("server");
    let text = format!(
        "#!/usr/bin/env bash\necho \"$$ $*\" >> {0}/started\necho \"ready listen=$4 admin=off\"\nexec sleep 60\n",
        folder.display()
    );
    std::fs::write(&program, text).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let nodes = folder.join("nodes");
    std::fs::create_dir(&nodes).expect("a folder");
    std::fs::write(nodes.join("has_cpu"), "0-1\n").expect("written");

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/start-numa");
    let mut running = Command::new(script)
        .args(["--port", "9000", "--memory", "1GiB"])
        .env("LANNER_SERVER", &program)
        .env("NODE_FOLDER", &nodes)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash");
    let mut url = String::new();
    BufReader::new(running.stdout.take().expect("piped")).read_line(&mut url).expect("a line");
    assert_eq!(url, "lanner://127.0.0.1:9000,127.0.0.1:9002\n");
    let started = std::fs::read_to_string(folder.join("started")).expect("started");
    let lines: Vec<(&str, &str)> = started.lines().filter_map(|line| line.split_once(' ')).collect();
    let flags = |node: u32, port: u32| {
        format!("--numa-node {node} --listen 127.0.0.1:{port} --admin 127.0.0.1:{} --memory 1GiB", port + 1)
    };
    assert_eq!(lines.iter().map(|(_, flags)| *flags).collect::<Vec<_>>(), [flags(0, 9000), flags(1, 9002)]);

    let pid = rustix::process::Pid::from_raw(running.id() as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("sent");
    assert_eq!(running.wait().expect("ours").code(), Some(0));
    for (pid, _) in lines {
        assert!(!Path::new("/proc").join(pid).exists(), "server {pid} was left behind");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}
