//! How many messages a client may have under way that the server hasn't taken up, counted on both sides.
//!
//! All clients of a shard send to one queue, so a client that sent on while the shard couldn't serve it would use up everybody's room. Each may
//! therefore have [`UNTAKEN_MESSAGES`] under way; with every message of its own, and by an empty one where it has nothing to say, the server
//! tells up to which message the client may send. Numbers count from the beginning and wrap.
//!
//! ```text
//! client  sent ≤ granted          ──── messages ────►          server  taken
//!         granted ◄──── taken + UNTAKEN_MESSAGES ────          announced
//! ```

use lanner_shared::wire::join_rdma::UNTAKEN_MESSAGES;

/// Half of them: so late that most announcements travel with answers, so early that a client that sends on hardly waits.
const DUE: u32 = UNTAKEN_MESSAGES / 2;

/// The server's count, of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grants {
    /// Messages that were taken up.
    taken: u32,
    /// Up to which the client was told that it may send.
    announced: u32,
}

impl Default for Grants {
    fn default() -> Grants {
        Grants { taken: 0, announced: UNTAKEN_MESSAGES }
    }
}

impl Grants {
    /// A message was taken up: the room that it had is free.
    #[inline]
    pub fn took_one(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// What the next message tells the client.
    #[inline]
    #[must_use]
    pub fn next(&self) -> u32 {
        self.taken.wrapping_add(UNTAKEN_MESSAGES)
    }

    /// The client is being told.
    #[inline]
    pub fn announced(&mut self, grant: u32) {
        self.announced = grant;
    }

    /// Whether the client should be told soon, or it may have to wait.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.next().wrapping_sub(self.announced) >= DUE
    }
}

/// The client's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    sent: u32,
    granted: u32,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { sent: 0, granted: UNTAKEN_MESSAGES }
    }
}

impl Allowance {
    /// Messages that may be sent now.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u32 {
        self.granted.wrapping_sub(self.sent)
    }

    /// A message was sent, for which there was [`Allowance::room`].
    #[inline]
    pub fn sent_one(&mut self) {
        debug_assert!(self.room() > 0);
        self.sent = self.sent.wrapping_add(1);
    }

    /// The server has said up to which message this side may send. What makes no sense is passed over: it's never less than before, and never
    /// more than all that can be under way.
    #[inline]
    pub fn heard(&mut self, grant: u32) {
        let room = grant.wrapping_sub(self.sent);
        if room <= UNTAKEN_MESSAGES && room >= self.room() {
            self.granted = grant;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// A client that always wants to send, and the server behind a network that delays announcements.
    #[derive(Default)]
    struct Pair {
        allowance: Allowance,
        grants: Grants,
        untaken: u32,
        on_the_way: VecDeque<u32>,
    }

    impl Pair {
        fn send(&mut self) -> bool {
            let may = self.allowance.room() > 0;
            if may {
                self.allowance.sent_one();
                self.untaken += 1;
            }
            may
        }

        fn take(&mut self, has_answer: bool) {
            if self.untaken > 0 {
                self.untaken -= 1;
                self.grants.took_one();
            }
            if has_answer || self.grants.is_due() {
                let grant = self.grants.next();
                self.grants.announced(grant);
                self.on_the_way.push_back(grant);
            }
        }

        fn hear(&mut self) {
            if let Some(grant) = self.on_the_way.pop_front() {
                self.allowance.heard(grant);
            }
        }
    }

    proptest! {
        /// Shows that a client never has more under way than is granted however the two sides are held up, and that it never waits for good:
        /// once the server has taken everything and has been heard, it may send again, at least half of what it might.
        #[test]
        fn never_too_much_under_way_and_never_stuck(steps in prop::collection::vec((0_u8..3, any::<bool>()), 0..400), start in any::<u32>()) {
            let mut pair = Pair {
                allowance: Allowance { sent: start, granted: start.wrapping_add(UNTAKEN_MESSAGES) },
                grants: Grants { taken: start, announced: start.wrapping_add(UNTAKEN_MESSAGES) },
                ..Pair::default()
            };
            for (step, has_answer) in steps {
                match step {
                    0 => { pair.send(); }
                    1 => pair.take(has_answer),
                    _ => pair.hear(),
                }
                prop_assert!(pair.untaken <= UNTAKEN_MESSAGES);
            }
            while pair.untaken > 0 {
                pair.take(false);
            }
            while !pair.on_the_way.is_empty() {
                pair.hear();
            }
            prop_assert!(pair.allowance.room() > UNTAKEN_MESSAGES - DUE);
        }
    }

    #[test]
    fn what_a_server_can_not_mean_changes_nothing() {
        let mut allowance = Allowance::default();
        (0..5).for_each(|_| allowance.sent_one());
        for nonsense in [0, 4, UNTAKEN_MESSAGES - 1, UNTAKEN_MESSAGES + 6, u32::MAX] {
            allowance.heard(nonsense);
            assert_eq!(allowance.room(), UNTAKEN_MESSAGES - 5, "{nonsense}");
        }
        allowance.heard(UNTAKEN_MESSAGES + 5);
        assert_eq!(allowance.room(), UNTAKEN_MESSAGES);
    }
}
