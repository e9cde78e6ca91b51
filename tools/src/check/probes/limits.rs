//! Reads the resource limits of this process, which a server started from the same shell inherits.

use rustix::process::{Resource, getrlimit};

use super::{field, text};
use crate::check::facts::{Limit, Limits};

/// The bit of CAP_IPC_LOCK in a set of capabilities.
const CAP_IPC_LOCK: u32 = 14;

/// The limits that a server runs into.
pub fn limits() -> Limits {
    Limits {
        locked_memory: limit(Resource::Memlock),
        may_lock_any_memory: text("/proc/self/status")
            .is_some_and(|status| has_capability(&status, CAP_IPC_LOCK)),
        open_files: limit(Resource::Nofile),
    }
}

fn limit(resource: Resource) -> Limit {
    let limit = getrlimit(resource);
    Limit { soft: limit.current, hard: limit.maximum }
}

/// Whether the effective set in `status` (a `/proc/<pid>/status`) holds the capability with this number.
fn has_capability(status: &str, number: u32) -> bool {
    let set = field(status, "CapEff").and_then(|set| u64::from_str_radix(set, 16).ok());
    set.is_some_and(|set| set >> number & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that the right bit of the set is looked at.
    #[test]
    fn capabilities_are_bits_of_a_hexadecimal_number() {
        assert!(has_capability("CapEff:\t0000000000004000\n", CAP_IPC_LOCK));
        assert!(!has_capability("CapEff:\t000001ffffffbfff\n", CAP_IPC_LOCK));
        assert!(!has_capability("CapInh:\tffffffffffffffff\n", CAP_IPC_LOCK));
    }
}
