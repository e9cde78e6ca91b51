//! Which device, port and GID serve, and why: the questions that cost users of RDMA their days, answered from the inventory alone.
//!
//! An Ethernet port needs a RoCE v2 GID: v1 passes no router and is off on many cards. Of those the one that is the address that
//! clients use comes first, because then the network's own routes lead to it. A link-local one serves only if nothing else is there.

use crate::choice::{DeviceChoice, RdmaChoice};
use crate::inventory::{Device, Gid, GidKind, Port};
use std::net::IpAddr;
use thiserror::Error;

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Name of the device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// Index of the GID in the port's table.
    pub gid_index: u8,
    /// The GID.
    pub gid: [u8; 16],
    /// The port's other usable GIDs, unless one was asked for: for connections to another of its addresses than this.
    pub others: Vec<IndexedGid>,
    /// Why this one, for a person.
    pub reason: String,
}

/// A GID and its index in its port's table.
pub type IndexedGid = (u8, [u8; 16]);

impl Selection {
    /// The GID for a connection to this machine's `address`: the one that is that address, so that both sides' packets go the way that the
    /// connection itself goes; else the one that was chosen.
    #[must_use]
    pub fn gid_for(&self, address: IpAddr) -> IndexedGid {
        let bytes = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let other = self.others.iter().find(|(_, gid)| *gid == bytes).filter(|_| self.gid != bytes);
        other.copied().unwrap_or((self.gid_index, self.gid))
    }
}

/// What the choice is made for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Addresses that the peers use; unspecified ones (0.0.0.0, [::]) fit any.
    pub addresses: &'a [IpAddr],
    /// The NUMA node that the process runs on.
    pub numa_node: Option<u32>,
}

/// Why nothing can be chosen, and the way out.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoSelection {
    /// None is to be chosen.
    #[error("RDMA is switched off")]
    Off,
    /// The machine has no device.
    #[error(
        "this machine has no RDMA device; it takes a network card with RDMA and its driver ('rdma link' lists devices)"
    )]
    NoDevice,
    /// There is no device of this name.
    #[error("there is no RDMA device '{wanted}'; this machine has {known}")]
    UnknownDevice {
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: String,
    },
    /// The device has no such port.
    #[error("{device} has no port {port}; it has {known}")]
    UnknownPort {
        /// The device.
        device: String,
        /// What was asked for.
        port: u8,
        /// What there is.
        known: String,
    },
    /// No port carries packets now.
    #[error("{what} {state}; {cure}")]
    Inactive {
        /// Which port.
        what: String,
        /// In which state it is.
        state: String,
        /// What to do.
        cure: &'static str,
    },
    /// The GID that was asked for doesn't serve.
    #[error("GID {index} of {port} {problem}; those in use: {known}")]
    UnfitGid {
        /// What was asked for.
        index: u8,
        /// Which port.
        port: String,
        /// What is wrong with it.
        problem: &'static str,
        /// What there is.
        known: String,
    },
    /// No GID leads to where the peers are.
    #[error("no GID of {port} fits {wanted} (in use: {known}); {cure}")]
    NoGid {
        /// Which port or device.
        port: String,
        /// What was looked for.
        wanted: String,
        /// What there is.
        known: String,
        /// What to do.
        cure: &'static str,
    },
}

/// Chooses for `choice`.
///
/// # Errors
/// Why there is nothing to choose; for `auto` that of the device that comes closest.
pub fn choose(choice: &RdmaChoice, devices: &[Device], wanted: Wanted<'_>) -> Result<Selection, NoSelection> {
    match choice {
        RdmaChoice::Device(named) => named_device(named, devices, wanted),
        RdmaChoice::Auto => any_device(devices, wanted),
        RdmaChoice::Off => Err(NoSelection::Off),
    }
}

/// The best of all devices: first by how well its GID fits, then by its nearness to the process.
fn any_device(devices: &[Device], wanted: Wanted<'_>) -> Result<Selection, NoSelection> {
    let mut best: Option<(u8, Selection)> = None;
    let mut closest = NoSelection::NoDevice;
    for device in devices {
        for port in &device.ports {
            match best_gid(device, port, wanted) {
                Err(error) => {
                    if closeness(&error) >= closeness(&closest) {
                        closest = error;
                    }
                }
                Ok((gid, fit)) => {
                    let (nearness, near) = nearness(device, wanted);
                    let rank = fit.rank() * 4 + nearness;
                    if best.as_ref().is_none_or(|(highest, _)| rank > *highest) {
                        best = Some((rank, select(device, port, gid, format!("{}{near}", fit.reason()))));
                    }
                }
            }
        }
    }
    best.map(|(_, selection)| selection).ok_or(closest)
}

