//! Ordinary ranged reads over TCP: keys and ranges out, bytes back, in one round trip.

use super::scatter::{Runs, Scatter};
use super::{Call, Exchange, Request, drive, give_up, has_moved};
use crate::client::ClientInner;
use crate::lane::{Lane, Route};
use crate::snapshot::ranges::{Range, Ranges};
use lanner_shared::wire::read_ranges::{KeyRange, ReadRangesBody};
use lanner_shared::wire::{MAX_BATCH, MAX_BODY_BYTES, Opcode, SHORT_BYTES_OF_FRAME, body, keys, short_bytes};
use lanner_shared::{Error, KeyHash, Result, key};
use std::task::Poll;

/// Ranges by key under way.
pub(crate) struct ReadRangesCall<'a, K> {
    batch: &'a [K],
    ranges: &'a [Range],
    target: &'a mut [u8],
    parts: Vec<Part>,
}

/// What one shard is asked for in one frame.
struct Part {
    exchange: Exchange,
    /// Places in the caller's batch.
    keys: Vec<u32>,
    /// Places among the caller's ranges.
    ranges: Vec<u32>,
    body_bytes: usize,
    /// Bytes of the short ranges together.
    short_bytes: u64,
    runs: Runs,
}

impl<'a, K: AsRef<[u8]>> ReadRangesCall<'a, K> {
    /// A read of `ranges`, whose destinations were checked; the server checks their sources.
    pub fn new(
        client: &ClientInner,
        batch: &'a [K],
        ranges: &'a [Range],
        target: &'a mut [u8],
    ) -> Result<ReadRangesCall<'a, K>> {
        let parts = ReadRangesCall::parts(client, batch, ranges)?;
        Ok(ReadRangesCall { batch, ranges, target, parts })
    }

    fn parts(client: &ClientInner, batch: &[K], ranges: &[Range]) -> Result<Vec<Part>> {
        let mut parts: Vec<Part> = Vec::new();
        // Which part holds a key, and at which place there.
        let mut placed: Vec<Option<(u32, u32)>> = vec![None; batch.len()];
        for (index, range) in ranges.iter().enumerate() {
            let at = range.key as usize;
            let key = key::checked(batch[at].as_ref(), at)?;
            let part = match placed[at] {
                Some((part, _)) if parts[part as usize].has_room(size_of::<KeyRange>()) => part as usize,
                _ => {
                    let route = client.route(KeyHash::of(key));
                    let bytes = keys::encoded_bytes(key);
                    let part = open_part(&mut parts, route, bytes + size_of::<KeyRange>());
                    placed[at] = Some((part as u32, parts[part].keys.len() as u32));
                    parts[part].keys.push(at as u32);
                    parts[part].body_bytes += bytes;
                    part
                }
            };
            parts[part].ranges.push(index as u32);
            parts[part].runs.push(range);
            parts[part].short_bytes += short_bytes(range.length);
            parts[part].body_bytes += size_of::<KeyRange>();
        }
        Ok(parts)
    }
}

/// The last part for `route` if it has room for `bytes` more, or a new one.
fn open_part(parts: &mut Vec<Part>, route: Route, bytes: usize) -> usize {
    match parts.iter().rposition(|part| part.exchange.route == route) {
        Some(at) if parts[at].has_room(bytes) => at,
        _ => {
            parts.push(Part {
                exchange: Exchange::new(route),
                keys: Vec::new(),
                ranges: Vec::new(),
                body_bytes: size_of::<ReadRangesBody>(),
                short_bytes: 0,
                runs: Runs::default(),
            });
            parts.len() - 1
        }
    }
}

impl Part {
    fn has_room(&self, bytes: usize) -> bool {
        self.body_bytes + bytes <= MAX_BODY_BYTES
            && self.ranges.len() < MAX_BATCH
            && self.short_bytes < SHORT_BYTES_OF_FRAME
    }
}

impl<K: AsRef<[u8]>> Call for ReadRangesCall<'_, K> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        let mut is_done = true;
        let mut moved = None;
        for part in &mut self.parts {
            if part.exchange.is_done() {
                continue;
            }
            let request = PartRequest {
                batch: self.batch,
                ranges: self.ranges,
                keys: &part.keys,
                indices: &part.ranges,
            };
            let mut receiver = Scatter { runs: &mut part.runs, target: self.target };
            match drive(&mut part.exchange, lane, client, &request, &mut receiver) {
                Poll::Pending => is_done = false,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    moved = regrouped(client, self.batch, self.ranges, part, &error);
                    if moved.is_none() {
                        return Poll::Ready(Err(part.in_call(error)));
                    }
                    break;
                }
            }
        }
        if let Some(parts) = moved {
            give_up(lane, self);
            self.parts = parts;
            return Poll::Pending;
        }
        if is_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.parts.iter_mut().for_each(|part| act(&mut part.exchange));
    }
}

/// All parts anew, if one was refused whose keys belong elsewhere now ([`has_moved`]).
#[cold]
fn regrouped<K: AsRef<[u8]>>(
    client: &ClientInner,
    batch: &[K],
    ranges: &[Range],
    part: &Part,
    refused: &Error,
) -> Option<Vec<Part>> {
    let route = |index: &u32| client.route(KeyHash::of(batch[*index as usize].as_ref()));
    if !has_moved(refused, part.exchange.route, part.keys.iter().map(route)) {
        return None;
    }
    ReadRangesCall::parts(client, batch, ranges).ok()
}

impl Part {
    /// An error of the server, with the place in the caller's batch: of a range if it's about one, else of a key.
    fn in_call(&self, error: Error) -> Error {
        let places = if matches!(error, Error::OutOfBounds { .. }) { &self.ranges } else { &self.keys };
        super::keys::in_batch(error, places)
    }
}

struct PartRequest<'a, K> {
    batch: &'a [K],
    ranges: &'a [Range],
    keys: &'a [u32],
    indices: &'a [u32],
}

impl<K: AsRef<[u8]>> Request for PartRequest<'_, K> {
    fn opcode(&self) -> Opcode {
        Opcode::ReadRanges
    }

    fn count(&self) -> u16 {
        self.indices.len() as u16
    }

    fn encode(&self, frame: &mut Vec<u8>) {
        body::append(frame, &ReadRangesBody { keys: (self.keys.len() as u32).into(), reserved: 0.into() });
        let place_of = |key: u32| self.keys.iter().position(|known| *known == key).unwrap_or(0);
        // Ranges mostly come key by key, so the last key's place mostly is the next one's too.
        let mut last = (u32::MAX, 0);
        for index in self.indices {
            let range = self.ranges.range(*index as usize);
            if range.key != last.0 {
                last = (range.key, self.next_place(last.1, range.key).unwrap_or_else(|| place_of(range.key)));
            }
            let wire = KeyRange {
                key: (last.1 as u32).into(),
                reserved: 0.into(),
                source_offset: range.source_offset.into(),
                length: range.length.into(),
            };
            body::append(frame, &wire);
        }
        self.keys.iter().for_each(|key| keys::append(frame, self.batch[*key as usize].as_ref()));
    }
}

impl<K> PartRequest<'_, K> {
    /// The place behind `place`, if `key` is there; a walk over tables in order never has to search.
    fn next_place(&self, place: usize, key: u32) -> Option<usize> {
        (self.keys.get(place + 1) == Some(&key)).then_some(place + 1)
    }
}
