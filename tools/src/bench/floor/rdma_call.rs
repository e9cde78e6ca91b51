//! The limit of a call over RDMA: a message there and one back, and where a value is read one-sided, a READ of it by the side that wants it.
//! Both sides poll and never sleep.
//!
//! ```text
//! nothing to read   near ── message ──► far ── message ──► near
//! a get's value     near ── message ──► far ── message ──► near ══ READ of far's memory
//! a put's value     near ── message ──► far ══ READ of near's memory ── message ──► near
//! ```

use lanner_rdma::planner::{Piece, Plan};
use lanner_rdma::verbs::queue_pair::{RECEIVE, RemoteRegion};
use lanner_shared::time::Clock;

use super::cores::CorePair;
use super::device_pair::{self, End, EndOptions, give_up_after, refused};
use super::peer::{Peer, Turn};
use crate::bench::workload::Workload;
use crate::exit::Failure;

/// Bytes of a message: about what a request without a value takes.
const MESSAGE_BYTES: usize = 64;

/// Who reads a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Nobody.
    Nothing,
    /// The side that asks: a get.
    Near(usize),
    /// The side that is asked: a put.
    Far(usize),
}

/// Calls, one a round.
pub struct RdmaCall {
    reads: Reads,
    near: Side,
    far: Peer,
}

/// An end: memory for a message that comes, then for a value.
struct Side {
    end: End,
    remote: RemoteRegion,
    plan: Plan,
}

impl RdmaCall {
    /// Calls over the devices that lead to `server` and back, answered by a thread on the server's CPU; `None` where its device isn't on this
    /// machine. The caller is to run on the client's CPU.
    ///
    /// # Errors
    /// What the devices, or the system, refuse.
    pub fn new(server: &str, cores: CorePair, reads: Reads) -> Result<Option<RdmaCall>, Failure> {
        let bytes = match reads {
            Reads::Nothing => 0,
            Reads::Near(bytes) | Reads::Far(bytes) => bytes,
        };
        let options =
            EndOptions { bytes: MESSAGE_BYTES + bytes, posts: 8, inline_bytes: MESSAGE_BYTES as u32 };
        let Some((near, far)) = device_pair::connect(server, options, options)? else { return Ok(None) };
        let (mut near, mut far) = (Side::new(near), Side::new(far));
        (near.remote, far.remote) = (far.end.region(), near.end.region());
        let value: Vec<u8> = (0..bytes).map(content_at).collect();
        match reads {
            Reads::Nothing => {}
            Reads::Near(_) => far.end.buffer.write(MESSAGE_BYTES, &value),
            Reads::Far(_) => near.end.buffer.write(MESSAGE_BYTES, &value),
        }
        let far = Peer::start(cores.server, move || {
            far.expect()?;
            Ok(move |turn: &Turn| answer(far, reads, turn))
        })?;
        Ok(Some(RdmaCall { reads, near, far }))
    }

    fn call(&mut self) -> Result<(), Failure> {
        self.near.expect()?;
        self.near.say()?;
        let began = Clock.now();
        while !self.near.end.poll()? {
            give_up_after(began)?;
        }
        match self.reads {
            Reads::Near(bytes) => self.near.read(bytes),
            _ => Ok(()),
        }
    }
}

/// Answers calls until the turn has ended or the connection has.
fn answer(mut side: Side, reads: Reads, turn: &Turn) {
    while turn.goes_on() {
        let answered = match side.end.poll() {
            Ok(false) => continue,
            Ok(true) => side.expect(),
            Err(failure) => Err(failure),
        };
        let read = |side: &mut Side| match reads {
            Reads::Far(bytes) => side.read(bytes),
            _ => Ok(()),
        };
        // Who asked learns of a failure by the silence.
        if answered.and_then(|()| read(&mut side)).and_then(|()| side.say()).is_err() {
            return;
        }
    }
}

impl Side {
    fn new(end: End) -> Side {
        Side { end, remote: RemoteRegion { address: 0, length: 0, key: 0 }, plan: Plan::default() }
    }

    /// Makes room for a message.
    fn expect(&mut self) -> Result<(), Failure> {
        let End { queue_pair, buffer, .. } = &mut self.end;
        // SAFETY: nobody looks at the bytes of a message, and the buffer is dropped behind the queue pair.
        unsafe { queue_pair.post_receive(RECEIVE, buffer.region(), 0, MESSAGE_BYTES as u32) }.map_err(refused)
    }

    fn say(&mut self) -> Result<(), Failure> {
        let began = Clock.now();
        while self.end.queue_pair.room() == 0 {
            self.end.poll()?;
            give_up_after(began)?;
        }
        self.end.queue_pair.post_inline(&[1; MESSAGE_BYTES], None).map(drop).map_err(refused)
    }

    fn read(&mut self, bytes: usize) -> Result<(), Failure> {
        self.plan.clear();
        let offset = MESSAGE_BYTES as u64;
        let piece =
            Piece { remote_offset: offset, length: bytes as u64, local_region: 0, local_offset: offset };
        let limits = self.end.queue_pair.limits();
        if self.plan.push(piece, &limits) < bytes as u64 {
            return Err(Failure::Machine(format!("the device takes no READ of {bytes} bytes")));
        }
        let End { queue_pair, buffer, .. } = &mut self.end;
        // SAFETY: the bytes are looked at behind the READ's completion only, and the buffer is dropped behind the queue pair.
        let posted = unsafe { queue_pair.post_reads(&self.plan, &[buffer.region()], &self.remote) };
        self.end.wait_for(posted.map_err(refused)?)
    }
}

impl Workload for RdmaCall {
    fn name(&self) -> String {
        match self.reads {
            Reads::Nothing => "bare messages, there and back".to_owned(),
            Reads::Near(bytes) => format!("bare messages, and a READ of {bytes} B"),
            Reads::Far(bytes) => format!("bare messages, and a READ of {bytes} B by the peer"),
        }
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.far.wake();
        let outcome = self.call();
        self.far.rest();
        outcome?;
        let Reads::Near(bytes) = self.reads else { return Ok(MESSAGE_BYTES as u64) };
        let mut value = vec![0; bytes];
        self.near.end.buffer.read(MESSAGE_BYTES, &mut value);
        match value.iter().enumerate().find(|(at, byte)| **byte != content_at(*at)) {
            Some((at, byte)) => Err(Failure::Machine(format!("a READ brought {byte} for byte {at}"))),
            None => Ok(bytes as u64),
        }
    }

    fn begin_turn(&mut self) -> Result<(), Failure> {
        self.far.wake();
        Ok(())
    }

    fn round(&mut self) -> Result<u64, Failure> {
        let before = Clock.now();
        self.call()?;
        Ok(Clock.now().since(before).as_nanos() as u64)
    }

    fn end_turn(&mut self) {
        self.far.rest();
    }
}

fn content_at(offset: usize) -> u8 {
    (offset as u8).wrapping_mul(37).wrapping_add((offset >> 8) as u8)
}