fn named_device(
    named: &DeviceChoice,
    devices: &[Device],
    wanted: Wanted<'_>,
) -> Result<Selection, NoSelection> {
    let names = || listed(devices.iter().map(|device| device.name.clone()));
    let device = devices
        .iter()
        .find(|device| *device.name == *named.device)
        .ok_or_else(|| NoSelection::UnknownDevice { wanted: named.device.to_string(), known: names() })?;
    let known = || listed(device.ports.iter().map(|port| format!("port {}", port.number)));
    let unknown = |port| NoSelection::UnknownPort { device: device.name.clone(), port, known: known() };
    let port = match named.port {
        Some(number) => {
            device.ports.iter().find(|port| port.number == number).ok_or_else(|| unknown(number))?
        }
        None => {
            let active = device.ports.iter().find(|port| port.state == "ACTIVE");
            active.or(device.ports.first()).ok_or_else(|| unknown(1))?
        }
    };
    let Some(index) = named.gid_index else {
        let (gid, fit) = best_gid(device, port, wanted)?;
        return Ok(select(device, port, gid, fit.reason().to_owned()));
    };
    must_be_active(device, port)?;
    let unfit =
        |problem| NoSelection::UnfitGid { index, port: name_of(device, port), problem, known: gids_of(port) };
    let gid = port.gids.iter().find(|gid| gid.index == index).ok_or_else(|| unfit("is not in use"))?;
    if port.link_layer == "Ethernet" && gid.kind != GidKind::RoceV2 {
        return Err(unfit("is of RoCE v1, which passes no router and many cards have off"));
    }
    Ok(Selection { others: Vec::new(), ..select(device, port, gid, "asked for".to_owned()) })
}

/// How well a GID fits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    LinkLocal,
    Routable,
    Address,
}

impl Fit {
    fn rank(self) -> u8 {
        self as u8
    }

    fn reason(self) -> &'static str {
        match self {
            Fit::Address => "its GID is the address that peers use",
            Fit::Routable => "its GID is routable",
            Fit::LinkLocal => "its only GID is link-local: peers on the same link only",
        }
    }
}

fn best_gid<'d>(device: &Device, port: &'d Port, wanted: Wanted<'_>) -> Result<(&'d Gid, Fit), NoSelection> {
    must_be_active(device, port)?;
    let is_ethernet = port.link_layer == "Ethernet";
    let specified: Vec<IpAddr> =
        wanted.addresses.iter().copied().filter(|address| !address.is_unspecified()).collect();
    // The addresses of an InfiniBand port are no IP addresses: any of them leads to it.
    let must_match = is_ethernet && !specified.is_empty() && specified.len() == wanted.addresses.len();
    let fit = |gid: &&'d Gid| {
        let fit = match () {
            () if specified.contains(&gid.address()) => Fit::Address,
            () if gid.is_link_local() => Fit::LinkLocal,
            () => Fit::Routable,
        };
        (*gid, fit)
    };
    let usable = port.gids.iter().filter(|gid| !is_ethernet || gid.kind == GidKind::RoceV2);
    // The first of equals: later entries of the table are mostly addresses of VLANs and containers.
    let best = usable.rev().map(|gid| fit(&gid)).max_by_key(|(_, fit)| *fit);
    match best {
        Some((_, fit)) if must_match && fit != Fit::Address => {}
        Some(best) => return Ok(best),
        None => {}
    }
    let wanted =
        if must_match { listed(specified.iter().map(IpAddr::to_string)) } else { "RoCE v2".to_owned() };
    let cure = if must_match {
        "listen on (or connect to) an address of the card's own interface, or name the GID as DEVICE:PORT:GID"
    } else {
        "give the card's interface an IP address ('ip address add …'), and with it RoCE v2 GIDs"
    };
    Err(NoSelection::NoGid { port: name_of(device, port), wanted, known: gids_of(port), cure })
}

fn must_be_active(device: &Device, port: &Port) -> Result<(), NoSelection> {
    if port.state == "ACTIVE" {
        return Ok(());
    }
    let cure = match (port.link_layer.as_str(), port.state.as_str()) {
        ("InfiniBand", "INIT") => {
            "the link is up and no subnet manager has configured it: start opensm in the fabric"
        }
        ("InfiniBand", _) => "look for the cable or the switch ('ibstat')",
        _ => {
            "bring its network interface up ('rdma link' names it, 'ip link set … up'), or look for the cable"
        }
    };
    Err(NoSelection::Inactive { what: name_of(device, port), state: format!("is {}", port.state), cure })
}

/// A device of the process's own node, or of none, is nearer than one of another node.
fn nearness(device: &Device, wanted: Wanted<'_>) -> (u8, &'static str) {
    match (device.numa_node, wanted.numa_node) {
        (Some(node), Some(own)) if node == own => (3, ", and it's on this process's NUMA node"),
        (Some(_), Some(_)) => (1, ""),
        _ => (2, ""),
    }
}

