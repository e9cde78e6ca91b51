//! Made-up machines for the tests of the judgement, and the comparison that they share.

use super::{Finding, Verdict, judge};
use crate::check::facts::{
    Attempt, Facts, HugePages, IoUring, Limit, Limits, Memory, NumaNode, Port, Processor, Rdma, RdmaDevice,
    RdmaGid, RdmaPort,
};
use crate::check::needs::Needs;

const GIB: u64 = 1 << 30;

/// A server with the default flags and two shards.
pub fn needs() -> Needs {
    Needs {
        memory: GIB,
        shards: 2,
        listen: "127.0.0.1:7411".parse().expect("an address"),
        admin: "127.0.0.1:7412".parse().ok(),
    }
}

/// A virtual machine with four CPUs as it comes: all that is needed, no huge pages, no RDMA.
pub fn small_server() -> Facts {
    let port = |purpose: &str, port| Port {
        purpose: purpose.into(),
        address: "127.0.0.1".into(),
        port,
        binding: Attempt::Worked,
        owner: None,
    };
    Facts {
        kernel_release: "6.1.0-18-amd64".into(),
        io_uring: IoUring { ring: Attempt::Worked, disabled: Some(0), seccomp_filter: false },
        limits: Limits {
            locked_memory: Limit { soft: Some(8 << 20), hard: Some(8 << 20) },
            may_lock_any_memory: false,
            open_files: Limit { soft: Some(1 << 20), hard: Some(1 << 20) },
        },
        memory: Memory { total: 16 * GIB, available: 14 * GIB, control_group_left: None },
        nodes: vec![node(0, "0-3", HugePages { reserved: 0, free: 0 })],
        shmem_transparent_huge_pages: Some("never".into()),
        shared_memory: Attempt::Worked,
        processor: Processor {
            model: Some("Imaginary 9000".into()),
            allowed: 4,
            governor: None,
            isolated: Some(String::new()),
        },
        rdma: Rdma { devices: Vec::new(), library_error: Some("not found".into()) },
        ports: vec![port("data", 7411), port("admin", 7412)],
        local_port_range: Some((32768, 60999)),
        local_reserved_ports: Some(String::new()),
    }
}

/// A container under the default profile of its engine: io_uring is refused, memory is limited.
pub fn container() -> Facts {
    let facts = small_server();
    Facts {
        io_uring: IoUring {
            ring: Attempt::Refused { step: "creating a ring".into(), errno: 1 },
            disabled: Some(0),
            seccomp_filter: true,
        },
        memory: Memory { control_group_left: Some(2 * GIB), ..facts.memory },
        ..facts
    }
}

/// Two NUMA nodes, the first with huge pages for a server of 1 GiB, the second with 700 - 512 too few.
pub fn two_nodes() -> Facts {
    Facts {
        nodes: vec![
            node(0, "0-7", HugePages { reserved: 600, free: 600 }),
            node(1, "8-15", HugePages { reserved: 500, free: 312 }),
        ],
        ..small_server()
    }
}

/// A machine with an InfiniBand card that works.
pub fn rdma_server() -> Facts {
    let gid = RdmaGid {
        index: 0,
        address: "fe80::1".parse().expect("an address"),
        is_roce_v2: false,
        interface: String::new(),
        interface_mtu: None,
    };
    let port = RdmaPort {
        number: 1,
        state: "ACTIVE".into(),
        link_layer: "InfiniBand".into(),
        rate: "100 Gb/sec (4X EDR)".into(),
        gids: vec![gid],
    };
    let devices =
        vec![RdmaDevice { name: "mlx5_0".into(), numa_node: Some(0), ports: vec![port], open_error: None }];
    Facts { rdma: Rdma { devices, library_error: None }, ..small_server() }
}

/// A machine with an Ethernet card that works, with jumbo frames.
pub fn roce_server() -> Facts {
    let mut facts = rdma_server();
    let port = &mut facts.rdma.devices[0].ports[0];
    port.link_layer = "Ethernet".into();
    port.gids[0] = RdmaGid {
        index: 3,
        address: "::ffff:10.0.0.1".parse().expect("an address"),
        is_roce_v2: true,
        interface: "eth4".into(),
        interface_mtu: Some(9000),
    };
    facts
}

/// All of them, with their names.
pub fn all() -> Vec<(&'static str, Facts)> {
    vec![
        ("small server", small_server()),
        ("container", container()),
        ("two nodes", two_nodes()),
        ("RDMA server", rdma_server()),
        ("RoCE server", roce_server()),
    ]
}

fn node(id: u32, cpus: &str, huge_pages: HugePages) -> NumaNode {
    NumaNode {
        id,
        cpus: cpus.into(),
        memory_total: 8 * GIB,
        memory_free: 7 * GIB,
        huge_pages: Some(huge_pages),
    }
}

/// Judges with the default flags and compares one finding: its verdict, and words that have to stand in it.
pub fn check(facts: &Facts, what: &str, verdict: Verdict, wanted: &str) {
    check_with(facts, &needs(), what, verdict, wanted);
}

/// [`check`] for a server with other flags.
pub fn check_with(facts: &Facts, needs: &Needs, what: &str, verdict: Verdict, wanted: &str) {
    let finding = finding(facts, needs, what);
    assert_eq!(finding.verdict, verdict, "{finding:#?}");
    let text = format!("{}\n{}\n{}", finding.found, finding.why, finding.mend);
    assert!(text.contains(wanted), "{wanted:?} is not in {finding:#?}");
}

/// The verdict on `what`, with the default flags.
pub fn verdict_of(facts: &Facts, what: &str) -> Verdict {
    finding(facts, &needs(), what).verdict
}

fn finding(facts: &Facts, needs: &Needs, what: &str) -> Finding {
    let findings = judge(facts, needs);
    let matching: Vec<_> = findings.iter().filter(|finding| finding.what == what).collect();
    assert_eq!(matching.len(), 1, "findings on {what:?} in {findings:#?}");
    matching[0].clone()
}
