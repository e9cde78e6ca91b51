//! Every error that Lanner's client or protocol knows, with a stable code and what to do about it.
//!
//! An error that a server sends travels as its code and at most four numbers ([`crate::wire::error`]); one that only a
//! client can meet never travels and may hold text. Codes are never reused.

use thiserror::Error as ThisError;

/// A result of Lanner.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, where, and how to mend it.
///
/// `index` is the place of the key or range in the caller's batch, from 0.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// No object has this key. Not the same as an object of no bytes.
    #[error("key {index} of the call is not in the store")]
    NotFound {
        /// Place of the key in the call.
        index: u64,
    },
    /// `put` found an object under the key.
    #[error("key {index} of the call is in the store already; to replace its value use upsert")]
    AlreadyExists {
        /// Place of the key in the call.
        index: u64,
    },
    /// The lease that the read relied on has ended. Nothing was read.
    #[error("the lease of entry {index} has ended and nothing was read; refresh the snapshot and read again")]
    LeaseExpired {
        /// Place of the key or range in the call.
        index: u64,
    },
    /// `Freshness::Checked` found that an object of the snapshot was replaced. Nothing was read.
    #[error(
        "the content behind the snapshot has changed and nothing was read; refresh the snapshot and read again"
    )]
    EpochChanged,
    /// A key is empty or too long.
    #[error(
        "key {index} of the call has {bytes} bytes; a key has 1 to 1024, a block of a chain has one of 1 to 990"
    )]
    InvalidKey {
        /// Place of the key in the call.
        index: u64,
        /// Its length.
        bytes: u64,
    },
    /// A range reaches beyond its value or the caller's buffer, or is of a key that there isn't. Nothing was read.
    #[error("range {index} {}; nothing was read", bound.reached_by(*end, *length))]
    OutOfBounds {
        /// Place of the range in the call.
        index: u64,
        /// What it reaches beyond.
        bound: Bound,
        /// Where it ends (saturated); the place of its key.
        end: u64,
        /// Where the value or the buffer ends; how many keys there are.
        length: u64,
    },
    /// Two ranges would write the same destination bytes. Nothing was read.
    #[error("ranges {index} and {other} overlap in the destination; give each its own bytes")]
    Overlap {
        /// Place of one range in the call.
        index: u64,
        /// Place of the other.
        other: u64,
    },
    /// The caller's buffer can't hold the value. Nothing was read.
    #[error(
        "value {index} has {needed} bytes, its buffer {given}; give it a larger one (size() tells how large)"
    )]
    BufferTooSmall {
        /// Place of the key in the call.
        index: u64,
        /// Bytes of the value.
        needed: u64,
        /// Bytes of the buffer.
        given: u64,
    },
    /// A value doesn't fit a shard, however empty.
    #[error(
        "a value of {bytes} bytes is larger than a shard can hold ({limit}); give the server more --memory or fewer --shards"
    )]
    ValueTooLarge {
        /// Bytes of the value.
        bytes: u64,
        /// The most that one shard can hold.
        limit: u64,
    },
    /// No room, and nothing that may be evicted yet.
    #[error(
        "the shard is full: {needed} bytes wanted, {leased} leased, {pinned} pinned; {}", way_out_of_full(*retry_ms)
    )]
    StoreFull {
        /// Bytes that the put asked for.
        needed: u64,
        /// Bytes under leases, quarantined ones included.
        leased: u64,
        /// Bytes that are hard-pinned.
        pinned: u64,
        /// Milliseconds until the earliest lease ends; 0 if only pins stand in the way.
        retry_ms: u64,
    },
    /// A bounded queue, table or buffer of the server is full.
    #[error("the server is at its limit of {limit} {what}; {}", what.way_out())]
    Overloaded {
        /// Which limit.
        what: Limit,
        /// Its value.
        limit: u64,
    },
    /// No answer in time. A read may be repeated.
    #[error(
        "no answer from {server} within {millis} ms; the call was given up (raise the time-out, or look at the server with 'lanner top')"
    )]
    Timeout {
        /// Address of the server.
        server: Box<str>,
        /// The time-out.
        millis: u64,
    },
    /// No connection can be made.
    #[error("no connection to {server}: {reason}; is lanner-server running there, and is the address right?")]
    Unreachable {
        /// Address of the server.
        server: Box<str>,
        /// What the system said.
        reason: Box<str>,
    },
    /// RDMA was asked for and nothing else, and the server can't be reached over it. Over TCP it answers.
    #[error("{server} answers over TCP and can't be reached over RDMA: {reason}")]
    RdmaUnreachable {
        /// Address of the server.
        server: Box<str>,
        /// Which device, port and GID, what is wrong with the way from there, and what to look at.
        reason: Box<str>,
    },
    /// The server's RDMA device can't connect to this side's. Clients go on over TCP, or say [`Error::RdmaUnreachable`].
    #[error(
        "the server's RDMA device can't connect its GID {} to this side's GID {}; see that these two reach each other ('ib_read_lat' between the machines) and that both are RoCE v2; the server's log says what its device said", gid_text(*server_gid), gid_text(*client_gid)
    )]
    NoRdmaPath {
        /// The GID of the server's port.
        server_gid: [u8; 16],
        /// The GID that the client has named.
        client_gid: [u8; 16],
    },
    /// The connection ended before the answer of a call that changes nothing.
    #[error(
        "the connection to {server} ended before its answer; the call changed nothing and may be repeated"
    )]
    ConnectionLost {
        /// Address of the server.
        server: Box<str>,
    },
    /// The connection ended before the answer of a call that may have changed something.
    #[error(
        "the connection to {server} ended before its answer; the change may or may not have taken place: read the key to find out"
    )]
    OutcomeUnknown {
        /// Address of the server.
        server: Box<str>,
    },
    /// No common version of the protocol.
    #[error(
        "this side speaks protocol {ours_min} to {ours_max}, the other {theirs_min} to {theirs_max}: upgrade the older one"
    )]
    VersionMismatch {
        /// Oldest version of this side.
        ours_min: u8,
        /// Newest version of this side.
        ours_max: u8,
        /// Oldest version of the other side.
        theirs_min: u8,
        /// Newest version of the other side.
        theirs_max: u8,
    },
    /// The tenant is unknown or its token is wrong.
    #[error(
        "the server refused tenant and token; check the 'tenant' and 'token' of the URL against the server's [[tenant]] entries"
    )]
    Unauthenticated,
    /// The peer sent what is no message.
    #[error("malformed message: {reason} ({detail}); one side is not Lanner, or of a broken version")]
    Malformed {
        /// What is wrong with it.
        reason: Malformation,
        /// The offending number.
        detail: u64,
    },
    /// A key was sent to a shard that it doesn't belong to.
    #[error(
        "key {index} of the call belongs to shard {owner}, not {asked}: the client's shard count is out of date; connect again"
    )]
    WrongShard {
        /// Place of the key in the call.
        index: u64,
        /// The shard it belongs to.
        owner: u64,
        /// The shard that was asked.
        asked: u64,
    },
    /// The server is draining.
    #[error("the server is shutting down; connect to another one, or again when it's back")]
    ShuttingDown,
    /// The server has given a put up whose value stopped coming. Nothing was stored.
    #[error(
        "the server gave the put up: nothing of its value came for {millis} ms, and nothing was stored; look for what holds up this side or the network, and put again"
    )]
    PutGivenUp {
        /// How long the server waits for the next bytes of a value, in milliseconds.
        millis: u64,
    },
    /// The call was made with arguments that can't be meant.
    #[error("{0}")]
    InvalidArgument(Box<str>),
    /// The system refused something on this side.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: Box<str>,
        /// What the system said.
        reason: Box<str>,
    },
}

