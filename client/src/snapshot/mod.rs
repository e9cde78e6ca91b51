//! Snapshots: leased descriptors of a set of objects, prepared once and read from many times without asking a server.
//!
//! A snapshot belongs to its caller. It holds where each object's value lies ([`Entry`]), in whose memory ([`Source`]), what
//! the epoch words were, and the earliest end of the leases ([`LeaseTerm`]). What always holds: all entries lie within their
//! mapping, and a read that this module calls done was finished while every lease it relied on was running (promise P1).
//! Asking a server for anything is absent on purpose: that's [`crate::Client`]'s part.

pub(crate) mod gather;
pub(crate) mod ranges;
mod touches;

use crate::lane::Route;
use crate::mapping::Mapping;
use lanner_shared::chain::PREFIX_BYTES;
use lanner_shared::error::{Malformation, WireError};
use lanner_shared::lease::LeaseTerm;
use lanner_shared::shm::touch_ring::Touch;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::Descriptor;
use lanner_shared::{Error, Result};
use ranges::Ranges;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;
use touches::{PAUSE, Touches};

/// How fresh what a read returns must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// At most one lease old: what the objects were when the snapshot was prepared.
    #[default]
    Lease,
    /// As it was when the read began. The epoch words are read with the data; if one has changed the read fails with
    /// `EpochChanged`, and the calls that own the snapshot refresh it and read once more.
    Checked,
}

/// Leased descriptors of a set of objects.
#[derive(Debug)]
pub struct Snapshot {
    keys: KeyList,
    pub(crate) entries: Vec<Entry>,
    pub(crate) sources: SmallVec<[Source; 4]>,
    pub(crate) epochs: Vec<Epoch>,
    term: LeaseTerm,
    touches: Touches,
    /// Time between two messages about what was read one-sided: half of the lease. Until a lease ends its object is safe from eviction, so none is
    /// needed sooner; and whoever refreshes the snapshot then has told the shard as much.
    message_pause: Duration,
}

/// Where an object's value lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// From the start of its segment, in bytes.
    pub value_offset: u64,
    pub value_bytes: u64,
    pub slot: u32,
    pub generation: u32,
    /// Index among the snapshot's sources.
    pub source: u16,
}

/// A segment that objects of the snapshot lie in.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub route: Route,
    pub boot_id: [u8; 16],
    /// Where this client can read it itself.
    pub mapping: Option<Arc<Mapping>>,
}

/// What an epoch word was when the leases were granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch {
    pub source: u16,
    pub epoch_slot: u16,
    pub epoch: u32,
}

/// Keys, end to end in one buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyList {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl KeyList {
    pub fn new<K: AsRef<[u8]>>(keys: &[K]) -> KeyList {
        let mut list = KeyList::default();
        for key in keys {
            list.bytes.extend_from_slice(key.as_ref());
            list.ends.push(list.bytes.len() as u32);
        }
        list
    }

    /// A list without keys, with room for those of the chain `keys` as they are stored.
    pub fn with_room_for<K: AsRef<[u8]>>(keys: &[K]) -> KeyList {
        let bytes: usize = keys.iter().map(|key| PREFIX_BYTES + key.as_ref().len()).sum();
        KeyList { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(keys.len()) }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Leaves the first `count` keys.
    pub fn truncate(&mut self, count: usize) {
        self.ends.truncate(count);
        self.bytes.truncate(self.ends.last().map_or(0, |end| *end as usize));
    }

    /// Adds a key that consists of two parts.
    #[inline]
    pub fn push(&mut self, front: &[u8; PREFIX_BYTES], back: &[u8]) {
        self.bytes.extend_from_slice(front);
        self.bytes.extend_from_slice(back);
        self.ends.push(self.bytes.len() as u32);
    }

    pub fn to_slices(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start as usize..*end as usize]).collect()
    }
}

