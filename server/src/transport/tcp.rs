//! TCP connections of one core: receive, serve, send, on the core's io_uring.
//!
//! ```text
//!          ┌── receive into the buffer ◄──┐
//!          ▼                              │ all used, replies not full
//!  buffer ─► Inbound ─► Replies (queued) ─► Replies (being sent) ─► socket
//!          └► long value: receive straight into the segment
//! ```
//!
//! What always holds: at most one receive and one send of a connection are under way; what they refer to (buffer, replies
//! being sent, extents) stays in place until they have completed, also when the connection is ending; a peer that doesn't
//! read slows only itself.

use super::{Core, Transport};
use crate::config::memory_plan::{PARTIAL_FRAME_BYTES, RECEIVE_BUFFER_BYTES, REPLY_BYTES};
use crate::pump::mail::{Mail, NewConnection};
use crate::pump::ring::{Completion, Operation, OperationKind};
use crate::service::Caller;
use crate::service::inbound::{Inbound, PayloadTarget, Stop};
use crate::service::replies::{Piece, Replies};
use crate::shard::PutTicket;
use crate::transport::handshake::SocketKind;
use lanner_shared::error::Limit;
use lanner_shared::time::Instant;
use lanner_shared::wire::Opcode;
use lanner_shared::wire::error::append_reply;
use lanner_shared::wire::header::Header;
use lanner_shared::{Error, ShardId};
use slab::Slab;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Pieces of one send. More go with the next: the kernel takes at most 1,024.
const SEND_PIECES: usize = 256;
/// A rest of a value at least this long is received straight into the segment.
const DIRECT_BYTES: u64 = 4096;
/// A peer that owes bytes, or doesn't take any, is given up after this long.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(30);
/// A peer that was told that it's at fault has this long to take notice.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that one tick looks at.
const TICK_PEERS: usize = 256;

/// The TCP connections of a core.
#[derive(Debug, Default)]
pub struct Tcp {
    peers: Slab<Box<Peer>>,
    cursor: usize,
}

/// One connection.
#[derive(Debug)]
struct Peer {
    socket: OwnedFd,
    tenant: usize,
    caller: Caller,
    inbound: Inbound,
    /// Received and not understood yet: `start..end`.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    receiving: Receiving,
    /// Being sent: not changed until the send has completed.
    sending: Replies,
    is_sending: bool,
    queued: Replies,
    message: Message,
    /// What this connection holds of [`Core::partial_bytes`] and [`Core::reply_bytes`].
    held: (u64, u64),
    /// The next frame is for this shard, or for RDMA, to which the connection goes once its answers are sent.
    moving: Option<(ShardId, SocketKind)>,
    /// When something last moved.
    progress: Instant,
    ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Nothing,
    /// Into the buffer.
    Buffer,
    /// Into the extent of this put, which is pinned for it.
    Segment(PutTicket),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// What is queued is sent, then it lingers.
    AfterReplies,
    /// Nothing more is sent. What the peer still sends is thrown away until it has taken notice: closing with bytes unread
    /// would reset the connection, and the reset could overtake the last reply.
    Lingering,
    /// It ends when the kernel has let go of its memory.
    Now,
}

/// What the kernel reads a send from. Boxed with its peer, so that it stays in place.
#[derive(Debug)]
struct Message {
    header: libc::msghdr,
    vector: [libc::iovec; SEND_PIECES],
}

impl Tcp {
    /// Takes over a connection whose handshake is done, and of which `received` has come already.
    pub fn adopt(
        &mut self,
        core: &mut Core,
        socket: OwnedFd,
        tenant: usize,
        caller: Caller,
        received: &[u8],
    ) {
        core.stats.tcp_connections += 1;
        core.stats.connections_opened += 1;
        let mut peer = Box::new(Peer::new(socket, tenant, caller, core.now));
        peer.preload(received);
        let index = self.peers.insert(peer);
        self.advance(core, index);
    }

    /// Serves what was received, sends what was answered, and receives on.
    fn advance(&mut self, core: &mut Core, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.serve_and_send(core, index);
        // Sending makes room for the answers to what is left.
        if peer.has_unserved() {
            peer.serve_and_send(core, index);
        }
        peer.receive(core, index);
        if peer.is_over() {
            self.remove(core, index);
        } else if let Some((shard, kind)) = peer.moves_to() {
            self.move_to(core, index, shard, kind);
        }
    }

