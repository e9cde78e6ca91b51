//! A value arrives: begun, received into its extent by the transport, and then published whole or not at all.
//!
//! An unfinished put reserves memory and nothing else. Its key stays free, so a writer that dies blocks nobody (scenario
//! 6): several unfinished puts of a key may coexist, and the first to end wins. It belongs to a peer and ends with it, or
//! after a time without progress.
//!
//! What always holds: an unfinished put's extent isn't reused while the kernel may still receive into it. The transport
//! says so by [`Shard::pin_for_receive`]; a put that is given up meanwhile keeps its memory until the receive has ended.

use super::quarantine::Departure;
use super::{PeerId, Shard};
use crate::eviction::{ChainPlace, EvictionPolicy};
use crate::memory::slots::{Generation, Life, SlotId};
use lanner_shared::error::Limit;
use lanner_shared::extent::{ExtentHeader, value_offset};
use lanner_shared::key::{self, KeyHash};
use lanner_shared::time::Instant;
use lanner_shared::wire::put::{Pin, PutMode, PutRequest};
use lanner_shared::{Error, Result};

/// An unfinished put, in the hand of the transport that receives its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutTicket {
    number: u32,
    slot: SlotId,
    generation: Generation,
    /// Where the value is to be written, in bytes from the start of the segment.
    pub value_offset: u64,
    /// Length of the value.
    pub value_bytes: u64,
}

impl PutTicket {
    /// The object's slot.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// The object's generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }
}

/// What the shard remembers of an unfinished put.
#[derive(Debug)]
pub(super) struct UnfinishedPut {
    ticket: PutTicket,
    owner: PeerId,
    mode: PutMode,
    pin: Pin,
    ttl_seconds: u32,
    chain: Option<ChainSeat>,
    pub(super) last_progress: Instant,
    /// Neighbours in the list of the owner's puts.
    previous: Option<u32>,
    next: Option<u32>,
}

/// Where in its chain the object of an unfinished put will stand.
#[derive(Debug, Clone, Copy)]
struct ChainSeat {
    depth: u32,
    /// The block before it, as it was when the put began.
    parent: Option<(SlotId, Generation)>,
}

/// The unfinished puts of one peer.
#[derive(Debug, Default)]
pub(super) struct PeerPuts {
    first: Option<u32>,
    count: u32,
}

/// Why an unfinished put ended without an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivingUp {
    /// The transport said so.
    Aborted,
    /// Its peer is gone.
    PeerGone,
    /// It made no progress.
    TimedOut,
    /// Another put of the key ended first.
    LostRace,
}

impl Shard {
    /// Reserves memory for a value and returns where to write it. The key can't be read yet. May evict.
    ///
    /// # Errors
    /// `InvalidKey`, `InvalidArgument` (a hard pin without an end), `WrongShard`, `AlreadyExists` (mode `Put`),
    /// `ValueTooLarge`, `Overloaded` (the peer's unfinished puts, or the shard's objects), `StoreFull`. Nothing was
    /// reserved then.
    pub fn put_begin(
        &mut self,
        now: Instant,
        owner: PeerId,
        request: &PutRequest<'_>,
        value_bytes: u64,
    ) -> Result<PutTicket> {
        let key = key::checked(request.key, 0)?;
        let hash = KeyHash::of(key);
        self.check_put(now, owner, request, hash)?;
        let units = self.units_of_put(key.len() as u16, value_bytes)?;
        let extent = self.make_room(now, units)?;
        let slot = match self.slots.occupy(extent) {
            Some(slot) => slot,
            None => {
                self.give_back_unused(extent);
                return Err(self.refuse_another_object(now));
            }
        };
        let generation = self.slots.generation(slot);
        let epoch_slot = epoch_slot_of(request);
        let header = ExtentHeader::new(hash, key.len() as u16, value_bytes, generation.0, epoch_slot);
        self.write_front(extent, header, key);
        let offset = extent.byte_offset() + value_offset(key.len() as u16);
        Ok(self.remember_put(now, owner, request, (slot, generation), (offset, value_bytes)))
    }

