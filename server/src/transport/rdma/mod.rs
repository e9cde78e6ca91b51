//! RDMA connections of one core: requests and answers in messages, and a segment that clients read without this core.
//!
//! ```text
//! shared receive queue ─► completion queue ─► Inbound ─► Replies ─► messages (inline, or from the tenant's pool)
//!                                                └─► an offered value ─► READs to its extent
//! ```
//!
//! Each core opens the device for itself, so no two share a queue, a lock or a key (promise P4). What always holds: a buffer is either the
//! device's or this side's, and changes hands by a post and a completion only; a connection that ends has its queue pair destroyed
//! before anything of it is used again, and no completion of it is left behind; one whose client takes nothing for too long ends.

mod ending;
mod join;
mod peer;
mod tenant;
mod value_reads;

use super::tcp::PEER_TIMEOUT;
use super::{Core, Transport};
use crate::config::memory_plan::{RDMA_MESSAGE_BYTES, RDMA_POSTS, RDMA_RECEIVES, RDMA_SENDS, REPLY_BYTES};
use crate::pump::ring::{Operation, OperationKind};
use crate::shard::Shard;
use ending::LAST_RECEIVE_PAUSE;
use hashbrown::HashMap;
use lanner_rdma::selection::Selection;
use lanner_rdma::verbs::VerbsError;
use lanner_rdma::verbs::completion::{Completion, CompletionQueue};
use lanner_rdma::verbs::device::{Device, DeviceEvent};
use lanner_rdma::verbs::queue_pair::RECEIVE;
use lanner_shared::time::Clock;
use peer::{Peer, Scratch};
use slab::Slab;
use std::sync::Arc;
use tenant::Tenant;

/// Completions that are taken in a turn, at least, if there are so many.
const COMPLETIONS_IN_TURN: usize = 128;

/// What the ring is told to watch.
const COMPLETION: Operation = Operation { kind: OperationKind::RdmaCompletion, index: 0 };
const DEVICE: Operation = Operation { kind: OperationKind::RdmaDevice, index: 0 };

/// The RDMA connections of a core. Fields are dropped in order: queue pairs, then what they use.
#[derive(Debug)]
pub struct Rdma {
    peers: Slab<Box<Peer>>,
    by_queue_pair: HashMap<u32, usize, ahash::RandomState>,
    tenants: Vec<Tenant>,
    completions: Arc<CompletionQueue>,
    device: Arc<Device>,
    /// Taken and not handled yet.
    ready: Vec<Completion>,
    /// Connections that wait for room.
    waiting: Vec<usize>,
    /// A connection has ended since they were looked at last.
    has_made_room: bool,
    /// A message being served, or being put together.
    scratch: Box<Scratch>,
    /// As many as the completion queue has room for.
    most_peers: usize,
    /// Watches on the ring that haven't ended.
    watches: u32,
    /// The device has gone: no connection is made any more.
    is_closing: bool,
}

impl Rdma {
    /// Opens the device that was chosen and registers the segments of `shards`, one for each tenant. Blocks.
    ///
    /// # Errors
    /// What is in the way, and the way out.
    pub fn open(selection: &Selection, shards: &mut [Shard], max_connections: u32) -> Result<Rdma, String> {
        Self::open_device(selection, shards, max_connections).map_err(|error| error.to_string())
    }

    fn open_device(selection: &Selection, shards: &mut [Shard], most: u32) -> Result<Rdma, VerbsError> {
        let device = Device::open(selection.clone())?;
        // Whatever is posted may complete before this side looks; a queue that overflows would take all connections with it.
        let for_tenants = shards.len() as u32 * (RDMA_RECEIVES + RDMA_SENDS);
        let room = device.limits.completions.saturating_sub(for_tenants) / RDMA_POSTS;
        let most_peers = most.min(room);
        let completions = CompletionQueue::new(&device, for_tenants + most_peers * RDMA_POSTS)?;
        let tenants = shards.iter_mut().enumerate().map(|(index, shard)| Tenant::new(&device, index, shard));
        Ok(Rdma {
            tenants: tenants.collect::<Result<_, _>>()?,
            peers: Slab::new(),
            by_queue_pair: HashMap::default(),
            completions,
            device,
            ready: Vec::with_capacity(COMPLETIONS_IN_TURN),
            waiting: Vec::new(),
            has_made_room: false,
            scratch: Box::new([0; RDMA_MESSAGE_BYTES]),
            most_peers: most_peers as usize,
            watches: 0,
            is_closing: false,
        })
    }

