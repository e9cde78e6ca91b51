//! Which bytes of which parts make up a slice. Arithmetic only.
//!
//! A part holds the tensor's indices `offset..offset+length` along the split axis, a slice `start..end` along its own; where
//! they meet is a box. In row-major order a box is a number of runs: the longest stretch of trailing dimensions that is
//! contiguous on both sides, once for each index of the dimensions before it.

use super::error::{TensorError, TensorResult};
use super::spec::TensorSpec;
use crate::snapshot::ranges::Range;

/// The most runs of a slice. Their ranges take 32 bytes each.
const MAX_RUNS: u64 = 1 << 24;

/// A slice of a tensor along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub axis: usize,
    pub start: u64,
    pub end: u64,
}

/// The parts that a slice needs, and the ranges of them, whose `key` is a place in `parts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub slice: Slice,
    pub parts: Vec<usize>,
    pub ranges: Vec<Range>,
    /// Bytes of the slice.
    pub bytes: u64,
}

/// The half-open interval of a box along one dimension.
type Interval = (u64, u64);

impl Layout {
    /// The layout of a slice that lies within the tensor. Sizes were found countable by [`TensorSpec::check`].
    pub fn of(spec: &TensorSpec, slice: Slice) -> TensorResult<Layout> {
        let mut target_shape = spec.shape.clone();
        target_shape[slice.axis] = slice.end - slice.start;
        let bytes = target_shape.iter().product::<u64>() * spec.dtype.bytes();
        let mut layout = Layout { slice, parts: Vec::new(), ranges: Vec::new(), bytes };
        let mut offset = 0;
        for (part, length) in spec.part_lengths.iter().enumerate() {
            let part_at = (offset, offset + length);
            offset += length;
            let mut meeting: Vec<Interval> = spec.shape.iter().map(|length| (0, *length)).collect();
            intersect(&mut meeting[spec.split_axis], part_at);
            intersect(&mut meeting[slice.axis], (slice.start, slice.end));
            if meeting.iter().any(|(low, high)| low >= high) {
                continue;
            }
            let mut source_shape = spec.shape.clone();
            source_shape[spec.split_axis] = *length;
            let source = Side { shape: &source_shape, axis: spec.split_axis, origin: part_at.0 };
            let target = Side { shape: &target_shape, axis: slice.axis, origin: slice.start };
            let key = layout.parts.len() as u32;
            layout.parts.push(part);
            let outer = first_of_run(&meeting, &source, &target);
            let runs = meeting[..outer].iter().map(|(low, high)| high - low).product::<u64>();
            let pieces = runs.saturating_add(layout.ranges.len() as u64);
            if pieces > MAX_RUNS {
                return Err(TensorError::TooManyPieces { name: spec.name.clone(), pieces, limit: MAX_RUNS });
            }
            push_runs(&mut layout.ranges, (key, outer), spec.dtype.bytes(), &meeting, &source, &target);
        }
        Ok(layout)
    }
}

fn intersect(interval: &mut Interval, other: Interval) {
    *interval = (interval.0.max(other.0), interval.1.min(other.1));
}

/// An array that holds the tensor's indices from `origin` on along `axis`, and all of them along the others.
struct Side<'a> {
    shape: &'a [u64],
    axis: usize,
    origin: u64,
}

impl Side<'_> {
    /// The place of the element at `index` of the tensor, in elements.
    fn place(&self, index: &[u64]) -> u64 {
        let local =
            |dimension: usize| index[dimension] - if dimension == self.axis { self.origin } else { 0 };
        (0..self.shape.len()).fold(0, |place, dimension| place * self.shape[dimension] + local(dimension))
    }

    fn is_whole(&self, dimension: usize, (low, high): Interval) -> bool {
        high - low == self.shape[dimension]
    }
}

/// The dimension that a run spans in part; it spans all behind it as a whole.
fn first_of_run(meeting: &[Interval], source: &Side<'_>, target: &Side<'_>) -> usize {
    let mut outer = meeting.len() - 1;
    while outer > 0 && source.is_whole(outer, meeting[outer]) && target.is_whole(outer, meeting[outer]) {
        outer -= 1;
    }
    outer
}

