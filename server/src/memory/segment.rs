//! A shard's bytes: the one place in the shard that touches raw memory.
//!
//! Called by the extent allocator, the shard and, for the address of a receive or a send, the transports. What always
//! holds: every access is checked against the segment's length before a byte moves; there is one owner, the shard; a
//! segment made from a memfd is sealed, so that whoever gets its descriptor can map it for reading only (promise P3).
//! Absent on purpose: any knowledge of what lies where.

use std::alloc::Layout;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use lanner_shared::prefetch::prefetch;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes of one huge page, where huge pages are asked for.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Bytes of one ordinary page. Only the fall-back of `prefault` depends on it: on a machine with larger pages it
/// touches each page several times, which is slower and not wrong.
const PAGE_BYTES: u64 = 4096;

/// How much one step of `prefault` asks for: long enough to amortise the call, short enough for a moving progress bar.
const PREFAULT_STEP_BYTES: u64 = 64 << 20;

/// What went wrong with a segment, and what mends it.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// An access past the end. The caller's offset and length were not checked where they came in.
    #[error("{len} bytes at offset {offset} reach past the segment's end at {segment_len}")]
    OutOfBounds {
        /// Offset asked for, in bytes.
        offset: u64,
        /// Length asked for, in bytes.
        len: u64,
        /// Length of the segment, in bytes.
        segment_len: u64,
    },
    /// A word access at an address that the hardware can't treat as one word.
    #[error("offset {offset} is no multiple of its word's size: what several cores see has to be aligned")]
    Misaligned {
        /// Offset asked for, in bytes.
        offset: u64,
    },
    /// A length of zero, or one that this build can't address.
    #[error(
        "a segment of {len} bytes can't be made: choose --memory between 1 MiB and 256 GiB for each shard"
    )]
    ImpossibleLength {
        /// Length asked for, in bytes.
        len: u64,
    },
    /// The machine (or the container) has not that much memory to give.
    #[error(
        "the segment needs {needed} bytes of memory and {available} are available: \
         choose a smaller --memory, or raise the container's memory limit"
    )]
    MemoryLacking {
        /// Bytes the segment needs.
        needed: u64,
        /// Bytes the system could give when asked.
        available: u64,
    },
    /// Huge pages were asked for and the administrator reserved too few. The caller may fall back to plain pages.
    #[error(
        "{pages} huge pages of 2 MiB are needed and can't be had ({source}): reserve them with \
         `sysctl -w vm.nr_hugepages={pages}`, or start with --huge-pages off"
    )]
    HugePagesLacking {
        /// Huge pages needed.
        pages: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The segment's pages could not be bound to the NUMA node asked for.
    #[error(
        "binding the segment to NUMA node {node} failed ({source}): name a node that `lscpu` lists, or none"
    )]
    NumaBind {
        /// The node asked for.
        node: u32,
        /// What the system said.
        source: io::Error,
    },
    /// A system call failed in a way that has no name of its own here.
    #[error("{call} for a segment of {len} bytes failed: {source}")]
    System {
        /// The call's name.
        call: &'static str,
        /// Length of the segment, in bytes.
        len: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// What a memfd segment should be like.
#[derive(Debug, Clone, Copy)]
pub struct SegmentOptions {
    /// Length in bytes; rounded up to whole huge pages where those are asked for.
    pub len: u64,
    /// Back the segment with huge pages of 2 MiB. Fails with [`SegmentError::HugePagesLacking`] where none are free.
    pub huge_pages: bool,
    /// Bind the pages to this NUMA node.
    pub numa_node: Option<u32>,
}

/// Where the bytes come from, and so how they are given back.
#[derive(Debug)]
enum Backing {
    /// A sealed memfd that can be handed to clients.
    Memfd(OwnedFd),
    /// The heap: for tests and the simulator, which make thousands of small segments.
    Heap(Layout),
}

/// The bytes of one shard. Owned by that shard; not `Sync`, so no second core can reach them through it.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    len: u64,
    backing: Backing,
}

