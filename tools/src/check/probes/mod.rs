//! Looks at this machine. A probe never fails: what the system doesn't tell is `None`, what it refuses is a fact.

mod io_uring;
mod limits;
mod memory;
mod numa;
mod ports;
mod processor;
mod rdma;
mod shared_memory;

use std::path::Path;

pub use memory::memory;
pub use numa::{cpus_in_list, numa_nodes};
pub use processor::{allowed_cpus, processor};

use super::facts::Facts;
use super::needs::Needs;

/// Gathers all facts. Takes some milliseconds; binds the ports of `needs` for a moment.
#[must_use]
pub fn gather(needs: &Needs) -> Facts {
    Facts {
        kernel_release: kernel_release(),
        io_uring: io_uring::io_uring(),
        limits: limits::limits(),
        memory: memory(),
        nodes: numa_nodes(),
        shmem_transparent_huge_pages: memory::shmem_transparent_huge_pages(),
        shared_memory: shared_memory::shared_memory(),
        processor: processor(),
        rdma: rdma::rdma(),
        ports: ports::ports(needs),
        local_port_range: ports::local_port_range(),
        local_reserved_ports: text("/proc/sys/net/ipv4/ip_local_reserved_ports"),
    }
}

/// The kernel's release, as `uname -r` prints it.
#[must_use]
pub fn kernel_release() -> String {
    text("/proc/sys/kernel/osrelease").unwrap_or_default()
}

/// A small text file of the kernel without the space around it.
fn text(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// A number in a small text file of the kernel.
fn number(path: impl AsRef<Path>) -> Option<u64> {
    text(path)?.parse().ok()
}

/// The value behind `name:` in a file of lines such as `MemTotal:  1024 kB` or `Seccomp:  2`, without its unit.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?
        .split_whitespace()
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that the probes agree with a machine that tests run on: it has a kernel, memory and a CPU.
    #[test]
    fn this_machine_has_what_every_machine_has() {
        let facts = gather(&Needs {
            memory: 1 << 30,
            shards: 1,
            listen: "127.0.0.1:0".parse().expect("an address"),
            admin: "127.0.0.1:0".parse().ok(),
        });
        assert!(!facts.kernel_release.is_empty());
        assert!(facts.memory.total > 0 && facts.memory.available <= facts.memory.total, "{:?}", facts.memory);
        assert!(facts.processor.allowed >= 1);
        assert!(!facts.nodes.is_empty() && !facts.nodes[0].cpus.is_empty(), "{:?}", facts.nodes);
        assert!(facts.limits.open_files.soft > Some(2), "{:?}", facts.limits);
    }

    /// Shows how fields are found, and that one name isn't taken for another that begins with it.
    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "Name:\tx\nSeccomp_filters:\t1\nSeccomp:\t2\nMemFree:   17 kB\n";
        assert_eq!(field(status, "Seccomp"), Some("2"));
        assert_eq!(field(status, "MemFree"), Some("17"));
        assert_eq!(field(status, "Mem"), None);
    }
}
