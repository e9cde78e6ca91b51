//! A core's own io_uring: sockets and wake-ups of its transports, polled by the pump.
//!
//! Set up with SINGLE_ISSUER and DEFER_TASKRUN: the kernel completes operations only when this thread enters it, so an idle
//! poll is a look at a flag in shared memory and no system call. Every operation is tagged with an [`Operation`]; what it
//! uses must stay in place until its completion was taken, which is the transports' side of each `unsafe` here.

use io_uring::squeue::Entry;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// Entries of the submission queue. When it's full the queue is handed to the kernel in between, so this bounds nothing.
const ENTRIES: u32 = 256;
/// Entries of the completion queue. When it overflows the kernel keeps the rest until there is room.
const COMPLETIONS: u32 = 4096;

/// The most bytes of one operation: the kernel refuses lengths from 2 GiB on. Longer values take several.
const MOST_BYTES: usize = 1 << 30;

/// The tag of what nobody is told the end of.
const UNTAGGED: u64 = 0;

/// What an operation was for: who to tell of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Which kind.
    pub kind: OperationKind,
    /// Which connection, by its place in its transport's table.
    pub index: u32,
}

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OperationKind {
    /// A listener has a connection.
    Accept = 1,
    /// Bytes of a handshake.
    HandshakeReceive = 2,
    /// Bytes of a TCP connection.
    TcpReceive = 3,
    /// Bytes were sent over a TCP connection.
    TcpSend = 4,
    /// The Unix socket of a shared-memory lane has ended.
    LaneEnd = 5,
    /// Another core, or a client of a sleeping core, wants attention.
    Wake = 6,
    /// The TCP connection of an RDMA peer has something to say, which can only be its end.
    RdmaEnd = 7,
    /// A completion queue has a completion.
    RdmaCompletion = 8,
    /// An RDMA device has something to say by itself.
    RdmaDevice = 9,
}

impl Operation {
    fn encode(self) -> u64 {
        u64::from(self.kind as u8) << 32 | u64::from(self.index)
    }

    fn decode(user_data: u64) -> Option<Operation> {
        use OperationKind::{Accept, HandshakeReceive, LaneEnd, TcpReceive, TcpSend, Wake};
        use OperationKind::{RdmaCompletion, RdmaDevice, RdmaEnd};
        let kinds = [
            Accept,
            HandshakeReceive,
            TcpReceive,
            TcpSend,
            LaneEnd,
            Wake,
            RdmaEnd,
            RdmaCompletion,
            RdmaDevice,
        ];
        let kind = kinds.into_iter().find(|kind| *kind as u64 == user_data >> 32)?;
        Some(Operation { kind, index: user_data as u32 })
    }
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Which one.
    pub operation: Operation,
    /// What the system call would have returned: a count or descriptor, or a negative error number.
    pub result: i32,
    /// The operation goes on and will complete again.
    pub goes_on: bool,
}

