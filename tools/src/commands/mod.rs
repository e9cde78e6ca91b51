//! One file for each subcommand of `lanner`: its flags and what it does. [`run`] picks the one that was asked for. [`store`] and
//! [`answers`] hold what several of them share.

pub mod answers;
pub mod bench;
pub mod check;
pub mod exists;
pub mod get;
pub mod ls;
mod namespaces;
pub mod prefix;
pub mod put;
pub mod rm;
pub mod stat;
pub mod store;
pub mod top;

use crate::cli::{Cli, Command};
use crate::exit::{ExitStatus, Failure};

/// Runs the command of `cli` to its end.
///
/// # Errors
/// What kept the command from doing what it was asked; [`Failure::status`] is the exit status for it.
pub fn run(cli: &Cli) -> Result<ExitStatus, Failure> {
    let (url, json) = (cli.url.as_str(), cli.json);
    match &cli.command {
        Command::Get(arguments) => get::run(arguments, url, json),
        Command::Put(arguments) => put::run(arguments, put::Mode::Put, url, json),
        Command::Upsert(arguments) => put::run(arguments, put::Mode::Upsert, url, json),
        Command::Exists(arguments) => exists::run(arguments, url, json),
        Command::Rm(arguments) => rm::run(arguments, url, json),
        Command::Stat(arguments) => stat::run(arguments, url, json),
        Command::Prefix(arguments) => prefix::run(arguments, url, json),
        Command::Ls(arguments) => ls::run(arguments, url, json),
        Command::Top(arguments) => top::run(arguments, url, json),
        Command::Check(arguments) => check::run(arguments, json),
        Command::Bench(command) => bench::run(command, url, json),
    }
}
