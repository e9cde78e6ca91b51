//! The radix index against `BTreeMap`, with the keys that tries get wrong: prefixes of each other, one byte apart, long common
//! starts, the longest there are, bytes above 0x7f.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// An index with the keys of its slots, and the map that it has to agree with.
#[derive(Default)]
struct Pair {
    radix: Radix,
    keys: Vec<Vec<u8>>,
    map: BTreeMap<Vec<u8>, SlotId>,
}

impl Pair {
    fn insert(&mut self, key: &[u8]) {
        let slot = SlotId(self.keys.len() as u32);
        self.keys.push(key.to_vec());
        let keys = &self.keys;
        let before = self.radix.insert(key, slot, |slot| Some(keys[slot.0 as usize].as_slice()));
        assert_eq!(before, self.map.insert(key.to_vec(), slot), "{key:x?}");
    }

    fn remove(&mut self, key: &[u8]) {
        match self.map.remove(key) {
            Some(slot) => {
                assert!(!self.radix.remove(key, SlotId(u32::MAX - 1)), "another slot is left alone");
                assert!(self.radix.remove(key, slot), "{key:x?}");
            }
            None => assert!(!self.radix.remove(key, SlotId(u32::MAX - 1)), "{key:x?}"),
        }
    }

    fn key_of(&self, slot: SlotId) -> Option<&[u8]> {
        self.keys.get(slot.0 as usize).map(Vec::as_slice)
    }

    fn from(&self, from: &[u8]) -> Vec<SlotId> {
        self.radix.from(from, |slot| self.key_of(slot)).collect()
    }

    fn longest_prefix(&self, key: &[u8]) -> Option<&[u8]> {
        self.key_of(self.radix.longest_prefix(key, |slot| self.key_of(slot))?)
    }

    /// Compares everything that can be asked about `key`, and the whole order.
    fn check(&self, key: &[u8]) {
        let wanted = (0..=key.len()).rev().map(|bytes| &key[..bytes]).find(|key| self.map.contains_key(*key));
        assert_eq!(self.longest_prefix(key), wanted, "{key:x?}");
        let wanted: Vec<SlotId> = self.map.range(key.to_vec()..).map(|(_, slot)| *slot).collect();
        assert_eq!(self.from(key), wanted, "from {key:x?}");
    }

    fn check_shape(&self) {
        assert_eq!(self.radix.len(), self.map.len() as u64);
        let mut bundles = 0;
        if let Some(root) = self.radix.root {
            self.check_below(root, None, &mut bundles);
        }
        assert_eq!(self.radix.arena.bundles(), bundles, "no bundle is lost");
    }

    fn check_below(&self, twig: Twig, above: Option<u32>, bundles: &mut usize) {
        if twig.slot().is_some() {
            return;
        }
        let twigs = self.radix.twigs(twig);
        assert!(twigs.len() >= 2 && twigs.len() == twig.symbols().count_ones() as usize);
        assert!(above.is_none_or(|above| above < twig.position()));
        assert!(!twig.has(END) || twigs[0].slot().is_some());
        *bundles += 1;
        twigs.iter().for_each(|below| self.check_below(*below, Some(twig.position()), bundles));
    }
}

