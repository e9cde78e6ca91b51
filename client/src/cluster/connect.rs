//! How a connection to a server is made: over shared memory, RDMA or TCP. Blocks.
//!
//! Threads do so in parallel, a few at a time ([`super::CONNECTING_AT_ONCE`]). What they share is opened by one of them while the others wait for
//! that: the server's life, the mapping of each segment, the device. Whoever waits does so within its call's time-out, and what an attempt
//! itself may take counts from its turn.

use super::{Server, Setup};
use crate::config::TransportChoice;
use crate::connection::handshake::{self, Caller, LaneOffer};
use crate::connection::rdma::join::{self, Probe, Probed};
use crate::connection::rdma::link::RdmaLink;
use crate::connection::tcp::TcpTransport;
use crate::connection::{Connection, Transport};
use crate::mapping::Mapping;
use crate::turns::Turn;
use crate::watcher::ServerLife;
use lanner_rdma::choice::RdmaChoice;
use lanner_shared::error::Limit;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::hello::Welcome;
use lanner_shared::{Error, Result, ShardId};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a first call waits for a sign that RDMA works before it goes on over TCP: long enough for a packet that was lost to be sent again, on
/// devices that round the time up too.
const PROBE_WAIT: Duration = Duration::from_millis(500);
/// How long a sign may take that nobody waits for. A device gives up by itself after half a second, or two.
const LONGEST_PROBE: Duration = Duration::from_secs(3);
/// Who has waited for its turn for this part of its call's time-out leaves RDMA for later.
const WAITING_PART: u32 = 4;
/// Time between two looks for it.
const PROBE_PAUSE: Duration = Duration::from_millis(250);
/// What is known of a server without RDMA.
const NO_OFFER: &str = "the server offers none; its log says why";

/// A connection that found no free lane of shared memory is tried again as one after this long.
const LANES_PAUSE: Duration = Duration::from_secs(2);

/// How long whoever connects may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// When the attempt ends, if its turn comes at once.
    pub until: Instant,
    /// When the call ends, with what was waited for a turn.
    pub call_until: Instant,
    /// Whether it waits for a turn.
    pub waits: bool,
}

impl Server {
    /// Makes a connection to `shard` over the best transport that the client's configuration allows and the server offers. `caller.until` counts
    /// from its turn; what it has waited for that is added to `waited`.
    pub fn connect(
        &self,
        caller: Caller<'_>,
        patience: Patience,
        waited: &mut Duration,
        shard: u16,
        serial: u64,
    ) -> Result<Connection> {
        let asked = Clock.now();
        let turn = self.turns.take(if patience.waits { patience.call_until } else { Instant::ZERO });
        let began = Clock.now();
        *waited += began.since(asked);
        let is_over = || Error::Timeout {
            server: (&*self.address).into(),
            millis: caller.config.timeout.as_millis() as u64,
        };
        let _turn = turn.ok_or_else(is_over)?;
        if let Some(error) = self.setup().attempts.hopeless(asked) {
            return Err(error.clone());
        }
        let until = patience.until.plus(began.since(asked));
        let caller = Caller { until: until.min(patience.call_until), ..caller };
        let outcome = self.connect_alone(caller, shard, serial, began.since(asked));
        let mut setup = self.setup();
        setup.attempts.ended(began, Clock.now(), &outcome);
        match outcome {
            Ok(connection) => {
                self.is_local.store(connection.mapping().is_some(), Ordering::Relaxed);
                Ok(connection)
            }
            // It has answered others meanwhile, so it's there, and slow; or there was next to no time left.
            Err(Error::Unreachable { .. })
                if Clock.now() >= caller.until
                    && (setup.attempts.has_worked_since(began) || caller.until < until) =>
            {
                Err(is_over())
            }
            failed => failed,
        }
    }

