//! Answers on their way to one connection: bytes, and pieces of extents that are sent from where they lie.
//!
//! ```text
//! pieces:  │ bytes 0..56 │ extent A 4096..8192 │ bytes 56..104 │ …
//! ```
//!
//! An extent that waits here to be sent is pinned, so that its memory isn't reused however slow the peer is (promise P1).
//! Short pieces are copied instead: a pin, an entry in the send's vector and the kernel's walk over it cost as much as
//! copying about a kilobyte.

use crate::memory::segment::Segment;
use crate::memory::slots::{Generation, SlotId};
use crate::shard::Shard;
use lanner_shared::Result;
use lanner_shared::time::Instant;
use lanner_shared::wire::{SHORT_BYTES_OF_FRAME, SHORT_RANGE_BYTES};
use std::collections::VecDeque;
use std::mem::MaybeUninit;

/// Short pieces of extents are copied, as long as a frame's answer isn't longer than this: of a client that reads nothing, a few bytes of a
/// request must not take a hundred times as many here.
const MOST_COPIED_BYTES: u64 = 4 * SHORT_BYTES_OF_FRAME;
/// Rows that are asked for before the one that is copied: more than a core can have under way.
const ROWS_AHEAD: usize = 12;
/// With more than this waiting to be sent, no further frame of the connection is served: a slow reader slows only itself.
const FULL_BYTES: u64 = 1 << 20;
/// The same in pieces.
const FULL_PIECES: usize = 4096;

/// Bytes that were sent and are kept before those that wait, at least: moving has a price, too.
const COMPACTED_BYTES: usize = 32 << 10;

/// A buffer that has grown beyond this is given back when it's empty: many connections have a long answer now and then, few
/// have one all the time.
const KEPT_BYTES: usize = 128 << 10;

/// Where the next bytes to send are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// In [`Replies`] itself.
    Bytes {
        /// First byte.
        start: usize,
        /// Number of bytes.
        length: usize,
    },
    /// In the segment.
    Extent {
        /// The object that is pinned for it.
        slot: SlotId,
        /// Which of the slot's objects.
        generation: Generation,
        /// First byte, from the start of the segment.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

impl Piece {
    fn length(&self) -> u64 {
        match self {
            Piece::Bytes { length, .. } => *length as u64,
            Piece::Extent { length, .. } => *length,
        }
    }
}

/// Queued answers, in order.
#[derive(Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
    /// Bytes before this one belong to a piece.
    pieced: usize,
    pieces: VecDeque<Piece>,
    waiting_bytes: u64,
    /// Where the frame that's being answered began: in bytes, and in pieces.
    mark: (usize, usize),
}

