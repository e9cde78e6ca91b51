//! `remove`: hides objects at once; their memory is reused when the last lease on them has ended.
//!
//! The request is [`super::keys`], the reply a byte for each key in the order of the request: [`MISSING`] or [`REMOVED`].
//! A removal never fails for a lease. A key that stands twice is removed once and missing the second time.

/// There was nothing to remove.
pub const MISSING: u8 = 0;
/// The object was there and no longer is.
pub const REMOVED: u8 = 1;