    /// Notes that some of the value has arrived, which puts off the put's time-out.
    pub fn put_progress(&mut self, now: Instant, ticket: &PutTicket) {
        if let Some(put) = self.unfinished.get_mut(ticket.number as usize).filter(|put| put.ticket == *ticket)
        {
            put.last_progress = now;
        }
    }

    /// Whether a put is still to be ended by its transport: it was neither committed nor given up.
    pub fn is_unfinished(&self, ticket: &PutTicket) -> bool {
        self.unfinished_put(ticket).is_ok()
    }

    /// Keeps the extent of an unfinished put from being reused while a receive writes to it.
    ///
    /// # Errors
    /// [`Error::PutGivenUp`] if the shard gave the put up; the receive must not begin then.
    pub fn pin_for_receive(&mut self, ticket: &PutTicket) -> Result<()> {
        self.unfinished_put(ticket)?;
        self.begin_transfer(ticket.slot)
    }

    /// Ends what [`Shard::pin_for_receive`] began, also for a put that was given up meanwhile.
    pub fn unpin_after_receive(&mut self, now: Instant, ticket: &PutTicket) {
        self.unpin_after_send(now, ticket.slot, ticket.generation);
    }

    /// Publishes the value, all of which is written; no receive is pinned any more. An object that was there before is
    /// hidden (mode `Upsert`) or wins (mode `Put`).
    ///
    /// # Errors
    /// `AlreadyExists` if another put of the key ended first, [`Error::PutGivenUp`] if the shard gave the put up. The put has
    /// ended in either case.
    pub fn put_commit(&mut self, now: Instant, ticket: PutTicket) -> Result<()> {
        self.unfinished_put(&ticket)?;
        let slot = ticket.slot;
        let (Some(hash), Some(key)) = (self.hash(slot), self.key(slot)) else {
            return Err(self.given_up_error());
        };
        let present = self.locate(hash, key);
        let mode = self.unfinished.get(ticket.number as usize).map(|put| put.mode);
        let expired = present.is_some_and(|present| self.is_expired(now, present));
        if present.is_some() && !expired && mode == Some(PutMode::Put) {
            self.give_up(now, ticket.number, GivingUp::LostRace);
            return Err(Error::AlreadyExists { index: 0 });
        }
        let Some(put) = self.forget_put(ticket.number) else { return Err(self.given_up_error()) };
        self.make_header_valid(slot);
        self.publish(now, &put, hash, present.map(|present| (present, expired)));
        Ok(())
    }

    /// Ends a put without an object, at the transport's wish.
    pub fn put_abort(&mut self, now: Instant, ticket: PutTicket) {
        if self.unfinished_put(&ticket).is_ok() {
            self.give_up(now, ticket.number, GivingUp::Aborted);
        }
    }

    /// Ends all unfinished puts of a peer that is gone: now or, a slice at a time, in the next calls of `tick`. The
    /// number never comes again.
    pub fn peer_gone(&mut self, owner: PeerId) {
        if self.peers.contains_key(&owner) {
            self.gone_peers.push_back(owner);
        }
    }