/// Adds the runs of object `key`, which span dimension `outer` in part.
fn push_runs(
    ranges: &mut Vec<Range>,
    (key, outer): (u32, usize),
    element: u64,
    meeting: &[Interval],
    source: &Side<'_>,
    target: &Side<'_>,
) {
    let length = meeting[outer..].iter().map(|(low, high)| high - low).product::<u64>() * element;
    let mut index: Vec<u64> = meeting.iter().map(|(low, _)| *low).collect();
    loop {
        ranges.push(Range {
            key,
            source_offset: source.place(&index) * element,
            length,
            destination_offset: target.place(&index) * element,
        });
        // The next index of the dimensions before the run, like a counter with a digit for each.
        let Some(digit) = (0..outer).rev().find(|digit| index[*digit] + 1 < meeting[*digit].1) else { break };
        index[digit] += 1;
        (digit + 1..outer).for_each(|lower| index[lower] = meeting[lower].0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use proptest::prelude::*;

    /// Cuts a tensor whose elements are numbered, reads a slice by its layout, and compares with the plain way.
    fn check(shape: &[u64], split_axis: usize, part_lengths: &[u64], slice: Slice) {
        let (name, dtype) = ("t".to_owned(), Dtype::Int32);
        let spec = TensorSpec {
            name,
            dtype,
            shape: shape.to_vec(),
            split_axis,
            part_lengths: part_lengths.to_vec(),
        };
        spec.check().unwrap();
        let all: Vec<Vec<u64>> = indices(shape);
        let number = |index: &Vec<u64>| all.iter().position(|other| other == index).unwrap() as u32;
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut offset = 0;
        for length in part_lengths {
            let of_part = all.iter().filter(|index| (offset..offset + length).contains(&index[split_axis]));
            parts.push(of_part.flat_map(|index| number(index).to_le_bytes()).collect());
            offset += length;
        }
        let in_slice = all.iter().filter(|index| (slice.start..slice.end).contains(&index[slice.axis]));
        let expected: Vec<u8> = in_slice.flat_map(|index| number(index).to_le_bytes()).collect();

        let layout = Layout::of(&spec, slice).unwrap();
        assert_eq!(layout.bytes as usize, expected.len());
        let mut got = vec![0xff; expected.len()];
        for range in &layout.ranges {
            let part = &parts[layout.parts[range.key as usize]];
            let (from, to, length) =
                (range.source_offset as usize, range.destination_offset as usize, range.length as usize);
            got[to..to + length].copy_from_slice(&part[from..from + length]);
        }
        assert_eq!(got, expected);
        assert_eq!(layout.ranges.iter().map(|range| range.length).sum::<u64>(), layout.bytes);
    }

    fn indices(shape: &[u64]) -> Vec<Vec<u64>> {
        shape.iter().fold(vec![vec![]], |all, length| {
            all.iter().flat_map(|index| (0..*length).map(|i| [index.as_slice(), &[i]].concat())).collect()
        })
    }

    #[test]
    fn a_whole_part_is_one_run() {
        let spec = TensorSpec::evenly("t", Dtype::Float16, &[8, 4, 2], 0, 2).unwrap();
        let layout = Layout::of(&spec, Slice { axis: 0, start: 0, end: 8 }).unwrap();
        assert_eq!((layout.parts, layout.ranges.len()), (vec![0, 1], 2));
        let second = Layout::of(&spec, Slice { axis: 0, start: 5, end: 7 }).unwrap();
        assert_eq!(second.parts, [1]);
        assert_eq!(second.ranges, [Range { key: 0, source_offset: 16, length: 32, destination_offset: 0 }]);
    }

    /// Nobody has memory for so many ranges; the process ended.
    #[test]
    fn a_slice_of_more_runs_than_can_be_listed_is_refused() {
        let spec = TensorSpec::evenly("t", Dtype::Int8, &[1 << 40, 2], 0, 3).unwrap();
        let refused = Layout::of(&spec, Slice { axis: 1, start: 0, end: 1 });
        assert!(
            matches!(refused, Err(TensorError::TooManyPieces { pieces: 366_503_875_926, .. })),
            "{refused:?}"
        );
        assert_eq!(Layout::of(&spec, Slice { axis: 1, start: 0, end: 2 }).unwrap().ranges.len(), 3);
    }

    proptest! {
        #[test]
        fn any_slice_of_any_cut_is_what_it_should_be(
            shape in prop::collection::vec(1_u64..5, 1..4),
            split in any::<prop::sample::Index>(),
            axis in any::<prop::sample::Index>(),
            bounds in (any::<u64>(), any::<u64>()),
            parts in 1_usize..4,
        ) {
            let (split, axis) = (split.index(shape.len()), axis.index(shape.len()));
            let parts = parts.min(shape[split] as usize);
            let lengths = TensorSpec::evenly("t", Dtype::Int32, &shape, split, parts).unwrap().part_lengths;
            let start = bounds.0 % shape[axis];
            let end = start + 1 + bounds.1 % (shape[axis] - start);
            check(&shape, split, &lengths, Slice { axis, start, end });
        }
    }
}
