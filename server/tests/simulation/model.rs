//! The plain model: which version is under which key, and since when; fed by what passes over the wires, and by nothing that
//! a shard says of itself.
//!
//! A shard answers its requests one after the other, so the answers in their order are all that a map needs to say what each
//! of them should have been. Only eviction and the end of a time to live go unseen: an object that isn't there any more without
//! a removal must be among those that the shard has counted.

use crate::content::{self, EMPTY, Version};
use crate::tap::{Answer, Asked};
use lanner_server::shard::ShardStats;
use lanner_shared::wire::{Descriptor, Opcode};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// In nanoseconds of true time.
pub type Time = u64;

/// A life of a server, and one of its shards.
pub type ShardLife = (u64, u16);

/// States of a key that are remembered. More than any call or snapshot can span.
const REMEMBERED: usize = 64;

/// What a key had, and from when to when that may have been so.
#[derive(Debug, Clone, Copy)]
struct State {
    version: Option<Version>,
    bytes: u64,
    from: Time,
    /// Not known while it lasts.
    to: Time,
    /// When it was last known to last.
    seen: Time,
    /// On the server's clock, when it must have ended at the latest.
    ends_by: u64,
    /// The server's life.
    life: u64,
}

/// What one life of one shard has answered.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ledger {
    pub published: u64,
    pub removed: u64,
    /// Objects that were gone without a removal.
    pub vanished: u64,
}

/// When and where an answer was given.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub time: Time,
    /// On the server's clock.
    pub server_nanos: u64,
    pub shard: ShardLife,
    pub client: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Model {
    keys: HashMap<Vec<u8>, VecDeque<State>>,
    pub ledgers: BTreeMap<ShardLife, Ledger>,
    /// How often a version was stored.
    commits: HashMap<Version, u32>,
    /// Versions of which a client was told that they aren't stored.
    refused: HashSet<Version>,
    /// Removals that clients asked for, and that servers carried out or not.
    removals: HashMap<(usize, Vec<u8>), (u64, u64)>,
}

