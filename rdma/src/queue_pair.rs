//! What a reliable connected queue pair is ready for, and what of its send queue is known to be done. Logic only: `verbs` does it.
//!
//! ```text
//!           initialise          meet              start
//!  Reset ───────────────► Init ─────► ReadyToReceive ─────► ReadyToSend
//!    │                     │               │                    │
//!    └─────────────────────┴───────────────┴── fail ────────────┴────► Error   (no way back: it's destroyed)
//! ```

use thiserror::Error;

/// How far a queue pair has been set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Just made.
    #[default]
    Reset,
    /// Bound to a port; takes receives.
    Init,
    /// Knows its peer; receives.
    ReadyToReceive,
    /// Sends, too.
    ReadyToSend,
    /// Of no use any more. What was posted completes with an error, or not at all.
    Error,
}

/// What is done with a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Binds it to a port.
    Initialise,
    /// Tells it who its peer is.
    Meet,
    /// Lets it send.
    Start,
    /// Something went wrong, or it is to end.
    Fail,
}

/// A step that doesn't follow from a state.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a queue pair that is in state {state:?} can't take the step {step:?}")]
pub struct WrongOrder {
    /// The state.
    pub state: State,
    /// The step.
    pub step: Step,
}

impl State {
    /// The state that a step leads to.
    ///
    /// # Errors
    /// [`WrongOrder`].
    pub fn after(self, step: Step) -> Result<State, WrongOrder> {
        match (self, step) {
            (_, Step::Fail) => Ok(State::Error),
            (State::Reset, Step::Initialise) => Ok(State::Init),
            (State::Init, Step::Meet) => Ok(State::ReadyToReceive),
            (State::ReadyToReceive, Step::Start) => Ok(State::ReadyToSend),
            (state, step) => Err(WrongOrder { state, step }),
        }
    }

    /// Whether receives may be posted: from `Init` on, so that they are there before the peer's first message.
    #[must_use]
    pub fn takes_receives(self) -> bool {
        matches!(self, State::Init | State::ReadyToReceive | State::ReadyToSend)
    }

    /// Whether sends and READs may be posted.
    #[must_use]
    pub fn takes_sends(self) -> bool {
        self == State::ReadyToSend
    }
}

/// The send queue: how much room there is, and which posts need a completion of their own.
///
/// Posts are counted from 0. A reliable connection completes them in order, so the completion of one says that all before it are done;
/// without a completion now and then a full queue would never be known to have emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendQueue {
    capacity: u64,
    /// The number of the next post.
    next: u64,
    /// All posts before this one are done.
    done: u64,
    /// The post behind the last one with a completion.
    signalled: u64,
}

/// Number of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PostId(pub u64);

impl SendQueue {
    /// An empty queue that takes `capacity` posts at a time, at least 1.
    #[must_use]
    pub fn new(capacity: u32) -> SendQueue {
        SendQueue { capacity: u64::from(capacity.max(1)), next: 0, done: 0, signalled: 0 }
    }

    /// How many more posts it takes now.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u64 {
        self.capacity - (self.next - self.done)
    }

    /// Counts a post, for which there is [`SendQueue::room`]. Its number, and whether it needs a completion: because the caller wants one
    /// (the last of a list), or because half a queue went without.
    #[inline]
    pub fn post(&mut self, wants_completion: bool) -> (PostId, bool) {
        debug_assert!(self.room() > 0);
        let id = PostId(self.next);
        self.next += 1;
        let is_signalled = wants_completion || self.next - self.signalled >= self.capacity.div_ceil(2);
        if is_signalled {
            self.signalled = self.next;
        }
        (id, is_signalled)
    }

    /// A completion has come. Whether it's one of a post that was under way; if not, the device and this side disagree.
    #[inline]
    pub fn completed(&mut self, id: PostId) -> bool {
        let is_known = id.0 >= self.done && id.0 < self.next;
        if is_known {
            self.done = id.0 + 1;
        }
        is_known
    }

    /// Whether the post with this number, and all before it, are known to be done.
    #[inline]
    #[must_use]
    pub fn is_done(&self, id: PostId) -> bool {
        id.0 < self.done
    }

    /// Whether anything is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.next == self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEPS: [Step; 4] = [Step::Initialise, Step::Meet, Step::Start, Step::Fail];

    #[test]
    fn there_is_one_way_to_ready() {
        let mut state = State::default();
        for (step, takes) in
            [(Step::Initialise, (true, false)), (Step::Meet, (true, false)), (Step::Start, (true, true))]
        {
            state = state.after(step).unwrap();
            assert_eq!((state.takes_receives(), state.takes_sends()), takes, "{state:?}");
        }
        assert_eq!(state, State::ReadyToSend);
        assert!(state.after(Step::Meet).unwrap_err().to_string().contains("ReadyToSend"));
    }

    proptest! {
        #[test]
        fn a_failed_one_stays_so_and_only_the_three_steps_in_order_make_one_ready(steps in prop::collection::vec(0_usize..4, 0..8)) {
            let (mut state, mut taken) = (State::Reset, Vec::new());
            for step in steps.into_iter().map(|index| STEPS[index]) {
                if let Ok(next) = state.after(step) {
                    prop_assert!(state != State::Error || next == State::Error);
                    state = next;
                    taken.push(step);
                }
            }
            prop_assert_eq!(state.takes_sends(), taken == [Step::Initialise, Step::Meet, Step::Start]);
        }

        /// Shows, against a device that completes signalled posts in order and at any time, that a queue never holds more than it can, never
        /// takes a post for done that isn't, and always gets its room back.
        #[test]
        fn a_queue_never_overflows_and_never_stands_still(
            capacity in 1_u32..9,
            moves in prop::collection::vec((any::<bool>(), any::<bool>()), 0..200),
        ) {
            let mut queue = SendQueue::new(capacity);
            let (mut posted, mut finished, mut signals) = (0_u64, 0_u64, std::collections::VecDeque::new());
            for (posts, wants) in moves {
                if posts && queue.room() > 0 {
                    let (id, is_signalled) = queue.post(wants);
                    prop_assert_eq!(id, PostId(posted));
                    posted += 1;
                    if is_signalled {
                        signals.push_back(id);
                    }
                    prop_assert!(is_signalled || !wants);
                } else if let Some(id) = signals.pop_front() {
                    finished = id.0 + 1;
                    prop_assert!(queue.completed(id));
                    prop_assert!(!queue.completed(id), "no post completes twice");
                }
                prop_assert_eq!(queue.room(), u64::from(capacity) - (posted - finished));
                (0..posted).for_each(|id| assert_eq!(queue.is_done(PostId(id)), id < finished));
                prop_assert!(queue.room() > 0 || !signals.is_empty(), "a full queue waits for a completion");
            }
            prop_assert!(!queue.completed(PostId(posted)), "what was never posted isn't done");
        }
    }
}
