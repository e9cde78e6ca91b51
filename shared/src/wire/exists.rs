//! `exists`: whether objects are there. Extends no lease and counts as no access, so polling keeps nothing alive.
//!
//! The request is [`super::keys`], the reply a byte for each key in the order of the request: [`ABSENT`] or [`PRESENT`].

/// No object has the key.
pub const ABSENT: u8 = 0;
/// An object has the key.
pub const PRESENT: u8 = 1;