    /// Puts that the shard gave up by itself since the last call: the transport cancels their receives.
    pub fn drain_given_up(&mut self) -> impl Iterator<Item = PutTicket> + '_ {
        self.given_up.drain(..)
    }

    /// Ends up to `tries` unfinished puts of peers that are gone. Returns whether there are more.
    pub(super) fn end_puts_of_gone_peers(&mut self, now: Instant, tries: u32) -> bool {
        for _ in 0..tries {
            let Some(owner) = self.gone_peers.front().copied() else { return false };
            match self.peers.get(&owner).and_then(|puts| puts.first) {
                Some(number) => self.give_up(now, number, GivingUp::PeerGone),
                None => {
                    self.gone_peers.pop_front();
                }
            }
        }
        !self.gone_peers.is_empty()
    }

    /// Looks at up to `tries` unfinished puts and gives up those without progress for the configured time.
    pub(super) fn end_stalled_puts(&mut self, now: Instant, tries: usize) {
        let places = self.unfinished.capacity();
        for _ in 0..tries.min(places) {
            let number = self.put_cursor;
            self.put_cursor = if number + 1 < places { number + 1 } else { 0 };
            let Some(put) = self.unfinished.get(number) else { continue };
            if now.since(put.last_progress) >= self.config.put_timeout {
                let ticket = put.ticket;
                self.give_up(now, ticket.number, GivingUp::TimedOut);
                self.given_up.push(ticket);
            }
        }
    }

    /// Number of puts begun and not ended.
    pub(super) fn unfinished_puts(&self) -> u64 {
        self.unfinished.len() as u64
    }

    fn check_put(
        &mut self,
        now: Instant,
        owner: PeerId,
        request: &PutRequest<'_>,
        hash: KeyHash,
    ) -> Result<()> {
        if request.pin == Pin::Hard && request.ttl_seconds == 0 {
            return Err(Error::InvalidArgument(
                "a hard pin needs a time to live: every pin has an end".into(),
            ));
        }
        if !self.owns(hash) {
            let owner = u64::from(hash.shard(self.config.shards).0);
            return Err(Error::WrongShard { index: 0, owner, asked: u64::from(self.config.shard.0) });
        }
        let limit = self.config.max_unfinished_puts;
        if self.peers.get(&owner).is_some_and(|puts| puts.count >= limit) {
            self.counters.puts_refused_overloaded += 1;
            return Err(Error::Overloaded { what: Limit::UnfinishedPuts, limit: u64::from(limit) });
        }
        if request.mode == PutMode::Put && self.find(now, hash, request.key).is_some() {
            self.counters.puts_refused_existing += 1;
            return Err(Error::AlreadyExists { index: 0 });
        }
        Ok(())
    }

    fn units_of_put(&self, key_bytes: u16, value_bytes: u64) -> Result<u32> {
        let limit = self.allocator.range();
        let units = super::extent_access::units_for(key_bytes, value_bytes);
        match units.and_then(|units| u32::try_from(units).ok()).filter(|units| *units <= limit.units) {
            Some(units) => Ok(units),
            None => {
                let limit = limit.byte_len().saturating_sub(value_offset(key_bytes));
                Err(Error::ValueTooLarge { bytes: value_bytes, limit })
            }
        }
    }

    /// Makes room in the table of objects for the next put, as far as can be told now, and refuses this one.
    fn refuse_another_object(&mut self, now: Instant) -> Error {
        self.evict_one(now, Departure::EvictedForDemand);
        self.counters.puts_refused_overloaded += 1;
        Error::Overloaded { what: Limit::Objects, limit: u64::from(self.slots.limit()) }
    }

    fn remember_put(
        &mut self,
        now: Instant,
        owner: PeerId,
        request: &PutRequest<'_>,
        (slot, generation): (SlotId, Generation),
        (value_offset, value_bytes): (u64, u64),
    ) -> PutTicket {
        let chain = self.chain_seat(request);
        let entry = self.unfinished.vacant_entry();
        let number = entry.key() as u32;
        let ticket = PutTicket { number, slot, generation, value_offset, value_bytes };
        let peer = self.peers.entry(owner).or_default();
        let next = peer.first.replace(number);
        peer.count += 1;
        entry.insert(UnfinishedPut {
            ticket,
            owner,
            mode: request.mode,
            pin: request.pin,
            ttl_seconds: request.ttl_seconds,
            chain,
            last_progress: now,
            previous: None,
            next,
        });
        if let Some(next) = next.and_then(|next| self.unfinished.get_mut(next as usize)) {
            next.previous = Some(number);
        }
        ticket
    }

    /// Takes an unfinished put out of the table and of its owner's list.
    fn forget_put(&mut self, number: u32) -> Option<UnfinishedPut> {
        let put = self.unfinished.try_remove(number as usize)?;
        if let Some(next) = put.next.and_then(|next| self.unfinished.get_mut(next as usize)) {
            next.previous = put.previous;
        }
        match put.previous.and_then(|previous| self.unfinished.get_mut(previous as usize)) {
            Some(previous) => previous.next = put.next,
            None => {
                if let Some(peer) = self.peers.get_mut(&put.owner) {
                    peer.first = put.next;
                }
            }
        }
        if let Some(peer) = self.peers.get_mut(&put.owner) {
            peer.count -= 1;
            if peer.count == 0 {
                self.peers.remove(&put.owner);
            }
        }
        Some(put)
    }

    fn give_up(&mut self, now: Instant, number: u32, reason: GivingUp) {
        let Some(put) = self.forget_put(number) else { return };
        match reason {
            GivingUp::Aborted => self.counters.puts_aborted += 1,
            GivingUp::PeerGone => self.counters.puts_ended_with_peer += 1,
            GivingUp::TimedOut => self.counters.puts_timed_out += 1,
            GivingUp::LostRace => self.counters.puts_refused_existing += 1,
        }
        // Never leased; a receive that is still under way keeps the memory until it ends.
        self.slots.set_life(put.ticket.slot, Life::Hidden);
        self.hide_until_unused(now, put.ticket.slot);
    }

    fn publish(&mut self, now: Instant, put: &UnfinishedPut, hash: KeyHash, present: Option<(SlotId, bool)>) {
        let slot = put.ticket.slot;
        let old = self.index.set(hash, slot, |other| present.is_some_and(|(present, _)| present == other));
        debug_assert_eq!(old, present.map(|(present, _)| present));
        self.know_key(slot, hash, old.is_some());
        self.slots.set_life(slot, Life::Published);
        self.slots.set_pin(slot, put.pin);
        self.slots.set_published_tenths(slot, self.tenths(now));
        let expires_seconds = self.expiry(now, put.ttl_seconds);
        self.slots.set_expires_seconds(slot, expires_seconds);
        self.note_expiry(slot, expires_seconds);
        let place = self.chain_place(put);
        match put.pin {
            Pin::None => self.policy.inserted(&mut self.slots, slot, hash, place),
            Pin::Soft => self.soft_pinned.inserted(&mut self.slots, slot, hash, place),
            Pin::Hard => self.hard_pinned.push_front(&mut self.slots, slot),
        }
        self.counters.content_bytes += self.header(slot).map_or(0, ExtentHeader::content_bytes);
        self.count_publication(slot, put.mode, put.ticket.value_bytes);
        if let Some((old, expired)) = present {
            let departure = if expired { Departure::Expired } else { Departure::Overwritten };
            self.depart_from_taken_place(now, old, departure);
        }
    }

    /// The seat that a block is to have in its chain. Its parent may have gone since the put began.
    fn chain_seat(&self, request: &PutRequest<'_>) -> Option<ChainSeat> {
        let link = request.chain?;
        let parent = self.locate(KeyHash::of(link.parent), link.parent);
        let parent = parent.map(|slot| (slot, self.slots.generation(slot)));
        Some(ChainSeat { depth: link.depth, parent })
    }

    /// What the policy is told of a block: its parent only if that stands under the same policy.
    fn chain_place(&self, put: &UnfinishedPut) -> ChainPlace {
        let Some(ChainSeat { depth, parent }) = put.chain else { return ChainPlace::None };
        let is_there = |(slot, generation): &(SlotId, Generation)| {
            self.slots.life(*slot) == Life::Published
                && self.slots.generation(*slot) == *generation
                && self.slots.pin(*slot) == put.pin
        };
        ChainPlace::Block { parent: parent.filter(is_there).map(|(slot, _)| slot), depth }
    }

    fn unfinished_put(&self, ticket: &PutTicket) -> Result<()> {
        match self.unfinished.get(ticket.number as usize) {
            Some(put) if put.ticket == *ticket => Ok(()),
            _ => Err(self.given_up_error()),
        }
    }

    #[cold]
    fn given_up_error(&self) -> Error {
        Error::PutGivenUp { millis: u64::try_from(self.config.put_timeout.as_millis()).unwrap_or(u64::MAX) }
    }
}

