//! The servers of a client: what each said of itself, and how a lane gets a connection to one of its shards.
//!
//! Everything here is set-up: it may block, allocate and take a lock. The data path reads two atomics ([`Server::shards`],
//! [`Server::is_local`]) and the connections of its own lane.

use crate::config::{ClientConfig, TransportChoice};
use crate::connection::backoff::Backoff;
use crate::connection::handshake::{self, Caller};
use crate::connection::rdma::join::{self, Probe, Probed, Probes};
use crate::connection::rdma::link::RdmaLink;
use crate::connection::tcp::TcpTransport;
use crate::connection::{Connection, Transport};
use crate::lane::Route;
use crate::mapping::Mapping;
use crate::placement::{Candidate, server_of};
use crate::watcher::ServerLife;
use lanner_rdma::choice::RdmaChoice;
use lanner_shared::error::Limit;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::hello::{ANY_SHARD, Welcome};
use lanner_shared::{Error, KeyHash, Result, ShardId};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

/// How long a first call waits for a sign that RDMA works before it goes on over TCP: long enough for a packet that was lost to be sent again, on
/// devices that round the time up too.
const PROBE_WAIT: Duration = Duration::from_millis(500);
/// How long a sign may take that nobody waits for. A device gives up by itself after half a second, or two.
const LONGEST_PROBE: Duration = Duration::from_secs(3);
/// Time between two looks for it.
const PROBE_PAUSE: Duration = Duration::from_millis(250);
/// What is known of a server without RDMA.
const NO_OFFER: &str = "the server offers none; its log says why";

/// A connection that found no free lane of shared memory is tried again as one after this long.
const LANES_PAUSE: Duration = Duration::from_secs(2);

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
    #[expect(clippy::disallowed_types, reason = "taken only while a connection is being made")]
    setup: std::sync::Mutex<Setup>,
    /// The one in `setup`, for whoever only asks what has failed.
    rdma_backoff: Arc<Backoff>,
    /// In place of sockets.
    #[cfg(feature = "simulation")]
    network: Option<crate::simulation::NetworkOf>,
}

/// What is known of a server's present life.
#[derive(Debug)]
struct Setup {
    welcome: Welcome,
    life: Option<Arc<ServerLife>>,
    /// By shard.
    mappings: Vec<Option<Arc<Mapping>>>,
    /// Of the RDMA device that leads to it, once there is a connection.
    rdma_domain: Option<Arc<join::Domain>>,
    rdma_backoff: Arc<Backoff>,
    /// Links of which is to be seen whether they work.
    probes: Probes,
    /// Whether it was reached over RDMA in this life.
    had_rdma: bool,
    /// When the last attempt to connect failed, and why.
    failed: Option<(Instant, Error)>,
}

