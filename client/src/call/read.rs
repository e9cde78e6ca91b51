//! Snapshot reads over TCP: ranges by descriptor, one frame out and one back for each shard.

use super::{Call, Exchange, Request, drive, keys::in_batch};
use crate::client::ClientInner;
use crate::connection::Receiver;
use crate::lane::Lane;
use crate::snapshot::ranges::Ranges;
use crate::snapshot::{Freshness, Snapshot};
use lanner_shared::wire::header::Header;
use lanner_shared::wire::read::{EpochCheck, ReadBody, SegmentRange};
use lanner_shared::wire::{MAX_BATCH, MAX_BODY_BYTES, Opcode, body};
use lanner_shared::{Error, Result};
use std::task::Poll;

/// Room for the epoch checks of a frame: there are no more words than these on a shard.
const CHECKS_BYTES: usize = lanner_shared::epoch::EPOCH_SLOTS * size_of::<EpochCheck>();
/// The most ranges in one frame.
const MAX_RANGES: usize = {
    let fit = (MAX_BODY_BYTES - size_of::<ReadBody>() - CHECKS_BYTES) / size_of::<SegmentRange>();
    if fit < MAX_BATCH { fit } else { MAX_BATCH }
};

/// Ranges of a snapshot under way.
pub(crate) struct ReadCall<'a, R: ?Sized> {
    snapshot: &'a Snapshot,
    ranges: &'a R,
    target: &'a mut [u8],
    freshness: Freshness,
    parts: Vec<Part>,
}

/// The ranges that one shard is asked for in one frame.
struct Part {
    exchange: Exchange,
    source: u16,
    indices: Vec<u32>,
    cursor: Cursor,
}

/// How far a reply's payload has been scattered.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor {
    /// Place among the part's ranges.
    at: usize,
    /// Bytes of that range that have come.
    done: u64,
}

impl<'a, R: Ranges + ?Sized> ReadCall<'a, R> {
    /// A read of those of the `ranges`, which were checked, whose objects lie in no mapped segment.
    pub fn new(
        snapshot: &'a Snapshot,
        ranges: &'a R,
        target: &'a mut [u8],
        freshness: Freshness,
    ) -> ReadCall<'a, R> {
        let mut parts: Vec<Part> = Vec::with_capacity(snapshot.sources.len());
        for index in 0..ranges.count() {
            let source = snapshot.entries[ranges.range(index).key as usize].source;
            let details = &snapshot.sources[usize::from(source)];
            if details.mapping.is_some() {
                continue;
            }
            match parts.iter_mut().rev().find(|part| part.source == source) {
                Some(part) if part.indices.len() < MAX_RANGES => part.indices.push(index as u32),
                _ => parts.push(Part {
                    exchange: Exchange::new(details.route),
                    source,
                    indices: vec![index as u32],
                    cursor: Cursor::default(),
                }),
            }
        }
        ReadCall { snapshot, ranges, target, freshness, parts }
    }
}

impl<R: Ranges + ?Sized> Call for ReadCall<'_, R> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        let mut is_done = true;
        for part in &mut self.parts {
            if part.exchange.is_done() {
                continue;
            }
            // A descriptor means something only to the server's life that gave it.
            match lane.connection(client, part.exchange.route) {
                Ok(connection)
                    if connection.boot_id == self.snapshot.sources[usize::from(part.source)].boot_id => {}
                Ok(_) => return Poll::Ready(Err(Error::LeaseExpired { index: u64::from(part.indices[0]) })),
                Err(error) => return Poll::Ready(Err(error)),
            }
            let request = ReadRequest {
                snapshot: self.snapshot,
                ranges: self.ranges,
                source: part.source,
                indices: &part.indices,
                freshness: self.freshness,
            };
            let mut receiver = Scatter {
                ranges: self.ranges,
                indices: &part.indices,
                target: self.target,
                cursor: &mut part.cursor,
            };
            match drive(&mut part.exchange, lane, client, &request, &mut receiver) {
                Poll::Pending => is_done = false,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(in_batch(error, &part.indices))),
            }
        }
        if is_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.parts.iter_mut().for_each(|part| act(&mut part.exchange));
    }
}

struct ReadRequest<'a, R: ?Sized> {
    snapshot: &'a Snapshot,
    ranges: &'a R,
    source: u16,
    indices: &'a [u32],
    freshness: Freshness,
}

impl<R: Ranges + ?Sized> Request for ReadRequest<'_, R> {
    fn opcode(&self) -> Opcode {
        Opcode::Read
    }

    fn count(&self) -> u16 {
        self.indices.len() as u16
    }

    fn encode(&self, frame: &mut Vec<u8>) {
        let epochs = self.snapshot.epochs.iter().filter(|epoch| epoch.source == self.source);
        let checks = if self.freshness == Freshness::Checked { epochs.clone().count() } else { 0 };
        body::append(frame, &ReadBody { epoch_checks: (checks as u32).into(), reserved: 0.into() });
        for index in self.indices {
            let range = self.ranges.range(*index as usize);
            let entry = &self.snapshot.entries[range.key as usize];
            let wire = SegmentRange {
                slot: entry.slot.into(),
                generation: entry.generation.into(),
                segment_offset: (entry.value_offset + range.source_offset).into(),
                length: range.length.into(),
            };
            body::append(frame, &wire);
        }
        for epoch in epochs.take(checks) {
            let check = EpochCheck {
                epoch_slot: epoch.epoch_slot.into(),
                reserved: 0.into(),
                epoch: epoch.epoch.into(),
            };
            body::append(frame, &check);
        }
    }
}

/// Puts the ranges of a payload to their places.
pub(crate) struct Scatter<'a, R: ?Sized> {
    pub ranges: &'a R,
    /// The ranges that the payload consists of, in its order.
    pub indices: &'a [u32],
    pub target: &'a mut [u8],
    pub cursor: &'a mut Cursor,
}

impl<R: Ranges + ?Sized> Receiver for Scatter<'_, R> {
    fn reply(&mut self, _header: &Header, body: &[u8]) -> Result<()> {
        *self.cursor = Cursor::default();
        body::BodyReader::new(body).end()
    }

    #[inline]
    fn destination(&mut self) -> &mut [u8] {
        let Some((start, mut end)) = self.next_range() else { return &mut [] };
        // Ranges that follow each other in the destination too are taken in together.
        for index in &self.indices[self.cursor.at + 1..] {
            let range = self.ranges.range(*index as usize);
            if range.destination_offset != end {
                break;
            }
            end += range.length;
        }
        self.target.get_mut(start as usize..end as usize).unwrap_or_default()
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.cursor.done += bytes as u64;
        while let Some(index) = self.indices.get(self.cursor.at) {
            let length = self.ranges.range(*index as usize).length;
            if self.cursor.done < length {
                break;
            }
            *self.cursor = Cursor { at: self.cursor.at + 1, done: self.cursor.done - length };
        }
    }
}

impl<R: Ranges + ?Sized> Scatter<'_, R> {
    /// The rest of the range that is due: where it starts and ends in the destination.
    #[inline]
    fn next_range(&mut self) -> Option<(u64, u64)> {
        // Steps over empty ranges at the start.
        self.advance(0);
        let range = self.ranges.range(*self.indices.get(self.cursor.at)? as usize);
        Some((range.destination_offset + self.cursor.done, range.destination_offset + range.length))
    }
}