/// The epoch word of the request's group, or of the key's placement tag.
fn epoch_slot_of(request: &PutRequest<'_>) -> u16 {
    let group = if request.group.is_empty() { key::placement_tag(request.key) } else { request.group };
    lanner_shared::epoch::epoch_slot(group)
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{PEER, TestShard, at, put_request};
    use super::*;
    use crate::eviction::PolicyKind;
    use lanner_shared::wire::put::ChainLink;
    use std::time::Duration;

    fn shard() -> TestShard {
        TestShard::new(1 << 20, ShardConfig::default())
    }

    /// Shows that a key is absent until its put ends, empty values included, and that an empty value isn't a miss.
    #[test]
    fn a_value_is_there_when_its_put_ends() {
        let mut shard = shard();
        for value in [b"value".as_slice(), b""] {
            let key = [b"key", value].concat();
            let ticket = shard.begin(at(0), &key, value).unwrap();
            assert!(!shard.exists(at(0), &key));
            assert_eq!(shard.get(at(0), &key), None);
            shard.put_commit(at(0), ticket).unwrap();
            assert_eq!(shard.value(at(0), &key).as_deref(), Some(value));
        }
    }

    /// Shows that of two unfinished puts of a key the first to end wins, in either order, and that the loser's memory
    /// comes back.
    #[test]
    fn the_first_put_to_end_wins() {
        let mut shard = shard();
        let before = shard.allocator.free_units();
        let one = shard.begin(at(0), b"key", b"one").unwrap();
        let two = shard.begin(at(0), b"key", b"two").unwrap();
        shard.put_commit(at(0), two).unwrap();
        assert_eq!(shard.put_commit(at(0), one), Err(Error::AlreadyExists { index: 0 }));
        assert_eq!(shard.value(at(0), b"key").unwrap(), b"two");
        assert_eq!(shard.begin(at(0), b"key", b"three"), Err(Error::AlreadyExists { index: 0 }));
        assert!(shard.remove(at(0), b"key"), "a second lease was granted, so the memory waits");
        shard.tick_until_quiet(at(6_000));
        assert_eq!(shard.allocator.free_units(), before);
        assert_eq!(shard.stats(at(6_000)).puts_refused_existing, 2);
    }

    /// A writer was killed between the start and the end of a put, and its key could be neither read, removed nor
    /// rewritten (scenario 6). Shows that others write the key meanwhile, that the memory comes back with the end of the
    /// peer, and that a late end of the dead put changes nothing.
    #[test]
    fn a_dead_writer_blocks_nobody() {
        let mut shard = shard();
        let before = shard.allocator.free_units();
        let dead = shard.begin(at(0), b"key", &[1; 10_000]).unwrap();
        shard.put(at(1), b"key", b"alive").unwrap();
        shard.peer_gone(PEER);
        shard.tick_until_quiet(at(2));
        assert!(matches!(shard.put_commit(at(3), dead), Err(Error::PutGivenUp { .. })));
        assert_eq!(shard.value(at(3), b"key").unwrap(), b"alive");
        assert_eq!(before - shard.allocator.free_units(), 2);
        assert!(shard.peers.is_empty() && shard.gone_peers.is_empty());
        assert_eq!(shard.stats(at(3)).puts_ended_with_peer, 1);
    }

    /// Shows that a put without progress is given up after the time-out and not before, that progress puts it off,
    /// and that the transport is told.
    #[test]
    fn a_stalled_put_is_given_up() {
        let put_timeout = Duration::from_millis(100);
        let mut shard = TestShard::new(1 << 20, ShardConfig { put_timeout, ..ShardConfig::default() });
        let stalled = shard.begin(at(0), b"stalled", b"value").unwrap();
        let slow = shard.begin(at(0), b"slow", b"value").unwrap();
        shard.put_progress(at(60), &slow);
        shard.tick(at(99));
        assert_eq!(shard.drain_given_up().count(), 0);
        shard.tick(at(100));
        assert_eq!(shard.drain_given_up().collect::<Vec<_>>(), [stalled]);
        assert!(shard.put_commit(at(101), stalled).is_err());
        shard.put_commit(at(101), slow).unwrap();
        shard.tick(at(500));
        assert_eq!(shard.drain_given_up().count(), 0, "a put that ended isn't given up");
    }

    /// Shows that a ticket is good for its own put only: one that ended is refused, and does nothing to the later put that
    /// got its number and its slot.
    #[test]
    fn an_old_ticket_is_refused() {
        let mut shard = shard();
        let old = shard.begin(at(0), b"key", b"old").unwrap();
        shard.put_abort(at(0), old);
        let new = shard.begin(at(0), b"key", b"new").unwrap();
        assert_eq!((new.number, new.slot), (old.number, old.slot), "the case that matters");
        assert!(!shard.is_unfinished(&old));
        assert!(shard.put_commit(at(0), old).is_err() && shard.pin_for_receive(&old).is_err());
        shard.put_abort(at(0), old);
        shard.put_commit(at(0), new).unwrap();
        assert_eq!(shard.value(at(0), b"key").unwrap(), b"new");
    }

    /// Shows promise P1 for a put that is given up while the kernel still receives into its extent: the memory is not
    /// reused before the receive has ended.
    #[test]
    fn memory_that_is_received_into_is_not_reused() {
        let mut shard = shard();
        let before = shard.allocator.free_units();
        let ticket = shard.begin(at(0), b"key", &[1; 1000]).unwrap();
        shard.pin_for_receive(&ticket).unwrap();
        shard.put_abort(at(0), ticket);
        shard.tick_until_quiet(at(1_000_000));
        assert!(shard.allocator.free_units() < before);
        assert!(shard.pin_for_receive(&ticket).is_err(), "no further receive may begin");
        shard.unpin_after_receive(at(1_000_000), &ticket);
        assert_eq!(shard.allocator.free_units(), before);
        shard.unpin_after_receive(at(1_000_000), &ticket);
        assert_eq!(shard.allocator.free_units(), before, "ending twice does nothing");
    }

    /// Shows that an upsert hides the old version at once, that the old bytes stay for its lease, and that the group's
    /// epoch changes exactly once.
    #[test]
    fn an_upsert_takes_the_place() {
        let mut shard = shard();
        shard.put(at(0), b"key", b"old").unwrap();
        let old = shard.get(at(0), b"key").unwrap();
        shard.upsert(at(1), b"key", b"new").unwrap();
        assert_eq!(shard.value(at(1), b"key").unwrap(), b"new");
        assert_eq!(shard.epoch(old.epoch_slot), old.epoch + 1);
        assert_eq!(shard.segment.slice(old.value_offset, 3).unwrap(), b"old");
        shard.check_range(old.slot, old.generation, old.value_offset, 3).unwrap();
        shard.tick_until_quiet(at(5_200));
        assert!(shard.check_range(old.slot, old.generation, old.value_offset, 3).is_err());
    }

    /// Shows the limits: unfinished puts of a peer, objects, sizes, keys, endless hard pins, foreign keys. Each has its
    /// own error and leaves nothing behind.
    #[test]
    fn each_limit_has_its_error() {
        let config = ShardConfig { max_unfinished_puts: 2, max_objects: 3, ..ShardConfig::default() };
        let mut shard = TestShard::new(1 << 20, config);
        let (one, _two) = (shard.begin(at(0), b"1", b"").unwrap(), shard.begin(at(0), b"2", b"").unwrap());
        let overloaded = Error::Overloaded { what: Limit::UnfinishedPuts, limit: 2 };
        assert_eq!(shard.begin(at(0), b"3", b""), Err(overloaded));
        shard.put_commit(at(0), one).unwrap();
        shard.begin(at(0), b"3", b"").unwrap();
        let mut other = |request: &PutRequest<'_>, bytes| shard.put_begin(at(0), PeerId(9), request, bytes);
        assert_eq!(
            other(&put_request(b"4"), 1),
            Err(Error::Overloaded { what: Limit::Objects, limit: 3 }),
            "the table is full, and the victim made room for the next"
        );
        assert!(other(&put_request(b"4"), 1).is_ok());
        let limit = (1 << 20) - 8192 - 64;
        assert_eq!(
            other(&put_request(b"5"), limit + 1),
            Err(Error::ValueTooLarge { bytes: limit + 1, limit })
        );
        assert!(matches!(other(&put_request(b"5"), u64::MAX), Err(Error::ValueTooLarge { .. })));
        assert_eq!(other(&put_request(b""), 1), Err(Error::InvalidKey { index: 0, bytes: 0 }));
        let endless = PutRequest { pin: Pin::Hard, ..put_request(b"5") };
        assert!(matches!(other(&endless, 1), Err(Error::InvalidArgument(_))));

        let config = ShardConfig { shards: 2, ..ShardConfig::default() };
        let mut shard = TestShard::new(1 << 20, config);
        let refused = (0..64u8).filter(|key| {
            matches!(shard.begin(at(0), &[*key], b""), Err(Error::WrongShard { owner: 1, asked: 0, .. }))
        });
        assert!((16..48).contains(&refused.count()));
    }

    /// Shows that the memory of a peer with more unfinished puts than a slice holds comes back over several ticks, and
    /// that other peers' puts aren't touched.
    #[test]
    fn a_peers_puts_end_in_slices() {
        let mut shard = shard();
        for number in 0..200u8 {
            shard.begin(at(0), &[number], b"value").unwrap();
        }
        let request = put_request(b"other");
        let other = shard.put_begin(at(0), PeerId(9), &request, 0).unwrap();
        shard.peer_gone(PEER);
        assert!(shard.tick(at(1)).more_is_due);
        assert!(shard.unfinished_puts() > 1, "not all at once");
        shard.tick_until_quiet(at(2));
        assert_eq!(shard.unfinished_puts(), 1);
        shard.put_commit(at(2), other).unwrap();
    }

    /// A chain is of use from its beginning only. Shows that what eviction leaves of one is its beginning, under every policy,
    /// though its blocks were stored, and so last used, in the other order of what leaves first.
    #[test]
    fn a_chain_is_eaten_from_its_end() {
        for policy in [PolicyKind::Lru, PolicyKind::S3Fifo, PolicyKind::Adaptive] {
            let mut shard = TestShard::new(1 << 18, ShardConfig { policy, ..ShardConfig::default() });
            let keys: Vec<[u8; 4]> = (0..32_u32).map(u32::to_be_bytes).collect();
            for (depth, key) in keys.iter().enumerate() {
                let parent = depth.checked_sub(1).map_or(b"".as_slice(), |parent| &keys[parent]);
                let chain = Some(ChainLink { depth: depth as u32, parent });
                shard.put_request(at(0), &PutRequest { chain, ..put_request(key) }, &[1; 4000]).unwrap();
            }
            let mut lengths = Vec::new();
            for number in 0..100_u32 {
                let now = at(10_000 + u64::from(number));
                shard.put(now, format!("other {number}").as_bytes(), &[2; 4000]).unwrap();
                let there: Vec<bool> = keys.iter().map(|key| shard.exists(now, key)).collect();
                let length = there.iter().take_while(|is_there| **is_there).count();
                assert!(there[length..].iter().all(|is_there| !is_there), "{policy:?}: {there:?}");
                lengths.push(length);
            }
            assert!(lengths[0] > 25 && lengths[99] < lengths[0], "{policy:?}: {lengths:?}");
        }
    }
}
