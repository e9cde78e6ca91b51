//! The first 8 KiB of a segment: who it belongs to, whether its shard sleeps, and the epoch words.
//!
//! ```text
//! 0        64            128      4096                        8192
//! │identity│ parked word │ zeros  │ 1,024 epoch words (u32)    │ extents …
//! ```
//!
//! Only the shard writes; any client of the tenant reads, over a mapping that can't be written (promise P3), or one-sided.
//!
//! | word | written by the shard | read by clients |
//! |---|---|---|
//! | parked | sequentially consistent, see [`super::park`] | after publishing a request |
//! | epoch | release, after the new version is in the index | acquire, before the data is read |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// Extents start here.
pub const SEGMENT_PAGE_BYTES: u64 = 8192;
/// Where the parked word is.
pub const PARKED_OFFSET: u64 = 64;
/// Where the epoch words start.
pub const EPOCHS_OFFSET: u64 = 4096;
/// "LNRSEGMT"
pub const SEGMENT_MAGIC: [u8; 8] = *b"LNRSEGMT";
/// The layout described here.
pub const SEGMENT_FORMAT: u32 = 1;

/// The first line of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentIdentity {
    /// [`SEGMENT_MAGIC`].
    pub magic: [u8; 8],
    /// [`SEGMENT_FORMAT`].
    pub format: le::U32,
    /// The shard.
    pub shard: le::U16,
    /// Shards of the server.
    pub shards: le::U16,
    /// The server's boot id.
    pub boot_id: [u8; 16],
    /// Length of the segment, this page included.
    pub segment_bytes: le::U64,
    /// Zero.
    pub reserved: [u8; 24],
}

const _: () = {
    assert!(size_of::<SegmentIdentity>() == 64);
    assert!(std::mem::offset_of!(SegmentIdentity, boot_id) == 16);
    assert!(std::mem::offset_of!(SegmentIdentity, segment_bytes) == 32);
    assert!(EPOCHS_OFFSET + 4 * crate::epoch::EPOCH_SLOTS as u64 == SEGMENT_PAGE_BYTES);
};

/// Where an epoch word is, in bytes from the start of the segment.
#[inline]
#[must_use]
pub const fn epoch_offset(epoch_slot: u16) -> u64 {
    EPOCHS_OFFSET + 4 * (epoch_slot as u64 % crate::epoch::EPOCH_SLOTS as u64)
}
