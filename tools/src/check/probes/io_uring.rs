//! Makes a ring of the kind that the data path uses, and runs an operation on it: nothing less shows that one can.

use io_uring::{cqueue, opcode, squeue};

use super::{field, number, text};
use crate::check::facts::{Attempt, IoUring};

/// What is known about io_uring here.
pub fn io_uring() -> IoUring {
    let status = text("/proc/self/status").unwrap_or_default();
    IoUring {
        ring: try_ring(),
        disabled: number("/proc/sys/kernel/io_uring_disabled").and_then(|level| u8::try_from(level).ok()),
        seccomp_filter: field(&status, "Seccomp") == Some("2"),
    }
}

fn try_ring() -> Attempt {
    let refused = |step: &str, error: std::io::Error| Attempt::Refused {
        step: step.to_owned(),
        errno: error.raw_os_error().unwrap_or_default(),
    };
    let builder = &mut io_uring::IoUring::<squeue::Entry, cqueue::Entry>::builder();
    let mut ring = match builder.setup_single_issuer().setup_defer_taskrun().build(8) {
        Ok(ring) => ring,
        Err(error) => return refused("creating a ring", error),
    };
    let nothing = opcode::Nop::new().build().user_data(7);
    // SAFETY: an operation that does nothing refers to no memory.
    if unsafe { ring.submission().push(&nothing) }.is_err() {
        return Attempt::Wrong { seen: "a new ring takes no operation".to_owned() };
    }
    if let Err(error) = ring.submit_and_wait(1) {
        return refused("running an operation on a ring", error);
    }
    match ring.completion().next() {
        Some(completion) if completion.user_data() == 7 => Attempt::Worked,
        _ => Attempt::Wrong { seen: "a ring ran an operation and did not say so".to_owned() },
    }
}
