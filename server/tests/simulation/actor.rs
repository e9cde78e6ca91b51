//! One client and what it does: calls in two halves that overlap with each other and with everybody else's, blocking calls, a snapshot that it
//! keeps, Engram tables. Every answer is checked against the model at once.

use crate::content::{self, EMPTY, Version};
use crate::model::Time;
use crate::{engram, settings, world};
use fastrand::Rng;
use lanner_client::chain::stored_keys;
use lanner_client::{Client, EngramStore, Error, Freshness, Pending, PutOptions, Range, Result, Snapshot};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Counts that can be added up.
macro_rules! counts {
    ($(#[$about:meta])* $name:ident { $($field:ident),* $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct $name { $(pub $field: u64),* }

        impl $name {
            pub fn add(&mut self, other: &$name) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counts! {
    /// How often calls ended how.
    Outcomes {
        puts, already_exists, unknown, full, gets, misses, removals, snapshot_reads, checked_reads, leases_expired, epochs_changed, time_outs, unreachable, given_up, engram_look_ups,
        matched_blocks
    }
}

/// What is read of a snapshot, and which of its bytes.
#[derive(Debug)]
struct Reading {
    snapshot: Rc<Held>,
    ranges: Vec<Range>,
    freshness: Freshness,
}

/// A snapshot, and when it was prepared.
#[derive(Debug)]
struct Held {
    snapshot: Snapshot,
    keys: Vec<Vec<u8>>,
    prepared: (Time, Time),
}

/// What a call under way borrows. On the heap, so that it stays in place.
#[derive(Debug, Default)]
struct Borrowed {
    keys: Vec<Vec<u8>>,
    items: Vec<(Vec<u8>, Vec<u8>)>,
    reading: Option<Reading>,
    target: Vec<u8>,
}

enum Under {
    Puts(Pending<'static, Vec<Result<()>>>),
    Gets(Pending<'static, Vec<Result<Vec<u8>>>>),
    Exists(Pending<'static, Vec<bool>>),
    Remove(Pending<'static, Vec<bool>>),
    Read(Pending<'static, ()>),
}

/// A call under way.
struct Call {
    /// `None` once it was dropped, which is before what it borrows is.
    under: Option<Under>,
    borrowed: *mut Borrowed,
    started: Time,
    deadline: lanner_client::Instant,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.under = None;
        // SAFETY: made by `Box::into_raw` in `Actor::start`, freed here only, and the one borrower has just been dropped.
        drop(unsafe { Box::from_raw(self.borrowed) });
    }
}

/// See the module.
pub struct Actor {
    number: usize,
    client: Client,
    engram: EngramStore,
    random: Rng,
    next_version: Version,
    /// At most [`settings::CALLS_UNDER_WAY`].
    calls: Vec<Call>,
    held: Option<Rc<Held>>,
    pub outcomes: Outcomes,
}

impl Actor {
    pub fn new(number: usize, seed: u64) -> Actor {
        let ways = world::welcomes().into_iter().enumerate().map(|(server, welcome)| {
            let way: lanner_client::simulation::NetworkOf = Arc::new(world::Way { client: number, server });
            (way, welcome)
        });
        // Another world of this thread must not find this one's connections.
        let id = world::with(|world| world.number) << 8 | number as u64;
        let client = Client::over_network(id, settings::client_config(number), ways.collect());
        Actor {
            number,
            engram: engram::store(client.clone()),
            client,
            random: Rng::with_seed(seed.rotate_left(8) ^ number as u64),
            // So that no two clients make the same one.
            next_version: (number as u64 + 1) << 32,
            calls: Vec::new(),
            held: None,
            outcomes: Outcomes::default(),
        }
    }

    /// One step of this client.
    pub fn act(&mut self) {
        world::with(|world| {
            world.acting = self.number;
            world.is_waiting = false;
        });
        let room = settings::CALLS_UNDER_WAY - self.calls.len();
        // Answers are taken in any order: those of other calls are put by, and also by a call that waits.
        match self.random.usize(..16) {
            choice if choice < 4 * room => self.start(),
            4.. if !self.calls.is_empty() => {
                let call = self.calls.swap_remove(self.random.usize(..self.calls.len()));
                self.go_on(call);
            }
            _ if self.calls.is_empty() || self.random.bool() => {
                world::with(|world| world.is_waiting = true);
                self.block();
                world::with(|world| world.is_waiting = false);
            }
            _ => {}
        }
    }

    fn keys(&mut self, most: usize) -> Vec<Vec<u8>> {
        (0..self.random.usize(1..=most)).map(|_| settings::any_key(&mut self.random)).collect()
    }

    /// A version that was never used, and a value of it.
    pub fn new_value(&mut self, bytes: usize) -> Vec<u8> {
        self.next_version += 1;
        if bytes == 0 { Vec::new() } else { content::value(self.next_version, bytes) }
    }

    // ── calls in two halves ────────────────────────────────────────────────────────────────────────────────────────

    fn start(&mut self) {
        let choice = self.random.u8(..100);
        let mut borrowed = Borrowed::default();
        match choice {
            0..35 => {
                let keys = self.keys(3);
                borrowed.items = keys
                    .into_iter()
                    .map(|key| {
                        let bytes = settings::value_bytes(&mut self.random);
                        (key, self.new_value(bytes))
                    })
                    .collect();
            }
            35..80 => borrowed.keys = self.keys(4),
            _ => {
                let Some(reading) = self.reading() else { return };
                borrowed.target = vec![0xee; reading.ranges.iter().map(|range| range.length as usize).sum()];
                borrowed.reading = Some(reading);
            }
        }
        let options = PutOptions {
            ttl: (self.random.u8(..8) == 0).then_some(Duration::from_secs(1)),
            ..PutOptions::default()
        };
        let borrowed = Box::into_raw(Box::new(borrowed));
        let started = now();
        let mut call = Call { under: None, borrowed, started, deadline: lanner_client::Instant::NEVER };
        // SAFETY: the box was just leaked; its one owner is `call`, which drops the borrower first.
        let Borrowed { keys, items, reading, target } = unsafe { &mut *borrowed };
        let under = match choice {
            0..20 => self.client.submit_put_batch(items, options).map(Under::Puts),
            20..35 => self.client.submit_upsert_batch(items, options).map(Under::Puts),
            35..60 => self.client.submit_get_batch(keys).map(Under::Gets),
            60..70 => self.client.submit_exists_batch(keys).map(Under::Exists),
            70..80 => {
                world::with(|world| keys.iter().for_each(|key| world.model.removal_asked(self.number, key)));
                self.client.submit_remove_batch(keys).map(Under::Remove)
            }
            _ => match reading {
                Some(Reading { snapshot, ranges, freshness }) => self
                    .client
                    .submit_read_ranges_from_snapshot(&snapshot.snapshot, ranges, target, *freshness)
                    .map(Under::Read),
                None => return,
            },
        };
        // The call counts from when it looked at its clock, which was before this.
        call.deadline = world::with(|world| world.client_now().plus(settings::TIMEOUT));
        match under {
            Ok(under) => {
                call.under = Some(under);
                self.calls.push(call);
            }
            Err(error) => self.failed(&error),
        }
    }

    fn go_on(&mut self, mut call: Call) {
        if self.random.u16(..300) == 0 {
            // Given up half way.
            self.outcomes.given_up += 1;
            return;
        }
        let is_late = world::with(|world| world.client_now() >= call.deadline);
        // SAFETY: alive until `call` is dropped; a pending call writes to `target` within `poll` only, and the fields that are
        // looked at here are never written to.
        let borrowed: *const Borrowed = call.borrowed;
        let started = call.started;
        let is_over = match call.under.as_mut() {
            Some(Under::Puts(pending)) => pending.poll().map(|outcome| {
                // SAFETY: as above.
                let items = unsafe { &(*borrowed).items };
                self.puts_ended(items, outcome);
            }),
            Some(Under::Gets(pending)) => pending.poll().map(|outcome| {
                // SAFETY: as above.
                let keys = unsafe { &(*borrowed).keys };
                self.gets_ended(keys, started, outcome);
            }),
            Some(Under::Exists(pending)) => pending.poll().map(|outcome| {
                // SAFETY: as above.
                let keys = unsafe { &(*borrowed).keys };
                self.flags_ended(keys, started, outcome, false);
            }),
            Some(Under::Remove(pending)) => pending.poll().map(|outcome| {
                // SAFETY: as above.
                let keys = unsafe { &(*borrowed).keys };
                self.flags_ended(keys, started, outcome, true);
            }),
            Some(Under::Read(pending)) => pending.poll().map(|outcome| {
                // SAFETY: as above; the call is over, so nobody writes to the target any more.
                let (reading, target) = unsafe { (&(*borrowed).reading, &(*borrowed).target) };
                if let Some(reading) = reading {
                    self.read_ended(reading, target, started, outcome);
                }
            }),
            None => Poll::Ready(()),
        };
        if is_over.is_pending() {
            if is_late {
                self.fail("a call goes on beyond its time-out".into());
            }
            self.calls.push(call);
        }
    }

    fn puts_ended(&mut self, items: &[(Vec<u8>, Vec<u8>)], outcome: Result<Vec<Result<()>>>) {
        let outcomes = match outcome {
            Ok(outcomes) => outcomes,
            Err(error) => return self.failed(&error),
        };
        for ((_, value), outcome) in items.iter().zip(outcomes) {
            let is_stored = match &outcome {
                Ok(()) => {
                    self.outcomes.puts += 1;
                    true
                }
                Err(error @ (Error::OutcomeUnknown { .. } | Error::Timeout { .. })) => {
                    self.failed(error);
                    continue;
                }
                Err(error) => {
                    self.failed(error);
                    false
                }
            };
            let version = content::version_of(value);
            let told = world::with(|world| world.model.put_told(version, is_stored));
            if let Err(what) = told {
                self.fail(format!("{what} ({outcome:?})"));
            }
        }
    }

    fn gets_ended(&mut self, keys: &[Vec<u8>], started: Time, outcome: Result<Vec<Result<Vec<u8>>>>) {
        let values = match outcome {
            Ok(values) => values,
            Err(error) => return self.failed(&error),
        };
        for (key, value) in keys.iter().zip(values) {
            match value {
                Ok(value) => {
                    self.outcomes.gets += 1;
                    self.must_be_right(key, (0, &value), Some(value.len() as u64), (started, now()), "a get");
                }
                Err(Error::NotFound { .. }) => {
                    self.outcomes.misses += 1;
                    if !world::with(|world| world.model.may_be_missing(key, started, world.time)) {
                        self.fail(format!(
                            "a get missed '{}', which was there",
                            String::from_utf8_lossy(key)
                        ));
                    }
                }
                Err(error) => self.failed(&error),
            }
        }
    }

    fn flags_ended(&mut self, keys: &[Vec<u8>], started: Time, outcome: Result<Vec<bool>>, removes: bool) {
        let flags = match outcome {
            Ok(flags) => flags,
            Err(error) => return self.failed(&error),
        };
        for (key, flag) in keys.iter().zip(flags) {
            self.outcomes.removals += u64::from(removes && flag);
            let is_right = world::with(|world| match flag {
                true => world.model.may_be_there(key, started, world.time),
                false => world.model.may_be_missing(key, started, world.time),
            });
            if !is_right {
                self.fail(format!("'{}' was said to be there: {flag}", String::from_utf8_lossy(key)));
            }
        }
    }

    // ── snapshots ──────────────────────────────────────────────────────────────────────────────────────────────────

    /// Ranges of the snapshot that is kept, if there is one.
    fn reading(&mut self) -> Option<Reading> {
        let held = self.held.clone()?;
        let mut ranges = Vec::new();
        let mut destination_offset = 0;
        for _ in 0..self.random.usize(1..6) {
            let key = self.random.usize(..held.keys.len());
            let bytes = held.snapshot.value_bytes(key)?;
            let source_offset = self.random.u64(0..=bytes);
            let length = self.random.u64(0..=bytes - source_offset);
            ranges.push(Range { key: key as u32, source_offset, length, destination_offset });
            destination_offset += length;
        }
        let freshness = if self.random.u8(..4) == 0 { Freshness::Checked } else { Freshness::Lease };
        Some(Reading { snapshot: held, ranges, freshness })
    }

    fn read_ended(&mut self, reading: &Reading, target: &[u8], started: Time, outcome: Result<()>) {
        if let Err(error) = outcome {
            return self.failed(&error);
        }
        let Reading { snapshot: held, ranges, freshness } = reading;
        self.outcomes.snapshot_reads += 1;
        self.outcomes.checked_reads += u64::from(*freshness == Freshness::Checked);
        for range in ranges {
            let bytes = &target[range.destination_offset as usize..][..range.length as usize];
            let (key, at) = (&held.keys[range.key as usize], (range.source_offset, bytes));
            let length = held.snapshot.value_bytes(range.key as usize);
            self.must_be_right(key, at, length, held.prepared, "a snapshot read");
            if *freshness == Freshness::Checked {
                self.must_be_right(key, at, length, (started, now()), "a checked snapshot read");
            }
        }
    }

    fn hold(&mut self, keys: Vec<Vec<u8>>, started: Time, outcome: Result<Snapshot>) {
        match outcome {
            Ok(snapshot) => self.held = Some(Rc::new(Held { snapshot, keys, prepared: (started, now()) })),
            Err(error) => self.failed(&error),
        }
    }

    // ── blocking calls ─────────────────────────────────────────────────────────────────────────────────────────────

    fn block(&mut self) {
        let started = now();
        match self.random.u8(..100) {
            0..25 => {
                let keys = self.keys(4);
                let outcome = self.client.prepare_snapshot(&keys);
                self.hold(keys, started, outcome);
            }
            25..60 => self.read_refreshing(),
            60..70 => self.match_chain(started),
            70..85 => self.read_ranges(started),
            85..90 => {
                let keys = self.keys(2);
                let sizes = self.client.size_batch(&keys);
                if let Err(error) = sizes {
                    self.failed(&error);
                }
            }
            _ => self.engram(started),
        }
    }

    /// As an engine asks before it computes: mostly for the same chain again, and for more or less of it.
    fn match_chain(&mut self, started: Time) {
        let number = if self.random.bool() { 0 } else { self.random.usize(..settings::CHAINS) };
        let mut chain = settings::chain(number);
        chain.truncate(self.random.usize(1..=settings::CHAIN_BLOCKS));
        let mut keys: Vec<Vec<u8>> = stored_keys(&chain).iter().map(|key| key.to_vec()).collect();
        let snapshot = match self.client.match_chain(&chain) {
            Ok(snapshot) => snapshot,
            Err(error) => return self.failed(&error),
        };
        let found = snapshot.len();
        self.outcomes.matched_blocks += found as u64;
        let is_right = world::with(|world| {
            let (model, now) = (&world.model, world.time);
            keys[..found].iter().all(|key| model.may_be_there(key, started, now))
                && keys.get(found).is_none_or(|key| model.may_be_missing(key, started, now))
        });
        if !is_right {
            self.fail(format!("{found} blocks of chain {number} were said to be there"));
        }
        keys.truncate(found);
        if found > 0 {
            self.hold(keys, started, Ok(snapshot));
        }
    }

    /// As a caller reads that keeps a snapshot for long: refreshed in time, read again and again.
    fn read_refreshing(&mut self) {
        let started = now();
        let Some(held) = self.held.take() else { return };
        let Held { mut snapshot, keys, mut prepared } = match Rc::try_unwrap(held) {
            Ok(held) => held,
            // A read of it is under way.
            Err(held) => return self.held = Some(held),
        };
        let length = snapshot.value_bytes(0).unwrap_or(0);
        let range = Range { key: 0, source_offset: 0, length, destination_offset: 0 };
        let mut target = vec![0xee; length as usize];
        let deadline = snapshot.deadline();
        let freshness = if self.random.bool() { Freshness::Checked } else { Freshness::Lease };
        let outcome = self.client.read_ranges_refreshing(&mut snapshot, &[range], &mut target, freshness);
        if snapshot.deadline() != deadline {
            prepared = (started, now());
        }
        let length = snapshot.value_bytes(0);
        match outcome {
            Ok(()) => {
                self.outcomes.snapshot_reads += 1;
                self.must_be_right(&keys[0], (0, &target), None, prepared, "a refreshed read");
                if freshness == Freshness::Checked {
                    self.must_be_right(
                        &keys[0],
                        (0, &target),
                        length,
                        (started, now()),
                        "a checked refreshed read",
                    );
                }
            }
            Err(error) => self.failed(&error),
        }
        self.held = Some(Rc::new(Held { snapshot, keys, prepared }));
    }

    fn read_ranges(&mut self, started: Time) {
        let keys = if self.random.bool() { settings::list(&mut self.random) } else { self.keys(3) };
        let mut target = [0xee; 48];
        let mut ranges = Vec::new();
        for (key, _) in keys.iter().enumerate() {
            let source_offset = self.random.u64(..100);
            let destination_offset = 16 * key as u64;
            ranges.push(Range { key: key as u32, source_offset, length: 16, destination_offset });
        }
        match self.client.read_ranges(&keys, &ranges, &mut target) {
            Ok(()) => {
                for range in &ranges {
                    let bytes = &target[range.destination_offset as usize..][..16];
                    let at = (range.source_offset, bytes);
                    self.must_be_right(
                        &keys[range.key as usize],
                        at,
                        None,
                        (started, now()),
                        "a ranged read",
                    );
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    fn engram(&mut self, started: Time) {
        match self.random.u8(..10) {
            0 => {
                let sizes = settings::ENGRAM_ROWS.map(|rows| (rows * settings::ENGRAM_ROW_BYTES) as usize);
                let tables = sizes.map(|bytes| self.new_value(bytes));
                // What becomes of each head is seen on the wire; the call takes some of them back if one fails.
                let heads = (0..tables.len()).map(|head| format!("engram:l1:h{head}").into_bytes());
                world::with(|world| heads.for_each(|key| world.model.removal_asked(self.number, &key)));
                let _ = self.engram.populate(&tables);
            }
            1 => {
                let heads = (0..3).map(|head| format!("engram:l1:h{head}").into_bytes());
                world::with(|world| heads.for_each(|key| world.model.removal_asked(self.number, &key)));
                let _ = self.engram.remove_from_store(true);
            }
            _ => {
                if let Some(rows) = engram::look_up(&self.engram, &mut self.random) {
                    self.outcomes.engram_look_ups += 1;
                    for (key, offset, row) in rows {
                        let window = (started.saturating_sub(2 * settings::LEASE_NANOS), now());
                        self.must_be_right(&key, (offset, &row), None, window, "an Engram look-up");
                    }
                }
            }
        }
    }

    // ── checks ─────────────────────────────────────────────────────────────────────────────────────────────────────

    fn must_be_right(
        &mut self,
        key: &[u8],
        at: (u64, &[u8]),
        length: Option<u64>,
        window: (Time, Time),
        who: &str,
    ) {
        let found = world::with(|world| world.model.may_be_read(key, at, length, window));
        if found.is_none() {
            let name = String::from_utf8_lossy(key);
            let (offset, bytes) = (at.0, at.1.len());
            self.fail(format!(
                "{who} of {bytes} bytes at {offset} of '{name}' gave none of the versions of {window:?}"
            ));
        }
    }

    fn failed(&mut self, error: &Error) {
        match error {
            Error::AlreadyExists { .. } => self.outcomes.already_exists += 1,
            Error::NotFound { .. } => self.outcomes.misses += 1,
            Error::LeaseExpired { .. } => self.outcomes.leases_expired += 1,
            Error::EpochChanged => self.outcomes.epochs_changed += 1,
            Error::StoreFull { .. } | Error::Overloaded { .. } => self.outcomes.full += 1,
            Error::Timeout { .. } => self.outcomes.time_outs += 1,
            Error::Unreachable { .. } => self.outcomes.unreachable += 1,
            Error::PutGivenUp { .. } => self.outcomes.given_up += 1,
            Error::OutcomeUnknown { .. } => self.outcomes.unknown += 1,
            Error::ConnectionLost { .. } | Error::OutOfBounds { .. } => {}
            other => self.fail(format!("nobody expects this error: {other}")),
        }
    }

    fn fail(&self, what: String) {
        let number = self.number;
        world::with(|world| world.fail(format!("client {number}: {what}")));
    }
}

fn now() -> Time {
    world::with(|world| world.time)
}

const _: () = assert!(EMPTY == 0, "no client makes version 0");
