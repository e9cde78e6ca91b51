//! The devices, ports and GIDs that the kernel shows below `/sys/class/infiniband`. Reads files only: no library, no device is opened.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// Behind so many entries in a row that aren't in use, the rest of a port's table isn't read: it may have a thousand, each of them two files.
const LONGEST_GAP: u32 = 32;

/// Where the kernel shows them.
pub const ROOT: &str = "/sys/class/infiniband";

/// Where the kernel shows what programs open of them: entries of `ib_uverbs`, each with the name of its device.
pub const VERBS_ROOT: &str = "/sys/class/infiniband_verbs";

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// As `ibv_devices` lists it.
    pub name: String,
    /// The NUMA node that it's attached to; `None` where the kernel knows none, as of a device in software.
    pub numa_node: Option<u32>,
    /// In the order of their numbers.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Counted from 1.
    pub number: u8,
    /// `ACTIVE`, `INIT`, `DOWN`, …
    pub state: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// `100 Gb/sec (4X EDR)`, as the kernel says it.
    pub rate: String,
    /// Those that are in use.
    pub gids: Vec<Gid>,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Place in the port's table.
    pub index: u8,
    /// The address.
    pub bytes: [u8; 16],
    /// How packets to it travel.
    pub kind: GidKind,
    /// The network interface that it belongs to, of an Ethernet port.
    pub interface: String,
    /// The largest packet of that interface, in bytes.
    pub interface_mtu: Option<u32>,
}

/// How packets to a GID travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// Over InfiniBand, or in bare Ethernet frames (RoCE v1), which no router passes on. The kernel has one name for both.
    InfiniBandOrRoceV1,
    /// In UDP, as any IP packet.
    RoceV2,
}

impl Gid {
    /// The IP address that it's made from, if it is. A RoCE v2 GID always is one.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        let address = Ipv6Addr::from(self.bytes);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }

    /// Whether it's an address of the link only, which no router passes on.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        match self.address() {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
    }

    /// The address as text, and how packets to it travel.
    #[must_use]
    pub fn describe(&self) -> String {
        let kind = match self.kind {
            GidKind::RoceV2 => "RoCE v2",
            GidKind::InfiniBandOrRoceV1 => "IB/RoCE v1",
        };
        format!("{} {} ({kind})", self.index, self.address())
    }
}

/// All devices below `root` (mostly [`ROOT`]), by name. None where there are none.
#[must_use]
pub fn devices(root: &Path) -> Vec<Device> {
    names(root).into_iter().map(|name| device(root, name)).collect()
}

/// The GID at that place of a port's table now; `None` where there is no such device, port or place.
#[must_use]
pub fn gid_at(root: &Path, device: &str, port: u8, index: u8) -> Option<[u8; 16]> {
    let port = root.join(device).join("ports").join(port.to_string());
    gid_bytes(&port, index)
}

fn gid_bytes(port: &Path, index: u8) -> Option<[u8; 16]> {
    let bytes = text(&port.join("gids").join(index.to_string()))?.parse::<Ipv6Addr>().ok()?.octets();
    (bytes != [0; 16]).then_some(bytes)
}

fn device(root: &Path, name: String) -> Device {
    let folder = root.join(&name);
    let numa_node = text(&folder.join("device/numa_node")).and_then(|node| node.parse().ok());
    let ports = folder.join("ports");
    Device {
        numa_node,
        ports: names(&ports).iter().filter_map(|port| read_port(&ports, port)).collect(),
        name,
    }
}

fn read_port(ports: &Path, name: &str) -> Option<Port> {
    let folder = ports.join(name);
    // The state reads `4: ACTIVE`.
    let state = text(&folder.join("state"))?;
    let state = state.split_once(": ").map_or(state.as_str(), |(_, state)| state).to_owned();
    let (mut gids, mut unused) = (Vec::new(), 0);
    for index in 0..=u8::MAX {
        match read_gid(&folder, index) {
            Some(gid) => {
                gids.push(gid);
                unused = 0;
            }
            None if unused < LONGEST_GAP => unused += 1,
            None => break,
        }
    }
    Some(Port {
        number: name.parse().ok()?,
        state,
        link_layer: text(&folder.join("link_layer"))?,
        rate: text(&folder.join("rate")).unwrap_or_default(),
        gids,
    })
}

