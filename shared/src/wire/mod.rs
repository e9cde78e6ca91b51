//! The frames of the protocol, one file for each message.
//!
//! A frame is a 24-byte [`FrameHeader`], a body of at most [`MAX_BODY_BYTES`] and a payload (value bytes). Everything is
//! little-endian and laid out by `zerocopy` structs whose size and offsets are asserted beside them. A length is checked
//! before anything is allocated for it. The same frames travel over TCP, shared-memory rings and RDMA sends.
//!
//! | message | request body | reply body | reply payload |
//! |---|---|---|---|
//! | [`put`] | [`put::PutBody`], ([`put::ChainBody`]), group, (parent,) key; payload: the value | none | none |
//! | [`put_offered`] | [`put_offered::ValueOffer`], the body of a `put` | none | none |
//! | [`get`] | [`get::GetBody`], keys | a [`Descriptor`] for each key | the values found, in order |
//! | [`get`] as `fetch` | the same | the same | the short values found, in order |
//! | [`join_rdma`] | [`join_rdma::JoinRdma`] | [`join_rdma::RdmaJoined`] | none |
//! | [`query`] | keys | a [`Descriptor`] for each key | none |
//! | [`match_chain`] | groups: [`match_chain::GroupHead`], keys | blocks found of each group, a [`Descriptor`] for each | none |
//! | [`exists`], [`remove`] | keys | a byte for each key | none |
//! | [`read`] | [`read::ReadBody`], ranges, epoch checks | none | the ranges, in order |
//! | [`read_ranges`] | [`read_ranges::ReadRangesBody`], ranges, keys | none | the ranges, in order |
//! | [`list`] | [`list::ListBody`], prefix, cursor | entries, cursor | none |
//! | [`longest_prefix`] | keys | a length for each key | none |
//! | [`stats`] | none | a JSON document | none |
//! | [`touch`] | a [`touch::TouchBody`] for each object | none | none |
//!
//! A reply whose status isn't 0 has an [`error::ErrorBody`] for its body, and no payload.

pub mod body;
pub mod descriptor;
pub mod error;
pub mod exists;
pub mod get;
pub mod header;
pub mod hello;
pub mod join_rdma;
pub mod keys;
pub mod list;
pub mod longest_prefix;
pub mod match_chain;
pub mod put;
pub mod put_offered;
pub mod query;
pub mod read;
pub mod read_ranges;
pub mod remove;
pub mod stats;
pub mod touch;

pub use descriptor::Descriptor;
pub use header::{FrameHeader, Opcode};

/// The oldest version of the protocol that this build speaks.
pub const MIN_VERSION: u8 = 1;
/// The newest version of the protocol that this build speaks.
pub const MAX_VERSION: u8 = 1;
/// The longest body. Larger batches are cut by the client.
pub const MAX_BODY_BYTES: usize = 1 << 20;
/// The most keys or ranges in one frame.
pub const MAX_BATCH: usize = u16::MAX as usize;
/// Ranges shorter than this are copied by the server, longer ones sent from where they lie.
pub const SHORT_RANGE_BYTES: u64 = 1024;
/// Clients begin a new frame when the short ranges of one have as many bytes together: the server copies those of one frame while those of
/// the last are on their way. It takes more, and sends the rest from where it lies, which is slower.
pub const SHORT_BYTES_OF_FRAME: u64 = 256 << 10;

/// What a range counts for [`SHORT_BYTES_OF_FRAME`].
#[inline]
#[must_use]
pub const fn short_bytes(length: u64) -> u64 {
    if length < SHORT_RANGE_BYTES { length } else { 0 }
}

const _: () = assert!(MAX_BODY_BYTES < 1 << 24, "the header has 24 bits for the length of a body");
