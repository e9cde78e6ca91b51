//! `lanner check`: what this machine offers and lacks for a server with the given flags.

use std::io::{self, Write};
use std::net::SocketAddr;

use bytesize::ByteSize;
use clap::Args;
use lanner_server::config::values::AdminChoice;

use crate::check::needs::Needs;
use crate::check::{judge, probes, show};
use crate::exit::{ExitStatus, Failure};

/// Flags of `lanner check`: those of the server that is to run here, with the same defaults.
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// Memory of one server
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    memory: ByteSize,
    /// Shards of one server [default: the CPUs of a NUMA node]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    shards: Option<u32>,
    /// Address for data
    #[arg(long, default_value = "127.0.0.1:7411", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Address of the admin endpoint, or off
    #[arg(long, default_value = "127.0.0.1:7412", value_name = "ADDRESS|off")]
    admin: AdminChoice,
}

/// Checks, prints, and answers whether Lanner can run.
///
/// # Errors
/// Standard output that can't be written.
pub fn run(arguments: &CheckArguments, json: bool) -> Result<ExitStatus, Failure> {
    let needs = Needs {
        memory: arguments.memory.as_u64(),
        shards: arguments.shards.unwrap_or_else(cpus_of_the_largest_node),
        listen: arguments.listen,
        admin: match arguments.admin {
            AdminChoice::Off => None,
            AdminChoice::At(address) => Some(address),
        },
    };
    let findings = judge::judge(&probes::gather(&needs), &needs);
    let mut output = io::stdout().lock();
    let written = if json {
        show::as_json(&findings, &mut output)
    } else {
        show::as_table(&findings, terminal_width(), &mut output)
    };
    written.and_then(|()| output.flush()).map_err(Failure::Output)?;
    Ok(if judge::can_run(&findings) { ExitStatus::Done } else { ExitStatus::No })
}

fn cpus_of_the_largest_node() -> u32 {
    let cpus = |list: &str| u32::try_from(probes::cpus_in_list(list).len()).unwrap_or(u32::MAX);
    probes::numa_nodes().iter().map(|node| cpus(&node.cpus)).max().unwrap_or(1).max(1)
}

/// Columns of the terminal behind standard output; 100 where there is none.
fn terminal_width() -> u16 {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(100, |size| size.ws_col.max(40))
}
