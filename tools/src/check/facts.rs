//! What was seen on a machine, without any judgement. `None` means that the system didn't tell.

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

/// Everything that the probes found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel_release: String,
    /// Whether io_uring can be used.
    pub io_uring: IoUring,
    /// Resource limits of this process.
    pub limits: Limits,
    /// Memory of the whole machine, or of this container.
    pub memory: Memory,
    /// NUMA nodes that have a CPU; a machine without NUMA has one.
    pub nodes: Vec<NumaNode>,
    /// The setting in force of transparent huge pages for shared memory (`never`, `advise`, …).
    pub shmem_transparent_huge_pages: Option<String>,
    /// Whether a client's mapping can be kept from writing.
    pub shared_memory: Attempt,
    /// What the CPUs are set to.
    pub processor: Processor,
    /// RDMA devices and the library to use them.
    pub rdma: Rdma,
    /// The ports that a server would listen on.
    pub ports: Vec<Port>,
    /// First and last port that the kernel gives to outgoing connections.
    pub local_port_range: Option<(u16, u16)>,
    /// Ports that the administrator keeps the kernel from giving away, as in `7411,8000-8010`.
    pub local_reserved_ports: Option<String>,
}

/// The outcome of something that was really tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attempt {
    /// It worked.
    Worked,
    /// A system call refused.
    Refused {
        /// What was tried, as a phrase: `creating a ring`.
        step: String,
        /// The error number.
        errno: i32,
    },
    /// All calls succeeded, but the outcome is not what it should be.
    Wrong {
        /// What was seen instead.
        seen: String,
    },
}

/// What is known about io_uring here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoUring {
    /// A ring with SINGLE_ISSUER and DEFER_TASKRUN was made and ran an operation.
    pub ring: Attempt,
    /// `kernel.io_uring_disabled`: 0 for nobody, 1 for the unprivileged, 2 for everybody.
    pub disabled: Option<u8>,
    /// The process runs under a seccomp filter, as in most containers.
    pub seccomp_filter: bool,
}

/// A resource limit; `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// What holds now.
    pub soft: Option<u64>,
    /// Up to where the process may raise it.
    pub hard: Option<u64>,
}

/// Limits that a server runs into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// RLIMIT_MEMLOCK in bytes.
    pub locked_memory: Limit,
    /// CAP_IPC_LOCK: the limit on locked memory doesn't hold for this process.
    pub may_lock_any_memory: bool,
    /// RLIMIT_NOFILE.
    pub open_files: Limit,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What is installed.
    pub total: u64,
    /// What could be used without swapping.
    pub available: u64,
    /// What the control group leaves to this process, if it has a limit.
    pub control_group_left: Option<u64>,
}

/// A NUMA node that has CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number, as in `--numa-node`.
    pub id: u32,
    /// Its CPUs, as in `0-7,16-23`.
    pub cpus: String,
    /// Bytes of memory.
    pub memory_total: u64,
    /// Bytes of memory that nothing uses.
    pub memory_free: u64,
    /// Reserved huge pages of 2 MiB, and how many of them are free.
    pub huge_pages: Option<HugePages>,
}

/// Huge pages of 2 MiB of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// Reserved by the administrator.
    pub reserved: u64,
    /// Not yet used.
    pub free: u64,
}

/// What the CPUs are set to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processor {
    /// Name of the model.
    pub model: Option<String>,
    /// CPUs that this process may run on.
    pub allowed: u32,
    /// Frequency governor of the first CPU; virtual machines have none.
    pub governor: Option<String>,
    /// CPUs that the scheduler leaves alone (`isolcpus`), empty for none.
    pub isolated: Option<String>,
}

/// RDMA as the system shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rdma {
    /// Devices in `/sys/class/infiniband`.
    pub devices: Vec<RdmaDevice>,
    /// `None` if libibverbs could be loaded, else the loader's message.
    pub library_error: Option<String>,
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Its name, as in `--rdma`.
    pub name: String,
    /// The NUMA node that it's attached to.
    pub numa_node: Option<u32>,
    /// Its ports.
    pub ports: Vec<RdmaPort>,
    /// Why it can't be opened; `None` if it can, or if that wasn't tried (a build without RDMA, or no library).
    #[serde(default)]
    pub open_error: Option<String>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u32,
    /// Its state, as in `ACTIVE`.
    pub state: String,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    /// `100 Gb/sec (4X EDR)`, as the kernel says it.
    pub rate: String,
    /// Its addresses that are in use.
    pub gids: Vec<RdmaGid>,
}

/// An address of a port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaGid {
    /// Place in the port's table, as in `--rdma DEVICE:PORT:GID`.
    pub index: u8,
    /// The address.
    pub address: Ipv6Addr,
    /// RoCE v2, which routers pass on.
    pub is_roce_v2: bool,
    /// The network interface that it belongs to; empty for InfiniBand.
    pub interface: String,
    /// The largest packet of that interface.
    pub interface_mtu: Option<u32>,
}

/// A port that a server would listen on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// What for: `data` or `admin`.
    pub purpose: String,
    /// The address.
    pub address: String,
    /// The number; 0 lets the kernel choose.
    pub port: u16,
    /// Whether a socket could be bound to it.
    pub binding: Attempt,
    /// Who listens there.
    pub owner: Option<PortOwner>,
}

/// A process that listens on a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortOwner {
    /// Name of its program.
    pub program: String,
    /// Its process id.
    pub pid: u32,
}
