//! What the server sends over the Unix socket behind the handshake, together with five file descriptors.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// Number of file descriptors that come with a [`Grant`], in the order of [`GrantedFile`].
pub const GRANTED_FILES: usize = 5;

/// Which file descriptor is which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum GrantedFile {
    /// The segment of the tenant on this shard; can't be mapped for writing.
    Segment = 0,
    /// The lane, see [`super::lane_page`].
    Lane = 1,
    /// Written by the client to wake the shard.
    WakeShard = 2,
    /// Written by the shard to wake the client.
    WakeClient = 3,
    /// The key filter of the tenant on this shard, see [`crate::filter`]; can't be mapped for writing.
    Filter = 4,
}

/// Sizes of what is handed over, so that both sides can see that they agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Grant {
    /// Bytes of the segment.
    pub segment_bytes: le::U64,
    /// Lines of the request ring.
    pub request_lines: le::U32,
    /// Lines of the reply ring.
    pub reply_lines: le::U32,
    /// Bytes of the staging buffer.
    pub staging_bytes: le::U64,
    /// Bytes of a page of the segment: 4096, or that of huge pages.
    pub page_bytes: le::U64,
    /// Bytes of the key filter.
    pub filter_bytes: le::U64,
}

const _: () = assert!(size_of::<Grant>() == 40);
