//! `lanner get`: a value to standard output or to a file, byte for byte.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use lanner_client::Fallback;

use super::store::{self, KeyFormat};
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner get`.
#[derive(Args, Debug)]
pub struct GetArguments {
    /// The key
    #[arg(value_name = "KEY")]
    key: OsString,
    /// Write the value to this file rather than to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// If there is none, take that of the longest stored key that KEY begins with, and say on standard error which
    #[arg(long)]
    prefix_fallback: bool,
    #[command(flatten)]
    format: KeyFormat,
}

/// Gets a value; the answer is no if there is none. Under `json` the key is that of the object found. A file is written only if there is one.
///
/// # Errors
/// What the store says, output that can't be written.
pub fn run(arguments: &GetArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let key = arguments.format.parse(&arguments.key)?;
    let fallback = if arguments.prefix_fallback { Fallback::Prefix } else { Fallback::None };
    let client = store::connect(url)?;
    let (found, value) =
        client.get_with(&key, fallback).map_err(Failure::of_key(&arguments.format.show(&key)))?;
    if found != key && !json {
        eprintln!("found {}", arguments.format.show(found));
    }
    if let Some(path) = &arguments.output {
        fs::write(path, &value)
            .map_err(|source| Failure::File { path: path.display().to_string(), source })?;
    }
    let is_in_a_file = arguments.output.is_some();
    if json {
        let mut answer = store::about_key(found);
        answer.insert("value_bytes".to_owned(), value.len().into());
        if !is_in_a_file {
            store::insert_bytes(&mut answer, "value", &value);
        }
        store::print_json(&answer)?;
    } else if !is_in_a_file {
        store::print(&value)?;
    }
    Ok(ExitStatus::Done)
}
