//! The first 24 bytes of every frame behind the handshake.
//!
//! ```text
//!  0        1       2      4           8       12      14       16                    24
//!  │version │opcode │shard │request id │ boot  │ count │ status │ body:24 payload:40  │
//! ```

use super::MAX_BODY_BYTES;
use crate::error::{Error, Malformation, Result};
use crate::key::ShardId;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// Bytes of a [`FrameHeader`].
pub const HEADER_BYTES: usize = size_of::<FrameHeader>();
/// The longest payload: what 40 bits hold.
pub const MAX_PAYLOAD_BYTES: u64 = (1 << 40) - 1;

/// What a frame asks for or answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// [`super::put`]
    Put = 1,
    /// [`super::get`]
    Get = 2,
    /// [`super::query`]
    Query = 3,
    /// [`super::exists`]
    Exists = 4,
    /// [`super::remove`]
    Remove = 5,
    /// [`super::read`]
    Read = 6,
    /// [`super::read_ranges`]
    ReadRanges = 7,
    /// [`super::list`]
    List = 8,
    /// [`super::stats`]
    Stats = 9,
    /// [`super::longest_prefix`]
    LongestPrefix = 10,
    /// [`super::match_chain`]
    MatchChain = 11,
    /// [`super::get`], of which long values stay where they are.
    Fetch = 12,
    /// [`super::join_rdma`]
    JoinRdma = 13,
    /// [`super::put_offered`]
    PutOffered = 14,
    /// [`super::touch`]
    Touch = 15,
}

impl Opcode {
    /// All of them, in the order of their numbers.
    pub const ALL: [Opcode; 15] = [
        Opcode::Put,
        Opcode::Get,
        Opcode::Query,
        Opcode::Exists,
        Opcode::Remove,
        Opcode::Read,
        Opcode::ReadRanges,
        Opcode::List,
        Opcode::Stats,
        Opcode::LongestPrefix,
        Opcode::MatchChain,
        Opcode::Fetch,
        Opcode::JoinRdma,
        Opcode::PutOffered,
        Opcode::Touch,
    ];

    /// The operation's name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Opcode::Put => "put",
            Opcode::Get => "get",
            Opcode::Query => "query",
            Opcode::Exists => "exists",
            Opcode::Remove => "remove",
            Opcode::Read => "read",
            Opcode::ReadRanges => "read_ranges",
            Opcode::List => "list",
            Opcode::Stats => "stats",
            Opcode::LongestPrefix => "longest_prefix",
            Opcode::MatchChain => "match_chain",
            Opcode::Fetch => "fetch",
            Opcode::JoinRdma => "join_rdma",
            Opcode::PutOffered => "put_offered",
            Opcode::Touch => "touch",
        }
    }

    /// Whether a call may have changed the store although its answer never came.
    #[must_use]
    pub fn changes_the_store(self) -> bool {
        matches!(self, Opcode::Put | Opcode::PutOffered | Opcode::Remove)
    }

    /// Whether an answer grants leases, which both sides then count from a time of their own.
    #[must_use]
    pub fn grants_leases(self) -> bool {
        matches!(self, Opcode::Get | Opcode::Query | Opcode::ReadRanges | Opcode::MatchChain | Opcode::Fetch)
    }

    #[inline]
    fn of(byte: u8) -> Option<Opcode> {
        // The numbers count up from 1 in the order of `ALL`, which a test holds on to.
        Opcode::ALL.get(usize::from(byte).wrapping_sub(1)).copied()
    }
}

/// The first bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FrameHeader {
    version: u8,
    opcode: u8,
    shard: le::U16,
    request_id: le::U32,
    boot: le::U32,
    count: le::U16,
    status: le::U16,
    lengths: le::U64,
}

const _: () = {
    assert!(size_of::<FrameHeader>() == 24);
    assert!(std::mem::offset_of!(FrameHeader, request_id) == 4);
    assert!(std::mem::offset_of!(FrameHeader, boot) == 8);
    assert!(std::mem::offset_of!(FrameHeader, status) == 14);
    assert!(std::mem::offset_of!(FrameHeader, lengths) == 16);
};

/// A header whose every field has been found valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked or answered.
    pub opcode: Opcode,
    /// The shard that is asked; in a reply the one that answers.
    pub shard: ShardId,
    /// Chosen by the client; the reply repeats it.
    pub request_id: u32,
    /// In a reply the low half of the server's boot id; in a request 0.
    pub boot: u32,
    /// Keys, ranges or entries in the body.
    pub count: u16,
    /// In a reply 0 or the code of an error; in a request 0.
    pub status: u16,
    /// Length of the body.
    pub body_bytes: u32,
    /// Length of the payload behind the body.
    pub payload_bytes: u64,
}

