//! Makes an RDMA connection out of a TCP one that has asked for it.

use super::Rdma;
use super::peer::Peer;
use super::tenant::Tenant;
use super::value_reads::ValueReads;
use crate::config::memory_plan::{RDMA_MESSAGE_BYTES, RDMA_POSTS};
use crate::pump::mail::NewConnection;
use crate::pump::ring::{Operation, OperationKind};
use crate::service::Caller;
use crate::service::inbound::Inbound;
use crate::service::replies::Replies;
use crate::transport::Core;
use lanner_rdma::INLINE_BYTES;
use lanner_rdma::backlog::Backlog;
use lanner_rdma::grants::Grants;
use lanner_rdma::verbs::VerbsError;
use lanner_rdma::verbs::connection::{Endpoint, QueuePairOptions};
use lanner_rdma::verbs::queue_pair::QueuePair;
use lanner_shared::error::{Limit, Malformation};
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use lanner_shared::wire::join_rdma::{
    EndpointBody, FEATURE_READS_VALUES, JoinRdma, LEAST_MESSAGE_BYTES, RdmaJoined,
};
use lanner_shared::wire::{Opcode, body, error::append_reply};
use lanner_shared::{Error, Result};
use rustix::net::SendFlags;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

impl Rdma {
    /// Connects to the client's queue pair and says so, or says why not and drops the connection.
    pub fn adopt(&mut self, core: &mut Core, connection: NewConnection) {
        let NewConnection { socket, tenant, caller, received, .. } = connection;
        let mut said = Vec::new();
        let joined = match self.join(core, tenant, &caller, &received, address_of(&socket)) {
            Ok((header, joined, queue_pair, message_bytes)) => {
                let start = body::begin(&mut said);
                body::append(&mut said, &joined);
                body::finish(&mut said, start, header.reply(caller.boot), caller.version);
                Some((queue_pair, message_bytes))
            }
            Err((header, error)) => {
                tracing::warn!(%error, "an RDMA connection couldn't be made; the client goes on over TCP, unless it takes nothing but RDMA");
                append_reply(&mut said, &header, &error, caller.boot, caller.version);
                None
            }
        };
        // It fits the empty buffer of a socket whose answers have all been sent.
        let sent = rustix::net::send(&socket, &said, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        match joined {
            Some((queue_pair, message_bytes)) if sent == Ok(said.len()) => {
                self.insert(core, socket, tenant, caller, queue_pair, message_bytes);
            }
            _ => {
                core.stats.connections_refused += 1;
                core.identity.connection_closed();
            }
        }
    }

    /// Understands the request in `received` and makes the server's side.
    fn join(
        &mut self,
        core: &Core,
        tenant: usize,
        caller: &Caller,
        received: &[u8],
        address: Option<IpAddr>,
    ) -> Result<(Header, RdmaJoined, QueuePair, usize), (Header, Error)> {
        let nobody = Header::request(Opcode::JoinRdma, core.shards[tenant].config().shard, 0, 0);
        let malformed = |reason| Error::Malformed { reason, detail: received.len() as u64 };
        let header = received
            .first_chunk::<HEADER_BYTES>()
            .ok_or((nobody, malformed(Malformation::Body)))
            .and_then(|bytes| Header::decode(bytes, caller.version).map_err(|error| (nobody, error)))?;
        let mut reader = body::BodyReader::new(&received[HEADER_BYTES..]);
        let join: JoinRdma = reader.value().map_err(|error| (header, error))?;
        // What comes behind would have to come over RDMA.
        reader.end().map_err(|error| (header, error))?;
        if join.message_bytes.get() < LEAST_MESSAGE_BYTES {
            return Err((header, malformed(Malformation::Field)));
        }
        if self.is_closing || self.peers.len() >= self.most_peers {
            let limit = self.most_peers as u64;
            return Err((header, Error::Overloaded { what: Limit::QueuePairs, limit }));
        }
        let peer = Endpoint::from(join.endpoint);
        let queue_pair = self.connect(tenant, &peer, address).map_err(|error| {
            let named = std::net::IpAddr::from(peer.gid).to_canonical();
            tracing::warn!(%error, client_gid = %named, "no queue pair for a client");
            (header, self.refusal(&error, &peer, address))
        })?;
        let segment = &self.tenants[tenant].segment;
        let joined = RdmaJoined {
            endpoint: EndpointBody { features: FEATURE_READS_VALUES.into(), ..queue_pair.endpoint().into() },
            message_bytes: (RDMA_MESSAGE_BYTES as u32).into(),
            segment_key: segment.remote_key().into(),
            segment_address: segment.address().into(),
            segment_bytes: segment.len().into(),
            boot_id: core.identity.boot_id,
        };
        Ok((header, joined, queue_pair, join.message_bytes.get() as usize))
    }

    /// What to tell a client that no queue pair could be made for: the device has no more of them, or it doesn't find the way to the client's.
    fn refusal(&self, error: &VerbsError, peer: &Endpoint, address: Option<IpAddr>) -> Error {
        if let VerbsError::Call { call: "ibv_create_qp", source } = error
            && matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN))
            && !self.peers.is_empty()
        {
            return Error::Overloaded { what: Limit::QueuePairs, limit: self.peers.len() as u64 };
        }
        let selection = &self.device.selection;
        let (_, server_gid) = address.map_or((0, selection.gid), |address| selection.gid_for(address));
        Error::NoRdmaPath { server_gid, client_gid: peer.gid }
    }

    fn connect(
        &mut self,
        tenant: usize,
        peer: &Endpoint,
        address: Option<IpAddr>,
    ) -> Result<QueuePair, VerbsError> {
        let Tenant { domain, receives, .. } = &self.tenants[tenant];
        let options = QueuePairOptions {
            sends: RDMA_POSTS,
            receives: 0,
            inline_bytes: INLINE_BYTES,
            segments: 1,
            shared: Some(receives),
            answers_reads: true,
            address,
        };
        let mut first_packet = [0; 4];
        getrandom::fill(&mut first_packet).map_err(|_| VerbsError::Peer("no random numbers to be had"))?;
        let mut queue_pair =
            QueuePair::new(domain, &self.completions, options, u32::from_le_bytes(first_packet))?;
        queue_pair.meet(peer)?;
        Ok(queue_pair)
    }

    fn insert(
        &mut self,
        core: &mut Core,
        socket: OwnedFd,
        tenant: usize,
        caller: Caller,
        queue_pair: QueuePair,
        message_bytes: usize,
    ) {
        core.stats.rdma_connections += 1;
        core.stats.connections_opened += 1;
        let number = queue_pair.number();
        let index = self.peers.insert(Box::new(Peer {
            queue_pair: Some(queue_pair),
            ending_since: None,
            is_client_gone: false,
            has_left: false,
            has_failed: false,
            socket,
            tenant,
            // Such a connection has one shard's memory to read and goes to no other.
            caller: Caller { can_move: false, sends_values: true, reads_values: true, ..caller },
            inbound: Inbound::default(),
            replies: Replies::default(),
            message_bytes,
            backlog: Backlog::default(),
            grants: Grants::default(),
            in_flight: VecDeque::new(),
            value_reads: ValueReads::default(),
            held: (0, 0),
            has_broken_rules: false,
            progress: core.now,
        }));
        self.by_queue_pair.insert(number, index);
        let operation = Operation { kind: OperationKind::RdmaEnd, index: index as u32 };
        core.ring.watch(self.peers[index].socket.as_fd(), operation);
    }
}

/// The address that a client has connected to.
fn address_of(socket: &OwnedFd) -> Option<IpAddr> {
    let address = rustix::net::getsockname(socket).ok()?;
    Some(SocketAddr::try_from(address).ok()?.ip().to_canonical())
}