impl Snapshot {
    /// A snapshot of `keys`, whose descriptors are `runs`, each from one shard, in the order of the keys: if all were found and their
    /// leases, counted from `asked`, still run.
    pub(crate) fn new<'a>(
        keys: KeyList,
        asked: Instant,
        runs: impl Iterator<Item = (Route, &'a [Descriptor])>,
        mut source_of: impl FnMut(Route) -> Result<Source>,
    ) -> Result<Snapshot> {
        let mut snapshot = Snapshot {
            entries: Vec::with_capacity(keys.len()),
            touches: Touches::new(keys.len(), asked),
            keys,
            sources: SmallVec::new(),
            epochs: Vec::new(),
            term: LeaseTerm { deadline: Instant::NEVER, refresh_at: Instant::NEVER },
            message_pause: Duration::ZERO,
        };
        let made = Clock.now();
        // Objects that follow each other mostly lie in one segment and have one lease.
        let (mut last_route, mut last_source, mut last_lease_ms) = (None, 0, None);
        for (route, descriptors) in runs {
            if last_route != Some(route) {
                last_source = snapshot.source(source_of(route)?);
                last_route = Some(route);
            }
            let first = snapshot.entries.len();
            snapshot.add(descriptors, last_source)?;
            for (descriptor, index) in descriptors.iter().zip(first..) {
                if last_lease_ms == Some(descriptor.lease_ms) {
                    continue;
                }
                last_lease_ms = Some(descriptor.lease_ms);
                let granted = Duration::from_millis(u64::from(descriptor.lease_ms.get()));
                let term = LeaseTerm::new(asked, made, granted);
                if !term.covers(made) {
                    return Err(Error::LeaseExpired { index: index as u64 });
                }
                snapshot.term = snapshot.term.earlier(term);
            }
        }
        snapshot.message_pause = snapshot.term.refresh_at.since(asked);
        snapshot.epochs.sort_unstable();
        snapshot.epochs.dedup();
        Ok(snapshot)
    }

    /// The index of a source, which is kept if it's a new one.
    fn source(&mut self, source: Source) -> u16 {
        let known = self
            .sources
            .iter()
            .position(|known| known.route == source.route && known.boot_id == source.boot_id);
        known.unwrap_or_else(|| {
            self.sources.push(source);
            self.sources.len() - 1
        }) as u16
    }

    /// Adds objects that were found in the segment of `source`.
    fn add(&mut self, descriptors: &[Descriptor], source: u16) -> Result<()> {
        let mapping = self.sources[usize::from(source)].mapping.as_ref();
        let mapped_bytes = mapping.map_or(u64::MAX, |mapping| mapping.length());
        let (entries, epochs) = (&mut self.entries, &mut self.epochs);
        for descriptor in descriptors {
            if descriptor.status.get() != 0 {
                let numbers = [entries.len() as u64, 0, 0, 0];
                return Err(Error::from_wire(WireError { code: descriptor.status.get(), numbers }));
            }
            let (value_offset, value_bytes) = (descriptor.value_offset(), descriptor.value_bytes.get());
            if value_offset.checked_add(value_bytes).is_none_or(|end| end > mapped_bytes) {
                return Err(Error::Malformed { reason: Malformation::Field, detail: value_offset });
            }
            entries.push(Entry {
                value_offset,
                value_bytes,
                slot: descriptor.slot.get(),
                generation: descriptor.generation.get(),
                source,
            });
            let epoch =
                Epoch { source, epoch_slot: descriptor.epoch_slot.get(), epoch: descriptor.epoch.get() };
            if epochs.last() != Some(&epoch) {
                epochs.push(epoch);
            }
        }
        Ok(())
    }

    /// The keys that it was prepared for.
    pub(crate) fn keys(&self) -> &KeyList {
        &self.keys
    }

    /// Number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it was prepared for no keys at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Length in bytes of the value of the key at `index`, or `None` if there is no such key.
    #[must_use]
    pub fn value_bytes(&self, index: usize) -> Option<u64> {
        self.entries.get(index).map(|entry| entry.value_bytes)
    }

