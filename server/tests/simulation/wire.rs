//! One connection between a client and a shard: bytes that are under way in both directions, late, in pieces, or lost.

use crate::tap::Tap;
use fastrand::Rng;
use lanner_server::service::Caller;
use lanner_server::service::inbound::{Inbound, PayloadTarget};
use lanner_server::service::replies::{Piece, Replies};
use lanner_server::shard::{PutTicket, Shard};
use lanner_shared::time::Instant;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};

/// A value's rest that is at least this long may be received straight into the segment.
const DIRECT_BYTES: u64 = 4096;

/// Bytes under way in one direction.
#[derive(Debug, Default)]
pub struct Pipe {
    chunks: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    last_arrival: u64,
    /// When the receiver learns that nothing more comes.
    end_at: Option<u64>,
    /// What is written from now on never arrives.
    is_cut: bool,
    capacity: usize,
    /// Each piece may take so much longer.
    slowness: u64,
}

impl Pipe {
    /// Some are so slow that a value is under way for longer than its lease.
    fn new(is_slow: bool, random: &mut Rng) -> Pipe {
        if is_slow {
            return Pipe { capacity: random.usize(200..2_000), slowness: 6_000_000, ..Pipe::default() };
        }
        Pipe { capacity: random.usize(500..60_000), ..Pipe::default() }
    }

    /// How many of `bytes` are taken, of none where the peer is slow.
    fn push(&mut self, now: u64, bytes: &[u8], random: &mut Rng) -> usize {
        let room = self.capacity.saturating_sub(self.bytes).min(bytes.len());
        if room == 0 {
            return 0;
        }
        let count = if random.u8(..4) == 0 { random.usize(1..=room) } else { room };
        if !self.is_cut {
            self.last_arrival = self.last_arrival.max(now + delay(random)) + random.u64(0..=self.slowness);
            self.chunks.push_back((self.last_arrival, bytes[..count].to_vec()));
            self.bytes += count;
        }
        count
    }

    fn has_room(&self) -> bool {
        self.bytes < self.capacity
    }

    /// What has arrived and comes next.
    fn front(&self, now: u64) -> &[u8] {
        self.chunks.front().filter(|(arrival, _)| *arrival <= now).map_or(&[], |(_, bytes)| bytes)
    }

    fn consume(&mut self, count: usize) {
        self.bytes -= count;
        if let Some((_, bytes)) = self.chunks.front_mut() {
            bytes.drain(..count);
            if bytes.is_empty() {
                self.chunks.pop_front();
            }
        }
    }

    fn has_ended(&self, now: u64) -> bool {
        self.chunks.is_empty() && self.end_at.is_some_and(|end| end <= now)
    }

    /// The sender ends; what is under way still arrives.
    pub fn end(&mut self, now: u64, random: &mut Rng) {
        // Through a cut pipe not even the end arrives, except as it was cut.
        if !self.is_cut {
            self.last_arrival = self.last_arrival.max(now + delay(random));
            self.end_at.get_or_insert(self.last_arrival);
        }
    }

    /// Of what is under way a random part arrives, and nothing after it. `end_at` is when the receiver learns of it, if ever.
    pub fn cut(&mut self, end_at: Option<u64>, random: &mut Rng) {
        if self.is_cut {
            return;
        }
        let mut left = random.usize(0..=self.bytes);
        self.bytes = left;
        self.chunks.retain_mut(|(_, bytes)| {
            bytes.truncate(left);
            left -= bytes.len();
            !bytes.is_empty()
        });
        self.is_cut = true;
        self.end_at = end_at.map(|end| end.max(self.last_arrival));
    }
}

/// Mostly as on one host, now and then as over a network with a hiccup.
fn delay(random: &mut Rng) -> u64 {
    match random.u8(..) {
        0 => random.u64(0..60_000_000),
        1..16 => random.u64(0..3_000_000),
        _ => random.u64(0..40_000),
    }
}

/// A piece of a value that the kernel is writing into the segment.
#[derive(Debug)]
struct Receiving {
    ticket: PutTicket,
    offset: u64,
    bytes: Vec<u8>,
    /// When it's done.
    until: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Wire {
    pub server: usize,
    pub shard: u16,
    pub client: usize,
    pub up: Pipe,
    pub down: Pipe,
    pub caller: Caller,
    pub tap: Tap,
    inbound: Inbound,
    replies: Replies,
    /// Bytes of the replies that the tap has heard.
    heard: u64,
    receiving: Option<Receiving>,
    is_slow: bool,
    pub is_open_at_server: bool,
    pub is_open_at_client: bool,
}

/// What a turn of a wire brought.
#[derive(Debug, Default)]
pub struct Turn {
    /// Bytes of new answers, values included.
    pub answers: Vec<u8>,
    /// It is over at the server's end.
    pub has_ended: bool,
}

impl Wire {
    pub fn new(server: usize, shard: u16, client: usize, caller: Caller, random: &mut Rng) -> Wire {
        let is_slow = random.u8(..10) == 0;
        Wire {
            is_slow,
            server,
            shard,
            client,
            up: Pipe::new(is_slow, random),
            down: Pipe::new(is_slow, random),
            caller,
            tap: Tap::default(),
            inbound: Inbound::default(),
            replies: Replies::default(),
            heard: 0,
            receiving: None,
            is_open_at_server: true,
            is_open_at_client: true,
        }
    }

