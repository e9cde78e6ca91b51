//! The servers of a client: what each said of itself, and how a lane gets a connection to one of its shards.
//!
//! Everything here is set-up: it may block, allocate and take a lock, but never waits for a server with a lock held ([`connect`]). The data path
//! reads two atomics ([`Server::shards`], [`Server::is_local`]) and the connections of its own lane.

mod attempts;
mod connect;

use crate::config::ClientConfig;
use crate::connection::backoff::Backoff;
use crate::connection::handshake::{self, Caller};
use crate::connection::rdma::join::{self, Probes};
use crate::lane::Route;
use crate::mapping::Mapping;
use crate::placement::{Candidate, server_of};
use crate::turns::Turns;
use crate::watcher::ServerLife;
use attempts::Attempts;
pub(crate) use connect::Patience;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::hello::{ANY_SHARD, Welcome};
use lanner_shared::{Error, KeyHash, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

/// Threads that make a connection to a server at a time; others wait for their turn. With more, each would take longer than it may: a server
/// makes them one after the other.
const CONNECTING_AT_ONCE: usize = 8;

/// All servers of a client.
#[derive(Debug)]
pub(crate) struct Cluster {
    servers: Vec<Server>,
    candidates: Vec<Candidate>,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    pub address: Arc<str>,
    /// Its number of shards, as it said last. Written by whoever connects, read for each key.
    shards: AtomicU16,
    /// Whether the last connection is over shared memory. Written and read as the number of shards is.
    is_local: AtomicBool,
    #[expect(
        clippy::disallowed_types,
        reason = "taken only while a connection is being made, and never while something is waited for"
    )]
    setup: std::sync::Mutex<Setup>,
    rdma_backoff: Arc<Backoff>,
    /// At making a connection.
    turns: Turns,
    /// At what all connections share: the sign of the server's life, the mapping of a segment, the device.
    opening: Turns,
    /// At trying RDMA where it has failed.
    probing: Turns,
    /// In place of sockets.
    #[cfg(feature = "simulation")]
    network: Option<crate::simulation::NetworkOf>,
}

/// What is known of a server's present life.
#[derive(Debug)]
struct Setup {
    welcome: Welcome,
    /// When what it says of itself was asked for.
    asked: Instant,
    life: Option<Arc<ServerLife>>,
    /// By shard.
    mappings: Vec<Option<Arc<Mapping>>>,
    /// Of the RDMA device that leads to it, once there was a connection: kept open between two.
    rdma_domain: Option<Arc<join::Domain>>,
    /// Links of which is to be seen whether they work.
    probes: Probes,
    /// Whether it was reached over RDMA in this life.
    had_rdma: bool,
    attempts: Attempts,
}

impl Cluster {
    /// Meets all servers of `config`: placement needs the id and the size of each.
    pub fn meet(config: &ClientConfig, client_id: u64) -> Result<Cluster> {
        let mut cluster = Cluster { servers: Vec::new(), candidates: Vec::new() };
        for address in &config.servers {
            let address: Arc<str> = Arc::from(&**address);
            let caller = Caller {
                config,
                client_id,
                until: Clock.now().plus(config.connect_timeout.min(config.timeout)),
            };
            let (_, welcome) = handshake::connect_tcp(caller, &address, ANY_SHARD, 0)?;
            let candidate = Candidate {
                server_id: welcome.server_id.get(),
                capacity_bytes: welcome.capacity_bytes.get(),
            };
            if cluster.candidates.iter().any(|known| known.server_id == candidate.server_id) {
                let text = format!(
                    "two of the addresses lead to one server, the second is {address}; name each server once"
                );
                return Err(Error::InvalidArgument(text.into()));
            }
            cluster.candidates.push(candidate);
            cluster.servers.push(Server::new(address, welcome));
        }
        Ok(cluster)
    }

    /// Meets servers whose network, memory and clock a simulator makes up.
    #[cfg(feature = "simulation")]
    pub fn simulated(networks: Vec<(crate::simulation::NetworkOf, Welcome)>) -> Cluster {
        let candidate = |welcome: &Welcome| Candidate {
            server_id: welcome.server_id.get(),
            capacity_bytes: welcome.capacity_bytes.get(),
        };
        let candidates = networks.iter().map(|(_, welcome)| candidate(welcome)).collect();
        let server = |(place, (network, welcome)): (usize, (crate::simulation::NetworkOf, Welcome))| Server {
            network: Some(network),
            ..Server::new(format!("simulated-{place}").into(), welcome)
        };
        Cluster { servers: networks.into_iter().enumerate().map(server).collect(), candidates }
    }

    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Where a key belongs.
    #[inline]
    pub fn route(&self, hash: KeyHash) -> Route {
        let server = server_of(hash, &self.candidates);
        let shards = self.servers[server].shards.load(Ordering::Relaxed);
        Route { server: server as u16, shard: hash.shard(shards).0 }
    }

    /// Every shard of every server.
    pub fn routes(&self) -> impl Iterator<Item = Route> {
        self.servers.iter().enumerate().flat_map(|(server, details)| {
            (0..details.shards.load(Ordering::Relaxed))
                .map(move |shard| Route { server: server as u16, shard })
        })
    }
}

impl Server {
    #[expect(clippy::disallowed_types, reason = "taken only while a connection is being made")]
    fn new(address: Arc<str>, welcome: Welcome) -> Server {
        Server {
            address,
            shards: AtomicU16::new(welcome.shards.get()),
            is_local: AtomicBool::new(false),
            setup: std::sync::Mutex::new(Setup {
                welcome,
                asked: Instant::ZERO,
                life: None,
                mappings: Vec::new(),
                rdma_domain: None,
                probes: Probes::default(),
                had_rdma: false,
                attempts: Attempts::default(),
            }),
            rdma_backoff: Arc::default(),
            turns: Turns::new(CONNECTING_AT_ONCE),
            opening: Turns::new(1),
            probing: Turns::new(1),
            #[cfg(feature = "simulation")]
            network: None,
        }
    }

    /// Whether the last connection to it is over shared memory.
    #[inline]
    pub fn is_local(&self) -> bool {
        self.is_local.load(Ordering::Relaxed)
    }

    /// How often RDMA has failed on the way to it, and why the last time.
    pub fn rdma_failures(&self) -> (u64, Option<Arc<str>>) {
        self.rdma_backoff.failures()
    }

    /// What the server said of itself last.
    pub fn welcome(&self) -> Welcome {
        self.setup().welcome
    }

    /// Nobody waits for anything while he has it. Whoever panicked with it left a whole one behind: each step replaces fields as a unit.
    fn setup(&self) -> std::sync::MutexGuard<'_, Setup> {
        self.setup.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Setup {
    /// Takes note of what the server said when it was asked at `asked`; a new life ends the use of the old one's memory. Who asked before
    /// others and was answered after them knows nothing new.
    fn renew(&mut self, welcome: Welcome, asked: Instant) {
        if asked < self.asked {
            return;
        }
        if welcome.boot_id != self.welcome.boot_id {
            self.life = None;
            self.mappings.clear();
            self.probes.clear();
            self.had_rdma = false;
        }
        self.welcome = welcome;
        self.asked = asked;
    }

    /// The mapping of a shard's segment, of that life of the server.
    fn mapping(&self, shard: u16, boot_id: [u8; 16]) -> Option<&Arc<Mapping>> {
        let mapping = self.mappings.get(usize::from(shard))?.as_ref()?;
        (mapping.boot_id() == boot_id && !mapping.is_server_gone()).then_some(mapping)
    }
}
