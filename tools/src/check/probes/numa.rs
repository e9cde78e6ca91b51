//! Reads the NUMA nodes and their reserved huge pages.

use std::path::Path;

use super::{field, number, text};
use crate::check::facts::{HugePages, NumaNode};

/// The nodes that have a CPU, in the order of their numbers. A kernel without NUMA shows one, made up of the whole machine.
#[must_use]
pub fn numa_nodes() -> Vec<NumaNode> {
    let root = Path::new("/sys/devices/system/node");
    let numbers = text(root.join("has_cpu")).map(|list| cpus_in_list(&list)).unwrap_or_default();
    let nodes: Vec<NumaNode> = numbers.into_iter().filter_map(|id| numa_node(root, id)).collect();
    if nodes.is_empty() { vec![whole_machine()] } else { nodes }
}

fn numa_node(root: &Path, id: u32) -> Option<NumaNode> {
    let folder = root.join(format!("node{id}"));
    let memory = text(folder.join("meminfo")).unwrap_or_default();
    let bytes = |name: &str| {
        // Lines of this file begin with `Node 0 `.
        let line = memory.lines().find_map(|line| line.split_once(&format!("{name}:")))?.1;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    };
    Some(NumaNode {
        id,
        cpus: text(folder.join("cpulist"))?,
        memory_total: bytes("MemTotal").unwrap_or(0),
        memory_free: bytes("MemFree").unwrap_or(0),
        huge_pages: huge_pages(&folder.join("hugepages/hugepages-2048kB")),
    })
}

fn whole_machine() -> NumaNode {
    let memory = text("/proc/meminfo").unwrap_or_default();
    let bytes = |name| field(&memory, name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0) << 10;
    NumaNode {
        id: 0,
        cpus: text("/sys/devices/system/cpu/online").unwrap_or_default(),
        memory_total: bytes("MemTotal"),
        memory_free: bytes("MemFree"),
        huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB")),
    }
}

fn huge_pages(folder: &Path) -> Option<HugePages> {
    let (reserved, free) = (number(folder.join("nr_hugepages"))?, number(folder.join("free_hugepages"))?);
    Some(HugePages { reserved, free })
}

/// The numbers in a list such as `0-3,8`. What isn't a number is left out.
#[must_use]
pub fn cpus_in_list(list: &str) -> Vec<u32> {
    let mut numbers = Vec::new();
    for entry in list.trim().split(',') {
        let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            numbers.extend(first..=last);
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows the forms of a list that the kernel writes, the empty one included.
    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus_in_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpus_in_list("5"), [5]);
        assert_eq!(cpus_in_list(""), Vec::<u32>::new());
    }
}
