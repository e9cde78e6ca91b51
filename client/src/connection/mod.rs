//! One connection of one client thread to one shard: frames out, replies in, whatever carries them.
//!
//! ```text
//! submit ─► outbound bytes ─► transport ─► server
//! poll(id, receiver) ◄─ the reply with that id, straight into the receiver's buffers
//!                    ◄─ replies to other requests are put by until they are asked for (or thrown away if abandoned)
//! ```
//!
//! Nothing here waits; [`crate::lane`] does. A receiver's buffers are written only while its owner is inside `poll`, so a
//! caller may drop or forget a call at any time without anybody writing into memory that it gave back.

pub(crate) mod backoff;
pub(crate) mod handshake;
mod presence;
mod put_by;
#[cfg(feature = "rdma")]
pub(crate) mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "rdma_absent.rs"]
pub(crate) mod rdma;
pub(crate) mod reader;
pub(crate) mod shm;
pub(crate) mod tcp;

use crate::config::TransportChoice;
use crate::mapping::Mapping;
use ahash::HashMap;
use lanner_shared::error::Limit;
use lanner_shared::shm::touch_ring::Touch;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::touch::{MOST_TOUCHES, TouchBody};
use lanner_shared::wire::{self, MAX_VERSION, Opcode, body, header::Header, hello::short_boot};
use lanner_shared::{Error, Result, ShardId};
use put_by::PutBy;
use std::sync::Arc;
use std::task::Poll;
use zerocopy::IntoBytes;

/// Requests without an answer that a connection may have. More are refused, so that nothing grows without bound.
const MAX_PENDING: usize = 4096;
/// A payload of at most this many bytes is queued with its frame and goes out with it in one write.
pub(crate) const QUEUED_PAYLOAD_BYTES: usize = 32 << 10;

/// With this many bytes waiting, requests go out without waiting for more.
const HELD_BACK_BYTES: usize = 16 << 10;

/// Who takes the reply to a request.
pub(crate) trait Receiver {
    /// The reply without its payload. An error is given to the caller, and the payload skipped.
    fn reply(&mut self, header: &Header, body: &[u8]) -> Result<()>;

    /// Where the next bytes of the payload belong; asked for as long as some are missing. Empty: they aren't wanted.
    fn destination(&mut self) -> &mut [u8];

    /// That many bytes were written to the start of the destination.
    fn advance(&mut self, bytes: usize);

    /// Where a payload starts that comes behind a header without a body: it may be received to there with its header, in one
    /// system call. Empty for a reply of another form. What is written there counts only once `advance` says so.
    fn payload_start(&mut self) -> &mut [u8] {
        &mut []
    }
}

/// What carries the frames.
#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(tcp::TcpTransport),
    Shm(Box<shm::ShmTransport>),
    Rdma(Box<tcp::TcpTransport<rdma::link::RdmaLink>>),
    #[cfg(feature = "simulation")]
    Simulated(Box<crate::simulation::SimulatedTransport>),
}

/// What a transport has found out about its state; turned into an [`Error`] that fits the call by whoever knows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The peer has gone, or the system has given the connection up.
    Closed,
    /// The peer broke the protocol.
    Protocol(Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Broken {
        Broken::Protocol(error)
    }
}

/// A connection and the requests on it.
#[derive(Debug)]
pub(crate) struct Connection {
    transport: Transport,
    /// The shard it belongs to.
    pub shard: ShardId,
    /// The server's boot id.
    pub boot_id: [u8; 16],
    /// Differs for each connection that the lane ever made.
    pub serial: u64,
    /// When a better transport is to be tried, of a connection that had to do without.
    pub upgrade_at: Option<Instant>,
    next_request_id: u32,
    /// Requests that somebody waits for.
    pending: Vec<u32>,
    /// Replies that arrived while somebody else's was awaited.
    put_by: HashMap<u32, PutBy>,
    outbound: Vec<u8>,
    outbound_done: usize,
    /// The request whose payload is being written by its owner.
    writer: Option<Writer>,
    /// How much of it was missing when another request first had to wait for just that, and when.
    kept_waiting: Option<(u32, u64, Instant)>,
    current: Option<Current>,
    /// See [`Connection::news`].
    news: u64,
    /// When it was last looked whether the server is there, before a change.
    looked_at: Instant,
    /// Objects that were read one-sided and the shard isn't told of yet.
    touches: Vec<TouchBody>,
}

