//! The store that a measurement measures: how it is reached, and what of it shows from outside.

use std::fs;
use std::net::ToSocketAddrs;
use std::time::Duration;

use lanner_client::{Client, ClientConfig, TransportChoice};

use super::floor::segment::Pages;
use crate::exit::Failure;

/// How long a call may take. Longer than a user's, because loading tables of gigabytes is one call.
const TIME_OUT: Duration = Duration::from_secs(120);

/// A client of the servers of `url` over one transport, whatever the URL says of transports.
///
/// # Errors
/// A URL that can't be meant, a server that can't be reached over that transport.
pub fn connect(url: &str, transport: TransportChoice) -> Result<Client, Failure> {
    let config: ClientConfig = url.parse()?;
    Ok(Client::with_config(ClientConfig { transport, timeout: TIME_OUT, ..config })?)
}

/// Whether all servers are on this host. Where they aren't, its limits say nothing about them.
#[must_use]
pub fn is_local(client: &Client) -> bool {
    let is_loopback = |address: &str| {
        address.to_socket_addrs().is_ok_and(|mut found| found.all(|address| address.ip().is_loopback()))
    };
    client.servers().iter().all(|server| is_loopback(&server.address))
}

/// The pages of the segments that this process has mapped, so that a limit can be measured on the same; small ones where there are none.
#[must_use]
pub fn pages() -> Pages {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    pages_in(&maps)
}

fn pages_in(maps: &str) -> Pages {
    let of_segment = maps.lines().skip_while(|line| !line.contains("memfd:lanner-segment"));
    let size = of_segment.into_iter().find_map(|line| line.strip_prefix("KernelPageSize:"));
    match size.map(str::trim) {
        Some("2048 kB") => Pages::Huge,
        _ => Pages::Small,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that the pages are those of the segment and not of another mapping.
    #[test]
    fn pages_are_those_of_the_segment() {
        let maps = |segment: &str| {
            format!(
                "7f00-7f01 r--p 0 00:00 0 /lib\nKernelPageSize:        4 kB\n\
                 7f02-7f03 r--s 0 00:01 9 /memfd:lanner-segment (deleted)\nSize: 1 kB\nKernelPageSize:     {segment} kB\n"
            )
        };
        assert_eq!(pages_in(&maps("2048")), Pages::Huge);
        assert_eq!(pages_in(&maps("4")), Pages::Small);
        assert_eq!(pages_in("7f00-7f01 r--p 0 00:00 0 /lib\nKernelPageSize:     2048 kB\n"), Pages::Small);
    }
}
