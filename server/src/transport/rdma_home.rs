//! A core's RDMA device over the server's life: noticed when it's taken away, and opened again when it's back.
//!
//! ```text
//! open ── gone ─► closing: queue pairs destroyed, watches cancelled ─► closed ── back ─► open
//! ```
//!
//! A look each second, one system call while the device is there. A driver that can take its device from its users says that it's gone; others
//! (Soft-RoCE) wait until everyone has closed it, so it's closed here as soon as the system shows it no more. Opening takes as long as
//! registering the segments does, and the core serves nothing meanwhile: a device doesn't come back often.

use super::rdma::Rdma;
use super::{Core, Transport};
use lanner_rdma::choice::RdmaChoice;
use lanner_rdma::inventory;
use lanner_rdma::selection::{self, Wanted};
use lanner_shared::time::Instant;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// What a core's device was chosen by, and is again.
#[derive(Debug)]
pub struct RdmaHome {
    /// As configured.
    pub choice: RdmaChoice,
    /// The addresses that are listened on.
    pub addresses: Vec<IpAddr>,
    /// The server's node.
    pub numa_node: Option<u32>,
    /// Connections that the core takes.
    pub max_connections: u32,
    /// When it's looked at next.
    pub next_look: Instant,
}

impl RdmaHome {
    /// Looks after the device, if it's time.
    pub fn tick(&mut self, rdma: &mut Option<Rdma>, core: &mut Core) {
        if core.now < self.next_look {
            return;
        }
        self.next_look = core.now.plus(PAUSE);
        match rdma {
            Some(open) if open.is_closed() => {
                debug_assert_eq!(open.connections(), 0);
                *rdma = None;
            }
            Some(open) => open.look_after(core),
            None => *rdma = self.open_again(core),
        }
    }

    fn open_again(&self, core: &mut Core) -> Option<Rdma> {
        let devices = inventory::devices(Path::new(inventory::ROOT));
        let wanted = Wanted { addresses: &self.addresses, numa_node: self.numa_node };
        let selection = selection::choose(&self.choice, &devices, wanted).ok()?;
        match Rdma::open(&selection, &mut core.shards, self.max_connections) {
            Ok(mut rdma) => {
                tracing::info!(device = %selection.device, "the RDMA device is back");
                rdma.start(core);
                core.identity.rdma_opened();
                Some(rdma)
            }
            Err(reason) => {
                tracing::warn!(%reason, "the RDMA device is back and can't be used yet");
                None
            }
        }
    }
}
