//! From pieces of remote memory to READ work requests: as few as their neighbourhood allows, none longer or more scattered than the
//! device takes.
//!
//! ```text
//! remote   ┌──a──┬──b──┐      ┌──c──┐         a and b touch there:
//! local    ┌──a──┬──b──┐┌──c──┐               … and here: one READ with one segment
//! local    ┌──b──┐┌──c──┐┌──a──┐              … but not here: one READ with two segments
//! ```
//!
//! Only a piece that goes on where the one before it ended is merged: sorting would cost more than it saves, and rows of tables that
//! lie side by side come in that order. How many READs are under way on the wire at a time is the device's own affair
//! (`max_rd_atomic`, set with the queue pair); how many are posted is bounded by [`Limits::reads`].

/// What a list must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Work requests that there is room for in the queue.
    pub reads: usize,
    /// Local segments of a work request.
    pub segments_per_read: usize,
    /// Bytes of a work request.
    pub bytes_per_read: u64,
}

/// Bytes to read, and where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte, from the start of the remote region.
    pub remote_offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Which of the local regions it goes to.
    pub local_region: u8,
    /// First byte, from the start of the local region.
    pub local_offset: u64,
}

impl Piece {
    /// What is left of it behind its first `done` bytes, of which it has as many.
    #[inline]
    fn behind(self, done: u64) -> Piece {
        Piece {
            remote_offset: self.remote_offset + done,
            length: self.length - done,
            local_offset: self.local_offset + done,
            ..self
        }
    }
}

/// A READ work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// First byte, from the start of the remote region.
    pub remote_offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Its first segment, and how many there are.
    pub segments: (usize, usize),
}

/// Where a part of a READ goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which of the local regions.
    pub local_region: u8,
    /// First byte, from the start of the local region.
    pub local_offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// A list of READs in the making. Kept and used again: after warm-up it allocates nothing.
#[derive(Debug, Default)]
pub struct Plan {
    reads: Vec<Read>,
    segments: Vec<Segment>,
}

impl Plan {
    /// Empties the list.
    pub fn clear(&mut self) {
        self.reads.clear();
        self.segments.clear();
    }

    /// The work requests, in the order of their pieces.
    #[must_use]
    pub fn reads(&self) -> &[Read] {
        &self.reads
    }

    /// The segments of a work request.
    #[must_use]
    pub fn segments_of(&self, read: &Read) -> &[Segment] {
        let (first, count) = read.segments;
        &self.segments[first..first + count]
    }

    /// Adds a piece, as much of it as fits, and returns how many bytes that was: fewer than it has means that the list is full.
    #[inline]
    pub fn push(&mut self, piece: Piece, limits: &Limits) -> u64 {
        let mut done = 0;
        while done < piece.length {
            let rest = piece.behind(done);
            let taken = self.extend(rest, limits).or_else(|| self.begin(rest, limits));
            match taken {
                Some(bytes) => done += bytes,
                None => break,
            }
        }
        done
    }

    /// Adds the piece's beginning to the last work request, if it goes on there.
    fn extend(&mut self, piece: Piece, limits: &Limits) -> Option<u64> {
        let last = self.reads.last_mut()?;
        let room = limits.bytes_per_read.saturating_sub(last.length);
        if last.remote_offset + last.length != piece.remote_offset || room == 0 {
            return None;
        }
        let length = piece.length.min(room);
        let segment = self.segments.last_mut()?;
        let is_next = segment.local_region == piece.local_region;
        if is_next && segment.local_offset + segment.length == piece.local_offset {
            segment.length += length;
        } else if last.segments.1 < limits.segments_per_read {
            last.segments.1 += 1;
            self.segments.push(segment_of(&piece, length));
        } else {
            return None;
        }
        last.length += length;
        Some(length)
    }

    fn begin(&mut self, piece: Piece, limits: &Limits) -> Option<u64> {
        if self.reads.len() >= limits.reads || limits.bytes_per_read == 0 || limits.segments_per_read == 0 {
            return None;
        }
        let length = piece.length.min(limits.bytes_per_read);
        let segments = (self.segments.len(), 1);
        self.segments.push(segment_of(&piece, length));
        self.reads.push(Read { remote_offset: piece.remote_offset, length, segments });
        Some(length)
    }
}

