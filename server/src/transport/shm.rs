//! Shared-memory lanes of one core: requests are polled from rings, answers pushed into rings, values are never sent.
//!
//! A client reads values from the segment, which it can't write. A value that it puts comes through the lane's staging
//! buffer (or, if short, with its frame) and is copied into the segment here. Whatever a client wrote is copied to memory of
//! the server's own before it's looked at.

use super::tcp::PEER_TIMEOUT;
use super::{Core, Transport};
use crate::memory::slots::{Generation, SlotId};
use crate::pump::ring::{Completion, Operation, OperationKind};
use crate::service::Caller;
use crate::service::inbound::{Inbound, PayloadTarget};
use crate::service::replies::Replies;
use crate::shard::Shard;
use lanner_shared::shm::lane_memory::LaneMemory;
use lanner_shared::shm::lane_page::{INLINE_PAYLOAD_BYTES, LANE_BYTES, STAGING_BYTES};
use lanner_shared::shm::line_ring::{Consumer, Producer};
use lanner_shared::shm::park;
use lanner_shared::shm::touch_ring::{Touch, TouchReader};
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use rustix::fs::{MemfdFlags, SealFlags};
use slab::Slab;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Frames of one lane that are served before the next lane's turn.
const FRAMES_IN_TURN: usize = 64;
/// Payload bytes of one lane that are copied before the next lane's turn.
const PAYLOAD_IN_TURN: u64 = 64 << 10;

/// The shared-memory lanes of a core.
#[derive(Debug, Default)]
pub struct Shm {
    lanes: Slab<Box<Peer>>,
    /// Places of the lanes, for a quick walk.
    order: Vec<usize>,
}

/// One lane, the server's side.
#[derive(Debug)]
struct Peer {
    lane: LaneMemory,
    /// Its end is the client's end.
    socket: OwnedFd,
    wake_client: OwnedFd,
    tenant: usize,
    caller: Caller,
    requests: Consumer,
    reply_ring: Producer,
    touches: TouchReader,
    /// The frame whose lines are being taken.
    frame: Vec<u8>,
    /// Bytes of that, as far as is known.
    wanted: usize,
    inbound: Inbound,
    replies: Replies,
    /// Bytes taken from the staging buffer since the beginning.
    staging_consumed: u64,
    has_broken_rules: bool,
    /// When answers were last taken, or there were none.
    taken: Instant,
}

impl Shm {
    /// Serves a lane from here on.
    pub fn adopt(&mut self, core: &mut Core, lane: NewLane, socket: OwnedFd, tenant: usize, caller: Caller) {
        core.stats.shm_lanes += 1;
        core.stats.connections_opened += 1;
        let peer = Box::new(Peer {
            lane: lane.memory,
            socket,
            wake_client: lane.wake_client,
            tenant,
            caller,
            requests: Consumer::default(),
            reply_ring: Producer::default(),
            touches: TouchReader::default(),
            frame: Vec::new(),
            wanted: 0,
            inbound: Inbound::default(),
            replies: Replies::default(),
            staging_consumed: 0,
            has_broken_rules: false,
            taken: core.now,
        });
        let index = self.lanes.insert(peer);
        self.order.push(index);
        let operation = Operation { kind: OperationKind::LaneEnd, index: index as u32 };
        core.ring.watch(self.lanes[index].socket.as_fd(), operation);
    }

    fn remove(&mut self, core: &mut Core, index: usize) {
        let mut peer = self.lanes.remove(index);
        self.order.retain(|other| *other != index);
        let shard = &mut core.shards[peer.tenant];
        peer.replies.drop_all(shard, core.now);
        shard.peer_gone(peer.caller.peer);
        core.stats.shm_lanes -= 1;
        core.stats.connections_closed += 1;
    }
}

impl Shm {
    fn take_touches(&mut self, core: &mut Core) {
        for index in &self.order {
            if let Some(peer) = self.lanes.get_mut(*index) {
                peer.take_touches(core);
            }
        }
    }
}

