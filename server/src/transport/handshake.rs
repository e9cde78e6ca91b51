//! Set-up of connections: listen, accept, hello, challenge; then the connection goes to the core of its shard.
//!
//! The first core accepts for all. What always holds: a peer that says nothing, or says it slowly, costs one small entry
//! and is dropped after [`HANDSHAKE_TIMEOUT`]; one too many is told so and dropped at once; nobody who can't prove a tenant's
//! token gets beyond here.

use super::Core;
use crate::pump::mail::{Mail, NewConnection, Post};
use crate::pump::ring::{Completion, Operation, OperationKind};
use crate::server::identity::Identity;
use crate::service::Caller;
use crate::shard::PeerId;
use lanner_shared::auth::{self, Challenge};
use lanner_shared::error::{Limit, Malformation};
use lanner_shared::time::Instant;
use lanner_shared::wire::hello::{ANY_SHARD, AuthProof, HELLO_MAGIC, Hello, Welcome};
use lanner_shared::{Error, Result};
use rustix::net::SendFlags;
use slab::Slab;
use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// A handshake that takes longer is given up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A listener that could accept nothing is tried again after this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time between two lines in the log about refused handshakes.
const TELLING_PAUSE: Duration = Duration::from_secs(1);
/// Handshakes under way at a time. Above that the oldest is dropped: a flood of silent peers must not keep others out.
const MAX_HANDSHAKES: usize = 1024;

/// Which kind of socket a peer came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// A TCP connection.
    Tcp,
    /// The Unix socket that hands out shared memory.
    Unix,
    /// A TCP connection that has asked to go on over RDMA.
    Rdma,
}

/// The listeners of a server and the handshakes under way.
#[derive(Debug)]
pub struct Acceptor {
    listeners: Vec<(OwnedFd, SocketKind)>,
    peers: Slab<Box<Newcomer>>,
    identity: Arc<Identity>,
    posts: Vec<Post>,
    next_peer: u64,
    /// Listeners that could accept nothing and are tried again at `resume_at`.
    paused: Vec<usize>,
    resume_at: Instant,
    /// From when on a refusal is logged again, and how many weren't.
    next_telling: Instant,
    untold_refusals: u64,
}

/// A peer that hasn't finished its handshake.
#[derive(Debug)]
struct Newcomer {
    socket: OwnedFd,
    kind: SocketKind,
    bytes: [u8; size_of::<Hello>()],
    received: usize,
    stage: Stage,
    began: Instant,
    /// The kernel may still write into `bytes`.
    is_receiving: bool,
    is_over: bool,
    /// It counts as a connection.
    is_counted: bool,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Hello,
    Proof {
        hello: Hello,
        version: u8,
        tenant: usize,
        challenge: Challenge,
    },
    /// Refused. What the peer still sends is thrown away until it has taken notice: closing with bytes unread would reset the
    /// connection, and the reset could overtake the refusal.
    Refused,
}

impl Acceptor {
    /// Serves these listeners; `posts` lead to the cores, in the order of their shards.
    pub fn new(listeners: Vec<(OwnedFd, SocketKind)>, identity: Arc<Identity>, posts: Vec<Post>) -> Acceptor {
        let (peers, paused) = (Slab::new(), Vec::new());
        Acceptor {
            listeners,
            peers,
            identity,
            posts,
            next_peer: 1,
            paused,
            resume_at: Instant::ZERO,
            next_telling: Instant::ZERO,
            untold_refusals: 0,
        }
    }

    /// Begins to accept.
    pub fn start(&mut self, core: &mut Core) {
        (0..self.listeners.len()).for_each(|index| self.accept(core, index));
    }

    fn accept(&mut self, core: &mut Core, index: usize) {
        let operation = Operation { kind: OperationKind::Accept, index: index as u32 };
        core.ring.accept(self.listeners[index].0.as_fd(), operation);
    }

    /// A listener has a connection.
    pub fn accepted(&mut self, core: &mut Core, completion: Completion) {
        let listener = completion.operation.index as usize;
        if completion.result >= 0 {
            // SAFETY: the kernel has just made this descriptor for this process, and nobody else knows of it.
            let socket = unsafe { OwnedFd::from_raw_fd(completion.result) };
            let kind = self.listeners[listener].1;
            self.welcome_or_refuse(core, socket, kind);
        }
        if completion.goes_on || core.is_draining {
            return;
        }
        if completion.result >= 0 {
            self.accept(core, listener);
        } else {
            // Mostly for want of file descriptors, of which there are none again in a moment. Trying at once would keep the
            // core busy with nothing else.
            core.stats.accepts_failed += 1;
            if self.paused.is_empty() {
                let error = std::io::Error::from_raw_os_error(-completion.result);
                tracing::warn!(%error, "connections can't be accepted; is the limit on open files ('ulimit -n') too low?");
            }
            self.paused.push(listener);
        }
    }

