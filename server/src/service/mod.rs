//! What a frame does to a shard: decodes its body, asks the shard, and queues the answer.
//!
//! Called by every transport (and by the simulator) through [`inbound`], which cuts a byte stream into frames. Logic only:
//! no clock, no socket. What always holds: each frame is answered exactly once, in order, by a reply or an error that has
//! its request id; a frame that can't be understood is answered by an error, and then its connection ends.

pub mod inbound;
mod match_chain;
mod read_ranges;
pub mod replies;

use crate::memory::slots::{Generation, SlotId};
use crate::shard::{PeerId, PutTicket, Shard, WARMED_KEYS};
use lanner_shared::error::Malformation;
use lanner_shared::key::MAX_KEY_BYTES;
use lanner_shared::time::Instant;
use lanner_shared::wire::error::append_reply;
use lanner_shared::wire::get::GetBody;
use lanner_shared::wire::header::Header;
use lanner_shared::wire::list::ListEntry;
use lanner_shared::wire::longest_prefix::LongestPrefixAnswer;
use lanner_shared::wire::put_offered::ValueOffer;
use lanner_shared::wire::{
    Descriptor, MAX_BODY_BYTES, Opcode, body, body::BodyReader, keys, list, put, put_offered, read, touch,
};
use lanner_shared::{Error, KeyHash, Result};
use replies::Replies;
use smallvec::SmallVec;

/// Who asks, and what this transport can do.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The connection.
    pub peer: PeerId,
    /// What each reply carries of the server's boot id.
    pub boot: u32,
    /// The version of the protocol that was agreed on.
    pub version: u8,
    /// Whether this side can READ values out of the client's memory.
    pub reads_values: bool,
    /// Whether replies may carry values. Over shared memory they don't: the client reads the segment.
    pub sends_values: bool,
    /// Whether the connection can go to the shard that a frame is for. If not, such a frame is refused.
    pub can_move: bool,
    /// The server is draining: nothing new is stored.
    pub is_draining: bool,
}

/// What is to be done with the payload behind a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none.
    None,
    /// It's the value of this put.
    Value(PutTicket),
    /// There is none; the value of this put is to be READ from there.
    Offered(PutTicket, ValueOffer),
    /// It belongs to a put that was refused.
    Skip(u64),
}

/// Serves one frame. An error is one of the connection: it was sent as the answer, and nothing more can be understood.
pub fn serve(
    shard: &mut Shard,
    now: Instant,
    caller: &Caller,
    header: &Header,
    body: &[u8],
    replies: &mut Replies,
) -> Result<Payload> {
    let mut request = Request { shard, now, caller, header, body };
    match request.answer(replies) {
        Ok(payload) => Ok(payload),
        Err(error) => {
            replies.undo_to_last_frame(request.shard, now);
            append_reply(replies.frame(), header, &error, caller.boot, caller.version);
            match error {
                Error::Malformed { .. } => Err(error),
                _ => Ok(if header.payload_bytes > 0 {
                    Payload::Skip(header.payload_bytes)
                } else {
                    Payload::None
                }),
            }
        }
    }
}

/// What a `get` does about values that are longer than its limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LongValues {
    /// Says how long they are.
    Refused,
    /// Says where they lie.
    Described,
}

/// One frame being served.
struct Request<'a> {
    shard: &'a mut Shard,
    now: Instant,
    caller: &'a Caller,
    header: &'a Header,
    body: &'a [u8],
}