impl Replies {
    /// Where to append frames without payload.
    #[inline]
    pub fn frame(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// From here on the next frame is answered.
    #[inline]
    pub(super) fn mark_frame(&mut self) {
        self.mark = (self.bytes.len(), self.pieces.len());
    }

    /// Takes back what was queued since [`Replies::mark_frame`].
    #[cold]
    pub(super) fn undo_to_last_frame(&mut self, shard: &mut Shard, now: Instant) {
        let (bytes, pieces) = self.mark;
        while self.pieces.len() > pieces {
            if let Some(piece) = self.pieces.pop_back() {
                self.waiting_bytes -= piece.length();
                unpin(shard, now, piece);
                if let Piece::Bytes { start, .. } = piece {
                    self.pieced = start;
                }
            }
        }
        self.bytes.truncate(bytes.max(self.pieced));
    }

    /// Copies rows of `segment`, given by offset and length, if all have the same short length: `payload_bytes` together. Whether that
    /// was so; else nothing has changed. The offsets were checked.
    #[inline]
    pub fn copy_rows(
        &mut self,
        segment: &Segment,
        rows: impl ExactSizeIterator<Item = (u64, u64)> + Clone,
        payload_bytes: u64,
    ) -> bool {
        let Some((_, length)) = rows.clone().next() else { return true };
        let count = rows.len() as u64;
        if length >= SHORT_RANGE_BYTES
            || payload_bytes > MOST_COPIED_BYTES
            || length * count != payload_bytes
            || rows.clone().any(|row| row.1 != length)
        {
            let short = rows.filter(|(_, length)| *length < SHORT_RANGE_BYTES);
            short.for_each(|(offset, length)| segment.prefetch(offset, length));
            return false;
        }
        let start = self.bytes.len();
        self.bytes.reserve(payload_bytes as usize);
        // For the lengths that rows of Engram tables have the loop knows it, and a copy is a straight line of loads and stores.
        let is_whole = match length {
            64 => copy_each::<64>(&mut self.bytes, segment, rows),
            128 => copy_each::<128>(&mut self.bytes, segment, rows),
            256 => copy_each::<256>(&mut self.bytes, segment, rows),
            264 => copy_each::<264>(&mut self.bytes, segment, rows),
            512 => copy_each::<512>(&mut self.bytes, segment, rows),
            _ => false,
        };
        if !is_whole {
            self.bytes.truncate(start);
        }
        is_whole
    }

    /// Queues bytes of an object of the segment, which were checked.
    ///
    /// # Errors
    /// `Overloaded` where 65,535 sends of this one object are under way: copying a long piece instead would let two clients that read
    /// nothing take as much memory as they like.
    #[inline]
    pub fn send_extent(
        &mut self,
        shard: &mut Shard,
        slot: SlotId,
        generation: Generation,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let copied_bytes = (self.bytes.len() - self.mark.0) as u64;
        if length >= SHORT_RANGE_BYTES || (length > 0 && copied_bytes + length > MOST_COPIED_BYTES) {
            shard.pin_for_send(slot, generation)?;
            self.end_bytes();
            self.pieces.push_back(Piece::Extent { slot, generation, offset, length });
            self.waiting_bytes += length;
            return Ok(());
        }
        let bytes = shard
            .segment()
            .slice(offset, length)
            .map_err(|_| lanner_shared::Error::LeaseExpired { index: 0 })?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Makes a piece of the bytes that belong to none.
    #[inline]
    fn end_bytes(&mut self) {
        let length = self.bytes.len() - self.pieced;
        if length > 0 {
            self.pieces.push_back(Piece::Bytes { start: self.pieced, length });
            self.pieced = self.bytes.len();
            self.waiting_bytes += length as u64;
        }
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.pieces.is_empty()
    }

    /// Whether no further frame should be served before some of this is sent.
    #[inline]
    pub fn is_full(&self) -> bool {
        let waiting = self.waiting_bytes + (self.bytes.len() - self.pieced) as u64;
        waiting >= FULL_BYTES || self.pieces.len() >= FULL_PIECES
    }

    /// The pieces to send, in order, after the last byte was queued.
    #[inline]
    pub fn pieces(&mut self) -> impl Iterator<Item = Piece> + '_ {
        self.end_bytes();
        self.pieces.iter().copied()
    }

    /// The bytes of a piece that lies here.
    #[inline]
    pub fn bytes(&self, start: usize, length: usize) -> &[u8] {
        self.bytes.get(start..start + length).unwrap_or_default()
    }

    /// That many bytes were sent.
    pub fn sent(&mut self, shard: &mut Shard, now: Instant, mut count: u64) {
        self.end_bytes();
        while count > 0 {
            let Some(front) = self.pieces.front_mut() else { break };
            let step = count.min(front.length());
            count -= step;
            self.waiting_bytes -= step;
            match front {
                Piece::Bytes { start, length } => {
                    *start += step as usize;
                    *length -= step as usize;
                }
                Piece::Extent { offset, length, .. } => {
                    *offset += step;
                    *length -= step;
                }
            }
            if front.length() == 0 {
                let piece = *front;
                self.pieces.pop_front();
                unpin(shard, now, piece);
            }
        }
        if self.pieces.is_empty() {
            self.bytes.clear();
            self.pieced = 0;
            if self.bytes.capacity() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        } else {
            self.compact();
        }
    }

    /// Moves the bytes that wait to the front, once those before them were sent and are more. A client that always has one more request
    /// under way never lets the queue run empty, and what was sent must not stay until it does.
    #[inline]
    fn compact(&mut self) {
        let waiting_from = self.pieces.iter().find_map(|piece| match piece {
            Piece::Bytes { start, .. } => Some(*start),
            Piece::Extent { .. } => None,
        });
        let sent = waiting_from.unwrap_or(self.pieced);
        if sent < COMPACTED_BYTES || sent < self.bytes.len() - sent {
            return;
        }
        self.bytes.drain(..sent);
        self.pieced -= sent;
        for piece in &mut self.pieces {
            if let Piece::Bytes { start, .. } = piece {
                *start -= sent;
            }
        }
    }

    /// Memory that is held here.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Lets go of everything: the connection has ended.
    pub fn drop_all(&mut self, shard: &mut Shard, now: Instant) {
        while let Some(piece) = self.pieces.pop_front() {
            unpin(shard, now, piece);
        }
        self.bytes = Vec::new();
        self.pieced = 0;
        self.waiting_bytes = 0;
    }

    /// All bytes, of a connection whose replies carry no values; see [`Replies::sent`].
    #[inline]
    pub fn plain_bytes(&self) -> &[u8] {
        debug_assert!(self.pieces.iter().all(|piece| matches!(piece, Piece::Bytes { .. })));
        match self.pieces.front() {
            Some(Piece::Bytes { start, .. }) => &self.bytes[*start..],
            _ => &self.bytes,
        }
    }
}

/// Appends rows of `N` bytes, for which there is room. Whether all lay in the segment.
///
/// Rows are in no cache near the core, so each is asked for some rows before its turn; asked for all at once, the first would be gone again.
#[inline]
fn copy_each<const N: usize>(
    bytes: &mut Vec<u8>,
    segment: &Segment,
    rows: impl ExactSizeIterator<Item = (u64, u64)> + Clone,
) -> bool {
    let mut ahead = rows.clone();
    ahead.by_ref().take(ROWS_AHEAD).for_each(|(offset, _)| segment.prefetch(offset, N as u64));
    let (start, count) = (bytes.len(), rows.len());
    let (places, _) = bytes.spare_capacity_mut().as_chunks_mut::<N>();
    let mut filled = 0;
    for (place, (offset, _)) in places.iter_mut().zip(rows) {
        if let Some((offset, _)) = ahead.next() {
            segment.prefetch(offset, N as u64);
        }
        let Ok(row) = segment.slice(offset, N as u64) else { break };
        // By pieces: for this many bytes at once the compiler calls `memcpy`, which takes as long to choose its way as to copy.
        let (row, place) = copy_pieces::<16>(row, place);
        let (row, place) = copy_pieces::<8>(row, place);
        place.iter_mut().zip(row).for_each(|(place, byte)| *place = MaybeUninit::new(*byte));
        filled += 1;
    }
    // SAFETY: so many whole rows were written behind the bytes that there were, within the vector's capacity.
    unsafe { bytes.set_len(start + filled * N) };
    filled == count
}

/// Copies all whole pieces of `P` bytes, a register's, and returns what is left of both.
#[inline(always)]
fn copy_pieces<'a, const P: usize>(
    row: &'a [u8],
    place: &'a mut [MaybeUninit<u8>],
) -> (&'a [u8], &'a mut [MaybeUninit<u8>]) {
    let (row_pieces, row_rest) = row.as_chunks::<P>();
    let (place_pieces, place_rest) = place.as_chunks_mut::<P>();
    for (place, row) in place_pieces.iter_mut().zip(row_pieces) {
        *place = row.map(MaybeUninit::new);
    }
    (row_rest, place_rest)
}

