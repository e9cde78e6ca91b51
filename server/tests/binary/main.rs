//! The binary `lanner-server` as scripts and operators see it: the ready line, the endpoints, signals, and what it says when it
//! can't be started.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use lanner_client::{Client, Error, PutOptions};
use lanner_shared::time::Clock;

/// Flags that keep a server small and away from others.
const SMALL: [&str; 10] = [
    "--listen",
    "127.0.0.1:0",
    "--admin",
    "127.0.0.1:0",
    "--memory",
    "16MiB",
    "--shards",
    "1",
    "--huge-pages",
    "off",
];

fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanner-server"));
    command.args(flags).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server that is ready, and ends with the test.
struct Served {
    process: Child,
    ready: String,
}

impl Served {
    fn start(flags: &[&str]) -> Served {
        let mut process = command(&SMALL).args(flags).spawn().expect("it runs");
        let mut ready = String::new();
        let output = process.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut ready).expect("a line");
        Served { process, ready }
    }

    fn field(&self, name: &str) -> &str {
        let value = self.ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {name} in {:?}", self.ready))
    }

    fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_raw(self.process.id() as i32).expect("a process");
        let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal");
        rustix::process::kill_process(pid, signal).expect("sent");
    }

    /// Stops it; returns once each of its threads stands still.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let pid = rustix::process::Pid::from_raw(self.process.id() as i32).expect("a process");
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).expect("it is ours");
    }

    /// How it ended, if it did within a time.
    fn ended_within(&mut self, time: Duration) -> Option<ExitStatus> {
        let began = Clock.now();
        while Clock.now().since(began) < time {
            if let Some(status) = self.process.try_wait().expect("it is ours") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    fn said(&mut self) -> String {
        let mut said = String::new();
        let _ = self.process.stderr.take().expect("piped").read_to_string(&mut said);
        said
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ask(address: &str, path: &str) -> String {
    let mut connection = TcpStream::connect(address).expect("connected");
    write!(connection, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("asked");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("answered");
    answer
}

/// Shows the ready line of the command-line contract, the endpoints, and a drain that ends with status 0.
#[test]
fn it_says_when_it_is_ready_and_drains() {
    let mut server = Served::start(&[]);
    assert!(server.ready.starts_with("ready listen=127.0.0.1:"), "{}", server.ready);
    assert_eq!((server.field("shards"), server.field("memory")), ("1", "16777216"));
    assert!(server.field("boot").len() == 32 && !server.field("listen").ends_with(":0"));
    let admin = server.field("admin").to_owned();
    assert!(ask(&admin, "/readyz").starts_with("HTTP/1.1 200"));
    assert!(ask(&admin, "/metrics").contains("lanner_ready 1\n"));
    server.signal(signal_hook::consts::SIGTERM);
    let status = server.ended_within(Duration::from_secs(5)).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", server.said());
}

/// Shows that one SIGINT drains, and that a second one ends a server that would still wait for its clients.
/// A call that found its server stopped waited for the time-out once for shared memory, once for TCP, and then for its own; and for ever where
/// too many waited at the server's socket already. Shows that it waits for one time-out in all, also beside other threads, that the call
/// behind it fails at once, and that all is well when the server goes on.
#[test]
fn a_stopped_server_costs_no_more_than_the_time_out() {
    for transport in ["auto", "shm", "tcp"] {
        let server = Served::start(&[]);
        let url = format!("lanner://{}?transport={transport}&timeout=400ms", server.field("listen"));
        let client = Client::connect(&url).expect("a server that answers");
        client.put(b"key", b"value").expect("stored");
        server.stop();
        // A thread has connections of its own, so that each connects anew.
        let attempts = |threads: usize| {
            std::thread::scope(|scope| {
                let attempt = || {
                    let began = Clock.now();
                    let refused = client.get(b"key").expect_err("nobody answers");
                    let first = Clock.now().since(began);
                    let again = client.get(b"key").expect_err("nobody answers");
                    (first, Clock.now().since(began).saturating_sub(first), refused, again)
                };
                let threads: Vec<_> = (0..threads).map(|_| scope.spawn(attempt)).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
            })
        };
        for (first, second, refused, again) in attempts(20) {
            assert!(first < Duration::from_millis(900), "{transport}: {first:?}: {refused}");
            assert!(second < Duration::from_millis(100), "{transport}: {second:?}: {again}");
        }
        server.signal(libc::SIGCONT);
        let began = Clock.now();
        while client.get(b"key").ok().is_none_or(|value| value != b"value") {
            assert!(Clock.now().since(began) < Duration::from_secs(10), "{transport}");
        }
    }
}

/// A batch was lost whole where one server of two stood still, and the next one said that the other server had not answered. Shows that each key of
/// the server that stands still says so, and all others are answered, at once and when the batch has to connect first.
#[test]
fn a_stopped_server_takes_only_its_own_keys() {
    for transport in ["shm", "tcp"] {
        let servers = [Served::start(&[]), Served::start(&[])];
        let addresses = servers.each_ref().map(|server| server.field("listen").to_owned());
        let url = format!("lanner://{}?transport={transport}&timeout=500ms", addresses.join(","));
        let client = Client::connect(&url).expect("servers that answer");
        let keys: Vec<String> = (0..40).map(|number| format!("key {number}")).collect();
        let items: Vec<(&str, &str)> = keys.iter().map(|key| (&**key, &**key)).collect();
        let stored = client.upsert_batch(&items, PutOptions::default()).expect("stored");
        assert!(stored.iter().all(Result::is_ok), "{stored:?}");
        servers[0].stop();
        let is_at = |error: &Error| match error {
            Error::Timeout { server, .. } | Error::Unreachable { server, .. } => **server == *addresses[0],
            _ => false,
        };
        for round in 0..3 {
            let got = client.get_batch(&keys).expect("an outcome for each key");
            let put = client.upsert_batch(&items, PutOptions::default()).expect("an outcome for each key");
            let pending = client.submit_get_batch(&keys).expect("asked");
            let polled = pending.wait().expect("an outcome for each key");
            let lost = got.iter().filter(|outcome| outcome.is_err()).count();
            assert!((1..40).contains(&lost), "{lost} of 40");
            for (key, (got, (polled, put))) in keys.iter().zip(got.iter().zip(polled.iter().zip(&put))) {
                let outcomes = [got.as_ref().err(), polled.as_ref().err(), put.as_ref().err()];
                let told = outcomes.iter().flatten().all(|error| is_at(error));
                assert!(
                    told && outcomes.iter().all(|it| it.is_some() == got.is_err()),
                    "{round}: {outcomes:?}"
                );
                assert!([got, polled].into_iter().flatten().all(|value| value == key.as_bytes()), "{key}");
            }
        }
        servers[0].signal(libc::SIGCONT);
    }
}

/// A batch whose server stood still for 10 ms went on over another connection, and its later items overtook the first: of a key that stood twice the
/// wrong value stayed. Shows that items for one key take effect in their order, however the server is held up.
#[test]
fn a_pause_of_the_server_changes_no_order() {
    let server = Served::start(&["--lease-ttl", "100ms"]);
    let values: Vec<Vec<u8>> = (1..=4_u8).map(|number| vec![number; 1 << 20]).collect();
    let items: Vec<(&str, &[u8])> = values.iter().map(|value| ("key", value.as_slice())).collect();
    for transport in ["shm", "tcp"] {
        let url = format!("lanner://{}?transport={transport}", server.field("listen"));
        let client = Client::connect(&url).expect("a server that answers");
        for round in 0..12_u64 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_micros(200 * round));
                    server.stop();
                    std::thread::sleep(Duration::from_millis(40));
                    server.signal(libc::SIGCONT);
                });
                let outcomes = client.upsert_batch(&items, PutOptions::default()).expect("outcomes");
                assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            });
            assert_eq!(client.get(b"key").expect("it was stored")[0], 4, "{transport}, round {round}");
            assert!(client.remove(b"key").expect("removed"));
        }
    }
}

