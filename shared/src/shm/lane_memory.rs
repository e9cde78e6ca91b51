//! A mapped lane, as either side uses it: the layout of [`super::lane_page`] over memory that both sides map.
//!
//! What always holds: the mapping has exactly [`LANE_BYTES`], so that every ring and the staging buffer lie within it.

use super::lane_page::{
    LANE_BYTES, LanePage, REPLIES_OFFSET, REPLY_LINES, REQUEST_LINES, REQUESTS_OFFSET, STAGING_BYTES,
    STAGING_OFFSET, TOUCHES, TOUCHES_OFFSET,
};
use super::line_ring::{Line, Ring};
use super::touch_ring::{Place, TouchRing};
use crate::copy::copy_in;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// The memory of a lane, mapped into this process. Unmapped when dropped.
#[derive(Debug)]
pub struct LaneMemory {
    start: NonNull<u8>,
}

// SAFETY: the mapping belongs to this value alone within the process, and may be used from whichever thread owns it.
unsafe impl Send for LaneMemory {}

impl LaneMemory {
    /// Maps the file of a lane.
    ///
    /// # Errors
    /// What the system says, or that the file has another size: a shorter one would end this process with SIGBUS.
    pub fn map(file: BorrowedFd<'_>) -> io::Result<LaneMemory> {
        let actual = rustix::fs::fstat(file)?.st_size;
        if actual != LANE_BYTES as i64 {
            return Err(io::Error::other(format!("it has {actual} bytes, not {LANE_BYTES}")));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this process.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), LANE_BYTES, protection, MapFlags::SHARED, file, 0)
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(LaneMemory { start })
    }

    /// The control words.
    #[inline]
    #[must_use]
    pub fn page(&self) -> &LanePage {
        // SAFETY: the mapping is longer than the page, aligned to it, lives as long as `self`, and consists of atomics only.
        unsafe { self.start.cast::<LanePage>().as_ref() }
    }

    /// The ring from client to shard.
    #[inline]
    #[must_use]
    pub fn requests(&self) -> Ring<'_> {
        Ring { lines: self.lines(REQUESTS_OFFSET, REQUEST_LINES), consumed: &self.page().requests_consumed.0 }
    }

    /// The ring from shard to client.
    #[inline]
    #[must_use]
    pub fn replies(&self) -> Ring<'_> {
        Ring { lines: self.lines(REPLIES_OFFSET, REPLY_LINES), consumed: &self.page().replies_consumed.0 }
    }

    /// The touches from client to shard.
    #[inline]
    #[must_use]
    pub fn touches(&self) -> TouchRing<'_> {
        let page = self.page();
        // SAFETY: within the mapping (offset and count are the layout's constants), aligned, atomics only.
        let places = unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().add(TOUCHES_OFFSET).cast::<Place>(), TOUCHES)
        };
        TouchRing { places, written: &page.touches_written.0, taken: &page.touches_taken.0 }
    }

    #[inline]
    fn lines(&self, offset: usize, count: usize) -> &[Line] {
        debug_assert!(offset + count * size_of::<Line>() <= LANE_BYTES);
        // SAFETY: within the mapping (both offsets and counts are the layout's constants), aligned, atomics only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset).cast::<Line>(), count) }
    }

    /// Copies `bytes` to `at` of the staging buffer, before the client tells the shard of them. Panics if they reach beyond it.
    pub fn write_staging(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= STAGING_BYTES);
        // SAFETY: within the staging buffer (asserted), which only the client writes; the shard reads a byte only after
        // `staging_written` has passed it.
        unsafe {
            let target = self.start.as_ptr().add(STAGING_OFFSET + at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    /// Copies `count` bytes at `at` of the staging buffer to `target`. Panics if they reach beyond it.
    ///
    /// A client that breaks the rules may change them meanwhile, so the caller must not take them for anything but bytes.
    ///
    /// # Safety
    /// `count` bytes can be written at `target`, and nobody else uses them during the call.
    pub unsafe fn read_staging(&self, at: usize, target: *mut u8, count: usize) {
        assert!(at + count <= STAGING_BYTES);
        // SAFETY: the source lies within the staging buffer (asserted), the target is the caller's promise.
        unsafe {
            copy_in(self.start.as_ptr().add(STAGING_OFFSET + at), target, count);
        }
    }
}

impl Drop for LaneMemory {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length, and nobody can refer to it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), LANE_BYTES) };
    }
}
