//! Starts servers for tests: in this process, on free ports, with little memory.

use lanner_client::{Client, ClientConfig, Clock, Error};
use lanner_server::admin::board::{Board, ShardReport};
use lanner_server::config::flags::{self, Asked};
use lanner_server::config::resolve::resolve;
use lanner_server::server::{Running, Server};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// A free port at an address that no other test has: clients of a server that has ended would come to whoever got its port.
fn own_address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("127.0.{}.{}:0", 1 + number / 250, 1 + number % 250)
}

/// Where the guest of `scripts/rdma-vm` has its first device; clients find the second one by themselves.
fn rdma_address() -> Option<String> {
    std::env::var("RDMA_VM_IP0").ok().filter(|_| lanner_rdma::HAS_VERBS)
}

/// The transports that there are here: RDMA in a guest that has devices for it. `LANNER_TEST_TRANSPORTS` names those that are meant, where
/// another run has the others.
pub fn transports() -> Vec<&'static str> {
    let mut all = vec!["tcp", "shm"];
    all.extend(rdma_address().map(|_| "rdma"));
    if let Ok(meant) = std::env::var("LANNER_TEST_TRANSPORTS") {
        all.retain(|transport| meant.split(',').any(|meant| meant == *transport));
    }
    assert!(!all.is_empty(), "LANNER_TEST_TRANSPORTS names none that there is");
    all
}

/// A time that a test holds its server or itself to, longer where everything is slower: in the guest, whose processor is emulated.
pub fn slowed(time: Duration) -> Duration {
    if rdma_address().is_some() { time * 10 } else { time }
}

/// A server that ends with the test.
pub struct TestServer {
    running: Option<Running>,
    board: Arc<Board>,
}

impl TestServer {
    /// Starts a server with these flags beside the ones that every test wants.
    pub fn start(flags: &[&str]) -> TestServer {
        let mut line = vec!["lanner-server", "--admin", "off", "--huge-pages", "off"];
        let listen = rdma_address().map_or_else(own_address, |address| format!("{address}:0"));
        if !flags.contains(&"--listen") {
            line.extend(["--listen", &listen]);
        }
        if !flags.contains(&"--memory") {
            line.extend(["--memory", "64MiB"]);
        }
        if !flags.contains(&"--shards") {
            line.extend(["--shards", "1"]);
        }
        line.extend(flags);
        let Ok(Asked::Serve(flags)) = flags::parse(line) else { panic!("flags") };
        let config = resolve(*flags).unwrap();
        let board = Arc::new(Board::new(config.shards(), config.tenants.len()));
        let running = Server::start(config, board.clone()).unwrap();
        TestServer { running: Some(running), board }
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        self.running().addresses[0]
    }

    /// What the shards report, once they have reported what `is_there` waits for.
    pub fn reports_when(&self, is_there: impl Fn(&[Arc<ShardReport>]) -> bool) -> Vec<Arc<ShardReport>> {
        for _ in 0..200 {
            let reports = self.board.reports();
            if is_there(&reports) {
                return reports;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("waited in vain: {:#?}", self.board.reports());
    }

    pub fn url(&self, parameters: &str) -> String {
        format!("lanner://{}?{parameters}", self.running().addresses[0])
    }

    /// A client over `transport`, which is checked to be the one used.
    pub fn client(&self, transport: &str) -> Client {
        let config: ClientConfig = self.url(&format!("transport={transport}")).parse().unwrap();
        let client = Client::with_config(config).unwrap();
        assert_eq!(client.transport_for(b"any key").unwrap(), transport);
        client
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
            running.join().unwrap();
        }
    }
}

/// Calls `attempt` until it succeeds; panics with its last error after `limit`.
pub fn soon_within<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T, Error>) -> T {
    let began = Clock.now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) if Clock.now().since(began) > limit => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
