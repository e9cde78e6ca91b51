//! A call's one-sided reads from one shard: pieces cut into lists, posted as room allows, and copied to their places once read.
//!
//! Nothing of the caller's is written but inside [`Reader::poll`], and only once a list has been read whole; except that pieces whose place is
//! registered memory go straight there. Then the call doesn't return before the list is done or its queue pair was destroyed.

use super::Broken;
use super::rdma::link::{ListId, RdmaLink, ReaderId, Whereabouts};
use super::rdma::registration::Region;
use lanner_shared::time::{Clock, Instant};
use smallvec::SmallVec;
use std::task::Poll;

/// What is to be read, and where it goes.
pub(crate) trait Pieces {
    /// How many there are.
    fn count(&self) -> usize;

    /// First byte in the segment, and number of bytes; `None` for one that isn't read here.
    fn piece(&self, index: usize) -> Option<(u64, u64)>;

    /// Where `length` bytes of the piece from its byte `from` on belong.
    fn place(&mut self, index: usize, from: u64, length: usize) -> &mut [u8];

    /// Where the piece's first byte belongs in the region that the call reads to, from its start; `None` for a piece that belongs elsewhere,
    /// and where there is no such region.
    fn direct_offset(&self, _index: usize) -> Option<u64> {
        None
    }
}

/// How far a call's reads have come. Kept by the call.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Its name on the link.
    id: Option<ReaderId>,
    /// What comes next into a list.
    posted: Position,
    /// What comes next out of one.
    copied: Position,
    /// Posted and not copied yet, in order.
    lists: SmallVec<[(ListId, Position); 2]>,
    /// Not all was read, because the lease had ended.
    is_late: bool,
}

/// A place among the pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    piece: usize,
    /// Bytes of it.
    from: u64,
}

impl Reader {
    /// Its name on `link`, by which it's given up if its call is.
    #[inline]
    pub fn id(&mut self, link: &mut RdmaLink) -> ReaderId {
        *self.id.get_or_insert_with(|| link.new_reader())
    }

    /// Copies what has been read, and posts what there is room for. Ready once all is in its place, or once nothing is under way any more behind
    /// `deadline`, where the lease ends: then nothing more is posted, for what it brought wouldn't count. `direct` is the region that
    /// [`Pieces::direct_offset`] means.
    #[inline]
    pub fn poll(
        &mut self,
        link: &mut RdmaLink,
        pieces: &mut impl Pieces,
        direct: Option<&Region>,
        deadline: Instant,
    ) -> Result<Poll<()>, Broken> {
        link.poll()?;
        while let Some((list, end)) = self.lists.first().copied() {
            match link.whereabouts(list) {
                Whereabouts::UnderWay => break,
                Whereabouts::Read => {
                    self.copy(link, pieces, list, end);
                    link.give_back(list);
                }
                Whereabouts::Forgotten => self.is_late = true,
            }
            self.lists.remove(0);
        }
        while self.posted.piece < pieces.count() {
            if self.is_late || Clock.now() >= deadline {
                self.is_late = true;
                break;
            }
            let id = self.id(link);
            let Some(mut list) = link.begin_list(id, direct, deadline) else {
                // Other calls' lists have what room there is, and will be done.
                return Ok(Poll::Pending);
            };
            let end = fill(self.posted, pieces, |offset, length, place| list.push(offset, length, place));
            let is_stuck = end == self.posted;
            self.posted = end;
            match list.post()? {
                Some(posted) => self.lists.push((posted, end)),
                // Nothing but pieces of no bytes, or of other shards.
                None if is_stuck => return Err(Broken::Closed),
                None => self.copied = end,
            }
        }
        Ok(if self.lists.is_empty() { Poll::Ready(()) } else { Poll::Pending })
    }

    /// Whether not all was read, because the lease had ended.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// Copies a list that has been read to its places.
    #[inline]
    fn copy(&mut self, link: &RdmaLink, pieces: &mut impl Pieces, list: ListId, end: Position) {
        let mut at = 0;
        while self.copied != end {
            let Position { piece, from } = self.copied;
            let Some((_, length)) = pieces.piece(piece) else {
                self.copied = Position { piece: piece + 1, from: 0 };
                continue;
            };
            let is_cut = piece == end.piece;
            if pieces.direct_offset(piece).is_some() {
                self.copied = if is_cut { end } else { Position { piece: piece + 1, from: 0 } };
                continue;
            }
            let count = if is_cut { end.from - from } else { length - from } as usize;
            link.copy_out(list, at, pieces.place(piece, from, count));
            at += count;
            self.copied = if is_cut { end } else { Position { piece: piece + 1, from: 0 } };
        }
    }
}

/// Hands pieces from `start` on to `push` until it takes less than all of one. Where the next list begins.
#[inline]
fn fill(
    start: Position,
    pieces: &impl Pieces,
    mut push: impl FnMut(u64, u64, Option<u64>) -> u64,
) -> Position {
    let mut position = start;
    while position.piece < pieces.count() {
        if let Some((offset, length)) = pieces.piece(position.piece)
            && length > position.from
        {
            let missing = length - position.from;
            let place = pieces.direct_offset(position.piece).map(|place| place + position.from);
            let taken = push(offset + position.from, missing, place);
            if taken < missing {
                return Position { from: position.from + taken, ..position };
            }
        }
        position = Position { piece: position.piece + 1, from: 0 };
    }
    position
}
