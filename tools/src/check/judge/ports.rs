//! Judges the ports: whether a server could listen now, and whether an outgoing connection may take them before it starts.

use super::{Finding, errno_text};
use crate::check::facts::{Attempt, Facts, Port};

const EACCES: i32 = 13;
const EADDRINUSE: i32 = 98;
const EADDRNOTAVAIL: i32 = 99;

/// The findings on each port, and on the range of ports for outgoing connections.
pub fn ports(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts.ports.iter().map(binding).collect();
    findings.extend(facts.local_port_range.map(|range| outside_of_the_local_range(facts, range)));
    findings
}

fn binding(port: &Port) -> Finding {
    let what = format!("{} port {}", port.purpose, port.port);
    let flag = if port.purpose == "admin" { "--admin" } else { "--listen" };
    let (step, errno) = match &port.binding {
        Attempt::Worked => return Finding::ok(what, "free"),
        Attempt::Wrong { seen } => return Finding::missing(what, seen).because("no server can listen there"),
        Attempt::Refused { step, errno } => (step, *errno),
    };
    let found = format!("{step}: {}", errno_text(errno));
    match (errno, &port.owner) {
        (EADDRINUSE, Some(owner)) if owner.program.starts_with("lanner-server") => {
            Finding::ok(what, format!("a Lanner server listens there already, process {}", owner.pid))
        }
        (EADDRINUSE, Some(owner)) => Finding::missing(what, found)
            .because(format!("{} (process {}) listens there", owner.program, owner.pid))
            .mended_by(format!("lanner-server {flag} 127.0.0.1:0")),
        (EADDRINUSE, None) => Finding::missing(what, found)
            .because(format!(
                "another program listens there; `sudo ss -ltnp 'sport = :{}'` names it",
                port.port
            ))
            .mended_by(format!("lanner-server {flag} 127.0.0.1:0")),
        (EADDRNOTAVAIL, _) => Finding::missing(what, found).because(format!(
            "{} is not an address of this machine; `ip -brief address` lists them",
            port.address
        )),
        (EACCES, _) => Finding::missing(what, found)
            .because("ports below net.ipv4.ip_unprivileged_port_start are for root")
            .mended_by(format!("lanner-server {flag} 127.0.0.1:7411")),
        _ => Finding::missing(what, found).because("no server can listen there"),
    }
}

fn outside_of_the_local_range(facts: &Facts, (first, last): (u16, u16)) -> Finding {
    let what = "ports for outgoing connections";
    let found = format!("{first}-{last}");
    let reserved = facts.local_reserved_ports.as_deref().unwrap_or_default();
    let exposed: Vec<String> = facts
        .ports
        .iter()
        .map(|port| port.port)
        .filter(|port| *port != 0 && (first..=last).contains(port) && !is_listed(reserved, *port))
        .map(|port| port.to_string())
        .collect();
    if exposed.is_empty() {
        return Finding::ok(what, found);
    }
    let list = [reserved, &exposed.join(",")]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(",");
    Finding::slower_without(what, found)
        .because(format!(
            "an outgoing connection may take port {} while the server is down, so that it can't start again",
            exposed.join(" or ")
        ))
        .mended_by(format!("sudo sysctl -w net.ipv4.ip_local_reserved_ports={list}"))
}

/// True if `port` is in a list such as `7411,8000-8010`.
fn is_listed(list: &str, port: u16) -> bool {
    list.split(',').any(|entry| {
        let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first), Ok(last)) => (first..=last).contains(&port),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::machines::{check, small_server};
    use super::*;
    use crate::check::facts::PortOwner;

    const RANGE: &str = "ports for outgoing connections";

    fn in_use(owner: Option<&str>) -> Facts {
        let mut facts = small_server();
        facts.ports[0].binding = Attempt::Refused { step: "listening".into(), errno: EADDRINUSE };
        facts.ports[0].owner = owner.map(|program| PortOwner { program: program.into(), pid: 42 });
        facts
    }

    /// Shows that a port in use is told apart: by a stranger, by somebody we may not see, by Lanner itself.
    #[test]
    fn who_has_the_port_is_named() {
        check(&in_use(Some("nginx")), "data port 7411", Verdict::Missing, "nginx (process 42)");
        check(&in_use(None), "data port 7411", Verdict::Missing, "ss -ltnp");
        check(&in_use(Some("lanner-server")), "data port 7411", Verdict::Ok, "process 42");
    }

    /// Shows that the cure for an address that can't be had is not another port.
    #[test]
    fn an_address_of_another_machine_is_named() {
        let mut facts = small_server();
        facts.ports[1].binding = Attempt::Refused { step: "listening".into(), errno: EADDRNOTAVAIL };
        check(&facts, "admin port 7412", Verdict::Missing, "not an address of this machine");
    }

    /// Shows that a default port inside the range is pointed out, unless it is reserved, and that reservations are kept.
    #[test]
    fn a_port_inside_the_local_range_is_pointed_out() {
        let with = |range, reserved: &str| Facts {
            local_port_range: Some(range),
            local_reserved_ports: Some(reserved.into()),
            ..small_server()
        };
        check(&with((32768, 60999), ""), RANGE, Verdict::Ok, "");
        check(&with((1024, 65535), ""), RANGE, Verdict::SlowerWithout, "ip_local_reserved_ports=7411,7412");
        check(&with((1024, 65535), "7000-7411,9000"), RANGE, Verdict::SlowerWithout, "=7000-7411,9000,7412");
        check(&with((1024, 65535), "7400-7500"), RANGE, Verdict::Ok, "");
        check(&with((7411, 7411), ""), RANGE, Verdict::SlowerWithout, "port 7411 while");
    }
}
