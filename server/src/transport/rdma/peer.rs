//! One RDMA connection: messages in, frames served, answers out. Called for each completion of its queue pair.
//!
//! What a client reads one-sided never comes here: its device and this machine's do that by themselves (promise P2).

use super::tenant::{SendPool, Tenant};
use super::value_reads::ValueReads;
use crate::config::memory_plan::{PARTIAL_FRAME_BYTES, RDMA_MESSAGE_BYTES, REPLY_BYTES};
use crate::service::Caller;
use crate::service::inbound::Inbound;
use crate::service::replies::{Piece, Replies};
use crate::transport::Core;
use lanner_rdma::backlog::Backlog;
use lanner_rdma::grants::Grants;
use lanner_rdma::queue_pair::PostId;
use lanner_rdma::verbs::completion::Completion;
use lanner_rdma::verbs::queue_pair::QueuePair;
use lanner_shared::time::Instant;
use lanner_shared::wire::join_rdma::LINK_FAILED;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Pieces that one look at the answers takes. Those behind them go with the next message.
const PIECES: usize = 64;

/// Room for a message.
pub(super) type Scratch = [u8; RDMA_MESSAGE_BYTES];

/// A connection.
#[derive(Debug)]
pub(super) struct Peer {
    /// `None` once it was destroyed.
    pub queue_pair: Option<QueuePair>,
    /// Since when the connection is ending: its queue pair takes nothing more.
    pub ending_since: Option<Instant>,
    /// The socket has ended.
    pub is_client_gone: bool,
    /// It had ended without a word of the client's: nothing of RDMA's had failed but that nobody was there any more.
    pub has_left: bool,
    /// A device has said that something failed, and the client was told.
    pub has_failed: bool,
    /// The TCP connection that this one was made from. Its end is the client's end.
    pub socket: OwnedFd,
    pub tenant: usize,
    pub caller: Caller,
    pub inbound: Inbound,
    pub replies: Replies,
    /// The longest message that the client takes.
    pub message_bytes: usize,
    /// Messages that came and aren't served yet.
    pub backlog: Backlog,
    /// How many the client may send.
    pub grants: Grants,
    /// Answers under way, and their places in the pool.
    pub in_flight: VecDeque<(PostId, u32)>,
    /// Values that this side reads out of the client's memory.
    pub value_reads: ValueReads,
    /// What this connection holds of [`Core::partial_bytes`] and [`Core::reply_bytes`].
    pub held: (u64, u64),
    /// The client broke the protocol: it's told so, and then it ends.
    pub has_broken_rules: bool,
    /// When something last moved.
    pub progress: Instant,
}

impl Peer {
    /// Serves what has come, as far as its answers find room.
    pub fn serve(&mut self, core: &mut Core, tenant: &mut Tenant, scratch: &mut Scratch) {
        while !self.backlog.is_empty() {
            if !self.has_broken_rules {
                // Answers take up what all connections together may hold: those that wait for theirs come first.
                let is_over = core.reply_bytes > REPLY_BYTES && !self.replies.is_empty();
                if is_over || self.replies.is_full() || self.inbound.offered_value().is_some() {
                    return;
                }
                let receives = &tenant.receives;
                let read = |receive, from, target: &mut [u8]| receives.read(receive, from, target);
                let Some(message) = self.backlog.first(scratch, read) else { return };
                self.caller.is_draining = core.is_draining;
                let shard = &mut core.shards[self.tenant];
                let (used, stop) =
                    self.inbound.feed(shard, core.now, &self.caller, message, &mut self.replies);
                core.stats.received_bytes += used as u64;
                self.has_broken_rules |= stop.is_some();
                if used < message.len() && stop.is_none() {
                    self.backlog.served(used);
                    return;
                }
            }
            self.grants.took_one();
            if let Some(receive) = self.backlog.pop() {
                tenant.give_receive(receive);
            }
        }
    }

    /// Gives others the receives that this connection holds beyond its share.
    #[inline]
    pub fn spare_receives(&mut self, tenant: &mut Tenant) {
        if let Some(receive) = self.backlog.excess(tenant.free_receives()) {
            self.backlog.copy_last(|copy| tenant.receives.read(receive, 0, copy));
            tenant.give_receive(receive);
        }
    }

    /// Adds up what this connection holds. Whether requests that haven't arrived whole take up more than all connections together may hold.
    pub fn account(&mut self, core: &mut Core) -> bool {
        let partial = (self.inbound.partial_bytes() + self.backlog.copied_bytes()) as u64;
        let replies = self.replies.held_bytes() as u64;
        core.partial_bytes = core.partial_bytes + partial - self.held.0;
        core.reply_bytes = core.reply_bytes + replies - self.held.1;
        self.held = (partial, replies);
        partial > 0 && core.partial_bytes > PARTIAL_FRAME_BYTES
    }

