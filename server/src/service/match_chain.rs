//! How many leading blocks of each group of a chain are there: the service's part of `match_chain`.

use super::Request;
use super::replies::Replies;
use crate::shard::Found;
use lanner_shared::chain::{GROUP_BLOCKS, GroupPrefix, StoredKey};
use lanner_shared::wire::{Opcode, body, body::BodyReader, match_chain};
use lanner_shared::{Error, KeyHash, Result};
use smallvec::SmallVec;

/// The blocks of a group, as they're stored.
type Blocks = SmallVec<[(StoredKey, KeyHash); GROUP_BLOCKS]>;

/// Answers a frame of groups: first how many of each are there, then where these lie.
pub(super) fn answer(request: &mut Request<'_>, replies: &mut Replies) -> Result<()> {
    let groups = usize::from(request.header.count);
    let mut reader = BodyReader::new(request.body);
    let start = body::begin(replies.frame());
    let mut number_at = replies.frame().len();
    replies.frame().resize(number_at + groups * 2, 0);
    let mut index = 0;
    for _ in 0..groups {
        let (prefix, blocks) = match_chain::next_group(&mut reader)?;
        must_own(request, &prefix, index)?;
        let blocks = next_blocks(&mut reader, &prefix, blocks, &mut index)?;
        let found = append_found(request, &blocks, replies.frame());
        replies.frame()[number_at..number_at + 2].copy_from_slice(&found.to_le_bytes());
        number_at += 2;
    }
    reader.end()?;
    request.finish(replies, start, 0)
}

fn must_own(request: &Request<'_>, prefix: &GroupPrefix, index: usize) -> Result<()> {
    let config = request.shard.config();
    let owner = prefix.placement().shard(config.shards);
    if owner == config.shard {
        return Ok(());
    }
    let (owner, asked) = (u64::from(owner.0), u64::from(config.shard.0));
    Err(Error::WrongShard { index: index as u64, owner, asked })
}

/// The keys of a group; `index` is the place of the first in the frame, and then of the one behind the last.
fn next_blocks(
    reader: &mut BodyReader<'_>,
    prefix: &GroupPrefix,
    blocks: usize,
    index: &mut usize,
) -> Result<Blocks> {
    let mut all = Blocks::new();
    for _ in 0..blocks {
        let stored = prefix.stored_key(match_chain::next_key(reader, *index)?);
        let hash = prefix.hash(&stored);
        all.push((stored, hash));
        *index += 1;
    }
    Ok(all)
}

/// Appends the descriptors of the leading blocks that are there, and returns how many these are.
fn append_found(request: &mut Request<'_>, blocks: &Blocks, frame: &mut Vec<u8>) -> u16 {
    let hashes: SmallVec<[KeyHash; GROUP_BLOCKS]> = blocks.iter().map(|(_, hash)| *hash).collect();
    request.shard.warm_hashed(&hashes);
    let mut found = 0;
    for (key, hash) in blocks {
        let block = request.shard.query_hashed(request.now, *hash, key, Opcode::MatchChain);
        let Some(descriptor) = block.as_ref().map(Found::descriptor) else { break };
        body::append(frame, &descriptor);
        found += 1;
    }
    request.shard.count_prefix(found);
    found
}