/// Takes no reply.
struct Nobody;

impl Receiver for Nobody {
    fn reply(&mut self, _: &Header, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn destination(&mut self) -> &mut [u8] {
        &mut []
    }

    fn advance(&mut self, _: usize) {}
}

#[derive(Debug)]
struct Writer {
    request_id: u32,
    remaining: u64,
}

/// The frame that's being received.
#[derive(Debug)]
struct Current {
    header: Header,
    payload_remaining: u64,
    /// The receiver has seen header and body.
    is_begun: bool,
    /// The payload isn't wanted.
    is_skipped: bool,
}

impl Connection {
    pub fn new(transport: Transport, shard: ShardId, boot_id: [u8; 16], serial: u64) -> Connection {
        Connection {
            transport,
            shard,
            boot_id,
            serial,
            upgrade_at: None,
            next_request_id: 1,
            pending: Vec::new(),
            put_by: HashMap::default(),
            outbound: Vec::new(),
            outbound_done: 0,
            writer: None,
            kept_waiting: None,
            current: None,
            news: 0,
            looked_at: Instant::ZERO,
            touches: Vec::new(),
        }
    }

    /// A number that grows with everything that comes, and with everything that went because there was room for it: frames, pieces of
    /// values, and completions of what was posted.
    pub fn news(&self) -> u64 {
        match &self.transport {
            Transport::Rdma(rdma) => self.news + rdma.stream().completed(),
            _ => self.news,
        }
    }

