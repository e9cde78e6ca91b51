//! The copy loop of a snapshot read over shared memory. No system call, no allocation, no look-up.
//!
//! Rows of large tables are in no cache, and a copy waits for memory; so the rows to come are prefetched while one is copied.
//! For tables that fit the caches the prefetch costs more than it brings, and isn't done.

use super::ranges::{Range, Ranges};
use super::{Entry, Source};
use crate::mapping::Mapping;

/// Rows that are prefetched ahead of the one that's copied. With 5 cache lines a row this keeps some 40 lines under way, more
/// than the line-fill buffers of any core of today, and what was prefetched is used before it's displaced.
const AHEAD: usize = 8;
/// Of a longer range only the start is prefetched; the processor's own prefetcher follows a long copy by itself.
const PREFETCHED_BYTES: u64 = 512;
const LINE_BYTES: u64 = 64;

/// Copies all `ranges` of objects that lie in `mapping` into `target`. All bounds were checked by [`super::ranges::check`], and
/// the entries' by [`super::Snapshot`] when it was made.
#[inline]
pub(super) fn gather<R: Ranges + ?Sized>(
    ranges: &R,
    entries: &[Entry],
    mapping: &Mapping,
    target: &mut [u8],
    prefetches: bool,
) {
    copy_all(ranges, entries, |_| Some(mapping), target, prefetches);
}

/// The same where the objects lie in several segments. Those that can't be read from here are left out.
pub(super) fn gather_from_many<R: Ranges + ?Sized>(
    ranges: &R,
    entries: &[Entry],
    sources: &[Source],
    target: &mut [u8],
    prefetches: bool,
) {
    copy_all(
        ranges,
        entries,
        |entry| sources[usize::from(entry.source)].mapping.as_deref(),
        target,
        prefetches,
    );
}

#[inline]
fn copy_all<'a, R: Ranges + ?Sized>(
    ranges: &R,
    entries: &[Entry],
    mapping_of: impl Fn(&Entry) -> Option<&'a Mapping>,
    target: &mut [u8],
    prefetches: bool,
) {
    let locate = |range: &Range| {
        let entry = &entries[range.key as usize];
        mapping_of(entry).map(|mapping| (mapping, entry.value_offset + range.source_offset))
    };
    let copy = |range: Range, target: &mut [u8]| {
        if let Some((mapping, source)) = locate(&range) {
            let start = range.destination_offset as usize;
            mapping.read(source, &mut target[start..start + range.length as usize]);
        }
    };
    if !prefetches {
        // Not a `for` loop: a chain of iterators is quicker when it's driven from within.
        ranges.iter().for_each(|range| copy(range, target));
        return;
    }
    // Runs ahead of the copies, which is why there are two walks over the ranges.
    let mut ahead = ranges.iter();
    let mut prefetch_next = || {
        if let Some(range) = ahead.next()
            && let Some((mapping, source)) = locate(&range)
        {
            prefetch(mapping, source, range.length);
        }
    };
    (0..AHEAD).for_each(|_| prefetch_next());
    ranges.iter().for_each(|range| {
        prefetch_next();
        copy(range, target);
    });
}

#[inline]
fn prefetch(mapping: &Mapping, source: u64, length: u64) {
    let mut offset = source & !(LINE_BYTES - 1);
    while offset < source + length.min(PREFETCHED_BYTES) {
        prefetch_line(mapping.address(offset));
        offset += LINE_BYTES;
    }
}

#[inline(always)]
fn prefetch_line(address: *const u8) {
    // SAFETY: a prefetch of any address is a hint that can't fault.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