impl Request<'_> {
    fn answer(&mut self, replies: &mut Replies) -> Result<Payload> {
        replies.mark_frame();
        let header = self.header;
        if header.shard != self.shard.config().shard {
            let (owner, asked) = (u64::from(self.shard.config().shard.0), u64::from(header.shard.0));
            return Err(Error::WrongShard { index: 0, owner, asked });
        }
        if header.payload_bytes > 0 && header.opcode != Opcode::Put {
            return Err(Error::Malformed { reason: Malformation::Length, detail: header.payload_bytes });
        }
        if header.status != 0 || header.boot != 0 {
            return Err(Error::Malformed { reason: Malformation::Field, detail: u64::from(header.status) });
        }
        match header.opcode {
            Opcode::Put => return self.put(),
            Opcode::PutOffered => return self.put_offered(),
            Opcode::Get => self.get(replies, LongValues::Refused)?,
            Opcode::Fetch => self.get(replies, LongValues::Described)?,
            Opcode::Query => self.query(replies)?,
            Opcode::Exists => {
                self.for_each_key(replies, |request, key| u8::from(request.shard.exists(request.now, key)))?
            }
            Opcode::Remove => {
                self.for_each_key(replies, |request, key| u8::from(request.shard.remove(request.now, key)))?
            }
            Opcode::Read => self.read(replies)?,
            Opcode::ReadRanges => read_ranges::answer(self, replies)?,
            Opcode::List => self.list(replies)?,
            Opcode::Stats => self.stats(replies)?,
            Opcode::Touch => self.touch(replies)?,
            Opcode::LongestPrefix => self.longest_prefix(replies)?,
            Opcode::MatchChain => match_chain::answer(self, replies)?,
            // Taken up by the transport where that is possible, and so not here.
            Opcode::JoinRdma => return Err(Error::Malformed { reason: Malformation::Order, detail: 0 }),
        }
        Ok(Payload::None)
    }

    fn put(&mut self) -> Result<Payload> {
        if self.caller.is_draining {
            return Err(Error::ShuttingDown);
        }
        let put = put::decode(self.body)?;
        let ticket = self.shard.put_begin(self.now, self.caller.peer, &put, self.header.payload_bytes)?;
        Ok(Payload::Value(ticket))
    }

    fn put_offered(&mut self) -> Result<Payload> {
        if !self.caller.reads_values {
            return Err(Error::Malformed { reason: Malformation::Opcode, detail: self.header.opcode as u64 });
        }
        let (offer, put) = put_offered::decode(self.body)?;
        if self.caller.is_draining {
            return Err(Error::ShuttingDown);
        }
        let ticket = self.shard.put_begin(self.now, self.caller.peer, &put, offer.value_bytes.get())?;
        Ok(Payload::Offered(ticket, offer))
    }

    /// Notes what the client has read by itself.
    fn touch(&mut self, replies: &mut Replies) -> Result<()> {
        for touch in touch::decode(self.body, usize::from(self.header.count))? {
            self.shard.touch_later(SlotId(touch.slot.get()), Generation(touch.generation.get()));
        }
        let start = body::begin(replies.frame());
        self.finish(replies, start, 0)
    }

    fn query(&mut self, replies: &mut Replies) -> Result<()> {
        let mut reader = BodyReader::new(self.body);
        let start = body::begin(replies.frame());
        let count = usize::from(self.header.count);
        // No key takes fewer bytes than this, so that a number alone makes nothing grow.
        if count * keys::encoded_bytes(b"k") > self.body.len() {
            return Err(Error::Malformed { reason: Malformation::Body, detail: self.body.len() as u64 });
        }
        for (index, place) in body::places::<Descriptor>(replies.frame(), count).iter_mut().enumerate() {
            self.warm(reader, index);
            let key = self.own_key(&mut reader, index)?;
            match self.shard.query(self.now, key, Opcode::Query) {
                Some(found) => found.describe(place),
                None => *place = Descriptor::without(Error::NotFound { index: 0 }.code(), 0),
            }
        }
        reader.end()?;
        self.finish(replies, start, 0)
    }

    fn describe(&mut self, key: &[u8], operation: Opcode) -> Descriptor {
        match self.shard.query(self.now, key, operation) {
            Some(found) => found.descriptor(),
            None => Descriptor::without(Error::NotFound { index: 0 }.code(), 0),
        }
    }

    fn get(&mut self, replies: &mut Replies, long_values: LongValues) -> Result<()> {
        self.must_send_values()?;
        let mut reader = BodyReader::new(self.body);
        let limit = reader.value::<GetBody>()?.max_value_bytes.get();
        let start = body::begin(replies.frame());
        let mut found: SmallVec<[Descriptor; 16]> = SmallVec::new();
        let mut payload_bytes = 0_u64;
        for index in 0..usize::from(self.header.count) {
            self.warm(reader, index);
            let key = self.own_key(&mut reader, index)?;
            let mut descriptor = self.describe(key, Opcode::Get);
            if descriptor.status.get() == 0 {
                let bytes = descriptor.value_bytes.get();
                if bytes > limit && long_values == LongValues::Described {
                    // The client reads it one-sided, under the lease that it just got.
                } else if bytes > limit {
                    let too_small = Error::BufferTooSmall { index: 0, needed: bytes, given: limit };
                    descriptor = Descriptor::without(too_small.code(), bytes);
                } else {
                    payload_bytes += bytes;
                    found.push(descriptor);
                }
            }
            body::append(replies.frame(), &descriptor);
        }
        reader.end()?;
        self.finish(replies, start, payload_bytes)?;
        for descriptor in &found {
            let (slot, generation) = (SlotId(descriptor.slot.get()), Generation(descriptor.generation.get()));
            replies.send_extent(
                self.shard,
                slot,
                generation,
                descriptor.value_offset(),
                descriptor.value_bytes.get(),
            )?;
        }
        self.shard.count_sent(payload_bytes);
        Ok(())
    }

    /// Answers a byte for each key.
    fn for_each_key(
        &mut self,
        replies: &mut Replies,
        mut act: impl FnMut(&mut Self, &[u8]) -> u8,
    ) -> Result<()> {
        // A removal must not take place in part because a later key of its frame is bad.
        let mut reader = BodyReader::new(self.body);
        for index in 0..usize::from(self.header.count) {
            self.own_key(&mut reader, index)?;
        }
        reader.end()?;
        let mut reader = BodyReader::new(self.body);
        let start = body::begin(replies.frame());
        for index in 0..usize::from(self.header.count) {
            self.warm(reader, index);
            let key = keys::next(&mut reader, index)?;
            let answer = act(self, key);
            replies.frame().push(answer);
        }
        self.finish(replies, start, 0)
    }

    fn read(&mut self, replies: &mut Replies) -> Result<()> {
        self.must_send_values()?;
        let (ranges, checks) = read::decode(self.body, usize::from(self.header.count))?;
        let has_changed =
            |check: &read::EpochCheck| self.shard.epoch(check.epoch_slot.get()) != check.epoch.get();
        if checks.iter().any(has_changed) {
            return Err(Error::EpochChanged);
        }
        let mut payload_bytes = 0_u64;
        for (index, range) in ranges.iter().enumerate() {
            let (slot, generation) = (SlotId(range.slot.get()), Generation(range.generation.get()));
            self.shard
                .check_range(slot, generation, range.segment_offset.get(), range.length.get())
                .map_err(|error| error.at(index as u64))?;
            payload_bytes = payload_bytes.saturating_add(range.length.get());
        }
        let start = body::begin(replies.frame());
        self.finish(replies, start, payload_bytes)?;
        let rows = ranges.iter().map(|range| (range.segment_offset.get(), range.length.get()));
        if !replies.copy_rows(self.shard.segment(), rows, payload_bytes) {
            for range in ranges {
                let (slot, generation) = (SlotId(range.slot.get()), Generation(range.generation.get()));
                let (offset, length) = (range.segment_offset.get(), range.length.get());
                replies.send_extent(self.shard, slot, generation, offset, length)?;
            }
        }
        for range in ranges {
            self.shard.touch_later(SlotId(range.slot.get()), Generation(range.generation.get()));
        }
        self.shard.count_sent(payload_bytes);
        Ok(())
    }

    fn list(&mut self, replies: &mut Replies) -> Result<()> {
        let (prefix, cursor) = list::decode(self.body)?;
        let frame = replies.frame();
        let start = body::begin(frame);
        let page = self.shard.list(self.now, prefix, cursor, |key, value_bytes| {
            let needed = size_of::<ListEntry>() + key.len();
            // The cursor comes behind, and is at most a key.
            if frame.len() - start + needed + MAX_KEY_BYTES > MAX_BODY_BYTES {
                return false;
            }
            list::append_entry(frame, key, value_bytes);
            true
        });
        frame.extend_from_slice(&page.next_cursor);
        let header = Header { count: page.entries as u16, ..self.header.reply(self.caller.boot) };
        body::finish(frame, start, header, self.caller.version);
        Ok(())
    }

    fn longest_prefix(&mut self, replies: &mut Replies) -> Result<()> {
        let mut reader = BodyReader::new(self.body);
        let start = body::begin(replies.frame());
        for index in 0..usize::from(self.header.count) {
            // Any key: what it begins with may be here though it itself belongs elsewhere.
            let key = keys::next(&mut reader, index)?;
            let bytes = self.shard.longest_prefix(self.now, key).unwrap_or(0);
            body::append(replies.frame(), &LongestPrefixAnswer::new(bytes as u16));
        }
        reader.end()?;
        self.finish(replies, start, 0)
    }

    fn stats(&mut self, replies: &mut Replies) -> Result<()> {
        BodyReader::new(self.body).end()?;
        let stats = self.shard.stats(self.now);
        let start = body::begin(replies.frame());
        let failed = |_| Error::Malformed { reason: Malformation::Body, detail: 0 };
        serde_json::to_writer(replies.frame(), &stats).map_err(failed)?;
        self.finish(replies, start, 0)
    }

    /// Before the first of every so many keys, has the shard bring in what they lead to. `reader` stands before key `index`.
    #[inline]
    fn warm(&self, mut reader: BodyReader<'_>, index: usize) {
        if !index.is_multiple_of(WARMED_KEYS) || self.header.count == 1 {
            return;
        }
        let last = usize::from(self.header.count).min(index + WARMED_KEYS);
        let mut some: SmallVec<[&[u8]; WARMED_KEYS]> = SmallVec::new();
        // A bad key is found, and answered, when its turn comes.
        some.extend((index..last).map_while(|index| keys::next(&mut reader, index).ok()));
        self.shard.warm(some.iter().copied());
    }

    /// The next key of the body, if it belongs to this shard.
    #[inline]
    fn own_key<'b>(&self, reader: &mut BodyReader<'b>, index: usize) -> Result<&'b [u8]> {
        let key = keys::next(reader, index)?;
        if self.shard.config().shards > 1 {
            self.must_own(KeyHash::of(key), index)?;
        }
        Ok(key)
    }

    /// That the key at `index` of the frame, whose hash this is, belongs to this shard.
    #[inline]
    fn must_own(&self, hash: KeyHash, index: usize) -> Result<()> {
        let config = self.shard.config();
        let owner = hash.shard(config.shards);
        if owner == config.shard {
            return Ok(());
        }
        let (owner, asked) = (u64::from(owner.0), u64::from(config.shard.0));
        Err(Error::WrongShard { index: index as u64, owner, asked })
    }

    fn must_send_values(&self) -> Result<()> {
        if self.caller.sends_values {
            return Ok(());
        }
        Err(Error::Malformed { reason: Malformation::Opcode, detail: self.header.opcode as u64 })
    }

    fn finish(&self, replies: &mut Replies, start: usize, payload_bytes: u64) -> Result<()> {
        let limit = lanner_shared::wire::header::MAX_PAYLOAD_BYTES;
        if payload_bytes > limit {
            return Err(Error::Malformed { reason: Malformation::Length, detail: payload_bytes });
        }
        let header = Header { payload_bytes, ..self.header.reply(self.caller.boot) };
        body::finish(replies.frame(), start, header, self.caller.version);
        Ok(())
    }
}
