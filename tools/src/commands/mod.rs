//! One file for each subcommand of `lanner`: its flags and what it does. [`run`] picks the one that was asked for.

pub mod bench;
pub mod check;

use crate::cli::{Cli, Command};
use crate::exit::{ExitStatus, Failure};

/// Runs the command of `cli` to its end.
///
/// # Errors
/// What kept the command from doing what it was asked; [`Failure::status`] is the exit status for it.
pub fn run(cli: &Cli) -> Result<ExitStatus, Failure> {
    match &cli.command {
        Command::Check(arguments) => check::run(arguments, cli.json),
        Command::Bench(command) => bench::run(command, cli.json),
    }
}
