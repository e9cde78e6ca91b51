//! Cuts the bytes of one connection into frames and payloads and has them served.
//!
//! ```text
//!            header+body whole?          put accepted            value whole
//!  Frame ───────────────────────► serve ─────────────► Value ──────────────► commit, answer ─► Frame
//!                                       └ put refused ► Skip ─────────────────────────────────► Frame
//! ```
//!
//! An offered value is read by the transport, and what comes behind its frame waits until that's done: frames of a connection take effect in
//! their order.
//!
//! What always holds: a length is checked before anything is reserved for it; a frame that is whole in the caller's buffer
//! is served from there without a copy; what is kept of one that isn't is bounded by [`lanner_shared::wire::MAX_BODY_BYTES`] and given back
//! when it's served.

use super::replies::Replies;
use super::{Caller, Payload, serve};
use crate::shard::{PutTicket, Shard};
use lanner_shared::time::Instant;
use lanner_shared::wire::Opcode;
use lanner_shared::wire::body;
use lanner_shared::wire::error::append_reply;
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use lanner_shared::wire::put_offered::ValueOffer;
use lanner_shared::{Error, Result, ShardId};

/// How far the bytes of a connection have been understood.
#[derive(Debug, Default)]
pub struct Inbound {
    state: State,
    /// Of a frame that hasn't arrived whole, what has.
    partial: Vec<u8>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Frame,
    Value(Value),
    Skip(u64),
    /// Nothing more is understood.
    Broken,
}

/// Where the next bytes of a connection belong, if they are payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadTarget {
    /// To the segment.
    Value {
        /// The put.
        ticket: PutTicket,
        /// From the start of the segment.
        offset: u64,
        /// Number of bytes.
        missing: u64,
    },
    /// Nowhere: the put was refused.
    Skip {
        /// Number of bytes.
        missing: u64,
    },
}

/// Why a connection's bytes aren't served here any further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The peer has broken the protocol; it was told so, and its connection is to be closed when that's sent.
    Broken(Error),
    /// The next frame is for another shard of this server, and nothing of it was used up: it's in
    /// [`Inbound::take_partial`], or at the start of the bytes that were left.
    Elsewhere(ShardId),
    /// The next frame asks to go on over RDMA. It's as with [`Stop::Elsewhere`].
    JoinsRdma,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Broken(error)
    }
}

/// A value that's being received.
#[derive(Debug)]
struct Value {
    header: Header,
    ticket: PutTicket,
    done: u64,
    /// Where it is to be READ from, if it doesn't come by itself.
    offer: Option<ValueOffer>,
}

/// A value that the transport is to READ from the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedValue {
    /// The put.
    pub ticket: PutTicket,
    /// Where the value lies.
    pub offer: ValueOffer,
    /// Bytes of it that the transport hasn't said to be there.
    pub missing: u64,
}

impl Inbound {
    /// Serves as much of `bytes` as it can, and returns how much that was: all, unless the replies are full or [`Stop`] says why.
    pub fn feed(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        caller: &Caller,
        bytes: &[u8],
        replies: &mut Replies,
    ) -> (usize, Option<Stop>) {
        let mut used = 0;
        while used < bytes.len() && !(matches!(self.state, State::Frame) && replies.is_full()) {
            let rest = &bytes[used..];
            used += match &mut self.state {
                State::Frame => match self.feed_frame(shard, now, caller, rest, replies) {
                    (count, None) => count,
                    (count, stop) => return (used + count, stop),
                },
                State::Value(Value { offer: Some(_), .. }) => return (used, None),
                State::Value(_) => self.feed_value(shard, now, caller, rest, replies),
                State::Skip(missing) => {
                    let count = rest.len().min(usize::try_from(*missing).unwrap_or(usize::MAX));
                    self.received(shard, now, caller, count as u64, replies);
                    count
                }
                State::Broken => bytes.len() - used,
            };
        }
        (used, None)
    }

    /// Serves the frame at the start of `bytes`, or keeps what there is of it. How many bytes that used up.
    fn feed_frame(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        caller: &Caller,
        bytes: &[u8],
        replies: &mut Replies,
    ) -> (usize, Option<Stop>) {
        if self.partial.is_empty() {
            return match self.whole_frame(bytes, caller, replies) {
                Ok(Some((header, length))) => {
                    match self.serve_frame(shard, now, caller, &header, &bytes[HEADER_BYTES..length], replies)
                    {
                        stop @ Some(Stop::Elsewhere(_) | Stop::JoinsRdma) => (0, stop),
                        stop => (length, stop),
                    }
                }
                Ok(None) => {
                    self.partial.extend_from_slice(bytes);
                    (bytes.len(), None)
                }
                Err(error) => (bytes.len(), Some(error.into())),
            };
        }
        // First the header, then what it announces.
        let wanted = match self
            .partial
            .first_chunk::<HEADER_BYTES>()
            .map(|header| Header::decode(header, caller.version))
        {
            None => HEADER_BYTES,
            Some(header) => HEADER_BYTES + header.map_or(0, |header| header.body_bytes as usize),
        };
        let count = bytes.len().min(wanted - self.partial.len());
        self.partial.reserve_exact(wanted - self.partial.len());
        self.partial.extend_from_slice(&bytes[..count]);
        let partial = std::mem::take(&mut self.partial);
        let stop = match self.whole_frame(&partial, caller, replies) {
            Ok(Some((header, length))) => {
                self.serve_frame(shard, now, caller, &header, &partial[HEADER_BYTES..length], replies)
            }
            Ok(None) => {
                self.partial = partial;
                return (count, None);
            }
            Err(error) => Some(error.into()),
        };
        if matches!(stop, Some(Stop::Elsewhere(_) | Stop::JoinsRdma)) {
            self.partial = partial;
        }
        (count, stop)
    }

