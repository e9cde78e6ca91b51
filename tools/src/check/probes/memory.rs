//! Reads how much memory there is, for the machine and for the control group that this process is in.

use std::path::{Path, PathBuf};

use super::{field, number, text};
use crate::check::facts::Memory;

/// Memory of the machine and what the control group leaves of it.
#[must_use]
pub fn memory() -> Memory {
    let info = text("/proc/meminfo").unwrap_or_default();
    let kibibytes = |name| field(&info, name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    Memory {
        total: kibibytes("MemTotal") << 10,
        available: kibibytes("MemAvailable") << 10,
        control_group_left: control_group_left(),
    }
}

/// The setting in force, which the kernel marks: `always within_size advise [never] deny force`.
pub fn shmem_transparent_huge_pages() -> Option<String> {
    marked(&text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")?)
}

fn marked(settings: &str) -> Option<String> {
    let (_, rest) = settings.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// The least that a control group between this process and the root leaves, if any has a limit (version 2 only).
fn control_group_left() -> Option<u64> {
    let groups = text("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let folders = root.join(own).ancestors().map(PathBuf::from).collect::<Vec<_>>();
    let left = |folder: &PathBuf| {
        let limit = number(folder.join("memory.max"))?;
        Some(limit.saturating_sub(number(folder.join("memory.current"))?))
    };
    folders.iter().filter(|folder| folder.starts_with(root)).filter_map(left).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that the marked setting is the one in force.
    #[test]
    fn the_setting_in_force_is_the_marked_one() {
        assert_eq!(marked("always within_size advise [never] deny force").as_deref(), Some("never"));
        assert_eq!(marked("never"), None);
    }
}
