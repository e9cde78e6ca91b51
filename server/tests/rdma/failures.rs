//! What ends under a reader's feet: servers, clients, links, devices. Each ends in the right bytes or a typed error within the time-out, and
//! then all goes on by itself.

use crate::reads::run;
use crate::support::{TestServer, soon_within};
use lanner_client::{Client, Clock, Error, Freshness, Range};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const BYTES: usize = 200_000;

fn value(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|at| (at as u8).wrapping_mul(37).wrapping_add(seed) ^ (at >> 8) as u8).collect()
}

fn range() -> [Range; 1] {
    [Range { key: 0, source_offset: 0, length: BYTES as u64, destination_offset: 0 }]
}

/// Whether an error is one that the end of a server, a link or a device may have.
pub fn is_expected(error: &Error) -> bool {
    matches!(
        error,
        Error::LeaseExpired { .. }
            | Error::ConnectionLost { .. }
            | Error::Unreachable { .. }
            | Error::RdmaUnreachable { .. }
            | Error::Timeout { .. }
            | Error::OutcomeUnknown { .. }
    )
}

/// [`soon_within`] the time that the emulation takes.
pub fn soon<T>(attempt: impl FnMut() -> Result<T, Error>) -> T {
    soon_within(Duration::from_secs(20), attempt)
}

/// Waits until the client's lane is over RDMA again.
pub fn until_rdma(client: &Client) {
    let began = Clock.now();
    loop {
        let transport = client.transport_for(b"key");
        if transport == Ok("rdma") {
            return;
        }
        let waited = Clock.now().since(began);
        assert!(waited < Duration::from_secs(20), "still {transport:?}: {:?}", client.rdma_failures());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A server in a process of its own.
pub struct Process {
    child: Child,
    pub address: String,
}

impl Process {
    pub fn start(listen: &str, boots: &str) -> Process {
        Process::start_with(listen, boots, &[], Stdio::inherit())
    }

    /// The same with more in its environment, and what it logs elsewhere.
    pub fn start_with(listen: &str, boots: &str, environment: &[(&str, &Path)], log: Stdio) -> Process {
        let flags =
            ["--admin", "off", "--memory", "32MiB", "--shards", "1", "--huge-pages", "off", "--shm", "off"];
        let mut child = Command::new(program())
            .args(flags)
            .args(["--listen", listen, "--rdma", "rxe0"])
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{boots}: {error}"));
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let address = ready.split(' ').find_map(|word| word.strip_prefix("listen=")).expect("ready");
        Process { address: address.to_owned(), child }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server's program, beside this one in the guest.
fn program() -> std::path::PathBuf {
    let beside = std::env::current_exe().unwrap().with_file_name("lanner-server");
    if beside.exists() { beside } else { env!("CARGO_BIN_EXE_lanner-server").into() }
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_server_that_is_killed_under_reads_is_gone_and_back() {
    // Reads go on all the while, over two kills: each brings the whole value of the life that granted its lease, or an error.
    let mut server = Process::start("10.77.0.1:0", "first");
    let address = server.address.clone();
    let client = Client::connect(&format!("lanner://{address}?transport=rdma&timeout=4s")).unwrap();
    for life in 1..=3_u8 {
        soon(|| client.upsert(b"key", &value(life)));
        let mut snapshot = Some(soon(|| client.prepare_snapshot(&["key"])));
        let mut read = vec![0; BYTES];
        let reading = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut good, mut failed) = (0, 0);
                let began = Clock.now();
                while failed == 0 && Clock.now().since(began) < Duration::from_secs(20) {
                    let Some(held) = &snapshot else { break };
                    let started = Clock.now();
                    match client.read_ranges_from_snapshot(held, &range(), &mut read, Freshness::Lease) {
                        Ok(()) => {
                            assert_eq!(read, value(life), "life {life}");
                            good += 1;
                        }
                        // A lease that ended by itself.
                        Err(Error::LeaseExpired { .. }) if good > 0 && client.exists(b"key") == Ok(true) => {
                            snapshot = client.prepare_snapshot(&["key"]).ok();
                        }
                        Err(error) => {
                            assert!(is_expected(&error), "{error:?}");
                            failed += 1;
                        }
                    }
                    assert!(Clock.now().since(started) < Duration::from_secs(8), "within the time-out");
                }
                (good, failed)
            });
            std::thread::sleep(Duration::from_millis(1_500));
            server.kill();
            reader.join().unwrap()
        });
        assert!(reading.0 > 0, "life {life}: {reading:?}");
        server = Process::start(&address, "again");
        soon(|| match client.get(b"key") {
            Err(Error::NotFound { .. }) => Ok(()),
            Ok(_) => panic!("bytes of an earlier life"),
            Err(error) => Err(error),
        });
    }
}