/// The limits that [`Error::Overloaded`] can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Limit {
    /// Connections of a server.
    Connections = 1,
    /// Puts begun and not ended, of one connection.
    UnfinishedPuts = 2,
    /// Shared-memory lanes of a shard.
    SharedMemoryLanes = 3,
    /// Objects of a shard.
    Objects = 4,
    /// Bytes of requests that have not arrived whole, of a shard.
    PartialRequestBytes = 5,
    /// Requests of one connection that have no answer yet.
    PendingRequests = 6,
    /// Transfers of one object that are under way.
    Transfers = 7,
    /// RDMA queue pairs of a shard.
    QueuePairs = 8,
}

impl Limit {
    fn way_out(self) -> &'static str {
        match self {
            Limit::Connections => {
                "each thread of a client has one for each shard: let some end, or give the server a larger --max-connections"
            }
            Limit::SharedMemoryLanes => {
                "each thread of a client has one for each shard: 'transport=auto' goes on over TCP, or let some end"
            }
            Limit::QueuePairs => {
                "each thread of a client has one for each shard: 'transport=auto' goes on over TCP, or let some end, or give the server a larger --max-connections"
            }
            Limit::UnfinishedPuts
            | Limit::Objects
            | Limit::PartialRequestBytes
            | Limit::PendingRequests
            | Limit::Transfers => "wait for answers before asking more, or raise the limit",
        }
    }

    fn of(number: u64) -> Limit {
        match number {
            1 => Limit::Connections,
            2 => Limit::UnfinishedPuts,
            3 => Limit::SharedMemoryLanes,
            4 => Limit::Objects,
            5 => Limit::PartialRequestBytes,
            7 => Limit::Transfers,
            8 => Limit::QueuePairs,
            _ => Limit::PendingRequests,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Limit::Connections => "connections",
            Limit::UnfinishedPuts => "unfinished puts on this connection",
            Limit::SharedMemoryLanes => "shared-memory lanes",
            Limit::Objects => "objects on a shard",
            Limit::PartialRequestBytes => "bytes of unfinished requests",
            Limit::PendingRequests => "requests without an answer",
            Limit::Transfers => "transfers of one object at a time",
            Limit::QueuePairs => "RDMA connections of a shard",
        })
    }
}