    /// Sends a connection to the core whose shard its next frame is for. A client that keeps to one connection works, only
    /// slower; those of this project have one for each shard, and come here only where they go on over RDMA.
    fn move_to(&mut self, core: &mut Core, index: usize, shard: ShardId, kind: SocketKind) {
        let peer = self.forget(core, index);
        core.stats.connections_moved += u64::from(kind == SocketKind::Tcp);
        let mut inbound = peer.inbound;
        let mut received = inbound.take_partial();
        received.extend_from_slice(&peer.buffer[peer.start..peer.end]);
        let connection = NewConnection {
            socket: peer.socket,
            kind,
            tenant: peer.tenant,
            caller: peer.caller,
            welcome: None,
            received,
            wants_lane: false,
        };
        let post = core.posts.get(usize::from(shard.0));
        let is_sent = post.is_some_and(|post| post.send(Mail::Connection(Box::new(connection))));
        if !is_sent {
            core.stats.connections_refused += 1;
            core.identity.connection_closed();
        }
    }

    fn remove(&mut self, core: &mut Core, index: usize) {
        self.forget(core, index);
        core.identity.connection_closed();
    }

    /// Takes a connection, of which nothing is under way, out of the table and out of all accounts.
    fn forget(&mut self, core: &mut Core, index: usize) -> Box<Peer> {
        let mut peer = self.peers.remove(index);
        core.partial_bytes -= peer.held.0;
        core.reply_bytes -= peer.held.1;
        let shard = &mut core.shards[peer.tenant];
        peer.sending.drop_all(shard, core.now);
        peer.queued.drop_all(shard, core.now);
        shard.peer_gone(peer.caller.peer);
        core.stats.tcp_connections -= 1;
        core.stats.connections_closed += 1;
        peer
    }

    /// Ends all connections, in bounded time: the server is leaving.
    pub fn end_all(&mut self, core: &mut Core) {
        let indices: Vec<usize> = self.peers.iter().map(|(index, _)| index).collect();
        for index in indices {
            if let Some(peer) = self.peers.get_mut(index) {
                peer.end_now();
            }
            self.advance(core, index);
        }
    }
}

impl Transport for Tcp {
    fn poll(&mut self, _core: &mut Core) -> bool {
        false
    }

    fn completed(&mut self, core: &mut Core, completion: Completion) {
        let index = completion.operation.index as usize;
        let Some(peer) = self.peers.get_mut(index) else { return };
        if peer.ending != Ending::Lingering {
            peer.progress = core.now;
        }
        match completion.operation.kind {
            OperationKind::TcpSend => peer.sent(core, completion.result),
            _ => peer.received(core, completion.result),
        }
        self.advance(core, index);
    }

    fn tick(&mut self, core: &mut Core) {
        let mut stalled = Vec::new();
        for _ in 0..TICK_PEERS.min(self.peers.capacity()) {
            self.cursor = (self.cursor + 1) % self.peers.capacity().max(1);
            if self.peers.get(self.cursor).is_some_and(|peer| peer.is_stalled(core.now)) {
                stalled.push(self.cursor);
            }
        }
        for index in stalled {
            core.stats.stalled_peers += 1;
            self.peers[index].end_now();
            self.advance(core, index);
        }
    }

    fn has_work(&self) -> bool {
        false
    }

    fn connections(&self) -> usize {
        self.peers.len()
    }
}

