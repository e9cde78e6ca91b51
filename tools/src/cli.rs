//! The command line of `lanner`: global flags and the list of commands. What a command's own flags mean stands in its file.

use clap::{Parser, Subcommand};

use crate::commands::{bench, check, exists, get, ls, prefix, put, rm, stat, top};

/// Talk to Lanner servers, look at them, and measure them and this machine.
///
/// Exit status: 0 done, 1 the answer is no or a check failed, 2 wrong use, 3 the server can't be reached.
#[derive(Debug, Parser)]
#[command(name = "lanner", version, max_term_width = 120, propagate_version = true)]
pub struct Cli {
    /// Servers to talk to: lanner://HOST:PORT[,HOST:PORT…][?transport=auto|tcp|shm|rdma]
    #[arg(
        long,
        global = true,
        env = "LANNER_URL",
        default_value = "lanner://127.0.0.1:7411",
        value_name = "URL"
    )]
    pub url: String,

    /// Print JSON instead of a table
    #[arg(long, global = true)]
    pub json: bool,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `lanner`; each is a file in `commands/`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the value of a key
    Get(get::GetArguments),
    /// Store a value under a key that is free
    Put(put::PutArguments),
    /// Store a value under a key, in place of the one that may be there
    Upsert(put::PutArguments),
    /// Ask whether keys are in the store
    Exists(exists::ExistsArguments),
    /// Remove keys
    Rm(rm::RmArguments),
    /// Say what is known of a key, or how each shard stands
    Stat(stat::StatArguments),
    /// Ask how many leading blocks of a chain are in the store
    Prefix(prefix::PrefixArguments),
    /// List keys
    Ls(ls::LsArguments),
    /// Watch a server's shards
    Top(top::TopArguments),
    /// Say what this machine offers and lacks for Lanner, and what mends it
    Check(check::CheckArguments),
    /// Measure
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Shows that clap finds no contradiction in the flags (two with one name, a default that doesn't parse).
    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Shows that global flags are understood before and after the command.
    #[test]
    fn global_flags_stand_anywhere() {
        for line in [["lanner", "--json", "check"], ["lanner", "check", "--json"]] {
            assert!(Cli::try_parse_from(line).expect("parses").json);
        }
    }

    /// Shows that wrong use ends with exit status 2, as scripts expect.
    #[test]
    fn wrong_use_has_status_2() {
        let error = Cli::try_parse_from(["lanner", "check", "--memory", "much"]).expect_err("not a size");
        assert_eq!(error.exit_code(), 2);
    }
}
