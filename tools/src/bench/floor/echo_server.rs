//! The answering half of the TCP limits: one connection on an io_uring of its own (SINGLE_ISSUER, DEFER_TASKRUN) that polls and never
//! sleeps in its turn. It receives a request of a known size, sends a reply of a known size, and does nothing else.

use std::hint;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::peer::Turn;
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

/// What a reply holds behind its stamp.
#[must_use]
pub fn reply_byte(index: usize) -> u8 {
    (index % 251) as u8
}

/// The server of one connection. There is never more than one operation in flight.
pub struct EchoServer {
    ring: IoUring,
    /// The kernel may touch one of the buffers.
    in_flight: bool,
    connection: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
}

/// What is in flight.
enum Step {
    /// The rest of a request, of which so many bytes are there.
    Receiving(usize),
    /// The rest of a reply, of which so many bytes are gone.
    Sending(usize),
}

impl EchoServer {
    /// To be called on the thread that will [`EchoServer::run`]: the ring takes operations from no other.
    pub fn new(connection: TcpStream, shape: Shape) -> Result<EchoServer, Failure> {
        let ring =
            IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(8);
        let ring =
            ring.map_err(|error| Failure::Machine(format!("io_uring: {error}; `lanner check` says why")))?;
        let reply = (0..shape.reply).map(reply_byte).collect();
        Ok(EchoServer { ring, in_flight: false, connection, request: vec![0; shape.request], reply })
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
            Step::Receiving(done) if done + bytes < self.request.len() => Step::Receiving(done + bytes),
            Step::Receiving(_) => {
                self.reply[..8].copy_from_slice(&self.request[..8]);
                Step::Sending(0)
            }
            Step::Sending(done) if done + bytes < self.reply.len() => Step::Sending(done + bytes),
            Step::Sending(_) => Step::Receiving(0),
        }
    }

    /// Hands the kernel the operation of `step`.
    fn start(&mut self, step: &Step) -> io::Result<()> {
        let socket = types::Fd(self.connection.as_raw_fd());
        let operation = match *step {
            Step::Receiving(done) => {
                let rest = &mut self.request[done..];
                opcode::Recv::new(socket, rest.as_mut_ptr(), rest.len() as u32).build()
            }
            Step::Sending(done) => {
                let rest = &self.reply[done..];
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
                    std::mem::forget((std::mem::take(&mut self.request), std::mem::take(&mut self.reply)));
                    return;
                }
            }
        }
    }
}
