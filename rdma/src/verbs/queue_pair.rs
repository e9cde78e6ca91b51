//! The data path of a queue pair: posting messages, receives and lists of READs. No allocation after warm-up; a system call only where the
//! device is one in software.

use super::completion::{Completion, CompletionQueue};
use super::device::Domain;
use super::memory::Region;
use super::receive_queue::SharedReceiveQueue;
use super::{VerbsError, checked};
use crate::planner::{Limits, Plan};
use crate::queue_pair::{PostId, SendQueue, State, Step};
use crate::selection::IndexedGid;
use rdma_sys::{
    ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
    imm_data_invalidated_rkey_union_t, rdma_t, wr_t,
};
use std::ptr::NonNull;
use std::sync::Arc;

/// A reliable connected queue pair. Made and connected in [`super::connection`]. When it is dropped the device is done with all that was
/// posted on it: nothing is read or written any more.
pub struct QueuePair {
    pub(super) domain: Arc<Domain>,
    #[expect(dead_code, reason = "kept alive for as long as the device may complete something here")]
    pub(super) completions: Arc<CompletionQueue>,
    #[expect(dead_code, reason = "kept alive for as long as the device may receive from it")]
    pub(super) shared: Option<Arc<SharedReceiveQueue>>,
    pub(super) raw: NonNull<ibv_qp>,
    pub(super) state: State,
    pub(super) queue: SendQueue,
    pub(super) inline_bytes: u32,
    pub(super) segments: usize,
    pub(super) first_packet: u32,
    /// Of this side.
    pub(super) gid: IndexedGid,
    /// The list that is being posted, kept for its room.
    pub(super) requests: Vec<ibv_send_wr>,
    pub(super) scatter: Vec<ibv_sge>,
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number())
            .field("state", &self.state)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

// SAFETY: libibverbs allows every thread to use a queue pair; the pointers in the list that is kept are set anew for each post.
unsafe impl Send for QueuePair {}

/// Memory of the peer that may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// Address of its first byte, in the peer's process.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// What a READ has to carry.
    pub key: u32,
}

impl QueuePair {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: lives as long as `self`; the library doesn't change the number.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// The domain that it belongs to, as all memory that it uses does.
    #[must_use]
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The GID that it has on this side, and its index in the port's table.
    #[must_use]
    pub fn gid(&self) -> IndexedGid {
        self.gid
    }

