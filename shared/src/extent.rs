//! The header with which an extent in a segment describes itself.
//!
//! ```text
//! extent:  0        48             48+k     value_offset        value_offset+v     size
//!          │ header │ key (k bytes) │ zeros │ value (v bytes)    │ unused           │
//!          └────────┴───────────────┴───────┴────────────────────┴──────────────────┘
//!          ▲ aligned to 64                  ▲ aligned to 64                          ▲ aligned to 64
//! ```
//!
//! So keys cost no heap, an index can be rebuilt by walking a segment, and a doubting reader can check what it read.
//! The header is written last; a walker takes an extent for valid only if [`ExtentHeader::is_valid`] says so.

use crate::key::KeyHash;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// Extents and values start at multiples of this many bytes: one cache line.
pub const EXTENT_ALIGN: u64 = 64;
/// Marks a live extent ("LNRX").
pub const EXTENT_MAGIC: u32 = u32::from_le_bytes(*b"LNRX");
/// The layout described here.
pub const EXTENT_FORMAT: u8 = 1;
/// In [`ExtentHeader::flags`]: `value_crc` holds the CRC32C of the value.
pub const FLAG_VALUE_CRC: u8 = 1;
/// In [`ExtentHeader::flags`]: the object is still there when the server that wrote it has ended.
pub const FLAG_DURABLE: u8 = 2;

/// The first 48 bytes of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExtentHeader {
    /// [`EXTENT_MAGIC`].
    pub magic: le::U32,
    /// CRC32C (RFC 3720, appendix B.4) of the other 40 bytes of the header.
    pub header_crc: le::U32,
    /// [`EXTENT_FORMAT`].
    pub format: u8,
    /// `FLAG_…` bits; the others are zero.
    pub flags: u8,
    /// Length of the key in bytes.
    pub key_bytes: le::U16,
    /// The slot's generation when the extent was made.
    pub generation: le::U32,
    /// [`KeyHash::high64`].
    pub hash_high: le::U64,
    /// [`KeyHash::low64`].
    pub hash_low: le::U64,
    /// Length of the value in bytes.
    pub value_bytes: le::U64,
    /// CRC32C of the value, if [`FLAG_VALUE_CRC`] is set; else zero.
    pub value_crc: le::U32,
    /// The object's epoch word, see [`crate::epoch`].
    pub epoch_slot: le::U16,
    /// Zero.
    pub reserved: le::U16,
}

const _: () = {
    assert!(size_of::<ExtentHeader>() == 48);
    assert!(std::mem::offset_of!(ExtentHeader, header_crc) == 4);
    assert!(std::mem::offset_of!(ExtentHeader, generation) == 12);
    assert!(std::mem::offset_of!(ExtentHeader, hash_high) == 16);
    assert!(std::mem::offset_of!(ExtentHeader, value_bytes) == 32);
    assert!(std::mem::offset_of!(ExtentHeader, epoch_slot) == 44);
};

impl ExtentHeader {
    /// A header for these contents, with its checksum.
    #[must_use]
    pub fn new(
        hash: KeyHash,
        key_bytes: u16,
        value_bytes: u64,
        generation: u32,
        epoch_slot: u16,
    ) -> ExtentHeader {
        let header = ExtentHeader {
            magic: EXTENT_MAGIC.into(),
            header_crc: 0.into(),
            format: EXTENT_FORMAT,
            flags: 0,
            key_bytes: key_bytes.into(),
            generation: generation.into(),
            hash_high: hash.high64.into(),
            hash_low: hash.low64.into(),
            value_bytes: value_bytes.into(),
            value_crc: 0.into(),
            epoch_slot: epoch_slot.into(),
            reserved: 0.into(),
        };
        header.sealed()
    }

    /// The same header with the checksum that its fields call for.
    #[must_use]
    pub fn sealed(mut self) -> ExtentHeader {
        self.header_crc = self.computed_crc().into();
        self
    }

    /// The hash of the key.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        KeyHash { high64: self.hash_high.get(), low64: self.hash_low.get() }
    }

    /// Bytes of key and value together.
    #[must_use]
    pub fn content_bytes(&self) -> u64 {
        u64::from(self.key_bytes.get()) + self.value_bytes.get()
    }

    /// Whether this is a header that was written whole.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.magic.get() == EXTENT_MAGIC
            && self.format == EXTENT_FORMAT
            && self.header_crc.get() == self.computed_crc()
    }

    fn computed_crc(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32c::crc32c_append(crc32c::crc32c(&bytes[..4]), &bytes[8..])
    }
}

/// Where the value starts, in bytes from the start of its extent.
#[inline]
#[must_use]
pub const fn value_offset(key_bytes: u16) -> u64 {
    (size_of::<ExtentHeader>() as u64 + key_bytes as u64).next_multiple_of(EXTENT_ALIGN)
}

/// The size of the extent for a key and a value of these lengths, in bytes; `None` where that can't be counted.
#[inline]
#[must_use]
pub const fn extent_bytes(key_bytes: u16, value_bytes: u64) -> Option<u64> {
    match value_offset(key_bytes).checked_add(value_bytes) {
        Some(end) => end.checked_next_multiple_of(EXTENT_ALIGN),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_valid_only_whole() {
        // Every flipped bit is noticed, in the checksum and in what it covers.
        let header = ExtentHeader::new(KeyHash::of(b"key"), 3, 100, 7, 9);
        assert!(header.is_valid());
        for bit in 0..48 * 8 {
            let mut bytes: [u8; 48] = header.as_bytes().try_into().unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!ExtentHeader::read_from_bytes(&bytes).unwrap().is_valid(), "bit {bit}");
        }
    }

    #[test]
    fn an_all_zero_or_all_one_header_is_not_valid() {
        for fill in [0, 0xff] {
            assert!(!ExtentHeader::read_from_bytes(&[fill; 48]).unwrap().is_valid());
        }
    }

    #[test]
    fn the_sizes_are_those_of_the_map() {
        for (key, value, start, size) in [
            (1, 0, 64, Some(64)),
            (16, 64, 64, Some(128)),
            (17, 1, 128, Some(192)),
            (1024, 1, 1088, Some(1152)),
        ] {
            assert_eq!((value_offset(key), extent_bytes(key, value)), (start, size));
        }
        assert_eq!(extent_bytes(1, u64::MAX - 3), None);
    }
}
