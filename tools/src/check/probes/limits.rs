//! Reads the resource limits of this process, which a server started from the same shell inherits.

use lanner_rdma::locked_memory::is_limit_lifted;
use rustix::process::{Resource, getrlimit};

use super::text;
use crate::check::facts::{Limit, Limits};

/// The limits that a server runs into.
pub fn limits() -> Limits {
    let file = |path| text(path).unwrap_or_default();
    Limits {
        locked_memory: limit(Resource::Memlock),
        may_lock_any_memory: is_limit_lifted(&file("/proc/self/status"), &file("/proc/self/uid_map")),
        open_files: limit(Resource::Nofile),
    }
}

fn limit(resource: Resource) -> Limit {
    let limit = getrlimit(resource);
    Limit { soft: limit.current, hard: limit.maximum }
}
