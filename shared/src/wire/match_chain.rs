//! `match_chain`: how many leading blocks of each group of a chain are there; grants a lease on each of those.
//!
//! The header counts the groups. Each is a [`GroupHead`] and the keys of its blocks ([`super::keys`], without the group's prefix).
//! The reply has, for each group, the number of its leading blocks that are there in two bytes, and then all their
//! descriptors, in the order of the request. A block behind a gap isn't looked up.

use super::Descriptor;
use super::body::{self, BodyReader};
use super::keys;
use crate::chain::{GROUP_BLOCKS, GroupPrefix, MAX_BLOCK_KEY_BYTES, PREFIX_BYTES};
use crate::error::{Error, Malformation, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// What stands before the keys of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GroupHead {
    /// [`GroupPrefix::as_bytes`].
    pub prefix: [u8; PREFIX_BYTES],
    /// Number of keys: 1 to [`GROUP_BLOCKS`].
    pub blocks: le::U16,
}

const _: () = assert!(size_of::<GroupHead>() == 36);

/// Bytes that a group takes in a request.
#[must_use]
pub fn encoded_bytes<K: AsRef<[u8]>>(keys: &[K]) -> usize {
    size_of::<GroupHead>() + keys.iter().map(|key| keys::encoded_bytes(key.as_ref())).sum::<usize>()
}

/// Bytes that a group takes in a reply, at most.
#[must_use]
pub fn reply_bytes(blocks: usize) -> usize {
    size_of::<le::U16>() + blocks * size_of::<Descriptor>()
}

/// Appends a group of 1 to [`GROUP_BLOCKS`] keys, each of which has at most [`MAX_BLOCK_KEY_BYTES`] (checked by the caller).
pub fn append_group<K: AsRef<[u8]>>(frame: &mut Vec<u8>, prefix: &GroupPrefix, keys: &[K]) {
    debug_assert!((1..=GROUP_BLOCKS).contains(&keys.len()));
    body::append(frame, &GroupHead { prefix: *prefix.as_bytes(), blocks: (keys.len() as u16).into() });
    keys.iter().for_each(|key| keys::append(frame, key.as_ref()));
}

impl GroupHead {
    /// The group, and the number of its blocks.
    pub fn checked(&self) -> Result<(GroupPrefix, usize)> {
        let blocks = usize::from(self.blocks.get());
        let field = |detail| Error::Malformed { reason: Malformation::Field, detail };
        let prefix = GroupPrefix::from_bytes(self.prefix).ok_or_else(|| field(u64::from(self.prefix[0])))?;
        if !(1..=GROUP_BLOCKS).contains(&blocks) {
            return Err(field(blocks as u64));
        }
        Ok((prefix, blocks))
    }
}

/// The head of the next group, unchecked; its keys follow.
#[inline]
pub fn next_head(reader: &mut BodyReader<'_>) -> Result<GroupHead> {
    reader.value()
}

/// The next key of a group; `index` is its place in the frame.
#[inline]
pub fn next_key<'a>(reader: &mut BodyReader<'a>, index: usize) -> Result<&'a [u8]> {
    let key = keys::next(reader, index)?;
    if key.len() > MAX_BLOCK_KEY_BYTES {
        return Err(Error::InvalidKey { index: index as u64, bytes: key.len() as u64 });
    }
    Ok(key)
}

/// For each of `groups` groups the number of blocks found, and the descriptors of all of them.
pub fn decode_reply(body: &[u8], groups: usize) -> Result<(&[le::U16], &[Descriptor])> {
    let mut reader = BodyReader::new(body);
    let found = reader.values::<le::U16>(groups)?;
    let descriptors =
        reader.values::<Descriptor>(found.iter().map(|found| usize::from(found.get())).sum())?;
    reader.end()?;
    Ok((found, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let mut frame = Vec::new();
        append_group(&mut frame, &GroupPrefix::of(b"a"), &[b"a".as_slice(), b"\xff\x80"]);
        assert_eq!(frame, b"{a96faf705af16834e6c632b61e964e1f}\x02\x00\x01\x00a\x02\x00\xff\x80");
        assert_eq!(frame.len(), encoded_bytes(&[b"a".as_slice(), b"\xff\x80"]));
        let mut reader = BodyReader::new(&frame);
        assert_eq!(next_head(&mut reader).unwrap().checked().unwrap(), (GroupPrefix::of(b"a"), 2));
        assert_eq!(next_key(&mut reader, 0).unwrap(), b"a");
        assert_eq!(next_key(&mut reader, 1).unwrap(), b"\xff\x80");
        reader.end().unwrap();
    }

    #[test]
    fn groups_of_no_or_too_many_blocks_and_long_keys_are_refused() {
        for blocks in [0_u16, 33, u16::MAX] {
            let head = GroupHead { prefix: *GroupPrefix::of(b"a").as_bytes(), blocks: blocks.into() };
            assert!(head.checked().is_err(), "{blocks}");
        }
        let mut frame = Vec::new();
        keys::append(&mut frame, &[1; MAX_BLOCK_KEY_BYTES + 1]);
        assert_eq!(
            next_key(&mut BodyReader::new(&frame), 5),
            Err(Error::InvalidKey { index: 5, bytes: 991 })
        );
    }

    proptest! {
        #[test]
        fn any_reply_decodes_to_what_it_counts_or_is_refused(bytes: Vec<u8>, groups in 0_usize..5) {
            if let Ok((found, descriptors)) = decode_reply(&bytes, groups) {
                prop_assert_eq!(found.len(), groups);
                prop_assert_eq!(bytes.len(), groups * 2 + descriptors.len() * 32);
            }
        }
    }
}
