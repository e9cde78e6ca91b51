//! Reads the RDMA devices from the kernel, and tries to load the library that talks to them.

use std::fs;
use std::path::Path;

use super::text;
use crate::check::facts::{Rdma, RdmaDevice, RdmaPort};

/// Devices and library.
pub fn rdma() -> Rdma {
    Rdma { devices: devices(Path::new("/sys/class/infiniband")), library_error: library_error() }
}

fn library_error() -> Option<String> {
    // SAFETY: loading runs the library's initialisers; libibverbs and its providers' ones only register themselves.
    unsafe { libloading::Library::new("libibverbs.so.1") }.err().map(|error| error.to_string())
}

fn devices(root: &Path) -> Vec<RdmaDevice> {
    let device = |name: String| {
        let ports = root.join(&name).join("ports");
        RdmaDevice { ports: names(&ports).iter().filter_map(|port| rdma_port(&ports, port)).collect(), name }
    };
    names(root).into_iter().map(device).collect()
}

fn rdma_port(ports: &Path, name: &str) -> Option<RdmaPort> {
    let folder = ports.join(name);
    // The state reads `4: ACTIVE`.
    let state = text(folder.join("state"))?;
    let state = state.split_once(": ").map_or(state.as_str(), |(_, state)| state);
    Some(RdmaPort {
        number: name.parse().ok()?,
        state: state.to_owned(),
        link_layer: text(folder.join("link_layer"))?,
    })
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

    /// Shows that devices are read as the kernel lays them out, from a copy of such a tree.
    #[test]
    fn devices_are_read_from_the_kernels_tree() {
        let root = std::env::temp_dir().join(format!("lanner-rdma-probe-{}", std::process::id()));
        let port = root.join("mlx5_0/ports/1");
        fs::create_dir_all(&port).expect("a folder");
        fs::write(port.join("state"), "4: ACTIVE\n").expect("a file");
        fs::write(port.join("link_layer"), "InfiniBand\n").expect("a file");
        let found = devices(&root);
        fs::remove_dir_all(&root).expect("removed");
        let port = RdmaPort { number: 1, state: "ACTIVE".into(), link_layer: "InfiniBand".into() };
        assert_eq!(found, [RdmaDevice { name: "mlx5_0".into(), ports: vec![port] }]);
        assert_eq!(devices(&root), []);
    }
}