fn unpin(shard: &mut Shard, now: Instant, piece: Piece) {
    if let Piece::Extent { slot, generation, .. } = piece {
        shard.unpin_after_send(now, slot, generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::ShardConfig;
    use crate::shard::test_support::{TestShard, at};

    /// Two clients that read nothing, and ask in each frame for tens of thousands of short ranges, took 44 MB each. Shows that what a frame makes
    /// grow is bounded, that the ranges come in their order, copied or not, and that the next frame is copied again.
    #[test]
    fn short_ranges_of_a_frame_are_copied_up_to_a_limit() {
        let value: Vec<u8> = (0..1000_u32).map(|at| (at % 251) as u8).collect();
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        shard.put(at(0), b"row", &value).expect("room");
        let row = shard.get(at(0), b"row").expect("it was stored");
        let mut replies = Replies::default();
        for frame in 0..2 {
            replies.mark_frame();
            let before = replies.waiting_bytes;
            let ranges = if frame == 0 { 60_000 } else { 10 };
            for range in 0..ranges {
                let (offset, length) = (row.value_offset + range % 100, 900);
                replies.send_extent(&mut shard, row.slot, row.generation, offset, length).expect("queued");
            }
            replies.end_bytes();
            assert_eq!(replies.waiting_bytes - before, ranges * 900);
        }
        assert!(replies.held_bytes() as u64 <= 3 * MOST_COPIED_BYTES, "{} bytes held", replies.held_bytes());
        let (mut range, mut within) = (0, 0);
        for piece in replies.pieces().collect::<Vec<_>>() {
            let bytes = match piece {
                Piece::Bytes { start, length } => replies.bytes(start, length),
                Piece::Extent { offset, length, .. } => shard.segment().slice(offset, length).expect("there"),
            };
            for byte in bytes {
                let first = if range < 60_000 { range % 100 } else { range - 60_000 };
                assert_eq!(*byte, value[(first + within) as usize], "byte {within} of range {range}");
                within = (within + 1) % 900;
                range += u64::from(within == 0);
            }
        }
        assert_eq!(range, 60_010);
        replies.drop_all(&mut shard, at(0));
    }

    /// Shows that answers to a client that is never without one on its way take no more memory the longer it goes on, and go out in order.
    /// Before, what was sent stayed until the queue ran empty, which it never did.
    #[test]
    fn a_queue_that_never_runs_empty_does_not_grow() {
        let segment = Segment::heap(1 << 20).expect("memory");
        let mut shard = Shard::new(ShardConfig::default(), segment).expect("a shard");
        let mut replies = Replies::default();
        let (mut appended, mut sent, mut most) = (0_u64, 0_u64, 0);
        for round in 0..5_000_u64 {
            for _ in 0..100 + round % 300 {
                replies.frame().push((appended % 251) as u8);
                appended += 1;
            }
            // All but a few bytes go out, over the borders of what was appended together.
            while appended - sent > 50 {
                let Some(Piece::Bytes { start, length }) = replies.pieces().next() else {
                    panic!("no bytes")
                };
                let count = (appended - sent - 50).min(97).min(length as u64);
                for (at, byte) in replies.bytes(start, count as usize).iter().enumerate() {
                    assert_eq!(u64::from(*byte), (sent + at as u64) % 251);
                }
                replies.sent(&mut shard, Instant::ZERO, count);
                sent += count;
            }
            assert!(!replies.is_empty());
            most = most.max(replies.held_bytes());
        }
        assert!(appended > 1_000_000 && most <= 4 * COMPACTED_BYTES, "{most} bytes held of {appended}");
    }
}
