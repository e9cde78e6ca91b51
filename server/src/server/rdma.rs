//! Which RDMA device a server uses, decided once for all its cores; each then opens it for itself.

use super::StartError;
use crate::config::{RdmaChoice, ServerConfig};
use lanner_rdma::inventory;
use lanner_rdma::selection::{self, Selection, Wanted};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// What was decided.
#[derive(Debug, Default)]
pub(super) struct RdmaPlan {
    /// The device, if there is to be one.
    pub selection: Option<Selection>,
    /// What to tell the operator: which and why, or why none.
    pub remark: Option<String>,
}

/// Decides, before any memory is taken: by what the kernel shows, and by opening the device once.
pub(super) fn plan(config: &ServerConfig, addresses: &[SocketAddr]) -> Result<RdmaPlan, StartError> {
    if config.rdma == RdmaChoice::Off {
        return Ok(RdmaPlan::default());
    }
    let addresses: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    let wanted = Wanted { addresses: &addresses, numa_node: config.numa_node };
    let chosen = match lanner_rdma::HAS_VERBS {
        true => selection::choose(&config.rdma, &inventory::devices(Path::new(inventory::ROOT)), wanted)
            .map_err(|error| error.to_string())
            .and_then(|selection| can_be_opened(&selection.device).map(|()| selection)),
        false => Err(lanner_rdma::NOT_IN_BUILD.to_owned()),
    };
    match (chosen, &config.rdma) {
        (Ok(selection), _) => {
            let Selection { device, port, gid_index, reason, .. } = &selection;
            let remark = format!("RDMA over {device} port {port} GID {gid_index}: {reason}");
            Ok(RdmaPlan { remark: Some(remark), selection: Some(selection) })
        }
        (Err(reason), RdmaChoice::Auto) => {
            Ok(RdmaPlan { selection: None, remark: Some(unavailable(&reason)) })
        }
        (Err(reason), device) => Err(StartError::Rdma { device: device.to_string(), reason }),
    }
}

/// Whether the library, and its provider for the device, are there.
#[cfg(feature = "rdma")]
fn can_be_opened(device: &str) -> Result<(), String> {
    lanner_rdma::verbs::device::try_to_open(device).map_err(|error| error.to_string())
}

#[cfg(not(feature = "rdma"))]
fn can_be_opened(_: &str) -> Result<(), String> {
    Ok(())
}

/// The line that says that there is no RDMA and why.
pub(super) fn unavailable(reason: &str) -> String {
    format!("RDMA unavailable: {reason} (--rdma off leaves this line out)")
}

/// The same of one core. Others may have it: clients are told of RDMA only where all have.
pub(super) fn unavailable_on_a_core(reason: &str) -> String {
    unavailable(&format!("{reason}; a server has RDMA on all of its shards or on none"))
}
