//! `lanner exists`: whether there is an object under each key.

use std::ffi::OsString;

use clap::Args;

use super::answers;
use super::store::{self, KeyFormat};
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner exists`.
#[derive(Args, Debug)]
pub struct ExistsArguments {
    /// The keys
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<OsString>,
    #[command(flatten)]
    format: KeyFormat,
}

/// Asks for all keys at once; the answer is yes if all are there.
///
/// # Errors
/// What the store says, output that can't be written.
pub fn run(arguments: &ExistsArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let keys = arguments.format.parse_all(&arguments.keys)?;
    let found = store::connect(url)?.exists_batch(&keys)?;
    answers::print(
        &answers::Words { field: "exists", yes: "yes", no: "no" },
        arguments.format,
        &keys,
        &found,
        json,
    )
}
