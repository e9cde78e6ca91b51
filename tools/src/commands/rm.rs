//! `lanner rm`: removes the object under each key.

use std::ffi::OsString;

use clap::Args;

use super::answers;
use super::store::{self, KeyFormat};
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner rm`.
#[derive(Args, Debug)]
pub struct RmArguments {
    /// The keys
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<OsString>,
    #[command(flatten)]
    format: KeyFormat,
}

/// Removes all keys at once; the answer is no if one of them wasn't there. Readers with a lease go on reading what they had.
///
/// # Errors
/// What the store says, output that can't be written.
pub fn run(arguments: &RmArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let keys = arguments.format.parse_all(&arguments.keys)?;
    let removed = store::connect(url)?.remove_batch(&keys)?;
    let words = answers::Words { field: "removed", yes: "removed", no: "missing" };
    answers::print(&words, arguments.format, &keys, &removed, json)
}