// SAFETY: a `Segment` owns its memory, and nothing about the mapping or the allocation is bound to the thread that
// made it. It stays `!Sync`: two threads never use one at a time.
unsafe impl Send for Segment {}

impl Segment {
    /// Makes a segment from a memfd: maps it, binds it, and then seals it against any later writer but this mapping.
    /// Blocks for as long as the system takes; call it before the shard serves.
    ///
    /// # Errors
    /// Any [`SegmentError`] but the access errors. After [`SegmentError::HugePagesLacking`] the same call without huge
    /// pages can succeed.
    pub fn memfd(options: &SegmentOptions) -> Result<Self, SegmentError> {
        let len =
            if options.huge_pages { options.len.next_multiple_of(HUGE_PAGE_BYTES) } else { options.len };
        let mapped_len = addressable(len)?;
        if !options.huge_pages {
            refuse_more_than_available(len)?;
        }
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if options.huge_pages {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let fd = rustix::fs::memfd_create("lanner-segment", flags)
            .map_err(|errno| memfd_error("memfd_create", options, len, errno))?;
        rustix::fs::ftruncate(&fd, len).map_err(|errno| memfd_error("ftruncate", options, len, errno))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no memory of this process.
        let address = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), mapped_len, protection, MapFlags::SHARED, &fd, 0)
        }
        .map_err(|errno| memfd_error("mmap", options, len, errno))?;
        let base =
            NonNull::new(address.cast::<u8>()).ok_or_else(|| system_error("mmap", len, Errno::FAULT))?;
        // From here on dropping `segment` unmaps it, whatever fails next.
        let segment = Self { base, len, backing: Backing::Memfd(fd) };
        if let Some(node) = options.numa_node {
            segment.bind_to_node(node)?;
        }
        segment.seal()?;
        Ok(segment)
    }

    /// Makes a segment of zeroed heap memory: no descriptor, no seals. For tests and the simulator.
    ///
    /// # Errors
    /// [`SegmentError::ImpossibleLength`] or [`SegmentError::MemoryLacking`].
    pub fn heap(len: u64) -> Result<Self, SegmentError> {
        let layout = Layout::from_size_align(addressable(len)?, PAGE_BYTES as usize)
            .map_err(|_| SegmentError::ImpossibleLength { len })?;
        // SAFETY: the layout's size is not zero; `addressable` refused that.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(address).ok_or(SegmentError::MemoryLacking { needed: len, available: 0 })?;
        Ok(Self { base, len, backing: Backing::Heap(layout) })
    }

    /// Length in bytes; never changes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never true: a segment of no bytes can't be made.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memfd to hand to clients, or `None` for a heap segment.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Memfd(fd) => Some(fd.as_fd()),
            Backing::Heap(_) => None,
        }
    }

    /// Has the system give every page now, so that no request pays for a page fault. Calls `progress(done, total)`, in
    /// bytes, after each step. Blocks; call it before the shard serves.
    ///
    /// # Errors
    /// [`SegmentError::MemoryLacking`] where the memory went to someone else in the meantime, else
    /// [`SegmentError::System`].
    pub fn prefault(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), SegmentError> {
        let mut done = 0;
        while done < self.len {
            let step = PREFAULT_STEP_BYTES.min(self.len - done);
            self.prefault_step(done, step)?;
            done += step;
            progress(done, self.len);
        }
        Ok(())
    }

    /// Copies `source` to `offset`.
    ///
    /// # Errors
    /// [`SegmentError::OutOfBounds`]; nothing was written then.
    #[inline]
    pub fn write(&mut self, offset: u64, source: &[u8]) -> Result<(), SegmentError> {
        let target = self.checked(offset, source.len() as u64)?;
        // SAFETY: `checked` says that the target lies within the segment, and `&mut self` that no reference into the
        // segment is alive, so `source` can't overlap it.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        Ok(())
    }

    /// Copies the bytes at `offset` into `target`.
    ///
    /// # Errors
    /// [`SegmentError::OutOfBounds`]; `target` is unchanged then.
    #[inline]
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), SegmentError> {
        let source = self.checked(offset, target.len() as u64)?;
        // SAFETY: `checked` says that the source lies within the segment. `target` is a mutable reference and can't
        // point into it, as the segment hands out none.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    /// The `N` bytes at `offset`, by value.
    ///
    /// # Errors
    /// [`SegmentError::OutOfBounds`].
    #[inline]
    pub fn read_array<const N: usize>(&self, offset: u64) -> Result<[u8; N], SegmentError> {
        let mut bytes = [0; N];
        self.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Borrows `len` bytes at `offset`. The borrow keeps the shard from writing; the caller must also not hold it over
    /// a range that the kernel is receiving into (the shard never lends the bytes of an unfinished put).
    ///
    /// # Errors
    /// [`SegmentError::OutOfBounds`].
    #[inline]
    pub fn slice(&self, offset: u64, len: u64) -> Result<&[u8], SegmentError> {
        let source = self.checked(offset, len)?;
        // SAFETY: `checked` says that the range lies within the segment, whose bytes are always initialised (zeroed
        // when made). The one owner is borrowed, other processes can't write (sealed), and the kernel receives only
        // into extents that no reference is made of.
        Ok(unsafe { std::slice::from_raw_parts(source, len as usize) })
    }

    /// Asks for bytes that are about to be read. Bytes beyond the segment are no matter.
    #[inline]
    pub fn prefetch(&self, offset: u64, len: u64) {
        prefetch(self.base.as_ptr().wrapping_add(offset as usize), len);
    }

    /// The addresses of `len` bytes at `offset`, for a receive by the kernel. They stay valid as long as the segment
    /// lives; the caller keeps the extent from being reused while the receive is under way.
    ///
    /// # Errors
    /// [`SegmentError::OutOfBounds`].
    pub fn as_mut_ptr_range(&mut self, offset: u64, len: u64) -> Result<Range<*mut u8>, SegmentError> {
        let start = self.checked(offset, len)?;
        Ok(start..start.wrapping_add(len as usize))
    }

    /// A word that readers in other processes load while the owning shard stores it: an epoch, or whether the shard is
    /// parked. The orderings are said where the word is described, in `lanner_shared::shm`.
    ///
    /// # Errors
    /// [`SegmentError::OutOfBounds`], [`SegmentError::Misaligned`].
    #[inline]
    pub fn word(&self, offset: u64) -> Result<&AtomicU32, SegmentError> {
        let address = self.checked(offset, size_of::<u32>() as u64)?;
        if !offset.is_multiple_of(align_of::<AtomicU32>() as u64) {
            return Err(SegmentError::Misaligned { offset });
        }
        // SAFETY: the four bytes lie within the segment, are aligned (the base is page-aligned), and are written by
        // the one owner of the segment only, and only through this; readers elsewhere load them atomically.
        Ok(unsafe { AtomicU32::from_ptr(address.cast::<u32>()) })
    }

    /// All whole words of eight bytes from `offset` on, which readers in other processes load while the owning shard stores them. For
    /// memory that consists of such words and is used in no other way, as a filter's behind its first line.
    ///
    /// # Errors
    /// [`SegmentError::OutOfBounds`], [`SegmentError::Misaligned`].
    #[inline]
    pub fn words(&self, offset: u64) -> Result<&[AtomicU64], SegmentError> {
        let address = self.checked(offset, 0)?;
        if !offset.is_multiple_of(align_of::<AtomicU64>() as u64) {
            return Err(SegmentError::Misaligned { offset });
        }
        let count = (self.len - offset) as usize / size_of::<AtomicU64>();
        // SAFETY: the words lie within the segment, are aligned (the base is page-aligned), initialised (zeroed when made), and
        // are written by the one owner of the segment only; readers elsewhere load them atomically.
        Ok(unsafe { std::slice::from_raw_parts(address.cast::<AtomicU64>(), count) })
    }

    /// The address of a range after checking that all of it lies within the segment.
    #[inline]
    fn checked(&self, offset: u64, len: u64) -> Result<*mut u8, SegmentError> {
        match offset.checked_add(len) {
            // `addressable` made sure that every offset up to the length is a `usize`.
            Some(end) if end <= self.len => Ok(self.base.as_ptr().wrapping_add(offset as usize)),
            _ => Err(SegmentError::OutOfBounds { offset, len, segment_len: self.len }),
        }
    }

    /// Seals the file: no new writable mapping, no `write`, no resizing, and no further change of the seals.
    fn seal(&self) -> Result<(), SegmentError> {
        let Backing::Memfd(fd) = &self.backing else { return Ok(()) };
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(fd, seals)
            .map_err(|errno| system_error("fcntl(F_ADD_SEALS)", self.len, errno))
    }

    /// Binds all pages, before the first one is touched, to one NUMA node.
    fn bind_to_node(&self, node: u32) -> Result<(), SegmentError> {
        const MPOL_BIND: libc::c_int = 2;
        const MASK_WORDS: usize = 16;
        let mut mask = [0u64; MASK_WORDS];
        let word = mask.get_mut(node as usize / 64).ok_or_else(|| SegmentError::NumaBind {
            node,
            source: io::Error::from_raw_os_error(libc::EINVAL),
        })?;
        *word = 1 << (node % 64);
        // SAFETY: the range is this segment's mapping, and the mask outlives the call, which only reads it.
        let status = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len as usize,
                MPOL_BIND,
                mask.as_ptr(),
                MASK_WORDS * 64 + 1,
                0,
            )
        };
        if status == 0 {
            Ok(())
        } else {
            Err(SegmentError::NumaBind { node, source: io::Error::last_os_error() })
        }
    }

    fn prefault_step(&mut self, offset: u64, len: u64) -> Result<(), SegmentError> {
        let start = self.checked(offset, len)?;
        // SAFETY: the range lies within the segment; populating changes no byte.
        let outcome = unsafe { rustix::mm::madvise(start.cast(), len as usize, Advice::LinuxPopulateWrite) };
        match outcome {
            Ok(()) => Ok(()),
            // Kernels before 5.14 don't know the advice.
            Err(Errno::INVAL) => {
                self.touch_each_page(offset, len);
                Ok(())
            }
            Err(Errno::NOMEM | Errno::FAULT) => {
                Err(SegmentError::MemoryLacking { needed: self.len, available: offset })
            }
            Err(errno) => Err(system_error("madvise(MADV_POPULATE_WRITE)", self.len, errno)),
        }
    }

    fn touch_each_page(&mut self, offset: u64, len: u64) {
        for page in (offset..offset + len).step_by(PAGE_BYTES as usize) {
            if let Ok(address) = self.checked(page, 1) {
                // SAFETY: one byte within the segment, which `&mut self` keeps to us; it gets the value that it has.
                unsafe { address.write_volatile(address.read_volatile()) };
            }
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        match &self.backing {
            Backing::Memfd(_) => {
                // SAFETY: the mapping is ours and nothing refers into it once its owner is dropped. A failure would
                // leave the pages mapped until the process ends, which harms nobody.
                let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len as usize) };
            }
            // SAFETY: allocated in `heap` with this very layout.
            Backing::Heap(layout) => unsafe { std::alloc::dealloc(self.base.as_ptr(), *layout) },
        }
    }
}

