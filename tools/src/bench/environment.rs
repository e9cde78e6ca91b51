//! What a report says about the machine it was made on, so that two reports can be compared or told apart.

use serde::Serialize;

use crate::check::probes;

/// The machine and this build.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Version of this program.
    pub lanner: &'static str,
    /// Whether it was built with optimisation; figures of a build without mean nothing.
    pub optimised: bool,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the CPUs.
    pub cpu: String,
    /// CPUs that this process may run on.
    pub cpus: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// NUMA nodes with CPUs.
    pub numa_nodes: usize,
    /// Free huge pages of 2 MiB, on all nodes.
    pub huge_pages_free: u64,
}

impl Environment {
    /// Looks at this machine.
    #[must_use]
    pub fn gather() -> Environment {
        let (processor, nodes) = (probes::processor(), probes::numa_nodes());
        Environment {
            lanner: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
            kernel: probes::kernel_release(),
            cpu: processor.model.unwrap_or_else(|| "unknown".to_owned()),
            cpus: processor.allowed,
            memory_bytes: probes::memory().total,
            numa_nodes: nodes.len(),
            huge_pages_free: nodes.iter().filter_map(|node| Some(node.huge_pages?.free)).sum(),
        }
    }

    /// One line for people.
    #[must_use]
    pub fn line(&self) -> String {
        let memory = bytesize::ByteSize(self.memory_bytes).display().iec();
        let plural = if self.numa_nodes == 1 { "" } else { "s" };
        let debug = if self.optimised { "" } else { ", BUILT WITHOUT OPTIMISATION" };
        format!(
            "{} x {}, {memory}, {} NUMA node{plural}, {} huge pages free, Linux {}, lanner {}{debug}",
            self.cpus, self.cpu, self.numa_nodes, self.huge_pages_free, self.kernel, self.lanner
        )
    }
}
