//! Whether the other end of a connection is there, and whether what was begun on it goes on.

use super::{Connection, Transport, Writer};
use lanner_shared::time::Clock;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::AsFd;
use std::time::Duration;

/// A value that has not gone on for so long, while another request waits for it, is left alone on its connection. Long against the pauses of
/// a caller that polls its calls in turn.
const WRITER_PATIENCE: Duration = Duration::from_millis(10);

/// How often it is asked whether a server is still there, before a change over a connection on which nothing is under way. Asking costs some
/// 0.3 us; a server that was started again was away for longer.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What the server says over a socket, as far as the system knows now, without taking anything of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Nothing,
    Bytes,
    End,
}

/// Asks the system; never waits.
pub(super) fn heard(socket: impl AsFd) -> Heard {
    let mut byte = [0; 1];
    match rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
        Ok((1.., _)) => Heard::Bytes,
        Err(Errno::WOULDBLOCK | Errno::INTR) => Heard::Nothing,
        Ok(_) | Err(_) => Heard::End,
    }
}

impl Connection {
    /// Whether the server at the other end is still there, as far as the system knows now. Asks the system; not for each key.
    pub fn is_peer_there(&self) -> bool {
        match &self.transport {
            Transport::Tcp(tcp) => tcp.is_peer_there(),
            Transport::Rdma(rdma) => rdma.stream().is_peer_there(),
            Transport::Shm(shm) => shm.is_peer_there(),
            #[cfg(feature = "simulation")]
            Transport::Simulated(_) => true,
        }
    }

    /// Whether the server has gone while nothing was asked over this connection: to be asked before a change, which is never repeated, and which
    /// nobody could tell the outcome of if it was sent there. Asks the system at most once in [`LOOK_EVERY`].
    #[inline]
    pub fn was_left(&mut self) -> bool {
        if !self.pending.is_empty() {
            return false;
        }
        let now = Clock.now();
        if now.since(self.looked_at) < LOOK_EVERY {
            return false;
        }
        self.looked_at = now;
        !self.is_peer_there()
    }

    /// Whether requests of others are kept waiting by a value that hasn't gone on for [`WRITER_PATIENCE`]: its owner doesn't poll, and this
    /// thread may be the only one that could. To be asked each time that [`Connection::can_submit`] says no.
    #[cold]
    pub fn is_stuck(&mut self) -> bool {
        let Some(Writer { request_id, remaining }) = self.writer else { return false };
        let now = Clock.now();
        match self.kept_waiting {
            Some((id, bytes, since)) if (id, bytes) == (request_id, remaining) => {
                now.since(since) >= WRITER_PATIENCE
            }
            _ => {
                self.kept_waiting = Some((request_id, remaining, now));
                false
            }
        }
    }
}
