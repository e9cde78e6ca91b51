//! Completion queues: what has become of work requests. Polled; and where a thread wants to sleep, a channel wakes it.

use super::device::{Device, set_nonblocking};
use super::queue_pair::RECEIVE;
use super::{VerbsError, last_error};
use rdma_sys::{ibv_comp_channel, ibv_cq, ibv_wc, ibv_wc_flags, ibv_wc_status};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Completions that one look takes.
pub const BATCH: usize = 32;

/// A completion queue with a channel of its own.
#[derive(Debug)]
pub struct CompletionQueue {
    device: Arc<Device>,
    raw: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
}

// SAFETY: libibverbs allows every thread to use a completion queue.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

/// What has become of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the work request was called.
    pub id: u64,
    /// The queue pair.
    pub queue_pair: u32,
    /// Of a receive, the bytes that came.
    pub bytes: u32,
    /// Of a receive, what its sender wrote beside the message, if anything.
    pub immediate: Option<u32>,
    /// Whether it was done.
    pub status: WorkStatus,
}

/// Whether a work request was done, and if not, why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkStatus(pub u32);

impl WorkStatus {
    /// What is under way on a device that has gone has failed with it.
    pub const DEVICE_GONE: WorkStatus = WorkStatus(ibv_wc_status::IBV_WC_FATAL_ERR);

    /// Whether it was done.
    #[inline]
    #[must_use]
    pub fn is_success(self) -> bool {
        self.0 == ibv_wc_status::IBV_WC_SUCCESS
    }

    /// Whether it was only given up because something else had failed.
    #[must_use]
    pub fn is_given_up(self) -> bool {
        self.0 == ibv_wc_status::IBV_WC_WR_FLUSH_ERR
    }

    /// What went wrong, and what that mostly means.
    #[must_use]
    pub fn explain(self) -> &'static str {
        match self.0 {
            ibv_wc_status::IBV_WC_SUCCESS => "done",
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => "given up, because the queue pair has failed or was ended",
            ibv_wc_status::IBV_WC_RETRY_EXC_ERR => {
                "the peer's device doesn't answer: its process or machine has gone, the link is down, or the GID or the MTU of one side doesn't fit the network"
            }
            ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => "the peer had no room for a message for too long",
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR => {
                "the peer's device refused the address or the key: the memory isn't registered for this connection (any more)"
            }
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => "the peer's device doesn't take such a request",
            ibv_wc_status::IBV_WC_REM_OP_ERR => "the peer's device couldn't carry the request out",
            ibv_wc_status::IBV_WC_LOC_PROT_ERR => "this side's memory isn't registered for the work request",
            ibv_wc_status::IBV_WC_LOC_LEN_ERR => "a message is longer than the room for it",
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => "the queue pair doesn't take such a work request",
            ibv_wc_status::IBV_WC_FATAL_ERR => "the device has failed",
            _ => "the device gives a rare status; its number is in the manual of ibv_poll_cq",
        }
    }
}