impl Peer {
    fn new(socket: OwnedFd, tenant: usize, caller: Caller, now: Instant) -> Peer {
        // SAFETY: a `msghdr` and `iovec`s of zeros are valid: null pointers with lengths of zero.
        let message = unsafe { std::mem::zeroed() };
        Peer {
            socket,
            tenant,
            caller,
            inbound: Inbound::default(),
            buffer: vec![0; RECEIVE_BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            receiving: Receiving::Nothing,
            sending: Replies::default(),
            is_sending: false,
            queued: Replies::default(),
            message,
            held: (0, 0),
            moving: None,
            progress: now,
            ending: Ending::No,
        }
    }

    #[inline]
    fn received(&mut self, core: &mut Core, result: i32) {
        let receiving = std::mem::replace(&mut self.receiving, Receiving::Nothing);
        let count = u64::try_from(result).unwrap_or(0);
        core.stats.received_bytes += count;
        let shard = &mut core.shards[self.tenant];
        if let Receiving::Segment(ticket) = receiving {
            shard.unpin_after_receive(core.now, &ticket);
        }
        if count == 0 {
            // The peer has ended, or the connection was ended here.
            self.end_now();
            return;
        }
        match receiving {
            Receiving::Buffer => self.end += count as usize,
            Receiving::Segment(_) => {
                self.inbound.received(shard, core.now, &self.caller, count, &mut self.queued);
            }
            Receiving::Nothing => {}
        }
    }

    #[inline]
    fn sent(&mut self, core: &mut Core, result: i32) {
        self.is_sending = false;
        match u64::try_from(result) {
            Ok(count) => {
                core.stats.sent_bytes += count;
                self.sending.sent(&mut core.shards[self.tenant], core.now, count);
            }
            Err(_) => self.end_now(),
        }
    }

    #[inline]
    fn serve_and_send(&mut self, core: &mut Core, index: usize) {
        self.serve(core);
        self.account(core);
        self.send(core, index);
    }

    /// Whether requests have come that wait for room for their answers. They do only while answers are on their way, so that the end of a
    /// send has them served.
    #[inline]
    fn has_unserved(&self) -> bool {
        self.start != self.end && self.ending == Ending::No && self.moving.is_none()
    }

    #[inline]
    fn serve(&mut self, core: &mut Core) {
        if self.start == self.end || self.ending != Ending::No || matches!(self.receiving, Receiving::Buffer)
        {
            return;
        }
        // Answers take up what all connections together may hold: those that wait for theirs come first.
        if core.reply_bytes > REPLY_BYTES && !(self.queued.is_empty() && self.sending.is_empty()) {
            return;
        }
        self.caller.is_draining = core.is_draining;
        let shard = &mut core.shards[self.tenant];
        let bytes = &self.buffer[self.start..self.end];
        let (used, stop) = self.inbound.feed(shard, core.now, &self.caller, bytes, &mut self.queued);
        self.start += used;
        match stop {
            None => {}
            Some(Stop::Elsewhere(shard)) => self.moving = Some((shard, SocketKind::Tcp)),
            Some(Stop::JoinsRdma) => self.moving = Some((shard.config().shard, SocketKind::Rdma)),
            Some(Stop::Broken(_)) => {
                core.stats.protocol_errors += 1;
                self.ending = Ending::AfterReplies;
            }
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Adds up what this connection holds, and ends it if requests that haven't arrived whole take up what all connections
    /// together may hold of them.
    #[inline]
    fn account(&mut self, core: &mut Core) {
        let partial = self.inbound.partial_bytes() as u64;
        let replies = (self.queued.held_bytes() + self.sending.held_bytes()) as u64;
        core.partial_bytes = core.partial_bytes + partial - self.held.0;
        core.reply_bytes = core.reply_bytes + replies - self.held.1;
        self.held = (partial, replies);
        if partial > 0 && core.partial_bytes > PARTIAL_FRAME_BYTES {
            let error = Error::Overloaded { what: Limit::PartialRequestBytes, limit: PARTIAL_FRAME_BYTES };
            let header = Header::request(Opcode::Stats, core.shards[self.tenant].config().shard, 0, 0);
            append_reply(self.queued.frame(), &header, &error, self.caller.boot, self.caller.version);
            core.stats.connections_refused += 1;
            self.ending = Ending::AfterReplies;
        }
    }

    #[inline]
    fn send(&mut self, core: &mut Core, index: usize) {
        if self.is_sending || self.ending == Ending::Now {
            return;
        }
        if self.sending.is_empty() {
            std::mem::swap(&mut self.sending, &mut self.queued);
        }
        if self.sending.is_empty() {
            if self.ending == Ending::AfterReplies {
                let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
                self.ending = Ending::Lingering;
                self.progress = core.now;
            }
            return;
        }
        let operation = Operation { kind: OperationKind::TcpSend, index: index as u32 };
        let shard = &core.shards[self.tenant];
        let count = self.message.fill(&mut self.sending, shard);
        let first = self.message.vector[0];
        // SAFETY: `sending` isn't changed, and the extents in it stay pinned, before the completion was taken: nothing but
        // `sent` touches it while `is_sending`, and `remove` waits for `is_over`. The message is boxed with its peer.
        unsafe {
            if count == 1 {
                core.ring.send(
                    self.socket.as_fd(),
                    first.iov_base.cast_const().cast(),
                    first.iov_len,
                    operation,
                );
            } else {
                core.ring.send_message(self.socket.as_fd(), &raw const self.message.header, operation);
            }
        }
        self.is_sending = true;
    }

    #[inline]
    fn receive(&mut self, core: &mut Core, index: usize) {
        let is_ending = !matches!(self.ending, Ending::No | Ending::Lingering);
        let is_waiting = self.receiving != Receiving::Nothing || self.moving.is_some();
        if is_waiting || is_ending || self.queued.is_full() || self.has_unserved() {
            return;
        }
        if self.ending == Ending::Lingering {
            (self.start, self.end) = (0, 0);
        }
        let operation = Operation { kind: OperationKind::TcpReceive, index: index as u32 };
        if self.start == self.end
            && self.ending == Ending::No
            && let Some(PayloadTarget::Value { ticket, offset, missing }) = self.inbound.payload_target()
            && missing >= DIRECT_BYTES
            && self.receive_to_segment(core, operation, ticket, offset, missing)
        {
            return;
        }
        let free = &mut self.buffer[self.end..];
        if free.is_empty() {
            return;
        }
        // SAFETY: the buffer is boxed, isn't looked at while `receiving` says `Buffer`, and is freed only after the
        // completion was taken (`is_over`).
        unsafe { core.ring.receive(self.socket.as_fd(), free.as_mut_ptr(), free.len(), operation) }
        self.receiving = Receiving::Buffer;
    }

    fn receive_to_segment(
        &mut self,
        core: &mut Core,
        operation: Operation,
        ticket: PutTicket,
        offset: u64,
        missing: u64,
    ) -> bool {
        let shard = &mut core.shards[self.tenant];
        if shard.pin_for_receive(&ticket).is_err() {
            return false;
        }
        let Ok(target) = shard.segment_mut().as_mut_ptr_range(offset, missing) else {
            shard.unpin_after_receive(core.now, &ticket);
            return false;
        };
        // SAFETY: the extent is pinned until the completion was taken, and an unfinished put's value is written by its one
        // connection alone.
        unsafe { core.ring.receive(self.socket.as_fd(), target.start, missing as usize, operation) }
        self.receiving = Receiving::Segment(ticket);
        true
    }

    /// Takes what another core received before.
    fn preload(&mut self, received: &[u8]) {
        if received.len() > self.buffer.len() {
            self.buffer = received.to_vec().into_boxed_slice();
        } else {
            self.buffer[..received.len()].copy_from_slice(received);
        }
        self.end = received.len();
    }

    /// Where the connection goes now: nothing of it is under way.
    fn moves_to(&self) -> Option<(ShardId, SocketKind)> {
        let is_quiet = !self.is_sending && self.sending.is_empty() && self.queued.is_empty();
        self.moving.filter(|_| is_quiet && self.ending == Ending::No && self.receiving == Receiving::Nothing)
    }

    /// Ends the connection: what is under way on its socket completes soon.
    fn end_now(&mut self) {
        if self.ending != Ending::Now {
            self.ending = Ending::Now;
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    fn is_over(&self) -> bool {
        self.ending == Ending::Now && !self.is_sending && self.receiving == Receiving::Nothing
    }

    fn is_stalled(&self, now: Instant) -> bool {
        let owes = self.is_sending || self.inbound.is_mid_frame();
        let idle = now.since(self.progress);
        match self.ending {
            Ending::Now => false,
            Ending::Lingering => idle >= LINGER_TIMEOUT,
            Ending::No | Ending::AfterReplies => owes && idle >= PEER_TIMEOUT,
        }
    }
}

impl Message {
    /// Points the vector at the next pieces to send, and returns how many that are: at least one.
    #[inline]
    fn fill(&mut self, replies: &mut Replies, shard: &crate::shard::Shard) -> usize {
        let mut count = 0;
        let pieces: smallvec::SmallVec<[Piece; 8]> = replies.pieces().take(SEND_PIECES).collect();
        for piece in pieces {
            let bytes = match piece {
                Piece::Bytes { start, length } => replies.bytes(start, length),
                // Pinned pieces were checked when they were queued; an empty one would only stall the connection.
                Piece::Extent { offset, length, .. } => {
                    shard.segment().slice(offset, length).unwrap_or_default()
                }
            };
            self.vector[count] =
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            count += 1;
        }
        self.header.msg_iov = self.vector.as_mut_ptr();
        self.header.msg_iovlen = count;
        count
    }
}

// SAFETY: the raw pointers in `message` are used only between `fill` and the completion of the send, by the kernel on behalf of
// the core that owns the peer; nothing of a peer is bound to a thread.
unsafe impl Send for Peer {}
