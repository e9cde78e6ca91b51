//! Starts the binary `lanner-server` on free ports, with little memory, and runs `lanner` against it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A server that ends with the test.
pub struct TestServer {
    process: Child,
    listen: String,
    admin: String,
}

impl TestServer {
    /// Starts a server and waits for its ready line.
    pub fn start() -> TestServer {
        TestServer::with_flags(&["--memory", "64MiB", "--shards", "2"])
    }

    /// [`TestServer::start`] with these flags beside the ones that every test wants.
    pub fn with_flags(flags: &[&str]) -> TestServer {
        let mut process = Command::new(server_program())
            .args([
                "--listen",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--huge-pages",
                "off",
                "--rdma",
                "off",
            ])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server runs");
        let mut ready = String::new();
        let output = process.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut ready).expect("a line");
        let field = |name: &str| {
            let value = ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_else(|| panic!("no {name} in the ready line {ready:?}")).to_owned()
        };
        TestServer { listen: field("listen"), admin: field("admin"), process }
    }

    /// The URL for `lanner`, with parameters such as `transport=tcp`.
    pub fn url(&self, parameters: &str) -> String {
        format!("lanner://{}?{parameters}", self.listen)
    }

    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// Runs `lanner` against this server.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.run_with_input(arguments, b"")
    }

    /// Runs `lanner` against this server with `input` as standard input.
    pub fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        run_lanner(&self.url(""), arguments, input)
    }

    /// Runs `lanner`, checks its exit status and that it complained if and only if it wasn't 0, and returns its standard output.
    pub fn check(&self, arguments: &[&str], status: i32) -> Vec<u8> {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        output.stdout
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs `lanner` with this URL and standard input.
pub fn run_lanner(url: &str, arguments: &[&str], input: &[u8]) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_lanner"))
        .args(arguments)
        .env("LANNER_URL", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // A command that doesn't read its input may have ended already.
    let _ = process.stdin.take().expect("piped").write_all(input);
    process.wait_with_output().expect("it ends")
}

pub fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|error| panic!("{error} in {}", String::from_utf8_lossy(bytes)))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder for one test's files, empty.
pub fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("lanner-test-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).expect("a folder");
    folder
}

/// The server's binary beside that of `lanner`. A test of the whole workspace builds it; a test of this package alone doesn't,
/// so it is built here if it isn't there.
fn server_program() -> PathBuf {
    let programs = Path::new(env!("CARGO_BIN_EXE_lanner")).parent().expect("in a folder");
    let program = programs.join("lanner-server");
    if !program.exists() {
        let profile = if programs.ends_with("release") { "release" } else { "test" };
        let target = programs.parent().expect("in the target folder");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--package", "lanner-server", "--bin", "lanner-server"])
            .args(["--profile", profile, "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "the server can't be built");
    }
    program
}
