//! A call's one-sided reads from one shard: pieces cut into lists, posted as room allows, and copied to their places once read.
//!
//! Nothing of the caller's is written but inside [`Reader::poll`], and only once a list has been read whole; except that pieces whose place is
//! registered memory go straight there. Then the call doesn't return before the list is done or its queue pair was destroyed.
//!
//! Whether pieces go straight to their places is settled when a reader is made, by the region that it's given, and asked nobody again: the registration
//! may end while lists are under way, or be another one, and a list is done as it was posted. A reader of another region is another reader.

use super::Broken;
use super::rdma::link::{ListId, RdmaLink, ReaderId, Whereabouts};
use super::rdma::registration::Region;
use lanner_shared::time::{Clock, Instant};
use smallvec::SmallVec;
use std::sync::Arc;
use std::task::Poll;

/// What is to be read, and where it goes.
pub(crate) trait Pieces {
    /// How many there are.
    fn count(&self) -> usize;

    /// First byte in the segment, and number of bytes; `None` for one that isn't read here.
    fn piece(&self, index: usize) -> Option<(u64, u64)>;

    /// Where `length` bytes of the piece from its byte `from` on belong.
    fn place(&mut self, index: usize, from: u64, length: usize) -> &mut [u8];

    /// Where the piece's first byte belongs in the registered buffer that the call reads to, from the buffer's start; `None` for a piece that belongs
    /// elsewhere, and where there is no such buffer. Always the same for a piece, whatever becomes of the registration.
    fn direct_offset(&self, _index: usize) -> Option<u64> {
        None
    }
}

/// How far a call's reads over one link have come. Kept by the call.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Its name on the link.
    id: ReaderId,
    /// The region of the buffer that [`Pieces::direct_offset`] means, in the link's domain: pieces of it are read straight to it. `None` has all
    /// of them come by the lane's staging.
    direct: Option<Arc<Region>>,
    /// What comes next into a list.
    next: Position,
    /// Posted and not copied yet, in order.
    lists: SmallVec<[List; 2]>,
    /// Not all was read, because the lease had ended.
    is_late: bool,
}

/// A list that was posted: the pieces from `start` to `end`.
#[derive(Clone, Copy, Debug)]
struct List {
    id: ListId,
    start: Position,
    end: Position,
}

/// A place among the pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    piece: usize,
    /// Bytes of it.
    from: u64,
}

impl Reader {
    /// One of this name on its link, who reads to `direct` where pieces belong there.
    #[inline]
    pub fn new(id: ReaderId, direct: Option<Arc<Region>>) -> Reader {
        Reader { id, direct, next: Position::default(), lists: SmallVec::new(), is_late: false }
    }

    /// Its name, by which it's given up if its call is.
    #[inline]
    pub fn id(&self) -> ReaderId {
        self.id
    }

    /// Whether the device may write to memory of the caller's.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Copies what has been read, and posts what there is room for. Ready once all is in its place, or once nothing is under way any more behind
    /// `deadline`, where the lease ends: then nothing more is posted, for what it brought wouldn't count.
    #[inline]
    pub fn poll(
        &mut self,
        link: &mut RdmaLink,
        pieces: &mut impl Pieces,
        deadline: Instant,
    ) -> Result<Poll<()>, Broken> {
        link.poll()?;
        let is_direct = self.is_direct();
        while let Some(list) = self.lists.first().copied() {
            match link.whereabouts(list.id) {
                Whereabouts::UnderWay => break,
                Whereabouts::Read => {
                    let copy_out = |at: usize, target: &mut [u8]| link.copy_out(list.id, at, target);
                    place(list.start, list.end, pieces, is_direct, copy_out);
                    link.give_back(list.id);
                }
                Whereabouts::Forgotten => self.is_late = true,
            }
            self.lists.remove(0);
        }
        while self.next.piece < pieces.count() {
            if self.is_late || Clock.now() >= deadline {
                self.is_late = true;
                break;
            }
            let Some(mut list) = link.begin_list(self.id, self.direct.as_ref(), deadline) else {
                // Other calls' lists have what room there is, and will be done.
                return Ok(Poll::Pending);
            };
            let start = self.next;
            let push = |offset, length, place| list.push(offset, length, place);
            let end = fill(start, pieces, is_direct, push);
            match list.post()? {
                Some(id) => self.lists.push(List { id, start, end }),
                // Nothing but pieces of no bytes, or of other shards.
                None if end == start => return Err(Broken::Closed),
                None => {}
            }
            self.next = end;
        }
        Ok(if self.lists.is_empty() { Poll::Ready(()) } else { Poll::Pending })
    }

    /// Whether not all was read, because the lease had ended.
    pub fn is_late(&self) -> bool {
        self.is_late
    }
}

/// Puts what a list of the pieces from `start` to `end` has read to their places: `copy_out` copies from the list's staging, from that byte of it on. Pieces
/// that went straight to theirs are there, and have no bytes in the staging.
#[inline]
fn place(
    start: Position,
    end: Position,
    pieces: &mut impl Pieces,
    is_direct: bool,
    mut copy_out: impl FnMut(usize, &mut [u8]),
) {
    let (mut position, mut at) = (start, 0);
    while position != end {
        let Position { piece, from } = position;
        let is_cut = piece == end.piece;
        if let Some((_, length)) = pieces.piece(piece)
            && !(is_direct && pieces.direct_offset(piece).is_some())
        {
            let count = if is_cut { end.from - from } else { length - from } as usize;
            copy_out(at, pieces.place(piece, from, count));
            at += count;
        }
        position = if is_cut { end } else { Position { piece: piece + 1, from: 0 } };
    }
}