impl Cluster {
    /// Meets all servers of `config`: placement needs the id and the size of each.
    pub fn meet(config: &ClientConfig, client_id: u64) -> Result<Cluster> {
        let mut cluster = Cluster { servers: Vec::new(), candidates: Vec::new() };
        for address in &config.servers {
            let address: Arc<str> = Arc::from(&**address);
            let caller = Caller { config, client_id, until: Clock.now().plus(config.attempt_timeout()) };
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
        let rdma_backoff = Arc::<Backoff>::default();
        Server {
            address,
            shards: AtomicU16::new(welcome.shards.get()),
            is_local: AtomicBool::new(false),
            setup: std::sync::Mutex::new(Setup {
                welcome,
                life: None,
                mappings: Vec::new(),
                rdma_domain: None,
                rdma_backoff: rdma_backoff.clone(),
                probes: Probes::default(),
                had_rdma: false,
                failed: None,
            }),
            rdma_backoff,
            #[cfg(feature = "simulation")]
            network: None,
        }
    }

    /// Makes a connection to `shard` over the best transport that `config` allows and the server offers. Threads do so one after the other; those
    /// that waited for one that failed fail with it, or each would wait for those before it and then for its own time-out.
    pub fn connect(&self, caller: Caller<'_>, shard: u16, serial: u64) -> Result<Connection> {
        let began = Clock.now();
        // A thread that panicked here left a whole `Setup` behind: each of its steps replaces fields as a unit.
        let mut setup = self.setup.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((failed, error)) = &setup.failed
            && *failed > began
        {
            return Err(error.clone());
        }
        let outcome = self.connect_alone(&mut setup, caller, shard, serial);
        setup.failed = outcome.as_ref().err().map(|error| (Clock.now(), error.clone()));
        if let Ok(connection) = &outcome {
            self.is_local.store(connection.mapping().is_some(), Ordering::Relaxed);
        }
        outcome
    }

    fn connect_alone(
        &self,
        setup: &mut Setup,
        caller: Caller<'_>,
        shard: u16,
        serial: u64,
    ) -> Result<Connection> {
        #[cfg(feature = "simulation")]
        if let Some(network) = &self.network {
            let joined = network.connect(shard)?;
            setup.renew(joined.welcome);
            self.shards.store(joined.welcome.shards.get(), Ordering::Relaxed);
            return joined.into_connection(shard, serial, &mut setup.mappings);
        }
        let choice = caller.config.transport;
        let takes_shm = matches!(choice, TransportChoice::Auto | TransportChoice::Shm);
        // A socket of this host that nobody accepts at leaves time for the network.
        let locally = caller.with_half_the_time();
        if takes_shm && let Ok(connection) = self.connect_shm(locally, setup, shard, serial) {
            return Ok(connection);
        }
        // Over TCP the server says what it is now; it may have been started again since.
        let (stream, welcome) = handshake::open_tcp(caller, &self.address, shard)?;
        setup.renew(welcome);
        self.shards.store(welcome.shards.get(), Ordering::Relaxed);
        match choice {
            TransportChoice::Tcp => handshake::over_tcp(&self.address, stream, &welcome, serial),
            TransportChoice::Shm => self.connect_shm(caller, setup, shard, serial),
            TransportChoice::Rdma => self.connect_rdma(caller, setup, stream, serial),
            TransportChoice::Auto => {
                let are_lanes_full = match self.connect_shm(caller, setup, shard, serial) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => matches!(error, Error::Overloaded { what: Limit::SharedMemoryLanes, .. }),
                };
                let mut connection = self.connect_rdma_or_tcp(caller, setup, stream, serial)?;
                if are_lanes_full {
                    connection.upgrade_at = Some(Clock.now().plus(LANES_PAUSE));
                }
                Ok(connection)
            }
        }
    }

    /// Over RDMA if the server offers it and it hasn't failed lately, else over TCP until it's time to try again. Where it has failed before
    /// nobody waits for another try: it's looked at when the connection is used the next time.
    fn connect_rdma_or_tcp(
        &self,
        caller: Caller<'_>,
        setup: &mut Setup,
        stream: TcpStream,
        serial: u64,
    ) -> Result<Connection> {
        let welcome = setup.welcome;
        let backoff = setup.rdma_backoff.clone();
        if !lanner_rdma::HAS_VERBS || caller.config.rdma == RdmaChoice::Off || !welcome.offers_rdma() {
            let mut connection = handshake::over_tcp(&self.address, stream, &welcome, serial)?;
            if setup.had_rdma {
                // The server's device has gone; it's asked now and then whether it's back.
                backoff.failed(Clock.now(), false, NO_OFFER);
                connection.upgrade_at = Some(backoff.until());
            }
            return Ok(connection);
        }
        let shard = welcome.shard.get();
        let mut stream = Some(stream);
        let probed = match setup.probes.look(shard, welcome.boot_id) {
            Some(known) => Some(known),
            None if !backoff.is_over(Clock.now()) => None,
            None => {
                let stream =
                    stream.take().ok_or_else(|| handshake::unreachable(&self.address, &"no stream"))?;
                Some(self.probe_rdma(caller, setup, stream))
            }
        };
        let mut upgrade_at = None;
        match probed {
            Some(Probed::Works(link)) => return Ok(setup.over_rdma(link, serial)),
            Some(Probed::UnderWay(probe)) => {
                setup.probes.keep(shard, probe);
                upgrade_at = Some(Clock.now().plus(PROBE_PAUSE));
            }
            Some(Probed::Failed(error)) => {
                let error = handshake::at_over_rdma(&self.address, error);
                backoff.failed(Clock.now(), false, &error.to_string());
            }
            None => {}
        }
        let mut connection = match stream {
            Some(stream) => handshake::over_tcp(&self.address, stream, &welcome, serial)?,
            // The one that was to become another has been used up.
            None => handshake::connect_tcp(caller, &self.address, shard, serial)?.0,
        };
        connection.upgrade_at = Some(upgrade_at.unwrap_or_else(|| backoff.until()));
        Ok(connection)
    }

