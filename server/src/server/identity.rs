//! Who a server is, as every core says it: ids, shards, tenants. Made at the start and only read from then on, but for the
//! count of connections, which set-up keeps.

use crate::config::tenant::{Tenant, Token};
use crate::transport::handshake::SocketKind;
use lanner_shared::auth::Challenge;
use lanner_shared::wire::hello::{OFFERS_RDMA, Welcome, short_boot};
use lanner_shared::{Error, Result};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Who a server is.
#[derive(Debug)]
pub struct Identity {
    /// Random at each start.
    pub boot_id: [u8; 16],
    /// The same at each start.
    pub server_id: u64,
    /// Number of shards.
    pub shards: u16,
    /// Bytes for values, of the largest tenant's share.
    pub capacity_bytes: u64,
    /// The largest value that a shard can hold.
    pub max_value_bytes: u64,
    /// The lease that's granted, in milliseconds.
    pub lease_ms: u32,
    /// Bytes of a page of a segment.
    pub page_bytes: u64,
    /// Where shared memory is handed out.
    pub socket_path: Option<PathBuf>,
    /// Cores that have an RDMA device open. TCP connections may go on over RDMA while all have.
    pub rdma_cores: AtomicU16,
    /// Whose data there is.
    pub tenants: Vec<Tenant>,
    /// Connections that there may be.
    pub max_connections: u32,
    /// Connections that there are. Changed when one comes or goes, never by a request.
    pub connections: AtomicU32,
}

impl Identity {
    /// What the replies of this server carry.
    pub fn boot(&self) -> u32 {
        short_boot(&self.boot_id)
    }

    /// The index of the tenant of this name.
    pub fn tenant(&self, name: &[u8]) -> Option<usize> {
        self.tenants.iter().position(|tenant| tenant.name.as_bytes() == name)
    }

    /// The token of a tenant.
    pub fn token(&self, tenant: usize) -> &[u8] {
        self.tenants.get(tenant).and_then(|tenant| tenant.token.as_ref()).map_or(&[], Token::as_bytes)
    }

    /// A fresh challenge for a tenant, or `None` if it has no token.
    pub fn challenge(&self, tenant: usize) -> Result<Option<Challenge>> {
        if self.token(tenant).is_empty() {
            return Ok(None);
        }
        let mut challenge = Challenge::default();
        getrandom::fill(&mut challenge).map_err(|error| Error::System {
            what: "random numbers".into(),
            reason: error.to_string().into(),
        })?;
        // All zero would mean that there is none.
        challenge[0] |= 1;
        Ok(Some(challenge))
    }

    /// What a client is told that belongs to `shard`.
    pub fn welcome(&self, version: u8, shard: u16, kind: SocketKind) -> Welcome {
        let mut welcome = Welcome::new_zeroed_with_magic();
        welcome.version = version;
        welcome.shards = self.shards.into();
        welcome.shard = shard.into();
        welcome.boot_id = self.boot_id;
        welcome.server_id = self.server_id.into();
        welcome.capacity_bytes = self.capacity_bytes.into();
        welcome.max_value_bytes = self.max_value_bytes.into();
        welcome.lease_ms = self.lease_ms.into();
        if self.rdma_cores.load(Ordering::Relaxed) == self.shards {
            welcome.offers = OFFERS_RDMA.into();
        }
        if let (SocketKind::Tcp, Some(path)) = (kind, &self.socket_path) {
            let bytes = path.as_os_str().as_encoded_bytes();
            if let Some(target) = welcome.socket_path.get_mut(..bytes.len()) {
                target.copy_from_slice(bytes);
                welcome.socket_path_bytes = (bytes.len() as u32).into();
            }
        }
        welcome
    }

    /// A core has opened its RDMA device. Once all have, clients are told that there is RDMA.
    pub fn rdma_opened(&self) {
        self.rdma_cores.fetch_add(1, Ordering::Relaxed);
    }

    /// A core has lost its RDMA device: from here on clients are told that there is no RDMA.
    pub fn rdma_closed(&self) {
        self.rdma_cores.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a connection, if there may be one more.
    pub fn connection_opened(&self) -> bool {
        let more = |count: u32| (count < self.max_connections).then_some(count + 1);
        self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts the end of a connection.
    pub fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
