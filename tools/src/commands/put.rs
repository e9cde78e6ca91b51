//! `lanner put` and `lanner upsert`: a value from standard input or from a file, byte for byte.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use lanner_client::{Pin, PutOptions};

use super::store::{self, KeyFormat};
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner put` and `lanner upsert`.
#[derive(Args, Debug)]
pub struct PutArguments {
    /// The key
    #[arg(value_name = "KEY")]
    key: OsString,
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
    let limit = client.servers().iter().map(|server| server.max_value_bytes).max().unwrap_or(0);
    let value = read_value(arguments.file.as_deref(), limit)?;
    let stored = match mode {
        Mode::Put => client.put_with(&key, &value, options),
        Mode::Upsert => client.upsert_with(&key, &value, options),
    };
    stored.map_err(Failure::of_key(&arguments.format.show(&key)))?;
    if json {
        let mut answer = store::about_key(&key);
        answer.insert("value_bytes".to_owned(), value.len().into());
        store::print_json(&answer)?;
    }
    Ok(ExitStatus::Done)
}

/// Reads a value, or the beginning of one that no server takes: input may have no end.
fn read_value(file: Option<&Path>, limit: u64) -> Result<Vec<u8>, Failure> {
    let file = file.filter(|path| path.as_os_str() != "-");
    let name = file.map_or("standard input".to_owned(), |path| path.display().to_string());
    let read = || {
        let input: Box<dyn Read> = match file {
            Some(path) => Box::new(File::open(path)?),
            None => Box::new(io::stdin().lock()),
        };
        let mut value = Vec::new();
        input.take(limit.saturating_add(1)).read_to_end(&mut value).map(|_| value)
    };
    let value = read().map_err(|source| Failure::File { path: name.clone(), source })?;
    if value.len() as u64 <= limit {
        return Ok(value);
    }
    let limit = ByteSize(limit).display().iec();
    Err(Failure::WrongUse(format!(
        "{name} has more than {limit}, the largest value that a shard can hold; give the server more --memory or fewer --shards"
    )))
}
