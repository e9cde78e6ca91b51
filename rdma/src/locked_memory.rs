//! What the limit on locked memory has to do with memory that a device refuses: registering pins pages, and the kernel counts those of
//! the whole process, all regions together, against `RLIMIT_MEMLOCK`.

use std::io;

/// The bit of CAP_IPC_LOCK among a process's capabilities: it lifts the limit.
const CAP_IPC_LOCK: u32 = 14;

/// How much this process may pin, and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// Bytes that it may pin, if there is a limit in force.
    limit: Option<u64>,
    /// Bytes that it has pinned.
    pinned: u64,
}

impl LockedMemory {
    /// This process as it is now. Reads a small file of the kernel.
    #[must_use]
    pub fn of_this_process() -> LockedMemory {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        let file = |path| std::fs::read_to_string(path).unwrap_or_default();
        LockedMemory::from_status(&file("/proc/self/status"), &file("/proc/self/uid_map"), limit)
    }

    /// What `/proc/PID/status` and `uid_map` tell of a process with this limit.
    fn from_status(status: &str, uid_map: &str, limit: Option<u64>) -> LockedMemory {
        let pinned = field(status, "VmPin:").trim_end_matches("kB").trim().parse().unwrap_or(0) << 10;
        LockedMemory { limit: limit.filter(|_| !is_limit_lifted(status, uid_map)), pinned }
    }

    /// Why `bytes` more can't be pinned, which the kernel has refused with `error`, and the way out.
    #[must_use]
    pub fn why_refused(self, error: &io::Error, bytes: u64) -> String {
        let mend = "raise it ('ulimit -l unlimited', LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 of a container)";
        match (error.raw_os_error(), self) {
            (
                Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM),
                LockedMemory { limit: Some(limit), pinned },
            ) if limit < pinned.saturating_add(bytes) => {
                format!(
                    "the limit on locked memory is {limit} bytes, of which {pinned} are in use, and an RDMA device pins all of the memory that it may read; {mend}"
                )
            }
            // Other threads may pin, and have let go since.
            (Some(libc::ENOMEM), LockedMemory { limit: Some(limit), .. }) => format!(
                "either the limit on locked memory, {limit} bytes for the whole process, is too low: {mend}; or there isn't that much memory to take"
            ),
            (Some(libc::EOPNOTSUPP), _) => {
                "this kind of memory can't be held for a device (a file on a DAX file system can't)"
                    .to_owned()
            }
            (Some(libc::ENOMEM), _) => {
                "there isn't that much memory to take, or the device has no room for more regions".to_owned()
            }
            (Some(libc::EFAULT), _) => {
                "some of it isn't mapped, or can't be written to, which a device has to be able to".to_owned()
            }
            _ => "'dmesg' may say more".to_owned(),
        }
    }
}

/// Whether the limit doesn't hold for a process with these `/proc/PID/status` and `uid_map`: its effective set has CAP_IPC_LOCK, in the first user
/// namespace, where the kernel wants it. A container's root may have it in its own only.
#[must_use]
pub fn is_limit_lifted(status: &str, uid_map: &str) -> bool {
    let capabilities = u64::from_str_radix(field(status, "CapEff:"), 16).unwrap_or(0);
    capabilities >> CAP_IPC_LOCK & 1 == 1 && is_first_namespace(uid_map)
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
}

/// Whether this `uid_map` is that of the first user namespace, whose ids are all ids.
fn is_first_namespace(uid_map: &str) -> bool {
    uid_map.is_empty() || uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str =
        "Name:\tlanner-server\nVmLck:\t       0 kB\nVmPin:\t   32768 kB\nCapEff:\t000001fffeffbfff\n";
    const ALL_IDS: &str = "         0          0 4294967295\n";
    const OWN_IDS: &str = "         0       1000          1\n";

    /// Shows that the right bit of the set is looked at.
    #[test]
    fn capabilities_are_bits_of_a_hexadecimal_number() {
        assert!(is_limit_lifted("CapEff:\t0000000000004000\n", ALL_IDS));
        assert!(!is_limit_lifted("CapEff:\t000001ffffffbfff\n", ALL_IDS));
        assert!(!is_limit_lifted("CapInh:\tffffffffffffffff\n", ALL_IDS));
    }

    /// Shows that the limit holds for a process which may lock any memory in its own user namespace only, as in a container without root.
    #[test]
    fn a_container_has_a_namespace_of_its_own() {
        let privileged = STATUS.replace("bfff", "ffff");
        assert_eq!(LockedMemory::from_status(&privileged, OWN_IDS, Some(7)).limit, Some(7));
        assert_eq!(LockedMemory::from_status(&privileged, ALL_IDS, Some(7)).limit, None);
    }

    #[track_caller]
    fn check(limit: Option<u64>, errno: i32, bytes: u64, wanted: &str) {
        let said = LockedMemory::from_status(STATUS, ALL_IDS, limit)
            .why_refused(&io::Error::from_raw_os_error(errno), bytes);
        assert!(said.contains(wanted), "{said}");
    }

    /// Shows that the limit is held against all regions of the process together. A server whose shards each fitted the limit was once told
    /// that the machine had no memory.
    #[test]
    fn the_limit_is_for_all_regions_together() {
        check(Some(8 << 20), libc::ENOMEM, 32 << 20, "is 8388608 bytes, of which 33554432 are in use");
        check(Some(40 << 20), libc::ENOMEM, 32 << 20, "'ulimit -l unlimited'");
        check(Some(64 << 20), libc::ENOMEM, 32 << 20, "either the limit on locked memory, 67108864 bytes");
    }

    /// Shows that the limit isn't blamed where it's none.
    #[test]
    fn other_causes_are_told_from_the_limit() {
        check(None, libc::ENOMEM, 32 << 20, "there isn't that much memory");
        check(Some(8 << 20), libc::EOPNOTSUPP, 32 << 20, "DAX");
        check(Some(8 << 20), libc::EIO, 32 << 20, "dmesg");
        check(None, libc::EFAULT, 4096, "can't be written to");
        let privileged = STATUS.replace("bfff", "ffff");
        assert_eq!(
            LockedMemory::from_status(&privileged, ALL_IDS, Some(0)),
            LockedMemory { limit: None, pinned: 32 << 20 }
        );
    }

    /// Shows that the kernel's file is what this reads: this process's own has the fields.
    #[test]
    fn this_process_has_a_status() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(["VmPin:", "CapEff:"].iter().all(|name| status.lines().any(|line| line.starts_with(name))));
    }
}
