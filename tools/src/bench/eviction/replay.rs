//! A trace on one of the server's policies: what a shard would do, without bytes and many times faster.

use std::time::Duration;

use lanner_server::eviction::adaptive::AdaptiveState;
use lanner_server::eviction::replay::ReplayCache;
use lanner_server::eviction::{Policy, PolicyKind};
use lanner_shared::key::KeyHash;

use super::trace::Request;

/// Blocks in a group: a chain is cut into groups, and within one no block is evicted before those behind it.
const GROUP_BLOCKS: usize = 32;

/// What a replay counted.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Blocks before the first missing one of their request.
    pub hits: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// What an adaptive policy did and why.
    pub adaptive: Option<AdaptiveState>,
}

/// What blocks are to the cache.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// Length of a block in units of the server's memory.
    pub block_units: u32,
    /// Another seed gives the blocks other keys, of which a policy that samples keys samples others.
    pub seed: u64,
}

/// Replays a trace on a cache for so many blocks. `progress` is told the number of requests done.
pub fn replay(
    requests: &[Request],
    policy: PolicyKind,
    capacity: u64,
    Keys { block_units, seed }: Keys,
    progress: impl Fn(u64),
) -> Outcome {
    let capacity_units = capacity * u64::from(block_units);
    let mut cache = ReplayCache::new(Policy::new(policy, capacity_units), capacity_units);
    let mut hits = 0;
    let start_ms = requests.first().map_or(0, |request| request.at_ms);
    let mut hashes = Vec::new();
    for (number, request) in requests.iter().enumerate() {
        cache.set_time(Duration::from_millis(request.at_ms - start_ms));
        hashes.clear();
        hashes.extend(request.blocks.iter().map(|block| hash(*block, seed)));
        hits += run(&mut cache, &hashes, block_units);
        if number % 256 == 0 {
            progress(number as u64);
        }
    }
    Outcome { hits, evicted: cache.evicted(), adaptive: cache.adaptive_state() }
}

/// Reads the leading blocks that are there and writes the others. A block behind a hole that is there already is written in vain, which
/// is a use.
fn run(cache: &mut ReplayCache, hashes: &[KeyHash], block_units: u32) -> u64 {
    let leading = hashes.iter().take_while(|hash| cache.contains(**hash)).count();
    for (depth, hash) in hashes.iter().enumerate() {
        if !cache.access(*hash) {
            let parent = depth.checked_sub(1).filter(|_| depth % GROUP_BLOCKS != 0);
            let parent = parent.and_then(|parent| hashes.get(parent)).copied();
            cache.insert_block(*hash, block_units, parent, depth as u32);
        }
    }
    leading as u64
}

fn hash(block: u64, seed: u64) -> KeyHash {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&block.to_le_bytes());
    key[8..].copy_from_slice(&seed.to_le_bytes());
    KeyHash::of(&key)
}
