//! The filter of a shard: what says "not here" about a key without a look at the index, on any core and in any client.
//!
//! A counting Bloom filter (Fan, Cao, Almeida, Broder, "Summary Cache", 1998) whose counters of a key lie in one cache line (Putze,
//! Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007). It lies in a file of shared memory that the shard
//! writes and its tenant's clients map for reading only.
//!
//! ```text
//! 0          64       4096                  36864
//! │ identity │ zeros  │ 4,096 places (u64)  │ lines of 64 bytes: 128 counters of 4 bits each …
//!
//! place of a part:   bits 0-31 first line · 32-47 number of lines · 48-63 version
//! ```
//!
//! The keys of a shard fall into [`PARTS`] parts by the top 12 bits of their hash, as they do in the shard's index. The lines of a
//! part lie together, and its place says where. So a part is rebuilt alone: somewhere else, from the index, in slices of some
//! microseconds; then its place is replaced. Readers always see whole parts, and growing takes no second filter. A place of
//! no lines, as in fresh memory, says nothing: every key may be there.
//!
//! | word | written by the shard | read |
//! |---|---|---|
//! | place | release, after the lines that it leads to | acquire, before the line; again behind an acquire fence, after the line |
//! | counters | relaxed; of a new copy, behind a release fence after all earlier places | relaxed |
//!
//! The second look at the place is a sequence lock's: a reader that was held up may have looked at lines that hold another part by
//! then. It sees another place, because whoever writes a line anew has moved its old part away before, and doesn't say "not here".
//!
//! What always holds: for a key whose `put` has returned to someone whom the reader heard from, the answer isn't "not here". Its
//! counters were raised before the `put` was answered, and a counter falls only by what it was raised. Absent on purpose: the upper half
//! of the hash, which keys with one placement tag share, and the 20 bits in between, so that a part can be rebuilt from an
//! index that keeps 44 bits of each hash.

mod reader;
mod rebuild;
mod writer;

pub use reader::{Filter, LOOKS_UNDER_WAY, Look};
pub use writer::FilterWriter;

use crate::key::KeyHash;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// Parts of a filter.
pub const PARTS: usize = 1 << PART_BITS;
/// Bits of a hash that choose the part: the top ones of its low half.
pub const PART_BITS: u32 = 12;
/// Where the places start, in bytes from the start of the file.
pub const PLACES_OFFSET: u64 = 4096;
/// Where the lines start.
pub const LINES_OFFSET: u64 = PLACES_OFFSET + 8 * PARTS as u64;
/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;
/// Words of a line. Two where loom explores interleavings, of which eight would make too many.
pub const LINE_WORDS: usize = if cfg!(loom) { 2 } else { 8 };
/// Counters of a line.
pub const LINE_COUNTERS: u32 = 16 * LINE_WORDS as u32;
/// Counters of a key. Five are right for 8 to 10 keys a line: with three or eight more keys are taken for others.
pub const COUNTERS_OF_KEY: u32 = if cfg!(loom) { 2 } else { 5 };
/// The most lines of a part.
pub const MAX_PART_LINES: u32 = u16::MAX as u32;
/// "LNRFILTR"
pub const FILTER_MAGIC: [u8; 8] = *b"LNRFILTR";
/// The layout described here.
pub const FILTER_FORMAT: u32 = 1;

/// The first line of a filter's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FilterIdentity {
    /// [`FILTER_MAGIC`].
    pub magic: [u8; 8],
    /// [`FILTER_FORMAT`].
    pub format: le::U32,
    /// The shard.
    pub shard: le::U16,
    /// Shards of the server.
    pub shards: le::U16,
    /// The server's boot id.
    pub boot_id: [u8; 16],
    /// Length of the file, this line included. Pages that no part has come to yet take no memory.
    pub file_bytes: le::U64,
    /// Zero.
    pub reserved: [u8; 24],
}

