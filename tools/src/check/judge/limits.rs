//! Judges the resource limits: locked memory, which rings and RDMA take, and open files, which connections take.

use super::{Finding, size};
use crate::check::facts::{Facts, Limit};
use crate::check::needs::{Needs, OPEN_FILES_AT_REST, OPEN_FILES_IN_SERVICE};

/// The findings on both limits.
pub fn limits(facts: &Facts, needs: &Needs) -> Vec<Finding> {
    vec![locked_memory(facts, needs), open_files(facts.limits.open_files)]
}

fn locked_memory(facts: &Facts, needs: &Needs) -> Finding {
    let what = "locked memory (ulimit -l)";
    let limit = facts.limits.locked_memory;
    if facts.limits.may_lock_any_memory {
        return Finding::ok(what, format!("{}, not in force with CAP_IPC_LOCK", text(limit, size)));
    }
    let has_rdma = !facts.rdma.devices.is_empty();
    if !reaches(limit.soft, needs.locked_bytes()) {
        // All at once: who has mended this must not be told of more.
        let wanted = if has_rdma { needs.locked_bytes_with_rdma() } else { needs.locked_bytes() };
        let with_rdma = match has_rdma {
            true => format!("; with RDMA, whose device pins the server's memory, {} in all", size(wanted)),
            false => String::new(),
        };
        return Finding::missing(what, text(limit, size))
            .because(format!("{} shards lock {}{with_rdma}", needs.shards, size(needs.locked_bytes())))
            .mended_by(raise_locked_memory(limit, wanted));
    }
    if has_rdma && !reaches(limit.soft, needs.locked_bytes_with_rdma()) {
        let wanted = needs.locked_bytes_with_rdma();
        return Finding::slower_without(what, text(limit, size))
            .because(format!(
                "suffices without RDMA; an RDMA device pins the whole memory of the server, {} in all for --memory {}",
                size(wanted),
                size(needs.memory)
            ))
            .mended_by(raise_locked_memory(limit, wanted));
    }
    let needed = if has_rdma { needs.locked_bytes_with_rdma() } else { needs.locked_bytes() };
    Finding::ok(what, format!("{}, needed {}", text(limit, size), size(needed)))
}

fn open_files(limit: Limit) -> Finding {
    let what = "open files (ulimit -n)";
    let found = text(limit, |files| files.to_string());
    if reaches(limit.soft, OPEN_FILES_IN_SERVICE) {
        return Finding::ok(what, found);
    }
    let finding = if reaches(limit.soft, OPEN_FILES_AT_REST) {
        Finding::slower_without(what, found)
            .because("further clients are refused once connections have used this up")
    } else {
        Finding::missing(what, found).because(format!("a server without clients needs {OPEN_FILES_AT_REST}"))
    };
    if reaches(limit.hard, OPEN_FILES_IN_SERVICE) {
        finding.mended_by(format!("ulimit -n {OPEN_FILES_IN_SERVICE}"))
    } else {
        finding.mended_by(format!("sudo prlimit --pid $$ --nofile={OPEN_FILES_IN_SERVICE}"))
    }
}

/// The command that lets a shell, and what it starts, lock `bytes`.
fn raise_locked_memory(limit: Limit, bytes: u64) -> String {
    if reaches(limit.hard, bytes) {
        format!("ulimit -l {}", bytes.div_ceil(1024))
    } else {
        format!("sudo prlimit --pid $$ --memlock={bytes}")
    }
}

fn reaches(limit: Option<u64>, needed: u64) -> bool {
    limit.is_none_or(|limit| limit >= needed)
}

fn text(limit: Limit, show: impl Fn(u64) -> String) -> String {
    limit.soft.map_or_else(|| "unlimited".to_owned(), show)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::machines::{check, check_with, needs, rdma_server, small_server};
    use super::*;
    use crate::check::facts::Limits;

    const MEMLOCK: &str = "locked memory (ulimit -l)";
    const NOFILE: &str = "open files (ulimit -n)";

    fn with_locked_memory(mut facts: Facts, soft: u64, hard: u64) -> Facts {
        facts.limits.locked_memory = Limit { soft: Some(soft), hard: Some(hard) };
        facts
    }

    fn with_open_files(soft: u64, hard: u64) -> Facts {
        let facts = small_server();
        let open_files = Limit { soft: Some(soft), hard: Some(hard) };
        Facts { limits: Limits { open_files, ..facts.limits }, ..facts }
    }

    /// Shows that the need grows with the shards, and that the cure fits who may raise the limit.
    #[test]
    fn locked_memory_is_held_against_the_shards() {
        let eight_shards = Needs { shards: 8, ..needs() };
        let exact = with_locked_memory(small_server(), 8 << 20, 8 << 20);
        check_with(&exact, &eight_shards, MEMLOCK, Verdict::Ok, "needed 8.0 MiB");
        let nine_shards = Needs { shards: 9, ..needs() };
        check_with(
            &exact,
            &nine_shards,
            MEMLOCK,
            Verdict::Missing,
            "sudo prlimit --pid $$ --memlock=9437184",
        );
        let raisable = with_locked_memory(small_server(), 8 << 20, 64 << 20);
        check_with(&raisable, &nine_shards, MEMLOCK, Verdict::Missing, "ulimit -l 9216");
    }

    /// Shows that RDMA, which pins the segment, is held against the limit only where there is a device.
    #[test]
    fn rdma_needs_the_whole_segment_locked() {
        check(
            &with_locked_memory(rdma_server(), 8 << 20, 8 << 20),
            MEMLOCK,
            Verdict::SlowerWithout,
            "1.0 GiB",
        );
        check(&with_locked_memory(small_server(), 8 << 20, 8 << 20), MEMLOCK, Verdict::Ok, "");
    }

    /// Shows that the whole need is named at once: a limit of 64 KiB was to be raised to 2 MiB, and then to a gigabyte.
    #[test]
    fn the_whole_need_is_named_at_once() {
        let tiny = with_locked_memory(rdma_server(), 64 << 10, 64 << 10);
        check(&tiny, MEMLOCK, Verdict::Missing, "pins the server's memory, 1.0 GiB in all");
        let wanted = format!("--memlock={}", needs().locked_bytes_with_rdma());
        check(&tiny, MEMLOCK, Verdict::Missing, &wanted);
        assert!(needs().locked_bytes_with_rdma() > 1 << 30);
    }

    /// Shows that CAP_IPC_LOCK lifts the limit.
    #[test]
    fn root_may_lock_what_it_wants() {
        let mut facts = with_locked_memory(rdma_server(), 0, 0);
        facts.limits.may_lock_any_memory = true;
        check(&facts, MEMLOCK, Verdict::Ok, "CAP_IPC_LOCK");
    }

    /// Shows the two steps of the limit on open files, and both cures.
    #[test]
    fn open_files_limit_clients_before_they_stop_the_server() {
        check(&with_open_files(8192, 8192), NOFILE, Verdict::Ok, "8192");
        check(&with_open_files(1024, 1 << 20), NOFILE, Verdict::SlowerWithout, "ulimit -n 8192");
        check(&with_open_files(1024, 4096), NOFILE, Verdict::SlowerWithout, "sudo prlimit");
        check(&with_open_files(255, 4096), NOFILE, Verdict::Missing, "needs 256");
    }
}
