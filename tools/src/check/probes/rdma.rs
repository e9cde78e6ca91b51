//! Reads the RDMA devices from the kernel, and tries to load the library that talks to them.

use std::path::Path;

use lanner_rdma::inventory::{self, GidKind};

use crate::check::facts::{Rdma, RdmaDevice, RdmaGid, RdmaPort};

/// Devices and library.
pub fn rdma() -> Rdma {
    let devices = inventory::devices(Path::new(inventory::ROOT)).into_iter().map(device).collect();
    Rdma { devices, library_error: library_error() }
}

fn library_error() -> Option<String> {
    // SAFETY: loading runs the library's initialisers; libibverbs and its providers' ones only register themselves.
    unsafe { libloading::Library::new("libibverbs.so.1") }.err().map(|error| error.to_string())
}

fn device(device: inventory::Device) -> RdmaDevice {
    let ports = device.ports.into_iter().map(port).collect();
    RdmaDevice { name: device.name, numa_node: device.numa_node, ports }
}

fn port(port: inventory::Port) -> RdmaPort {
    let gid = |gid: inventory::Gid| RdmaGid {
        index: gid.index,
        address: gid.bytes.into(),
        is_roce_v2: gid.kind == GidKind::RoceV2,
        interface: gid.interface,
        interface_mtu: gid.interface_mtu,
    };
    RdmaPort {
        number: port.number.into(),
        state: port.state,
        link_layer: port.link_layer,
        rate: port.rate,
        gids: port.gids.into_iter().map(gid).collect(),
    }
}
