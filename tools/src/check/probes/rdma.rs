//! Reads the RDMA devices from the kernel, and tries to load the library that talks to them and to open each.

use std::path::Path;

use lanner_rdma::inventory::{self, GidKind};

use crate::check::facts::{Rdma, RdmaDevice, RdmaGid, RdmaPort};

/// Devices and library.
pub fn rdma() -> Rdma {
    let library_error = library_error();
    let devices = inventory::devices(Path::new(inventory::ROOT)).into_iter();
    let devices = devices.map(|found| {
        let open_error = if library_error.is_none() { open_error(&found.name) } else { None };
        RdmaDevice { open_error, ..device(found) }
    });
    Rdma { devices: devices.collect(), library_error }
}

fn library_error() -> Option<String> {
    // SAFETY: loading runs the library's initialisers; libibverbs and its providers' ones only register themselves.
    unsafe { libloading::Library::new("libibverbs.so.1") }.err().map(|error| {
        // What the loader says, which libloading keeps apart from that it failed.
        std::error::Error::source(&error).map_or_else(|| error.to_string(), |source| source.to_string())
    })
}

#[cfg(feature = "rdma")]
fn open_error(device: &str) -> Option<String> {
    lanner_rdma::verbs::device::try_to_open(device).err().map(|error| error.to_string())
}

#[cfg(not(feature = "rdma"))]
fn open_error(_: &str) -> Option<String> {
    None
}

fn device(device: inventory::Device) -> RdmaDevice {
    let ports = device.ports.into_iter().map(port).collect();
    RdmaDevice { name: device.name, numa_node: device.numa_node, ports, open_error: None }
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
