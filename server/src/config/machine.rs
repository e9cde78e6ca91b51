//! What this machine has that a configuration depends on: CPUs, NUMA nodes, memory, a folder for sockets. Asked once, before
//! anything is decided, so that the deciding can be tested on machines that don't exist.

use std::fs;
use std::path::{Path, PathBuf};

use super::values::CoreList;

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPUs that this process may run on, ascending.
    pub allowed_cpus: Vec<usize>,
    /// NUMA nodes with CPUs.
    pub nodes: Vec<Node>,
    /// Bytes that can be had without taking them from others, here and in this process's control group.
    pub available_bytes: u64,
    /// Bytes of free huge pages of 2 MiB, which are no part of `available_bytes`.
    pub free_huge_page_bytes: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its CPUs.
    pub cpus: Vec<usize>,
}

impl Machine {
    /// This machine. Reads some small files of the kernel.
    #[must_use]
    pub fn probe() -> Machine {
        let available = memory_available();
        Machine {
            allowed_cpus: allowed_cpus(),
            nodes: nodes(),
            available_bytes: control_group_left().map_or(available, |left| left.min(available)),
            free_huge_page_bytes: number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
                .unwrap_or(0)
                * crate::memory::segment::HUGE_PAGE_BYTES,
        }
    }
}

/// A folder for this user's sockets that no other user can reach into: `$XDG_RUNTIME_DIR/lanner`, else `lanner-UID` in the folder
/// for temporary files. Made if it isn't there.
///
/// # Errors
/// A folder that can't be made, or that belongs to somebody else.
pub fn socket_folder() -> std::io::Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    let folder = match runtime {
        Some(runtime) => runtime.join("lanner"),
        None => std::env::temp_dir().join(format!("lanner-{uid}")),
    };
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => return Ok(folder),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    // Somebody else may have made it first, in a folder that everybody writes to.
    let found = fs::symlink_metadata(&folder)?;
    if found.is_dir() && found.uid() == uid && found.permissions().mode() & 0o077 == 0 {
        return Ok(folder);
    }
    let reason = format!("{} is not a folder of this user alone (mode 0700)", folder.display());
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, reason))
}

fn allowed_cpus() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(cpus_in_list).unwrap_or_else(|| vec![0])
}

fn nodes() -> Vec<Node> {
    let root = Path::new("/sys/devices/system/node");
    let numbers = fs::read_to_string(root.join("has_cpu")).ok().and_then(|list| cpus_in_list(&list));
    let node = |number: usize| {
        let list = fs::read_to_string(root.join(format!("node{number}/cpulist"))).ok()?;
        Some(Node { number: number as u32, cpus: cpus_in_list(&list)? })
    };
    numbers.unwrap_or_default().into_iter().filter_map(node).collect()
}

fn cpus_in_list(list: &str) -> Option<Vec<usize>> {
    list.trim().parse::<CoreList>().ok().map(|list| list.0)
}

fn memory_available() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes =
        line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok());
    // A kernel that doesn't tell (none since 3.14) is believed to have enough.
    kibibytes.map_or(u64::MAX, |kibibytes: u64| kibibytes << 10)
}

/// The least that a control group between this process and the root leaves, if any has a limit (version 2 only).
fn control_group_left() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let root = Path::new("/sys/fs/cgroup");
    let left = |folder: &Path| {
        let limit = number(folder.join("memory.max"))?;
        Some(limit.saturating_sub(number(folder.join("memory.current"))?))
    };
    root.join(own).ancestors().take_while(|folder| folder.starts_with(root)).filter_map(left).min()
}

fn number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Shows that the probe finds what every machine has.
    #[test]
    fn this_machine_has_what_every_machine_has() {
        let machine = Machine::probe();
        assert!(!machine.allowed_cpus.is_empty());
        assert!(machine.available_bytes > 1 << 20);
        assert!(machine.nodes.iter().all(|node| !node.cpus.is_empty()), "{:?}", machine.nodes);
    }

    /// Shows that the folder for sockets is this user's alone, also when asked for twice.
    #[test]
    fn the_socket_folder_is_private() {
        for _ in 0..2 {
            let folder = socket_folder().expect("a folder");
            assert_eq!(fs::metadata(folder).expect("there").permissions().mode() & 0o777, 0o700);
        }
    }
}