    /// The segment, where this client can read it itself.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        match &self.transport {
            Transport::Tcp(_) | Transport::Rdma(_) => None,
            Transport::Shm(shm) => Some(shm.mapping()),
            #[cfg(feature = "simulation")]
            Transport::Simulated(simulated) => simulated.mapping.as_ref(),
        }
    }

    /// The link over which this client can read the segment one-sided, if there is one.
    #[inline]
    pub fn link(&mut self) -> Option<&mut rdma::link::RdmaLink> {
        match &mut self.transport {
            Transport::Rdma(rdma) => Some(rdma.stream_mut()),
            _ => None,
        }
    }

    /// A call has waited for its whole time-out on this connection, which is about to be closed.
    #[cold]
    pub fn timed_out(&self) {
        if let Transport::Rdma(rdma) = &self.transport {
            rdma.stream().timed_out();
        }
    }

    /// Whether a better transport is to be tried now: nothing is under way, and it's time.
    #[inline]
    pub fn is_upgrade_due(&self) -> bool {
        self.upgrade_at.is_some_and(|at| {
            self.pending.is_empty() && self.outbound_done == self.outbound.len() && Clock.now() >= at
        })
    }

    /// Which transport it is.
    pub fn transport(&self) -> TransportChoice {
        match &self.transport {
            Transport::Tcp(_) => TransportChoice::Tcp,
            Transport::Shm(_) => TransportChoice::Shm,
            Transport::Rdma(_) => TransportChoice::Rdma,
            #[cfg(feature = "simulation")]
            Transport::Simulated(simulated) if simulated.mapping.is_some() => TransportChoice::Shm,
            #[cfg(feature = "simulation")]
            Transport::Simulated(_) => TransportChoice::Tcp,
        }
    }

    /// Tells the shard of a read that it took no part in: through shared memory at once, over RDMA with [`Connection::send_touches`].
    pub fn tell_touch(&mut self, touch: Touch) {
        match &mut self.transport {
            Transport::Shm(shm) => shm.tell_touch(touch),
            Transport::Rdma(_) if self.touches.len() < MOST_TOUCHES => {
                self.touches.push(TouchBody { slot: touch.slot.into(), generation: touch.generation.into() });
            }
            // A touch is a hint.
            _ => {}
        }
    }

    /// Sends what [`Connection::tell_touch`] has put together, in one frame whose answer is thrown away. What goes wrong the next call finds.
    #[cold]
    pub fn send_touches(&mut self) {
        // Answers to earlier ones take up the room for messages until somebody looks.
        while self.pending.is_empty() && self.throw_an_answer_away().unwrap_or(false) {}
        if self.touches.is_empty() || !self.can_submit() {
            return;
        }
        let touches = std::mem::take(&mut self.touches);
        let encode = |body: &mut Vec<u8>| body.extend_from_slice(touches.as_bytes());
        if let Ok(request_id) = self.submit(Opcode::Touch, touches.len() as u16, &[], encode) {
            self.abandon(request_id);
            let _ = self.flush();
        }
        self.touches = touches;
        self.touches.clear();
    }

    /// Takes a frame that nobody waits for. Whether there was one.
    fn throw_an_answer_away(&mut self) -> Result<bool, Broken> {
        if self.current.is_none() && !self.next_frame(0, &mut Nobody)? {
            return Ok(false);
        }
        self.put_current_by()
    }

    /// Whether the next request may be queued: no payload of another one is half way, and not too many are without an answer. Else a call waits.
    pub fn can_submit(&self) -> bool {
        self.writer.is_none() && self.pending.len() < MAX_PENDING
    }

    /// Whether answers are to come.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Queues a request with the body that `encode` appends, for `payload`, which follows by
    /// [`Connection::write_payload`], or (where `encode` appended nothing of it) by itself if it's queued with the frame.
    /// Returns its id.
    pub fn submit(
        &mut self,
        opcode: Opcode,
        count: u16,
        payload: &[u8],
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<u32> {
        debug_assert!(self.can_submit());
        if self.pending.len() >= MAX_PENDING {
            return Err(Error::Overloaded { what: Limit::PendingRequests, limit: MAX_PENDING as u64 });
        }
        let request_id = self.next_request_id;
        self.next_request_id = self.next_request_id.wrapping_add(1);
        if self.outbound_done == self.outbound.len() {
            self.outbound.clear();
            self.outbound_done = 0;
        }
        let start = body::begin(&mut self.outbound);
        encode(&mut self.outbound);
        let mut header = Header::request(opcode, self.shard, request_id, count);
        header.payload_bytes = payload.len() as u64;
        body::finish(&mut self.outbound, start, header, MAX_VERSION);
        if self.transport.queues(payload.len()) {
            self.outbound.extend_from_slice(payload);
        } else {
            self.writer = Some(Writer { request_id, remaining: payload.len() as u64 });
        }
        self.transport.end_request(&mut self.outbound);
        self.pending.push(request_id);
        Ok(request_id)
    }

    /// Whether the request that was just queued may wait for the next ones: an answer is outstanding, so somebody will poll
    /// for that soon and write this one too. So requests that are submitted one after the other go out together, and one alone
    /// goes out at once.
    pub fn holds_back(&self) -> bool {
        self.pending.len() > 1
            && self.writer.is_none()
            && self.outbound.len() - self.outbound_done < HELD_BACK_BYTES
    }

    /// Writes what is queued where that takes no system call, so that the shard begins with it. What goes wrong the next poll says.
    #[inline]
    pub fn flush_at_no_cost(&mut self) {
        if let Transport::Shm(_) = &self.transport {
            let _ = self.flush();
        }
    }

    /// Writes what is queued, as far as it goes now. Whether all of it is out.
    #[inline]
    pub fn flush(&mut self) -> Result<bool, Broken> {
        while self.outbound_done < self.outbound.len() {
            let written = self.transport.write(&self.outbound[self.outbound_done..])?;
            if written == 0 {
                return Ok(false);
            }
            self.outbound_done += written;
        }
        Ok(true)
    }

    /// Writes the rest of the payload of `request_id`, as far as it goes now; `payload` is all of it.
    /// Whether all of it is out, or was queued with the frame.
    pub fn write_payload(&mut self, request_id: u32, payload: &[u8]) -> Result<bool, Broken> {
        if self.writer.as_ref().is_some_and(|writer| writer.request_id == request_id) {
            // Its owner polls: if it doesn't go on, that's the server's doing, and another connection would only overtake this one.
            self.kept_waiting = None;
        }
        if !self.flush()? {
            return Ok(false);
        }
        let Some(writer) = self.writer.as_mut().filter(|writer| writer.request_id == request_id) else {
            return Ok(true);
        };
        while writer.remaining > 0 {
            let start = payload.len() - writer.remaining as usize;
            let written = self.transport.write_payload(&payload[start..])?;
            if written == 0 {
                return Ok(false);
            }
            self.news += 1;
            writer.remaining -= written as u64;
        }
        self.writer = None;
        Ok(true)
    }

    /// The reply to `request_id`, if it's there: what the server said, once `receiver` has all of it.
    #[inline]
    pub fn poll(&mut self, request_id: u32, receiver: &mut dyn Receiver) -> Result<Poll<Result<()>>, Broken> {
        self.flush()?;
        if !self.put_by.is_empty()
            && let Some(reply) = self.put_by.get(&request_id)
            && reply.is_whole
            && let Some(reply) = self.put_by.remove(&request_id)
        {
            self.forget(request_id);
            return reply.hand_over(receiver).map(Poll::Ready);
        }
        loop {
            if self.current.is_none() && !self.next_frame(request_id, receiver)? {
                return Ok(Poll::Pending);
            }
            let is_mine =
                self.current.as_ref().is_some_and(|current| current.header.request_id == request_id);
            // A reply that was put by in part stays there: its first bytes are.
            if is_mine && !self.put_by.contains_key(&request_id) {
                return self.receive(receiver);
            }
            if !self.put_current_by()? {
                return Ok(Poll::Pending);
            }
            if is_mine && let Some(reply) = self.put_by.remove(&request_id) {
                self.forget(request_id);
                return reply.hand_over(receiver).map(Poll::Ready);
            }
        }
    }

    /// Nobody waits for this answer any more. Whether the connection is still usable.
    pub fn abandon(&mut self, request_id: u32) -> bool {
        self.forget(request_id);
        self.put_by.remove(&request_id);
        if let Some(current) = self.current.as_mut().filter(|current| current.header.request_id == request_id)
        {
            current.is_skipped = true;
        }
        // The server would take the next frame for the rest of the payload.
        self.writer.as_ref().is_none_or(|writer| writer.request_id != request_id)
    }

    /// Whether a reply or room for more output can be waited for on these, and the transport agrees to sleep.
    pub fn wait_set(&mut self) -> WaitSet<'_> {
        let wants_room = self.outbound_done < self.outbound.len() || self.writer.is_some();
        match &mut self.transport {
            Transport::Tcp(tcp) => WaitSet::Tcp { tcp, wants_room },
            Transport::Shm(shm) => WaitSet::Shm { shm, wants_room },
            Transport::Rdma(rdma) => WaitSet::Rdma { link: rdma.stream_mut(), wants_room },
            #[cfg(feature = "simulation")]
            Transport::Simulated(_) => WaitSet::Simulated,
        }
    }

    fn forget(&mut self, request_id: u32) {
        if let Some(at) = self.pending.iter().position(|pending| *pending == request_id) {
            self.pending.swap_remove(at);
        }
    }

    /// Takes up the next frame, if its header and body are there.
    #[inline]
    fn next_frame(&mut self, request_id: u32, receiver: &mut dyn Receiver) -> Result<bool, Broken> {
        let is_next = self.pending.as_slice() == [request_id];
        let target: &mut [u8] = if is_next { receiver.payload_start() } else { &mut [] };
        let Some(header) = self.transport.next_frame(request_id, target)? else { return Ok(false) };
        if header.boot != short_boot(&self.boot_id) {
            return Err(Broken::Closed);
        }
        self.news += 1;
        let is_awaited = self.pending.contains(&header.request_id);
        self.current = Some(Current {
            payload_remaining: header.payload_bytes,
            header,
            is_begun: false,
            is_skipped: !is_awaited,
        });
        Ok(true)
    }

    /// Receives the current frame, which is the receiver's.
    #[inline]
    fn receive(&mut self, receiver: &mut dyn Receiver) -> Result<Poll<Result<()>>, Broken> {
        let Some(current) = self.current.as_mut() else { return Ok(Poll::Pending) };
        if !current.is_begun {
            current.is_begun = true;
            let body = self.transport.body(&current.header);
            if let Err(error) = tell(receiver, &current.header, body)? {
                current.is_skipped = true;
                let request_id = current.header.request_id;
                self.forget(request_id);
                return Ok(Poll::Ready(Err(error)));
            }
        }
        let placed = self.transport.take_placed();
        if placed > 0 {
            receiver.advance(placed);
            current.payload_remaining -= placed as u64;
        }
        while current.payload_remaining > 0 {
            let target = receiver.destination();
            let wanted = target.len().min(usize::try_from(current.payload_remaining).unwrap_or(usize::MAX));
            if wanted == 0 {
                // More than was asked for: the server doesn't do what this side thinks that it does.
                return Err(Broken::Closed);
            }
            let read = self.transport.read_payload(&mut target[..wanted])?;
            if read == 0 {
                return Ok(Poll::Pending);
            }
            self.news += 1;
            receiver.advance(read);
            current.payload_remaining -= read as u64;
        }
        let request_id = current.header.request_id;
        self.end_frame();
        self.forget(request_id);
        Ok(Poll::Ready(Ok(())))
    }

    /// Puts the current frame by for its owner, or the rest of it where that has begun with it, or throws it away if it has none. Whether
    /// that's done.
    fn put_current_by(&mut self) -> Result<bool, Broken> {
        let Some(current) = self.current.as_mut() else { return Ok(true) };
        if current.is_skipped {
            let mut bin = [0; 4096];
            while current.payload_remaining > 0 {
                let wanted = bin.len().min(usize::try_from(current.payload_remaining).unwrap_or(usize::MAX));
                let read = self.transport.read_payload(&mut bin[..wanted])?;
                if read == 0 {
                    return Ok(false);
                }
                self.news += 1;
                current.payload_remaining -= read as u64;
            }
            self.end_frame();
            return Ok(true);
        }
        let reply = match self.put_by.entry(current.header.request_id) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let is_begun = current.is_begun && !crate::faults::begins_replies_again();
                let body = if is_begun { Vec::new() } else { self.transport.body(&current.header).to_vec() };
                let header = current.header;
                entry.insert(PutBy { header, body, payload: Vec::new(), is_whole: false, is_begun })
            }
        };
        while current.payload_remaining > 0 {
            let mut piece = [0; 16 << 10];
            let wanted = piece.len().min(usize::try_from(current.payload_remaining).unwrap_or(usize::MAX));
            let read = self.transport.read_payload(&mut piece[..wanted])?;
            if read == 0 {
                return Ok(false);
            }
            self.news += 1;
            reply.payload.extend_from_slice(&piece[..read]);
            current.payload_remaining -= read as u64;
        }
        reply.is_whole = true;
        self.end_frame();
        Ok(true)
    }

    #[inline]
    fn end_frame(&mut self) {
        self.current = None;
        self.transport.end_frame();
    }
}

