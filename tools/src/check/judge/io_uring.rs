//! Judges io_uring, without which nothing runs: which of the usual causes explains the error that was seen.

use super::{Finding, errno_text};
use crate::check::facts::{Attempt, IoUring};

const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;

/// Whether rings of the kind that the data path uses can be made.
pub fn io_uring(facts: &IoUring) -> Finding {
    let what = "io_uring";
    let (step, errno) = match &facts.ring {
        Attempt::Worked => return Finding::ok(what, "a ring with SINGLE_ISSUER and DEFER_TASKRUN works"),
        Attempt::Wrong { seen } => {
            return Finding::missing(what, seen).because("the kernel's io_uring doesn't do what it should");
        }
        Attempt::Refused { step, errno } => (step, *errno),
    };
    let finding = Finding::missing(what, format!("{step}: {}", errno_text(errno)));
    match (errno, facts.disabled) {
        (EPERM, Some(2)) => finding
            .because("kernel.io_uring_disabled is 2: the administrator has switched io_uring off for everybody")
            .mended_by("sudo sysctl -w kernel.io_uring_disabled=0"),
        (EPERM, Some(1)) => finding
            .because("kernel.io_uring_disabled is 1: only root and members of kernel.io_uring_group may use io_uring")
            .mended_by("sudo sysctl -w kernel.io_uring_disabled=0"),
        (EPERM | ENOSYS, _) if facts.seccomp_filter => finding
            .because("a seccomp filter forbids it, as the default profile of most container engines does")
            .mended_by("docker run --security-opt seccomp=unconfined …"),
        (EPERM, _) => finding.because("a security module (SELinux, AppArmor) forbids io_uring to this program"),
        (ENOSYS, _) => finding
            .because("this kernel was built without io_uring (CONFIG_IO_URING)")
            .mended_by("sudo apt-get install -y linux-image-$(dpkg --print-architecture) && sudo reboot"),
        (EINVAL, _) => finding
            .because("the kernel has io_uring but not SINGLE_ISSUER and DEFER_TASKRUN, which came with Linux 6.1")
            .mended_by("sudo apt-get install -y linux-image-$(dpkg --print-architecture) && sudo reboot"),
        (ENOMEM, _) => finding
            .because("the memory that this process may lock doesn't suffice for a ring")
            .mended_by("ulimit -l unlimited"),
        _ => finding.because("no usual cause explains this error"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::machines::{check, container, small_server};
    use super::*;
    use crate::check::facts::Facts;

    fn refused(errno: i32, disabled: Option<u8>, seccomp_filter: bool) -> Facts {
        let ring = Attempt::Refused { step: "creating a ring".into(), errno };
        Facts { io_uring: IoUring { ring, disabled, seccomp_filter }, ..small_server() }
    }

    /// Shows that each usual cause is told from the others, by the error number and what else is known.
    #[test]
    fn each_cause_is_named() {
        check(&container(), "io_uring", Verdict::Missing, "seccomp=unconfined");
        for (facts, wanted) in [
            (refused(EPERM, Some(0), true), "seccomp filter"),
            (refused(ENOSYS, None, true), "seccomp filter"),
            (refused(EPERM, Some(2), true), "for everybody"),
            (refused(EPERM, Some(1), false), "io_uring_group"),
            (refused(EPERM, Some(0), false), "security module"),
            (refused(ENOSYS, None, false), "CONFIG_IO_URING"),
            (refused(EINVAL, None, false), "Linux 6.1"),
            (refused(ENOMEM, None, false), "ulimit -l"),
            (refused(5, None, false), "no usual cause"),
        ] {
            check(&facts, "io_uring", Verdict::Missing, wanted);
        }
    }
}
