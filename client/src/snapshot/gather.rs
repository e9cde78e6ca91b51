//! The copy loop of a snapshot read over shared memory. No system call, no allocation, no look-up.
//!
//! Rows are in no cache near the core, and a copy would wait for each; so of some rows the places are worked out and
//! prefetched, and then all of these are copied.

use super::ranges::Ranges;
use super::{Entry, Source};
use crate::mapping::Mapping;
use lanner_shared::prefetch::prefetch;

/// Rows that are prefetched before they are copied. At 5 cache lines a row that's more than any core's line-fill buffers
/// hold, and few enough to be still there when their turn comes. Measured with tables of 1.6 MB: 16 rows take 0.99 us a look-up,
/// 8 take 1.10, 24 take 1.00.
const ROWS_AT_ONCE: usize = 16;

/// Where a row lies, and where it goes.
#[derive(Clone, Copy)]
struct Row<'a> {
    /// `None` for one that can't be read from here.
    mapping: Option<&'a Mapping>,
    source: u64,
    length: u64,
    destination: u64,
}

impl Row<'_> {
    const NONE: Self = Row { mapping: None, source: 0, length: 0, destination: 0 };
}

/// Copies all `ranges` of objects that lie in `mapping` into `target`. All bounds were checked by [`super::ranges::check`], and
/// the entries' by [`super::Snapshot`] when it was made.
#[inline]
pub(super) fn gather<R: Ranges + ?Sized>(
    ranges: &R,
    entries: &[Entry],
    mapping: &Mapping,
    target: &mut [u8],
) {
    copy_all(ranges, entries, |_| Some(mapping), target);
}

/// The same where the objects lie in several segments. Those that can't be read from here are left out.
pub(super) fn gather_from_many<R: Ranges + ?Sized>(
    ranges: &R,
    entries: &[Entry],
    sources: &[Source],
    target: &mut [u8],
) {
    copy_all(ranges, entries, |entry| sources[usize::from(entry.source)].mapping.as_deref(), target);
}

/// Chooses the loop. Where all ranges have one of the lengths that rows of Engram tables have, the loop knows it: then a copy is
/// a straight line of loads and stores, and neither a length nor a choice by it is carried along.
#[inline]
fn copy_all<'a, R: Ranges + ?Sized>(
    ranges: &R,
    entries: &[Entry],
    mapping_of: impl Fn(&Entry) -> Option<&'a Mapping>,
    target: &mut [u8],
) {
    match ranges.common_length() {
        Some(64) => copy_each(ranges, entries, mapping_of, target, |_| 64),
        Some(128) => copy_each(ranges, entries, mapping_of, target, |_| 128),
        Some(256) => copy_each(ranges, entries, mapping_of, target, |_| 256),
        Some(264) => copy_each(ranges, entries, mapping_of, target, |_| 264),
        Some(512) => copy_each(ranges, entries, mapping_of, target, |_| 512),
        _ => copy_each(ranges, entries, mapping_of, target, |length| *length),
    }
}

#[inline(always)]
fn copy_each<'a, R: Ranges + ?Sized>(
    ranges: &R,
    entries: &[Entry],
    mapping_of: impl Fn(&Entry) -> Option<&'a Mapping>,
    target: &mut [u8],
    length_of: impl Fn(&u64) -> u64,
) {
    let mut rows: [Row<'_>; ROWS_AT_ONCE] = [const { Row::NONE }; ROWS_AT_ONCE];
    let mut waiting = 0;
    ranges.each(|range| {
        let entry = &entries[range.key as usize];
        let source = entry.value_offset + range.source_offset;
        let mapping = mapping_of(entry);
        if let Some(mapping) = mapping {
            prefetch(mapping.address(source), length_of(&range.length));
        }
        rows[waiting] = Row { mapping, source, length: range.length, destination: range.destination_offset };
        waiting += 1;
        if waiting == ROWS_AT_ONCE {
            copy(&rows, target, &length_of);
            waiting = 0;
        }
    });
    copy(&rows[..waiting], target, &length_of);
}

#[inline(always)]
fn copy(rows: &[Row<'_>], target: &mut [u8], length_of: impl Fn(&u64) -> u64) {
    for row in rows {
        let (start, length) = (row.destination as usize, length_of(&row.length) as usize);
        if let Some(mapping) = row.mapping {
            mapping.read(row.source, &mut target[start..start + length]);
        }
    }
}
