//! An opened device, and a domain of it that memory and queue pairs belong to.

use super::library::{Library, library};
use super::{VerbsError, checked, last_error};
use crate::inventory;
use crate::selection::Selection;
use rdma_sys::{ibv_async_event, ibv_context, ibv_device_attr, ibv_event_type, ibv_pd, ibv_port_attr};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// An opened device and the port that was chosen of it.
#[derive(Debug)]
pub struct Device {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<ibv_context>,
    /// What was chosen.
    pub selection: Selection,
    /// What it can do.
    pub limits: DeviceLimits,
    /// Its address within an InfiniBand subnet; 0 on Ethernet.
    pub local_id: u16,
    /// The largest packet: 1 for 256 bytes, 2 for 512, … 5 for 4096.
    pub mtu: u8,
}

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Work requests of a queue.
    pub queue: u32,
    /// Local segments of a work request, READs included, of which some devices take fewer.
    pub segments: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// READs that a queue pair answers at a time.
    pub reads_answered: u8,
    /// READs that a queue pair has under way at a time.
    pub reads_started: u8,
    /// Entries of a shared receive queue.
    pub shared_receives: u32,
    /// Bytes of a message.
    pub message_bytes: u64,
}

/// What a device says by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// It has gone: nothing of it can be used any more.
    Gone,
    /// A port has come up, or gone down.
    Port(bool),
    /// A queue pair in error, of this number, has taken its last receive from the queue that it shares.
    LastReceive(u32),
    /// Something that its user learns in another way, too.
    Other,
}

impl DeviceEvent {
    /// What an event of this kind means, a number of which a newer library may have others than this was built with. `queue_pair` says which one
    /// it is about, and is asked only of events about one.
    fn of(kind: u32, queue_pair: impl FnOnce() -> u32) -> DeviceEvent {
        const GONE: u32 = ibv_event_type::IBV_EVENT_DEVICE_FATAL as u32;
        const PORT_UP: u32 = ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32;
        const PORT_DOWN: u32 = ibv_event_type::IBV_EVENT_PORT_ERR as u32;
        const LAST_RECEIVE: u32 = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED as u32;
        match kind {
            GONE => DeviceEvent::Gone,
            PORT_UP => DeviceEvent::Port(true),
            PORT_DOWN => DeviceEvent::Port(false),
            LAST_RECEIVE => DeviceEvent::LastReceive(queue_pair()),
            _ => DeviceEvent::Other,
        }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}

// SAFETY: libibverbs allows every thread to use a context.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens what was chosen. System calls; not for the data path.
    ///
    /// # Errors
    /// [`VerbsError`]: the library isn't there, or the device can't be opened.
    pub fn open(selection: Selection) -> Result<Arc<Device>, VerbsError> {
        let library = library()?;
        let context = open_named(library, &selection.device)?;
        let mut attributes = MaybeUninit::<ibv_device_attr>::zeroed();
        let mut port = MaybeUninit::<ibv_port_attr>::zeroed();
        // From here on dropping the device closes it.
        let mut device = Device {
            library,
            context,
            limits: DeviceLimits {
                queue: 0,
                segments: 0,
                completions: 0,
                reads_answered: 0,
                reads_started: 0,
                shared_receives: 0,
                message_bytes: 0,
            },
            local_id: 0,
            mtu: 0,
            selection,
        };
        // SAFETY: the context is open, and the call fills the attributes in.
        checked("ibv_query_device", unsafe {
            (library.query_device)(context.as_ptr(), attributes.as_mut_ptr())
        })?;
        let number = device.selection.port;
        // SAFETY: as above.
        checked("ibv_query_port", unsafe {
            (library.query_port)(context.as_ptr(), number, port.as_mut_ptr())
        })?;
        // SAFETY: both were zeroed, which is a valid value of plain integers, and were filled in.
        let (attributes, port) = unsafe { (attributes.assume_init(), port.assume_init()) };
        let positive = |number: i32| u32::try_from(number).unwrap_or(0);
        let depth = |number: i32| u8::try_from(number.clamp(0, 255)).unwrap_or(u8::MAX);
        device.limits = DeviceLimits {
            queue: positive(attributes.max_qp_wr),
            segments: match (positive(attributes.max_sge), positive(attributes.max_sge_rd)) {
                // Not every driver says.
                (all, 0) => all,
                (all, reads) => all.min(reads),
            },
            completions: positive(attributes.max_cqe),
            reads_answered: depth(attributes.max_qp_rd_atom),
            reads_started: depth(attributes.max_qp_init_rd_atom),
            shared_receives: positive(attributes.max_srq_wr),
            message_bytes: u64::from(port.max_msg_sz),
        };
        (device.local_id, device.mtu) = (port.lid, port.active_mtu as u8);
        Ok(Arc::new(device))
    }

    /// Whether the system still shows the device. One that it doesn't is being taken away: of some drivers, Soft-RoCE's among them, nothing else
    /// says so, and their removal waits until everyone has closed the device. One system call.
    #[must_use]
    pub fn is_there(&self) -> bool {
        // SAFETY: a context refers to its device for as long as it is open, and the device's path is a C string that doesn't change.
        let path = unsafe { CStr::from_ptr((*self.context.as_ref().device).dev_path.as_ptr()) };
        rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok()
    }

