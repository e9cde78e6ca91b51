//! The bound: what could be hit by someone who knows the future.
//!
//! Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966: evict what is used
//! again last. Of a chain the end is used again no sooner than its beginning, so ties given to the deeper block make the order leaf first. A
//! block that is used later than all that are here isn't kept at all.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use super::trace::Request;

/// When a block is used next, by the number of the request; the largest number for never.
type NextUse = u64;

/// Leading blocks that the best order of eviction hits with room for `capacity` blocks.
#[must_use]
pub fn hits(requests: &[Request], capacity: u64) -> u64 {
    let next_uses = next_uses(requests);
    let mut cached: HashMap<u64, (NextUse, Reverse<usize>)> = HashMap::new();
    // The last one goes first; of those used at the same time the deepest.
    let mut order: BTreeSet<(NextUse, usize, u64)> = BTreeSet::new();
    let mut hits = 0;
    for (request, next_uses) in requests.iter().zip(&next_uses) {
        let leading = request.blocks.iter().take_while(|block| cached.contains_key(block)).count();
        hits += leading as u64;
        for (depth, (block, next)) in request.blocks.iter().zip(next_uses).enumerate() {
            if let Some((next, Reverse(depth))) = cached.remove(block) {
                order.remove(&(next, depth, *block));
            }
            if *next == NextUse::MAX {
                continue;
            }
            cached.insert(*block, (*next, Reverse(depth)));
            order.insert((*next, depth, *block));
            if order.len() as u64 > capacity
                && let Some((_, _, evicted)) = order.pop_last()
            {
                cached.remove(&evicted);
            }
        }
    }
    hits
}

/// For each use the next one of the same block.
fn next_uses(requests: &[Request]) -> Vec<Vec<NextUse>> {
    let mut next_of: HashMap<u64, NextUse> = HashMap::new();
    let mut all: Vec<Vec<NextUse>> = Vec::with_capacity(requests.len());
    for (number, request) in requests.iter().enumerate().rev() {
        let next = |block: &u64| next_of.get(block).copied().unwrap_or(NextUse::MAX);
        all.push(request.blocks.iter().map(next).collect());
        next_of.extend(request.blocks.iter().map(|block| (*block, number as u64)));
    }
    all.reverse();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most hits of any order of eviction that may also not keep a block, by trying all of them.
    fn most_hits(requests: &[Request], cached: &[u64], capacity: usize) -> u64 {
        let Some((request, later)) = requests.split_first() else { return 0 };
        let leading = request.blocks.iter().take_while(|block| cached.contains(block)).count() as u64;
        let mut all: Vec<u64> = cached.iter().chain(&request.blocks).copied().collect();
        all.sort_unstable();
        all.dedup();
        let choices = (0..1_u32 << all.len()).filter(|choice| choice.count_ones() as usize <= capacity);
        let best = choices.map(|choice| {
            let kept: Vec<u64> = all
                .iter()
                .enumerate()
                .filter(|(index, _)| choice >> index & 1 == 1)
                .map(|(_, block)| *block)
                .collect();
            most_hits(later, &kept, capacity)
        });
        leading + best.max().unwrap_or(0)
    }

    /// Shows that nothing hits more often, on many small traces of chains, by comparison with all possible choices.
    #[test]
    fn nothing_hits_more_often() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..60 {
            // Block n hangs on n / 2, block 1 on nothing.
            let chain = |leaf: u64| {
                let mut blocks: Vec<u64> = std::iter::successors(Some(leaf), |block| Some(block / 2))
                    .take_while(|block| *block > 0)
                    .collect();
                blocks.reverse();
                blocks
            };
            let requests: Vec<Request> =
                (0..6).map(|at_ms| Request { at_ms, blocks: chain(random.u64(1..8)) }).collect();
            for capacity in 1..4 {
                assert_eq!(
                    hits(&requests, capacity as u64),
                    most_hits(&requests, &[], capacity),
                    "{requests:?}"
                );
            }
        }
    }
}
