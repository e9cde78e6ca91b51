//! Counters of a core's connections. One writer: the core.

use serde::Serialize;

/// What the transports of one core have done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransportStats {
    /// Connections now, over TCP.
    pub tcp_connections: u64,
    /// Lanes now, over shared memory.
    pub shm_lanes: u64,
    /// Connections now, over RDMA.
    pub rdma_connections: u64,
    /// RDMA connections that ended because a device said that something failed.
    pub rdma_failures: u64,
    /// Values of puts that were READ out of their clients' registered memory.
    pub rdma_values_read: u64,
    /// Connections and lanes that were opened.
    pub connections_opened: u64,
    /// Connections and lanes that have ended.
    pub connections_closed: u64,
    /// Connections that went to another core, because a frame was for its shard.
    pub connections_moved: u64,
    /// Connections that were refused for want of room.
    pub connections_refused: u64,
    /// How often the system could give no connection, mostly for want of file descriptors.
    pub accepts_failed: u64,
    /// Handshakes refused because no version of the protocol is common.
    pub version_refusals: u64,
    /// Handshakes refused because tenant or token was wrong.
    pub authentication_refusals: u64,
    /// Connections ended because the peer broke the protocol.
    pub protocol_errors: u64,
    /// Connections ended because the peer took or sent nothing for too long.
    pub stalled_peers: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}