/// Gives the receiver a reply without its payload: what the server said.
#[inline]
fn tell(receiver: &mut dyn Receiver, header: &Header, body: &[u8]) -> Result<Result<()>, Broken> {
    match header.status {
        0 => Ok(receiver.reply(header, body)),
        status => Ok(Err(wire::error::decode(status, body)?)),
    }
}

/// What to sleep on.
pub(crate) enum WaitSet<'a> {
    Tcp {
        tcp: &'a mut tcp::TcpTransport,
        wants_room: bool,
    },
    Shm {
        shm: &'a mut shm::ShmTransport,
        wants_room: bool,
    },
    Rdma {
        link: &'a mut rdma::link::RdmaLink,
        wants_room: bool,
    },
    /// Looking at the clock is what lets a simulated world go on, so nobody sleeps in it.
    #[cfg(feature = "simulation")]
    Simulated,
}

impl Transport {
    #[inline]
    fn queues(&self, payload_bytes: usize) -> bool {
        match self {
            Transport::Tcp(_) => payload_bytes <= QUEUED_PAYLOAD_BYTES,
            Transport::Rdma(_) => payload_bytes <= QUEUED_PAYLOAD_BYTES,
            Transport::Shm(_) => payload_bytes as u64 <= lanner_shared::shm::lane_page::INLINE_PAYLOAD_BYTES,
            #[cfg(feature = "simulation")]
            Transport::Simulated(_) => payload_bytes <= QUEUED_PAYLOAD_BYTES,
        }
    }

