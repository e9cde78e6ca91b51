//! `list`: the keys of a shard that start with a prefix, a page at a time; in their order where the shard keeps a prefix index.
//!
//! A page is bounded in entries and in keys looked at, so that listing a large store never holds a shard up. A page may
//! be empty and not the last. Objects that come or go while a client pages may or may not be seen; one that stays is seen
//! exactly once.
//!
//! A cursor is the server's own affair: bytes that the client sends back as they came. Of no bytes it stands for the beginning, or
//! for the end.

use super::body::{self, BodyReader};
use crate::error::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// What stands before the prefix, behind which the cursor is the rest of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListBody {
    /// Length of the prefix.
    pub prefix_bytes: le::U16,
}

/// What stands behind the entries, which the header counts; the next request's cursor is the rest of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListEntry {
    /// Length of the value in bytes.
    pub value_bytes: le::U64,
    /// Length of the key, which follows.
    pub key_bytes: le::U16,
}

const _: () = {
    assert!(size_of::<ListBody>() == 2);
    assert!(size_of::<ListEntry>() == 10);
};

/// Appends the body of a request. A prefix longer than any key is cut to what no key starts with all the same.
pub fn append(frame: &mut Vec<u8>, prefix: &[u8], cursor: &[u8]) {
    let prefix = &prefix[..prefix.len().min(usize::from(u16::MAX))];
    body::append(frame, &ListBody { prefix_bytes: (prefix.len() as u16).into() });
    frame.extend_from_slice(prefix);
    frame.extend_from_slice(cursor);
}

/// Prefix and cursor in the body of a request.
pub fn decode(body: &[u8]) -> Result<(&[u8], &[u8])> {
    let mut reader = BodyReader::new(body);
    let fixed: ListBody = reader.value()?;
    let prefix = reader.bytes(usize::from(fixed.prefix_bytes.get()))?;
    Ok((prefix, reader.rest()))
}

/// Appends an entry to the body of a reply. The cursor follows behind the last.
pub fn append_entry(frame: &mut Vec<u8>, key: &[u8], value_bytes: u64) {
    let entry = ListEntry { value_bytes: value_bytes.into(), key_bytes: (key.len() as u16).into() };
    body::append(frame, &entry);
    frame.extend_from_slice(key);
}

/// The next cursor in the body of a reply; calls `each(key, value bytes)` for each of its `count` entries.
pub fn decode_reply(body: &[u8], count: usize, mut each: impl FnMut(&[u8], u64)) -> Result<&[u8]> {
    let mut reader = BodyReader::new(body);
    for _ in 0..count {
        let entry: ListEntry = reader.value()?;
        each(reader.bytes(usize::from(entry.key_bytes.get()))?, entry.value_bytes.get());
    }
    Ok(reader.rest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_entries_and_cursor_survive() {
        let mut request = Vec::new();
        append(&mut request, b"pre\xff", b"cursor");
        assert_eq!(request, b"\x04\0pre\xffcursor");
        assert_eq!(decode(&request), Ok((b"pre\xff".as_slice(), b"cursor".as_slice())));
        assert!(decode(b"\x04\0pre").is_err());
        let mut reply = Vec::new();
        append_entry(&mut reply, b"key", 7);
        reply.extend_from_slice(b"next");
        assert_eq!(reply, b"\x07\0\0\0\0\0\0\0\x03\0keynext");
        let mut seen = Vec::new();
        let cursor = decode_reply(&reply, 1, |key, bytes| seen.push((key.to_vec(), bytes)));
        assert_eq!((cursor, seen), (Ok(b"next".as_slice()), vec![(b"key".to_vec(), 7)]));
        assert!(decode_reply(&reply, 2, |_, _| {}).is_err());
    }
}