    fn welcome_or_refuse(&mut self, core: &mut Core, socket: OwnedFd, kind: SocketKind) {
        let limit = self.identity.max_connections;
        if core.is_draining || !self.identity.connection_opened() {
            core.stats.connections_refused += 1;
            let error = if core.is_draining {
                Error::ShuttingDown
            } else {
                Error::Overloaded { what: Limit::Connections, limit: limit.into() }
            };
            return self.refuse_newcomer(core, socket, kind, &error);
        }
        if kind == SocketKind::Tcp {
            let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
            let _ = rustix::net::sockopt::set_socket_keepalive(&socket, true);
            let _ = rustix::net::sockopt::set_tcp_keepidle(&socket, Duration::from_secs(30));
        }
        if self.peers.len() >= MAX_HANDSHAKES {
            self.drop_oldest(core);
        }
        let index = self.peers.insert(Box::new(Newcomer::new(socket, kind, Stage::Hello, core.now)));
        self.receive(core, index);
    }

    /// Tells a peer at once why it's not let in, and keeps its socket until it has taken notice ([`Stage::Refused`]). It counts as no connection.
    fn refuse_newcomer(&mut self, core: &mut Core, socket: OwnedFd, kind: SocketKind, error: &Error) {
        refuse(&socket, error);
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Write);
        // What would push a handshake out is pushed out itself.
        if self.peers.len() >= MAX_HANDSHAKES {
            return;
        }
        let newcomer = Newcomer::new(socket, kind, Stage::Refused, core.now);
        let index = self.peers.insert(Box::new(Newcomer { is_counted: false, ..newcomer }));
        self.receive(core, index);
    }

    /// Bytes of a handshake have come.
    pub fn completed(&mut self, core: &mut Core, completion: Completion) {
        let index = completion.operation.index as usize;
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.is_receiving = false;
        match usize::try_from(completion.result) {
            Ok(count) if count > 0 && !peer.is_over => peer.received += count,
            _ => return self.drop_peer(core, index),
        }
        if matches!(peer.stage, Stage::Refused) {
            peer.received = 0;
            return self.receive(core, index);
        }
        if peer.received < peer.wanted() {
            return self.receive(core, index);
        }
        match self.step(index) {
            Ok(Some(connection)) => self.hand_over(core, index, connection),
            Ok(None) => self.receive(core, index),
            Err(error) => {
                match error {
                    Error::VersionMismatch { .. } => core.stats.version_refusals += 1,
                    Error::Unauthenticated => core.stats.authentication_refusals += 1,
                    _ => core.stats.protocol_errors += 1,
                }
                self.tell_of_refusal(core.now, index, &error);
                let peer = &mut self.peers[index];
                refuse(&peer.socket, &error);
                let _ = rustix::net::shutdown(&peer.socket, rustix::net::Shutdown::Write);
                peer.stage = Stage::Refused;
                self.receive(core, index);
            }
        }
    }

    /// Logs a refusal, but not each of a peer's that tries again and again: those between are counted.
    fn tell_of_refusal(&mut self, now: Instant, index: usize, error: &Error) {
        if now < self.next_telling {
            self.untold_refusals += 1;
            return;
        }
        let untold = std::mem::take(&mut self.untold_refusals);
        self.next_telling = now.plus(TELLING_PAUSE);
        let peer = address_of(&self.peers[index].socket);
        tracing::warn!(%error, peer, untold, "a handshake was refused; untold: those since the last such line");
    }

    /// Drops handshakes that take too long.
    pub fn tick(&mut self, core: &mut Core) {
        if !self.paused.is_empty() && core.now >= self.resume_at {
            self.resume_at = core.now.plus(ACCEPT_PAUSE);
            for listener in std::mem::take(&mut self.paused) {
                self.accept(core, listener);
            }
        }
        let is_late = |peer: &Newcomer| !peer.is_over && core.now.since(peer.began) >= HANDSHAKE_TIMEOUT;
        let late: Vec<(usize, bool)> = self
            .peers
            .iter()
            .filter(|(_, peer)| is_late(peer))
            .map(|(index, peer)| (index, peer.is_counted))
            .collect();
        for (index, is_counted) in late {
            core.stats.stalled_peers += u64::from(is_counted);
            self.drop_peer(core, index);
        }
    }

    /// Understands what has come. The connection, if that was all.
    fn step(&mut self, index: usize) -> Result<Option<(Hello, u8, usize)>> {
        let peer = &mut self.peers[index];
        let malformed = Error::Malformed { reason: Malformation::NotLanner, detail: 0 };
        peer.received = 0;
        match peer.stage {
            Stage::Hello => {
                let hello = Hello::read_from_bytes(&peer.bytes).map_err(|_| malformed)?;
                let version = hello.agreed_version()?;
                let tenant = self.identity.tenant(hello.tenant_name()).ok_or(Error::Unauthenticated)?;
                let Some(challenge) = self.identity.challenge(tenant)? else {
                    return Ok(Some((hello, version, tenant)));
                };
                let mut welcome = self.identity.welcome(version, 0, peer.kind);
                welcome.challenge = challenge;
                say(&peer.socket, &welcome);
                peer.stage = Stage::Proof { hello, version, tenant, challenge };
                Ok(None)
            }
            Stage::Proof { hello, version, tenant, challenge } => {
                let (proof, _) = AuthProof::read_from_prefix(&peer.bytes).map_err(|_| malformed.clone())?;
                if proof.magic != HELLO_MAGIC {
                    return Err(malformed);
                }
                let (name, client) = (hello.tenant_name(), hello.client_id.get());
                if auth::verify(self.identity.token(tenant), &challenge, name, client, &proof.proof) {
                    return Ok(Some((hello, version, tenant)));
                }
                Err(Error::Unauthenticated)
            }
            Stage::Refused => Ok(None),
        }
    }

    /// Sends the connection to the core of the shard that it asked for.
    fn hand_over(&mut self, core: &mut Core, index: usize, (hello, version, tenant): (Hello, u8, usize)) {
        let peer = self.peers.remove(index);
        let asked = hello.shard.get();
        let shard = if asked < self.identity.shards {
            asked
        } else {
            (self.next_peer % u64::from(self.identity.shards)) as u16
        };
        let caller = Caller {
            peer: PeerId(self.next_peer),
            boot: self.identity.boot(),
            version,
            reads_values: false,
            sends_values: peer.kind == SocketKind::Tcp,
            can_move: peer.kind == SocketKind::Tcp,
            is_draining: false,
        };
        self.next_peer += 1;
        let connection = NewConnection {
            socket: peer.socket,
            kind: peer.kind,
            tenant,
            caller,
            welcome: Some(self.identity.welcome(version, shard, peer.kind)),
            received: Vec::new(),
            // Over a Unix socket without a shard the client only waits for the server's end.
            wants_lane: peer.kind == SocketKind::Unix && asked != ANY_SHARD,
        };
        if !self.posts[usize::from(shard)].send(Mail::Connection(Box::new(connection))) {
            core.stats.connections_refused += 1;
            self.identity.connection_closed();
        }
    }

    fn receive(&mut self, core: &mut Core, index: usize) {
        let peer = &mut self.peers[index];
        let operation = Operation { kind: OperationKind::HandshakeReceive, index: index as u32 };
        let wanted = peer.wanted();
        let target = &mut peer.bytes[peer.received..wanted];
        // SAFETY: the entry is boxed and isn't removed before the completion was taken (`drop_peer`), and `bytes` isn't
        // looked at in between.
        unsafe { core.ring.receive(peer.socket.as_fd(), target.as_mut_ptr(), target.len(), operation) }
        peer.is_receiving = true;
    }

    /// Ends a handshake; the entry goes when the kernel has let go of its memory.
    fn drop_peer(&mut self, core: &mut Core, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.is_over = true;
        if peer.is_receiving {
            let _ = rustix::net::shutdown(&peer.socket, rustix::net::Shutdown::Both);
            return;
        }
        if self.peers.remove(index).is_counted {
            self.identity.connection_closed();
            core.stats.connections_closed += 1;
            core.stats.connections_opened += 1;
        }
    }

    fn drop_oldest(&mut self, core: &mut Core) {
        let oldest = self.peers.iter().filter(|(_, peer)| !peer.is_over).min_by_key(|(_, peer)| peer.began);
        if let Some((index, _)) = oldest {
            core.stats.stalled_peers += 1;
            self.drop_peer(core, index);
        }
    }

    /// Stops to listen. The kernel lets go of a listener some time after its ring; this frees the port at once.
    pub fn stop(&self) {
        for (listener, _) in &self.listeners {
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
    }
}

