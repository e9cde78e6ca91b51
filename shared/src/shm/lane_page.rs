//! The memory that one client thread shares with one shard: control words, two rings, touches, a staging buffer.
//!
//! ```text
//! 0             4096                4096+64R           4096+64(R+A)   …+16T                      …+S
//! │ LanePage    │ R request lines   │ A reply lines     │ T touches    │ staging buffer (S bytes) │
//! ```
//!
//! The server makes it (a memfd that can neither shrink nor grow, so that neither side can take the ground from under
//! the other) and hands it over with the connection. Payloads of more than [`INLINE_PAYLOAD_BYTES`] pass through the staging buffer,
//! a ring of bytes of its own; shorter ones follow their frame in the request lines.
//!
//! | word | written by | read by | ordering |
//! |---|---|---|---|
//! | `requests_consumed` | server | client, when its ring seems full | release / acquire |
//! | `replies_consumed` | client | server, when its ring seems full | release / acquire |
//! | `client_parked` | client | server, after publishing replies | see [`super::park`] |
//! | `staging_written` | client, after copying in | server | release / acquire |
//! | `staging_consumed` | server, after copying out | client | release / acquire |
//! | `touches_written`, `touches_taken` | client, server | server, client | see [`super::touch_ring`] |

use super::line_ring::Line;
use super::touch_ring::Place;
use crate::sync::{AtomicU32, AtomicU64};

/// Lines of a request ring (64 KiB).
pub const REQUEST_LINES: usize = 1024;
/// Lines of a reply ring (64 KiB).
pub const REPLY_LINES: usize = 1024;
/// Touches that a lane holds until the shard takes them (16 KiB).
pub const TOUCHES: usize = 1024;
/// Bytes of a staging buffer. It fits the second-level cache of most cores together with what else is at work.
pub const STAGING_BYTES: usize = 256 << 10;
/// A longer payload passes through the staging buffer.
pub const INLINE_PAYLOAD_BYTES: u64 = 1024;
/// Where the request lines start.
pub const REQUESTS_OFFSET: usize = 4096;
/// Where the reply lines start.
pub const REPLIES_OFFSET: usize = REQUESTS_OFFSET + REQUEST_LINES * size_of::<Line>();
/// Where the touches start.
pub const TOUCHES_OFFSET: usize = REPLIES_OFFSET + REPLY_LINES * size_of::<Line>();
/// Where the staging buffer starts.
pub const STAGING_OFFSET: usize = TOUCHES_OFFSET + TOUCHES * size_of::<Place>();
/// Bytes of a whole lane.
pub const LANE_BYTES: usize = STAGING_OFFSET + STAGING_BYTES;

/// The words of a lane, each on a cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LanePage {
    /// Request lines that the server has taken, since the beginning.
    pub requests_consumed: Word,
    /// Reply lines that the client has taken, since the beginning.
    pub replies_consumed: Word,
    /// Bytes that the client has put into the staging buffer, since the beginning.
    pub staging_written: Word,
    /// Bytes that the server has taken out of the staging buffer, since the beginning.
    pub staging_consumed: Word,
    /// Whether the client sleeps and wants its eventfd written.
    pub client_parked: ParkedWord,
    /// Touches that the client has written, since the beginning.
    pub touches_written: Word,
    /// Touches that the server has taken, since the beginning.
    pub touches_taken: Word,
}

/// A counter alone on its cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Word(pub AtomicU64);

/// A parked flag alone on its cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ParkedWord(pub AtomicU32);

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<LanePage>() == 7 * 64);
    assert!(std::mem::offset_of!(LanePage, staging_written) == 128);
    assert!(std::mem::offset_of!(LanePage, client_parked) == 256);
    assert!(size_of::<LanePage>() <= REQUESTS_OFFSET);
    assert!(REQUEST_LINES.is_power_of_two() && REPLY_LINES.is_power_of_two());
    assert!(STAGING_BYTES.is_power_of_two() && TOUCHES.is_power_of_two());
    assert!(std::mem::offset_of!(LanePage, touches_written) == 320);
    assert!(LANE_BYTES.is_multiple_of(4096));
};