/// What a range reaches beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bound {
    /// The value that it reads from. All that a server says.
    Value = 0,
    /// The caller's buffer.
    Buffer = 1,
    /// The keys that ranges can be of.
    Keys = 2,
}

impl Bound {
    fn of(number: u64) -> Bound {
        match number {
            1 => Bound::Buffer,
            2 => Bound::Keys,
            _ => Bound::Value,
        }
    }

    fn reached_by(self, end: u64, length: u64) -> String {
        match self {
            Bound::Value => format!("ends at byte {end} of a value of {length}"),
            Bound::Buffer => format!("ends at byte {end} of a buffer of {length}"),
            Bound::Keys if length == 0 => format!("is of key {end}, and there are no keys"),
            Bound::Keys => format!("is of key {end}, and keys are 0 to {}", length - 1),
        }
    }
}

/// What [`Error::Malformed`] can complain of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Malformation {
    /// The first bytes are not those of a handshake.
    NotLanner = 1,
    /// The frame is of another version than was agreed.
    Version = 2,
    /// No such operation.
    Opcode = 3,
    /// A length beyond what the operation allows.
    Length = 4,
    /// The body ends before what it announces, or goes on behind it.
    Body = 5,
    /// A field that must be zero isn't, or one has no such value.
    Field = 6,
    /// A message that doesn't belong at this point.
    Order = 7,
}

impl Malformation {
    fn of(number: u64) -> Malformation {
        match number {
            1 => Malformation::NotLanner,
            2 => Malformation::Version,
            3 => Malformation::Opcode,
            4 => Malformation::Length,
            6 => Malformation::Field,
            7 => Malformation::Order,
            _ => Malformation::Body,
        }
    }
}

impl std::fmt::Display for Malformation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Malformation::NotLanner => "not a Lanner handshake",
            Malformation::Version => "a frame of another version than was agreed",
            Malformation::Opcode => "no such operation",
            Malformation::Length => "a length beyond the limit",
            Malformation::Body => "a body that is too short or too long",
            Malformation::Field => "a field with a value that it can't have",
            Malformation::Order => "a message out of order",
        })
    }
}

/// An error in the form in which it travels: a code and four numbers whose meaning depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireError {
    /// [`Error::code`].
    pub code: u16,
    /// The fields of the error in the order of their declaration.
    pub numbers: [u64; 4],
}

fn way_out_of_full(retry_ms: u64) -> String {
    match retry_ms {
        0 => "no lease ends soon: remove pinned objects, wait for the end of their --ttl, or give the server more --memory".to_owned(),
        _ => format!("the next lease ends in {retry_ms} ms: try again then, unpin, or give the server more --memory"),
    }
}

/// A GID as an address: the IP address that a RoCE v2 GID is.
fn gid_text(gid: [u8; 16]) -> std::net::IpAddr {
    std::net::IpAddr::from(gid).to_canonical()
}

/// A GID as two numbers, as errors travel.
fn gid_numbers(gid: [u8; 16]) -> [u64; 2] {
    let number = u128::from_be_bytes(gid);
    [(number >> 64) as u64, number as u64]
}

fn gid_of([high, low]: [u64; 2]) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

