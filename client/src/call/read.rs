//! Snapshot reads where this side can't read the segment itself: ranges by descriptor, one frame out and one back for each shard.

use super::one_sided::Sources;
use super::scatter::{Runs, Scatter};
use super::{Call, Exchange, Request, drive, keys::in_batch};
use crate::client::ClientInner;
use crate::lane::{Lane, Route};
use crate::snapshot::ranges::{Range, Ranges};
use crate::snapshot::{Entry, Freshness, Snapshot};
use lanner_shared::wire::read::{EpochCheck, ReadBody, SegmentRange};
use lanner_shared::wire::{MAX_BATCH, MAX_BODY_BYTES, Opcode, SHORT_BYTES_OF_FRAME, body, short_bytes};
use lanner_shared::{Error, Result};
use std::task::Poll;
use zerocopy::IntoBytes;

/// Room for the epoch checks of a frame: there are no more words than these on a shard.
const CHECKS_BYTES: usize = lanner_shared::epoch::EPOCH_SLOTS * size_of::<EpochCheck>();
/// The most ranges in one frame.
const MAX_RANGES: usize = {
    let fit = (MAX_BODY_BYTES - size_of::<ReadBody>() - CHECKS_BYTES) / size_of::<SegmentRange>();
    if fit < MAX_BATCH { fit } else { MAX_BATCH }
};

/// Ranges of a snapshot under way.
pub(crate) struct ReadCall<'a> {
    snapshot: &'a Snapshot,
    target: &'a mut [u8],
    freshness: Freshness,
    parts: Vec<Part>,
}

/// The ranges that one shard is asked for in one frame.
struct Part {
    exchange: Exchange,
    source: u16,
    /// Their places among the caller's.
    indices: Vec<u32>,
    /// The same as they travel.
    wire: Vec<SegmentRange>,
    /// Bytes of the short ones together.
    short_bytes: u64,
    runs: Runs,
}

impl Part {
    fn new(source: u16, route: Route, ranges: usize) -> Part {
        Part {
            exchange: Exchange::new(route),
            source,
            indices: Vec::with_capacity(ranges),
            wire: Vec::with_capacity(ranges),
            short_bytes: 0,
            runs: Runs::default(),
        }
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.indices.len() < MAX_RANGES && self.short_bytes < SHORT_BYTES_OF_FRAME
    }

    #[inline]
    fn push(&mut self, index: usize, range: &Range, entry: &Entry) {
        self.indices.push(index as u32);
        self.wire.push(SegmentRange {
            slot: entry.slot.into(),
            generation: entry.generation.into(),
            segment_offset: (entry.value_offset + range.source_offset).into(),
            length: range.length.into(),
        });
        self.short_bytes += short_bytes(range.length);
        self.runs.push(range);
    }
}

impl<'a> ReadCall<'a> {
    /// A read of those of the `ranges`, which were checked, whose objects lie in no mapped segment and not in those that are read
    /// one-sided.
    pub fn new(
        snapshot: &'a Snapshot,
        ranges: &(impl Ranges + ?Sized),
        target: &'a mut [u8],
        freshness: Freshness,
        one_sided: &Sources,
    ) -> ReadCall<'a> {
        let mut parts: Vec<Part> = Vec::with_capacity(snapshot.sources.len());
        let expected = ranges.count().div_ceil(snapshot.sources.len().max(1)).min(MAX_RANGES);
        for (index, range) in ranges.iter().enumerate() {
            let entry = &snapshot.entries[range.key as usize];
            let details = &snapshot.sources[usize::from(entry.source)];
            if details.mapping.is_some() || one_sided.get(usize::from(entry.source)) == Some(&true) {
                continue;
            }
            match parts.iter_mut().rev().find(|part| part.source == entry.source) {
                Some(part) if part.has_room() => part.push(index, &range, entry),
                _ => {
                    let mut part = Part::new(entry.source, details.route, expected);
                    part.push(index, &range, entry);
                    parts.push(part);
                }
            }
        }
        ReadCall { snapshot, target, freshness, parts }
    }
}

impl Call for ReadCall<'_> {
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
                source: part.source,
                wire: &part.wire,
                freshness: self.freshness,
            };
            let mut receiver = Scatter { runs: &mut part.runs, target: self.target };
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

struct ReadRequest<'a> {
    snapshot: &'a Snapshot,
    source: u16,
    wire: &'a [SegmentRange],
    freshness: Freshness,
}

impl Request for ReadRequest<'_> {
    fn opcode(&self) -> Opcode {
        Opcode::Read
    }

    fn count(&self) -> u16 {
        self.wire.len() as u16
    }

    fn encode(&self, frame: &mut Vec<u8>) {
        let epochs = self.snapshot.epochs.iter().filter(|epoch| epoch.source == self.source);
        let checks = if self.freshness == Freshness::Checked { epochs.clone().count() } else { 0 };
        body::append(frame, &ReadBody { epoch_checks: (checks as u32).into(), reserved: 0.into() });
        frame.extend_from_slice(self.wire.as_bytes());
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
