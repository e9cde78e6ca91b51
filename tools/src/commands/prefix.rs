//! `lanner prefix` and `lanner stat --chain`: how much of a chain of blocks is there.

use std::ffi::OsString;

use bytesize::ByteSize;
use clap::Args;
use lanner_client::{Client, Error, ObjectInfo, chain};
use serde_json::{Value, json};

use super::store::{self, KeyFormat};
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner prefix`.
#[derive(Args, Debug)]
pub struct PrefixArguments {
    /// The keys of the chain's blocks, in order, as they were given to `put_chain`
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<OsString>,
    #[command(flatten)]
    format: KeyFormat,
}

/// Prints how many leading blocks of the chain are there; the answer is yes if all are.
///
/// # Errors
/// What the store says, keys that are no chain, output that can't be written.
pub fn run(arguments: &PrefixArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let keys = arguments.format.parse_all(&arguments.keys)?;
    let snapshot = store::connect(url)?.match_chain(&keys)?;
    let (found, blocks) = (snapshot.len(), keys.len());
    let bytes: u64 = (0..found).filter_map(|index| snapshot.value_bytes(index)).sum();
    if json {
        store::print_json(&json!({ "found": found, "blocks": blocks, "bytes": bytes }))?;
    } else {
        let size = ByteSize(bytes).display().iec();
        store::print(format!("{found} of {blocks} blocks, {size}\n").as_bytes())?;
    }
    Ok(if found == blocks { ExitStatus::Done } else { ExitStatus::No })
}

/// Prints what is known of each block of a chain; the answer is yes if all are there. What lies behind a gap is shown, too: it's what a
/// look at an eviction wants to see.
///
/// # Errors
/// What the store says, keys that are no chain, output that can't be written.
pub fn stat(client: &Client, keys: &[Vec<u8>], format: KeyFormat, json: bool) -> Result<ExitStatus, Failure> {
    lanner_shared::chain::checked(keys)?;
    let infos = client.query_batch(&chain::stored_keys(keys))?;
    let mut lines = String::new();
    let mut blocks = Vec::new();
    for (index, (key, info)) in keys.iter().zip(&infos).enumerate() {
        let bytes = match info {
            Ok(ObjectInfo { value_bytes }) => Some(*value_bytes),
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error.clone().into()),
        };
        let mut block = store::about_key(key);
        block.insert("block".to_owned(), index.into());
        block.insert("value_bytes".to_owned(), bytes.into());
        blocks.push(Value::from(block));
        let said = bytes.map_or("missing".to_owned(), |bytes| format!("{bytes} bytes"));
        lines += &format!("{index:<6}{said:<16}{}\n", format.show(key));
    }
    if json {
        store::print_json(&blocks)?
    } else {
        store::print(lines.as_bytes())?
    }
    Ok(if infos.iter().all(Result::is_ok) { ExitStatus::Done } else { ExitStatus::No })
}
