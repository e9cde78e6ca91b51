//! The whole shard against a plain map, with every leased byte compared after every step.
//!
//! `World::step` does one operation on both, and says what is wrong, if anything is: an answer that the map doesn't allow,
//! a leased or sent byte that changed, memory that no object accounts for, a departure that no count accounts for. The shard
//! may forget an object by itself only if it's neither leased nor hard-pinned. A fault is planted to see that it's noticed.

use super::test_support::{TestShard, at};
use super::{PeerId, PutTicket, ShardConfig, Watermarks};
use crate::eviction::PolicyKind;
use crate::memory::extents::Run;
use crate::memory::slots::{Generation, SlotId};
use crate::shard::extent_access::live_units;
use lanner_shared::time::Instant;
use lanner_shared::wire::Opcode;
use lanner_shared::wire::put::{Pin, PutMode, PutRequest};
use lanner_shared::{Error, KeyHash};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const KEYS: u8 = 24;
const PEERS: u64 = 3;
const SEGMENT_BYTES: u64 = 8192 + 48 * 1024;
const LEASE_MILLIS: u64 = 50;
const PUT_TIMEOUT_MILLIS: u64 = 400;

#[derive(Debug, Clone)]
enum Step {
    Begin { key: u8, bytes: u16, mode: PutMode, pin: Pin, ttl_seconds: u8, peer: u64 },
    Commit(u8),
    Abort(u8),
    PeerGone(u64),
    Query(u8),
    Remove(u8),
    Send(u8),
    EndSend(u8),
    Touch(u8),
    Wait(u16),
    Tick,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let mode = prop_oneof![Just(PutMode::Put), Just(PutMode::Upsert)];
    let pin = prop_oneof![8 => Just(Pin::None), 2 => Just(Pin::Soft), 1 => Just(Pin::Hard)];
    let bytes = prop_oneof![3 => 0u16..600, 2 => 600u16..5_000, 1 => 5_000u16..20_000];
    let ttl = prop_oneof![4 => Just(0u8), 1 => 1u8..3];
    let begin =
        (0..KEYS, bytes, mode, pin, ttl, 0..PEERS).prop_map(|(key, bytes, mode, pin, ttl_seconds, peer)| {
            Step::Begin { key, bytes, mode, pin, ttl_seconds, peer }
        });
    let step = prop_oneof![
        10 => begin,
        10 => any::<u8>().prop_map(Step::Commit),
        1 => any::<u8>().prop_map(Step::Abort),
        1 => (0..PEERS).prop_map(Step::PeerGone),
        10 => (0..KEYS).prop_map(Step::Query),
        3 => (0..KEYS).prop_map(Step::Remove),
        2 => any::<u8>().prop_map(Step::Send),
        2 => any::<u8>().prop_map(Step::EndSend),
        2 => any::<u8>().prop_map(Step::Touch),
        5 => (0u16..30).prop_map(Step::Wait),
        1 => (0u16..1500).prop_map(Step::Wait),
        6 => Just(Step::Tick),
    ];
    prop::collection::vec(step, 1..400)
}

/// What the map knows of an object.
#[derive(Debug, Clone)]
struct Object {
    value: Vec<u8>,
    pin: Pin,
    published: Instant,
    ttl_seconds: u8,
}

impl Object {
    /// Lives at least its time to live, and less than a second longer.
    fn may_have_expired(&self, now: Instant) -> bool {
        self.ttl_seconds > 0 && now.since(self.published) >= Duration::from_secs(self.ttl_seconds.into())
    }

    fn must_have_expired(&self, now: Instant) -> bool {
        self.ttl_seconds > 0
            && now.since(self.published) >= Duration::from_secs(u64::from(self.ttl_seconds) + 1)
    }
}

/// Bytes that a reader relies on.
#[derive(Debug, Clone)]
struct Reading {
    key: u8,
    slot: SlotId,
    generation: Generation,
    value_offset: u64,
    value: Vec<u8>,
    lease_end: Instant,
}

#[derive(Debug)]
struct Unfinished {
    ticket: PutTicket,
    key: u8,
    mode: PutMode,
    pin: Pin,
    ttl_seconds: u8,
    peer: u64,
    value: Vec<u8>,
    begun: Instant,
}

struct World {
    shard: TestShard,
    now: Instant,
    objects: BTreeMap<u8, Object>,
    unfinished: Vec<Unfinished>,
    leases: Vec<Reading>,
    sends: Vec<Reading>,
    /// The last readings whose lease has ended: they may still be tried, and must fail or give the same bytes.
    stale: VecDeque<Reading>,
    /// Numbers of peers never come again, so each gets a new one when it's gone.
    peer_lives: [u64; PEERS as usize],
    values: u8,
}

