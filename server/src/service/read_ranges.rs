//! Ranges of objects by their keys, found and read in one round trip: the service's part of `read_ranges`.

use super::Request;
use super::replies::Replies;
use crate::memory::slots::{Generation, SlotId};
use crate::shard::{FoundList, ListQuestion, WARMED_KEYS};
use lanner_shared::error::Bound;
use lanner_shared::wire::{Opcode, body, read_ranges};
use lanner_shared::{Error, KeyHash, Result};

/// Answers a frame of ranges: all of them, or the first thing that's wrong with one.
pub(super) fn answer(request: &mut Request<'_>, replies: &mut Replies) -> Result<()> {
    request.must_send_values()?;
    let question = read_ranges::decode(request.body, usize::from(request.header.count))?;
    let found = find_all(request, &question)?;
    let mut payload_bytes = 0_u64;
    for (index, range) in question.ranges.iter().enumerate() {
        let length = found[range.key.get() as usize].value_bytes.get();
        let end = range.source_offset.get().saturating_add(range.length.get());
        if end > length {
            return Err(Error::OutOfBounds { index: index as u64, bound: Bound::Value, end, length });
        }
        payload_bytes = payload_bytes.saturating_add(range.length.get());
    }
    let start = body::begin(replies.frame());
    request.finish(replies, start, payload_bytes)?;
    let rows = question.ranges.iter().map(|range| {
        let offset = found[range.key.get() as usize].value_offset() + range.source_offset.get();
        (offset, range.length.get())
    });
    if !replies.copy_rows(request.shard.segment(), rows.clone(), payload_bytes) {
        for (range, (offset, length)) in question.ranges.iter().zip(rows) {
            let object = &found[range.key.get() as usize];
            let (slot, generation) = (SlotId(object.slot.get()), Generation(object.generation.get()));
            replies.send_extent(request.shard, slot, generation, offset, length)?;
        }
    }
    request.shard.count_sent(payload_bytes);
    Ok(())
}

/// The object of each key. As long as a list goes on as one did lately no key is looked up.
fn find_all(request: &mut Request<'_>, question: &read_ranges::Question<'_>) -> Result<FoundList> {
    let keys = &question.keys;
    let (mut found, mut came) = (FoundList::new(), question.key_bytes);
    while found.len() + 1 < keys.len() {
        let (first, count) = (KeyHash::of(keys[found.len()]), keys.len() - found.len());
        let rest = ListQuestion { first, keys: came, count };
        let Some(key_bytes) = request.shard.answer_list_again(request.now, &rest, &mut found) else { break };
        came = &came[key_bytes..];
    }
    let known = found.len();
    for (index, key) in keys.iter().enumerate().skip(known) {
        if (index - known).is_multiple_of(WARMED_KEYS) {
            request.shard.warm(keys[index..].iter().copied());
        }
        let hash = KeyHash::of(key);
        request.must_own(hash, index)?;
        let object = request.shard.query_likely(request.now, hash, key, Opcode::ReadRanges);
        found.push(object.ok_or(Error::NotFound { index: index as u64 })?.descriptor());
    }
    request.shard.keep_list_answer(request.now, &keys[known..], came, &found[known..]);
    Ok(found)
}
