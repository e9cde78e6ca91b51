//! The round of `match`: one call for a whole chain whose blocks are all there, of several in turn.

use fastrand::Rng;
use lanner_client::{Client, Freshness, PutOptions, Range, chain};
use lanner_shared::chain::GROUP_BLOCKS;
use lanner_shared::time::Clock;
use lanner_shared::wire::header::HEADER_BYTES;
use lanner_shared::wire::match_chain;

use super::values::{Values, wrong_bytes};
use crate::bench::floor::echo_server::Shape;
use crate::bench::workload::Workload;
use crate::exit::Failure;

/// Bytes of a block's value: what a match costs doesn't depend on it.
pub const BLOCK_BYTES: usize = 16;

/// Asks how much of a stored chain is there, of one after the other; removes the chains when dropped.
pub struct MatchCall {
    client: Client,
    values: Values,
    chains: Vec<Vec<[u8; 16]>>,
    next: usize,
}

impl MatchCall {
    /// `chains` chains of `blocks` blocks each, stored when they're prepared. Their keys are random, as digests are.
    #[must_use]
    pub fn new(client: Client, (chains, blocks): (usize, usize), seed: u64) -> MatchCall {
        let values = Values { run: fastrand::u64(..), bytes: BLOCK_BYTES, seed };
        let mut random = Rng::with_seed(values.run);
        let mut chain = |_| (0..blocks).map(|_| random.u128(..).to_le_bytes()).collect();
        MatchCall { client, values, chains: (0..chains).map(&mut chain).collect(), next: 0 }
    }

    /// Stores a chain, and compares what a match leads to.
    fn prepare_chain(&self, keys: &[[u8; 16]]) -> Result<u64, Failure> {
        let values: Vec<Vec<u8>> = (0..keys.len() as u64).map(|number| self.values.value(number)).collect();
        let outcomes = self.client.put_chain(keys, 0, &values, PutOptions::default())?;
        outcomes.into_iter().collect::<Result<Vec<()>, _>>()?;
        let snapshot = self.client.match_chain(keys)?;
        all_found(snapshot.len(), keys.len())?;
        let length = BLOCK_BYTES as u64;
        let range =
            |key: u32| Range { key, source_offset: 0, length, destination_offset: u64::from(key) * length };
        let ranges: Vec<Range> = (0..keys.len() as u32).map(range).collect();
        let mut read = vec![0; keys.len() * BLOCK_BYTES];
        self.client.read_ranges_from_snapshot(&snapshot, &ranges, &mut read, Freshness::Lease)?;
        for ((value, number), key) in read.chunks(BLOCK_BYTES).zip(0..).zip(keys) {
            if !self.values.is_value(number, value) {
                return Err(wrong_bytes(key));
            }
        }
        Ok(read.len() as u64)
    }
}

fn all_found(found: usize, blocks: usize) -> Result<(), Failure> {
    if found == blocks {
        return Ok(());
    }
    Err(Failure::Machine(format!(
        "{found} of a chain's {blocks} blocks are there: the store is too small for them, or lost some"
    )))
}

impl Workload for MatchCall {
    fn name(&self) -> String {
        format!("match, {} blocks", self.chains[0].len())
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.chains.iter().map(|keys| self.prepare_chain(keys)).sum()
    }

    fn round(&mut self) -> Result<u64, Failure> {
        let keys = &self.chains[self.next];
        self.next = (self.next + 1) % self.chains.len();
        let before = Clock.now();
        let snapshot = self.client.match_chain(keys)?;
        let nanos = Clock.now().since(before).as_nanos() as u64;
        all_found(snapshot.len(), keys.len()).map(|()| nanos)
    }
}

impl Drop for MatchCall {
    fn drop(&mut self) {
        for keys in &self.chains {
            // A store that has gone has nothing left to remove. From the end, so that no block is left without those before it.
            let mut stored = chain::stored_keys(keys);
            stored.reverse();
            for keys in stored.chunks(1024) {
                let _ = self.client.remove_batch(keys);
            }
        }
    }
}

/// Bytes each way of a match of `blocks` blocks that are all there, in one frame; over several shards there are more headers.
#[must_use]
pub fn shape(blocks: usize) -> Shape {
    let keys = vec![[0; 16]; blocks];
    let (mut request, mut reply) = (HEADER_BYTES, HEADER_BYTES);
    for group in keys.chunks(GROUP_BLOCKS) {
        request += match_chain::encoded_bytes(group);
        reply += match_chain::reply_bytes(group.len());
    }
    Shape { request, reply }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows the bytes of the limit against those counted by hand: a head of 36 for each group, a key of 16 with its length, a count of 2
    /// for each group, a descriptor of 32.
    #[test]
    fn the_limit_has_the_bytes_of_a_match() {
        assert_eq!(shape(247), Shape { request: 24 + 8 * 36 + 247 * 18, reply: 24 + 8 * 2 + 247 * 32 });
    }
}