impl Newcomer {
    fn new(socket: OwnedFd, kind: SocketKind, stage: Stage, now: Instant) -> Newcomer {
        Newcomer {
            socket,
            kind,
            bytes: [0; size_of::<Hello>()],
            received: 0,
            stage,
            began: now,
            is_receiving: false,
            is_over: false,
            is_counted: true,
        }
    }

    fn wanted(&self) -> usize {
        match self.stage {
            Stage::Hello | Stage::Refused => size_of::<Hello>(),
            Stage::Proof { .. } => size_of::<AuthProof>(),
        }
    }
}

fn refuse(socket: &OwnedFd, error: &Error) {
    say(socket, &Welcome::refusal(error));
}

/// Says a welcome. It fits the empty buffer of a socket that nothing was sent over yet; if it doesn't, the peer isn't one.
pub(crate) fn say(socket: &OwnedFd, welcome: &Welcome) {
    let _ = rustix::net::send(socket, welcome.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}
/// The address of a peer, as far as its socket has one.
fn address_of(socket: &OwnedFd) -> String {
    let address = rustix::net::getpeername(socket)
        .ok()
        .flatten()
        .and_then(|address| SocketAddr::try_from(address).ok());
    address.map_or_else(|| "a process of this machine".to_owned(), |address| address.to_string())
}