fn select(device: &Device, port: &Port, gid: &Gid, reason: String) -> Selection {
    let is_ethernet = port.link_layer == "Ethernet";
    let others =
        port.gids.iter().filter(|other| is_ethernet && other.kind == GidKind::RoceV2 && *other != gid);
    Selection {
        device: device.name.clone(),
        port: port.number,
        gid_index: gid.index,
        gid: gid.bytes,
        others: others.map(|gid| (gid.index, gid.bytes)).collect(),
        reason,
    }
}

/// Which of two reasons says more about what is missing.
fn closeness(error: &NoSelection) -> u8 {
    match error {
        NoSelection::NoDevice => 0,
        NoSelection::Inactive { .. } => 1,
        _ => 2,
    }
}

fn name_of(device: &Device, port: &Port) -> String {
    format!("{} port {}", device.name, port.number)
}

fn gids_of(port: &Port) -> String {
    listed(port.gids.iter().map(Gid::describe))
}

fn listed(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gid(index: u8, address: &str, kind: GidKind) -> Gid {
        let bytes = match address.parse().unwrap() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Gid { index, bytes, kind, interface: "eth0".into(), interface_mtu: Some(9000) }
    }

    fn port(number: u8, state: &str, gids: Vec<Gid>) -> Port {
        Port { number, state: state.into(), link_layer: "Ethernet".into(), rate: String::new(), gids }
    }

    /// A card as most are: v1 and v2 of a link-local and of an IPv4 address.
    fn card(name: &str, numa_node: Option<u32>, address: &str) -> Device {
        use GidKind::{InfiniBandOrRoceV1 as V1, RoceV2 as V2};
        let gids =
            vec![gid(0, "fe80::1", V1), gid(1, "fe80::1", V2), gid(2, address, V1), gid(3, address, V2)];
        Device { name: name.into(), numa_node, ports: vec![port(1, "ACTIVE", gids)] }
    }

    fn chosen(choice: &str, devices: &[Device], addresses: &[&str], numa_node: Option<u32>) -> String {
        let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let wanted = Wanted { addresses: &addresses, numa_node };
        match choose(&choice.parse().unwrap(), devices, wanted) {
            Ok(chosen) => format!("{}:{}:{} {}", chosen.device, chosen.port, chosen.gid_index, chosen.reason),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_routable_v2_gid_of_the_listening_address_is_taken() {
        let cards = [card("a", None, "10.0.0.1"), card("b", None, "10.0.0.2")];
        assert_eq!(
            chosen("auto", &cards, &["10.0.0.2"], None),
            "b:1:3 its GID is the address that peers use"
        );
        assert_eq!(chosen("auto", &cards, &["0.0.0.0"], None), "a:1:3 its GID is routable");
        assert_eq!(chosen("b", &cards, &["::"], None), "b:1:3 its GID is routable");
        assert_eq!(chosen("b:1:1", &cards, &["10.0.0.2"], None), "b:1:1 asked for");
    }

    #[test]
    fn a_connection_has_the_gid_of_the_address_that_it_came_to() {
        let mut device = card("a", None, "10.0.0.1");
        device.ports[0].gids.push(gid(4, "10.0.0.9", GidKind::InfiniBandOrRoceV1));
        device.ports[0].gids.push(gid(5, "10.0.0.9", GidKind::RoceV2));
        device.ports[0].gids.push(gid(6, "fd00::9", GidKind::RoceV2));
        let devices = [device];
        let index_for = |choice: &str, address: &str| {
            let any = [IpAddr::from([0, 0, 0, 0])];
            let wanted = Wanted { addresses: &any, numa_node: None };
            let chosen = choose(&choice.parse().unwrap(), &devices, wanted).unwrap();
            chosen.gid_for(address.parse().unwrap()).0
        };
        let addresses = ["10.0.0.1", "10.0.0.9", "fd00::9", "10.0.0.77"];
        assert_eq!(addresses.map(|address| index_for("auto", address)), [3, 5, 6, 3]);
        assert_eq!(addresses.map(|address| index_for("a:1", address)), [3, 5, 6, 3]);
        assert_eq!(
            addresses.map(|address| index_for("a:1:3", address)),
            [3; 4],
            "what was asked for is meant"
        );
    }

    #[test]
    fn the_devices_node_decides_between_equals() {
        let cards = [card("far", Some(0), "10.0.0.1"), card("near", Some(1), "10.0.0.2")];
        let near = "near:1:3 its GID is routable, and it's on this process's NUMA node";
        assert_eq!(chosen("auto", &cards, &["0.0.0.0"], Some(1)), near);
        // An address that was asked for matters more.
        assert_eq!(
            chosen("auto", &cards, &["10.0.0.1"], Some(1)),
            "far:1:3 its GID is the address that peers use"
        );
    }

    #[test]
    fn what_stands_in_the_way_is_said() {
        let down = Device { ports: vec![port(1, "DOWN", vec![])], ..card("a", None, "10.0.0.1") };
        let bare = Device {
            ports: vec![port(1, "ACTIVE", vec![gid(0, "10.0.0.1", GidKind::InfiniBandOrRoceV1)])],
            ..card("a", None, "10.0.0.1")
        };
        let up = card("a", None, "10.0.0.1");
        for (choice, device, addresses, says) in [
            ("auto", &down, ["0.0.0.0"], "a port 1 is DOWN; bring its network interface up"),
            ("auto", &bare, ["0.0.0.0"], "no GID of a port 1 fits RoCE v2"),
            ("auto", &up, ["127.0.0.1"], "no GID of a port 1 fits 127.0.0.1"),
            ("b", &up, ["0.0.0.0"], "there is no RDMA device 'b'; this machine has a"),
            ("a:2", &up, ["0.0.0.0"], "a has no port 2; it has port 1"),
            ("a:1:2", &up, ["0.0.0.0"], "GID 2 of a port 1 is of RoCE v1"),
            (
                "a:1:9",
                &up,
                ["0.0.0.0"],
                "GID 9 of a port 1 is not in use; those in use: 0 fe80::1 (IB/RoCE v1)",
            ),
        ] {
            let said = chosen(choice, std::slice::from_ref(device), &addresses, None);
            assert!(said.contains(says), "{choice}: {said}");
        }
        assert!(chosen("auto", &[], &["0.0.0.0"], None).contains("no RDMA device"));
        let infiniband = Port { link_layer: "InfiniBand".into(), ..port(1, "INIT", vec![]) };
        let said = chosen("auto", &[Device { ports: vec![infiniband], ..up }], &["0.0.0.0"], None);
        assert!(said.contains("subnet manager"), "{said}");
    }

    #[test]
    fn an_infiniband_port_serves_any_address() {
        let gids = vec![gid(0, "fe80::2", GidKind::InfiniBandOrRoceV1)];
        let infiniband = Port { link_layer: "InfiniBand".into(), ..port(1, "ACTIVE", gids) };
        let device = Device { name: "ib".into(), numa_node: None, ports: vec![infiniband] };
        assert!(chosen("auto", &[device], &["10.0.0.1"], None).starts_with("ib:1:0"));
    }

    proptest! {
        /// Shows that an Ethernet port never gets a GID of RoCE v1 or of a port that isn't active, and that an address that was given
        /// is matched or refused.
        #[test]
        fn an_unfit_gid_is_never_chosen(
            ports in prop::collection::vec((any::<bool>(), prop::collection::vec((0_u8..4, any::<bool>()), 0..5)), 0..4),
            asked in prop::option::of(0_u8..4),
        ) {
            let address = |last: u8| format!("10.0.0.{last}");
            let devices: Vec<Device> = ports.iter().enumerate().map(|(at, (is_active, gids))| {
                let gids = gids.iter().enumerate().map(|(index, (last, is_v2))| {
                    let kind = if *is_v2 { GidKind::RoceV2 } else { GidKind::InfiniBandOrRoceV1 };
                    gid(index as u8, &address(*last), kind)
                });
                let port = port(1, if *is_active { "ACTIVE" } else { "DOWN" }, gids.collect());
                Device { name: format!("d{at}"), numa_node: None, ports: vec![port] }
            }).collect();
            let addresses: Vec<IpAddr> = asked.iter().map(|last| address(*last).parse().unwrap()).collect();
            let chosen = choose(&RdmaChoice::Auto, &devices, Wanted { addresses: &addresses, numa_node: None });
            let fits = |gid: &Gid| gid.kind == GidKind::RoceV2 && (addresses.is_empty() || addresses.contains(&gid.address()));
            let mut active = devices.iter().flat_map(|device| &device.ports).filter(|port| port.state == "ACTIVE");
            prop_assert_eq!(chosen.is_ok(), active.any(|port| port.gids.iter().any(fits)));
            if let Ok(chosen) = chosen {
                let device = devices.iter().find(|device| device.name == chosen.device).unwrap();
                prop_assert_eq!(&device.ports[0].state, "ACTIVE");
                let gid = device.ports[0].gids.iter().find(|gid| gid.index == chosen.gid_index).unwrap();
                prop_assert!(fits(gid));
                prop_assert_eq!(gid.bytes, chosen.gid);
            }
        }
    }
}
