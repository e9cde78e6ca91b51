//! How large the simulated world is: small enough that everything that can meet does.

use lanner_client::chain::stored_keys;
use lanner_client::{ClientConfig, TransportChoice};
use lanner_server::eviction::PolicyKind;
use lanner_server::shard::{ShardConfig, Watermarks};
use std::time::Duration;

pub const SERVERS: usize = 2;
/// Of each server.
pub const SHARDS: u16 = 2;
pub const CLIENTS: usize = 6;
/// Of each client, beside one that it waits for.
pub const CALLS_UNDER_WAY: usize = 3;
/// Of each shard. All values together are about half as large again, so that something is always evicted.
pub const SEGMENT_BYTES: u64 = 96 << 10;
pub const LEASE_NANOS: u64 = 40_000_000;
/// A client of a server's host learns within this time that the server has ended.
pub const NOTICED_WITHIN: u64 = 5_000_000;
pub const TIMEOUT: Duration = Duration::from_millis(150);
const KEYS: usize = 180;
/// Chains, and blocks of each. Their blocks are the last of the keys.
pub const CHAINS: usize = 6;
pub const CHAIN_BLOCKS: usize = 6;
const FIRST_BLOCK: usize = KEYS - CHAINS * CHAIN_BLOCKS;
/// Heads of the Engram layer, and rows of each.
pub const ENGRAM_ROWS: [u64; 3] = [5, 7, 11];
pub const ENGRAM_ROW_BYTES: u64 = 24;

/// The key of that number.
pub fn key(number: usize) -> Vec<u8> {
    if let Some(block) = number.checked_sub(FIRST_BLOCK) {
        return stored_keys(&chain(block / CHAIN_BLOCKS))[block % CHAIN_BLOCKS].to_vec();
    }
    // Every third one shares its placement tag, and so its shard and its epoch word, with others.
    if number.is_multiple_of(3) {
        format!("{{tag{}}}key{number}", number % 4)
    } else {
        format!("key{number}")
    }
    .into_bytes()
}

/// The keys of a chain's blocks, as an engine names them.
pub fn chain(number: usize) -> Vec<Vec<u8>> {
    (0..CHAIN_BLOCKS).map(|block| format!("block {block} of {number}").into_bytes()).collect()
}

/// Some key.
pub fn any_key(random: &mut fastrand::Rng) -> Vec<u8> {
    // A few are in great demand.
    key(if random.bool() { random.usize(..12) } else { random.usize(..KEYS) })
}

/// A list of keys that is asked for again and again: all share a placement tag.
pub fn list(random: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let lists: [&[usize]; 3] = [&[0, 12], &[0, 24], &[0, 12, 24]];
    lists[random.usize(..lists.len())].iter().map(|number| key(*number)).collect()
}

/// Every key that anyone uses.
pub fn keys() -> impl Iterator<Item = Vec<u8>> {
    let heads = (0..ENGRAM_ROWS.len()).map(|head| format!("engram:l1:h{head}").into_bytes());
    (0..KEYS).map(key).chain(heads)
}

/// Length of the next value.
pub fn value_bytes(random: &mut fastrand::Rng) -> usize {
    match random.u8(..200) {
        0..8 => 0,
        // Large against a shard: room for it has to be made among small ones.
        8 => random.usize(65_500..70_000),
        9..140 => random.usize(8..400),
        140..188 => random.usize(400..5_000),
        _ => random.usize(5_000..40_000),
    }
}

/// Whether the client of that number reads the servers' memory itself.
pub fn maps(client: usize) -> bool {
    client % 2 == 1
}

pub fn policy(seed: u64) -> PolicyKind {
    match seed % 4 {
        0 => PolicyKind::Adaptive,
        2 => PolicyKind::S3Fifo,
        _ => PolicyKind::Lru,
    }
}

pub fn shard_config() -> ShardConfig {
    ShardConfig {
        lease_ttl: Duration::from_nanos(LEASE_NANOS),
        max_lease_ttl: Duration::from_millis(100),
        watermarks: Watermarks { begin_below_per_mille: 30, end_at_per_mille: 80 },
        put_timeout: Duration::from_millis(60),
        max_unfinished_puts: 8,
        ..ShardConfig::default()
    }
}

pub fn client_config(client: usize) -> ClientConfig {
    ClientConfig {
        transport: if maps(client) { TransportChoice::Auto } else { TransportChoice::Tcp },
        timeout: TIMEOUT,
        // A client of a simulated world never sleeps: looking at the clock is what lets the world go on.
        spin: Duration::from_secs(1 << 30),
        ..ClientConfig::default()
    }
}