    /// Begins to watch the device.
    pub fn start(&mut self, core: &mut Core) {
        self.watch_completions(core);
        self.watch_device(core);
    }

    fn watch_completions(&mut self, core: &mut Core) {
        core.ring.watch(self.completions.event_source(), COMPLETION);
        self.watches += 1;
    }

    fn watch_device(&mut self, core: &mut Core) {
        match self.device.event_source() {
            Ok(source) => {
                core.ring.watch(source, DEVICE);
                self.watches += 1;
            }
            Err(error) => tracing::warn!(%error, "what the RDMA device says by itself can't be heard"),
        }
    }

    /// Closes the device if the system doesn't show it any more, whether it has said so or not.
    pub fn look_after(&mut self, core: &mut Core) {
        if !self.is_closing && !self.device.is_there() {
            self.close(core);
        }
    }

    /// The device has gone. What is left of it, the queue pairs first, goes as soon as nothing refers to it.
    #[cold]
    fn close(&mut self, core: &mut Core) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        let device = &self.device.selection.device;
        tracing::error!(%device, "the RDMA device has gone; clients go on over TCP until it's back");
        core.identity.rdma_closed();
        let all: Vec<usize> = self.peers.iter().map(|(index, _)| index).collect();
        for index in all {
            self.fail(core, index);
            // Nothing more is to be heard of it.
            self.destroy(core, index);
        }
        [COMPLETION, DEVICE].into_iter().for_each(|operation| core.ring.cancel(operation));
    }

    /// Whether the device has gone and nothing refers to this any more.
    pub fn is_closed(&self) -> bool {
        self.is_closing && self.peers.is_empty() && self.watches == 0
    }

    /// Asks to be woken by the next completion, for a core that is about to sleep. Whether it must not, because there is one already.
    pub fn has_work_when_armed(&mut self) -> bool {
        if self.peers.is_empty() {
            return false;
        }
        self.completions.request_event();
        self.completions.poll(|completion| self.ready.push(completion));
        !self.ready.is_empty() || self.has_room_for_waiting()
    }

    /// Whether connections wait for room that one which has ended made: no completion tells of it.
    #[inline]
    fn has_room_for_waiting(&self) -> bool {
        self.has_made_room && !self.waiting.is_empty()
    }

    /// What the device says by itself.
    fn hear_device(&mut self, core: &mut Core) {
        while let Some(event) = self.device.next_event() {
            let device = &self.device.selection.device;
            match event {
                DeviceEvent::Gone => self.close(core),
                DeviceEvent::Port(true) => tracing::info!(%device, "the RDMA port is up"),
                DeviceEvent::Port(false) => {
                    tracing::warn!(%device, "the RDMA port is down; what is under way fails if it stays so");
                }
                DeviceEvent::LastReceive(number) => {
                    if let Some(index) = self.by_queue_pair.get(&number).copied()
                        && self.peers[index].ending_since.is_some()
                    {
                        self.destroy(core, index);
                    }
                }
                DeviceEvent::Other => {}
            }
        }
    }

    /// Takes the completions that there are.
    #[inline]
    fn take_completions(&mut self) {
        while self.ready.len() < COMPLETIONS_IN_TURN {
            if self.completions.poll(|completion| self.ready.push(completion)) == 0 {
                break;
            }
        }
    }

    fn handle(&mut self, core: &mut Core, completion: Completion) {
        let index = self.by_queue_pair.get(&completion.queue_pair).copied();
        let serving = index.filter(|index| self.peers[*index].ending_since.is_none());
        if completion.id & RECEIVE != 0 {
            let receive = completion.id;
            let tenant = &mut self.tenants[tenant_of(receive)];
            tenant.took_receive();
            match serving {
                Some(index) if completion.status.is_success() => {
                    let length = (completion.bytes as usize).min(RDMA_MESSAGE_BYTES);
                    self.peers[index].backlog.push(receive, length);
                    self.peers[index].progress = core.now;
                    self.advance(core, index);
                    self.after_receive(core, index);
                }
                // Of a connection that is ending, or about to.
                _ => {
                    tenant.give_receive(receive);
                    if let Some(index) = serving {
                        self.fail(core, index);
                    }
                }
            }
            return;
        }
        let Some(index) = serving else { return };
        let peer = &mut self.peers[index];
        if peer.completed(core, &completion, &mut self.tenants[peer.tenant]) {
            self.advance(core, index);
        } else {
            tracing::debug!(reason = completion.status.explain(), "an RDMA connection has failed");
            self.fail(core, index);
        }
    }

    /// What couldn't be served at once must not keep receives from others, nor grow.
    fn after_receive(&mut self, core: &mut Core, index: usize) {
        let peer = &mut self.peers[index];
        if peer.ending_since.is_some() || peer.backlog.is_empty() {
            return;
        }
        peer.spare_receives(&mut self.tenants[peer.tenant]);
        if peer.backlog.is_overdrawn() {
            tracing::warn!("an RDMA client sends more than it may; its connection ends");
            core.stats.protocol_errors += 1;
            self.end(core, index);
        } else if peer.account(core) {
            core.stats.connections_refused += 1;
            self.end(core, index);
        }
    }

    /// Serves what has come, and sends what was answered.
    fn advance(&mut self, core: &mut Core, index: usize) {
        let peer = &mut self.peers[index];
        if peer.ending_since.is_some() {
            return;
        }
        let tenant = &mut self.tenants[peer.tenant];
        let scratch = &mut self.scratch;
        loop {
            peer.serve(core, tenant, scratch);
            if !peer.read_value(core, tenant) || !peer.flush(core, tenant, scratch) {
                return self.fail(core, index);
            }
            if peer.account(core) {
                core.stats.connections_refused += 1;
                return self.end(core, index);
            }
            // Answers that were sent have made room for more.
            let is_stuck = peer.replies.is_full() || peer.inbound.offered_value().is_some();
            if peer.backlog.is_empty() || is_stuck || core.reply_bytes > REPLY_BYTES {
                break;
            }
        }
        if peer.is_waiting() && !self.waiting.contains(&index) {
            self.waiting.push(index);
        }
    }
}

