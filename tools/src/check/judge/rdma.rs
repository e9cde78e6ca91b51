//! Judges RDMA, which is always optional: devices, the state of their ports, and the library to use them.

use super::Finding;
use crate::check::facts::{Rdma, RdmaDevice};

/// The findings on devices and, where there are some, on the library.
pub fn rdma(facts: &Rdma) -> Vec<Finding> {
    if facts.devices.is_empty() {
        return vec![Finding::slower_without("RDMA devices", "none").because(
            "clients on other machines use TCP; this takes a network card with RDMA and its driver",
        )];
    }
    let mut findings: Vec<Finding> = facts.devices.iter().map(device).collect();
    findings.push(match &facts.library_error {
        None => Finding::ok("libibverbs", "loadable"),
        Some(error) => Finding::slower_without("libibverbs", error)
            .because("RDMA devices are there, and the library to use them isn't")
            .mended_by("sudo apt-get install -y rdma-core libibverbs1"),
    });
    findings
}

fn device(device: &RdmaDevice) -> Finding {
    let what = format!("RDMA device {}", device.name);
    let ports: Vec<String> = device
        .ports
        .iter()
        .map(|port| format!("port {} {} ({})", port.number, port.state, port.link_layer))
        .collect();
    let found = if ports.is_empty() { "no port".to_owned() } else { ports.join(", ") };
    if device.ports.iter().any(|port| port.state == "ACTIVE") {
        return Finding::ok(what, found);
    }
    let finding = Finding::slower_without(what, found);
    match device.ports.first().map(|port| (port.link_layer.as_str(), port.state.as_str())) {
        Some(("InfiniBand", "INIT")) => finding
            .because("the link is up, and no subnet manager has configured the port")
            .mended_by("sudo apt-get install -y opensm && sudo systemctl start opensm"),
        Some(("InfiniBand", _)) => finding.because("no port is active: cable or switch; `ibstat` shows more"),
        Some(_) => finding
            .because("no port is active: its network interface is down or has no carrier")
            .mended_by(format!(
                "sudo ip link set dev $(ls /sys/class/infiniband/{}/device/net | head -n 1) up",
                device.name
            )),
        None => finding.because("the driver shows no port"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::machines::{check, rdma_server, small_server};
    use crate::check::facts::Facts;

    fn with_port(link_layer: &str, state: &str) -> Facts {
        let mut facts = rdma_server();
        facts.rdma.devices[0].ports[0].link_layer = link_layer.into();
        facts.rdma.devices[0].ports[0].state = state.into();
        facts
    }

    /// Shows that a machine without RDMA hears one sentence about it and can run.
    #[test]
    fn no_device_is_no_fault() {
        check(&small_server(), "RDMA devices", Verdict::SlowerWithout, "TCP");
    }

    /// Shows that a port that isn't active is explained by its link layer and state.
    #[test]
    fn a_dead_port_is_explained() {
        check(&rdma_server(), "RDMA device mlx5_0", Verdict::Ok, "port 1 ACTIVE (InfiniBand)");
        check(&with_port("InfiniBand", "INIT"), "RDMA device mlx5_0", Verdict::SlowerWithout, "opensm");
        check(&with_port("InfiniBand", "DOWN"), "RDMA device mlx5_0", Verdict::SlowerWithout, "cable");
        check(&with_port("Ethernet", "DOWN"), "RDMA device mlx5_0", Verdict::SlowerWithout, "ip link set");
    }

    /// Shows that a device without its library is a device that can't be used.
    #[test]
    fn a_device_without_its_library_is_pointed_out() {
        let mut facts = rdma_server();
        facts.rdma.library_error = Some("libibverbs.so.1: cannot open shared object file".into());
        check(&facts, "libibverbs", Verdict::SlowerWithout, "rdma-core");
    }
}