    /// Whether a turn would change anything at the server's end.
    pub fn is_due(&self, time: u64) -> bool {
        let has_work = match &self.receiving {
            Some(receiving) => receiving.until <= time,
            None => !self.up.front(time).is_empty() || self.up.has_ended(time),
        };
        self.is_open_at_server && (has_work || (!self.replies.is_empty() && self.down.has_room()))
    }

    /// What the server does for the connection at one moment: `time` is the network's, `now` the server's own.
    pub fn turn(&mut self, time: u64, now: Instant, shard: &mut Shard, random: &mut Rng) -> Turn {
        if self.receiving.as_ref().is_some_and(|receiving| receiving.until <= time) {
            self.end_receive(now, shard);
        }
        let mut answers = self.new_answers(shard);
        self.send(time, now, shard, random);
        if self.receiving.is_none() {
            self.receive(time, now, shard, random);
        }
        answers.append(&mut self.new_answers(shard));
        let mut turn = Turn { answers, has_ended: false };
        if self.receiving.is_none() && self.up.has_ended(time) {
            self.end_at_server(now, shard);
            turn.has_ended = true;
        }
        turn
    }

    fn receive(&mut self, time: u64, now: Instant, shard: &mut Shard, random: &mut Rng) {
        let arrived = self.up.front(time);
        if arrived.is_empty() {
            return;
        }
        let count = if random.u8(..4) == 0 { random.usize(1..=arrived.len()) } else { arrived.len() };
        let bytes = arrived[..count].to_vec();
        if let Some(PayloadTarget::Value { ticket, offset, missing }) = self.inbound.payload_target()
            && missing >= DIRECT_BYTES
            && shard.pin_for_receive(&ticket).is_ok()
        {
            let count = count.min(missing as usize);
            self.up.consume(count);
            self.tap.requested(&bytes[..count]);
            // Longer than the shard waits for progress, now and then.
            let until = time + random.u64(0..if self.is_slow { 150_000_000 } else { 20_000 });
            self.receiving = Some(Receiving { ticket, offset, bytes: bytes[..count].to_vec(), until });
            return;
        }
        let (used, stop) = self.inbound.feed(shard, now, &self.caller, &bytes, &mut self.replies);
        assert!(stop.is_none(), "clients send what can be understood, and to the right shard: {stop:?}");
        self.up.consume(used);
        self.tap.requested(&bytes[..used]);
    }

    /// The kernel writes whatever became of the put meanwhile; that is what it was pinned for.
    fn end_receive(&mut self, now: Instant, shard: &mut Shard) {
        let Some(Receiving { ticket, offset, bytes, .. }) = self.receiving.take() else { return };
        shard.segment_mut().write(offset, &bytes).expect("within the segment");
        shard.unpin_after_receive(now, &ticket);
        self.inbound.received(shard, now, &self.caller, bytes.len() as u64, &mut self.replies);
    }

    /// Sends from where the bytes lie at this moment.
    fn send(&mut self, time: u64, now: Instant, shard: &mut Shard, random: &mut Rng) {
        let pieces: Vec<Piece> = self.replies.pieces().take(random.usize(1..8)).collect();
        for piece in pieces {
            let bytes = match piece {
                Piece::Bytes { start, length } => self.replies.bytes(start, length),
                Piece::Extent { offset, length, .. } => {
                    shard.segment().slice(offset, length).expect("checked")
                }
            };
            let (whole, sent) = (bytes.len(), self.down.push(time, bytes, random));
            self.replies.sent(shard, now, sent as u64);
            self.heard -= sent as u64;
            if sent < whole {
                break;
            }
        }
    }

    fn new_answers(&mut self, shard: &Shard) -> Vec<u8> {
        let mut skipped = self.heard;
        let mut answers = Vec::new();
        let pieces: Vec<Piece> = self.replies.pieces().collect();
        for piece in pieces {
            let bytes = match piece {
                Piece::Bytes { start, length } => self.replies.bytes(start, length),
                Piece::Extent { offset, length, .. } => {
                    shard.segment().slice(offset, length).expect("checked")
                }
            };
            let known = skipped.min(bytes.len() as u64);
            skipped -= known;
            answers.extend_from_slice(&bytes[known as usize..]);
        }
        self.heard += answers.len() as u64;
        answers
    }

    fn end_at_server(&mut self, now: Instant, shard: &mut Shard) {
        self.end_receive(now, shard);
        self.replies.drop_all(shard, now);
        shard.peer_gone(self.caller.peer);
        self.heard = 0;
        self.is_open_at_server = false;
    }

    /// The server has gone, and everything at its end with it.
    pub fn server_crashed(&mut self, time: u64, random: &mut Rng) {
        let noticed = time + delay(random);
        self.down.cut(Some(noticed), random);
        self.up.cut(None, random);
        self.is_open_at_server = false;
    }

    /// The client's `read`.
    pub fn client_reads(&mut self, time: u64, target: &mut [u8], random: &mut Rng) -> io::Result<usize> {
        let arrived = self.down.front(time);
        if arrived.is_empty() {
            return if self.down.has_ended(time) { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        let most = arrived.len().min(target.len());
        let count = if random.u8(..4) == 0 { random.usize(1..=most) } else { most };
        target[..count].copy_from_slice(&arrived[..count]);
        self.down.consume(count);
        Ok(count)
    }

    /// The client's `write`.
    pub fn client_writes(&mut self, time: u64, bytes: &[u8], random: &mut Rng) -> io::Result<usize> {
        if self.down.has_ended(time) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        match self.up.push(time, bytes, random) {
            0 => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}
