//! From an outcome to the exit status that scripts rely on (0 done, 1 no, 2 wrong use, 3 unreachable). The only place that
//! decides it; clap ends the process with 2 by itself when the command line can't be read.

use std::io;
use std::process::ExitCode;

use lanner_client::EngramError;
use lanner_shared::error::Error as StoreError;
use thiserror::Error;

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// Done, or the answer is yes.
    Done = 0,
    /// The answer is no, or a check failed.
    No = 1,
    /// Wrong use: flags, files or arguments that can't be meant.
    WrongUse = 2,
    /// The server can't be reached.
    Unreachable = 3,
}

/// Why a command could not do what it was asked to.
#[derive(Debug, Error)]
pub enum Failure {
    /// Arguments that are well-formed and still can't be meant, with what to write instead.
    #[error("{0}")]
    WrongUse(String),
    /// This machine can't do what was asked, with the cure.
    #[error("{0}")]
    Machine(String),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file as the user named it.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Standard output could not be written.
    #[error("standard output: {0}")]
    Output(io::Error),
    /// Something that isn't a store can't be reached, with the likely cause.
    #[error("{0}")]
    Unreachable(String),
    /// What the store answered.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the store answered to a command about one key.
    #[error("{}", about_key(key, source))]
    Key {
        /// The key as the user wrote it.
        key: String,
        /// The answer.
        source: StoreError,
    },
}

/// So much of a key is repeated where something is said of it.
const MOST_KEY_CHARACTERS: usize = 100;

/// The library speaks of places in a batch; whoever typed one key wants to read that key.
fn about_key(key: &str, error: &StoreError) -> String {
    let text = error.to_string();
    text.replacen("key 0 of the call", &format!("key '{key}'"), 1).replacen(
        "value 0",
        &format!("the value of '{key}'"),
        1,
    )
}

impl Failure {
    /// What makes a failure of an answer about `key`, as the user wrote it.
    pub fn of_key(key: &str) -> impl FnOnce(StoreError) -> Failure {
        let mut key = key.to_owned();
        if let Some((end, _)) = key.char_indices().nth(MOST_KEY_CHARACTERS) {
            key.truncate(end);
            key.push('…');
        }
        move |source| Failure::Key { key, source }
    }
}

impl From<EngramError> for Failure {
    fn from(error: EngramError) -> Failure {
        match error {
            EngramError::Store(error) => Failure::Store(error),
            other => Failure::Machine(other.to_string()),
        }
    }
}

impl Failure {
    fn to_json(&self) -> serde_json::Value {
        let code = match self {
            Failure::Store(error) | Failure::Key { source: error, .. } => Some(error.code()),
            _ => None,
        };
        serde_json::json!({ "error": self.to_string(), "code": code, "exit": self.status() as u8 })
    }

    /// The exit status for this failure.
    #[must_use]
    pub fn status(&self) -> ExitStatus {
        match self {
            Failure::WrongUse(_) | Failure::File { .. } => ExitStatus::WrongUse,
            Failure::Machine(_) => ExitStatus::No,
            // Whoever closed the pipe (`lanner ls | head`) has what was wanted.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitStatus::Done,
            Failure::Output(_) => ExitStatus::No,
            Failure::Unreachable(_) => ExitStatus::Unreachable,
            Failure::Store(error) | Failure::Key { source: error, .. } => status_of_store_error(error),
        }
    }
}

fn status_of_store_error(error: &StoreError) -> ExitStatus {
    match error {
        StoreError::Unreachable { .. }
        | StoreError::RdmaUnreachable { .. }
        | StoreError::Timeout { .. }
        | StoreError::ConnectionLost { .. }
        | StoreError::OutcomeUnknown { .. }
        | StoreError::ShuttingDown => ExitStatus::Unreachable,
        StoreError::InvalidKey { .. }
        | StoreError::OutOfBounds { .. }
        | StoreError::Overlap { .. }
        | StoreError::BufferTooSmall { .. }
        | StoreError::InvalidArgument(_) => ExitStatus::WrongUse,
        _ => ExitStatus::No,
    }
}

/// Says on standard error what went wrong, if anything did, and gives the process's exit status. Under `json` it says it as an
/// object with the `error`, its `code` in the protocol (where it has one) and the `exit` status.
#[must_use]
pub fn report(outcome: Result<ExitStatus, Failure>, json: bool) -> ExitCode {
    let status = outcome.unwrap_or_else(|failure| {
        let status = failure.status();
        match status {
            ExitStatus::Done => {}
            _ if json => eprintln!("{}", failure.to_json()),
            _ => eprintln!("lanner: {failure}"),
        }
        status
    });
    ExitCode::from(status as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a script learns of a miss in the form that it asked for.
    #[test]
    fn a_miss_is_told_as_json() {
        let miss = Failure::of_key("k")(StoreError::NotFound { index: 0 }).to_json();
        assert_eq!((miss["exit"].as_u64(), miss["code"].as_u64()), (Some(1), Some(1)), "{miss}");
        assert!(miss["error"].as_str().is_some_and(|text| text.contains("'k'")), "{miss}");
        assert!(Failure::WrongUse("x".into()).to_json()["code"].is_null());
    }

    /// Shows that an answer about one key names that key, and not its place in a batch that nobody wrote.
    #[test]
    fn an_answer_about_a_key_names_it() {
        let missing = Failure::of_key("greeting")(StoreError::NotFound { index: 0 });
        assert_eq!(missing.to_string(), "key 'greeting' is not in the store");
        assert_eq!(missing.status(), ExitStatus::No);
    }

    /// Shows that a key which is too long isn't said whole to whoever has just written it.
    #[test]
    fn a_long_key_is_cut() {
        let failure = Failure::of_key(&"ä".repeat(1500))(StoreError::InvalidKey { index: 0, bytes: 3000 });
        assert!(
            failure.to_string().contains(&format!("'{}…'", "ä".repeat(MOST_KEY_CHARACTERS))),
            "{failure}"
        );
    }

    #[test]
    fn failures_have_the_promised_status() {
        let file = Failure::File { path: "x".into(), source: io::Error::from(io::ErrorKind::NotFound) };
        let unreachable = StoreError::Unreachable { server: "x".into(), reason: "refused".into() };
        let cases = [
            (Failure::WrongUse("two cores".into()), ExitStatus::WrongUse),
            (file, ExitStatus::WrongUse),
            (Failure::Machine("no io_uring".into()), ExitStatus::No),
            (Failure::Output(io::Error::from(io::ErrorKind::BrokenPipe)), ExitStatus::Done),
            (Failure::Output(io::Error::from(io::ErrorKind::StorageFull)), ExitStatus::No),
            (Failure::Store(StoreError::NotFound { index: 0 }), ExitStatus::No),
            (Failure::Store(StoreError::InvalidKey { index: 0, bytes: 0 }), ExitStatus::WrongUse),
            (Failure::Store(unreachable), ExitStatus::Unreachable),
            (Failure::Unreachable("refused".into()), ExitStatus::Unreachable),
        ];
        for (failure, wanted) in cases {
            assert_eq!(failure.status(), wanted, "{failure}");
        }
    }
}
