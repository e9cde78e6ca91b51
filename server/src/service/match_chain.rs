//! How many leading blocks of each group of a chain are there: the service's part of `match_chain`.

use super::Request;
use super::replies::Replies;
use crate::shard::GroupQuestion;
use lanner_shared::chain::{GROUP_BLOCKS, GroupPrefix, PREFIX_BYTES};
use lanner_shared::error::Malformation;
use lanner_shared::wire::header::HEADER_BYTES;
use lanner_shared::wire::match_chain::GroupHead;
use lanner_shared::wire::{Descriptor, MAX_BODY_BYTES, Opcode, body, body::BodyReader, match_chain};
use lanner_shared::{Error, KeyHash, Result};
use smallvec::SmallVec;
use zerocopy::FromBytes;

/// Bytes of most engines' keys, at most.
const DIGEST_BYTES: usize = 64;

/// The keys of a group as they're stored, one behind the other, and their hashes.
///
/// They are hashed only if the first one is there. They are put together first and hashed then, each step for all of them: a hash of bytes that were written just before, in pieces
/// of other lengths, waits until these have left the processor's store buffer.
#[derive(Default)]
struct Blocks {
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: SmallVec<[u32; GROUP_BLOCKS]>,
    /// Where each ends as it came, from the start of the first.
    came_ends: SmallVec<[u16; GROUP_BLOCKS]>,
    hashes: SmallVec<[KeyHash; GROUP_BLOCKS]>,
}

impl Blocks {
    /// Reads the keys of the next group of `count` blocks. `index` is the place of the first in the frame, and then of the one behind
    /// the last.
    fn read(
        &mut self,
        reader: &mut BodyReader<'_>,
        prefix: &GroupPrefix,
        count: usize,
        index: &mut usize,
    ) -> Result<()> {
        self.bytes.clear();
        self.ends.clear();
        self.came_ends.clear();
        self.bytes.reserve(count * (PREFIX_BYTES + DIGEST_BYTES));
        let came_bytes = reader.rest().len();
        for _ in 0..count {
            let key = match_chain::next_key(reader, *index)?;
            self.bytes.extend_from_slice(prefix.as_bytes());
            self.bytes.extend_from_slice(key);
            self.ends.push(self.bytes.len() as u32);
            self.came_ends.push((came_bytes - reader.rest().len()) as u16);
            *index += 1;
        }
        Ok(())
    }

    fn hash(&mut self, prefix: &GroupPrefix) {
        let mut hashes = std::mem::take(&mut self.hashes);
        hashes.clear();
        hashes.extend(self.keys().map(|key| prefix.hash(key)));
        self.hashes = hashes;
    }

    #[inline]
    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends
            .iter()
            .map(move |end| &self.bytes[std::mem::replace(&mut start, *end as usize)..*end as usize])
    }
}

/// Answers a frame of groups: first how many of each are there, then where these lie.
pub(super) fn answer(request: &mut Request<'_>, replies: &mut Replies) -> Result<()> {
    let groups = usize::from(request.header.count);
    let mut reader = BodyReader::new(request.body);
    let start = body::begin(replies.frame());
    // No group takes fewer bytes than this, so that a number alone makes nothing grow.
    if groups * size_of::<GroupHead>() > request.body.len() {
        return Err(Error::Malformed { reason: Malformation::Body, detail: request.body.len() as u64 });
    }
    let mut number_at = replies.frame().len();
    replies.frame().resize(number_at + groups * 2, 0);
    let (mut index, mut blocks) = (0, Blocks::default());
    for _ in 0..groups {
        let head = match_chain::next_head(&mut reader)?;
        let asked = head.blocks.get();
        // Clients cut their frames by what is answered, too; short keys could make that longer than a body.
        let reply_bytes = replies.frame().len() + usize::from(asked) * size_of::<Descriptor>() - start;
        if reply_bytes > HEADER_BYTES + MAX_BODY_BYTES {
            return Err(Error::Malformed { reason: Malformation::Body, detail: reply_bytes as u64 });
        }
        let question =
            GroupQuestion { prefix: &head.prefix, keys: reader.rest(), blocks: usize::from(asked) };
        let again = request.shard.answer_group_again(request.now, &question, replies.frame());
        let found = if let Some(key_bytes) = again {
            reader.bytes(key_bytes)?;
            index += question.blocks;
            asked
        } else {
            let (prefix, count) = head.checked()?;
            request.must_own(prefix.placement(), index)?;
            blocks.read(&mut reader, &prefix, count, &mut index)?;
            look_up(request, &prefix, &question, &mut blocks, replies.frame())
        };
        replies.frame()[number_at..number_at + 2].copy_from_slice(&found.to_le_bytes());
        number_at += 2;
    }
    reader.end()?;
    request.finish(replies, start, 0)
}

/// Looks the blocks up one by one. Appends the descriptors of the leading ones that are there, and returns how many these are.
fn look_up(
    request: &mut Request<'_>,
    prefix: &GroupPrefix,
    question: &GroupQuestion<'_>,
    blocks: &mut Blocks,
    frame: &mut Vec<u8>,
) -> u16 {
    let first = blocks.keys().next().map(|key| prefix.hash(key));
    if first.is_some_and(|hash| request.shard.is_certainly_absent(hash, Opcode::MatchChain)) {
        request.shard.count_prefix(0);
        return 0;
    }
    blocks.hash(prefix);
    request.shard.warm_hashed(&blocks.hashes);
    let start = frame.len();
    let mut found = 0;
    for (place, (hash, key)) in body::places::<Descriptor>(frame, blocks.hashes.len())
        .iter_mut()
        .zip(blocks.hashes.iter().zip(blocks.keys()))
    {
        let (shard, now, operation) = (&mut *request.shard, request.now, Opcode::MatchChain);
        let block = match found {
            0 => shard.query_hashed(now, *hash, key, operation),
            _ => shard.query_likely(now, *hash, key, operation),
        };
        let Some(block) = block else { break };
        block.describe(place);
        found += 1;
    }
    frame.truncate(start + usize::from(found) * size_of::<Descriptor>());
    request.shard.count_prefix(found);
    let answer = <[Descriptor]>::ref_from_bytes(&frame[start..]).unwrap_or_default();
    request.shard.keep_group_answer(request.now, question, &blocks.came_ends, answer);
    found
}