impl Transport for Rdma {
    #[inline]
    fn poll(&mut self, core: &mut Core) -> bool {
        if self.peers.is_empty() {
            return false;
        }
        self.take_completions();
        if self.ready.is_empty() && !self.has_room_for_waiting() {
            return false;
        }
        // Later than what has arrived was sent (see `Core::now`).
        core.now = Clock.now();
        let mut ready = std::mem::take(&mut self.ready);
        for completion in ready.drain(..) {
            self.handle(core, completion);
        }
        debug_assert!(self.ready.is_empty(), "nothing is taken while others are handled");
        self.ready = ready;
        self.has_made_room = false;
        for index in std::mem::take(&mut self.waiting) {
            if self.peers.contains(index) {
                self.advance(core, index);
            }
        }
        true
    }

    fn completed(&mut self, core: &mut Core, completion: crate::pump::ring::Completion) {
        match completion.operation.kind {
            OperationKind::RdmaCompletion => {
                self.watches -= 1;
                if !self.is_closing {
                    self.completions.take_events();
                    self.watch_completions(core);
                }
            }
            OperationKind::RdmaDevice => {
                self.watches -= 1;
                if !self.is_closing {
                    self.hear_device(core);
                }
                if !self.is_closing {
                    self.watch_device(core);
                }
            }
            _ => {
                let index = completion.operation.index as usize;
                if self.peers.contains(index) {
                    self.client_gone(core, index);
                }
            }
        }
    }

    fn tick(&mut self, core: &mut Core) {
        let now = core.now;
        let (mut over, mut ended) = (Vec::new(), Vec::new());
        for (index, peer) in &mut self.peers {
            if let Some(since) = peer.ending_since {
                if now.since(since) >= LAST_RECEIVE_PAUSE {
                    ended.push(index);
                }
                continue;
            }
            let is_sending = !peer.in_flight.is_empty() || !peer.value_reads.is_idle();
            let owes = peer.is_waiting() || peer.inbound.is_mid_frame() || is_sending;
            if peer.has_broken_rules && peer.replies.is_empty() && peer.in_flight.is_empty() {
                core.stats.protocol_errors += 1;
                over.push(index);
            } else if !owes {
                peer.progress = now;
            } else if now.since(peer.progress) >= PEER_TIMEOUT {
                core.stats.stalled_peers += 1;
                over.push(index);
            }
        }
        over.into_iter().for_each(|index| self.end(core, index));
        ended.into_iter().for_each(|index| self.destroy(core, index));
    }

    fn has_work(&self) -> bool {
        !self.ready.is_empty() || self.has_room_for_waiting()
    }

    fn connections(&self) -> usize {
        self.peers.len()
    }
}

/// The tenant whose queue a receive is of.
fn tenant_of(receive: u64) -> usize {
    ((receive & !RECEIVE) >> 32) as usize
}