    /// How far it is set up.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// How many more posts it takes now.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u64 {
        if self.state.takes_sends() { self.queue.room() } else { 0 }
    }

    /// Bytes of a message that need no registered memory.
    #[must_use]
    pub fn inline_bytes(&self) -> usize {
        self.inline_bytes as usize
    }

    /// What a list of READs has to keep to now.
    #[inline]
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            reads: usize::try_from(self.room()).unwrap_or(usize::MAX),
            segments_per_read: self.segments,
            // A message may have 2 GiB at most.
            bytes_per_read: self.domain.device.limits.message_bytes.min(1 << 30),
        }
    }

    /// Posts all READs of `plan` with one doorbell and one completion, that of the last. Its number. `locals` are the regions that the plan
    /// means by their places.
    ///
    /// # Errors
    /// What the library says; the queue pair has failed then. Also where the list reaches beyond a region, or there is no room: then
    /// nothing was posted.
    ///
    /// # Safety
    /// Nobody looks at the local bytes before the post is done, and their regions live until then or until the queue pair was dropped.
    pub unsafe fn post_reads(
        &mut self,
        plan: &Plan,
        locals: &[&Region],
        remote: &RemoteRegion,
    ) -> Result<PostId, VerbsError> {
        let reads = plan.reads();
        let within =
            |offset: u64, length: u64, all: u64| offset.checked_add(length).is_some_and(|end| end <= all);
        let is_within = reads.iter().all(|read| {
            within(read.remote_offset, read.length, remote.length)
                && plan.segments_of(read).iter().all(|part| {
                    let local = locals.get(usize::from(part.local_region));
                    local.is_some_and(|local| within(part.local_offset, part.length, local.len()))
                })
        });
        if reads.is_empty() || reads.len() as u64 > self.room() || !is_within {
            return Err(VerbsError::Peer("a list of READs that is empty, too long or out of bounds"));
        }
        self.scatter.clear();
        self.requests.clear();
        for read in reads {
            self.scatter.extend(plan.segments_of(read).iter().map(|part| {
                let local = locals[usize::from(part.local_region)];
                ibv_sge {
                    addr: local.address() + part.local_offset,
                    length: part.length as u32,
                    lkey: local.local_key(),
                }
            }));
        }
        let mut last = PostId(0);
        for (index, read) in reads.iter().enumerate() {
            let (id, is_signalled) = self.queue.post(index + 1 == reads.len());
            last = id;
            let mut request = request(id, ibv_wr_opcode::IBV_WR_RDMA_READ, is_signalled);
            let (first, count) = read.segments;
            request.sg_list = &raw mut self.scatter[first];
            request.num_sge = count as i32;
            request.wr =
                wr_t { rdma: rdma_t { remote_addr: remote.address + read.remote_offset, rkey: remote.key } };
            self.requests.push(request);
        }
        // SAFETY: the caller's promise for the local bytes; the list lies in `self` and isn't moved before it was posted.
        unsafe { self.post_list() }?;
        Ok(last)
    }

    /// Sends `bytes` bytes at `offset` of `source`, with a completion, and `immediate` beside them, if that's given. Its number.
    ///
    /// # Errors
    /// As for [`QueuePair::post_reads`].
    ///
    /// # Safety
    /// Nobody changes the bytes before the post is done, and their region lives until then or until the queue pair was dropped.
    pub unsafe fn post_message(
        &mut self,
        source: &Region,
        offset: u64,
        bytes: u32,
        immediate: Option<u32>,
    ) -> Result<PostId, VerbsError> {
        if self.room() == 0 || offset.checked_add(u64::from(bytes)).is_none_or(|end| end > source.len()) {
            return Err(VerbsError::Peer("a message that is out of bounds, or one too many"));
        }
        let part = ibv_sge { addr: source.address() + offset, length: bytes, lkey: source.local_key() };
        // SAFETY: the caller's promise.
        unsafe { self.post_one(part, ibv_send_flags(0), immediate, true) }
    }

    /// Sends bytes that need not stay in place, at most [`QueuePair::inline_bytes`], and `immediate` beside them, if that's given. It has a
    /// completion only where the queue needs one. Its number.
    ///
    /// # Errors
    /// As for [`QueuePair::post_reads`].
    #[inline]
    pub fn post_inline(&mut self, message: &[u8], immediate: Option<u32>) -> Result<PostId, VerbsError> {
        if self.room() == 0 || message.len() > self.inline_bytes() {
            return Err(VerbsError::Peer("a message that is too long to be sent inline, or one too many"));
        }
        let part = ibv_sge { addr: message.as_ptr() as u64, length: message.len() as u32, lkey: 0 };
        let flags = if message.is_empty() { ibv_send_flags(0) } else { ibv_send_flags::IBV_SEND_INLINE };
        // SAFETY: inline bytes are copied before the call returns.
        unsafe { self.post_one(part, flags, immediate, false) }
    }

    /// # Safety
    /// As for [`QueuePair::post_message`].
    unsafe fn post_one(
        &mut self,
        part: ibv_sge,
        flags: ibv_send_flags,
        immediate: Option<u32>,
        wants_completion: bool,
    ) -> Result<PostId, VerbsError> {
        let (id, is_signalled) = self.queue.post(wants_completion);
        self.scatter.clear();
        self.requests.clear();
        self.scatter.push(part);
        let mut request = request(id, ibv_wr_opcode::IBV_WR_SEND, is_signalled);
        if let Some(immediate) = immediate {
            request.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            request.imm_data_invalidated_rkey_union =
                imm_data_invalidated_rkey_union_t { imm_data: immediate.to_be() };
        }
        request.send_flags |= flags.0;
        request.sg_list = self.scatter.as_mut_ptr();
        // A segment of no bytes means 2 GiB to some devices.
        request.num_sge = i32::from(part.length > 0);
        self.requests.push(request);
        // SAFETY: the caller's promise; the list lies in `self`.
        unsafe { self.post_list() }?;
        Ok(id)
    }

    /// # Safety
    /// What the list refers to stays in place until its posts are done.
    unsafe fn post_list(&mut self) -> Result<(), VerbsError> {
        for index in 1..self.requests.len() {
            let next = &raw mut self.requests[index];
            self.requests[index - 1].next = next;
        }
        let mut refused = std::ptr::null_mut();
        // SAFETY: the queue pair lives as long as `self`; requests and segments are read before the call returns; the caller's promise for
        // the rest.
        let status = unsafe {
            rdma_sys::ibv_post_send(self.raw.as_ptr(), self.requests.as_mut_ptr(), &raw mut refused)
        };
        let outcome = checked("ibv_post_send", status);
        if outcome.is_err() {
            // Some of the list may be under way, and the numbers are used up.
            self.fail();
        }
        outcome
    }

    /// Gives `bytes` bytes at `offset` of `target` to the device, for a message of the peer. Its completion carries `id`, which should be told
    /// from numbers of posts by [`RECEIVE`].
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// Nobody looks at the bytes before the receive has completed, and their region lives until then or until the queue pair was dropped.
    pub unsafe fn post_receive(
        &mut self,
        id: u64,
        target: &Region,
        offset: u64,
        bytes: u32,
    ) -> Result<(), VerbsError> {
        let is_within = offset.checked_add(u64::from(bytes)).is_some_and(|end| end <= target.len());
        if !self.state.takes_receives() || !is_within {
            return Err(VerbsError::Peer("a receive that is out of bounds"));
        }
        let mut part = ibv_sge { addr: target.address() + offset, length: bytes, lkey: target.local_key() };
        let mut request =
            ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: &raw mut part, num_sge: 1 };
        let mut refused = std::ptr::null_mut();
        // SAFETY: request and segment are read before the call returns; the caller's promise for the bytes.
        let status =
            unsafe { rdma_sys::ibv_post_recv(self.raw.as_ptr(), &raw mut request, &raw mut refused) };
        checked("ibv_post_recv", status)
    }

    /// Takes note of a completion of this queue pair that is no receive. Whether it was one of a post, and successful; if not, the queue
    /// pair has failed.
    #[inline]
    pub fn completed(&mut self, completion: &Completion) -> bool {
        let is_fine = completion.status.is_success() && self.queue.completed(PostId(completion.id));
        if !is_fine {
            self.fail();
        }
        is_fine
    }

    /// Whether the post with this number is known to be done.
    #[inline]
    #[must_use]
    pub fn is_done(&self, id: PostId) -> bool {
        self.queue.is_done(id)
    }

    /// Takes nothing more, and receives nothing more. What is under way completes with an error.
    #[cold]
    pub fn fail(&mut self) {
        if self.state == State::Error {
            return;
        }
        self.state = self.state.after(Step::Fail).unwrap_or(State::Error);
        let mut attributes = super::connection::attributes(rdma_sys::ibv_qp_state::IBV_QPS_ERR);
        let mask = rdma_sys::ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair lives as long as `self`. A device that has gone refuses, and does nothing more anyway.
        unsafe { (self.domain.device.library.modify_qp)(self.raw.as_ptr(), &raw mut attributes, mask) };
    }
}

/// Set in the number of a receive.
pub const RECEIVE: u64 = 1 << 63;

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by `new`. The call returns once the device is done with what was posted.
        unsafe { (self.domain.device.library.destroy_qp)(self.raw.as_ptr()) };
    }
}

fn request(id: PostId, opcode: rdma_sys::ibv_wr_opcode::Type, is_signalled: bool) -> ibv_send_wr {
    // SAFETY: null pointers and zeros are valid in all fields.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = id.0;
    request.opcode = opcode;
    request.send_flags = if is_signalled { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
    request.imm_data_invalidated_rkey_union = imm_data_invalidated_rkey_union_t { imm_data: 0 };
    request
}
