//! How far a server has come in its life. `main` says so; the admin endpoint's thread reads it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::Serialize;

/// A part of a server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    /// Memory is being taken; no client is served yet.
    Starting = 0,
    /// Clients are served.
    Ready = 1,
    /// It was asked to end: what runs is finished, nothing new is taken on.
    Draining = 2,
}

impl Phase {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Ready => "ready",
            Phase::Draining => "draining",
        }
    }
}

/// The phase of a server, and its boot id once it has one. Written by `main`, read by the admin thread; the phase is released after
/// the boot id is set, and acquired before it is read.
#[derive(Debug, Default)]
pub struct Health {
    phase: AtomicU8,
    boot_id: OnceLock<[u8; 16]>,
}

impl Health {
    /// The phase now.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Starting,
            1 => Phase::Ready,
            _ => Phase::Draining,
        }
    }

    /// The boot id in hexadecimal digits, once the server has started.
    #[must_use]
    pub fn boot(&self) -> Option<String> {
        self.boot_id.get().map(|boot_id| hexadecimal(boot_id))
    }

    /// The server serves, under this boot id.
    pub fn is_ready(&self, boot_id: [u8; 16]) {
        // A second start in one process keeps the first's; there is none.
        let _ = self.boot_id.set(boot_id);
        self.phase.store(Phase::Ready as u8, Ordering::Release);
    }

    /// The server drains.
    pub fn is_draining(&self) {
        self.phase.store(Phase::Draining as u8, Ordering::Release);
    }
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