    /// What is kept of a frame that wasn't served.
    pub fn take_partial(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.partial)
    }

    /// The header of the frame at the start of `bytes` and the frame's length, if all of it is there.
    fn whole_frame(
        &mut self,
        bytes: &[u8],
        caller: &Caller,
        replies: &mut Replies,
    ) -> Result<Option<(Header, usize)>> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        match Header::decode(header, caller.version) {
            Ok(header) => {
                let length = HEADER_BYTES + header.body_bytes as usize;
                Ok((bytes.len() >= length).then_some((header, length)))
            }
            Err(error) => {
                // Whatever it was, it had a place for a request id.
                let id = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
                let header = Header::request(Opcode::Stats, ShardId(0), id, 0);
                append_reply(replies.frame(), &header, &error, caller.boot, caller.version);
                self.state = State::Broken;
                Err(error)
            }
        }
    }

    fn serve_frame(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        caller: &Caller,
        header: &Header,
        body: &[u8],
        replies: &mut Replies,
    ) -> Option<Stop> {
        let config = shard.config();
        if header.shard != config.shard && header.shard.0 < config.shards && caller.can_move {
            return Some(Stop::Elsewhere(header.shard));
        }
        if header.opcode == Opcode::JoinRdma && caller.can_move {
            return Some(Stop::JoinsRdma);
        }
        match serve(shard, now, caller, header, body, replies) {
            Ok(Payload::None) => {}
            Ok(Payload::Skip(bytes)) => self.state = State::Skip(bytes),
            Ok(Payload::Value(ticket)) => {
                self.state = State::Value(Value { header: *header, ticket, done: 0, offer: None });
                if ticket.value_bytes == 0 {
                    self.end_value(shard, now, caller, replies);
                }
            }
            Ok(Payload::Offered(ticket, offer)) => {
                self.state = State::Value(Value { header: *header, ticket, done: 0, offer: Some(offer) });
            }
            Err(error) => {
                self.state = State::Broken;
                return Some(error.into());
            }
        }
        None
    }

    fn feed_value(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        caller: &Caller,
        bytes: &[u8],
        replies: &mut Replies,
    ) -> usize {
        let State::Value(value) = &self.state else { return 0 };
        let missing = value.ticket.value_bytes - value.done;
        let count = bytes.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
        // A put that the shard gave up has no memory any more; its end is noticed by the commit.
        if shard.is_unfinished(&value.ticket) {
            let _ = shard.segment_mut().write(value.ticket.value_offset + value.done, &bytes[..count]);
        }
        self.received(shard, now, caller, count as u64, replies);
        count
    }

    /// What the transport may take in by itself, past [`Inbound::feed`].
    #[inline]
    pub fn payload_target(&self) -> Option<PayloadTarget> {
        match &self.state {
            State::Value(Value { ticket, done, offer: None, .. }) => Some(PayloadTarget::Value {
                ticket: *ticket,
                offset: ticket.value_offset + done,
                missing: ticket.value_bytes - done,
            }),
            State::Skip(missing) => Some(PayloadTarget::Skip { missing: *missing }),
            _ => None,
        }
    }

    /// What the transport is to READ. Nothing further is served before that's done.
    #[inline]
    pub fn offered_value(&self) -> Option<OfferedValue> {
        match &self.state {
            State::Value(Value { ticket, done, offer: Some(offer), .. }) => {
                Some(OfferedValue { ticket: *ticket, offer: *offer, missing: ticket.value_bytes - done })
            }
            _ => None,
        }
    }

    /// The transport has taken in that many bytes for [`Inbound::payload_target`], or read them for [`Inbound::offered_value`].
    pub fn received(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        caller: &Caller,
        count: u64,
        replies: &mut Replies,
    ) {
        match &mut self.state {
            State::Value(value) => {
                value.done += count;
                shard.put_progress(now, &value.ticket);
                if value.done >= value.ticket.value_bytes {
                    self.end_value(shard, now, caller, replies);
                }
            }
            State::Skip(missing) => {
                *missing = missing.saturating_sub(count);
                if *missing == 0 {
                    self.state = State::Frame;
                }
            }
            State::Frame | State::Broken => {}
        }
    }

    fn end_value(&mut self, shard: &mut Shard, now: Instant, caller: &Caller, replies: &mut Replies) {
        let State::Value(value) = std::mem::take(&mut self.state) else { return };
        match shard.put_commit(now, value.ticket) {
            Ok(()) => {
                let frame = replies.frame();
                let start = body::begin(frame);
                body::finish(frame, start, value.header.reply(caller.boot), caller.version);
            }
            Err(error) => append_reply(replies.frame(), &value.header, &error, caller.boot, caller.version),
        }
    }

    /// Bytes that are kept of a frame that hasn't arrived whole.
    pub fn partial_bytes(&self) -> usize {
        self.partial.capacity()
    }

    /// Whether the connection is in the middle of a frame or a value: its peer owes bytes.
    pub fn is_mid_frame(&self) -> bool {
        !self.partial.is_empty() || !matches!(self.state, State::Frame)
    }
}
