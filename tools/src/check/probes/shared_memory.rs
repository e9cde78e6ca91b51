//! Does with a page what a server does with a segment (P3): maps it, seals it against new writers, and tries to write as a client would.

use std::os::fd::OwnedFd;
use std::ptr;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::check::facts::Attempt;

const PAGE: usize = 4096;

/// Whether a sealed segment refuses a client's write mapping.
pub fn shared_memory() -> Attempt {
    try_seal().unwrap_or_else(|(step, errno)| Attempt::Refused {
        step: step.to_owned(),
        errno: errno.raw_os_error(),
    })
}

fn try_seal() -> Result<Attempt, (&'static str, Errno)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let segment = memfd_create("lanner-check", flags).map_err(|errno| ("creating a memfd", errno))?;
    ftruncate(&segment, PAGE as u64).map_err(|errno| ("sizing a memfd", errno))?;
    let read_write = ProtFlags::READ | ProtFlags::WRITE;
    let _servers = Mapping::new(&segment, read_write).map_err(|errno| ("mapping a memfd", errno))?;
    fcntl_add_seals(&segment, SealFlags::FUTURE_WRITE).map_err(|errno| ("sealing a memfd", errno))?;

    let _readers =
        Mapping::new(&segment, ProtFlags::READ).map_err(|errno| ("mapping a sealed memfd to read", errno))?;
    Ok(match Mapping::new(&segment, read_write) {
        Err(Errno::PERM) => Attempt::Worked,
        Err(errno) => {
            Attempt::Wrong { seen: format!("a client's write mapping failed for another reason: {errno}") }
        }
        Ok(_) => {
            Attempt::Wrong { seen: "a client's write mapping was allowed in spite of the seal".to_owned() }
        }
    })
}

/// A shared mapping of one page, unmapped when dropped. Its bytes are never touched.
struct Mapping(*mut std::ffi::c_void);

impl Mapping {
    fn new(segment: &OwnedFd, protection: ProtFlags) -> Result<Mapping, Errno> {
        // SAFETY: the kernel chooses the place, so no memory in use is replaced.
        unsafe { mmap(ptr::null_mut(), PAGE, protection, MapFlags::SHARED, segment, 0) }.map(Mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `new` and nothing points into it. It can't fail with these arguments.
        let _ = unsafe { munmap(self.0, PAGE) };
    }
}