impl Transport for Shm {
    #[inline]
    fn poll(&mut self, core: &mut Core) -> bool {
        // Ticks take them too; but the victims of a put in this turn, on whichever transport, are chosen before the next.
        if core.shards.iter().any(Shard::is_short_of_room) {
            self.take_touches(core);
        }
        let mut has_worked = false;
        for index in &self.order {
            if let Some(peer) = self.lanes.get_mut(*index) {
                has_worked |= peer.turn(core);
            }
        }
        has_worked
    }

    fn completed(&mut self, core: &mut Core, completion: Completion) {
        let index = completion.operation.index as usize;
        if self.lanes.contains(index) {
            self.remove(core, index);
        }
    }

    fn tick(&mut self, core: &mut Core) {
        // A lane is ended through its socket, whose watcher then removes it.
        for (_, peer) in &mut self.lanes {
            peer.take_touches(core);
            if peer.has_broken_rules {
                core.stats.protocol_errors += 1;
                peer.has_broken_rules = false;
                peer.end();
            } else if peer.replies.is_empty() {
                peer.taken = core.now;
            } else if core.now.since(peer.taken) >= PEER_TIMEOUT {
                core.stats.stalled_peers += 1;
                peer.taken = core.now;
                peer.end();
            }
        }
    }

    /// A client says nothing when it has made room, so the core looks again soon.
    fn longest_sleep(&self) -> Duration {
        let has_waiting = self.lanes.iter().any(|(_, peer)| !peer.replies.is_empty());
        if has_waiting { Duration::from_millis(1) } else { Duration::MAX }
    }

    fn has_work(&self) -> bool {
        self.lanes.iter().any(|(_, peer)| peer.has_work())
    }

    fn connections(&self) -> usize {
        self.lanes.len()
    }
}

impl Peer {
    #[inline]
    fn has_work(&self) -> bool {
        let is_payload_there = self.inbound.payload_target().is_some() && self.staged() > 0;
        self.is_request_there() || is_payload_there
    }

    /// Whether lines have come that [`Peer::take_frame`] takes.
    #[inline]
    fn is_request_there(&self) -> bool {
        self.requests.is_ready_for(self.lane.requests(), self.wanted.saturating_sub(self.frame.len()))
    }

    /// Serves some of what the client has asked. Whether there was anything.
    #[inline]
    fn turn(&mut self, core: &mut Core) -> bool {
        if !self.is_request_there() && self.is_quiet() {
            return false;
        }
        let mut has_worked = self.flush(core);
        for _ in 0..FRAMES_IN_TURN {
            if self.has_broken_rules || !self.replies.is_empty() {
                break;
            }
            if self.inbound.payload_target().is_some() {
                has_worked |= self.take_payload(core);
                break;
            }
            if !self.take_frame(core) {
                break;
            }
            has_worked = true;
            self.flush(core);
        }
        has_worked | self.flush(core)
    }

    /// Tells the shard of reads that it took no part in. One that lies further back than a lease is history: its client was held
    /// up, and what it read since is told by the next ones.
    fn take_touches(&mut self, core: &mut Core) {
        let shard = &mut core.shards[self.tenant];
        let oldest = core.now.minus(shard.config().lease_ttl);
        self.touches.take_all(self.lane.touches(), |Touch { slot, generation, read_at }| {
            if read_at >= oldest {
                shard.touch(SlotId(slot), Generation(generation));
            }
        });
    }