    /// Reads on what the client has offered. Whether the connection still works.
    pub fn read_value(&mut self, core: &mut Core, tenant: &Tenant) -> bool {
        let (Some(value), Some(queue_pair)) = (self.inbound.offered_value(), self.queue_pair.as_mut()) else {
            return true;
        };
        let shard = &mut core.shards[self.tenant];
        match self.value_reads.post(shard, core.now, &value, queue_pair, &tenant.segment) {
            Ok(0) => true,
            Ok(given_up) => {
                self.inbound.received(shard, core.now, &self.caller, given_up, &mut self.replies);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "an offered value can't be read; the client is told by the end of its connection");
                false
            }
        }
    }

    /// Sends answers, as far as there is room for them, and tells the client how many messages it may send. Whether the connection still works.
    pub fn flush(&mut self, core: &mut Core, tenant: &mut Tenant, scratch: &mut Scratch) -> bool {
        self.flush_answers(core, tenant, scratch) && self.announce()
    }

    fn flush_answers(&mut self, core: &mut Core, tenant: &mut Tenant, scratch: &mut Scratch) -> bool {
        let Some(queue_pair) = self.queue_pair.as_mut() else { return true };
        let longest = self.message_bytes.min(RDMA_MESSAGE_BYTES);
        while !self.replies.is_empty() && queue_pair.room() > 0 {
            let shard = &mut core.shards[self.tenant];
            // A message of more than fits inline needs a place; without one even a short one waits, to keep the order simple.
            if !tenant.sends.has_room_beside(self.in_flight.len()) {
                return true;
            }
            let length = gather(&mut self.replies, shard, &mut scratch[..longest]);
            let message = &scratch[..length];
            let grant = self.grants.next();
            let posted = if length <= queue_pair.inline_bytes() {
                queue_pair.post_inline(message, Some(grant)).map(drop)
            } else {
                let Some(place) = tenant.sends.fill(message) else { return true };
                // SAFETY: the place isn't written before its completion was taken, and the pool lives as long as the tenant, which is
                // dropped behind all queue pairs.
                let posted = unsafe {
                    let offset = SendPool::offset(place);
                    queue_pair.post_message(tenant.sends.region(), offset, length as u32, Some(grant))
                };
                posted
                    .map(|id| self.in_flight.push_back((id, place)))
                    .inspect_err(|_| tenant.sends.free(place))
            };
            if let Err(error) = posted {
                tracing::warn!(%error, "an answer couldn't be sent over RDMA; the client is told by the end of its connection");
                return false;
            }
            self.grants.announced(grant);
            core.stats.sent_bytes += length as u64;
            self.replies.sent(shard, core.now, length as u64);
            self.progress = core.now;
        }
        true
    }

    /// Tells the client how many messages it may send, if no answer has lately. Whether the connection still works.
    fn announce(&mut self) -> bool {
        let Some(queue_pair) =
            self.queue_pair.as_mut().filter(|pair| self.grants.is_due() && pair.room() > 0)
        else {
            return true;
        };
        let grant = self.grants.next();
        self.grants.announced(grant);
        queue_pair.post_inline(&[], Some(grant)).is_ok()
    }

    /// A send or a READ has completed. Whether the connection still works.
    pub fn completed(&mut self, core: &mut Core, completion: &Completion, tenant: &mut Tenant) -> bool {
        let Some(queue_pair) = self.queue_pair.as_mut() else { return true };
        if !queue_pair.completed(completion) {
            return false;
        }
        while let Some((id, place)) = self.in_flight.front().copied()
            && queue_pair.is_done(id)
        {
            self.in_flight.pop_front();
            tenant.sends.free(place);
        }
        let shard = &mut core.shards[self.tenant];
        let read = self.value_reads.completed(shard, core.now, queue_pair);
        if read > 0 {
            core.stats.received_bytes += read;
            let is_whole = self.inbound.offered_value().is_some_and(|value| value.missing == read);
            core.stats.rdma_values_read += u64::from(is_whole);
            self.progress = core.now;
            self.inbound.received(shard, core.now, &self.caller, read, &mut self.replies);
        }
        true
    }

    /// Whether something waits for room that only other connections' completions make.
    pub fn is_waiting(&self) -> bool {
        self.ending_since.is_none() && (!self.replies.is_empty() || !self.backlog.is_empty())
    }

    /// Tells the client that it's the device that has failed, not this server: the end of the socket alone would say that.
    pub fn tell_of_failure(&self) {
        // It fits an empty buffer, or the client has gone.
        let _ = rustix::net::send(&self.socket, &[LINK_FAILED], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Whether the socket has ended now and the client has said nothing before: it has closed the connection, or was killed. Not so where its side
    /// of the connection failed, which it says, or where the network lost it.
    pub fn has_just_left(&self) -> bool {
        let mut byte = [0; 1];
        match rustix::net::recv(&self.socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((count, _)) => count == 0 || byte[0] != LINK_FAILED,
            // It was told that something had failed, and isn't there to hear it.
            Err(error) => error == Errno::CONNRESET,
        }
    }

    /// Lets go of everything that the device had. From here on it reads and writes nothing of this connection's.
    pub fn end(&mut self, core: &mut Core, tenant: &mut Tenant) {
        if self.queue_pair.take().is_some() {
            self.value_reads.end(&mut core.shards[self.tenant], core.now);
            self.in_flight.drain(..).for_each(|(_, place)| tenant.sends.free(place));
            while !self.backlog.is_empty() {
                if let Some(receive) = self.backlog.pop() {
                    tenant.give_receive(receive);
                }
            }
            // The watcher of the socket then takes the connection out of the table.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }
}

/// Copies the answers' next bytes to `message`, and returns how many.
fn gather(replies: &mut Replies, shard: &crate::shard::Shard, message: &mut [u8]) -> usize {
    let pieces: SmallVec<[Piece; PIECES]> = replies.pieces().take(PIECES).collect();
    let mut length = 0;
    for piece in pieces {
        let bytes = match piece {
            Piece::Bytes { start, length } => replies.bytes(start, length),
            // Pinned pieces were checked when they were queued.
            Piece::Extent { offset, length, .. } => shard.segment().slice(offset, length).unwrap_or_default(),
        };
        let count = bytes.len().min(message.len() - length);
        message[length..length + count].copy_from_slice(&bytes[..count]);
        length += count;
        if length == message.len() {
            break;
        }
    }
    length
}
