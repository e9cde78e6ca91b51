//! Snapshot reads over RDMA: lists of READs, one for each shard, that no server takes part in (promise P2).
//!
//! The epoch words that are to be checked stand at the head of the list, so they are read with the data. What always holds: the call is done
//! only if the last READ was seen to complete while the snapshot's lease ran (promise P1); nothing is allocated, whatever the ranges, once a
//! lane has read as many before.

use super::{Call, Exchange};
use crate::client::ClientInner;
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
    parts: SmallVec<[Part; 4]>,
}

/// What is read of one shard's segment.
struct Part {
    exchange: Exchange,
    source: u16,
    reader: Reader,
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
                reader: Reader::default(),
                words: std::iter::repeat_n([0; 4], checks).collect(),
            }
        };
        let meant = sources.iter().enumerate().filter(|(_, is_meant)| **is_meant);
        OneSidedCall { snapshot, ranges, target, parts: meant.map(|(source, _)| part(source)).collect() }
    }
}

impl<R: Ranges + ?Sized> Call for OneSidedCall<'_, R> {
    #[inline]
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        let mut is_done = true;
        for part in &mut self.parts {
            if part.exchange.is_done() {
                continue;
            }
            let source = &self.snapshot.sources[usize::from(part.source)];
            let lost = || Error::ConnectionLost { server: client.server_address(source.route) };
            let serial = match part.exchange.reading_on() {
                Some(serial) => serial,
                None => match lane.connection(client, source.route) {
                    // A descriptor means something only to the server's life that gave it.
                    Ok(connection) if connection.boot_id != source.boot_id => {
                        return Poll::Ready(Err(Error::LeaseExpired { index: 0 }));
                    }
                    Ok(connection) => connection.serial,
                    Err(error) => return Poll::Ready(Err(error)),
                },
            };
            let connection = lane.existing(source.route, serial);
            let Some(link) = connection.and_then(|connection| connection.link()) else {
                return Poll::Ready(Err(lost()));
            };
            part.exchange.begin_reading(serial, Some(part.reader.id(link)));
            let mut pieces = SnapshotPieces {
                snapshot: self.snapshot,
                ranges: self.ranges,
                target: self.target,
                source: part.source,
                words: &mut part.words,
            };
            match part.reader.poll(link, &mut pieces) {
                Ok(Poll::Pending) => is_done = false,
                Ok(Poll::Ready(())) => {
                    part.exchange.end_reading();
                    if part.has_changed(self.snapshot) {
                        return Poll::Ready(Err(Error::EpochChanged));
                    }
                }
                Err(_) => {
                    lane.close(source.route, serial);
                    return Poll::Ready(Err(lost()));
                }
            }
        }
        if is_done { Poll::Ready(self.snapshot.check_lease().map(drop)) } else { Poll::Pending }
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.parts.iter_mut().for_each(|part| act(&mut part.exchange));
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
}
