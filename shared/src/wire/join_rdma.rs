//! `join_rdma`: makes an RDMA connection out of a TCP one. The TCP connection stays: its end is how each side learns of the other's.
//!
//! ```text
//! client                                             server
//!   │  queue pair, receives posted                      │
//!   │── JoinRdma over TCP ─────────────────────────────►│  queue pair, connected
//!   │◄───────────────────────────── RdmaJoined over TCP │
//!   │  connected                                        │
//!   │══ frames in SENDs ══════════════════════════════► │
//!   │══ READs of the segment ═════════════════════════► │  (its device)
//! ```
//!
//! Both sides' queue pairs are described here in full, so neither a subnet manager nor a connection manager is asked. After that the same
//! frames travel in both directions as a stream of bytes, cut into messages of at most [`RdmaJoined::message_bytes`]. A client sends
//! [`UNTAKEN_MESSAGES`] ahead of what the server has taken up.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// One side's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EndpointBody {
    /// Its number, of 24 bits.
    pub queue_pair: le::U32,
    /// The number of its first packet, of 24 bits.
    pub first_packet: le::U32,
    /// The GID of its port.
    pub gid: [u8; 16],
    /// Its address within an InfiniBand subnet (LID); 0 on Ethernet.
    pub local_id: le::U16,
    /// The largest packet: 1 for 256 bytes, 2 for 512, … 5 for 4096.
    pub mtu: u8,
    /// READs that it answers at a time.
    pub reads_answered: u8,
    /// What this side can do beside what every peer can: [`FEATURE_READS_VALUES`] and whatever comes later. Bits that aren't known are
    /// passed over.
    pub features: le::U32,
}

/// In [`EndpointBody::features`] of a server: it takes [`super::put_offered`].
pub const FEATURE_READS_VALUES: u32 = 1;

/// What the client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JoinRdma {
    /// The client's queue pair.
    pub endpoint: EndpointBody,
    /// The longest message that it takes, in bytes.
    pub message_bytes: le::U32,
    /// Zero.
    pub reserved: le::U32,
}

/// What the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RdmaJoined {
    /// The server's queue pair for this client.
    pub endpoint: EndpointBody,
    /// The longest message that it takes, in bytes.
    pub message_bytes: le::U32,
    /// The key that READs of the segment carry.
    pub segment_key: le::U32,
    /// Address of the segment's first byte, in the server's process.
    pub segment_address: le::U64,
    /// Bytes of the segment.
    pub segment_bytes: le::U64,
    /// The server's boot id. The segment is that of this life.
    pub boot_id: [u8; 16],
}

const _: () = {
    assert!(size_of::<EndpointBody>() == 32);
    assert!(std::mem::offset_of!(EndpointBody, gid) == 8);
    assert!(std::mem::offset_of!(EndpointBody, local_id) == 24);
    assert!(size_of::<JoinRdma>() == 40);
    assert!(size_of::<RdmaJoined>() == 72);
    assert!(std::mem::offset_of!(RdmaJoined, segment_address) == 40);
    assert!(std::mem::offset_of!(RdmaJoined, boot_id) == 56);
};

/// What a side whose queue pair has failed says over the TCP connection before it closes it, in one byte: so the other one counts what it couldn't
/// notice itself, a link that went down say, and doesn't take it for the end of its peer.
pub const LINK_FAILED: u8 = 1;

/// Messages that a client may have sent and the server not taken up. Each message of the server carries, as its immediate data, the number of
/// the message (counted from 0, wrapping) that the client has to stop before; an empty one carries nothing else.
pub const UNTAKEN_MESSAGES: u32 = 32;

/// The longest message that either side of this version takes, in bytes; longer frames take several.
pub const MESSAGE_BYTES: usize = 8 << 10;

/// The shortest message that either side may say it takes, in bytes.
pub const LEAST_MESSAGE_BYTES: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let endpoint = EndpointBody {
            queue_pair: 0x0403_0201.into(),
            first_packet: 0x0807_0605.into(),
            gid: [9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24],
            local_id: 0x1a19.into(),
            mtu: 27,
            reads_answered: 28,
            features: 0x201f_1e1d.into(),
        };
        let joined = RdmaJoined {
            endpoint,
            message_bytes: 0x2423_2221.into(),
            segment_key: 0x2827_2625.into(),
            segment_address: 0x302f_2e2d_2c2b_2a29.into(),
            segment_bytes: 0x3837_3635_3433_3231.into(),
            boot_id: [57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72],
        };
        let golden: Vec<u8> = (1..=72).collect();
        assert_eq!(joined.as_bytes(), golden);
        let join = JoinRdma { endpoint, message_bytes: 0x2423_2221.into(), reserved: 0x2827_2625.into() };
        assert_eq!(join.as_bytes(), &golden[..40]);
        for length in 0..40 {
            assert!(JoinRdma::read_from_bytes(&golden[..length]).is_err(), "{length}");
        }
    }
}