/// In the environment of a child that is to be killed: where it connects to.
pub const VICTIM: &str = "LANNER_TEST_VICTIM";

/// A child that runs the test of this name as a victim, and has said `doing`.
pub fn victim(test: &str, server: &TestServer, doing: &str) -> Child {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(VICTIM, server.url("transport=rdma"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains(doing)));
    victim
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_client_that_is_killed_with_reads_posted_harms_nobody() {
    if let Ok(url) = std::env::var(VICTIM) {
        // The child: reads for ever.
        let client = Client::connect(&url).unwrap();
        let snapshot = client.prepare_snapshot(&["key"]).unwrap();
        println!("reading");
        loop {
            let _ =
                client.read_ranges_from_snapshot(&snapshot, &range(), &mut vec![0; BYTES], Freshness::Lease);
        }
    }
    let server = TestServer::start(&[]);
    let client = server.client("rdma");
    client.upsert(b"key", &value(9)).unwrap();
    for _ in 0..3 {
        let test = "failures::a_client_that_is_killed_with_reads_posted_harms_nobody";
        let mut victim = victim(test, &server, "reading");
        server.reports_when(|reports| reports[0].transport.rdma_connections >= 2);
        std::thread::sleep(Duration::from_millis(100));
        victim.kill().unwrap();
        victim.wait().unwrap();
        assert_eq!(client.get(b"key").unwrap(), value(9));
        server.reports_when(|reports| reports[0].transport.rdma_connections == 1);
    }
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_link_that_is_down_for_a_while_is_a_typed_error_and_then_nothing() {
    let server = TestServer::start(&["--shm", "off"]);
    let client = Client::connect(&server.url("transport=auto&timeout=3s")).unwrap();
    client.upsert(b"key", &value(1)).unwrap();
    assert_eq!(client.transport_for(b"key").unwrap(), "rdma");
    let snapshot = client.prepare_snapshot(&["key"]).unwrap();
    let began = Clock.now();
    let mut read = vec![0; BYTES];
    let outcome = {
        let _down = Trouble::begin(
            &["ip link set eth1 down"],
            &[
                "ip link set eth1 up",
                "ip neigh replace 10.77.0.1 lladdr 02:77:00:00:00:01 dev eth1 nud permanent",
                "ip route replace 10.77.0.1 dev eth1 src 10.77.0.2 table 102",
            ],
        );
        client.read_ranges_from_snapshot(&snapshot, &range(), &mut read, Freshness::Lease)
    };
    let took = Clock.now().since(began);
    // What only the client's device noticed, the server counts, too.
    server.reports_when(|reports| reports[0].transport.rdma_failures > 0);
    // TCP finds another way within the machine, so a read may even succeed.
    match outcome {
        Ok(()) => assert_eq!(read, value(1)),
        Err(error) => assert!(is_expected(&error), "{error:?}"),
    }
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!(soon(|| client.get(b"key")), value(1));
    // And over RDMA again, by itself.
    until_rdma(&client);
    assert_eq!(client.get(b"key").unwrap(), value(1));
}

/// Trouble with the network that ends with this value, whatever becomes of the test.
pub struct Trouble(&'static [&'static str]);

impl Trouble {
    pub fn begin(begin: &[&str], end: &'static [&'static str]) -> Trouble {
        begin.iter().for_each(|command| run(command));
        Trouble(end)
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        self.0.iter().for_each(|command| run(command));
    }
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn where_rdma_alone_fails_the_lane_goes_on_over_tcp_and_comes_back() {
    // A network that carries TCP and drops RoCE's packets, as one does whose firewall nobody has told of port 4791.
    let server = TestServer::start(&["--shm", "off"]);
    let client = Client::connect(&server.url("transport=auto&timeout=5s")).unwrap();
    client.upsert(b"key", &value(2)).unwrap();
    assert_eq!(client.transport_for(b"key").unwrap(), "rdma");
    let snapshot = client.prepare_snapshot(&["key"]).unwrap();
    let dropping = Trouble::begin(&DROPS_ROCE, &["tc qdisc del dev eth0 clsact"]);
    // A snapshot of before is read on, by descriptors over TCP.
    let began = Clock.now();
    let mut read = vec![0; BYTES];
    let outcome = client.read_ranges_from_snapshot(&snapshot, &range(), &mut read, Freshness::Lease);
    let took = Clock.now().since(began);
    assert!(took < Duration::from_secs(6), "{took:?}");
    match outcome {
        Ok(()) => assert_eq!(read, value(2)),
        Err(error) => assert!(is_expected(&error), "{error:?}"),
    }
    assert_eq!(soon(|| client.get(b"key")), value(2));
    assert_eq!(client.transport_for(b"key").unwrap(), "tcp");
    let failures = client.rdma_failures();
    assert!(failures.len() == 1 && failures[0].reason.contains("rxe1 port 1 GID"), "{failures:?}");
    drop(dropping);
    until_rdma(&client);
    assert_eq!(client.get(b"key").unwrap(), value(2));
}

/// A network that carries TCP and drops RoCE's packets: where they come in, for a sender that is told of the loss has Soft-RoCE send again and
/// again without a pause.
const DROPS_ROCE: [&str; 2] = [
    "tc qdisc add dev eth0 clsact",
    "tc filter add dev eth0 ingress protocol ip u32 match ip protocol 17 0xff action drop",
];

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_way_that_the_server_s_device_does_not_find_is_named_by_both_gids() {
    // The server's kernel has no route to the GID that the client names: it came out as a limit of 0 RDMA connections.
    let server = TestServer::start(&["--shm", "off"]);
    let nowhere = std::net::Ipv4Addr::new(10, 99, 99, 99).to_ipv6_mapped().octets();
    let refused = crate::raw::refusal_of(&server, nowhere);
    let Error::NoRdmaPath { server_gid, client_gid } = refused else { panic!("{refused:?}") };
    assert_eq!(client_gid, nowhere);
    assert_eq!(server_gid, std::net::Ipv4Addr::new(10, 77, 0, 1).to_ipv6_mapped().octets());
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_network_that_drops_roce_costs_a_new_client_little_and_is_named() {
    // Each new process waited a second, and its first put ended without anybody knowing what had become of it; who asked for RDMA alone was told
    // of a lost connection. Now a READ tells before the first call, later tries are waited for by nobody, and the reason can be had.
    let server = TestServer::start(&["--shm", "off"]);
    let dropping = Trouble::begin(&DROPS_ROCE, &["tc qdisc del dev eth0 clsact"]);
    let client = Client::connect(&server.url("transport=auto&timeout=5s")).unwrap();
    let timed = |call: &dyn Fn() -> Result<(), Error>| {
        let began = Clock.now();
        assert_eq!(call(), Ok(()));
        Clock.now().since(began)
    };
    let first = timed(&|| client.put(b"key", &value(3)));
    assert!(first < Duration::from_millis(1_500), "the first put took {first:?}");
    assert_eq!(client.transport_for(b"key").unwrap(), "tcp");
    let began = Clock.now();
    let mut slowest = Duration::ZERO;
    while Clock.now().since(began) < Duration::from_secs(5) {
        slowest = slowest.max(timed(&|| client.get(b"key").map(drop)));
    }
    assert!(slowest < Duration::from_millis(400), "a later call took {slowest:?}");
    let failures = client.rdma_failures();
    assert!(failures[0].failures >= 2, "{failures:?}");
    for text in ["RDMA", "rxe1", "port 1", "GID", "10.77.0.2", "10.77.0.1", "4791"] {
        assert!(failures[0].reason.contains(text), "{text} in {failures:?}");
    }

    let only = Client::connect(&server.url("transport=rdma&timeout=3s")).unwrap();
    let began = Clock.now();
    let error = only.put(b"another", b"value").unwrap_err();
    assert!(Clock.now().since(began) < Duration::from_secs(4));
    assert!(matches!(error, Error::RdmaUnreachable { .. }), "{error:?}");
    for text in ["RDMA", "rxe1", "port 1", "GID", "10.77.0.2", "10.77.0.1", "4791"] {
        assert!(error.to_string().contains(text), "{text} in '{error}'");
    }
    assert_eq!(client.exists(b"another"), Ok(false));
    server.reports_when(|reports| reports[0].transport.rdma_failures >= 2);

    drop(dropping);
    until_rdma(&client);
    assert_eq!(client.get(b"key").unwrap(), value(3));
}
