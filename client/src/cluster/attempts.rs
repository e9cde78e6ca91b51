//! What attempts to connect to a server have come to, for those who wait for their turn at one.

use lanner_shared::time::Instant;
use lanner_shared::{Error, Result};
use std::time::Duration;

/// What fails sooner is found out by each by himself.
const SLOW: Duration = Duration::from_millis(100);

/// The last ones.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// When one last succeeded.
    worked: Option<Instant>,
    /// When a slow one that failed began and ended, and why.
    failed: Option<(Instant, Instant, Error)>,
}

impl Attempts {
    /// One that began at `began` ended at `now`.
    pub fn ended<T>(&mut self, began: Instant, now: Instant, outcome: &Result<T>) {
        match outcome {
            Ok(_) => self.worked = Some(now),
            Err(error) if now.since(began) >= SLOW => self.failed = Some((began, now, error.clone())),
            Err(_) => {}
        }
    }

    /// Whether one has succeeded since `began`: the server answers.
    pub fn has_worked_since(&self, began: Instant) -> bool {
        self.worked.is_some_and(|worked| worked >= began)
    }

    /// Why somebody who waits since `since` needs no attempt of his own: one took its whole time in vain while he waited, and none has succeeded
    /// since that one began. So a server that answers nobody costs its time once, and one that is slow fails nobody but whom it was slow to.
    pub fn hopeless(&self, since: Instant) -> Option<&Error> {
        let (began, ended, error) = self.failed.as_ref()?;
        (*ended > since && !self.has_worked_since(*began)).then_some(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_answers_nobody_fails_those_who_wait() {
        let at = |millis| Instant::ZERO.plus(Duration::from_millis(millis));
        let error = Error::Timeout { server: "server".into(), millis: 2000 };
        let mut attempts = Attempts::default();
        assert_eq!(attempts.hopeless(at(0)), None);
        attempts.ended(at(1000), at(3000), &Err::<(), _>(error.clone()));
        assert_eq!(attempts.hopeless(at(1500)), Some(&error));
        assert_eq!(attempts.hopeless(at(3000)), None, "began to wait behind it");
        attempts.ended(at(2500), at(2510), &Ok(()));
        assert_eq!(attempts.hopeless(at(1500)), None, "another one was answered");
        assert!(attempts.has_worked_since(at(2000)) && !attempts.has_worked_since(at(2600)));
        attempts.ended(at(4000), at(6000), &Err::<(), _>(error.clone()));
        assert_eq!(attempts.hopeless(at(5000)), Some(&error));
        attempts.ended(at(6000), at(6050), &Err::<(), _>(Error::ShuttingDown));
        assert_eq!(attempts.hopeless(at(5000)), Some(&error), "what fails at once says nothing to others");
    }
}