    /// Pads what is queued so that the next request may follow it.
    #[inline]
    fn end_request(&self, outbound: &mut Vec<u8>) {
        match self {
            Transport::Tcp(_) | Transport::Rdma(_) => {}
            Transport::Shm(_) => shm::pad_to_line(outbound),
            #[cfg(feature = "simulation")]
            Transport::Simulated(_) => {}
        }
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        match self {
            Transport::Tcp(tcp) => tcp.write(bytes),
            Transport::Shm(shm) => shm.write(bytes),
            Transport::Rdma(rdma) => rdma.write(bytes),
            #[cfg(feature = "simulation")]
            Transport::Simulated(simulated) => simulated.stream.write(bytes),
        }
    }

    #[inline]
    fn write_payload(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        match self {
            Transport::Tcp(tcp) => tcp.write(bytes),
            Transport::Shm(shm) => shm.write_staged(bytes),
            Transport::Rdma(rdma) => rdma.write(bytes),
            #[cfg(feature = "simulation")]
            Transport::Simulated(simulated) => simulated.stream.write(bytes),
        }
    }

    /// The next frame, and where it's a reply to `request_id` without a body, the start of its payload in `target`.
    #[inline]
    fn next_frame(&mut self, request_id: u32, target: &mut [u8]) -> Result<Option<Header>, Broken> {
        match self {
            Transport::Tcp(tcp) => tcp.next_frame(request_id, target),
            Transport::Shm(shm) => shm.next_frame(),
            Transport::Rdma(rdma) => rdma.next_frame(request_id, target),
            #[cfg(feature = "simulation")]
            Transport::Simulated(simulated) => simulated.stream.next_frame(request_id, target),
        }
    }

