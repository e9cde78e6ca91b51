//! The limit of a request over shared memory: a line of 64 bytes to another core and one back, through two rings with one producer
//! and one consumer each. The word that says a line is there travels in the line, so a message is one cache line and one transfer.
//!
//! Absent on purpose: flow control. There is one request in flight, so no ring can be full.

use std::array;
use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lanner_shared::time::Clock;

use super::cores::CorePair;
use super::peer::{Peer, Turn};
use crate::bench::workload::Workload;
use crate::exit::Failure;

/// Lines of a ring; a power of two.
const LINES: usize = 64;

/// Words of a line beside the sequence.
const PAYLOAD_WORDS: usize = 7;

/// Longer than any scheduler keeps a thread waiting.
const TIME_OUT: Duration = Duration::from_secs(5);

/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 1 << 16;

/// A message of one cache line.
///
/// | word | written by | read by | ordering |
/// |---|---|---|---|
/// | `sequence` | producer | consumer | release, acquire: makes the payload visible |
/// | `payload` | producer, before the sequence | consumer, after it | relaxed |
#[repr(C, align(64))]
#[derive(Default)]
struct Line {
    sequence: AtomicU64,
    payload: [AtomicU64; PAYLOAD_WORDS],
}

const _: () = assert!(size_of::<Line>() == 64);

/// A ring in one direction. Message `n`, counted from 1, stands in line `n % LINES` with `n` as its sequence.
struct Ring([Line; LINES]);

impl Ring {
    fn new() -> Ring {
        Ring(array::from_fn(|_| Line::default()))
    }

    #[inline]
    fn send(&self, sequence: u64, payload: [u64; PAYLOAD_WORDS]) {
        let line = &self.0[sequence as usize % LINES];
        for (word, value) in line.payload.iter().zip(payload) {
            word.store(value, Ordering::Relaxed);
        }
        line.sequence.store(sequence, Ordering::Release);
    }

    #[inline]
    fn receive(&self, sequence: u64) -> Option<[u64; PAYLOAD_WORDS]> {
        let line = &self.0[sequence as usize % LINES];
        let is_there = line.sequence.load(Ordering::Acquire) == sequence;
        is_there.then(|| array::from_fn(|word| line.payload[word].load(Ordering::Relaxed)))
    }
}

struct Rings {
    requests: Ring,
    answers: Ring,
}

/// Round trips of one line each way.
pub struct RingRoundTrip {
    rings: Arc<Rings>,
    peer: Peer,
    /// Sequence of the last request.
    sequence: u64,
}

impl RingRoundTrip {
    /// Starts the answering thread on the server's CPU. The caller is to run on the client's.
    ///
    /// # Errors
    /// A thread that can't be started or put there.
    pub fn new(cores: CorePair) -> Result<RingRoundTrip, Failure> {
        let rings = Arc::new(Rings { requests: Ring::new(), answers: Ring::new() });
        let peers_rings = rings.clone();
        let peer = Peer::start(cores.server, move || Ok(move |turn: &Turn| answer(&peers_rings, turn)))?;
        Ok(RingRoundTrip { rings, peer, sequence: 0 })
    }

    fn round_trip(&mut self) -> Result<[u64; PAYLOAD_WORDS], Failure> {
        self.sequence += 1;
        self.rings.requests.send(self.sequence, [self.sequence; PAYLOAD_WORDS]);
        let mut waiting_since = None;
        loop {
            for _ in 0..POLLS_PER_LOOK {
                if let Some(payload) = self.rings.answers.receive(self.sequence) {
                    return Ok(payload);
                }
                hint::spin_loop();
            }
            let now = Clock.now();
            if now.since(*waiting_since.get_or_insert(now)) > TIME_OUT {
                return Err(Failure::Machine("the answering thread didn't get to run for 5 s".to_owned()));
            }
        }
    }
}

/// Answers each request with its payload plus one.
fn answer(rings: &Rings, turn: &Turn) {
    let mut sequence = 1;
    while turn.goes_on() {
        if let Some(payload) = rings.requests.receive(sequence) {
            rings.answers.send(sequence, payload.map(|word| word + 1));
            sequence += 1;
        }
        hint::spin_loop();
    }
}

impl Workload for RingRoundTrip {
    fn name(&self) -> String {
        "ring round trip".to_owned()
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.peer.wake();
        // Each line of the rings once.
        for _ in 0..LINES {
            let answer = self.round_trip()?;
            if answer != [self.sequence + 1; PAYLOAD_WORDS] {
                return Err(Failure::Machine(format!("request {} came back as {answer:?}", self.sequence)));
            }
        }
        self.peer.rest();
        Ok((LINES * PAYLOAD_WORDS * 8) as u64)
    }

    fn begin_turn(&mut self) -> Result<(), Failure> {
        self.peer.wake();
        Ok(())
    }

    fn round(&mut self) -> Result<u64, Failure> {
        let before = Clock.now();
        let answer = self.round_trip()?;
        let nanos = Clock.now().since(before).as_nanos() as u64;
        if answer[0] != self.sequence + 1 {
            return Err(Failure::Machine(format!("request {} came back as {answer:?}", self.sequence)));
        }
        Ok(nanos)
    }

    fn end_turn(&mut self) {
        self.peer.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that answers are right over several times the length of the rings and across turns.
    #[test]
    fn answers_are_right_all_around_the_rings() {
        let cores = CorePair::of_this_machine().expect("two CPUs");
        let mut ring = RingRoundTrip::new(cores).expect("a thread");
        assert_eq!(ring.prepare().expect("right answers"), 64 * 56);
        for _ in 0..5 {
            ring.begin_turn().expect("awake");
            for _ in 0..LINES {
                ring.round().expect("right answers");
            }
            ring.end_turn();
        }
    }

    /// Shows that a line is seen only once its own message is there, not the one before it in the same place.
    #[test]
    fn a_stale_line_is_no_message() {
        let ring = Ring::new();
        assert_eq!(ring.receive(1), None);
        ring.send(1, [7; PAYLOAD_WORDS]);
        assert_eq!(ring.receive(1), Some([7; PAYLOAD_WORDS]));
        assert_eq!(ring.receive(1 + LINES as u64), None);
    }
}
