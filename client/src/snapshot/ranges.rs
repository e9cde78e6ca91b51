//! Ranges of a read, and whether they may be read at all: checked as a whole before the first byte is.

use lanner_shared::error::Bound;
use lanner_shared::{Error, Result};

/// Bytes of one object, and where they go in the caller's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Place of the object's key in the call, or in the snapshot's key set.
    pub key: u32,
    /// First byte of the value.
    pub source_offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// First byte in the destination buffer.
    pub destination_offset: u64,
}

/// Ranges in a list, or computed one by one.
pub(crate) trait Ranges {
    fn count(&self) -> usize;
    fn range(&self, index: usize) -> Range;
    /// All of them in order, as quickly as that goes.
    fn iter(&self) -> impl Iterator<Item = Range>;
    /// Calls `act` with each in order: for the copy loop, which has to become one straight piece. What is called from one place
    /// only does, whatever else the program has; an iterator that flattens calls from three.
    #[inline(always)]
    fn each(&self, act: impl FnMut(Range)) {
        self.iter().for_each(act);
    }
    /// Whether they are known to name all keys that there are, more or less.
    fn whole_key_set(&self) -> bool {
        false
    }
    /// The length that all of them have, where that's known without looking at each.
    fn common_length(&self) -> Option<u64> {
        None
    }
}

impl Ranges for [Range] {
    #[inline]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn range(&self, index: usize) -> Range {
        self[index]
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = Range> {
        <[Range]>::iter(self).copied()
    }
}

/// Checks that each range has a key below `keys`, stays within its value (`value_bytes` of its key, where known) and within a
/// destination of `destination_bytes`, and that no two write the same byte.
pub(crate) fn check<R: Ranges + ?Sized>(
    ranges: &R,
    keys: usize,
    destination_bytes: u64,
    value_bytes: impl Fn(u32) -> Option<u64>,
) -> Result<()> {
    let mut is_ascending = true;
    let mut last_end = 0;
    for (index, range) in ranges.iter().enumerate() {
        let beyond = |bound, end, length| Error::OutOfBounds { index: index as u64, bound, end, length };
        let no_key = || beyond(Bound::Keys, u64::from(range.key), keys as u64);
        let limit = value_bytes(range.key).ok_or_else(no_key)?;
        let source_end = range.source_offset.saturating_add(range.length);
        if source_end > limit {
            return Err(beyond(Bound::Value, source_end, limit));
        }
        let end = range.destination_offset.saturating_add(range.length);
        if end > destination_bytes {
            return Err(beyond(Bound::Buffer, end, destination_bytes));
        }
        is_ascending &= range.destination_offset >= last_end;
        last_end = end;
    }
    if is_ascending { Ok(()) } else { check_overlap(ranges) }
}

/// The slow way, for destinations that don't ascend: sort, then compare neighbours.
#[cold]
fn check_overlap<R: Ranges + ?Sized>(ranges: &R) -> Result<()> {
    let mut order: Vec<u32> =
        (0..ranges.count() as u32).filter(|i| ranges.range(*i as usize).length > 0).collect();
    order.sort_unstable_by_key(|i| ranges.range(*i as usize).destination_offset);
    for pair in order.windows(2) {
        let [first, second] = [pair[0], pair[1]];
        let earlier = ranges.range(first as usize);
        if earlier.destination_offset + earlier.length > ranges.range(second as usize).destination_offset {
            return Err(Error::Overlap { index: u64::from(first), other: u64::from(second) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(source_offset: u64, length: u64, destination_offset: u64) -> Range {
        Range { key: 0, source_offset, length, destination_offset }
    }

    fn checked(ranges: &[Range]) -> Result<()> {
        check(ranges, 1, 100, |key| (key == 0).then_some(50))
    }

    #[test]
    fn what_is_refused_names_the_range() {
        assert_eq!(checked(&[]), Ok(()));
        assert_eq!(checked(&[range(0, 50, 50), range(0, 50, 0)]), Ok(()));
        let no_such_key = Range { key: 9, ..range(0, 1, 0) };
        for (ranges, says) in [
            (vec![range(49, 1, 0), range(49, 2, 1)], "range 1 ends at byte 51 of a value of 50"),
            (vec![range(0, 2, 99)], "range 0 ends at byte 101 of a buffer of 100"),
            (vec![range(u64::MAX, 2, 0)], "range 0 ends at byte 18446744073709551615 of a value of 50"),
            (vec![range(0, 2, u64::MAX)], "range 0 ends at byte 18446744073709551615 of a buffer of 100"),
            (vec![no_such_key], "range 0 is of key 9, and keys are 0 to 0"),
        ] {
            let error = checked(&ranges).unwrap_err().to_string();
            assert_eq!(error, format!("{says}; nothing was read"));
        }
        let of_none = check(&[no_such_key][..], 0, 100, |_| None).unwrap_err().to_string();
        assert_eq!(of_none, "range 0 is of key 9, and there are no keys; nothing was read");
        assert_eq!(
            checked(&[range(0, 5, 10), range(0, 5, 0), range(0, 5, 4)]),
            Err(Error::Overlap { index: 1, other: 2 })
        );
        // No bytes overlap nothing, wherever they are.
        assert_eq!(checked(&[range(0, 5, 10), range(0, 0, 12)]), Ok(()));
    }

    proptest! {
        #[test]
        fn overlap_is_found_exactly_where_a_byte_is_written_twice(
            ranges in prop::collection::vec((0_u64..40, 0_u64..10), 0..8)
        ) {
            let ranges: Vec<Range> = ranges.into_iter().map(|(at, length)| range(0, length, at)).collect();
            let mut written = [0; 100];
            for range in &ranges {
                (range.destination_offset..range.destination_offset + range.length).for_each(|at| written[at as usize] += 1);
            }
            prop_assert_eq!(checked(&ranges).is_ok(), written.iter().all(|times| *times <= 1));
        }
    }
}
