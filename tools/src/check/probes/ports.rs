//! Tries to listen on the ports of a server, and looks up who does if that's refused.

use std::fs;
use std::net::{SocketAddr, TcpListener};

use super::text;
use crate::check::facts::{Attempt, Port, PortOwner};
use crate::check::needs::Needs;

/// The data port, and the admin port if there is to be one.
pub fn ports(needs: &Needs) -> Vec<Port> {
    let admin = needs.admin.map(|address| port("admin", address));
    [port("data", needs.listen)].into_iter().chain(admin).collect()
}

/// First and last port for outgoing connections.
pub fn local_port_range() -> Option<(u16, u16)> {
    let range = text("/proc/sys/net/ipv4/ip_local_port_range")?;
    let mut ends = range.split_whitespace().map(str::parse);
    Some((ends.next()?.ok()?, ends.next()?.ok()?))
}

fn port(purpose: &str, address: SocketAddr) -> Port {
    let binding = match TcpListener::bind(address) {
        Ok(_) => Attempt::Worked,
        Err(error) => {
            Attempt::Refused { step: "listening".to_owned(), errno: error.raw_os_error().unwrap_or_default() }
        }
    };
    let owner = if binding == Attempt::Worked { None } else { owner(address.port()) };
    Port {
        purpose: purpose.to_owned(),
        address: address.ip().to_string(),
        port: address.port(),
        binding,
        owner,
    }
}

/// The process that listens on `port`, as far as this user may see it.
fn owner(port: u16) -> Option<PortOwner> {
    let sockets = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().filter_map(text);
    let inodes: Vec<u64> = sockets.flat_map(|table| listening_inodes(&table, port)).collect();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        for file in files.flatten() {
            let Ok(target) = fs::read_link(file.path()) else { continue };
            if inodes.iter().any(|inode| target.to_string_lossy() == format!("socket:[{inode}]")) {
                return Some(PortOwner { program: text(process.path().join("comm"))?, pid });
            }
        }
    }
    None
}

/// The inodes of the sockets that listen on `port`, from a `/proc/net/tcp`: the second column is the local address in
/// hexadecimal, the fourth the state (0A listens), the tenth the inode.
fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    let ending = format!(":{port:04X}");
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|columns| columns.get(1).is_some_and(|local| local.ends_with(&ending)))
        .filter(|columns| columns.get(3) == Some(&"0A"))
        .filter_map(|columns| columns.get(9)?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a port in use is refused and that its owner is found, on a socket of this process.
    #[test]
    fn the_owner_of_a_port_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = port("data", listener.local_addr().expect("bound"));
        assert!(matches!(port.binding, Attempt::Refused { errno: 98, .. }), "{port:?}");
        assert_eq!(port.owner.map(|owner| owner.pid), Some(std::process::id()));
    }

    /// Shows that an established connection from the port is not taken for a listener.
    #[test]
    fn only_listeners_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1CF3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n\
             1: 0100007F:1CF3 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1\n";
        assert_eq!(listening_inodes(table, 7411), [4711]);
        assert_eq!(listening_inodes(table, 7412), Vec::<u64>::new());
    }
}