    /// By whoever has waited so long for its turn.
    fn connect_alone(
        &self,
        caller: Caller<'_>,
        shard: u16,
        serial: u64,
        waited: Duration,
    ) -> Result<Connection> {
        #[cfg(feature = "simulation")]
        if let Some(network) = &self.network {
            let asked = Clock.now();
            let joined = network.connect(shard)?;
            let mut setup = self.setup();
            setup.renew(joined.welcome, asked);
            self.shards.store(joined.welcome.shards.get(), Ordering::Relaxed);
            return joined.into_connection(shard, serial, &mut setup.mappings);
        }
        let choice = caller.config.transport;
        let takes_shm = matches!(choice, TransportChoice::Auto | TransportChoice::Shm);
        // A socket of this host that nobody accepts at leaves time for the network.
        let locally = caller.with_half_the_time();
        let known = self.welcome();
        if takes_shm && let Ok(connection) = self.connect_shm(locally, &known, shard, serial) {
            return Ok(connection);
        }
        // Over TCP the server says what it is now; it may have been started again since.
        let asked = Clock.now();
        let (stream, welcome) = handshake::open_tcp(caller, &self.address, shard)?;
        {
            let mut setup = self.setup();
            setup.renew(welcome, asked);
            self.shards.store(setup.welcome.shards.get(), Ordering::Relaxed);
        }
        match choice {
            TransportChoice::Tcp => handshake::over_tcp(&self.address, stream, &welcome, serial),
            TransportChoice::Shm => self.connect_shm(caller, &welcome, shard, serial),
            TransportChoice::Rdma => self.connect_rdma(caller, stream, &welcome, serial),
            TransportChoice::Auto => {
                let are_lanes_full = match self.connect_shm(caller, &welcome, shard, serial) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => matches!(error, Error::Overloaded { what: Limit::SharedMemoryLanes, .. }),
                };
                let mut connection = self.connect_rdma_or_tcp(caller, stream, &welcome, serial, waited)?;
                if are_lanes_full {
                    connection.upgrade_at = Some(Clock.now().plus(LANES_PAUSE));
                }
                Ok(connection)
            }
        }
    }

    /// Over RDMA if the server offers it and it hasn't failed lately, else over TCP until it's time to try again. Where it has failed before
    /// nobody waits for another try: it's looked at when the connection is used the next time. Nor does anybody begin with RDMA who has waited long
    /// for its turn: others wait behind it, and TCP takes a fraction of the time.
    fn connect_rdma_or_tcp(
        &self,
        caller: Caller<'_>,
        stream: TcpStream,
        welcome: &Welcome,
        serial: u64,
        waited: Duration,
    ) -> Result<Connection> {
        let backoff = &self.rdma_backoff;
        if !lanner_rdma::HAS_VERBS || caller.config.rdma == RdmaChoice::Off || !welcome.offers_rdma() {
            let mut connection = handshake::over_tcp(&self.address, stream, welcome, serial)?;
            let mut setup = self.setup();
            setup.rdma_domain.take_if(|domain| !join::is_there(domain));
            if setup.had_rdma {
                // The server's device has gone; it's asked now and then whether it's back.
                backoff.failed(Clock.now(), false, NO_OFFER);
                connection.upgrade_at = Some(backoff.until());
            }
            return Ok(connection);
        }
        let shard = welcome.shard.get();
        let mut stream = Some(stream);
        let kept = self.setup().probes.take(shard, welcome.boot_id);
        let mut probing = None;
        let probed = match kept {
            Some(probe) => Some(probe.look(Clock.now())),
            None if waited >= caller.config.timeout / WAITING_PART => None,
            None if !backoff.is_over(Clock.now()) => None,
            None if backoff.is_doubted() && !self.may_probe(&mut probing) => None,
            None => {
                let stream =
                    stream.take().ok_or_else(|| handshake::unreachable(&self.address, &"no stream"))?;
                Some(self.probe_rdma(caller, stream, welcome))
            }
        };
        let soon = Clock.now().plus(PROBE_PAUSE);
        let mut upgrade_at = None;
        match probed {
            Some(Probed::Works(link)) => return Ok(self.over_rdma(link, welcome, serial)),
            Some(Probed::UnderWay(probe)) => {
                self.setup().probes.keep(shard, probe);
                upgrade_at = Some(soon);
            }
            Some(Probed::Failed(error)) => drop(self.rdma_failed(error)),
            None => {}
        }
        let mut connection = match stream {
            Some(stream) => handshake::over_tcp(&self.address, stream, welcome, serial)?,
            // The one that was to become another has been used up.
            None => handshake::connect_tcp(caller, &self.address, shard, serial)?.0,
        };
        connection.upgrade_at = Some(upgrade_at.unwrap_or_else(|| backoff.until().max(soon)));
        Ok(connection)
    }

    /// Takes the turn at trying RDMA where it has failed, if nobody has it.
    fn may_probe<'a>(&'a self, turn: &mut Option<Turn<'a>>) -> bool {
        *turn = self.probing.take(Instant::ZERO);
        turn.is_some()
    }

    /// Tries RDMA, and waits for what comes of it unless it has failed before.
    fn probe_rdma(&self, caller: Caller<'_>, stream: TcpStream, welcome: &Welcome) -> Probed {
        let now = Clock.now();
        // What is left is for TCP.
        let wait = if self.rdma_backoff.is_doubted() { Duration::ZERO } else { PROBE_WAIT };
        let wait = wait.min(caller.until.since(now) / 2);
        let limit = if wait.is_zero() { LONGEST_PROBE } else { wait };
        match self.join_rdma(caller, stream, welcome, now.plus(limit)) {
            Ok(probe) => probe.wait(wait),
            Err(error) => Probed::Failed(error),
        }
    }

    /// Over RDMA and nothing else.
    fn connect_rdma(
        &self,
        caller: Caller<'_>,
        stream: TcpStream,
        welcome: &Welcome,
        serial: u64,
    ) -> Result<Connection> {
        let outcome = match self.join_rdma(caller, stream, welcome, caller.until) {
            Ok(probe) => probe.wait(caller.until.since(Clock.now())),
            Err(error) => Probed::Failed(error),
        };
        match outcome {
            Probed::Works(link) => Ok(self.over_rdma(link, welcome, serial)),
            Probed::UnderWay(probe) => Err(self.rdma_failed(probe.failure("no answer in time"))),
            Probed::Failed(error) => Err(self.rdma_failed(error)),
        }
    }

    /// RDMA has failed on the way to the server. What the device is now is looked at anew when it's tried again.
    fn rdma_failed(&self, error: Error) -> Error {
        let error = handshake::at_over_rdma(&self.address, error);
        self.rdma_backoff.failed(Clock.now(), false, &error.to_string());
        if let Some(domain) = self.setup().rdma_domain.take() {
            join::forget_domain(&domain);
        }
        error
    }

    /// Makes a link, of which isn't known yet whether it works.
    fn join_rdma(
        &self,
        caller: Caller<'_>,
        stream: TcpStream,
        welcome: &Welcome,
        probe_until: Instant,
    ) -> Result<Probe> {
        if !welcome.offers_rdma() {
            return Err(Error::System { what: "RDMA".into(), reason: NO_OFFER.into() });
        }
        let domain = {
            let _turn = self.take_opening(caller)?;
            let domain = join::open_domain(&caller.config.rdma, &stream)?;
            self.setup().rdma_domain = Some(domain.clone());
            domain
        };
        join::join(&domain, stream, welcome, self.rdma_backoff.clone(), caller.until, probe_until)
    }

    /// The connection over a link that works.
    fn over_rdma(&self, link: Box<TcpTransport<RdmaLink>>, welcome: &Welcome, serial: u64) -> Connection {
        self.setup().had_rdma = true;
        Connection::new(Transport::Rdma(link), ShardId(welcome.shard.get()), welcome.boot_id, serial)
    }

    fn connect_shm(
        &self,
        caller: Caller<'_>,
        welcome: &Welcome,
        shard: u16,
        serial: u64,
    ) -> Result<Connection> {
        let offer = handshake::ask_for_lane(caller, &self.address, welcome, shard)?;
        let mapping = self.mapping(caller, welcome, shard, &offer)?;
        offer.accept(shard, serial, mapping)
    }

    /// The mapping of the shard's segment, made now if there is none of this life of the server.
    fn mapping(
        &self,
        caller: Caller<'_>,
        welcome: &Welcome,
        shard: u16,
        offer: &LaneOffer,
    ) -> Result<Arc<Mapping>> {
        let known = |setup: &Setup| setup.mapping(shard, welcome.boot_id).cloned();
        if let Some(mapping) = known(&self.setup()) {
            return Ok(mapping);
        }
        let _turn = self.take_opening(caller)?;
        let life = {
            let setup = self.setup();
            if let Some(mapping) = known(&setup) {
                return Ok(mapping);
            }
            let is_same = setup.welcome.boot_id == welcome.boot_id;
            setup.life.clone().filter(|life| is_same && !life.is_over())
        };
        let life = match life {
            Some(life) => life,
            None => ServerLife::watch(handshake::connect_watch(caller, &self.address, welcome)?)?,
        };
        let mapping = Arc::new(offer.map_segment(&self.address, welcome, life.clone())?);
        let mut setup = self.setup();
        // Unless the server has been started again since.
        if setup.welcome.boot_id == welcome.boot_id {
            setup.life = Some(life);
            let at = usize::from(shard);
            if setup.mappings.len() <= at {
                setup.mappings.resize(at + 1, None);
            }
            setup.mappings[at] = Some(mapping.clone());
        }
        Ok(mapping)
    }

    /// The turn at opening what connections share.
    fn take_opening(&self, caller: Caller<'_>) -> Result<Turn<'_>> {
        let slow =
            || handshake::unreachable(&self.address, &"another thread is still opening what it leads to");
        self.opening.take(caller.until).ok_or_else(slow)
    }
}