impl CompletionQueue {
    /// A queue for at least `entries` completions, and its channel.
    ///
    /// # Errors
    /// What the library says.
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<CompletionQueue>, VerbsError> {
        let entries = i32::try_from(entries.clamp(1, device.limits.completions.max(1))).unwrap_or(i32::MAX);
        // SAFETY: the context is open as long as the device lives, which the queue holds on to.
        let channel = unsafe { (device.library.create_comp_channel)(device.context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| last_error("ibv_create_comp_channel"))?;
        // SAFETY: as above, and the channel was just made.
        let raw = unsafe {
            (device.library.create_cq)(
                device.context.as_ptr(),
                entries,
                std::ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            let error = last_error("ibv_create_cq");
            // SAFETY: made above, and nothing uses it.
            unsafe { (device.library.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = CompletionQueue { device: device.clone(), raw, channel };
        set_nonblocking(queue.event_source())
            .map_err(|source| VerbsError::Call { call: "fcntl(O_NONBLOCK)", source })?;
        Ok(Arc::new(queue))
    }

    /// Calls `take` with each of at most [`BATCH`] completions. How many there were. No system call (of a device in hardware).
    #[inline]
    pub fn poll(&self, mut take: impl FnMut(Completion)) -> usize {
        let mut entries: [MaybeUninit<ibv_wc>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
        // SAFETY: the queue lives as long as `self`, and there is room for as many entries as are asked for.
        let count =
            unsafe { rdma_sys::ibv_poll_cq(self.raw.as_ptr(), BATCH as i32, entries.as_mut_ptr().cast()) };
        // A negative count says that the queue itself is broken; its queue pairs fail then, which their users learn from time-outs.
        let count = usize::try_from(count).unwrap_or(0);
        for entry in &entries[..count] {
            // SAFETY: the first `count` entries were filled in.
            let entry = unsafe { entry.assume_init_ref() };
            take(Completion {
                id: entry.wr_id,
                queue_pair: entry.qp_num,
                bytes: entry.byte_len,
                immediate: immediate_of(entry),
                status: WorkStatus(entry.status),
            });
        }
        count
    }

    /// Has the next completion make [`CompletionQueue::event_source`] readable. One that has come before this call doesn't: poll once more
    /// before sleeping.
    pub fn request_event(&self) {
        // SAFETY: the queue lives as long as `self`.
        unsafe { rdma_sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) };
    }

    /// What becomes readable with a requested event.
    #[must_use]
    pub fn event_source(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so its descriptor, lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes all events, so that the source is silent again.
    pub fn take_events(&self) {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel lives as long as `self`; it has one queue, this one, and doesn't block. Each event that was taken has to be
        // acknowledged once.
        while unsafe {
            (self.device.library.get_cq_event)(self.channel.as_ptr(), &raw mut queue, &raw mut context)
        } == 0
        {
            // SAFETY: as above.
            unsafe { (self.device.library.ack_cq_events)(queue, 1) };
        }
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }
}

#[inline]
fn immediate_of(entry: &ibv_wc) -> Option<u32> {
    if entry.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 == 0 {
        return None;
    }
    // SAFETY: both fields of the union are 32 bits, all of whose values are valid; the flag says that it's this one.
    Some(u32::from_be(unsafe { entry.imm_data_invalidated_rkey_union.imm_data }))
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: made by `new`; queue pairs hold an `Arc` of it, so none is left, and all events are acknowledged.
        unsafe {
            (self.device.library.destroy_cq)(self.raw.as_ptr());
            (self.device.library.destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// Takes what is left of a queue pair that was destroyed out of `ready`: `give_back` gets its receives.
pub fn forget_all_of(queue_pair: u32, ready: &mut Vec<Completion>, mut give_back: impl FnMut(u64)) {
    ready.retain(|completion| {
        let is_left = completion.queue_pair == queue_pair;
        if is_left && completion.id & RECEIVE != 0 {
            give_back(completion.id);
        }
        !is_left
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What had been taken of a queue pair lay about until the next client came. A device that gives its number to that one at once would have had
    /// the dead one's completions taken for the new one's.
    #[test]
    fn nothing_of_a_queue_pair_outlives_it() {
        let completion =
            |queue_pair, id| Completion { id, queue_pair, bytes: 8, immediate: None, status: WorkStatus(0) };
        let others = [completion(7, RECEIVE | 1), completion(9, 0)];
        let mut ready = vec![
            completion(8, RECEIVE | 5),
            others[0],
            completion(8, 3),
            completion(8, RECEIVE | 1 << 32 | 2),
            others[1],
        ];
        let mut given_back = Vec::new();
        forget_all_of(8, &mut ready, |receive| given_back.push(receive));
        assert_eq!(ready, others);
        assert_eq!(given_back, [RECEIVE | 5, RECEIVE | 1 << 32 | 2]);
    }
}