/// The ring.
pub struct Ring {
    ring: IoUring,
    is_unsubmitted: bool,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("is_unsubmitted", &self.is_unsubmitted).finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring for the calling thread, which is the only one that may use it.
    ///
    /// # Errors
    /// What the system says; `lanner check` explains it.
    pub fn new() -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(COMPLETIONS)
            .setup_clamp()
            .build(ENTRIES)?;
        Ok(Ring { ring, is_unsubmitted: false })
    }

    /// Hands what was queued to the kernel, and lets it complete what is ready. A system call only if there is any of either.
    #[inline]
    pub fn submit(&mut self) {
        // SAFETY: no other submission queue handle exists: `self` is borrowed mutably and hands none out.
        let has_task_work = unsafe { self.ring.submission_shared() }.taskrun();
        if self.is_unsubmitted || has_task_work {
            self.is_unsubmitted = false;
            // An error here (EINTR, EBUSY on overflow) leaves the entries queued; the next turn tries again.
            self.is_unsubmitted |= self.ring.submit().is_err();
        }
    }

    /// The completions that have come. Take them all before submitting again.
    #[inline]
    pub fn take_completions(&mut self, completions: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            if let Some(operation) = Operation::decode(entry.user_data()) {
                let goes_on = io_uring::cqueue::more(entry.flags());
                completions.push(Completion { operation, result: entry.result(), goes_on });
            }
        }
    }

    /// Sleeps until something completes or `timeout` has passed.
    pub fn wait(&mut self, timeout: Duration) {
        let time = Timespec::from(timeout);
        let arguments = SubmitArgs::new().timespec(&time);
        // ETIME and EINTR mean that there is nothing to do yet, which the caller will see. What wasn't taken for another reason
        // is submitted with the next turn.
        self.is_unsubmitted = self.ring.submitter().submit_with_args(1, &arguments).is_err();
    }

    /// Accepts connections from `listener` until it's closed.
    pub fn accept(&mut self, listener: BorrowedFd<'_>, operation: Operation) {
        let entry = opcode::AcceptMulti::new(Fd(listener.as_raw_fd()))
            .flags(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
            .build();
        // SAFETY: the operation refers to no memory.
        unsafe { self.push(entry, operation) }
    }

    /// Receives into `length` bytes at `target`.
    ///
    /// # Safety
    /// The target must stay in place, and be used by nobody else, until the completion of `operation` was taken.
    #[inline]
    pub unsafe fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        target: *mut u8,
        length: usize,
        operation: Operation,
    ) {
        let length = length.min(MOST_BYTES) as u32;
        let entry = opcode::Recv::new(Fd(socket.as_raw_fd()), target, length).build();
        // SAFETY: the caller's promise.
        unsafe { self.push(entry, operation) }
    }

    /// Sends `length` bytes from `source`.
    ///
    /// # Safety
    /// The source must stay in place and unchanged until the completion of `operation` was taken.
    #[inline]
    pub unsafe fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        source: *const u8,
        length: usize,
        operation: Operation,
    ) {
        let length = length.min(MOST_BYTES) as u32;
        let entry =
            opcode::Send::new(Fd(socket.as_raw_fd()), source, length).flags(libc::MSG_NOSIGNAL).build();
        // SAFETY: the caller's promise.
        unsafe { self.push(entry, operation) }
    }

    /// Sends what `message` gathers.
    ///
    /// # Safety
    /// The message, its vector and all that it refers to must stay in place and unchanged until the completion of
    /// `operation` was taken.
    #[inline]
    pub unsafe fn send_message(
        &mut self,
        socket: BorrowedFd<'_>,
        message: *const libc::msghdr,
        operation: Operation,
    ) {
        let entry =
            opcode::SendMsg::new(Fd(socket.as_raw_fd()), message).flags(libc::MSG_NOSIGNAL as u32).build();
        // SAFETY: the caller's promise.
        unsafe { self.push(entry, operation) }
    }

    /// Completes once `source` (an eventfd, or a socket over which nothing is ever sent) can be read from.
    pub fn watch(&mut self, source: BorrowedFd<'_>, operation: Operation) {
        let entry = opcode::PollAdd::new(Fd(source.as_fd().as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: the operation refers to no memory.
        unsafe { self.push(entry, operation) }
    }

    /// Has operations with this tag complete now, with an error. Until they have, they keep their descriptors' files open.
    pub fn cancel(&mut self, operation: Operation) {
        let entry = opcode::AsyncCancel::new(operation.encode()).build().user_data(UNTAGGED);
        // SAFETY: the operation refers to no memory.
        unsafe { self.push_tagged(&entry) }
    }

    /// # Safety
    /// What the entry refers to must stay in place until its completion was taken.
    #[inline]
    unsafe fn push(&mut self, entry: Entry, operation: Operation) {
        let entry = entry.user_data(operation.encode());
        // SAFETY: the caller's promise.
        unsafe { self.push_tagged(&entry) }
    }

    /// # Safety
    /// As for [`Ring::push`].
    #[inline]
    unsafe fn push_tagged(&mut self, entry: &Entry) {
        self.is_unsubmitted = true;
        loop {
            // SAFETY: the caller's promise.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // Full: the kernel takes what is there. It can refuse for want of memory only for a moment.
            let _ = self.ring.submit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_survives_its_journey_through_the_kernel() {
        let operation = Operation { kind: OperationKind::Wake, index: u32::MAX };
        assert_eq!(Operation::decode(operation.encode()), Some(operation));
        assert_eq!(Operation::decode(UNTAGGED), None);
        assert_eq!(Operation::decode(99 << 32), None);
    }

    #[test]
    fn a_wait_ends_with_its_time_or_with_a_completion() {
        let mut ring = Ring::new().unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let operation = Operation { kind: OperationKind::Wake, index: 7 };
        ring.watch(event.as_fd(), operation);
        let mut completions = Vec::new();
        ring.wait(Duration::from_millis(1));
        ring.take_completions(&mut completions);
        assert!(completions.is_empty());
        ring.watch(event.as_fd(), Operation { index: 8, ..operation });
        ring.cancel(Operation { index: 8, ..operation });
        ring.wait(Duration::from_secs(10));
        ring.take_completions(&mut completions);
        let cancelled =
            completions.drain(..).map(|completion| (completion.operation.index, completion.result));
        assert_eq!(cancelled.collect::<Vec<_>>(), [(8, -libc::ECANCELED)]);
        rustix::io::write(&event, &1_u64.to_ne_bytes()).unwrap();
        ring.wait(Duration::from_secs(10));
        ring.take_completions(&mut completions);
        assert_eq!(
            completions.iter().map(|c| (c.operation, c.result > 0)).collect::<Vec<_>>(),
            [(operation, true)]
        );
    }
}
