//! Which keys are there: a page at a time, in the order of keys, or without a prefix index in the order of slots.
//!
//! A page looks at a bounded number of objects, so that listing a large store never holds a shard up; it may be empty and
//! not the last. An object that stays while a client pages is seen exactly once: a page goes on behind a key, or at a slot, and
//! objects keep both.

use super::Shard;
use crate::memory::slots::{Life, SlotId};
use crate::radix::Radix;
use lanner_shared::time::Instant;

/// Slots that one page looks at.
const SLOTS_IN_PAGE: u32 = 4096;
/// Keys that one page looks at, in their order: each is a look at an extent of its own.
const KEYS_IN_PAGE: usize = 1024;

/// What a page came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage {
    /// Where the next page begins; empty if this was the last.
    pub next_cursor: Vec<u8>,
    /// Number of keys in this page.
    pub entries: u32,
}

impl Shard {
    /// Calls `each(key, value bytes)` for the next objects whose key starts with `prefix`, from `cursor` on (empty at first,
    /// then [`ListPage::next_cursor`]), until it returns `false`: it then has no room for the key that it was given, which
    /// comes again with the next page. Extends no lease and counts as no access.
    pub fn list(
        &self,
        now: Instant,
        prefix: &[u8],
        cursor: &[u8],
        each: impl FnMut(&[u8], u64) -> bool,
    ) -> ListPage {
        match &self.radix {
            Some(radix) => self.list_in_order(radix, now, prefix, cursor, each),
            None => self.list_by_slot(now, prefix, cursor, each),
        }
    }

    /// The cursor is the last key that was looked at.
    fn list_in_order(
        &self,
        radix: &Radix,
        now: Instant,
        prefix: &[u8],
        cursor: &[u8],
        mut each: impl FnMut(&[u8], u64) -> bool,
    ) -> ListPage {
        let (mut last, mut entries) = (cursor, 0);
        let mut slots = radix.from(prefix.max(cursor), self.key_of());
        for _ in 0..KEYS_IN_PAGE {
            let key = slots.next().and_then(|slot| Some((slot, self.key(slot)?)));
            let Some((slot, key)) = key.filter(|(_, key)| key.starts_with(prefix)) else {
                return ListPage { next_cursor: Vec::new(), entries };
            };
            if key == cursor {
                continue;
            }
            if let Some((key, value_bytes)) = self.listed(now, slot, prefix) {
                // A page that can't take even one key must still get on, or its client would ask for ever.
                if !each(key, value_bytes) && entries > 0 {
                    break;
                }
                entries += 1;
            }
            last = key;
        }
        ListPage { next_cursor: last.to_vec(), entries }
    }

    /// The cursor is the number of the next slot.
    fn list_by_slot(
        &self,
        now: Instant,
        prefix: &[u8],
        cursor: &[u8],
        mut each: impl FnMut(&[u8], u64) -> bool,
    ) -> ListPage {
        let made = self.slots.made();
        let first = match cursor {
            [] => 0,
            bytes => bytes.try_into().map_or(made, u32::from_le_bytes).min(made),
        };
        let end = first.saturating_add(SLOTS_IN_PAGE).min(made);
        let mut entries = 0;
        for number in first..end {
            let Some((key, value_bytes)) = self.listed(now, SlotId(number), prefix) else { continue };
            if !each(key, value_bytes) && entries > 0 {
                return ListPage { next_cursor: number.to_le_bytes().to_vec(), entries };
            }
            entries += 1;
        }
        let next_cursor = if end < made { end.to_le_bytes().to_vec() } else { Vec::new() };
        ListPage { next_cursor, entries }
    }

    fn listed(&self, now: Instant, slot: SlotId, prefix: &[u8]) -> Option<(&[u8], u64)> {
        if self.slots.life(slot) != Life::Published || self.is_expired(now, slot) {
            return None;
        }
        let key = self.key(slot).filter(|key| key.starts_with(prefix))?;
        Some((key, self.header(slot)?.value_bytes.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at, put_request};
    use super::*;
    use lanner_shared::wire::put::PutRequest;
    use std::collections::BTreeMap;

    /// Shows, with a prefix index and without, that paging sees each key with the prefix exactly once, with its length, over several
    /// pages and with pages of three entries, and neither removed nor unfinished ones; and with the index in order.
    #[test]
    fn pages_see_each_key_once() {
        for prefix_index in [true, false] {
            let mut shard = TestShard::new(4 << 20, ShardConfig { prefix_index, ..ShardConfig::default() });
            let mut expected = BTreeMap::new();
            for number in 0..9000u32 {
                let key = format!("{}:{number}", if number % 3 == 0 { "a" } else { "b" });
                shard.put(at(0), key.as_bytes(), &vec![0; number as usize % 50]).unwrap();
                if number % 7 == 0 {
                    shard.remove(at(0), key.as_bytes());
                } else if number % 3 == 0 {
                    expected.insert(key.into_bytes(), u64::from(number) % 50);
                }
            }
            shard.begin(at(0), b"a:unfinished", b"").unwrap();
            let (mut seen, mut cursor, mut pages) = (Vec::new(), Vec::new(), 0);
            loop {
                let mut room = 3;
                let page = shard.list(at(0), b"a:", &cursor, |key, bytes| {
                    if room == 0 {
                        return false;
                    }
                    room -= 1;
                    seen.push((key.to_vec(), bytes));
                    true
                });
                assert_eq!(page.entries, 3 - room);
                pages += 1;
                cursor = page.next_cursor;
                if cursor.is_empty() {
                    break;
                }
            }
            assert!(pages > 800, "{pages} pages");
            if !prefix_index {
                seen.sort();
            }
            assert_eq!(seen, expected.into_iter().collect::<Vec<_>>());
            let end = ListPage { next_cursor: Vec::new(), entries: 0 };
            assert_eq!(shard.list(at(0), b"", &[0xff; 8], |_, _| true), end, "a cursor of nobody's");
        }
    }

    /// Shows that a page of keys that are all over looks at a bounded number of them and is not the last.
    #[test]
    fn a_page_of_nothing_ends() {
        let mut shard = TestShard::new(1 << 20, ShardConfig::default());
        for number in 0..2_000u32 {
            let key = number.to_be_bytes();
            shard.put_request(at(0), &PutRequest { ttl_seconds: 1, ..put_request(&key) }, b"").unwrap();
        }
        let page = shard.list(at(5_000), b"", b"", |_, _| true);
        let expected = ListPage { next_cursor: 1023u32.to_be_bytes().to_vec(), entries: 0 };
        assert_eq!(page, expected);
        assert!(shard.list(at(5_000), b"", &page.next_cursor, |_, _| true).next_cursor.is_empty());
    }
}