/// Keys that meet each other: of few different bytes, and behind common starts of up to a thousand bytes.
fn keys() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop::sample::select(vec![0x00, 0x01, 0x0f, 0x10, 0x7f, 0x80, 0x8f, 0xf0, 0xfe, 0xff]);
    let tail = prop::collection::vec(byte, 0..6);
    (prop::sample::select(vec![0_usize, 0, 0, 1, 2, 300, 1018]), tail).prop_map(|(start, tail)| {
        let mut key = vec![0xab; start];
        key.extend(tail);
        key
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Shows that the index agrees with the map after each of many insertions, replacements and removals, and in all that can be
    /// asked about keys that are there and that aren't.
    #[test]
    fn agrees_with_a_map(
        steps in prop::collection::vec((keys(), 0_u8..3), 1..120),
        asked in prop::collection::vec(keys(), 1..20),
    ) {
        let mut pair = Pair::default();
        for (key, step) in &steps {
            if *step == 0 { pair.remove(key) } else { pair.insert(key) }
            pair.check(key);
        }
        pair.check_shape();
        asked.iter().for_each(|key| pair.check(key));
        for (key, _) in &steps {
            pair.remove(key);
        }
        pair.check_shape();
        prop_assert!(pair.radix.is_empty() && pair.radix.arena.bundles() == 0);
    }
}

/// Shows the cases by name, each with what makes it hard.
#[test]
fn keys_that_tries_get_wrong() {
    let mut pair = Pair::default();
    pair.check(b"nothing there");
    let longest = [0xff; MAX_KEY_BYTES];
    // Each prefix of the longest key, the longest last: branches at every second position, one below the other.
    (1..=MAX_KEY_BYTES).for_each(|bytes| pair.insert(&longest[..bytes]));
    pair.check_shape();
    for bytes in [1, 2, 511, 1023, 1024] {
        pair.check(&longest[..bytes]);
    }
    let mut one_off = longest;
    one_off[1023] = 0xfe;
    assert_eq!(pair.longest_prefix(&one_off), Some(&longest[..1023]));
    pair.insert(&one_off);
    pair.check(&one_off);
    // The empty string as a question, not as a key.
    pair.check(b"");
    // All single bytes: a branch of sixteen twigs that lead to sixteen each.
    (0..=255).for_each(|byte| pair.insert(&[byte]));
    (0..=255).for_each(|byte| pair.check(&[byte, 0x80]));
    pair.check_shape();
    (1..=MAX_KEY_BYTES).for_each(|bytes| pair.remove(&longest[..bytes]));
    pair.check(&longest);
    pair.check_shape();
}

/// Shows that a list over a prefix goes on behind its last key though keys have come and gone meanwhile, which is what a cursor
/// that is a key is for.
#[test]
fn a_list_goes_on_behind_its_last_key() {
    let mut pair = Pair::default();
    let key = |number: u32| format!("list/{number:04}").into_bytes();
    (0..100).for_each(|number| pair.insert(&key(number)));
    pair.insert(b"lisa");
    pair.insert(b"lisu");
    let page = pair.from(b"list/");
    assert_eq!(page.len(), 101);
    assert_eq!(pair.key_of(page[9]).unwrap(), key(9));
    pair.remove(&key(9));
    pair.insert(b"list/0009a");
    let next = pair.from(&key(9));
    assert_eq!(pair.key_of(next[0]).unwrap(), b"list/0009a");
    assert_eq!(pair.key_of(next[1]).unwrap(), key(10));
}

/// Shows the cost of a key that DESIGN §3 allows, 48 bytes, for keys of several kinds; the smallest that can be is 12.
#[test]
fn costs_what_the_page_says() {
    type KeyOfNumber = fn(u32) -> Vec<u8>;
    let kinds: [(&str, KeyOfNumber); 3] = [
        ("random", |number| lanner_shared::KeyHash::of(&number.to_le_bytes()).low64.to_be_bytes().to_vec()),
        ("counted", |number| format!("model/layer-1/block-{number:08}").into_bytes()),
        ("chains", |number| format!("conversation/{}/{}", number % 3_000, number / 3_000).into_bytes()),
    ];
    for (name, key) in kinds {
        let mut radix = Radix::default();
        let keys: Vec<Vec<u8>> = (0..300_000).map(key).collect();
        let mut most = 0.0_f64;
        for (number, key) in keys.iter().enumerate() {
            radix.insert(key, SlotId(number as u32), |slot| Some(keys[slot.0 as usize].as_slice()));
            if number >= 20_000 && number % 1000 == 0 {
                most = most.max(radix.bytes() as f64 / number as f64);
            }
        }
        let each = radix.bytes() as f64 / keys.len() as f64;
        println!("{name}: {each:.1} bytes a key, at most {most:.1}");
        assert!((12.0..48.0).contains(&each) && most < 48.0, "{name}: {each}, {most}");
    }
}
