//! Which keys are there: a page at a time, in the order of slots.
//!
//! A page looks at a bounded number of slots, so that listing a large store never holds a shard up; it may be empty and
//! not the last. An object that stays while a client pages is seen exactly once, as it keeps its slot.

use super::Shard;
use crate::memory::slots::{Life, SlotId};
use lanner_shared::time::Instant;

/// Slots that one page looks at.
const SLOTS_IN_PAGE: u32 = 4096;

/// What a page came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListPage {
    /// Where the next page begins; 0 if this was the last.
    pub next_cursor: u64,
    /// Number of keys in this page.
    pub entries: u32,
}

impl Shard {
    /// Calls `each(key, value bytes)` for the next objects whose key starts with `prefix`, from `cursor` on (0 at first,
    /// then [`ListPage::next_cursor`]), until it returns `false`: it then has no room for the key that it was given, which
    /// comes again with the next page. Extends no lease and counts as no access.
    pub fn list(
        &self,
        now: Instant,
        prefix: &[u8],
        cursor: u64,
        mut each: impl FnMut(&[u8], u64) -> bool,
    ) -> ListPage {
        let made = self.slots.made();
        let first = u32::try_from(cursor).unwrap_or(u32::MAX).min(made);
        let end = first.saturating_add(SLOTS_IN_PAGE).min(made);
        let mut entries = 0;
        for number in first..end {
            let Some((key, value_bytes)) = self.listed(now, SlotId(number), prefix) else { continue };
            // A page that can't take even one key must still get on, or its client would ask for ever.
            if !each(key, value_bytes) && entries > 0 {
                return ListPage { next_cursor: u64::from(number), entries };
            }
            entries += 1;
        }
        ListPage { next_cursor: if end < made { u64::from(end) } else { 0 }, entries }
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
    use super::super::test_support::{TestShard, at};
    use super::*;
    use std::collections::BTreeSet;

    /// Shows that paging sees each key with the prefix exactly once, with its length, over several pages of slots and
    /// with pages of three entries, and neither removed nor unfinished ones.
    #[test]
    fn pages_see_each_key_once() {
        let mut shard = TestShard::new(4 << 20, ShardConfig::default());
        let mut expected = BTreeSet::new();
        for number in 0..9000u32 {
            let key = format!("{}:{number}", if number % 3 == 0 { "a" } else { "b" });
            shard.put(at(0), key.as_bytes(), &vec![0; number as usize % 50]).unwrap();
            if number % 7 == 0 {
                shard.remove(at(0), key.as_bytes());
            } else if number % 3 == 0 {
                expected.insert((key.into_bytes(), u64::from(number) % 50));
            }
        }
        shard.begin(at(0), b"a:unfinished", b"").unwrap();
        let (mut seen, mut cursor, mut pages) = (BTreeSet::new(), 0, 0);
        loop {
            let mut room = 3;
            let page = shard.list(at(0), b"a:", cursor, |key, bytes| {
                if room == 0 {
                    return false;
                }
                room -= 1;
                assert!(seen.insert((key.to_vec(), bytes)), "twice");
                true
            });
            assert_eq!(page.entries, 3 - room);
            pages += 1;
            cursor = page.next_cursor;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(seen, expected);
        assert!(pages >= expected.len() / 3);
        assert_eq!(shard.list(at(0), b"", u64::MAX, |_, _| true), ListPage { next_cursor: 0, entries: 0 });
    }
}
