//! `list`: the keys of a shard that start with a prefix, a page at a time.
//!
//! A page is bounded in entries and in slots looked at, so that listing a large store never holds a shard up. A page may
//! be empty and not the last. Objects that come or go while a client pages may or may not be seen; one that stays is seen
//! exactly once.

use super::body::BodyReader;
use crate::error::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// What stands before the prefix, which is the rest of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListBody {
    /// Where to go on: 0 to begin, then [`ListReply::next_cursor`].
    pub cursor: le::U64,
}

/// What stands before the entries, which the header counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListReply {
    /// The next request's cursor; 0 if this page is the last.
    pub next_cursor: le::U64,
}

/// What stands before each key of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListEntry {
    /// Length of the value in bytes.
    pub value_bytes: le::U64,
    /// Length of the key, which follows.
    pub key_bytes: le::U16,
}

const _: () = {
    assert!(size_of::<ListBody>() == 8);
    assert!(size_of::<ListReply>() == 8);
    assert!(size_of::<ListEntry>() == 10);
};

/// Cursor and prefix in the body of a request.
pub fn decode(body: &[u8]) -> Result<(u64, &[u8])> {
    let mut reader = BodyReader::new(body);
    let fixed: ListBody = reader.value()?;
    Ok((fixed.cursor.get(), &body[size_of::<ListBody>()..]))
}

/// The next cursor in the body of a reply; calls `each(key, value bytes)` for each of its `count` entries.
pub fn decode_reply(body: &[u8], count: usize, mut each: impl FnMut(&[u8], u64)) -> Result<u64> {
    let mut reader = BodyReader::new(body);
    let fixed: ListReply = reader.value()?;
    for _ in 0..count {
        let entry: ListEntry = reader.value()?;
        each(reader.bytes(usize::from(entry.key_bytes.get()))?, entry.value_bytes.get());
    }
    reader.end()?;
    Ok(fixed.next_cursor.get())
}
