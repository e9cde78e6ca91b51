//! Something whose rounds can be timed one by one, and the loop that times several of them in turns.
//!
//! Turns matter: clock speed, neighbours on the host and the temperature of caches drift over seconds, so a ratio between
//! two runs one after the other is a ratio between two machines. In turns of some milliseconds both see the same one.

use std::time::Duration;

use lanner_shared::time::Clock;

use super::histogram::LatencyHistogram;
use super::progress::Progress;
use crate::exit::Failure;

/// What a measurement measures. One thread calls everything, in the order of the methods.
pub trait Workload {
    /// Name in progress lines and error messages.
    fn name(&self) -> String;

    /// Sets up, and compares every byte of one round with what it should be. Returns how many bytes it compared.
    ///
    /// # Errors
    /// What this machine refuses, or a wrong byte.
    fn prepare(&mut self) -> Result<u64, Failure>;

    /// A turn of rounds begins: whatever has to poll for them wakes up.
    ///
    /// # Errors
    /// As for [`Workload::round`].
    fn begin_turn(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Does it once and returns the nanoseconds it took, without what only the measurement needs.
    ///
    /// # Errors
    /// An answer that is wrong or doesn't come.
    fn round(&mut self) -> Result<u64, Failure>;

    /// The turn is over: nothing of this workload may use a CPU until the next one.
    fn end_turn(&mut self) {}
}

impl<W: Workload + ?Sized> Workload for Box<W> {
    fn name(&self) -> String {
        (**self).name()
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        (**self).prepare()
    }

    fn begin_turn(&mut self) -> Result<(), Failure> {
        (**self).begin_turn()
    }

    fn round(&mut self) -> Result<u64, Failure> {
        (**self).round()
    }

    fn end_turn(&mut self) {
        (**self).end_turn();
    }
}

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Rounds of each workload before anything is recorded.
    pub warmups: u64,
    /// Rounds of each workload to record, at most.
    pub rounds: u64,
    /// No turn begins later than this after the first, once every workload has had one.
    pub duration: Duration,
    /// Recorded rounds in a turn. Where there is one workload only, a turn has no meaning but as a step of progress.
    pub rounds_in_a_turn: u64,
}

impl Plan {
    /// Unrecorded rounds at the start of each turn, which bring back what the others' turns displaced from the caches.
    const SETTLING_ROUNDS: u64 = 10;
}

/// Times the rounds of `workloads`, which have been prepared, in turns. The histograms are in the order of the workloads.
///
/// # Errors
/// The first failure of a round; the turn it happened in is ended.
pub fn alternate(
    workloads: &mut [&mut dyn Workload],
    plan: &Plan,
    progress: &Progress,
) -> Result<Vec<LatencyHistogram>, Failure> {
    let mut histograms = vec![LatencyHistogram::new(); workloads.len()];
    let began = Clock.now();
    let mut done = 0;
    while done < plan.rounds && (done == 0 || Clock.now().since(began) < plan.duration) {
        let rounds = plan.rounds_in_a_turn.clamp(1, plan.rounds - done);
        let unrecorded = if done == 0 { plan.warmups } else { Plan::SETTLING_ROUNDS };
        for (workload, histogram) in workloads.iter_mut().zip(&mut histograms) {
            turn(*workload, unrecorded, rounds, histogram)?;
        }
        done += rounds;
        progress.set(done);
    }
    Ok(histograms)
}

fn turn(
    workload: &mut dyn Workload,
    unrecorded: u64,
    rounds: u64,
    histogram: &mut LatencyHistogram,
) -> Result<(), Failure> {
    workload.begin_turn()?;
    let mut run = || {
        for _ in 0..unrecorded {
            workload.round()?;
        }
        for _ in 0..rounds {
            histogram.record(workload.round()?);
        }
        Ok(())
    };
    let outcome = run();
    workload.end_turn();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// A workload that writes down what happens to it, and fails in a round if told so.
    struct Scribe {
        letter: char,
        log: Rc<RefCell<String>>,
        rounds_until_failure: u64,
    }

    impl Workload for Scribe {
        fn name(&self) -> String {
            self.letter.to_string()
        }
        fn prepare(&mut self) -> Result<u64, Failure> {
            Ok(0)
        }
        fn begin_turn(&mut self) -> Result<(), Failure> {
            self.log.borrow_mut().push('<');
            Ok(())
        }
        fn round(&mut self) -> Result<u64, Failure> {
            self.log.borrow_mut().push(self.letter);
            self.rounds_until_failure -= 1;
            if self.rounds_until_failure == 0 { Err(Failure::Machine("planted".into())) } else { Ok(1000) }
        }
        fn end_turn(&mut self) {
            self.log.borrow_mut().push('>');
        }
    }

    fn run(plan: &Plan, rounds_until_failure: u64) -> (Result<Vec<LatencyHistogram>, Failure>, String) {
        let log = Rc::new(RefCell::new(String::new()));
        let mut first = Scribe { letter: 'a', log: log.clone(), rounds_until_failure: 1000 };
        let mut second = Scribe { letter: 'b', log: log.clone(), rounds_until_failure };
        let outcome = alternate(&mut [&mut first, &mut second], plan, &Progress::hidden());
        (outcome, log.take())
    }

    /// Shows that turns alternate, that warm-ups and settling rounds aren't recorded, and that the last turn is cut to size.
    #[test]
    fn workloads_take_turns() {
        let plan = Plan { warmups: 1, rounds: 3, duration: Duration::MAX, rounds_in_a_turn: 2 };
        let (outcome, log) = run(&plan, 1000);
        assert_eq!(log, format!("<aaa><bbb><{0}><{1}>", "a".repeat(11), "b".repeat(11)));
        let rounds: Vec<u64> = outcome.expect("no failure").iter().map(LatencyHistogram::rounds).collect();
        assert_eq!(rounds, [3, 3]);
    }

    /// Shows that time ends a measurement, but that each workload has at least one turn.
    #[test]
    fn no_turn_begins_after_the_duration() {
        let plan = Plan { warmups: 0, rounds: 1000, duration: Duration::ZERO, rounds_in_a_turn: 2 };
        assert_eq!(run(&plan, 1000).1, "<aa><bb>");
    }

    /// Shows that a failure ends its turn, so that nothing goes on polling behind an error message.
    #[test]
    fn a_failure_ends_its_turn() {
        let plan = Plan { warmups: 0, rounds: 4, duration: Duration::MAX, rounds_in_a_turn: 4 };
        let (outcome, log) = run(&plan, 2);
        assert!(matches!(outcome, Err(Failure::Machine(_))));
        assert_eq!(log, "<aaaa><bb>");
    }
}
