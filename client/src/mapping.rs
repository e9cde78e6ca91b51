//! A client's read-only mapping of a segment.
//!
//! Made once for each shard and life of a server and shared by all threads and snapshots of the client; unmapped when the
//! last of them is gone. What lies in it may change at any time: a reader's lease is what makes its bytes stand still.

use crate::filter_mapping::FilterMapping;
use crate::watcher::ServerLife;
use lanner_shared::copy::copy_out;
use lanner_shared::filter::Filter;
use lanner_shared::shm::segment_page::{
    PARKED_OFFSET, SEGMENT_FORMAT, SEGMENT_MAGIC, SegmentIdentity, epoch_offset,
};
use lanner_shared::{Error, Result};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::FromBytes;

/// Pages are brought in by this many bytes at a time, see [`Mapping::populate`].
const GRANULE_BYTES: u64 = 2 << 20;

/// A mapped segment.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
    boot_id: [u8; 16],
    life: Arc<ServerLife>,
    /// The key filter of the same shard, if it was handed over too.
    filter: Option<FilterMapping>,
    /// A bit for each granule whose page-table entries were made.
    populated: Box<[AtomicU64]>,
}

// SAFETY: the mapping is plain memory that stays mapped as long as `Mapping` lives; it's never written through `start`, and
// everything else in the struct is Send and Sync by itself.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared readers only read.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of a segment and checks that it is one. System calls; not for the data path.
    pub fn new(segment: BorrowedFd<'_>, length: u64, life: Arc<ServerLife>) -> Result<Mapping> {
        let failed = |reason: &dyn std::fmt::Display| Error::System {
            what: format!("mapping a segment of {length} bytes").into(),
            reason: reason.to_string().into(),
        };
        let length = usize::try_from(length).map_err(|error| failed(&error))?;
        if length < size_of::<SegmentIdentity>() {
            return Err(failed(&"it is too short"));
        }
        // A segment shorter than announced would end this process with SIGBUS at the first read beyond its end.
        let actual = rustix::fs::fstat(segment).map_err(|error| failed(&error))?.st_size;
        if (actual as u64) < length as u64 {
            return Err(failed(&format_args!("it has {actual} bytes only")));
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this process.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::SHARED,
                segment,
                0,
            )
        }
        .map_err(|error| failed(&error))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| failed(&"mapped at address zero"))?;
        let granules = (length as u64).div_ceil(GRANULE_BYTES).div_ceil(64) as usize;
        let mut mapping = Mapping {
            start,
            length,
            boot_id: [0; 16],
            life,
            filter: None,
            populated: (0..granules).map(|_| AtomicU64::new(0)).collect(),
        };
        let mut identity = [0; size_of::<SegmentIdentity>()];
        mapping.read(0, &mut identity);
        let identity =
            SegmentIdentity::read_from_bytes(&identity).map_err(|_| failed(&"it has no identity"))?;
        if identity.magic != SEGMENT_MAGIC || identity.format.get() != SEGMENT_FORMAT {
            return Err(failed(&"its first page is not that of a segment of this version"));
        }
        mapping.boot_id = identity.boot_id;
        Ok(mapping)
    }

    /// The same with the shard's key filter.
    pub fn with_filter(mut self, filter: FilterMapping) -> Mapping {
        self.filter = Some(filter);
        self
    }

    /// The shard's key filter, as it is from moment to moment.
    #[inline]
    pub fn filter(&self) -> Option<Filter<'_>> {
        self.filter.as_ref().map(FilterMapping::filter)
    }

    /// The boot id of the server whose segment this is.
    pub fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }

    /// Whether the server that granted leases on this memory has gone.
    #[inline]
    pub fn is_server_gone(&self) -> bool {
        self.life.is_over()
    }

    /// Copies the bytes from `offset` on into `target`. Panics if they reach beyond the mapping: callers have checked it.
    #[inline(always)]
    pub fn read(&self, offset: u64, target: &mut [u8]) {
        assert!(self.contains(offset, target.len() as u64));
        // SAFETY: the source lies in the mapping (asserted), the target is the caller's. The server may write the source
        // while it's copied only if the reader's lease has ended; such a copy may be torn, is never looked at as anything
        // but bytes, and is thrown away by the caller's check of the lease afterwards.
        unsafe { copy(self.start.as_ptr().add(offset as usize), target) }
    }

    /// Bytes of the segment.
    #[inline]
    pub fn length(&self) -> u64 {
        self.length as u64
    }

    /// Whether `length` bytes from `offset` on lie in the mapping.
    #[inline]
    pub fn contains(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length as u64)
    }

    /// The address of `offset`, for a gather that has checked its bounds with [`Mapping::contains`].
    #[inline]
    pub fn address(&self, offset: u64) -> *const u8 {
        self.start.as_ptr().wrapping_add(offset as usize)
    }

    /// The epoch word `epoch_slot`, as it is now.
    #[inline]
    pub fn epoch(&self, epoch_slot: u16) -> u32 {
        self.word(epoch_offset(epoch_slot)).load(Ordering::Acquire)
    }

    /// The word that says whether the shard sleeps.
    #[inline]
    pub fn parked(&self) -> &AtomicU32 {
        self.word(PARKED_OFFSET)
    }

    #[inline]
    fn word(&self, offset: u64) -> &AtomicU32 {
        assert!(self.contains(offset, 4) && offset.is_multiple_of(4));
        // SAFETY: in bounds and aligned (asserted; a mapping starts at a page), and the server writes it atomically.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset as usize).cast::<u32>()) }
    }

    /// Makes the page-table entries for these bytes, so that the first read of each page is as quick as the second.
    /// Costs a system call for each 2 MiB that no caller has asked for yet.
    pub fn populate(&self, offset: u64, length: u64) {
        if length == 0 || !self.contains(offset, length) {
            return;
        }
        for granule in offset / GRANULE_BYTES..=(offset + length - 1) / GRANULE_BYTES {
            let Some(word) = self.populated.get((granule / 64) as usize) else { return };
            let bit = 1_u64 << (granule % 64);
            // Written only where something changes: all threads look here.
            if word.load(Ordering::Relaxed) & bit != 0 || word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
                continue;
            }
            let start = granule * GRANULE_BYTES;
            let bytes = GRANULE_BYTES.min(self.length as u64 - start) as usize;
            // SAFETY: the range lies in the mapping, and MADV_POPULATE_READ changes no contents. Older kernels refuse it,
            // which costs speed only, so the result is of no interest.
            let _ = unsafe {
                libc::madvise(self.start.as_ptr().add(start as usize).cast(), bytes, libc::MADV_POPULATE_READ)
            };
        }
    }
}

