//! A shared mapping as a server's segment is one, filled with bytes that say where they stand, so that any copy out of it can be checked.

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::slice;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::bench::progress::Progress;
use crate::check::needs::HUGE_PAGE;
use crate::exit::Failure;

/// What a segment's mapping is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Ordinary pages of 4 KiB.
    Small,
    /// Huge pages of 2 MiB, which the administrator has to reserve.
    Huge,
}

impl Pages {
    /// As it stands in reports.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Pages::Small => "4KiB",
            Pages::Huge => "2MiB",
        }
    }
}

/// A filled mapping; unmapped when dropped.
#[derive(Debug)]
pub struct Segment {
    start: NonNull<u8>,
    length: usize,
    pages: Pages,
}

impl Segment {
    /// Maps `bytes`, rounded up to whole huge pages, and fills them: a GB takes about a second.
    ///
    /// # Errors
    /// Memory or huge pages that this machine doesn't have.
    pub fn new(bytes: u64, pages: Pages) -> Result<Segment, Failure> {
        let refused = |errno: Errno| {
            let size = bytesize::ByteSize(bytes).display().iec();
            Failure::Machine(format!(
                "{size} on {} pages can't be had: {errno}; `lanner check` says how",
                pages.label()
            ))
        };
        let length =
            usize::try_from(bytes.max(1).next_multiple_of(HUGE_PAGE)).map_err(|_| refused(Errno::NOMEM))?;
        let mut segment = Segment::map(length, pages).map_err(refused)?;
        segment.fill();
        Ok(segment)
    }

    fn map(length: usize, pages: Pages) -> Result<Segment, Errno> {
        let flags = match pages {
            Pages::Small => MemfdFlags::CLOEXEC,
            Pages::Huge => MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        };
        let file: OwnedFd = memfd_create("lanner-bench", flags)?;
        ftruncate(&file, length as u64)?;
        // SAFETY: the kernel chooses the place, so no memory in use is replaced.
        let start = unsafe {
            mmap(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        }?;
        // The mapping outlives the descriptor, and nobody else has one: what is in it changes only through this value.
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Segment { start, length, pages })
    }

    /// Writes each aligned word as [`word_at`] says.
    fn fill(&mut self) {
        const STEP: usize = 64 << 20;
        let progress = Progress::new(format!("filling {} pages", self.pages.label()), self.length as u64);
        let bytes = self.bytes_mut();
        for (step, part) in bytes.chunks_mut(STEP).enumerate() {
            for (index, word) in part.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *word = word_at(step * STEP + index * 8);
            }
            progress.set(((step + 1) * STEP) as u64);
        }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has `length` bytes, which were all written before and change only through `bytes_mut`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The bytes, to be written over.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `length` bytes, which were all written before, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// What it is made of.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; every borrow of the bytes has ended. It can't fail with these arguments.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// The word at an offset that is a multiple of 8: different for each, and no offset's bytes look like another's.
fn word_at(offset: usize) -> [u8; 8] {
    (offset as u64 ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// True if `copy` holds what a segment has from `offset` on. The offset is a multiple of 8.
#[must_use]
pub fn is_copy_of(copy: &[u8], offset: usize) -> bool {
    copy.chunks(8).enumerate().all(|(index, part)| *part == word_at(offset + index * 8)[..part.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a copy is recognised at its own offset and at no other, and that one wrong byte is noticed.
    #[test]
    fn a_copy_is_told_from_every_other() {
        let segment = Segment::new(1, Pages::Small).expect("2 MiB");
        assert_eq!(segment.bytes().len() as u64, HUGE_PAGE);
        let mut copy = segment.bytes()[264 * 7..264 * 8].to_vec();
        assert!(is_copy_of(&copy, 264 * 7));
        assert!(!is_copy_of(&copy, 264 * 8));
        copy[200] ^= 1;
        assert!(!is_copy_of(&copy, 264 * 7));
    }
}
