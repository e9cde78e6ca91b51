//! `lanner put` and `lanner upsert`: a value from standard input or from a file, byte for byte.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lanner_client::{Pin, PutOptions};

use super::store::{self, KeyFormat};
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner put` and `lanner upsert`.
#[derive(Args, Debug)]
pub struct PutArguments {
    /// The key
    #[arg(value_name = "KEY")]
    key: String,
    /// The file with the value; `-`, or nothing, for standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Remove the object after this time; a part of a second counts as a whole one
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
    /// How the object withstands eviction: soft goes last, hard never goes and needs --ttl
    #[arg(long, value_enum, default_value = "none")]
    pin: PinChoice,
    #[command(flatten)]
    format: KeyFormat,
}

/// Words for [`Pin`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PinChoice {
    None,
    Soft,
    Hard,
}

/// Whether a value may take the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The answer is no if the key is taken.
    Put,
    /// It may.
    Upsert,
}

/// Stores a value.
///
/// # Errors
/// What the store says, input that can't be read.
pub fn run(arguments: &PutArguments, mode: Mode, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let key = arguments.format.parse(&arguments.key)?;
    let pin = match arguments.pin {
        PinChoice::None => Pin::None,
        PinChoice::Soft => Pin::Soft,
        PinChoice::Hard => Pin::Hard,
    };
    let options = PutOptions { ttl: arguments.ttl, pin, ..PutOptions::default() };
    let client = store::connect(url)?;
    let value = read_value(arguments.file.as_deref())?;
    let stored = match mode {
        Mode::Put => client.put_with(&key, &value, options),
        Mode::Upsert => client.upsert_with(&key, &value, options),
    };
    stored.map_err(Failure::of_key(&arguments.key))?;
    if json {
        let mut answer = store::about_key(&key);
        answer.insert("value_bytes".to_owned(), value.len().into());
        store::print_json(&answer)?;
    }
    Ok(ExitStatus::Done)
}

fn read_value(file: Option<&std::path::Path>) -> Result<Vec<u8>, Failure> {
    let failed = |path: String| move |source| Failure::File { path, source };
    match file.filter(|path| path.as_os_str() != "-") {
        Some(path) => fs::read(path).map_err(failed(path.display().to_string())),
        None => {
            let mut value = Vec::new();
            io::stdin().lock().read_to_end(&mut value).map_err(failed("standard input".to_owned()))?;
            Ok(value)
        }
    }
}
