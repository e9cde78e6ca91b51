//! The handshake. Its layout is frozen over all versions: it is what finds the version.
//!
//! ```text
//! client                                server
//!   │── Hello ────────────────────────────►│   tenant, wanted shard, versions spoken
//!   │◄──────────────────────────── Welcome │   version, boot id, shards; a challenge if the tenant has a token
//!   │── AuthProof ────────────────────────►│   only if there was a challenge
//!   │◄──────────────────────────── Welcome │   the same without a challenge, or an error
//! ```

use crate::auth::{CHALLENGE_BYTES, PROOF_BYTES};
use crate::error::{Error, Malformation, Result, WireError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// The first bytes of each handshake message. The line end shows a transport that translates text.
pub const HELLO_MAGIC: [u8; 8] = *b"LANNER\r\n";
/// The longest name of a tenant, in bytes.
pub const MAX_TENANT_BYTES: usize = 63;
/// The longest path of a Unix socket (`sun_path` less its terminator).
pub const MAX_SOCKET_PATH_BYTES: usize = 107;
/// In [`Welcome::offers`]: a TCP connection may become an RDMA one by [`super::join_rdma`].
pub const OFFERS_RDMA: u32 = 1;
/// In [`Hello::shard`]: any shard will do.
pub const ANY_SHARD: u16 = u16::MAX;

/// What a client says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    /// [`HELLO_MAGIC`].
    pub magic: [u8; 8],
    /// Oldest version that the client speaks.
    pub min_version: u8,
    /// Newest version that the client speaks.
    pub max_version: u8,
    /// The shard that the connection should belong to, or [`ANY_SHARD`].
    pub shard: le::U16,
    /// Zero.
    pub reserved: le::U32,
    /// A random number that a client keeps for its life.
    pub client_id: le::U64,
    /// The tenant's name, padded with zeros; all zero for the default tenant.
    pub tenant: [u8; 64],
}

/// What a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Welcome {
    /// [`HELLO_MAGIC`].
    pub magic: [u8; 8],
    /// The version to speak from here on.
    pub version: u8,
    /// Zero.
    pub reserved: u8,
    /// 0, or the code of the error for which the server closes the connection.
    pub status: le::U16,
    /// Number of shards of the server.
    pub shards: le::U16,
    /// The shard that the connection belongs to.
    pub shard: le::U16,
    /// Random at each start of the server. Another one voids snapshots and mappings.
    pub boot_id: [u8; 16],
    /// Stays the same over restarts: what placement over several servers hashes.
    pub server_id: le::U64,
    /// Bytes for values, all shards together: the server's weight in placement.
    pub capacity_bytes: le::U64,
    /// The largest value that a shard can hold when empty, in bytes.
    pub max_value_bytes: le::U64,
    /// The lease that a query grants, in milliseconds.
    pub lease_ms: le::U32,
    /// Length of `socket_path`; 0 if there is no shared memory to be had.
    pub socket_path_bytes: le::U32,
    /// The Unix socket that hands out shared memory.
    pub socket_path: [u8; 108],
    /// [`OFFERS_RDMA`] or 0; servers of before RDMA sent 0.
    pub offers: le::U32,
    /// The challenge to answer; all zero if the handshake is done.
    pub challenge: [u8; CHALLENGE_BYTES],
    /// The numbers of the error, if there is one.
    pub error_numbers: [le::U64; 4],
}

/// The answer to a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AuthProof {
    /// [`HELLO_MAGIC`].
    pub magic: [u8; 8],
    /// See [`crate::auth::proof`].
    pub proof: [u8; PROOF_BYTES],
}

const _: () = {
    assert!(size_of::<Hello>() == 88);
    assert!(std::mem::offset_of!(Hello, client_id) == 16);
    assert!(std::mem::offset_of!(Hello, tenant) == 24);
    assert!(size_of::<Welcome>() == 240);
    assert!(std::mem::offset_of!(Welcome, boot_id) == 16);
    assert!(std::mem::offset_of!(Welcome, socket_path) == 64);
    assert!(std::mem::offset_of!(Welcome, challenge) == 176);
    assert!(std::mem::offset_of!(Welcome, error_numbers) == 208);
    assert!(size_of::<AuthProof>() == 40);
};

impl Hello {
    /// A first message that asks for `shard` in the name of `tenant` (at most [`MAX_TENANT_BYTES`], checked by the
    /// caller).
    #[must_use]
    pub fn new(tenant: &[u8], client_id: u64, shard: u16) -> Hello {
        let mut name = [0; 64];
        let length = tenant.len().min(MAX_TENANT_BYTES);
        name[..length].copy_from_slice(&tenant[..length]);
        Hello {
            magic: HELLO_MAGIC,
            min_version: super::MIN_VERSION,
            max_version: super::MAX_VERSION,
            shard: shard.into(),
            reserved: 0.into(),
            client_id: client_id.into(),
            tenant: name,
        }
    }

