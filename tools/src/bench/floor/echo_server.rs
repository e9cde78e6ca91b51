//! The answering half of the TCP limits: one connection on an io_uring of its own (SINGLE_ISSUER, DEFER_TASKRUN) that polls and never
//! sleeps in its turn. It receives a request of a known size, sends a reply of a known size, and does nothing else. The longer of the two
//! may lie in as much memory as a store's values do, each time in another place of it.

use std::hint;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;

use fastrand::Rng;
use io_uring::{IoUring, opcode, types};

use super::peer::Turn;
use super::places;
use crate::exit::Failure;

/// `MSG_WAITALL | MSG_NOSIGNAL`: the kernel goes on with a reply that doesn't fit the socket's buffer by itself, and a client that has gone
/// is an error rather than a signal.
const WHOLE_AND_QUIET: i32 = 0x100 | 0x4000;

/// Bytes each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Of a request.
    pub request: usize,
    /// Of a reply.
    pub reply: usize,
}

/// What the memory of replies holds at `index`, but for the stamps.
#[must_use]
pub fn reply_byte(index: usize) -> u8 {
    (index % REPLY_BYTES) as u8
}

/// After so many bytes a reply's bytes begin again.
pub const REPLY_BYTES: usize = 251;

/// Memory of which each request or reply takes a part, filled with [`reply_byte`].
struct Side {
    memory: Vec<u8>,
    /// Of a request or reply.
    length: usize,
    /// Where this one begins.
    start: usize,
}

impl Side {
    fn new(memory_bytes: usize, length: usize) -> Side {
        Side { memory: (0..memory_bytes.max(length)).map(reply_byte).collect(), length, start: 0 }
    }

    fn current(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// The server of one connection. There is never more than one operation in flight.
pub struct EchoServer {
    ring: IoUring,
    /// The kernel may touch one of the buffers.
    in_flight: bool,
    connection: TcpStream,
    request: Side,
    reply: Side,
    random: Rng,
    /// What the stamp of the reply under way stands over.
    stamped: [u8; 8],
}

/// What is in flight.
enum Step {
    /// The rest of a request, of which so many bytes are there.
    Receiving(usize),
    /// The rest of a reply, of which so many bytes are gone.
    Sending(usize),
}

impl EchoServer {
    /// To be called on the thread that will [`EchoServer::run`]: the ring takes operations from no other. Requests come to one place of
    /// `memory_bytes` after the other, or replies from any, whichever are longer; where that's less than one of them, always to or from the same.
    pub fn new(connection: TcpStream, shape: Shape, memory_bytes: usize) -> Result<EchoServer, Failure> {
        let ring =
            IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(8);
        let ring =
            ring.map_err(|error| Failure::Machine(format!("io_uring: {error}; `lanner check` says why")))?;
        let (for_requests, for_replies) =
            if shape.request > shape.reply { (memory_bytes, 0) } else { (0, memory_bytes) };
        Ok(EchoServer {
            ring,
            in_flight: false,
            connection,
            // Not zeros, of which the system gives no page before it's written.
            request: Side::new(for_requests, shape.request),
            reply: Side::new(for_replies, shape.reply),
            random: Rng::with_seed(1),
            stamped: [0; 8],
        })
    }

    /// Answers until the turn has ended or the client has gone.
    pub fn run(mut self, turn: &Turn) {
        let mut step = Step::Receiving(0);
        if self.start(&step).is_err() {
            return;
        }
        while turn.goes_on() {
            match self.poll() {
                Ok(None) => hint::spin_loop(),
                Ok(Some(bytes)) if bytes > 0 => {
                    step = self.next(step, bytes as usize);
                    if self.start(&step).is_err() {
                        return;
                    }
                }
                // The client has gone, or the kernel refuses: it sees the connection close.
                Ok(Some(_)) | Err(_) => return,
            }
        }
    }

    /// What follows when `bytes` more have moved.
    fn next(&mut self, step: Step, bytes: usize) -> Step {
        match step {
            Step::Receiving(done) if done + bytes < self.request.length => Step::Receiving(done + bytes),
            Step::Receiving(_) => {
                self.reply.start = places::any(&mut self.random, self.reply.length, self.reply.memory.len());
                self.stamped = self.reply.current()[..8].try_into().unwrap_or_default();
                self.reply.current()[..8].copy_from_slice(&self.request.current()[..8]);
                Step::Sending(0)
            }
            Step::Sending(done) if done + bytes < self.reply.length => Step::Sending(done + bytes),
            Step::Sending(_) => {
                self.reply.current()[..8].copy_from_slice(&self.stamped);
                self.request.start =
                    places::behind(self.request.start, self.request.length, self.request.memory.len());
                Step::Receiving(0)
            }
        }
    }

    /// Hands the kernel the operation of `step`.
    fn start(&mut self, step: &Step) -> io::Result<()> {
        let socket = types::Fd(self.connection.as_raw_fd());
        let operation = match *step {
            Step::Receiving(done) => {
                let rest = &mut self.request.current()[done..];
                opcode::Recv::new(socket, rest.as_mut_ptr(), rest.len() as u32).build()
            }
            Step::Sending(done) => {
                let rest = &self.reply.current()[done..];
                opcode::Send::new(socket, rest.as_ptr(), rest.len() as u32).flags(WHOLE_AND_QUIET).build()
            }
        };
        // SAFETY: the buffers belong to `self` and are never resized. They are touched again only when this operation, the only one
        // in flight, has completed, and freed only by `drop`, which waits for that.
        unsafe { self.ring.submission().push(&operation) }.map_err(io::Error::other)?;
        self.in_flight = true;
        self.ring.submit().map(|_| ())
    }

    /// The result of the operation in flight, if it has one: bytes moved or a negative error number. Enters the kernel only when the ring
    /// says that there is work to do.
    fn poll(&mut self) -> io::Result<Option<i32>> {
        if self.ring.submission().taskrun() {
            self.ring.submitter().submit_and_wait(0)?;
        }
        let completion = self.ring.completion().next();
        self.in_flight &= completion.is_none();
        Ok(completion.map(|completion| completion.result()))
    }
}

impl Drop for EchoServer {
    /// Closes the connection, which completes whatever is in flight, and waits for it: the kernel has to let go of the buffers.
    fn drop(&mut self) {
        // Already closed by the client is as good.
        let _ = self.connection.shutdown(Shutdown::Both);
        while self.in_flight {
            match self.ring.submit_and_wait(1) {
                Ok(_) => self.in_flight = self.ring.completion().next().is_none(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing tells when the kernel is done; a leak is the only safe end.
                Err(_) => {
                    std::mem::forget([
                        std::mem::take(&mut self.request.memory),
                        std::mem::take(&mut self.reply.memory),
                    ]);
                    return;
                }
            }
        }
    }
}