    /// A descriptor that can be read from when the device has something to say by itself. Made non-blocking here.
    ///
    /// # Errors
    /// What the system says.
    pub fn event_source(&self) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: the context is open, and so is its descriptor, for as long as `self` lives.
        let source = unsafe { BorrowedFd::borrow_raw(self.context.as_ref().async_fd) };
        set_nonblocking(source)?;
        Ok(source)
    }

    /// What the device says next, if [`Device::event_source`] can be read from.
    #[must_use]
    pub fn next_event(&self) -> Option<DeviceEvent> {
        let mut event = MaybeUninit::<ibv_async_event>::uninit();
        // SAFETY: the context is open; a call that returns 0 has filled the event in, and the descriptor doesn't block.
        if unsafe { (self.library.get_async_event)(self.context.as_ptr(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: filled in, as said. Events of a queue pair refer to it, and it isn't destroyed before they are acknowledged; the others'
        // meaning doesn't depend on the element. The kind is read as the number that it is: the bindings' enum has no place for one that they don't
        // know, so no reference to the whole event is made. Each event that was taken has to be acknowledged once.
        let heard = unsafe {
            let raw = event.as_ptr();
            let kind = (&raw const (*raw).event_type).cast::<u32>().read();
            let heard = DeviceEvent::of(kind, || (*(*raw).element.qp).qp_num);
            (self.library.ack_async_event)(event.as_mut_ptr());
            heard
        };
        Some(heard)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened by `open`; everything made from it holds an `Arc` of it, so nothing is left.
        unsafe { (self.library.close_device)(self.context.as_ptr()) };
    }
}

/// Opens the device of this name and closes it again: whether it can be used. System calls.
///
/// # Errors
/// What is in the way, and the way out.
pub fn try_to_open(name: &str) -> Result<(), VerbsError> {
    let library = library()?;
    let context = open_named(library, name)?;
    // SAFETY: just opened, and nothing was made from it.
    unsafe { (library.close_device)(context.as_ptr()) };
    Ok(())
}

fn open_named(library: &Library, name: &str) -> Result<NonNull<ibv_context>, VerbsError> {
    let not_opened = |source| VerbsError::NotOpened { device: name.to_owned(), source };
    let mut count = 0;
    // SAFETY: the list that is returned has `count` entries and is freed below.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(not_opened(io::Error::last_os_error()));
    }
    let mut context = std::ptr::null_mut();
    let mut found = false;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: within the list; the name is a C string that lives as long as the list.
        let (device, is_named) = unsafe {
            let device = *list.add(index);
            (device, CStr::from_ptr((library.get_device_name)(device)).to_bytes() == name.as_bytes())
        };
        if is_named {
            found = true;
            // SAFETY: the device is of the list, which isn't freed yet. A context stays valid after that.
            context = unsafe { (library.open_device)(device) };
            break;
        }
    }
    let error = io::Error::last_os_error();
    // SAFETY: as returned, and not used any more.
    unsafe { (library.free_device_list)(list) };
    if !found && Path::new(inventory::ROOT).join(name).exists() {
        let device = name.to_owned();
        return Err(match inventory::has_verbs(Path::new(inventory::VERBS_ROOT), name) {
            true => VerbsError::NoProvider { device },
            false => VerbsError::NoVerbs { device },
        });
    }
    let error = if found { error } else { io::ErrorKind::NotFound.into() };
    NonNull::new(context).ok_or_else(|| not_opened(error))
}

pub(super) fn set_nonblocking(source: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(source)?;
    rustix::fs::fcntl_setfl(source, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(())
}

/// A domain: a key of one opens no memory of another (promise P3).
#[derive(Debug)]
pub struct Domain {
    pub(super) device: Arc<Device>,
    pub(super) raw: NonNull<ibv_pd>,
}

// SAFETY: libibverbs allows every thread to use a domain.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A domain of `device`.
    ///
    /// # Errors
    /// What the library says.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Domain>, VerbsError> {
        // SAFETY: the context is open as long as the device lives, which the domain holds on to.
        let raw = unsafe { (device.library.alloc_pd)(device.context.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| last_error("ibv_alloc_pd"))?;
        Ok(Arc::new(Domain { device: device.clone(), raw }))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made by `new`; whatever belongs to it holds an `Arc` of it, so nothing is left.
        unsafe { (self.device.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_mean_what_they_say() {
        let of = |kind: ibv_event_type| DeviceEvent::of(kind as u32, || 77);
        assert_eq!(of(ibv_event_type::IBV_EVENT_DEVICE_FATAL), DeviceEvent::Gone);
        assert_eq!(of(ibv_event_type::IBV_EVENT_PORT_ERR), DeviceEvent::Port(false));
        assert_eq!(of(ibv_event_type::IBV_EVENT_PORT_ACTIVE), DeviceEvent::Port(true));
        assert_eq!(of(ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED), DeviceEvent::LastReceive(77));
        let not_asked =
            DeviceEvent::of(ibv_event_type::IBV_EVENT_GID_CHANGE as u32, || unreachable!("of no queue pair"));
        assert_eq!(not_asked, DeviceEvent::Other);
        // Of a library that is newer than the headers.
        assert_eq!(DeviceEvent::of(4711, || unreachable!("of nothing that is known")), DeviceEvent::Other);
    }
}