    /// The tenant's name without its padding.
    #[must_use]
    pub fn tenant_name(&self) -> &[u8] {
        let end = self.tenant.iter().position(|byte| *byte == 0).unwrap_or(self.tenant.len());
        &self.tenant[..end]
    }

    /// The newest version that both sides speak.
    pub fn agreed_version(&self) -> Result<u8> {
        if self.magic != HELLO_MAGIC {
            return Err(Error::Malformed { reason: Malformation::NotLanner, detail: 0 });
        }
        let newest = self.max_version.min(super::MAX_VERSION);
        if newest < self.min_version.max(super::MIN_VERSION) {
            return Err(Error::VersionMismatch {
                ours_min: super::MIN_VERSION,
                ours_max: super::MAX_VERSION,
                theirs_min: self.min_version,
                theirs_max: self.max_version,
            });
        }
        Ok(newest)
    }
}

impl Welcome {
    /// A refusal.
    #[must_use]
    pub fn refusal(error: &Error) -> Welcome {
        let wire = error.to_wire();
        let mut welcome = Welcome::new_zeroed_with_magic();
        welcome.status = wire.code.into();
        welcome.error_numbers = wire.numbers.map(le::U64::new);
        welcome
    }

    /// A welcome whose every other field is zero.
    #[must_use]
    pub fn new_zeroed_with_magic() -> Welcome {
        let mut welcome: Welcome = zerocopy::FromZeros::new_zeroed();
        welcome.magic = HELLO_MAGIC;
        welcome
    }

    /// The error that the server sent, if it did; or that this is no welcome.
    pub fn check(&self) -> Result<()> {
        if self.magic != HELLO_MAGIC {
            return Err(Error::Malformed { reason: Malformation::NotLanner, detail: 0 });
        }
        if self.status.get() != 0 {
            let numbers = self.error_numbers.map(le::U64::get);
            return Err(Error::from_wire(WireError { code: self.status.get(), numbers }));
        }
        if !(super::MIN_VERSION..=super::MAX_VERSION).contains(&self.version) || self.shards.get() == 0 {
            return Err(Error::Malformed { reason: Malformation::Version, detail: u64::from(self.version) });
        }
        Ok(())
    }

    /// The Unix socket that hands out shared memory, if there is one.
    #[must_use]
    pub fn socket_path(&self) -> Option<&[u8]> {
        let length = self.socket_path_bytes.get() as usize;
        self.socket_path.get(..length).filter(|path| !path.is_empty())
    }

    /// Whether a TCP connection may become an RDMA one.
    #[must_use]
    pub fn offers_rdma(&self) -> bool {
        self.offers.get() & OFFERS_RDMA != 0
    }

    /// What the replies of this server's life carry.
    #[must_use]
    pub fn boot(&self) -> u32 {
        short_boot(&self.boot_id)
    }
}

/// The part of a boot id that each reply carries.
#[must_use]
pub fn short_boot(boot_id: &[u8; 16]) -> u32 {
    u32::from_le_bytes([boot_id[0], boot_id[1], boot_id[2], boot_id[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_agreed_or_refused_with_both_ranges() {
        let with = |min_version, max_version| {
            Hello { min_version, max_version, ..Hello::new(b"", 1, ANY_SHARD) }.agreed_version()
        };
        assert_eq!(with(1, 1), Ok(1));
        assert_eq!(with(0, 9), Ok(super::super::MAX_VERSION));
        assert_eq!(
            with(200, 201),
            Err(Error::VersionMismatch { ours_min: 1, ours_max: 1, theirs_min: 200, theirs_max: 201 })
        );
        assert!(with(3, 2).is_err());
    }

    #[test]
    fn strangers_are_recognised() {
        let mut hello = Hello::new(b"", 1, 0);
        hello.magic = *b"GET / HT";
        assert!(matches!(
            hello.agreed_version(),
            Err(Error::Malformed { reason: Malformation::NotLanner, .. })
        ));
    }

    #[test]
    fn a_refusal_tells_the_client_why() {
        let error = Error::Overloaded { what: crate::error::Limit::Connections, limit: 9 };
        assert_eq!(Welcome::refusal(&error).check(), Err(error));
    }

    #[test]
    fn names_are_cut_at_their_padding() {
        assert_eq!(Hello::new(b"team", 1, 0).tenant_name(), b"team");
        assert_eq!(Hello::new(b"", 1, 0).tenant_name(), b"");
        assert_eq!(Hello::new(&[b'x'; 80], 1, 0).tenant_name(), [b'x'; 63]);
    }
}
