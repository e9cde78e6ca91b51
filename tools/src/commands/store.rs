//! What the commands that talk to a store have in common: the client, keys on the command line, and how keys are shown.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use lanner_client::{Client, ClientConfig};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::exit::Failure;

/// The client of the servers that `--url` names.
///
/// # Errors
/// A URL that can't be meant, servers that can't be reached.
pub fn connect(url: &str) -> Result<Client, Failure> {
    let config: ClientConfig = url.parse()?;
    Ok(Client::with_config(config)?)
}

/// How keys are written on the command line and in what is printed.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct KeyFormat {
    /// Keys are hexadecimal digits, given and printed
    #[arg(long)]
    pub hex: bool,
}

impl KeyFormat {
    /// The key that a word of the command line means: its bytes, whatever they are, or what its hexadecimal digits say.
    ///
    /// # Errors
    /// What is no hexadecimal number of whole bytes, under `--hex`.
    pub fn parse(self, word: impl AsRef<OsStr>) -> Result<Vec<u8>, Failure> {
        let digits = word.as_ref().as_bytes();
        if !self.hex {
            return Ok(digits.to_vec());
        }
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let is_plain = digits.len().is_multiple_of(2) && digits.iter().all(u8::is_ascii_hexdigit);
        let bytes = digits.chunks(2).map(byte).collect::<Option<Vec<u8>>>().filter(|_| is_plain);
        bytes.ok_or_else(|| {
            Failure::WrongUse(format!(
                "'{}' is no key in hexadecimal digits: two for each byte, as in 6b6579",
                digits.escape_ascii()
            ))
        })
    }

    /// The keys that words of the command line mean.
    ///
    /// # Errors
    /// As for [`KeyFormat::parse`].
    pub fn parse_all(self, words: &[OsString]) -> Result<Vec<Vec<u8>>, Failure> {
        words.iter().map(|word| self.parse(word)).collect()
    }

    /// A key for people: text as it is, what a terminal wouldn't show as `\x1b`; under `--hex` its digits, which
    /// [`KeyFormat::parse`] takes back.
    #[must_use]
    pub fn show(self, key: &[u8]) -> String {
        if self.hex {
            return key.iter().map(|byte| format!("{byte:02x}")).collect();
        }
        match std::str::from_utf8(key) {
            Ok(text) if !text.contains(char::is_control) => text.to_owned(),
            _ => key.escape_ascii().to_string(),
        }
    }
}

/// A JSON object about a key.
#[must_use]
pub fn about_key(key: &[u8]) -> Map<String, Value> {
    let mut object = Map::new();
    insert_bytes(&mut object, "key", key);
    object
}

/// Adds bytes to a JSON object: text under `name`, other bytes as hexadecimal digits under `name` with `_hex`.
pub fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_hex"), KeyFormat { hex: true }.show(bytes).into()),
    };
}

/// Writes `value` as JSON on one line of standard output.
///
/// # Errors
/// Standard output that can't be written.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_vec(value).map_err(|error| Failure::Output(error.into()))?;
    text.push(b'\n');
    print(&text)
}

/// Writes to standard output, and sees it out.
///
/// # Errors
/// Standard output that can't be written.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    output.write_all(bytes).and_then(|()| output.flush()).map_err(Failure::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that keys of any bytes can be given and are printed so that they can be given again.
    #[test]
    fn keys_of_any_bytes_are_given_and_shown() {
        let (text, hex) = (KeyFormat { hex: false }, KeyFormat { hex: true });
        assert_eq!(text.parse("a key").expect("a key"), b"a key");
        assert_eq!(hex.parse("00fF0a").expect("a key"), [0, 255, 10]);
        assert_eq!(hex.show(&[0, 255, 10]), "00ff0a");
        assert_eq!(text.show("naïve".as_bytes()), "naïve");
        assert_eq!(text.show(b"a\x1b[2J\n"), "a\\x1b[2J\\n");
        assert_eq!(text.show(&[0xff, b'a']), "\\xffa");
        for wrong in ["0", "0g", "+1", "ä"] {
            assert!(matches!(hex.parse(wrong), Err(Failure::WrongUse(_))), "{wrong}");
        }
    }

    /// Shows how JSON tells text from other bytes.
    #[test]
    fn json_tells_text_from_other_bytes() {
        let json = |key: &[u8]| Value::from(about_key(key)).to_string();
        assert_eq!(json(b"a"), r#"{"key":"a"}"#);
        assert_eq!(json(&[0xff]), r#"{"key_hex":"ff"}"#);
    }
}
