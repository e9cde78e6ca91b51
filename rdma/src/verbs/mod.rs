//! Devices through libibverbs, as safely as that goes: each object keeps alive what it needs, is destroyed when it is dropped, and says in
//! `unsafe fn` what it can't check itself, which is always that memory that a device reads or writes stays in place.
//!
//! Set-up ([`device`], [`memory`], [`connection`]) goes through functions that are loaded when they are first asked for ([`library`]), so a
//! program starts on a machine without the library. The data path ([`queue_pair`], [`completion`], [`receive_queue`]) calls through
//! pointers that the device's context carries.

pub mod completion;
pub mod connection;
pub mod device;
pub mod library;
pub mod memory;
pub mod queue_pair;
pub mod receive_queue;

use std::io;
use thiserror::Error;

/// Why RDMA can't be used, or something of it can't be had.
#[derive(Debug, Error)]
pub enum VerbsError {
    /// The library isn't there.
    #[error("libibverbs can't be loaded ({reason}); to have it: {}", crate::RUN_TIME_PACKAGES)]
    NoLibrary {
        /// What the loader said.
        reason: String,
    },
    /// The kernel shows the device, and the library doesn't.
    #[error(
        "libibverbs doesn't know {device}, which the kernel shows: the part of the library for its driver (its provider) isn't there; to have it: {}",
        crate::RUN_TIME_PACKAGES
    )]
    NoProvider {
        /// The device.
        device: String,
    },
    /// The kernel shows the device, and nothing of it that could be opened.
    #[error(
        "{device} is shown by the kernel and can't be opened: it's being taken away, or the kernel's module ib_uverbs isn't loaded ('sudo modprobe ib_uverbs')"
    )]
    NoVerbs {
        /// The device.
        device: String,
    },
    /// The device isn't there any more, or this process may not open it.
    #[error(
        "{device} can't be opened ({source}); may this process use /dev/infiniband (a container needs the device), and is the kernel's module ib_uverbs loaded?"
    )]
    NotOpened {
        /// The device.
        device: String,
        /// What the system said.
        source: io::Error,
    },
    /// A call of the library failed.
    #[error("{call} failed: {source}")]
    Call {
        /// The call.
        call: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// Memory can't be registered.
    #[error("registering {bytes} bytes with {device} failed ({source}): {cure}")]
    NotRegistered {
        /// How many.
        bytes: u64,
        /// With which device.
        device: String,
        /// What the system said.
        source: io::Error,
        /// What to do.
        cure: String,
    },
    /// The device can't do what a server needs.
    #[error(
        "{device} has no shared receive queues ('max_srq' is 0 in 'ibv_devinfo -v'), which a server takes its clients' messages from; a newer driver may have them, another device does, and '--rdma off' does without"
    )]
    NoSharedReceives {
        /// The device.
        device: String,
    },
    /// The peer's description of itself can't be true.
    #[error("the peer's side of the connection makes no sense: {0}")]
    Peer(&'static str),
    /// Steps were taken in the wrong order.
    #[error(transparent)]
    Order(#[from] crate::queue_pair::WrongOrder),
}

/// What a call says that returns a null pointer and sets `errno`.
fn last_error(call: &'static str) -> VerbsError {
    VerbsError::Call { call, source: io::Error::last_os_error() }
}

/// What a call says that returns 0 or an error number.
fn checked(call: &'static str, status: i32) -> Result<(), VerbsError> {
    match status {
        0 => Ok(()),
        // Some calls return -1 and set `errno`, others the number.
        -1 => Err(last_error(call)),
        number => Err(VerbsError::Call { call, source: io::Error::from_raw_os_error(number.abs()) }),
    }
}