fn read_gid(port: &Path, index: u8) -> Option<Gid> {
    let name = index.to_string();
    let bytes = gid_bytes(port, index)?;
    // Of an entry that isn't in use the type can't be read.
    let kind = match text(&port.join("gid_attrs/types").join(&name))?.as_str() {
        "RoCE v2" => GidKind::RoceV2,
        _ => GidKind::InfiniBandOrRoceV1,
    };
    let interface = text(&port.join("gid_attrs/ndevs").join(&name)).unwrap_or_default();
    let interface_mtu = text(&Path::new("/sys/class/net").join(&interface).join("mtu"));
    Some(Gid {
        index,
        bytes,
        kind,
        interface_mtu: interface_mtu.filter(|_| !interface.is_empty()).and_then(|mtu| mtu.parse().ok()),
        interface,
    })
}

/// Whether programs can open the device of this name: it has an entry below `root`, which is [`VERBS_ROOT`] but in tests. One that the kernel shows without
/// is being taken away, or `ib_uverbs` isn't loaded. Reads files.
#[must_use]
pub fn has_verbs(root: &Path, device: &str) -> bool {
    names(root).iter().any(|entry| text(&root.join(entry).join("ibdev")).is_some_and(|name| name == device))
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The names in a folder, sorted; none if it isn't there.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that was being taken away was taken for one without a provider. Shows how the two are told from each other.
    #[test]
    fn what_programs_can_open_has_an_entry() {
        let root = std::env::temp_dir().join(format!("lanner-rdma-verbs-{}", std::process::id()));
        assert!(!has_verbs(&root, "rxe0"));
        fs::create_dir_all(root.join("uverbs1")).unwrap();
        fs::write(root.join("abi_version"), "6\n").unwrap();
        fs::write(root.join("uverbs1/ibdev"), "rxe0\n").unwrap();
        let found = ["rxe0", "rxe", "rxe01"].map(|device| has_verbs(&root, device));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [true, false, false]);
    }

    /// Shows that devices are read as the kernel lays them out, from a copy of such a tree; entries that aren't in use are left out.
    #[test]
    fn devices_are_read_from_the_kernels_tree() {
        let root = std::env::temp_dir().join(format!("lanner-rdma-inventory-{}", std::process::id()));
        let port = root.join("mlx5_0/ports/1");
        for folder in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
            fs::create_dir_all(port.join(folder)).unwrap();
        }
        fs::create_dir_all(root.join("mlx5_0/device")).unwrap();
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("link_layer", "Ethernet\n"),
            ("rate", "100 Gb/sec (4X EDR)\n"),
            ("gids/0", "fe80:0000:0000:0000:0277:00ff:fe00:0001\n"),
            ("gids/1", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n"),
            ("gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("gids/10", "0000:0000:0000:0000:0000:ffff:0a4d:0002\n"),
            ("gid_attrs/types/0", "IB/RoCE v1\n"),
            ("gid_attrs/types/1", "RoCE v2\n"),
            ("gid_attrs/types/2", "RoCE v2\n"),
            ("gid_attrs/ndevs/1", "eth0\n"),
        ] {
            fs::write(port.join(file), text).unwrap();
        }
        fs::write(root.join("mlx5_0/device/numa_node"), "1\n").unwrap();
        let found = devices(&root);
        let second = std::net::Ipv4Addr::new(10, 77, 0, 1).to_ipv6_mapped().octets();
        assert_eq!(gid_at(&root, "mlx5_0", 1, 1), Some(second));
        for (device, port, index) in [("mlx5_0", 1, 2), ("mlx5_0", 1, 9), ("mlx5_0", 2, 1), ("mlx5_1", 1, 1)]
        {
            assert_eq!(gid_at(&root, device, port, index), None, "{device} {port} {index}");
        }
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(devices(&root), []);
        assert_eq!((found.len(), found[0].numa_node, found[0].ports.len()), (1, Some(1), 1));
        let port = &found[0].ports[0];
        assert_eq!(
            (port.number, port.state.as_str(), port.rate.as_str()),
            (1, "ACTIVE", "100 Gb/sec (4X EDR)")
        );
        let gids: Vec<String> = port.gids.iter().map(Gid::describe).collect();
        assert_eq!(gids, ["0 fe80::277:ff:fe00:1 (IB/RoCE v1)", "1 10.77.0.1 (RoCE v2)"]);
        assert!(port.gids[0].is_link_local() && !port.gids[1].is_link_local());
    }
}