/// The length as a `usize`, if pointers can span it.
fn addressable(len: u64) -> Result<usize, SegmentError> {
    match usize::try_from(len) {
        Ok(bytes) if bytes > 0 && isize::try_from(bytes).is_ok() => Ok(bytes),
        _ => Err(SegmentError::ImpossibleLength { len }),
    }
}

fn system_error(call: &'static str, len: u64, errno: Errno) -> SegmentError {
    SegmentError::System { call, len, source: errno.into() }
}

/// Names the cause of a failure while the memfd is made.
fn memfd_error(call: &'static str, options: &SegmentOptions, len: u64, errno: Errno) -> SegmentError {
    if options.huge_pages {
        SegmentError::HugePagesLacking { pages: len / HUGE_PAGE_BYTES, source: errno.into() }
    } else if errno == Errno::NOMEM {
        SegmentError::MemoryLacking { needed: len, available: available_memory().unwrap_or(0) }
    } else {
        system_error(call, len, errno)
    }
}

/// A segment larger than what the system can give would be granted now and end in the OOM killer later.
fn refuse_more_than_available(needed: u64) -> Result<(), SegmentError> {
    match available_memory() {
        Some(available) if available < needed => Err(SegmentError::MemoryLacking { needed, available }),
        _ => Ok(()),
    }
}

