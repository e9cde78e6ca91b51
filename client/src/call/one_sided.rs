//! Snapshot reads over RDMA: lists of READs, one for each shard, that no server takes part in (promise P2).
//!
//! The epoch words that are to be checked stand at the head of the list, so they are read with the data. What always holds: the call is done
//! only if the last READ was seen to complete while the snapshot's lease ran (promise P1); nothing is allocated, whatever the ranges, once a
//! lane has read as many before.

use super::{Call, Exchange};
use crate::client::ClientInner;
use crate::connection::rdma::registration::Registrations;
use crate::connection::reader::{Pieces, Reader};
use crate::lane::Lane;
use crate::snapshot::ranges::Ranges;
use crate::snapshot::{Freshness, Snapshot};
use lanner_shared::shm::segment_page::epoch_offset;
use lanner_shared::{Error, Result};
use smallvec::SmallVec;
use std::task::Poll;

/// Epoch words of a shard that are checked without an allocation: those of two layers of Engram tables, and more.
const MOST_WORDS: usize = 64;

/// Which sources of a snapshot are meant, by their places.
pub(crate) type Sources = SmallVec<[bool; 4]>;

/// Ranges of a snapshot being read one-sided.
pub(crate) struct OneSidedCall<'a, R: ?Sized> {
    snapshot: &'a Snapshot,
    ranges: &'a R,
    target: &'a mut [u8],
    /// Of the memory that the target is part of, if it's registered.
    registrations: Option<&'a Registrations>,
    parts: SmallVec<[Part; 4]>,
    /// Why it fails, once what is under way elsewhere is done.
    failure: Option<Error>,
}

/// What is read of one shard's segment.
struct Part {
    exchange: Exchange,
    source: u16,
    /// From its first look at the connection on.
    reader: Option<Reader>,
    /// The epoch words as they were read; none if they aren't checked.
    words: SmallVec<[[u8; 4]; MOST_WORDS]>,
}

/// The sources that this thread reads over RDMA. Connects where there is no connection yet.
#[inline]
pub(crate) fn sources(lane: &mut Lane, client: &ClientInner, snapshot: &Snapshot) -> Sources {
    let is_one_sided = |source: &crate::snapshot::Source| {
        source.mapping.is_none()
            && lane
                .connection(client, source.route)
                .is_ok_and(|connection| connection.boot_id == source.boot_id && connection.link().is_some())
    };
    snapshot.sources.iter().map(is_one_sided).collect()
}

impl<'a, R: Ranges + ?Sized> OneSidedCall<'a, R> {
    /// A read of those of the `ranges`, which were checked, whose objects lie in `sources`.
    #[inline]
    pub fn new(
        snapshot: &'a Snapshot,
        ranges: &'a R,
        target: &'a mut [u8],
        freshness: Freshness,
        sources: &Sources,
    ) -> OneSidedCall<'a, R> {
        let part = |source: usize| {
            let checks = snapshot.epochs.iter().filter(|epoch| usize::from(epoch.source) == source);
            let checks = if freshness == Freshness::Checked { checks.count() } else { 0 };
            Part {
                exchange: Exchange::new(snapshot.sources[source].route),
                source: source as u16,
                reader: None,
                words: std::iter::repeat_n([0; 4], checks).collect(),
            }
        };
        let meant = sources.iter().enumerate().filter(|(_, is_meant)| **is_meant);
        OneSidedCall {
            snapshot,
            ranges,
            target,
            registrations: None,
            parts: meant.map(|(source, _)| part(source)).collect(),
            failure: None,
        }
    }

    /// The same, to registered memory. For calls that are waited for only: until they return a device may write there.
    #[inline]
    pub fn into_registered(self, registrations: Option<&'a Registrations>) -> OneSidedCall<'a, R> {
        OneSidedCall { registrations, ..self }
    }

    /// A part has failed; the others are waited for, so that nothing stays under way for a call that nobody asks about any more.
    #[cold]
    fn fail(&mut self, part: usize, error: Error) {
        self.parts[part].exchange.end();
        self.failure.get_or_insert(error);
    }
}

impl<R: Ranges + ?Sized> Call for OneSidedCall<'_, R> {
    #[inline]
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        let mut is_done = true;
        for at in 0..self.parts.len() {
            if self.parts[at].exchange.is_done() {
                continue;
            }
            match self.poll_part(at, lane, client) {
                Ok(part_is_done) => is_done &= part_is_done,
                Err(error) => self.fail(at, error),
            }
        }
        match self.failure.take_if(|_| is_done) {
            Some(error) => Poll::Ready(Err(error)),
            None if is_done => Poll::Ready(self.snapshot.check_lease().map(drop)),
            None => Poll::Pending,
        }
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.parts.iter_mut().for_each(|part| act(&mut part.exchange));
    }
}

