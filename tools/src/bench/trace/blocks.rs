//! The blocks of a replayed trace: keys of 16 bytes, and contents of which every byte follows from the block's number, so that any copy can
//! be checked.

/// Odd, with bits all over: spreads what is multiplied by it.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What all blocks of a replay have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Bytes of a block.
    pub bytes: usize,
    /// Other seeds have other keys and other contents.
    pub seed: u64,
}

impl Blocks {
    /// The key of a block in its chain. Blocks of another length or seed have others, so that what one replay leaves behind is no fault
    /// of the next.
    #[must_use]
    pub fn key(&self, number: u64) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.to_be_bytes());
        key[8..].copy_from_slice(&mixed(self.seed ^ mixed(self.bytes as u64)).to_be_bytes());
        key
    }

    /// Writes a block's contents, of whose length `contents` is.
    pub fn fill(&self, number: u64, contents: &mut [u8]) {
        let state = self.state(number);
        let mut words = contents.chunks_exact_mut(8);
        let mut place = 0;
        for part in &mut words {
            part.copy_from_slice(&word(state, place));
            place += 1;
        }
        let rest = words.into_remainder();
        rest.copy_from_slice(&word(state, place)[..rest.len()]);
    }

    /// The first byte of `contents` that isn't the block's; `None` if all are right.
    #[must_use]
    pub fn first_wrong(&self, number: u64, contents: &[u8]) -> Option<usize> {
        let state = self.state(number);
        let differs = |(place, part): &(u64, &[u8])| **part != word(state, *place)[..part.len()];
        let (place, part) = (0..).zip(contents.chunks(8)).find(differs)?;
        let within = part.iter().zip(word(state, place)).position(|(found, wanted)| *found != wanted)?;
        Some(place as usize * 8 + within)
    }

    fn state(&self, number: u64) -> u64 {
        mixed(number ^ mixed(self.seed))
    }
}

/// Eight bytes of a block: cheap, and different at each place and in each block.
#[inline]
fn word(state: u64, place: u64) -> [u8; 8] {
    let spread = (state ^ place).wrapping_mul(SPREAD);
    (spread ^ spread >> 32).to_le_bytes()
}

/// All bits depend on all bits: the finisher of splitmix64 (Steele, Lea, Flood 2014).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(SPREAD);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a wrong byte is noticed wherever it is, and that blocks, seeds and lengths are told apart, in keys and in contents.
    #[test]
    fn a_wrong_byte_is_noticed() {
        for bytes in [1, 8, 13, 4096] {
            let blocks = Blocks { bytes, seed: 7 };
            let mut contents = vec![0; bytes];
            blocks.fill(3, &mut contents);
            assert_eq!(blocks.first_wrong(3, &contents), None);
            for place in [0, bytes / 2, bytes - 1] {
                contents[place] ^= 0x10;
                assert_eq!(blocks.first_wrong(3, &contents), Some(place), "of {bytes}");
                contents[place] ^= 0x10;
            }
            assert!(blocks.first_wrong(4, &contents).is_some());
            assert!(Blocks { seed: 8, ..blocks }.first_wrong(3, &contents).is_some());
            let others = [Blocks { seed: 8, ..blocks }, Blocks { bytes: bytes + 1, ..blocks }];
            assert!(
                others.iter().all(|other| other.key(3) != blocks.key(3)) && blocks.key(3) != blocks.key(4)
            );
        }
    }
}
