//! Judges RDMA, which is always optional: devices, the state of their ports, what a server would choose of them and why, and the library to
//! use them. What locked memory has to do with it is in [`super::limits`].

use lanner_rdma::choice::RdmaChoice;
use lanner_rdma::inventory::{self, GidKind};
use lanner_rdma::selection::{self, Wanted};

use super::Finding;
use crate::check::facts::{Rdma, RdmaDevice, RdmaGid, RdmaPort};
use crate::check::needs::Needs;

/// The least MTU of an Ethernet interface that leaves room for RoCE packets of 4096 bytes.
const ROOMY_MTU: u32 = 4200;

/// The findings on devices and, where there are some, on what a server would choose and on the library.
pub fn rdma(facts: &Rdma, needs: &Needs) -> Vec<Finding> {
    if facts.devices.is_empty() {
        return vec![Finding::slower_without("RDMA devices", "none").because(
            "clients on other machines use TCP; this takes a network card with RDMA and its driver",
        )];
    }
    let mut findings: Vec<Finding> = facts.devices.iter().map(device).collect();
    findings.push(choice(facts, needs));
    findings.push(match &facts.library_error {
        None => Finding::ok("libibverbs", "loadable"),
        Some(error) => Finding::slower_without("libibverbs", error)
            .because("RDMA devices are there, and the library to use them isn't")
            .mended_by(lanner_rdma::RUN_TIME_PACKAGES),
    });
    findings
}