fn segment_of(piece: &Piece, length: u64) -> Segment {
    Segment { local_region: piece.local_region, local_offset: piece.local_offset, length }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { reads: 8, segments_per_read: 2, bytes_per_read: 1000 };

    fn planned(pieces: &[(u64, u64, u64)], limits: Limits) -> String {
        let mut plan = Plan::default();
        for (remote_offset, length, local_offset) in pieces {
            let (remote_offset, length, local_offset) = (*remote_offset, *length, *local_offset);
            let piece = Piece { remote_offset, length, local_region: 0, local_offset };
            plan.push(piece, &limits);
        }
        let read = |read: &Read| {
            let parts: Vec<String> = plan
                .segments_of(read)
                .iter()
                .map(|part| format!("{}+{}", part.local_offset, part.length))
                .collect();
            format!("{}+{} to {}", read.remote_offset, read.length, parts.join(" "))
        };
        plan.reads().iter().map(read).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn neighbours_are_one_read() {
        assert_eq!(planned(&[(0, 10, 0), (10, 5, 10), (20, 5, 15)], LIMITS), "0+15 to 0+15; 20+5 to 15+5");
        assert_eq!(planned(&[(0, 10, 50), (10, 5, 0)], LIMITS), "0+15 to 50+10 0+5");
        assert_eq!(planned(&[(0, 1, 50), (1, 1, 0), (2, 1, 9)], LIMITS), "0+2 to 50+1 0+1; 2+1 to 9+1");
        assert_eq!(planned(&[(5, 0, 0)], LIMITS), "");
    }

    #[test]
    fn neighbours_that_go_to_two_regions_are_one_read_with_two_segments() {
        let mut plan = Plan::default();
        let first = Piece { remote_offset: 0, length: 10, local_region: 0, local_offset: 0 };
        plan.push(first, &LIMITS);
        plan.push(Piece { remote_offset: 10, local_region: 1, local_offset: 10, ..first }, &LIMITS);
        let [read] = plan.reads() else { panic!("{:?}", plan.reads()) };
        let regions: Vec<u8> = plan.segments_of(read).iter().map(|part| part.local_region).collect();
        assert_eq!((read.length, regions), (20, vec![0, 1]));
    }

    #[test]
    fn limits_cut() {
        assert_eq!(
            planned(&[(0, 2500, 0)], LIMITS),
            "0+1000 to 0+1000; 1000+1000 to 1000+1000; 2000+500 to 2000+500"
        );
        assert_eq!(planned(&[(0, 2500, 0)], Limits { reads: 1, ..LIMITS }), "0+1000 to 0+1000");
        assert_eq!(planned(&[(0, 1, 0)], Limits { reads: 0, ..LIMITS }), "");
    }

    proptest! {
        /// Shows, with lists that are emptied whenever they are full, that every byte of every piece is read exactly once and to its place,
        /// and that no list breaks a limit.
        #[test]
        fn every_byte_is_read_exactly_once(
            pieces in prop::collection::vec((0_u64..300, 0_u64..60, 0_u64..4), 0..40),
            limits in (1_usize..6, 1_usize..4, 1_u64..80),
        ) {
            let limits = Limits { reads: limits.0, segments_per_read: limits.1, bytes_per_read: limits.2 };
            // Where each local byte is to come from; gaps between the pieces stay untouched.
            let (mut wanted, mut placed, mut end) = (Vec::new(), Vec::new(), 0);
            for (remote_offset, length, gap) in &pieces {
                wanted.resize((end + gap) as usize, None);
                let local_offset = end + gap;
                wanted.extend((0..*length).map(|at| Some(remote_offset + at)));
                let (remote_offset, length) = (*remote_offset, *length);
                placed.push(Piece { remote_offset, length, local_region: 0, local_offset });
                end = local_offset + length;
            }
            let mut read_from: Vec<Option<u64>> = vec![None; wanted.len()];
            let mut plan = Plan::default();
            let mut execute = |plan: &mut Plan| {
                assert!(plan.reads().len() <= limits.reads);
                for read in plan.reads() {
                    assert!(read.length <= limits.bytes_per_read && read.segments.1 <= limits.segments_per_read);
                    let mut remote = read.remote_offset;
                    for segment in plan.segments_of(read) {
                        for at in segment.local_offset..segment.local_offset + segment.length {
                            assert_eq!(read_from[at as usize].replace(remote), None, "byte {at} is read twice");
                            remote += 1;
                        }
                    }
                    assert_eq!(remote, read.remote_offset + read.length);
                }
                plan.clear();
            };
            for piece in placed {
                let mut done = 0;
                while done < piece.length {
                    let taken = plan.push(piece.behind(done), &limits);
                    done += taken;
                    if done < piece.length {
                        prop_assert!(taken > 0 || !plan.reads().is_empty(), "an empty list takes something");
                        execute(&mut plan);
                    }
                }
            }
            execute(&mut plan);
            prop_assert_eq!(read_from, wanted);
        }
    }
}