/// Copies as many bytes as `target` has. Lengths that rows of Engram tables have are copied in place, by code that knows the
/// length: for these a call of `memcpy`, with its choice of a way, takes as long as the copy.
///
/// # Safety
/// As many bytes can be read at `source`, and none of them is in `target`.
#[inline(always)]
unsafe fn copy(source: *const u8, target: &mut [u8]) {
    // SAFETY: the caller's promise, for each of them.
    unsafe {
        match target.len() {
            64 => copy_fixed::<64>(source, target),
            128 => copy_fixed::<128>(source, target),
            256 => copy_fixed::<256>(source, target),
            264 => copy_fixed::<264>(source, target),
            512 => copy_fixed::<512>(source, target),
            length => copy_out(source, target.as_mut_ptr(), length),
        }
    }
}

/// # Safety
/// As for [`copy`]. `target` has `N` bytes.
#[inline(always)]
unsafe fn copy_fixed<const N: usize>(source: *const u8, target: &mut [u8]) {
    // SAFETY: the caller's promise; arrays of bytes have no alignment.
    let (from, to) = unsafe { (&*source.cast::<[u8; N]>(), &mut *target.as_mut_ptr().cast::<[u8; N]>()) };
    let (from_pieces, from_rest) = from.as_chunks::<16>();
    let (to_pieces, to_rest) = to.as_chunks_mut::<16>();
    for (to, from) in to_pieces.iter_mut().zip(from_pieces) {
        *to = *from;
    }
    to_rest.copy_from_slice(from_rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_whole_and_no_byte_beyond() {
        let source: Vec<u8> = (0..600).map(|at| (at % 251) as u8).collect();
        for length in 0..600 {
            let mut target = vec![0xff; 602];
            // SAFETY: the source has as many bytes, in a buffer of its own.
            unsafe { copy(source.as_ptr(), &mut target[1..=length]) };
            assert_eq!(target[1..=length], source[..length]);
            assert_eq!((target[0], target[length + 1]), (0xff, 0xff), "{length}");
        }
    }
}