impl Model {
    /// Takes note of an answer. An error is what was wrong with it.
    pub fn answered(&mut self, at: Moment, asked: &Asked, answer: &Answer<'_>) -> Result<(), String> {
        match asked.opcode {
            Opcode::Put => self.put_answered(at, asked, answer.status),
            Opcode::Get | Opcode::Query | Opcode::MatchChain => {
                answer.found(asked).into_iter().try_for_each(|(key, found)| self.looked_up(at, key, found))
            }
            Opcode::Exists | Opcode::Remove if answer.status == 0 => {
                for (key, flag) in asked.keys.iter().zip(answer.body) {
                    self.flagged(at, asked.opcode, key, *flag == 1)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn put_answered(&mut self, at: Moment, asked: &Asked, status: u16) -> Result<(), String> {
        let key = &asked.keys[0];
        match status {
            0 => self.published(at, asked),
            2 => self.must_be_there(at, key, "a put was told that the key exists"),
            _ => Ok(()),
        }
    }

    fn published(&mut self, at: Moment, asked: &Asked) -> Result<(), String> {
        let key = &asked.keys[0];
        if self.current(key).is_some() && !asked.is_upsert {
            self.vanished(at, key);
        }
        let version = asked.version();
        if version != EMPTY {
            let commits = self.commits.entry(version).or_default();
            *commits += 1;
            if *commits > 1 {
                return Err(format!("version {version} was stored {commits} times: a put was repeated"));
            }
            if self.refused.contains(&version) {
                return Err(format!("version {version} was stored after its writer was told that it isn't"));
            }
        }
        self.ledgers.entry(at.shard).or_default().published += 1;
        let ends_by = match asked.ttl_seconds {
            0 => u64::MAX,
            // An object lives up to a second longer than it was told to.
            seconds => at.server_nanos + (u64::from(seconds) + 1) * 1_000_000_000,
        };
        self.becomes(at, key, Some(version), asked.payload_bytes, ends_by);
        Ok(())
    }

    fn looked_up(&mut self, at: Moment, key: &[u8], found: Option<&Descriptor>) -> Result<(), String> {
        let Some(descriptor) = found else {
            self.is_missing(at, key);
            return Ok(());
        };
        self.must_be_there(at, key, "a query found the key")?;
        let bytes = self.current(key).map_or(0, |state| state.bytes);
        if bytes != descriptor.value_bytes.get() {
            return Err(format!("a query gave {} bytes of a value of {bytes}", descriptor.value_bytes));
        }
        Ok(())
    }

    fn flagged(&mut self, at: Moment, opcode: Opcode, key: &[u8], flag: bool) -> Result<(), String> {
        if opcode == Opcode::Remove {
            let (asked, served) = self.removals.entry((at.client, key.to_vec())).or_default();
            *served += 1;
            if served > asked {
                return Err(format!(
                    "client {} asked for {asked} removals of a key, {served} were served",
                    at.client
                ));
            }
        }
        if !flag {
            self.is_missing(at, key);
            return Ok(());
        }
        self.must_be_there(at, key, "a flag said that the key exists")?;
        if opcode == Opcode::Remove {
            self.ledgers.entry(at.shard).or_default().removed += 1;
            self.becomes(at, key, None, 0, u64::MAX);
        }
        Ok(())
    }

    /// The version under a key now, and its length.
    pub fn current_version(&self, key: &[u8]) -> Option<Version> {
        self.current(key).and_then(|state| state.version)
    }

    fn current(&self, key: &[u8]) -> Option<&State> {
        self.keys.get(key)?.back().filter(|state| state.version.is_some())
    }

    fn must_be_there(&mut self, at: Moment, key: &[u8], who: &str) -> Result<(), String> {
        let name = String::from_utf8_lossy(key);
        let Some(state) = self.keys.get_mut(key).and_then(VecDeque::back_mut) else {
            return Err(format!("{who} '{name}', which was never stored"));
        };
        if state.version.is_none() {
            return Err(format!("{who} '{name}', which is gone since {}", state.from));
        }
        if at.server_nanos >= state.ends_by {
            return Err(format!("{who} '{name}', whose time to live has ended"));
        }
        state.seen = at.time;
        Ok(())
    }

    /// The shard says that the key isn't there, also without a removal that was seen.
    pub fn is_missing(&mut self, at: Moment, key: &[u8]) {
        if self.current(key).is_some() {
            self.vanished(at, key);
        }
    }

    fn vanished(&mut self, at: Moment, key: &[u8]) {
        self.ledgers.entry(at.shard).or_default().vanished += 1;
        let seen = self.current(key).map_or(at.time, |state| state.seen);
        self.becomes(at, key, None, 0, u64::MAX);
        if let Some(state) = self.keys.get_mut(key).and_then(VecDeque::back_mut) {
            state.from = seen;
        }
    }

    fn becomes(&mut self, at: Moment, key: &[u8], version: Option<Version>, bytes: u64, ends_by: u64) {
        let states = self.keys.entry(key.to_vec()).or_default();
        let (time, life) = (at.time, at.shard.0);
        if let Some(last) = states.back_mut() {
            last.to = last.to.min(time);
        }
        states.push_back(State { version, bytes, from: time, to: Time::MAX, seen: time, ends_by, life });
        if states.len() > REMEMBERED {
            states.pop_front();
        }
    }

    /// A server has ended, and all that it held. Readers on its host notice at `noticed` at the latest.
    pub fn lost(&mut self, time: Time, noticed: Time, life: u64) {
        for states in self.keys.values_mut() {
            let Some(last) = states.back_mut().filter(|last| last.version.is_some() && last.life == life)
            else {
                continue;
            };
            last.to = noticed;
            let gone =
                State { version: None, bytes: 0, from: time, to: Time::MAX, ends_by: u64::MAX, ..*last };
            states.push_back(gone);
        }
    }

    /// Whether the model takes the key to be in this life of a server.
    pub fn is_in(&self, key: &[u8], life: u64) -> bool {
        self.current(key).is_some_and(|state| state.life == life)
    }

    /// A client is about to ask for a removal.
    pub fn removal_asked(&mut self, client: usize, key: &[u8]) {
        self.removals.entry((client, key.to_vec())).or_default().0 += 1;
    }

    /// A client was told what became of its put.
    pub fn put_told(&mut self, version: Version, is_stored: bool) -> Result<(), String> {
        if version == EMPTY {
            return Ok(());
        }
        let commits = self.commits.get(&version).copied().unwrap_or(0);
        if !is_stored {
            self.refused.insert(version);
        }
        if is_stored == (commits == 1) {
            return Ok(());
        }
        Err(format!(
            "the writer of version {version} was told {is_stored}, and it was stored {commits} times"
        ))
    }

    /// Whether the key may have been missing at some instant from `from` to `to`.
    pub fn may_be_missing(&self, key: &[u8], from: Time, to: Time) -> bool {
        match self.keys.get(key) {
            None => true,
            Some(states) if states.front().is_some_and(|state| state.from > from) => true,
            Some(states) => states.iter().any(|state| state.version.is_none() && overlaps(state, from, to)),
        }
    }

    /// Whether the key may have been there at some instant from `from` to `to`.
    pub fn may_be_there(&self, key: &[u8], from: Time, to: Time) -> bool {
        let states = self.keys.get(key).into_iter().flatten();
        states.filter(|state| state.version.is_some()).any(|state| overlaps(state, from, to))
    }

    /// Whether these bytes at `offset` of the key's value are those of a version that was there at some instant from `from`
    /// to `to`, one of `length` bytes where that is known.
    pub fn may_be_read(
        &self,
        key: &[u8],
        (offset, bytes): (u64, &[u8]),
        length: Option<u64>,
        (from, to): (Time, Time),
    ) -> Option<Version> {
        let states = self.keys.get(key).into_iter().flatten().filter(|state| overlaps(state, from, to));
        let mut candidates = states.filter_map(|state| Some((state.version?, state.bytes)));
        let fits = |(version, whole): (Version, u64)| {
            let is_long_enough =
                length.map_or(offset + bytes.len() as u64 <= whole, |length| length == whole);
            (is_long_enough && content::is_of(version, offset, bytes)).then_some(version)
        };
        candidates.find_map(fits)
    }

    /// What the shard counted against what was seen of it.
    pub fn check_ledger(&self, shard: ShardLife, stats: &ShardStats) -> Result<(), String> {
        let Ledger { published, removed, vanished } = self.ledgers.get(&shard).copied().unwrap_or_default();
        let counted = stats.puts + stats.upserts;
        let left = stats.removed + stats.overwritten + stats.expired + stats.evictions();
        if counted != stats.objects + left {
            return Err(format!("objects are missing in the shard's own ledger: {stats:?}"));
        }
        if counted != published || stats.removed != removed {
            return Err(format!("{published} published and {removed} removed were seen, not {stats:?}"));
        }
        if vanished > stats.expired + stats.evictions() {
            return Err(format!("{vanished} objects are gone without a removal, more than {stats:?}"));
        }
        if stats.lost_bytes + stats.damaged_runs_met > 0 {
            return Err(format!("the allocator met damage: {stats:?}"));
        }
        Ok(())
    }
}

fn overlaps(state: &State, from: Time, to: Time) -> bool {
    state.from <= to && from <= state.to
}