/// Bytes that this process could still get: what the kernel calls available, or the container's rest if less.
/// `None` where neither can be read, as on a system without /proc.
fn available_memory() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in_meminfo(&text));
    match (machine, container_rest()) {
        (Some(machine), Some(container)) => Some(machine.min(container)),
        (machine, container) => machine.or(container),
    }
}

fn available_in_meminfo(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// What the container's memory limit (cgroup v2, seen from inside) leaves; `None` without a limit.
fn container_rest() -> Option<u64> {
    let number_in = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let limit = number_in("/sys/fs/cgroup/memory.max")?;
    let used = number_in("/sys/fs/cgroup/memory.current")?;
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(len: u64) -> SegmentOptions {
        SegmentOptions { len, huge_pages: false, numa_node: None }
    }

    /// Shows that bytes come back as written, and that every kind of access past the end is refused whole, on both
    /// backings: the last byte is reachable, one further is not, and an offset near u64::MAX doesn't wrap.
    #[test]
    fn accesses_are_checked() {
        for mut segment in [Segment::heap(4096).unwrap(), Segment::memfd(&plain(4096)).unwrap()] {
            segment.write(4090, b"lanner").unwrap();
            assert_eq!(segment.slice(4090, 6).unwrap(), b"lanner");
            assert_eq!(segment.read_array::<3>(4093).unwrap(), *b"ner");
            let mut target = [7; 4];
            for (offset, len) in [(4093, 4), (4097, 0), (u64::MAX, 1), (u64::MAX - 2, 4)] {
                assert!(matches!(segment.slice(offset, len), Err(SegmentError::OutOfBounds { .. })));
                assert!(segment.as_mut_ptr_range(offset, len).is_err());
            }
            assert!(segment.read(4093, &mut target).is_err());
            assert_eq!(target, [7; 4], "a refused read leaves the target alone");
            assert!(segment.write(4093, &target).is_err());
            assert_eq!(segment.slice(4093, 3).unwrap(), b"ner", "a refused write changes nothing");
            let range = segment.as_mut_ptr_range(64, 128).unwrap();
            assert_eq!(range.end as usize - range.start as usize, 128);
        }
    }

    /// Shows that a word is stored and loaded whole, and that a crooked or outlying one is refused.
    #[test]
    fn words_are_aligned_and_bounded() {
        let segment = Segment::heap(128).unwrap();
        segment.word(124).unwrap().store(0x0102_0304, std::sync::atomic::Ordering::Release);
        assert_eq!(segment.read_array::<4>(124).unwrap(), 0x0102_0304u32.to_ne_bytes());
        assert!(matches!(segment.word(2), Err(SegmentError::Misaligned { offset: 2 })));
        assert!(matches!(segment.word(128), Err(SegmentError::OutOfBounds { .. })));
    }

    /// Shows promise P3 for whoever holds the descriptor: mapping it for writing, writing to it, resizing it and
    /// punching a hole into it all fail, while our own mapping still writes and a read-only mapping sees the bytes.
    #[test]
    fn sealed_against_everyone_but_the_owner() {
        let mut segment = Segment::memfd(&plain(8192)).unwrap();
        let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
        let map = |protection| {
            // SAFETY: a new mapping where the kernel likes.
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 8192, protection, MapFlags::SHARED, &fd, 0) }
        };
        assert_eq!(map(ProtFlags::READ | ProtFlags::WRITE).unwrap_err(), Errno::PERM);
        assert_eq!(rustix::io::pwrite(&fd, b"x", 0).unwrap_err(), Errno::PERM);
        assert_eq!(rustix::fs::ftruncate(&fd, 4096).unwrap_err(), Errno::PERM);
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&fd, hole, 0, 4096).unwrap_err(), Errno::PERM);
        segment.write(100, b"still ours").unwrap();
        let view = map(ProtFlags::READ).unwrap();
        // SAFETY: mapped for reading just above, 8192 bytes long; nobody writes during this borrow.
        let seen = unsafe { std::slice::from_raw_parts(view.cast::<u8>().add(100), 10) };
        assert_eq!(seen, b"still ours");
        // SAFETY: mapped above and not used any more.
        unsafe { rustix::mm::mprotect(view, 8192, rustix::mm::MprotectFlags::WRITE) }.unwrap_err();
        // SAFETY: as above.
        unsafe { rustix::mm::munmap(view, 8192) }.unwrap();
    }

    /// Shows that prefaulting changes no byte and reports its way to the end.
    #[test]
    fn prefault_reports_and_keeps_bytes() {
        for mut segment in [Segment::memfd(&plain(130 << 20)).unwrap(), Segment::heap(1 << 20).unwrap()] {
            let len = segment.len();
            segment.write(len - 3, b"end").unwrap();
            let mut reports = Vec::new();
            segment.prefault(&mut |done, total| reports.push((done, total))).unwrap();
            assert_eq!(reports.len() as u64, len.div_ceil(PREFAULT_STEP_BYTES));
            assert_eq!(reports.last(), Some(&(len, len)));
            assert_eq!(segment.slice(len - 3, 3).unwrap(), b"end");
            segment.touch_each_page(0, len);
            assert_eq!(segment.slice(len - 3, 3).unwrap(), b"end");
        }
    }

    /// Shows that lengths that can't be are refused with their own error, and that the messages name the cure.
    #[test]
    fn impossible_requests_say_what_mends_them() {
        assert!(matches!(Segment::heap(0), Err(SegmentError::ImpossibleLength { len: 0 })));
        assert!(matches!(Segment::memfd(&plain(u64::MAX)), Err(SegmentError::ImpossibleLength { .. })));
        let lacking = Segment::memfd(&plain(1 << 50)).unwrap_err();
        assert!(matches!(lacking, SegmentError::MemoryLacking { needed, .. } if needed == 1 << 50));
        assert!(lacking.to_string().contains("--memory"));
        let huge = SegmentOptions { len: 1 << 46, huge_pages: true, numa_node: None };
        let lacking = Segment::memfd(&huge).unwrap_err();
        assert!(lacking.to_string().contains("vm.nr_hugepages"), "{lacking}");
        let far = SegmentOptions { len: 4096, huge_pages: false, numa_node: Some(999) };
        assert!(matches!(Segment::memfd(&far), Err(SegmentError::NumaBind { node: 999, .. })));
    }

    /// Shows that the kernel's table is read in its own unit.
    #[test]
    fn meminfo_is_in_kibibytes() {
        let text = "MemTotal:  24 kB\nMemAvailable:     20 kB\n";
        assert_eq!(available_in_meminfo(text), Some(20 * 1024));
        assert_eq!(available_in_meminfo("MemFree: 1 kB\n"), None);
    }
}