fn device(device: &RdmaDevice) -> Finding {
    let what = format!("RDMA device {}", device.name);
    let ports: Vec<String> = device.ports.iter().map(port).collect();
    let found = if ports.is_empty() { "no port".to_owned() } else { ports.join(", ") };
    if let Some(error) = &device.open_error {
        return Finding::slower_without(what, found).because(error.clone());
    }
    if device.ports.iter().any(|port| port.state == "ACTIVE") {
        return small_packets(device, &what, &found).unwrap_or_else(|| Finding::ok(what, found));
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

/// What a server with these flags and `--rdma auto` takes, and why; or why there is nothing to take.
fn choice(facts: &Rdma, needs: &Needs) -> Finding {
    let what = format!("RDMA for --listen {}", needs.listen.ip());
    let devices: Vec<inventory::Device> = facts.devices.iter().map(as_inventory).collect();
    let wanted = Wanted { addresses: &[needs.listen.ip()], numa_node: None };
    match selection::choose(&RdmaChoice::Auto, &devices, wanted) {
        // The findings on device and library say why, and the way out.
        Ok(chosen) if !can_be_opened(facts, &chosen.device) => Finding::slower_without(what, "none")
            .because(format!("{} fits and can't be opened", chosen.device)),
        Ok(chosen) => {
            let (device, port, gid) = (chosen.device, chosen.port, chosen.gid_index);
            Finding::ok(what, format!("{device}:{port}:{gid}, because {}", chosen.reason))
        }
        Err(reason) => Finding::slower_without(what, "none").because(reason.to_string()),
    }
}

fn can_be_opened(facts: &Rdma, name: &str) -> bool {
    let opens = |device: &RdmaDevice| device.name == name && device.open_error.is_none();
    facts.library_error.is_none() && facts.devices.iter().any(opens)
}

/// An interface whose packets are too small for the largest that RDMA has.
fn small_packets(device: &RdmaDevice, what: &str, found: &str) -> Option<Finding> {
    let mut gids = device.ports.iter().flat_map(|port| &port.gids);
    let small = gids.find(|gid| gid.interface_mtu.is_some_and(|mtu| mtu < ROOMY_MTU))?;
    let finding = Finding::slower_without(what, found)
        .because("packets carry 1024 bytes instead of 4096, so large values take more of them; switches have to let larger ones through")
        .mended_by(format!("sudo ip link set dev {} mtu {ROOMY_MTU}", small.interface));
    Some(finding)
}

fn port(port: &RdmaPort) -> String {
    let gids: Vec<String> = as_port(port).gids.iter().map(inventory::Gid::describe).collect();
    let mtu = port.gids.iter().find_map(|gid| gid.interface_mtu);
    let mtu = mtu.map_or(String::new(), |mtu| format!(", MTU {mtu}"));
    let rate = if port.rate.is_empty() { String::new() } else { format!(", {}", port.rate) };
    let gids = if gids.is_empty() { String::new() } else { format!(", GIDs {}", gids.join(", ")) };
    format!("port {} {} ({}{rate}{mtu}){gids}", port.number, port.state, port.link_layer)
}

fn as_inventory(device: &RdmaDevice) -> inventory::Device {
    let ports = device.ports.iter().map(as_port).collect();
    inventory::Device { name: device.name.clone(), numa_node: device.numa_node, ports }
}

fn as_port(port: &RdmaPort) -> inventory::Port {
    let gid = |gid: &RdmaGid| inventory::Gid {
        index: gid.index,
        bytes: gid.address.octets(),
        kind: if gid.is_roce_v2 { GidKind::RoceV2 } else { GidKind::InfiniBandOrRoceV1 },
        interface: gid.interface.clone(),
        interface_mtu: gid.interface_mtu,
    };
    inventory::Port {
        number: u8::try_from(port.number).unwrap_or(u8::MAX),
        state: port.state.clone(),
        link_layer: port.link_layer.clone(),
        rate: port.rate.clone(),
        gids: port.gids.iter().map(gid).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::machines::{check, check_with, needs, rdma_server, roce_server, small_server};
    use crate::check::facts::Facts;
    use crate::check::needs::Needs;

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
        check(&rdma_server(), "RDMA device mlx5_0", Verdict::Ok, "port 1 ACTIVE (InfiniBand, 100 Gb/sec");
        check(&with_port("InfiniBand", "INIT"), "RDMA device mlx5_0", Verdict::SlowerWithout, "opensm");
        check(&with_port("InfiniBand", "DOWN"), "RDMA device mlx5_0", Verdict::SlowerWithout, "cable");
        check(&with_port("Ethernet", "DOWN"), "RDMA device mlx5_0", Verdict::SlowerWithout, "ip link set");
    }

    /// Shows that what a server would take is said with its reason, and that nothing fitting is explained by what there is.
    #[test]
    fn the_choice_is_said_with_its_reason() {
        check(
            &roce_server(),
            "RDMA for --listen 127.0.0.1",
            Verdict::SlowerWithout,
            "fits 127.0.0.1 (in use: 3 10.0.0.1 (RoCE v2))",
        );
        let needs = Needs { listen: "10.0.0.1:7411".parse().expect("an address"), ..needs() };
        check_with(
            &roce_server(),
            &needs,
            "RDMA for --listen 10.0.0.1",
            Verdict::Ok,
            "mlx5_0:1:3, because its GID is the address",
        );
    }

    /// Shows that an interface with small packets is pointed out, with the command that mends it.
    #[test]
    fn small_packets_are_pointed_out() {
        check(&roce_server(), "RDMA device mlx5_0", Verdict::Ok, "MTU 9000");
        let mut facts = roce_server();
        facts.rdma.devices[0].ports[0].gids[0].interface_mtu = Some(1500);
        check(&facts, "RDMA device mlx5_0", Verdict::SlowerWithout, "ip link set dev eth4 mtu 4200");
    }

    /// Shows that a device without its library is a device that can't be used.
    #[test]
    fn a_device_without_its_library_is_pointed_out() {
        let mut facts = rdma_server();
        facts.rdma.library_error = Some("libibverbs.so.1: cannot open shared object file".into());
        check(&facts, "libibverbs", Verdict::SlowerWithout, "ibverbs-providers");
    }

    /// Shows that a device whose library has no part for its driver isn't called ok: `lanner check` said so once, and the server then couldn't open it.
    #[test]
    fn a_device_that_cant_be_opened_is_pointed_out() {
        let mut facts = roce_server();
        facts.rdma.devices[0].open_error = Some("libibverbs doesn't know mlx5_0".into());
        check(&facts, "RDMA device mlx5_0", Verdict::SlowerWithout, "doesn't know mlx5_0");
        // Nor was it to be what a server takes.
        let needs = Needs { listen: "10.0.0.1:7411".parse().expect("an address"), ..needs() };
        let choice = "RDMA for --listen 10.0.0.1";
        check_with(&facts, &needs, choice, Verdict::SlowerWithout, "mlx5_0 fits and can't be opened");
        facts.rdma.devices[0].open_error = None;
        facts.rdma.library_error = Some("libibverbs.so.1: cannot open shared object file".into());
        check_with(&facts, &needs, choice, Verdict::SlowerWithout, "mlx5_0 fits and can't be opened");
    }
}
