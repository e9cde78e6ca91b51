//! The objects that `bench latency` stores and reads: keys of its own, and values whose every byte follows from key and seed, so that
//! any copy can be checked.

use lanner_client::{Client, PutOptions};

use crate::bench::progress::Progress;
use crate::exit::Failure;

/// Objects stored in one call; a call's frames are queued one after the other.
const BATCH: usize = 64;

/// What all objects of a run have in common.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    /// Part of each key, so that two runs at a time don't meet.
    pub run: u64,
    /// Bytes of a value.
    pub bytes: usize,
    /// Seed of the contents.
    pub seed: u64,
}

impl Values {
    /// The key of an object.
    #[must_use]
    pub fn key(&self, number: u64) -> Vec<u8> {
        format!("bench:{:016x}:{number:08x}", self.run).into_bytes()
    }

    /// The value of an object.
    #[must_use]
    pub fn value(&self, number: u64) -> Vec<u8> {
        let mut value = vec![0; self.bytes];
        for (index, part) in value.chunks_mut(8).enumerate() {
            part.copy_from_slice(&self.word(number, index)[..part.len()]);
        }
        value
    }

    /// Whether `value` is that of an object, byte for byte.
    #[must_use]
    pub fn is_value(&self, number: u64, value: &[u8]) -> bool {
        let is_right = |(index, part): (usize, &[u8])| *part == self.word(number, index)[..part.len()];
        value.len() == self.bytes && value.chunks(8).enumerate().all(is_right)
    }

    /// Whether the beginning of `value` is that of an object: cheap enough for every round.
    #[must_use]
    pub fn is_stamped(&self, number: u64, value: &[u8]) -> bool {
        let stamp = value.len().min(8);
        value[..stamp] == self.word(number, 0)[..stamp]
    }

    fn word(&self, number: u64, index: usize) -> [u8; 8] {
        let place = (number << 32 | index as u64) ^ self.seed.rotate_left(17);
        (place ^ place >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
    }
}

/// Stored objects, numbered from 0; removed when dropped.
#[derive(Debug)]
pub struct Stored {
    client: Client,
    /// What they are.
    pub values: Values,
    /// The key of each.
    pub keys: Vec<Vec<u8>>,
}

impl Stored {
    /// Stores `count` objects.
    ///
    /// # Errors
    /// What the store says.
    pub fn new(client: &Client, values: Values, count: u64) -> Result<Stored, Failure> {
        let mut stored = Stored { client: client.clone(), values, keys: Vec::new() };
        let progress = Progress::new(format!("storing {count} values of {} bytes", values.bytes), count);
        let numbers: Vec<u64> = (0..count).collect();
        // No call is to hold gigabytes.
        let batch = BATCH.min((256 << 20) / values.bytes.max(1)).max(1);
        for numbers in numbers.chunks(batch) {
            let items: Vec<(Vec<u8>, Vec<u8>)> =
                numbers.iter().map(|number| (values.key(*number), values.value(*number))).collect();
            stored.keys.extend(items.iter().map(|(key, _)| key.clone()));
            let outcomes = client.put_batch(&items, PutOptions::default())?;
            outcomes.into_iter().collect::<Result<Vec<()>, _>>()?;
            progress.set(stored.keys.len() as u64);
        }
        Ok(stored)
    }

    /// Reads every object and compares every byte. Returns how many bytes there were.
    ///
    /// # Errors
    /// A missing object or a wrong byte, with its key.
    pub fn verify(&self) -> Result<u64, Failure> {
        let mut verified = 0;
        let progress = Progress::new("comparing every byte", self.keys.len() as u64);
        for (number, key) in self.keys.iter().enumerate() {
            let value = self.client.get(key)?;
            if !self.values.is_value(number as u64, &value) {
                return Err(wrong_bytes(key));
            }
            verified += value.len() as u64;
            progress.set(number as u64 + 1);
        }
        Ok(verified)
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        // A store that has gone has nothing left to remove.
        for keys in self.keys.chunks(1024) {
            let _ = self.client.remove_batch(keys);
        }
    }
}

/// The failure that a benchmark must not survive.
#[must_use]
pub fn wrong_bytes(key: &[u8]) -> Failure {
    Failure::Machine(format!("WRONG BYTES under key {}: not what was stored there", key.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a value is told from every other, that one wrong byte is noticed wherever it is, and that a cut value is wrong.
    #[test]
    fn a_wrong_byte_is_noticed() {
        for bytes in [1, 8, 264, 4097] {
            let values = Values { run: 1, bytes, seed: 7 };
            let mut value = values.value(3);
            assert!(values.is_value(3, &value) && values.is_stamped(3, &value));
            assert!(!values.is_value(4, &value) && !values.is_value(3, &value[1..]));
            for place in [0, bytes / 2, bytes - 1] {
                value[place] ^= 0x10;
                assert!(!values.is_value(3, &value), "byte {place} of {bytes}");
                value[place] ^= 0x10;
            }
        }
        let empty = Values { run: 1, bytes: 0, seed: 7 };
        assert!(empty.is_value(3, b"") && empty.is_stamped(3, b"") && !empty.is_value(3, b"x"));
    }
}