type Verdict = Result<(), String>;

fn check(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

impl World {
    fn new(policy: PolicyKind) -> Self {
        let config = ShardConfig {
            policy,
            lease_ttl: Duration::from_millis(LEASE_MILLIS),
            max_lease_ttl: Duration::from_millis(LEASE_MILLIS),
            put_timeout: Duration::from_millis(PUT_TIMEOUT_MILLIS),
            watermarks: Watermarks { begin_below_per_mille: 50, end_at_per_mille: 150 },
            max_unfinished_puts: 6,
            ..ShardConfig::default()
        };
        Self {
            shard: TestShard::new(SEGMENT_BYTES, config),
            now: at(0),
            objects: BTreeMap::new(),
            unfinished: Vec::new(),
            leases: Vec::new(),
            sends: Vec::new(),
            stale: VecDeque::new(),
            peer_lives: [0; PEERS as usize],
            values: 0,
        }
    }

    fn step(&mut self, step: &Step) -> Verdict {
        match *step {
            Step::Begin { key, bytes, mode, pin, ttl_seconds, peer } => {
                let ttl_seconds = if pin == Pin::Hard { ttl_seconds.max(1) } else { ttl_seconds };
                let ttl_seconds = ttl_seconds.into();
                let request = PutRequest { key: &[key], mode, pin, ttl_seconds, group: b"", chain: None };
                self.begin(key, bytes, request, peer)?;
            }
            Step::Commit(which) => self.commit(which)?,
            Step::Abort(which) => {
                if let Some(put) = take(&mut self.unfinished, which) {
                    self.shard.put_abort(self.now, put.ticket);
                }
            }
            Step::PeerGone(peer) => {
                let gone = self.peer_id(peer);
                self.shard.peer_gone(gone);
                self.peer_lives[peer as usize] += 1;
                self.unfinished.retain(|put| put.peer != peer);
            }
            Step::Query(key) => self.query(key)?,
            Step::Remove(key) => self.remove(key)?,
            Step::Send(which) => self.send(which)?,
            Step::EndSend(which) => {
                if let Some(send) = take(&mut self.sends, which) {
                    self.shard.unpin_after_send(self.now, send.slot, send.generation);
                }
            }
            Step::Touch(which) => {
                if let Some(lease) = self.leases.get(usize::from(which) % self.leases.len().max(1)) {
                    self.shard.touch(lease.slot, lease.generation);
                }
            }
            Step::Wait(millis) => self.now = self.now.plus(Duration::from_millis(millis.into())),
            Step::Tick => {
                self.shard.tick(self.now);
                let given_up: Vec<_> = self.shard.drain_given_up().collect();
                self.unfinished.retain(|put| !given_up.contains(&put.ticket));
            }
        }
        self.check_departures()?;
        self.check_bytes()?;
        self.check_memory()
    }

    fn peer_id(&self, peer: u64) -> PeerId {
        PeerId(peer + PEERS * self.peer_lives[peer as usize])
    }

    fn begin(&mut self, key: u8, bytes: u16, request: PutRequest<'_>, peer: u64) -> Verdict {
        let present = self.shard.exists(self.now, &[key]);
        let owner = self.peer_id(peer);
        let outcome = self.shard.put_begin(self.now, owner, &request, bytes.into());
        let puts_of_peer = self.unfinished.iter().filter(|put| put.peer == peer).count();
        match outcome {
            Ok(ticket) => {
                check(!present || request.mode == PutMode::Upsert, || format!("{key} was there already"))?;
                self.values = self.values.wrapping_add(1);
                let value = vec![self.values; bytes.into()];
                self.shard
                    .segment_mut()
                    .write(ticket.value_offset, &value)
                    .map_err(|error| error.to_string())?;
                let (mode, pin, ttl_seconds) = (request.mode, request.pin, request.ttl_seconds as u8);
                let begun = self.now;
                self.unfinished.push(Unfinished { ticket, key, mode, pin, ttl_seconds, peer, value, begun });
                Ok(())
            }
            Err(Error::AlreadyExists { .. }) => {
                check(present && request.mode == PutMode::Put, || format!("{key} isn't there"))
            }
            Err(Error::Overloaded { .. }) => check(puts_of_peer == 6, || "not at the limit".into()),
            Err(Error::StoreFull { leased, pinned, .. }) => {
                let in_the_way = leased + pinned > 0 || !self.unfinished.is_empty() || !self.sends.is_empty();
                check(in_the_way, || "full, and nothing stands in the way".into())
            }
            Err(error) => Err(format!("{error:?}")),
        }
    }

    fn commit(&mut self, which: u8) -> Verdict {
        let Some(put) = take(&mut self.unfinished, which) else { return Ok(()) };
        let present = self.shard.exists(self.now, &[put.key]);
        match self.shard.put_commit(self.now, put.ticket) {
            Ok(()) => {
                check(!present || put.mode == PutMode::Upsert, || format!("{} was there already", put.key))?;
                let (value, pin, ttl_seconds) = (put.value, put.pin, put.ttl_seconds);
                self.objects.insert(put.key, Object { value, pin, published: self.now, ttl_seconds });
                check(self.shard.exists(self.now, &[put.key]), || format!("{} isn't there", put.key))
            }
            Err(Error::AlreadyExists { .. }) => {
                check(present && put.mode == PutMode::Put, || format!("{} wasn't there", put.key))
            }
            Err(error) => {
                let time_was_up = self.now.since(put.begun) >= Duration::from_millis(PUT_TIMEOUT_MILLIS);
                check(time_was_up, || format!("{error:?}"))
            }
        }
    }

    fn query(&mut self, key: u8) -> Verdict {
        let found = self.shard.query(self.now, &[key], Opcode::Query);
        let Some(found) = found else { return Ok(()) };
        let object = self.objects.get(&key).ok_or_else(|| format!("{key} was found and isn't there"))?;
        let value = object.value.clone();
        check(found.value_bytes == value.len() as u64, || format!("{key} has another length"))?;
        self.leases.push(Reading {
            key,
            slot: found.slot,
            generation: found.generation,
            value_offset: found.value_offset,
            value,
            lease_end: self.now.plus(Duration::from_millis(found.lease_ms.into())),
        });
        Ok(())
    }

    fn remove(&mut self, key: u8) -> Verdict {
        let present = self.shard.exists(self.now, &[key]);
        check(self.shard.remove(self.now, &[key]) == present, || {
            format!("{key} removed, present {present}")
        })?;
        if present {
            self.objects.remove(&key);
        }
        Ok(())
    }

    /// Begins to send a leased object, as for a slow reader: its lease may end before the send does.
    fn send(&mut self, which: u8) -> Verdict {
        let Some(reading) = self.leases.get(usize::from(which) % self.leases.len().max(1)).cloned() else {
            return Ok(());
        };
        self.shard.pin_for_send(reading.slot, reading.generation).map_err(|error| error.to_string())?;
        self.sends.push(reading);
        Ok(())
    }

    /// Objects that the shard no longer has must have been allowed to leave, and no others may be there.
    fn check_departures(&mut self) -> Verdict {
        self.stale.extend(self.leases.extract_if(.., |lease| self.now >= lease.lease_end));
        self.stale.drain(..self.stale.len().saturating_sub(64));
        for key in 0..KEYS {
            let present = self.shard.exists(self.now, &[key]);
            let Some(object) = self.objects.get(&key) else {
                check(!present, || format!("{key} is there and shouldn't be"))?;
                continue;
            };
            if present {
                check(!object.must_have_expired(self.now), || format!("{key} outlived its time"))?;
                continue;
            }
            let leased = self.leases.iter().any(|lease| lease.key == key && lease.value == object.value);
            let evictable = !leased && object.pin != Pin::Hard;
            check(evictable || object.may_have_expired(self.now), || format!("{key} was lost"))?;
            self.objects.remove(&key);
        }
        Ok(())
    }

    /// Promise P1 for every reader.
    fn check_bytes(&self) -> Verdict {
        for reading in self.leases.iter().chain(&self.sends) {
            let length = reading.value.len() as u64;
            let Reading { slot, generation, value_offset, .. } = *reading;
            self.shard
                .check_range(slot, generation, value_offset, length)
                .map_err(|error| format!("{} isn't readable under its lease: {error}", reading.key))?;
            let bytes =
                self.shard.segment().slice(value_offset, length).map_err(|error| error.to_string())?;
            check(bytes == reading.value, || format!("wrong bytes of {} under a lease", reading.key))?;
        }
        for reading in &self.stale {
            let length = reading.value.len() as u64;
            let Reading { slot, generation, value_offset, .. } = *reading;
            if self.shard.check_range(slot, generation, value_offset, length).is_ok() {
                let bytes =
                    self.shard.segment().slice(value_offset, length).map_err(|error| error.to_string())?;
                check(bytes == reading.value, || format!("wrong bytes of {} after a lease", reading.key))?;
            }
        }
        Ok(())
    }

    /// Every unit is free or belongs to a slot; every published object that is gone is counted once.
    fn check_memory(&mut self) -> Verdict {
        let (mut live_units_seen, mut free_units) = (0, 0);
        let allocator = &self.shard.allocator;
        let walked = allocator.walk(self.shard.segment(), live_units, |run| match run {
            Run::Live(extent) => live_units_seen += u64::from(extent.units),
            Run::Free(extent) => free_units += u64::from(extent.units),
        });
        walked.map_err(|error| error.to_string())?;
        let slots = &self.shard.slots;
        let of_slots: u64 = (0..slots.made()).map(|slot| u64::from(slots.units(SlotId(slot)))).sum();
        check(live_units_seen == of_slots, || format!("{live_units_seen} units live, {of_slots} in slots"))?;
        check(free_units == allocator.free_units(), || "free units differ".into())?;
        let stats = self.shard.stats(self.now);
        let departed = stats.evictions() + stats.removed + stats.overwritten + stats.expired;
        let published = stats.puts + stats.upserts;
        check(published == stats.objects + departed, || format!("an object isn't accounted for: {stats:?}"))?;
        self.check_known_keys()?;
        check(stats.lost_bytes + stats.damaged_runs_met == 0, || "memory was damaged".into())?;
        let leased: BTreeMap<SlotId, u64> = self
            .leases
            .iter()
            .map(|lease| (lease.slot, self.shard.slots.extent(lease.slot).byte_len()))
            .collect();
        let least = leased.values().sum::<u64>();
        check(stats.leased_bytes >= least, || format!("{} bytes leased of {least}", stats.leased_bytes))
    }

    /// Index, filter and prefix index know the same keys, and the latter has them in order.
    fn check_known_keys(&self) -> Verdict {
        let shard = &*self.shard;
        let radix = shard.radix.as_ref().ok_or("no prefix index")?;
        let counts = [shard.index.len(), shard.filter.keys(), radix.len()];
        check(counts.iter().all(|count| *count == counts[0]), || format!("keys are {counts:?}"))?;
        let keys: Vec<&[u8]> = radix.from(b"", shard.key_of()).filter_map(shard.key_of()).collect();
        check(keys.len() as u64 == counts[0] && keys.is_sorted(), || format!("in order: {keys:?}"))?;
        let is_known = |key: &&[u8]| {
            let hash = KeyHash::of(key);
            shard.filter.may_contain(hash) && shard.locate(hash, key).is_some()
        };
        check(keys.iter().all(is_known), || "filter or index denies a key".into())
    }

    /// When all readers and writers have gone, every byte comes back.
    fn finish(mut self) -> Verdict {
        for peer in 0..PEERS {
            self.step(&Step::PeerGone(peer))?;
        }
        while !self.sends.is_empty() {
            self.step(&Step::EndSend(0))?;
        }
        for key in 0..KEYS {
            self.step(&Step::Remove(key))?;
        }
        self.now = self.now.plus(Duration::from_millis(10 * LEASE_MILLIS));
        self.shard.tick_until_quiet(self.now);
        let stats = self.shard.stats(self.now);
        check(stats.free_bytes == stats.capacity_bytes && stats.free_runs == 1, || format!("{stats:?}"))
    }
}

/// One of `items`, whatever the number.
fn take<T>(items: &mut Vec<T>, which: u8) -> Option<T> {
    if items.is_empty() { None } else { Some(items.swap_remove(usize::from(which) % items.len())) }
}

fn run(mut world: World, steps: &[Step]) -> Verdict {
    steps.iter().try_for_each(|step| world.step(step).map_err(|what| format!("{step:?}: {what}")))?;
    world.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Shows promises P1 and P6 on one shard, under both policies, with every step that a transport can make.
    #[test]
    fn agrees_with_a_map(steps in steps(), lru: bool) {
        let policy = if lru { PolicyKind::Lru } else { PolicyKind::S3Fifo };
        run(World::new(policy), &steps).map_err(TestCaseError::fail)?;
    }
}

/// Plants a fault: memory is reused a millisecond before its lease ends. Shows that the comparison above notices it in at
/// least one of a few runs, so that its silence means something.
#[test]
fn a_lease_that_ends_early_is_noticed() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let noticed = (0..200).any(|_| {
        let steps = steps().new_tree(&mut runner).map(|tree| tree.current()).unwrap_or_default();
        let mut world = World::new(PolicyKind::S3Fifo);
        world
            .shard
            .plant_faults(super::PlantedFaults { lease_ends_early_by_millis: 1, ..Default::default() });
        run(world, &steps).is_err()
    });
    assert!(noticed);
}