    /// Tries RDMA, and waits for what comes of it unless it has failed before.
    fn probe_rdma(&self, caller: Caller<'_>, setup: &mut Setup, stream: TcpStream) -> Probed {
        let now = Clock.now();
        // What is left is for TCP.
        let wait = if setup.rdma_backoff.is_doubted() { Duration::ZERO } else { PROBE_WAIT };
        let wait = wait.min(caller.until.since(now) / 2);
        let limit = if wait.is_zero() { LONGEST_PROBE } else { wait };
        match self.join_rdma(caller, setup, stream, now.plus(limit)) {
            Ok(probe) => probe.wait(wait),
            Err(error) => Probed::Failed(error),
        }
    }

    /// Over RDMA and nothing else.
    fn connect_rdma(
        &self,
        caller: Caller<'_>,
        setup: &mut Setup,
        stream: TcpStream,
        serial: u64,
    ) -> Result<Connection> {
        let outcome = match self.join_rdma(caller, setup, stream, caller.until) {
            Ok(probe) => probe.wait(caller.until.since(Clock.now())),
            Err(error) => Probed::Failed(error),
        };
        let error = match outcome {
            Probed::Works(link) => return Ok(setup.over_rdma(link, serial)),
            Probed::UnderWay(probe) => probe.failure("no answer in time"),
            Probed::Failed(error) => error,
        };
        let error = handshake::at_over_rdma(&self.address, error);
        setup.rdma_backoff.failed(Clock.now(), false, &error.to_string());
        Err(error)
    }

    /// Makes a link, of which isn't known yet whether it works.
    fn join_rdma(
        &self,
        caller: Caller<'_>,
        setup: &mut Setup,
        stream: TcpStream,
        probe_until: Instant,
    ) -> Result<Probe> {
        let welcome = setup.welcome;
        if !welcome.offers_rdma() {
            return Err(Error::System { what: "RDMA".into(), reason: NO_OFFER.into() });
        }
        let domain = match setup.rdma_domain.take() {
            Some(domain) if join::is_there(&domain) => domain,
            _ => join::open_domain(&caller.config.rdma, &stream)?,
        };
        let backoff = setup.rdma_backoff.clone();
        let probe = join::join(&domain, stream, &welcome, backoff, caller.until, probe_until);
        if probe.is_err() {
            join::forget_domain(&domain);
        }
        setup.rdma_domain = probe.is_ok().then_some(domain);
        probe
    }

    fn connect_shm(
        &self,
        caller: Caller<'_>,
        setup: &mut Setup,
        shard: u16,
        serial: u64,
    ) -> Result<Connection> {
        let offer = handshake::ask_for_lane(caller, &self.address, &setup.welcome, shard)?;
        let life = match setup.life.clone().filter(|life| !life.is_over()) {
            Some(life) => life,
            None => ServerLife::watch(handshake::connect_watch(caller, &self.address, &setup.welcome)?)?,
        };
        setup.life = Some(life.clone());
        let at = usize::from(shard);
        if setup.mappings.len() <= at {
            setup.mappings.resize(at + 1, None);
        }
        let mapping = match &setup.mappings[at] {
            Some(mapping) if !mapping.is_server_gone() => mapping.clone(),
            _ => Arc::new(offer.map_segment(&self.address, &setup.welcome, life)?),
        };
        setup.mappings[at] = Some(mapping.clone());
        offer.accept(shard, serial, mapping)
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
        self.setup.lock().unwrap_or_else(std::sync::PoisonError::into_inner).welcome
    }
}

impl Setup {
    /// Takes note of what the server says; a new life ends the use of the old one's memory.
    fn renew(&mut self, welcome: Welcome) {
        if welcome.boot_id != self.welcome.boot_id {
            self.life = None;
            self.mappings.clear();
            self.probes.clear();
            self.had_rdma = false;
        }
        self.welcome = welcome;
    }

    /// The connection over a link that works.
    fn over_rdma(&mut self, link: Box<TcpTransport<RdmaLink>>, serial: u64) -> Connection {
        self.had_rdma = true;
        Connection::new(
            Transport::Rdma(link),
            ShardId(self.welcome.shard.get()),
            self.welcome.boot_id,
            serial,
        )
    }
}
