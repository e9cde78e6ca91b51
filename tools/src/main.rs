//! The binary `lanner`: reads the command line, runs the command, and ends with its exit status.

use std::process::ExitCode;

use clap::Parser;
use lanner_tools::cli::Cli;
use lanner_tools::{commands, exit};

fn main() -> ExitCode {
    let cli = Cli::parse();
    exit::report(commands::run(&cli), cli.json)
}