impl<R: Ranges + ?Sized> OneSidedCall<'_, R> {
    /// Moves a part on. Whether it's done.
    #[inline]
    fn poll_part(&mut self, at: usize, lane: &mut Lane, client: &ClientInner) -> Result<bool> {
        let part = &mut self.parts[at];
        let source = &self.snapshot.sources[usize::from(part.source)];
        let lost = || Error::ConnectionLost { server: client.server_address(source.route) };
        let serial = match part.exchange.reading_on() {
            Some(serial) => serial,
            None => match lane.connection(client, source.route)? {
                // A descriptor means something only to the server's life that gave it.
                connection if connection.boot_id != source.boot_id => {
                    return Err(Error::LeaseExpired { index: 0 });
                }
                connection => connection.serial,
            },
        };
        let connection = lane.existing(source.route, serial);
        let link = connection.and_then(|connection| connection.link()).ok_or_else(lost)?;
        let reader = match &mut part.reader {
            Some(reader) => reader,
            none => {
                let direct = self.registrations.and_then(|registrations| registrations.region(link));
                let reader = none.insert(Reader::new(link.new_reader(), direct));
                part.exchange.begin_reading(serial, Some(reader));
                reader
            }
        };
        let mut pieces = SnapshotPieces {
            snapshot: self.snapshot,
            ranges: self.ranges,
            direct: self.registrations.and_then(|registrations| registrations.offset_of(self.target)),
            target: self.target,
            source: part.source,
            words: &mut part.words,
        };
        match reader.poll(link, &mut pieces, self.snapshot.deadline()) {
            Ok(Poll::Pending) => Ok(false),
            Ok(Poll::Ready(())) => {
                part.exchange.end();
                if reader.is_late() {
                    return Err(Error::LeaseExpired { index: 0 });
                }
                if part.has_changed(self.snapshot) { Err(Error::EpochChanged) } else { Ok(true) }
            }
            Err(_) => {
                lane.close(source.route, serial);
                Err(lost())
            }
        }
    }
}

impl Part {
    /// Whether an epoch word isn't what it was when the leases were granted.
    fn has_changed(&self, snapshot: &Snapshot) -> bool {
        let granted = snapshot.epochs.iter().filter(|epoch| epoch.source == self.source);
        granted.zip(&self.words).any(|(granted, read)| granted.epoch != u32::from_le_bytes(*read))
    }
}

/// The epoch words, then the ranges.
struct SnapshotPieces<'a, R: ?Sized> {
    snapshot: &'a Snapshot,
    ranges: &'a R,
    /// Where the target begins in the registered buffer that it's part of.
    direct: Option<u64>,
    target: &'a mut [u8],
    source: u16,
    words: &'a mut [[u8; 4]],
}

impl<R: Ranges + ?Sized> Pieces for SnapshotPieces<'_, R> {
    #[inline]
    fn count(&self) -> usize {
        self.words.len() + self.ranges.count()
    }

    #[inline]
    fn piece(&self, index: usize) -> Option<(u64, u64)> {
        let Some(index) = index.checked_sub(self.words.len()) else {
            let mut granted = self.snapshot.epochs.iter().filter(|epoch| epoch.source == self.source);
            return granted.nth(index).map(|epoch| (epoch_offset(epoch.epoch_slot), 4));
        };
        let range = self.ranges.range(index);
        let entry = &self.snapshot.entries[range.key as usize];
        (entry.source == self.source).then_some((entry.value_offset + range.source_offset, range.length))
    }

    #[inline]
    fn place(&mut self, index: usize, from: u64, length: usize) -> &mut [u8] {
        let from = from as usize;
        match index.checked_sub(self.words.len()) {
            None => &mut self.words[index][from..from + length],
            Some(index) => {
                let start = self.ranges.range(index).destination_offset as usize + from;
                &mut self.target[start..start + length]
            }
        }
    }

    #[inline]
    fn direct_offset(&self, index: usize) -> Option<u64> {
        let (start, index) = (self.direct?, index.checked_sub(self.words.len())?);
        Some(start + self.ranges.range(index).destination_offset)
    }
}
