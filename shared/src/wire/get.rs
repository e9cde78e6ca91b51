//! `get`: the values of a batch of keys, in one round trip.
//!
//! Used over TCP; where a client reads the segment itself it sends a [`super::query`] instead. The reply has a
//! [`super::Descriptor`] for each key in the order of the request, and the found values as the payload, in that order
//! and without gaps. Objects found get a lease, as with a query.
//!
//! `fetch` is the same over RDMA, but for values longer than [`GetBody::max_value_bytes`]: their descriptors are those of a query, they are
//! not part of the payload, and the client reads them one-sided.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// What stands before the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetBody {
    /// A longer value is not sent: its descriptor says `BufferTooSmall` and how long it is (of a `fetch`, where it lies).
    pub max_value_bytes: le::U64,
}

const _: () = assert!(size_of::<GetBody>() == 8);
