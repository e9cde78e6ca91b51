//! What the shard's tests share: a shard with a transport of one line, and times in milliseconds.

use super::{Found, PeerId, PutTicket, Shard, ShardConfig};
use crate::memory::segment::Segment;
use lanner_shared::Result;
use lanner_shared::time::Instant;
use lanner_shared::wire::Opcode;
use lanner_shared::wire::put::{PutMode, PutRequest};
use std::ops::{Deref, DerefMut};

/// The peer of all puts that don't name another.
pub const PEER: PeerId = PeerId(1);

/// The shard's time zero lies somewhere, as that of a real one does.
const STARTED: Instant = Instant(123_456_789);

/// A time in milliseconds after the shard started.
pub fn at(millis: u64) -> Instant {
    at_nanos(millis * 1_000_000)
}

/// A time in nanoseconds after the shard started.
pub fn at_nanos(nanos: u64) -> Instant {
    STARTED.plus_nanos(nanos)
}

/// A plain `put` of a key.
pub fn put_request(key: &[u8]) -> PutRequest<'_> {
    PutRequest { key, mode: PutMode::Put, pin: Default::default(), ttl_seconds: 0, group: b"", chain: None }
}

/// A shard on the heap.
pub struct TestShard(Shard);

impl Deref for TestShard {
    type Target = Shard;
    fn deref(&self) -> &Shard {
        &self.0
    }
}

impl DerefMut for TestShard {
    fn deref_mut(&mut self) -> &mut Shard {
        &mut self.0
    }
}

impl TestShard {
    pub fn new(segment_bytes: u64, config: ShardConfig) -> Self {
        let config = ShardConfig { started: STARTED, ..config };
        Self(Shard::new(config, Segment::heap(segment_bytes).unwrap()).unwrap())
    }

    /// Begins a put and writes its value, as a transport does.
    pub fn begin_request(
        &mut self,
        now: Instant,
        request: &PutRequest<'_>,
        value: &[u8],
    ) -> Result<PutTicket> {
        let ticket = self.put_begin(now, PEER, request, value.len() as u64)?;
        self.segment_mut().write(ticket.value_offset, value).unwrap();
        Ok(ticket)
    }

    pub fn begin(&mut self, now: Instant, key: &[u8], value: &[u8]) -> Result<PutTicket> {
        self.begin_request(now, &put_request(key), value)
    }

    pub fn upsert_begin(&mut self, now: Instant, key: &[u8], value: &[u8]) -> Result<PutTicket> {
        self.begin_request(now, &PutRequest { mode: PutMode::Upsert, ..put_request(key) }, value)
    }

    pub fn put_request(&mut self, now: Instant, request: &PutRequest<'_>, value: &[u8]) -> Result<PutTicket> {
        let ticket = self.begin_request(now, request, value)?;
        self.put_commit(now, ticket)?;
        Ok(ticket)
    }

    pub fn put(&mut self, now: Instant, key: &[u8], value: &[u8]) -> Result<PutTicket> {
        self.put_request(now, &put_request(key), value)
    }

    pub fn upsert(&mut self, now: Instant, key: &[u8], value: &[u8]) -> Result<PutTicket> {
        self.put_request(now, &PutRequest { mode: PutMode::Upsert, ..put_request(key) }, value)
    }

    pub fn get(&mut self, now: Instant, key: &[u8]) -> Option<Found> {
        self.query(now, key, Opcode::Get)
    }

    pub fn value(&mut self, now: Instant, key: &[u8]) -> Option<Vec<u8>> {
        let found = self.get(now, key)?;
        Some(self.segment().slice(found.value_offset, found.value_bytes).unwrap().to_vec())
    }

    /// Ticks until a whole round of everything that goes in slices is behind.
    pub fn tick_until_quiet(&mut self, now: Instant) {
        let rounds = 10 + self.slots.made() / 256;
        for _ in 0..rounds {
            while self.tick(now).more_is_due {}
        }
    }
}