impl Error {
    /// The stable code, as it stands in frames, in metrics and behind `code` in JSON.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Error::NotFound { .. } => 1,
            Error::AlreadyExists { .. } => 2,
            Error::LeaseExpired { .. } => 3,
            Error::EpochChanged => 4,
            Error::InvalidKey { .. } => 5,
            Error::OutOfBounds { .. } => 6,
            Error::Overlap { .. } => 7,
            Error::BufferTooSmall { .. } => 8,
            Error::ValueTooLarge { .. } => 9,
            Error::StoreFull { .. } => 10,
            Error::Overloaded { .. } => 11,
            Error::Timeout { .. } => 12,
            Error::Unreachable { .. } => 13,
            Error::ConnectionLost { .. } => 14,
            Error::OutcomeUnknown { .. } => 15,
            Error::VersionMismatch { .. } => 16,
            Error::Unauthenticated => 17,
            Error::Malformed { .. } => 18,
            Error::WrongShard { .. } => 19,
            Error::ShuttingDown => 20,
            Error::InvalidArgument(_) => 21,
            Error::System { .. } => 22,
            Error::PutGivenUp { .. } => 23,
            Error::RdmaUnreachable { .. } => 24,
            Error::NoRdmaPath { .. } => 25,
        }
    }

    /// The error as a server sends it; text stays behind, for no error that a server sends has any.
    #[must_use]
    pub fn to_wire(&self) -> WireError {
        let numbers = match *self {
            Error::NotFound { index } | Error::AlreadyExists { index } | Error::LeaseExpired { index } => {
                [index, 0, 0, 0]
            }
            Error::InvalidKey { index, bytes } => [index, bytes, 0, 0],
            Error::OutOfBounds { index, bound, end, length } => [index, end, length, bound as u64],
            Error::Overlap { index, other } => [index, other, 0, 0],
            Error::BufferTooSmall { index, needed, given } => [index, needed, given, 0],
            Error::ValueTooLarge { bytes, limit } => [bytes, limit, 0, 0],
            Error::PutGivenUp { millis } => [millis, 0, 0, 0],
            Error::StoreFull { needed, leased, pinned, retry_ms } => [needed, leased, pinned, retry_ms],
            Error::Overloaded { what, limit } => [what as u64, limit, 0, 0],
            Error::VersionMismatch { ours_min, ours_max, theirs_min, theirs_max } => {
                [ours_min, ours_max, theirs_min, theirs_max].map(u64::from)
            }
            Error::Malformed { reason, detail } => [reason as u64, detail, 0, 0],
            Error::WrongShard { index, owner, asked } => [index, owner, asked, 0],
            Error::NoRdmaPath { server_gid, client_gid } => {
                let ([a, b], [c, d]) = (gid_numbers(server_gid), gid_numbers(client_gid));
                [a, b, c, d]
            }
            Error::EpochChanged
            | Error::Timeout { .. }
            | Error::Unreachable { .. }
            | Error::RdmaUnreachable { .. }
            | Error::ConnectionLost { .. }
            | Error::OutcomeUnknown { .. }
            | Error::Unauthenticated
            | Error::ShuttingDown
            | Error::InvalidArgument(_)
            | Error::System { .. } => [0; 4],
        };
        WireError { code: self.code(), numbers }
    }

    /// The error that a server sent.
    #[must_use]
    pub fn from_wire(wire: WireError) -> Error {
        let [a, b, c, d] = wire.numbers;
        match wire.code {
            1 => Error::NotFound { index: a },
            2 => Error::AlreadyExists { index: a },
            3 => Error::LeaseExpired { index: a },
            4 => Error::EpochChanged,
            5 => Error::InvalidKey { index: a, bytes: b },
            6 => Error::OutOfBounds { index: a, bound: Bound::of(d), end: b, length: c },
            7 => Error::Overlap { index: a, other: b },
            8 => Error::BufferTooSmall { index: a, needed: b, given: c },
            9 => Error::ValueTooLarge { bytes: a, limit: b },
            10 => Error::StoreFull { needed: a, leased: b, pinned: c, retry_ms: d },
            11 => Error::Overloaded { what: Limit::of(a), limit: b },
            // What the server calls "ours" is "theirs" here.
            16 => Error::VersionMismatch {
                ours_min: c as u8,
                ours_max: d as u8,
                theirs_min: a as u8,
                theirs_max: b as u8,
            },
            17 => Error::Unauthenticated,
            18 => Error::Malformed { reason: Malformation::of(a), detail: b },
            19 => Error::WrongShard { index: a, owner: b, asked: c },
            20 => Error::ShuttingDown,
            23 => Error::PutGivenUp { millis: a },
            25 => Error::NoRdmaPath { server_gid: gid_of([a, b]), client_gid: gid_of([c, d]) },
            code => Error::Malformed { reason: Malformation::Field, detail: u64::from(code) },
        }
    }

    /// Whether it says that there is no way to a server, and nothing of what was asked.
    #[must_use]
    pub fn is_about_the_way(&self) -> bool {
        matches!(
            self,
            Error::Unreachable { .. } | Error::ConnectionLost { .. } | Error::RdmaUnreachable { .. }
        )
    }

    /// The same error for the key or range at `index` of the caller's batch, where the error has such a place.
    #[must_use]
    pub fn at(self, index: u64) -> Error {
        match self {
            Error::NotFound { .. } => Error::NotFound { index },
            Error::AlreadyExists { .. } => Error::AlreadyExists { index },
            Error::LeaseExpired { .. } => Error::LeaseExpired { index },
            Error::InvalidKey { bytes, .. } => Error::InvalidKey { index, bytes },
            Error::OutOfBounds { bound, end, length, .. } => Error::OutOfBounds { index, bound, end, length },
            Error::BufferTooSmall { needed, given, .. } => Error::BufferTooSmall { index, needed, given },
            Error::WrongShard { owner, asked, .. } => Error::WrongShard { index, owner, asked },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_that_travel() -> Vec<Error> {
        vec![
            Error::NotFound { index: 1 },
            Error::AlreadyExists { index: 2 },
            Error::LeaseExpired { index: 3 },
            Error::EpochChanged,
            Error::InvalidKey { index: 4, bytes: 1025 },
            Error::OutOfBounds { index: 5, bound: Bound::Keys, end: 6, length: 7 },
            Error::Overlap { index: 8, other: 9 },
            Error::BufferTooSmall { index: 1, needed: 2, given: 3 },
            Error::ValueTooLarge { bytes: 4, limit: 5 },
            Error::StoreFull { needed: 1, leased: 2, pinned: 3, retry_ms: 4 },
            Error::Overloaded { what: Limit::UnfinishedPuts, limit: 5 },
            Error::Unauthenticated,
            Error::Malformed { reason: Malformation::Order, detail: 9 },
            Error::WrongShard { index: 1, owner: 2, asked: 3 },
            Error::ShuttingDown,
            Error::Overloaded { what: Limit::QueuePairs, limit: 9 },
            Error::PutGivenUp { millis: 30_000 },
            Error::NoRdmaPath { server_gid: std::array::from_fn(|at| at as u8), client_gid: [200; 16] },
            Error::Overloaded { what: Limit::Transfers, limit: 65_535 },
        ]
    }

    #[test]
    fn an_error_survives_its_journey() {
        for error in all_that_travel() {
            assert_eq!(Error::from_wire(error.to_wire()), error);
        }
    }

    /// What helps against too many requests helps nobody against too many connections.
    #[test]
    fn a_limit_names_its_own_way_out() {
        let text = |what| Error::Overloaded { what, limit: 64 }.to_string();
        assert!(text(Limit::Connections).contains("--max-connections"), "{}", text(Limit::Connections));
        assert!(!text(Limit::Connections).contains("wait for answers"));
        assert!(text(Limit::PendingRequests).contains("wait for answers"));
        let client_gid = std::net::Ipv4Addr::new(10, 0, 0, 9).to_ipv6_mapped().octets();
        let text = Error::NoRdmaPath { server_gid: [0xfd; 16], client_gid }.to_string();
        assert!(text.contains("GID fdfd:") && text.contains("GID 10.0.0.9;"), "{text}");
    }

    #[test]
    fn each_side_names_its_own_version_first() {
        let sent = Error::VersionMismatch { ours_min: 2, ours_max: 3, theirs_min: 1, theirs_max: 1 };
        let seen = Error::VersionMismatch { ours_min: 1, ours_max: 1, theirs_min: 2, theirs_max: 3 };
        assert_eq!(Error::from_wire(sent.to_wire()), seen);
    }

    #[test]
    fn codes_differ_and_unknown_ones_are_no_panic() {
        let mut codes: Vec<u16> = all_that_travel().iter().map(Error::code).collect();
        codes.dedup();
        assert_eq!(codes.len(), all_that_travel().len());
        let unknown = WireError { code: 999, numbers: [u64::MAX; 4] };
        assert_eq!(Error::from_wire(unknown), Error::Malformed { reason: Malformation::Field, detail: 999 });
    }
}