    /// Bytes of the payload that [`Transport::next_frame`] has placed.
    #[inline]
    fn take_placed(&mut self) -> usize {
        match self {
            Transport::Tcp(tcp) => tcp.take_placed(),
            Transport::Shm(_) => 0,
            Transport::Rdma(rdma) => rdma.take_placed(),
            #[cfg(feature = "simulation")]
            Transport::Simulated(simulated) => simulated.stream.take_placed(),
        }
    }

    #[inline]
    fn body(&self, header: &Header) -> &[u8] {
        match self {
            Transport::Tcp(tcp) => tcp.body(header),
            Transport::Shm(shm) => shm.body(header),
            Transport::Rdma(rdma) => rdma.body(header),
            #[cfg(feature = "simulation")]
            Transport::Simulated(simulated) => simulated.stream.body(header),
        }
    }

    #[inline]
    fn read_payload(&mut self, target: &mut [u8]) -> Result<usize, Broken> {
        match self {
            Transport::Tcp(tcp) => tcp.read_payload(target),
            // Replies over shared memory carry descriptors; the values are read from the segment.
            Transport::Shm(_) => Err(Broken::Closed),
            Transport::Rdma(rdma) => rdma.read_payload(target),
            #[cfg(feature = "simulation")]
            Transport::Simulated(simulated) => simulated.stream.read_payload(target),
        }
    }

    #[inline]
    fn end_frame(&mut self) {
        match self {
            Transport::Tcp(tcp) => tcp.end_frame(),
            Transport::Shm(shm) => shm.end_frame(),
            Transport::Rdma(rdma) => rdma.end_frame(),
            #[cfg(feature = "simulation")]
            Transport::Simulated(simulated) => simulated.stream.end_frame(),
        }
    }
}
