//! Judges memory: whether it suffices, how it is spread over NUMA nodes, and which huge pages are there.

use super::{Finding, size};
use crate::check::facts::{Facts, HugePages, NumaNode};
use crate::check::needs::Needs;

/// The findings on memory, NUMA nodes and huge pages.
pub fn memory(facts: &Facts, needs: &Needs) -> Vec<Finding> {
    let mut findings = vec![available(facts, needs)];
    findings.extend(facts.nodes.iter().map(|node| numa_node(node, facts.nodes.len())));
    findings.extend(facts.nodes.iter().map(|node| huge_pages(node, needs)));
    findings.extend(facts.shmem_transparent_huge_pages.as_deref().map(transparent_huge_pages));
    findings
}

fn available(facts: &Facts, needs: &Needs) -> Finding {
    let what = "available memory";
    let control_group = facts.memory.control_group_left;
    let available = control_group.unwrap_or(u64::MAX).min(facts.memory.available);
    let within = if control_group == Some(available) { " left by the control group" } else { "" };
    let found = format!("{}{within} of {}", size(available), size(facts.memory.total));
    let servers = facts.nodes.len().max(1) as u64;
    if available < needs.memory {
        // A quarter is left for everything else on the machine.
        return Finding::missing(what, found)
            .because(format!("a server with --memory {} doesn't fit", size(needs.memory)))
            .mended_by(format!("lanner-server --memory {}MiB", (available / 4 * 3) >> 20));
    }
    if available / servers < needs.memory {
        return Finding::slower_without(what, found)
            .because(format!(
                "suffices for one server, not for one with --memory {} on each of {servers} NUMA nodes",
                size(needs.memory)
            ))
            .mended_by(format!(
                "lanner-server --numa-node 0 --memory {}MiB",
                (available / servers / 4 * 3) >> 20
            ));
    }
    Finding::ok(what, found)
}

fn numa_node(node: &NumaNode, nodes: usize) -> Finding {
    let advice = if nodes > 1 { format!("; its server: --numa-node {}", node.id) } else { String::new() };
    let memory = format!("{}, {} free", size(node.memory_total), size(node.memory_free));
    Finding::ok(format!("NUMA node {}", node.id), format!("CPUs {}, {memory}{advice}", node.cpus))
}

fn huge_pages(node: &NumaNode, needs: &Needs) -> Finding {
    let what = format!("huge pages, node {}", node.id);
    let Some(HugePages { reserved, free }) = node.huge_pages else {
        return Finding::slower_without(what, "not offered by this kernel")
            .because("reads from tables of several GB take some 40 % longer on 4 KiB pages");
    };
    let wanted = needs.huge_pages();
    let found = format!("{reserved} of 2 MiB reserved, {free} free, {wanted} wanted");
    if free >= wanted {
        return Finding::ok(what, found);
    }
    let to_reserve = reserved + (wanted - free);
    Finding::slower_without(what, found)
        .because("reads from tables of several GB take some 40 % longer on 4 KiB pages; reserve early after boot, later memory is fragmented")
        .mended_by(format!(
            "echo {to_reserve} | sudo tee /sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages",
            node.id
        ))
}

/// Stock kernels switch these off, and reserved pages do the same job; so there is nothing to mend.
fn transparent_huge_pages(setting: &str) -> Finding {
    Finding::ok(
        "transparent huge pages (shmem)",
        format!("{setting}; not relied on, reserved huge pages are"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::machines::{check, check_with, needs, small_server, two_nodes};
    use super::*;
    use crate::check::facts::Memory;

    const GIB: u64 = 1 << 30;

    fn with_memory(available: u64, control_group_left: Option<u64>) -> Facts {
        Facts { memory: Memory { total: 16 * GIB, available, control_group_left }, ..small_server() }
    }

    /// Shows that the smaller of machine and container counts, and that the cure is a size that fits.
    #[test]
    fn memory_has_to_hold_the_server() {
        check(&with_memory(8 * GIB, None), "available memory", Verdict::Ok, "8.0 GiB of 16.0 GiB");
        check(&with_memory(GIB - 1, None), "available memory", Verdict::Missing, "--memory 767MiB");
        check(
            &with_memory(8 * GIB, Some(512 << 20)),
            "available memory",
            Verdict::Missing,
            "--memory 384MiB",
        );
        check(&with_memory(8 * GIB, Some(2 * GIB)), "available memory", Verdict::Ok, "control group");
    }

    /// Shows that two nodes are two servers: each is listed, and memory for one only is said to be too little for both.
    #[test]
    fn each_numa_node_has_a_server() {
        check(&two_nodes(), "NUMA node 1", Verdict::Ok, "--numa-node 1");
        let memory = Memory { total: 4 * GIB, available: 3 * GIB, control_group_left: None };
        let facts = Facts { memory, ..two_nodes() };
        let large = Needs { memory: 2 * GIB, ..needs() };
        check_with(&facts, &large, "available memory", Verdict::SlowerWithout, "2 NUMA nodes");
    }

    /// Shows that pages are counted for each node, and that those already in use are reserved again on top.
    #[test]
    fn huge_pages_are_reserved_on_the_node_that_lacks_them() {
        check(&two_nodes(), "huge pages, node 0", Verdict::Ok, "512 wanted");
        check(
            &two_nodes(),
            "huge pages, node 1",
            Verdict::SlowerWithout,
            "echo 700 | sudo tee /sys/devices/system/node/node1/",
        );
        let mut unknown = small_server();
        unknown.nodes[0].huge_pages = None;
        check(&unknown, "huge pages, node 0", Verdict::SlowerWithout, "not offered");
    }
}