const _: () = {
    assert!(size_of::<FilterIdentity>() == 64);
    assert!(std::mem::offset_of!(FilterIdentity, boot_id) == 16);
    assert!(std::mem::offset_of!(FilterIdentity, file_bytes) == 32);
    assert!(LINES_OFFSET.is_multiple_of(4096));
    assert!(cfg!(loom) || LINE_WORDS as u64 * 8 == LINE_BYTES);
    // The counters are chosen by the low 35 bits of 64, the line by the top 32; the three bits in both do no harm.
    assert!(COUNTERS_OF_KEY * LINE_COUNTERS.ilog2() + 32 < 64 + 4);
};

/// What the filter knows a key by: 44 bits of its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The part, below [`PARTS`].
    pub part: u16,
    /// The low 32 bits of the hash's low half.
    pub fingerprint: u32,
}

impl Mark {
    /// The mark of a key with this hash.
    #[inline]
    #[must_use]
    pub fn of(hash: KeyHash) -> Mark {
        Mark { part: (hash.low64 >> (64 - PART_BITS)) as u16, fingerprint: hash.low64 as u32 }
    }

    /// 64 bits of which each depends on all of the fingerprint: two rounds of the finaliser of MurmurHash3 (Appleby).
    #[inline]
    fn spread(self) -> u64 {
        let mut bits = u64::from(self.fingerprint).wrapping_mul(0xff51_afd7_ed55_8ccd);
        bits ^= bits >> 32;
        bits = bits.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        bits ^ bits >> 29
    }
}

/// Where the lines of a part are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The first line.
    pub first_line: u32,
    /// How many lines; 0 if the part says nothing.
    pub lines: u16,
    /// Another one each time that the part is rebuilt.
    pub version: u16,
}

impl Place {
    #[inline]
    fn from_word(word: u64) -> Place {
        Place { first_line: word as u32, lines: (word >> 32) as u16, version: (word >> 48) as u16 }
    }

    #[inline]
    fn word(self) -> u64 {
        u64::from(self.version) << 48 | u64::from(self.lines) << 32 | u64::from(self.first_line)
    }
}

/// The line of a key and its counters there.
#[derive(Clone, Copy, Debug)]
struct Counters {
    line: usize,
    bits: u64,
}

impl Counters {
    /// `None` for a place without lines.
    #[inline]
    fn of(mark: Mark, place: Place) -> Option<Counters> {
        let bits = mark.spread();
        // Multiply-shift range reduction, as for the choice of a shard.
        let line = ((bits >> 32) * u64::from(place.lines)) >> 32;
        (place.lines > 0).then_some(Counters { line: place.first_line as usize + line as usize, bits })
    }

    /// Word and shift of each counter. A counter can come twice.
    #[inline]
    fn each(self) -> impl Iterator<Item = (usize, u32)> {
        (0..COUNTERS_OF_KEY).map(move |number| {
            let counter = (self.bits >> (number * LINE_COUNTERS.ilog2())) as u32 % LINE_COUNTERS;
            ((counter / 16) as usize, counter % 16 * 4)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Golden values: server and clients compute line and counters on their own.
    #[test]
    fn line_and_counters_are_part_of_the_protocol() {
        let mark = Mark::of(KeyHash { high64: 7, low64: 0xabc1_2345_6789_abcd });
        assert_eq!(mark, Mark { part: 0xabc, fingerprint: 0x6789_abcd });
        let counters = Counters::of(mark, Place { first_line: 1000, lines: 300, version: 9 }).unwrap();
        assert_eq!(counters.line, 1144);
        assert_eq!(counters.each().collect::<Vec<_>>(), [(6, 40), (0, 16), (0, 52), (3, 20), (3, 56)]);
    }

    #[test]
    fn a_place_is_one_word() {
        let place = Place { first_line: 0x0403_0201, lines: 0x0605, version: 0x0807 };
        assert_eq!(place.word(), 0x0807_0605_0403_0201);
        assert_eq!(Place::from_word(place.word()), place);
        assert!(Counters::of(Mark { part: 0, fingerprint: 1 }, Place::from_word(0)).is_none());
    }
}