    /// Whether the snapshot should be refreshed before the next read: from the middle of the lease window that remained
    /// when it was made.
    #[must_use]
    pub fn needs_refresh(&self, now: Instant) -> bool {
        if crate::faults::refreshes_too_late() {
            return false;
        }
        self.term.needs_refresh(now)
    }

    /// When the earliest of its leases ends; a read that isn't finished by then fails.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.term.deadline
    }

    /// Whether what was read is valid, given that the reading was finished before this call.
    #[inline]
    pub(crate) fn check_lease(&self) -> Result<Instant> {
        let now = Clock.now();
        let is_held = self.term.covers(now) || crate::faults::refreshes_too_late();
        let is_gone =
            |source: &Source| source.mapping.as_ref().is_some_and(|mapping| mapping.is_server_gone());
        if is_held && !self.sources.iter().any(is_gone) {
            return Ok(now);
        }
        Err(Error::LeaseExpired { index: 0 })
    }

    /// Whether all its objects can be read from shared memory.
    #[inline]
    pub(crate) fn is_local(&self) -> bool {
        self.sources.iter().all(|source| source.mapping.is_some())
    }

    /// Whether any of its objects can be read from shared memory.
    pub(crate) fn has_local_source(&self) -> bool {
        self.sources.iter().any(|source| source.mapping.is_some())
    }

    /// Reads `ranges` from shared memory into `target`; ranges and bounds were checked. Returns when the read was done.
    #[inline]
    pub(crate) fn read_local<R: Ranges + ?Sized>(
        &self,
        ranges: &R,
        target: &mut [u8],
        freshness: Freshness,
    ) -> Result<Instant> {
        if freshness == Freshness::Checked {
            self.check_local_epochs()?;
        }
        match self.sources.as_slice() {
            [Source { mapping: Some(mapping), .. }] => {
                gather::gather(ranges, &self.entries, mapping, target);
            }
            _ => gather::gather_from_many(ranges, &self.entries, &self.sources, target),
        }
        self.touches.note(ranges);
        self.check_lease()
    }

    /// Whether the shards are to be told what was read in their memory; see [`Snapshot::take_touches`].
    #[inline]
    pub(crate) fn are_touches_due(&self, now: Instant) -> bool {
        self.touches.are_due(now, PAUSE)
    }

    /// Notes that `ranges` were read one-sided. Whether the shards are to be told; see [`Snapshot::take_touches`].
    #[inline]
    pub(crate) fn note_one_sided<R: Ranges + ?Sized>(&self, ranges: &R, now: Instant) -> bool {
        self.touches.note(ranges);
        self.touches.are_due(now, self.message_pause)
    }

    /// What was read without the shards since the last time: for each segment its objects.
    pub(crate) fn take_touches(&self, now: Instant, mut tell: impl FnMut(&Source, Touch)) {
        for index in self.touches.take() {
            if let Some(entry) = self.entries.get(index)
                && let Some(source) = self.sources.get(usize::from(entry.source))
            {
                tell(source, Touch { slot: entry.slot, generation: entry.generation, read_at: now });
            }
        }
    }

    /// Whether an epoch word of a mapped segment has another value than when the leases were granted.
    #[inline]
    pub(crate) fn check_local_epochs(&self) -> Result<()> {
        for Epoch { source, epoch_slot, epoch } in &self.epochs {
            if let Some(mapping) = &self.sources[usize::from(*source)].mapping
                && mapping.epoch(*epoch_slot) != *epoch
            {
                return Err(Error::EpochChanged);
            }
        }
        Ok(())
    }

    /// Makes the page-table entries for the objects that lie in shared memory.
    pub(crate) fn populate(&self) {
        for entry in &self.entries {
            if let Some(mapping) = &self.sources[usize::from(entry.source)].mapping {
                mapping.populate(entry.value_offset, entry.value_bytes);
            }
        }
    }
}
