//! A yes or no for each key, printed one a line: what `exists` and `rm` answer.

use serde_json::Value;

use super::store::{self, KeyFormat};
use crate::exit::{ExitStatus, Failure};

/// The words for yes and no.
pub struct Words {
    /// In JSON: the field that is true or false.
    pub field: &'static str,
    /// In a line.
    pub yes: &'static str,
    /// In a line.
    pub no: &'static str,
}

/// Prints an answer for each key, in the order of the keys: lines, or under `json` a list. Says no if one of them is no.
///
/// # Errors
/// Standard output that can't be written.
pub fn print(
    words: &Words,
    format: KeyFormat,
    keys: &[Vec<u8>],
    flags: &[bool],
    json: bool,
) -> Result<ExitStatus, Failure> {
    let answers = keys.iter().zip(flags);
    if json {
        let answer = |(key, is_yes): (&Vec<u8>, &bool)| {
            let mut answer = store::about_key(key);
            answer.insert(words.field.to_owned(), (*is_yes).into());
            Value::from(answer)
        };
        store::print_json(&answers.map(answer).collect::<Vec<_>>())?;
    } else {
        let line = |(key, is_yes): (&Vec<u8>, &bool)| {
            format!("{:<8}{}\n", if *is_yes { words.yes } else { words.no }, format.show(key))
        };
        store::print(answers.map(line).collect::<String>().as_bytes())?;
    }
    Ok(if flags.iter().all(|flag| *flag) { ExitStatus::Done } else { ExitStatus::No })
}
