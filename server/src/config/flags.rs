//! The command line of `lanner-server`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use clap::error::ErrorKind;

use super::ConfigError;
use super::settings::Settings;

/// Keep objects of LLM inference in memory and serve them over TCP and shared memory.
///
/// Prints one line that starts with `ready` when it serves. SIGTERM and SIGINT drain it; a second SIGINT ends it at once.
/// Exit status: 0 after a drain, 2 if it can't be started as told, 70 after a fault of its own, 130 after a second SIGINT.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "lanner-server", version, max_term_width = 120)]
pub struct Flags {
    /// A TOML file with the same settings; flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print all settings as such a file, defaults and the memory they take included, and end
    #[arg(long)]
    pub print_config: bool,

    /// What can stand in the file too.
    #[command(flatten)]
    pub settings: Settings,
}

/// What a command line asks for.
#[derive(Clone, Debug)]
pub enum Asked {
    /// To go on with these flags.
    Serve(Box<Flags>),
    /// To print this text (the help, the version) and end.
    Print(String),
}

/// Reads a command line, the program's name included.
///
/// # Errors
/// [`ConfigError::CommandLine`], in one line.
pub fn parse<I: IntoIterator<Item: Into<OsString> + Clone>>(line: I) -> Result<Asked, ConfigError> {
    match Flags::try_parse_from(line) {
        Ok(flags) => Ok(Asked::Serve(Box::new(flags))),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Ok(Asked::Print(error.render().to_string()))
        }
        Err(error) => Err(ConfigError::CommandLine(one_line(&error.render().to_string()))),
    }
}

/// What clap spreads over several lines: its message and its tips, without the usage.
fn one_line(rendered: &str) -> String {
    let said = rendered.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let said = said.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let text = said.collect::<Vec<_>>().join("; ");
    format!("{}; see lanner-server --help", text.trim_start_matches("error: "))
}