    fn end(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    #[inline]
    fn is_quiet(&self) -> bool {
        self.replies.is_empty() && self.inbound.payload_target().is_none()
    }

    /// Takes the lines of a frame; serves it when they are all there.
    #[inline]
    fn take_frame(&mut self, core: &mut Core) -> bool {
        let mut grants_leases = false;
        loop {
            let missing = self.wanted.saturating_sub(self.frame.len());
            if !self.requests.take(self.lane.requests(), missing, &mut self.frame) {
                return false;
            }
            match header(&self.frame, self.caller.version) {
                Some(header) if self.frame.len() < frame_bytes(&header) => self.wanted = frame_bytes(&header),
                Some(header) => {
                    self.frame.truncate(frame_bytes(&header));
                    grants_leases = header.opcode.grants_leases();
                    break;
                }
                // No header: the answer says so, and the lane ends.
                None => break,
            }
        }
        if grants_leases {
            // Later than the request was sent, so that a lease isn't counted from before (promise P1). Other answers don't
            // depend on some microseconds, and looking at the clock takes longer than most of them.
            core.now = Clock.now();
        }
        self.caller.is_draining = core.is_draining;
        let shard = &mut core.shards[self.tenant];
        core.stats.received_bytes += self.frame.len() as u64;
        let (_, stop) = self.inbound.feed(shard, core.now, &self.caller, &self.frame, &mut self.replies);
        self.has_broken_rules |= stop.is_some();
        self.frame.clear();
        self.wanted = 0;
        true
    }

    /// Copies payload from the staging buffer into the segment, or past it.
    fn take_payload(&mut self, core: &mut Core) -> bool {
        let mut has_worked = false;
        let mut left = PAYLOAD_IN_TURN;
        while left > 0 {
            let Some(target) = self.inbound.payload_target() else { break };
            let staged = self.staged();
            if staged > STAGING_BYTES as u64 {
                self.has_broken_rules = true;
                break;
            }
            let at = self.staging_consumed % STAGING_BYTES as u64;
            let (PayloadTarget::Value { missing, .. } | PayloadTarget::Skip { missing }) = target;
            let count = staged.min(missing).min(left).min(STAGING_BYTES as u64 - at);
            if count == 0 {
                break;
            }
            let shard = &mut core.shards[self.tenant];
            if let PayloadTarget::Value { ticket, offset, .. } = target
                && shard.is_unfinished(&ticket)
            {
                copy_staging(&self.lane, at as usize, shard, offset, count);
            }
            self.staging_consumed += count;
            self.lane.page().staging_consumed.0.store(self.staging_consumed, Ordering::Release);
            left -= count;
            core.now = Clock.now();
            core.stats.received_bytes += count;
            self.inbound.received(
                &mut core.shards[self.tenant],
                core.now,
                &self.caller,
                count,
                &mut self.replies,
            );
            has_worked = true;
        }
        has_worked
    }

    /// Bytes in the staging buffer that weren't taken yet, as the client says.
    #[inline]
    fn staged(&self) -> u64 {
        self.lane.page().staging_written.0.load(Ordering::Acquire).wrapping_sub(self.staging_consumed)
    }

    /// Pushes answers into the ring, as far as there is room. Whether any were.
    #[inline]
    fn flush(&mut self, core: &mut Core) -> bool {
        let bytes = self.replies.plain_bytes();
        if bytes.is_empty() {
            return false;
        }
        let pushed = self.reply_ring.push(self.lane.replies(), bytes);
        if pushed == 0 {
            return false;
        }
        core.stats.sent_bytes += pushed as u64;
        self.taken = core.now;
        self.replies.sent(&mut core.shards[self.tenant], core.now, pushed as u64);
        if park::must_wake(&self.lane.page().client_parked.0) {
            let _ = rustix::io::write(&self.wake_client, &1_u64.to_ne_bytes());
        }
        true
    }
}

/// The header of a frame whose first line has come, if it's valid.
#[inline]
fn header(frame: &[u8], version: u8) -> Option<Header> {
    Header::decode(frame.first_chunk::<HEADER_BYTES>()?, version).ok()
}

/// Bytes that a frame takes in the request lines.
#[inline]
fn frame_bytes(header: &Header) -> usize {
    let inline = if header.payload_bytes <= INLINE_PAYLOAD_BYTES { header.payload_bytes as usize } else { 0 };
    HEADER_BYTES + header.body_bytes as usize + inline
}

/// A lane that was made for a client and not handed over yet.
#[derive(Debug)]
pub struct NewLane {
    memory: LaneMemory,
    /// The lane's memory, for the client to map.
    pub file: OwnedFd,
    /// Written by the server to wake the client.
    pub wake_client: OwnedFd,
}

impl NewLane {
    /// Makes the memory of a lane: a memfd that can neither shrink nor grow, so that neither side can take the ground from
    /// under the other.
    ///
    /// # Errors
    /// What the system says: file descriptors or memory are used up.
    pub fn new() -> io::Result<NewLane> {
        let file = rustix::fs::memfd_create("lanner-lane", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, LANE_BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = LaneMemory::map(file.as_fd())?;
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        Ok(NewLane { memory, file, wake_client: rustix::event::eventfd(0, flags)? })
    }
}

/// Copies `count` bytes at `at` of the staging buffer to `offset` of the shard's segment.
fn copy_staging(lane: &LaneMemory, at: usize, shard: &mut Shard, offset: u64, count: u64) {
    let Ok(target) = shard.segment_mut().as_mut_ptr_range(offset, count) else { return };
    // SAFETY: the target lies within the segment (checked by `as_mut_ptr_range`), in the extent of an unfinished put, which only
    // its own connection writes.
    unsafe { lane.read_staging(at, target.start, count as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::PolicyKind;
    use crate::memory::segment::Segment;
    use crate::pump::ring::Ring;
    use crate::server::identity::Identity;
    use crate::shard::{PeerId, PutTicket, ShardConfig};
    use lanner_shared::shm::touch_ring::TouchWriter;
    use lanner_shared::wire::MAX_VERSION;
    use lanner_shared::wire::put::{Pin, PutMode, PutRequest};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    fn core(shard: Shard) -> Core {
        let identity = Identity {
            boot_id: [1; 16],
            server_id: 1,
            shards: 1,
            capacity_bytes: 0,
            max_value_bytes: 0,
            lease_ms: 5_000,
            page_bytes: 4096,
            socket_path: None,
            rdma_cores: 0.into(),
            tenants: Vec::new(),
            max_connections: 1,
            connections: AtomicU32::new(1),
        };
        Core {
            shards: vec![shard],
            ring: Ring::new().unwrap(),
            now: Clock.now(),
            stats: crate::transport::stats::TransportStats::default(),
            is_draining: false,
            partial_bytes: 0,
            reply_bytes: 0,
            posts: Vec::new(),
            identity: Arc::new(identity),
        }
    }

    fn put(core: &mut Core, key: &[u8]) -> PutTicket {
        let request =
            PutRequest { key, mode: PutMode::Put, pin: Pin::None, ttl_seconds: 0, group: b"", chain: None };
        let ticket = core.shards[0].put_begin(core.now, PeerId(1), &request, (64 << 10) - 64).unwrap();
        core.shards[0].put_commit(core.now, ticket).unwrap();
        ticket
    }

    /// A put that finds no room right after a client has published that it read the oldest object. Returns whether that object stays.
    fn oldest_stays(turns: bool) -> bool {
        let config = ShardConfig { policy: PolicyKind::Lru, started: Clock.now(), ..ShardConfig::default() };
        let shard = Shard::new(config, Segment::heap(8192 + (4 << 16)).unwrap()).unwrap();
        let (mut core, mut shm) = (core(shard), Shm::default());
        let tickets = [b"a", b"b", b"c", b"d"].map(|key| put(&mut core, key));
        let lane = NewLane::new().unwrap();
        let client = LaneMemory::map(lane.file.as_fd()).unwrap();
        let (socket, _peer) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let caller = Caller {
            peer: PeerId(2),
            boot: 0,
            version: MAX_VERSION,
            reads_values: false,
            sends_values: false,
            can_move: false,
            is_draining: false,
        };
        shm.adopt(&mut core, lane, socket, 0, caller);
        let (slot, generation) = (tickets[0].slot().0, tickets[0].generation().0);
        let touch = Touch { slot, generation, read_at: core.now };
        TouchWriter::default().publish(client.touches(), [touch].into_iter());
        if turns {
            shm.poll(&mut core);
        }
        put(&mut core, b"e");
        assert_eq!(core.shards[0].exists(core.now, b"b"), !turns);
        core.shards[0].exists(core.now, b"a")
    }

    /// Shows that a read past the shard counts in the very turn in which a put needs room, with no tick in between; and that without
    /// taking it there the object that was just read would go.
    #[test]
    fn a_put_without_room_knows_of_the_latest_reads() {
        assert!(oldest_stays(true));
        assert!(!oldest_stays(false));
    }
}
