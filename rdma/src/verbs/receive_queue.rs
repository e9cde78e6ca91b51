//! A shared receive queue: room for the messages of all queue pairs of a domain.

use super::device::Domain;
use super::memory::Buffer;
use super::queue_pair::RECEIVE;
use super::{VerbsError, last_error};
use rdma_sys::{ibv_recv_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use std::ptr::NonNull;
use std::sync::Arc;

/// The queue and its buffers, each of which is in the device's hands or, from its completion until it's posted again, in its user's.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    domain: Arc<Domain>,
    raw: NonNull<ibv_srq>,
    // Dropped behind the queue (see `drop`).
    buffer: Buffer,
    bytes_each: usize,
    /// Stands in the upper half of all its receives' numbers.
    tag: u32,
}

// SAFETY: libibverbs allows every thread to use a shared receive queue.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above; buffers are read through `&` only.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// A queue of `count` buffers of `bytes_each`, all of them posted. The number of a receive is [`RECEIVE`], the tag in the bits from 32 on,
    /// and which buffer it is.
    ///
    /// # Errors
    /// [`VerbsError::NoSharedReceives`], or what the library says.
    pub fn new(
        domain: &Arc<Domain>,
        count: u32,
        bytes_each: usize,
        tag: u32,
    ) -> Result<Arc<SharedReceiveQueue>, VerbsError> {
        let device = &domain.device;
        let count = count.min(device.limits.shared_receives);
        if count == 0 {
            return Err(VerbsError::NoSharedReceives { device: device.selection.device.clone() });
        }
        let buffer = Buffer::new(domain, count as usize * bytes_each, super::memory::Access::Local)?;
        let mut attributes = ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: ibv_srq_attr { max_wr: count, max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: the domain lives as long as the queue; the attributes are read, and written, by the call only.
        let raw = unsafe { (domain.device.library.create_srq)(domain.raw.as_ptr(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| last_error("ibv_create_srq"))?;
        let tag = tag & 0x7fff_ffff;
        let queue = SharedReceiveQueue { domain: domain.clone(), raw, buffer, bytes_each, tag };
        (0..u64::from(count)).try_for_each(|index| queue.post(queue.number(index)))?;
        Ok(Arc::new(queue))
    }

    fn number(&self, index: u64) -> u64 {
        RECEIVE | u64::from(self.tag) << 32 | index
    }

    /// Gives the buffer of a receive that has completed to the device again.
    ///
    /// # Errors
    /// What the library says: the index isn't one, or the queue is full because the buffer is there already.
    #[inline]
    pub fn post(&self, receive: u64) -> Result<(), VerbsError> {
        let region = self.buffer.region();
        let index = receive & u64::from(u32::MAX);
        let offset = index * self.bytes_each as u64;
        if receive != self.number(index) || offset + self.bytes_each as u64 > region.len() {
            return Err(VerbsError::Peer("a receive completes that was never posted"));
        }
        let mut segment = ibv_sge {
            addr: region.address() + offset,
            length: self.bytes_each as u32,
            lkey: region.local_key(),
        };
        let mut request =
            ibv_recv_wr { wr_id: receive, next: std::ptr::null_mut(), sg_list: &raw mut segment, num_sge: 1 };
        let mut refused = std::ptr::null_mut();
        // SAFETY: request and segment are read before the call returns; the buffer stays in place until the queue has gone, and is within the
        // region (checked).
        let status =
            unsafe { rdma_sys::ibv_post_srq_recv(self.raw.as_ptr(), &raw mut request, &raw mut refused) };
        super::checked("ibv_post_srq_recv", status)
    }

    /// Copies what came with a receive, from its byte `from` on, into `target`. For whoever has its completion, until it's posted again.
    #[inline]
    pub fn read(&self, receive: u64, from: usize, target: &mut [u8]) {
        assert!(from + target.len() <= self.bytes_each);
        let index = (receive & u64::from(u32::MAX)) as usize;
        self.buffer.read(index * self.bytes_each + from, target);
    }

    /// How many buffers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len() / self.bytes_each
    }

    /// Never true: a device without any is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: made by `new`; queue pairs hold an `Arc` of it, so none is left. The buffers are let go of only behind this.
        unsafe { (self.domain.device.library.destroy_srq)(self.raw.as_ptr()) };
    }
}
