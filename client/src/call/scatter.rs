//! Where the payload of a ranged read goes: runs of the caller's buffer, in the order of the payload.

use crate::connection::Receiver;
use crate::snapshot::ranges::Range;
use lanner_shared::Result;
use lanner_shared::wire::body;
use lanner_shared::wire::header::Header;
use smallvec::SmallVec;

/// Stretches of the destination, in the order in which the payload fills them. Ranges that follow each other in the
/// destination too are one: rows of a look-up come in the order of its result, so all of them are.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    all: SmallVec<[Run; 1]>,
    /// The one that is being filled.
    at: usize,
    /// Bytes of it that have come.
    done: u64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    length: u64,
}

impl Runs {
    /// The payload goes on with this range.
    #[inline]
    pub fn push(&mut self, range: &Range) {
        match self.all.last_mut() {
            Some(last) if last.start + last.length == range.destination_offset => last.length += range.length,
            _ if range.length == 0 => {}
            _ => self.all.push(Run { start: range.destination_offset, length: range.length }),
        }
    }

    /// The payload comes from its beginning: a request that was sent again.
    fn rewind(&mut self) {
        (self.at, self.done) = (0, 0);
    }

    fn rest(&self) -> Option<std::ops::Range<usize>> {
        let run = self.all.get(self.at)?;
        Some((run.start + self.done) as usize..(run.start + run.length) as usize)
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        while let Some(run) = self.all.get(self.at).filter(|run| self.done >= run.length) {
            self.done -= run.length;
            self.at += 1;
        }
    }
}

/// Puts a payload to its places.
pub(crate) struct Scatter<'a> {
    pub runs: &'a mut Runs,
    pub target: &'a mut [u8],
}

impl Receiver for Scatter<'_> {
    fn reply(&mut self, _header: &Header, body: &[u8]) -> Result<()> {
        self.runs.rewind();
        body::BodyReader::new(body).end()
    }

    #[inline]
    fn destination(&mut self) -> &mut [u8] {
        let rest = self.runs.rest().and_then(|rest| self.target.get_mut(rest));
        rest.unwrap_or_default()
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.runs.advance(bytes as u64);
    }

    #[inline]
    fn payload_start(&mut self) -> &mut [u8] {
        self.runs.rewind();
        self.destination()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Shows that a payload that comes in pieces of any size ends where its ranges say, neighbours or not, empty or
        /// not; and again after it was begun anew.
        #[test]
        fn every_byte_comes_to_its_place(
            gaps in prop::collection::vec((0_u64..3, 0_u64..6), 0..12),
            pieces in prop::collection::vec(1_usize..9, 1..40),
        ) {
            let (mut runs, mut at, mut payload, mut expected) = (Runs::default(), 0, Vec::new(), vec![0; 200]);
            for (gap, length) in gaps {
                let start = at + gap;
                at = start + length;
                runs.push(&Range { key: 0, source_offset: 0, length, destination_offset: start });
                for place in start..at {
                    payload.push(place as u8 + 1);
                    expected[place as usize] = place as u8 + 1;
                }
            }
            for _ in 0..2 {
                let mut target = vec![0; 200];
                let mut scatter = Scatter { runs: &mut runs, target: &mut target };
                scatter.payload_start();
                let (mut rest, mut sizes) = (payload.as_slice(), pieces.iter().cycle());
                while !rest.is_empty() {
                    let room = scatter.destination();
                    let count = room.len().min(rest.len()).min(*sizes.next().unwrap());
                    prop_assert!(count > 0);
                    room[..count].copy_from_slice(&rest[..count]);
                    scatter.advance(count);
                    rest = &rest[count..];
                }
                prop_assert!(scatter.destination().is_empty());
                prop_assert_eq!(&target, &expected);
            }
        }
    }
}