#[test]
fn a_second_interrupt_ends_it_at_once() {
    let mut server = Served::start(&[]);
    server.signal(signal_hook::consts::SIGINT);
    assert_eq!(server.ended_within(Duration::from_secs(5)).and_then(|status| status.code()), Some(0));
    // Two at once: the handler of the second finds the first.
    let mut server = Served::start(&[]);
    server.signal(signal_hook::consts::SIGINT);
    server.signal(signal_hook::consts::SIGINT);
    let code = server.ended_within(Duration::from_secs(5)).and_then(|status| status.code());
    // Both may be delivered as one, which is then a drain.
    assert!(matches!(code, Some(0 | 130)), "{code:?}");
}

/// Checks that a server doesn't start: within a second, with status 2 and one line that says `wanted`.
fn refused(flags: &[&str], wanted: &str) {
    let began = Clock.now();
    let Output { status, stdout, stderr } = command(flags).output().expect("it runs");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(2), "{flags:?}: {said}");
    assert!(
        Clock.now().since(began) < Duration::from_secs(2),
        "{flags:?} took {:?}",
        Clock.now().since(began)
    );
    assert!(stdout.is_empty(), "{flags:?}");
    assert!(said.contains(wanted) && said.lines().count() == 1, "{flags:?}: {said}");
}

