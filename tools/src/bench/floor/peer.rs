//! A pinned thread that answers the thread that measures, by polling while it's its workload's turn and asleep otherwise. Without
//! the sleep it would take the CPU from whatever the limit is compared with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use super::cores;
use crate::exit::Failure;

const RESTING: u8 = 0;
const POLLING: u8 = 1;
const ENDED: u8 = 2;

/// What the peer is to do. One writer, the thread that measures; the peer reads it between two polls. It carries no data, so
/// relaxed loads and stores suffice: a peer that hears of a change late polls some more.
#[derive(Debug, Default)]
pub struct Turn(AtomicU8);

impl Turn {
    /// To be asked by the peer between polls: sleeps while it isn't its turn, and is false once it is to end.
    #[inline]
    pub fn goes_on(&self) -> bool {
        loop {
            match self.0.load(Ordering::Relaxed) {
                POLLING => return true,
                ENDED => return false,
                _ => thread::park(),
            }
        }
    }
}

/// The thread; ended and joined when dropped.
pub struct Peer {
    turn: Arc<Turn>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// Starts a thread on `cpu`. It runs `set_up`, whose failure is this call's, and then what that returned, which polls as long as
    /// [`Turn::goes_on`]. It begins at rest.
    ///
    /// # Errors
    /// That of `set_up`, or a thread that can't be started or put on its CPU.
    pub fn start<SetUp, Poll>(cpu: usize, set_up: SetUp) -> Result<Peer, Failure>
    where
        SetUp: FnOnce() -> Result<Poll, Failure> + Send + 'static,
        Poll: FnOnce(&Turn),
    {
        let turn = Arc::new(Turn::default());
        let peers_turn = turn.clone();
        let (report, outcome) = mpsc::channel();
        let body = move || match cores::pin(cpu).and_then(|()| set_up()) {
            Ok(poll) => {
                // A starter that has gone away has set the turn to ended.
                let _ = report.send(Ok(()));
                poll(&peers_turn);
            }
            Err(failure) => {
                let _ = report.send(Err(failure));
            }
        };
        let gone = |what: String| Failure::Machine(format!("the answering thread: {what}"));
        let thread = thread::Builder::new()
            .name("floor-peer".to_owned())
            .spawn(body)
            .map_err(|error| gone(error.to_string()))?;
        let peer = Peer { turn, thread: Some(thread) };
        outcome.recv().map_err(|_| gone("it ended during its set-up".to_owned()))??;
        Ok(peer)
    }

    /// It's the peer's turn.
    pub fn wake(&self) {
        self.set(POLLING);
    }

    /// Its turn is over; it falls asleep after the poll it is in.
    pub fn rest(&self) {
        self.set(RESTING);
    }

    /// True once the peer has ended by itself, which it does when its counterpart is gone.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn set(&self, turn: u8) {
        self.turn.0.store(turn, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.set(ENDED);
        if let Some(thread) = self.thread.take() {
            // A panic in the peer has been printed, and whoever waited for its answer has failed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    /// Shows that a peer polls in its turn only, and that dropping it ends the thread: a counter moves, stands still, and has one owner.
    #[test]
    fn a_peer_polls_in_its_turn_only() {
        let polls = Arc::new(AtomicU64::new(0));
        let counter = polls.clone();
        let count = move |turn: &Turn| {
            while turn.goes_on() {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        };
        let cpu = crate::check::probes::allowed_cpus()[0];
        let peer = Peer::start(cpu, move || Ok(count)).expect("a thread");
        assert_eq!(polls.load(Ordering::Relaxed), 0);

        peer.wake();
        while polls.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        peer.rest();
        thread::sleep(Duration::from_millis(20)); // longer than it takes to see the change
        let at_rest = polls.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(polls.load(Ordering::Relaxed), at_rest);

        assert!(!peer.has_ended());
        drop(peer);
        assert_eq!(Arc::strong_count(&polls), 1);
    }

    /// Shows that a set-up that fails is the starter's failure, and that a CPU that isn't there is one.
    #[test]
    fn a_failed_set_up_is_reported() {
        let set_up = || Err::<fn(&Turn), _>(Failure::Machine("planted".to_owned()));
        let cpu = crate::check::probes::allowed_cpus()[0];
        assert!(matches!(Peer::start(cpu, set_up), Err(Failure::Machine(text)) if text == "planted"));
        assert!(matches!(Peer::start(usize::MAX, || Ok(|_: &Turn| ())), Err(Failure::WrongUse(_))));
    }
}