impl Header {
    /// The header in the form in which it travels.
    #[must_use]
    pub fn encode(&self, version: u8) -> FrameHeader {
        debug_assert!(self.body_bytes < 1 << 24 && self.payload_bytes <= MAX_PAYLOAD_BYTES);
        FrameHeader {
            version,
            opcode: self.opcode as u8,
            shard: self.shard.0.into(),
            request_id: self.request_id.into(),
            boot: self.boot.into(),
            count: self.count.into(),
            status: self.status.into(),
            lengths: (u64::from(self.body_bytes) | self.payload_bytes << 24).into(),
        }
    }

    /// The header in `bytes`, if it's one of `version`.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES], version: u8) -> Result<Header> {
        let raw = FrameHeader::read_from_bytes(bytes).map_err(|_| malformed(Malformation::Body, 0))?;
        if raw.version != version {
            return Err(malformed(Malformation::Version, u64::from(raw.version)));
        }
        let opcode = Opcode::of(raw.opcode).ok_or(malformed(Malformation::Opcode, u64::from(raw.opcode)))?;
        let lengths = raw.lengths.get();
        let body_bytes = (lengths & 0xff_ffff) as u32;
        if body_bytes as usize > MAX_BODY_BYTES {
            return Err(malformed(Malformation::Length, u64::from(body_bytes)));
        }
        Ok(Header {
            opcode,
            shard: ShardId(raw.shard.get()),
            request_id: raw.request_id.get(),
            boot: raw.boot.get(),
            count: raw.count.get(),
            status: raw.status.get(),
            body_bytes,
            payload_bytes: lengths >> 24,
        })
    }

    /// The header of a request; its lengths are set by [`super::body::finish`].
    #[must_use]
    pub fn request(opcode: Opcode, shard: ShardId, request_id: u32, count: u16) -> Header {
        Header { opcode, shard, request_id, boot: 0, count, status: 0, body_bytes: 0, payload_bytes: 0 }
    }

    /// The header of an answer to `self` with the same count, no error and no contents.
    #[must_use]
    pub fn reply(&self, boot: u32) -> Header {
        Header { boot, status: 0, body_bytes: 0, payload_bytes: 0, ..*self }
    }
}

fn malformed(reason: Malformation, detail: u64) -> Error {
    Error::Malformed { reason, detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn opcodes_count_up_from_one() {
        for (place, opcode) in Opcode::ALL.into_iter().enumerate() {
            assert_eq!(opcode as usize, place + 1);
            assert_eq!(Opcode::of(place as u8 + 1), Some(opcode));
        }
        assert_eq!([Opcode::of(0), Opcode::of(Opcode::ALL.len() as u8 + 1)], [None, None]);
    }

    #[test]
    fn golden_bytes() {
        let header = Header {
            opcode: Opcode::Get,
            shard: ShardId(0x0102),
            request_id: 0x0304_0506,
            boot: 0x0708_090a,
            count: 0x0b0c,
            status: 0x0d0e,
            body_bytes: 0x0f_1011,
            payload_bytes: 0x12_1314_1516,
        };
        let bytes = header.encode(1);
        let golden = [
            1, 2, 2, 1, 6, 5, 4, 3, 0x0a, 9, 8, 7, 0x0c, 0x0b, 0x0e, 0x0d, 0x11, 0x10, 0x0f, 0x16, 0x15,
            0x14, 0x13, 0x12,
        ];
        assert_eq!(bytes.as_bytes(), golden);
        assert_eq!(Header::decode(&golden, 1), Ok(header));
    }

    #[test]
    fn what_is_refused_is_named() {
        let good: [u8; 24] =
            Header::request(Opcode::Get, ShardId(0), 1, 1).encode(1).as_bytes().try_into().unwrap();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Header::decode(&bytes, 1)
        };
        let refused = |reason, detail| Err(Error::Malformed { reason, detail });
        assert_eq!(with(0, 2), refused(Malformation::Version, 2));
        assert_eq!(with(1, 0), refused(Malformation::Opcode, 0));
        assert_eq!(with(1, 200), refused(Malformation::Opcode, 200));
        assert_eq!(with(18, 0x11), refused(Malformation::Length, 0x11_0000));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes: [u8; 24]) {
            // Whatever is accepted is encoded to the same bytes again: no field is lost or ignored.
            if let Ok(header) = Header::decode(&bytes, 1) {
                let again = header.encode(1);
                prop_assert_eq!(again.as_bytes(), bytes);
            }
        }
    }
}