/// Shows that a port in use, of clients or of the admin endpoint, is named with how to find its owner (scenario 22).
#[test]
fn a_port_in_use_is_named() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = other.local_addr().expect("bound").to_string();
    for flag in ["--listen", "--admin"] {
        let mut flags = SMALL.to_vec();
        let place = flags.iter().position(|word| *word == flag).expect("there");
        flags[place + 1] = &taken;
        refused(&flags, &taken);
        refused(&flags, "ss -ltnp");
    }
}

/// Shows that what can't be meant or had is said in one line.
#[test]
fn what_cannot_be_started_is_said_in_one_line() {
    refused(&["--memory", "1PiB", "--shards", "1"], "--memory");
    refused(&["--memory", "200GiB", "--shards", "1"], "--memory");
    refused(&["--no-such-flag"], "--no-such-flag");
    refused(&["--config", "/no/such/file"], "/no/such/file");
    refused(&["--policy", "clock"], "adaptive");
}

/// Shows that what `--print-config` prints starts the same server, and that nothing is left running by it.
#[test]
fn a_printed_configuration_starts_a_server() {
    let output = command(&SMALL).args(["--print-config", "--lease-ttl", "700ms"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let path = std::env::temp_dir().join(format!("lanner-config-{}.toml", std::process::id()));
    std::fs::write(&path, &output.stdout).expect("written");
    let again =
        command(&["--config", path.to_str().expect("text"), "--print-config"]).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&output.stdout));
    let mut server = Command::new(env!("CARGO_BIN_EXE_lanner-server"));
    let mut process = server
        .arg("--config")
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut ready = String::new();
    BufReader::new(process.stdout.take().expect("piped")).read_line(&mut ready).expect("a line");
    process.kill().expect("ours");
    process.wait().expect("ours");
    assert!(ready.contains("memory=16777216"), "{ready}");
    std::fs::remove_file(&path).expect("removed");
}

/// Shows what a server does without, said once on standard error, and nothing of it when that was asked for.
#[test]
fn what_it_does_without_is_said_once() {
    let said = |flags: &[&str]| {
        let mut server = Served::start(flags);
        server.signal(signal_hook::consts::SIGTERM);
        server.ended_within(Duration::from_secs(5)).expect("it ends");
        server.said()
    };
    assert_eq!(said(&[]).matches("RDMA").count(), 2, "in one line");
    assert_eq!(said(&["--rdma", "off", "--log", "off"]), "");
}

/// A mistyped path for the Unix socket leads to a file that is somebody's: it's refused and stays as it was.
#[test]
fn a_file_that_is_no_socket_is_not_taken_for_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("precious");
    std::fs::write(&path, "precious").expect("written");
    let output = command(&SMALL).args(["--shm", path.to_str().expect("text")]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("precious") && said.contains("--shm"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).expect("still there"), "precious");
}