/// Hands pieces from `start` on to `push` until it takes less than all of one: first byte, number of bytes, and the place in the caller's region where
/// it goes straight to it. Where the next list begins.
#[inline]
fn fill(
    start: Position,
    pieces: &impl Pieces,
    is_direct: bool,
    mut push: impl FnMut(u64, u64, Option<u64>) -> u64,
) -> Position {
    let mut position = start;
    while position.piece < pieces.count() {
        if let Some((offset, length)) = pieces.piece(position.piece)
            && length > position.from
        {
            let missing = length - position.from;
            let direct = if is_direct { pieces.direct_offset(position.piece) } else { None };
            let taken = push(offset + position.from, missing, direct.map(|place| place + position.from));
            if taken < missing {
                return Position { from: position.from + taken, ..position };
            }
        }
        position = Position { piece: position.piece + 1, from: 0 };
    }
    position
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of a segment, and of each list that its staging takes.
    const SEGMENT: usize = 4096;

    /// What is read: where, how much, whether it belongs in the registered buffer, and whether it's read from here at all.
    type Piece = (u64, u64, bool, bool);

    /// Pieces that go one behind the other, to a registered buffer or to another one.
    struct Targets {
        pieces: Vec<Piece>,
        starts: Vec<usize>,
        registered: Vec<u8>,
        other: Vec<u8>,
    }

    impl Targets {
        fn new(pieces: Vec<Piece>) -> Targets {
            let (mut starts, mut ends) = (Vec::new(), [0, 0]);
            for (_, length, is_registered, _) in &pieces {
                let end = &mut ends[usize::from(*is_registered)];
                starts.push(*end);
                *end += *length as usize;
            }
            Targets { pieces, starts, registered: vec![0xab; ends[1]], other: vec![0xab; ends[0]] }
        }
    }

    impl Pieces for Targets {
        fn count(&self) -> usize {
            self.pieces.len()
        }

        fn piece(&self, index: usize) -> Option<(u64, u64)> {
            let (offset, length, _, is_here) = self.pieces[index];
            is_here.then_some((offset, length))
        }

        fn place(&mut self, index: usize, from: u64, length: usize) -> &mut [u8] {
            let target = if self.pieces[index].2 { &mut self.registered } else { &mut self.other };
            &mut target[self.starts[index] + from as usize..][..length]
        }

        fn direct_offset(&self, index: usize) -> Option<u64> {
            self.pieces[index].2.then_some(self.starts[index] as u64)
        }
    }

    proptest! {
        /// A list posted to the staging was taken for one that had gone straight to the buffer, and the other way round, once its registration
        /// had changed meanwhile. Shows that lists of all kinds of pieces, two under way at a time, bring every byte to its place as they were posted,
        /// whether or not the buffer that they belong to was registered then.
        #[test]
        fn lists_are_done_as_they_were_posted(
            pieces in prop::collection::vec((0..3000_u64, 0..1000_u64, any::<bool>(), prop::bool::weighted(0.9)), 0..30),
            is_direct in any::<bool>(),
            list_bytes in 1..2000_usize,
        ) {
            let segment: Vec<u8> = (0..SEGMENT).map(|at| (at as u8).wrapping_mul(37) ^ (at >> 8) as u8).collect();
            let mut targets = Targets::new(pieces.clone());
            let (mut next, mut lists) = (Position::default(), std::collections::VecDeque::new());
            while next.piece < targets.count() || !lists.is_empty() {
                if next.piece < targets.count() && lists.len() < 2 {
                    let (mut staging, mut straight, mut room) = (Vec::new(), Vec::new(), list_bytes as u64);
                    let end = fill(next, &targets, is_direct, |offset, length, direct| {
                        let taken = length.min(room);
                        room -= taken;
                        let bytes = &segment[offset as usize..][..taken as usize];
                        match direct {
                            Some(place) => straight.push((place as usize, bytes)),
                            None => staging.extend_from_slice(bytes),
                        }
                        taken
                    });
                    prop_assert!(end != next);
                    // The device is done before anybody looks.
                    for (place, bytes) in straight {
                        targets.registered[place..place + bytes.len()].copy_from_slice(bytes);
                    }
                    lists.push_back((next, end, staging));
                    next = end;
                    continue;
                }
                let Some((start, end, staging)) = lists.pop_front() else { break };
                let mut copied = 0;
                place(start, end, &mut targets, is_direct, |at, target| {
                    target.copy_from_slice(&staging[at..at + target.len()]);
                    copied += target.len();
                });
                prop_assert_eq!(copied, staging.len());
            }
            for (index, (offset, length, _, is_here)) in pieces.into_iter().enumerate() {
                let bytes = targets.place(index, 0, length as usize);
                let wanted = if is_here { &segment[offset as usize..][..length as usize] } else { &[0xab; 1000][..length as usize] };
                prop_assert!(bytes == wanted, "piece {}", index);
            }
        }
    }
}
