//! `put` and `upsert`: a key and its value, which follows as the payload. A block of a chain says which block it hangs on.

use super::body::BodyReader;
use super::keys;
use crate::error::{Error, Malformation, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// The longest name of an epoch group, in bytes.
pub const MAX_GROUP_BYTES: usize = 255;

/// What stands before the group's name and the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PutBody {
    /// 0 [`PutMode::Put`], 1 [`PutMode::Upsert`].
    pub mode: u8,
    /// 0 none, 1 soft, 2 hard.
    pub pin: u8,
    /// Length of the epoch group's name; 0 for none.
    pub group_bytes: u8,
    /// [`FLAG_CHAIN`] or 0.
    pub flags: u8,
    /// Seconds until the object ends, or the hard pin on it; 0 for never.
    pub ttl_seconds: le::U32,
}

/// In [`PutBody::flags`]: the object is a block of a chain; a [`ChainBody`] follows, and the parent's key stands before the key.
pub const FLAG_CHAIN: u8 = 1;

/// Where in its chain a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChainBody {
    /// How many blocks of the chain stand before it.
    pub depth: le::U32,
    /// Length of the key of the block before it in its group; 0 for a group's first.
    pub parent_bytes: le::U16,
    /// Zero.
    pub reserved: le::U16,
}

const _: () = assert!(size_of::<PutBody>() == 8);
const _: () = assert!(size_of::<ChainBody>() == 8);

/// Where in its chain a block stands, as both sides see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainLink<'a> {
    /// How many blocks of the chain stand before it.
    pub depth: u32,
    /// The key of the block before it in its group, as it's stored; empty for a group's first.
    pub parent: &'a [u8],
}

/// What to do where the key is present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PutMode {
    /// Fail with `AlreadyExists`.
    #[default]
    Put = 0,
    /// Hide the old version and take its place.
    Upsert = 1,
}

/// How an object withstands eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Pin {
    /// As the policy decides.
    #[default]
    None = 0,
    /// Evicted only when nothing unpinned is left.
    Soft = 1,
    /// Not evicted until its time to live ends. A hard pin must have one: every pin has an end.
    Hard = 2,
}

/// A `put` as both sides see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutRequest<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What to do where the key is present.
    pub mode: PutMode,
    /// How the object withstands eviction.
    pub pin: Pin,
    /// Seconds until the object ends; 0 for never.
    pub ttl_seconds: u32,
    /// The object's epoch group; empty for that of its placement tag.
    pub group: &'a [u8],
    /// Its place in a chain, if it's a block of one.
    pub chain: Option<ChainLink<'a>>,
}

/// Appends the body of a `put`. The group's name has at most [`MAX_GROUP_BYTES`] (checked by the caller).
pub fn append(frame: &mut Vec<u8>, put: &PutRequest<'_>) {
    debug_assert!(put.group.len() <= MAX_GROUP_BYTES);
    let body = PutBody {
        mode: put.mode as u8,
        pin: put.pin as u8,
        group_bytes: put.group.len() as u8,
        flags: if put.chain.is_some() { FLAG_CHAIN } else { 0 },
        ttl_seconds: put.ttl_seconds.into(),
    };
    super::body::append(frame, &body);
    if let Some(ChainLink { depth, parent }) = put.chain {
        let parent_bytes = (parent.len() as u16).into();
        super::body::append(frame, &ChainBody { depth: depth.into(), parent_bytes, reserved: 0.into() });
    }
    frame.extend_from_slice(put.group);
    frame.extend_from_slice(put.chain.map_or(&[], |chain| chain.parent));
    keys::append(frame, put.key);
}

/// The `put` in `body`.
pub fn decode(body: &[u8]) -> Result<PutRequest<'_>> {
    let mut reader = BodyReader::new(body);
    let fixed: PutBody = reader.value()?;
    let field = |value: u8| Error::Malformed { reason: Malformation::Field, detail: u64::from(value) };
    let mode = match fixed.mode {
        0 => PutMode::Put,
        1 => PutMode::Upsert,
        other => return Err(field(other)),
    };
    let pin = match fixed.pin {
        0 => Pin::None,
        1 => Pin::Soft,
        2 => Pin::Hard,
        other => return Err(field(other)),
    };
    let chain: Option<ChainBody> = match fixed.flags {
        0 => None,
        FLAG_CHAIN => Some(reader.value()?),
        other => return Err(field(other)),
    };
    let group = reader.bytes(usize::from(fixed.group_bytes))?;
    let chain = match chain {
        Some(chain) if chain.reserved.get() != 0 => return Err(field(chain.reserved.get() as u8)),
        Some(chain) => {
            let parent = reader.bytes(usize::from(chain.parent_bytes.get()))?;
            Some(ChainLink { depth: chain.depth.get(), parent })
        }
        None => None,
    };
    let key = keys::next(&mut reader, 0)?;
    reader.end()?;
    let ttl_seconds = fixed.ttl_seconds.get();
    if pin == Pin::Hard && ttl_seconds == 0 {
        return Err(Error::Malformed { reason: Malformation::Field, detail: u64::from(fixed.pin) });
    }
    Ok(PutRequest { key, mode, pin, ttl_seconds, group, chain })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PUT: PutRequest<'_> = PutRequest {
        key: b"key",
        mode: PutMode::Upsert,
        pin: Pin::Hard,
        ttl_seconds: 0x0102,
        group: b"gr",
        chain: None,
    };
    const BLOCK: PutRequest<'_> =
        PutRequest { chain: Some(ChainLink { depth: 0x0304, parent: b"parent" }), ..PUT };

    #[test]
    fn golden_bytes() {
        let mut frame = Vec::new();
        append(&mut frame, &PUT);
        assert_eq!(frame, b"\x01\x02\x02\x00\x02\x01\x00\x00gr\x03\x00key");
        assert_eq!(decode(&frame), Ok(PUT));
        frame.clear();
        append(&mut frame, &BLOCK);
        let golden = b"\x01\x02\x02\x01\x02\x01\x00\x00\x04\x03\x00\x00\x06\x00\x00\x00grparent\x03\x00key";
        assert_eq!(frame, golden);
        assert_eq!(decode(&frame), Ok(BLOCK));
    }

    #[test]
    fn every_truncation_and_every_bad_field_is_refused() {
        let mut frame = Vec::new();
        append(&mut frame, &BLOCK);
        (0..frame.len()).for_each(|length| assert!(decode(&frame[..length]).is_err(), "{length}"));
        frame.clear();
        append(&mut frame, &PUT);
        (0..frame.len()).for_each(|length| assert!(decode(&frame[..length]).is_err(), "{length}"));
        for (at, value) in [(0, 2), (1, 3), (3, 2)] {
            let mut bad = frame.clone();
            bad[at] = value;
            assert!(decode(&bad).is_err(), "byte {at}");
        }
        let mut endless_pin = Vec::new();
        append(&mut endless_pin, &PutRequest { ttl_seconds: 0, ..PUT });
        assert!(decode(&endless_pin).is_err(), "a hard pin without an end");
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes: Vec<u8>) {
            if let Ok(put) = decode(&bytes) {
                let mut again = Vec::new();
                append(&mut again, &put);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
