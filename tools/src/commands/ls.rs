//! `lanner ls`: the keys that start with a prefix.

use std::io::{self, BufWriter, Write};

use clap::Args;
use lanner_client::Listed;
use serde_json::Value;

use super::store::{self, KeyFormat};
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner ls`.
#[derive(Args, Debug)]
pub struct LsArguments {
    /// What the keys start with; nothing for all keys
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,
    /// Also print the length of each value in bytes
    #[arg(short, long)]
    long: bool,
    /// Stop after so many keys
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    format: KeyFormat,
}

/// Prints keys in their order (from servers without a prefix index in none), one a line (under `json` one object a line). Objects that come or go meanwhile
/// may or may not be among them.
///
/// # Errors
/// What the store says, output that can't be written.
pub fn run(arguments: &LsArguments, url: &str, json: bool) -> Result<ExitStatus, Failure> {
    let prefix = arguments.prefix.as_deref().map_or(Ok(Vec::new()), |word| arguments.format.parse(word))?;
    let client = store::connect(url)?;
    let mut output = BufWriter::new(io::stdout().lock());
    let mut outcome = Ok(());
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    client.list(&prefix, |listed| {
        if left == 0 {
            return false;
        }
        left -= 1;
        outcome = write_line(&mut output, arguments, &listed, json);
        outcome.is_ok()
    })?;
    outcome.and_then(|()| output.flush()).map_err(Failure::Output)?;
    Ok(ExitStatus::Done)
}

fn write_line(
    output: &mut impl Write,
    arguments: &LsArguments,
    listed: &Listed,
    json: bool,
) -> io::Result<()> {
    if json {
        let mut line = store::about_key(&listed.key);
        line.insert("value_bytes".to_owned(), listed.value_bytes.into());
        return writeln!(output, "{}", Value::from(line));
    }
    let key = arguments.format.show(&listed.key);
    if arguments.long {
        writeln!(output, "{:>14}  {key}", listed.value_bytes)
    } else {
        writeln!(output, "{key}")
    }
}
