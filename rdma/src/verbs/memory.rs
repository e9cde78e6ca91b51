//! Memory that a device may read or write.

use super::VerbsError;
use super::device::Domain;
use crate::locked_memory::LockedMemory;
use rdma_sys::{ibv_access_flags, ibv_mr};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Who may do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This side's own work requests read and write it; a peer can do nothing.
    Local,
    /// As [`Access::Local`], and peers may read it. Nobody but this side ever writes it (promise P3).
    RemoteRead,
}

/// A registered stretch of memory that belongs to somebody else.
#[derive(Debug)]
pub struct Region {
    domain: Arc<Domain>,
    raw: NonNull<ibv_mr>,
    address: u64,
    length: u64,
}

// SAFETY: libibverbs allows every thread to use a region; its memory isn't touched through this.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `length` bytes at `address`; the kernel takes and holds all of their pages. System calls; not for the data path.
    ///
    /// # Errors
    /// [`VerbsError::NotRegistered`], which names the limit that stands in the way.
    ///
    /// # Safety
    /// The bytes stay mapped, and are plain memory, until the region is dropped. With [`Access::RemoteRead`] peers may read them at any
    /// time until then.
    pub unsafe fn new(
        domain: &Arc<Domain>,
        address: *mut u8,
        length: u64,
        access: Access,
    ) -> Result<Region, VerbsError> {
        let flags = match access {
            Access::Local => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            Access::RemoteRead => {
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            }
        };
        // SAFETY: the caller's promise; the domain lives as long as the region.
        let raw = unsafe {
            (domain.device.library.reg_mr)(
                domain.raw.as_ptr(),
                address.cast(),
                length as usize,
                flags.0 as i32,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            let source = io::Error::last_os_error();
            let device = domain.device.selection.device.clone();
            return Err(VerbsError::NotRegistered {
                bytes: length,
                device,
                cure: LockedMemory::of_this_process().why_refused(&source, length),
                source,
            });
        };
        Ok(Region { domain: domain.clone(), raw, address: address as u64, length })
    }

    /// The key of this side's work requests.
    #[inline]
    #[must_use]
    pub fn local_key(&self) -> u32 {
        // SAFETY: registered as long as `self` lives; the library doesn't change it.
        unsafe { self.raw.as_ref().lkey }
    }

    /// The key that a peer's READ has to carry.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }

    /// The address of its first byte.
    #[inline]
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How far from its first byte `bytes` begin, if all of them are in it.
    #[inline]
    #[must_use]
    pub fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let offset = (bytes.as_ptr() as u64).checked_sub(self.address)?;
        let end = offset.checked_add(bytes.len() as u64)?;
        (end <= self.length).then_some(offset)
    }

    /// The domain that it belongs to.
    #[must_use]
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered by `new`, once, and nobody has a reference to it. Whoever has posted work on it holds it until that is done or its queue
        // pair was dropped (promise of `QueuePair::post_reads`).
        unsafe { (self.domain.device.library.dereg_mr)(self.raw.as_ptr()) };
    }
}

/// Registered memory of this side's own: zeroed pages, taken at once.
#[derive(Debug)]
pub struct Buffer {
    region: Region,
    // Dropped behind the region.
    pages: Pages,
}

impl Buffer {
    /// Takes and registers `length` bytes, rounded up to whole pages. System calls; not for the data path.
    ///
    /// # Errors
    /// [`VerbsError`]: the memory isn't there, or can't be registered.
    pub fn new(domain: &Arc<Domain>, length: usize, access: Access) -> Result<Buffer, VerbsError> {
        let pages = Pages::new(length)?;
        // SAFETY: the pages stay mapped until behind the region's end (the order of the fields).
        let region = unsafe { Region::new(domain, pages.start.as_ptr(), pages.length as u64, access) }?;
        Ok(Buffer { region, pages })
    }

    /// Its registration.
    #[inline]
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.length
    }

    /// Never true: no pages can't be taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.length == 0
    }

    /// Copies the bytes from `offset` on into `target`. Panics if they reach beyond the buffer: callers have checked it.
    ///
    /// A device that writes them meanwhile leaves a mixture; whoever posted that knows not to look before its completion.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        assert!(offset.checked_add(target.len()).is_some_and(|end| end <= self.pages.length));
        // SAFETY: within the pages (asserted); the target is the caller's and no part of them, of which no reference is ever made.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.pages.start.as_ptr().add(offset),
                target.as_mut_ptr(),
                target.len(),
            );
        }
    }

    /// Copies `source` to `offset`. Panics if it reaches beyond the buffer.
    ///
    /// A device that sends the bytes meanwhile sends a mixture; whoever posted that knows not to write before its completion.
    #[inline]
    pub fn write(&mut self, offset: usize, source: &[u8]) {
        assert!(offset.checked_add(source.len()).is_some_and(|end| end <= self.pages.length));
        // SAFETY: as in `read`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                source.as_ptr(),
                self.pages.start.as_ptr().add(offset),
                source.len(),
            );
        }
    }
}

/// Anonymous pages.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: plain memory that stays mapped as long as `Pages` lives.
unsafe impl Send for Pages {}
// SAFETY: as above; it is read through `&` and written through `&mut` only.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(length: usize) -> Result<Pages, VerbsError> {
        let length = length.max(1).next_multiple_of(rustix::param::page_size());
        let refused = |source: io::Error| VerbsError::Call { call: "mmap", source };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this process.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }
        .map_err(|error| refused(error.into()))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| refused(io::ErrorKind::Other.into()))?;
        // A child has no use for them: it opens devices for itself. Kernels of 5.12 and later would copy pages that a device has when they fork;
        // before, a write of either side's could leave *this* process with another page than the device's.
        // SAFETY: the advice is for the pages that were just mapped.
        unsafe { libc::madvise(start.as_ptr().cast(), length, libc::MADV_DONTFORK) };
        Ok(Pages { start, length })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has a reference to it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
