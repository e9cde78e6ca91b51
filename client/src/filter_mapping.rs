//! A client's read-only mapping of a shard's key filter.
//!
//! Made with the mapping of the shard's segment and kept by it. The shard writes the words while they are read here; how that goes
//! together is said in `lanner_shared::filter`.

use lanner_shared::filter::{FILTER_FORMAT, FILTER_MAGIC, Filter, FilterIdentity, PLACES_OFFSET};
use lanner_shared::{Error, Result};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use zerocopy::FromBytes;

/// A mapped filter. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct FilterMapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: plain memory that stays mapped as long as the value lives; it's never written, and read as atomics only.
unsafe impl Send for FilterMapping {}
// SAFETY: as above; shared readers only read.
unsafe impl Sync for FilterMapping {}

impl FilterMapping {
    /// Maps `length` bytes of a filter's file and checks that it is one, of the server's life `boot_id`.
    pub fn new(file: BorrowedFd<'_>, length: u64, boot_id: [u8; 16]) -> Result<FilterMapping> {
        let failed = |reason: &dyn std::fmt::Display| Error::System {
            what: format!("mapping a key filter of {length} bytes").into(),
            reason: reason.to_string().into(),
        };
        let bytes = usize::try_from(length).map_err(|error| failed(&error))?;
        // A file shorter than announced would end this process with SIGBUS at the first look beyond its end.
        let actual = rustix::fs::fstat(file).map_err(|error| failed(&error))?.st_size as u64;
        if length < PLACES_OFFSET || actual < length {
            return Err(failed(&format_args!("it has {actual} bytes")));
        }
        let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this process.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) }
            .map_err(|error| failed(&error))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| failed(&"mapped at address zero"))?;
        let mapping = FilterMapping { start, length: bytes };
        // SAFETY: the mapping is longer (checked), and the server writes this line before it hands the file out, and never again.
        let identity = unsafe { std::slice::from_raw_parts(start.as_ptr(), size_of::<FilterIdentity>()) };
        let identity =
            FilterIdentity::read_from_bytes(identity).map_err(|_| failed(&"it has no identity"))?;
        if identity.magic != FILTER_MAGIC || identity.format.get() != FILTER_FORMAT {
            return Err(failed(&"its first line is not that of a filter of this version"));
        }
        if identity.boot_id != boot_id {
            return Err(failed(&"it belongs to another life of the server"));
        }
        Ok(mapping)
    }

    /// The filter, as it is from moment to moment.
    #[inline]
    pub fn filter(&self) -> Filter<'_> {
        let words = (self.length - PLACES_OFFSET as usize) / size_of::<AtomicU64>();
        // SAFETY: within the mapping, whose length was checked when it was made; aligned, as a mapping starts at a page; the words
        // live as long as `self` and are written by the server atomically.
        let words = unsafe {
            std::slice::from_raw_parts(
                self.start.as_ptr().add(PLACES_OFFSET as usize).cast::<AtomicU64>(),
                words,
            )
        };
        Filter::new(words)
    }
}

impl Drop for FilterMapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length, and nobody can refer to it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
