//! What the adaptive order of eviction costs a shard while a trace of requests is replayed: learning, shadows and decisions, and a queue
//! that is more than a list.
//!
//! Two things are measured. The order alone: the same requests on the policy and its slots without bytes, under the adaptive order and
//! under LRU; the difference is what the scheduler costs. And a shard's whole work: each request's frames, `match_chain` for all its groups, then a
//! put of each block that isn't there, with 64 KiB copied into the segment, as `lanner bench trace` sends them to a server. Blocks that are there
//! cost the shard nothing more, as over shared memory. The scheduler's share of that has to be at most 3 % on a trace that
//! is given; of the conversations that the bench makes up it was 5.2 %.
//!
//! Run: `LANNER_TRACE=conversation.jsonl cargo bench -p lanner-benches --bench scheduler` (format: docs/traces.md), or without LANNER_TRACE on
//! conversations that the bench makes up. One iteration is a block of a request.

use criterion::{Criterion, criterion_group, criterion_main};
use fastrand::Rng;
use lanner_server::eviction::replay::ReplayCache;
use lanner_server::eviction::{Policy, PolicyKind};
use lanner_server::memory::segment::Segment;
use lanner_server::service::Caller;
use lanner_server::service::inbound::Inbound;
use lanner_server::service::replies::Replies;
use lanner_server::shard::{PeerId, Shard, ShardConfig};
use lanner_shared::ShardId;
use lanner_shared::chain::{GROUP_BLOCKS, GroupPrefix};
use lanner_shared::key::KeyHash;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use lanner_shared::wire::put::{self, ChainLink, Pin, PutMode, PutRequest};
use lanner_shared::wire::{MAX_VERSION, Opcode, body, match_chain};
use serde_json::Value;
use std::time::Duration;

/// Bytes of a block, as `lanner bench trace` has them by default.
const BLOCK_BYTES: usize = 64 << 10;
/// What a block and its key and header take.
const EXTENT_BYTES: u64 = BLOCK_BYTES as u64 + 256;
/// The scheduler's part of a shard's time, on a trace.
const LARGEST_SHARE: f64 = 0.03;
/// Replays of the order alone, of which the quickest counts.
const REPLAYS: usize = 5;

struct Request {
    at_ms: u64,
    blocks: Vec<u64>,
}

fn is_measurement() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Blocks that the cache holds: so few that most of the trace's have to leave.
fn capacity() -> u64 {
    if is_measurement() { 5_000 } else { 200 }
}

fn requests() -> Vec<Request> {
    let Some(path) = std::env::var_os("LANNER_TRACE") else { return conversations() };
    let text = std::fs::read_to_string(&path).expect("a trace, not compressed");
    let request = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a request in JSON");
        let blocks = line["hash_ids"].as_array().expect("hash_ids");
        Request {
            at_ms: line["timestamp"].as_u64().expect("timestamp"),
            blocks: blocks.iter().filter_map(Value::as_u64).collect(),
        }
    };
    text.lines().map(request).collect()
}

/// Conversations with a prompt in common. Each turn carries all turns before; two in three go on, half of those within two minutes.
fn conversations() -> Vec<Request> {
    let mut random = Rng::with_seed(5);
    let count = if is_measurement() { 3_000 } else { 60 };
    let (mut requests, mut next_block) = (Vec::new(), 4);
    for _ in 0..count {
        let mut at_ms = random.u64(..count * 1_200);
        let mut blocks: Vec<u64> = (0..4).collect();
        loop {
            let added = random.u64(2..20);
            blocks.extend(next_block..next_block + added);
            next_block += added;
            requests.push(Request { at_ms, blocks: blocks.clone() });
            if random.u32(..3) == 0 || blocks.len() > 240 {
                break;
            }
            at_ms += (-120_000.0 * (1.0 - random.f64()).ln()) as u64;
        }
    }
    requests.sort_by_key(|request| request.at_ms);
    requests
}

fn blocks_of(requests: &[Request]) -> u64 {
    requests.iter().map(|request| request.blocks.len() as u64).sum()
}

/// Time that an order of eviction takes for a trace, and the leading blocks found.
fn order_alone(requests: &[Request], kind: PolicyKind) -> (Duration, u64) {
    let units = (EXTENT_BYTES / 64) as u32;
    let capacity_units = capacity() * u64::from(units);
    let mut cache = ReplayCache::new(Policy::new(kind, capacity_units), capacity_units);
    let hashed: Vec<Vec<KeyHash>> = requests
        .iter()
        .map(|request| request.blocks.iter().map(|block| KeyHash::of(&block.to_le_bytes())).collect())
        .collect();
    let mut found = 0;
    let started = Clock.now();
    for (request, hashes) in requests.iter().zip(&hashed) {
        cache.set_time(Duration::from_millis(request.at_ms));
        found += hashes.iter().take_while(|hash| cache.contains(**hash)).count() as u64;
        for (depth, hash) in hashes.iter().enumerate() {
            if !cache.access(*hash) {
                let parent = depth.checked_sub(1).filter(|_| !depth.is_multiple_of(GROUP_BLOCKS));
                cache.insert_block(*hash, units, parent.map(|parent| hashes[parent]), depth as u32);
            }
        }
    }
    let spent = Clock.now().since(started);
    assert!(cache.evicted() > 0, "everything found room");
    (spent, found)
}

/// A shard and what serves frames to it.
struct Served {
    shard: Shard,
    inbound: Inbound,
    replies: Replies,
    spent: Duration,
}

impl Served {
    fn new() -> Served {
        let mut segment = Segment::heap(capacity() * EXTENT_BYTES + (1 << 20)).expect("330 MB of memory");
        segment.prefault(&mut |_, _| {}).expect("330 MB of memory");
        let shard = Shard::new(ShardConfig::default(), segment).expect("a segment that is long enough");
        Served { shard, inbound: Inbound::default(), replies: Replies::default(), spent: Duration::ZERO }
    }

    /// Serves a frame, with its payload behind it, and returns the reply.
    fn serve(&mut self, now: Instant, frame: &[u8], payload: &[u8]) -> Vec<u8> {
        let caller = Caller {
            peer: PeerId(1),
            boot: 0,
            version: MAX_VERSION,
            reads_values: false,
            sends_values: false,
            can_move: false,
            is_draining: false,
        };
        let started = Clock.now();
        for bytes in [frame, payload] {
            let fed = self.inbound.feed(&mut self.shard, now, &caller, bytes, &mut self.replies);
            assert_eq!(fed, (bytes.len(), None));
        }
        self.spent += Clock.now().since(started);
        let reply = self.replies.plain_bytes().to_vec();
        self.replies.drop_all(&mut self.shard, now);
        reply
    }

    /// Leading blocks of a request that are there.
    fn match_chain(&mut self, now: Instant, keys: &[[u8; 8]]) -> usize {
        let mut frame = Vec::new();
        let start = body::begin(&mut frame);
        for group in keys.chunks(GROUP_BLOCKS) {
            match_chain::append_group(&mut frame, &GroupPrefix::of(&group[0]), group);
        }
        let groups = keys.len().div_ceil(GROUP_BLOCKS);
        let header = Header::request(Opcode::MatchChain, ShardId(0), 1, groups as u16);
        body::finish(&mut frame, start, header, MAX_VERSION);
        let reply = self.serve(now, &frame, &[]);
        let (numbers, _) = match_chain::decode_reply(&reply[HEADER_BYTES..], groups).expect("a reply");
        let mut found = 0;
        for (number, group) in numbers.iter().zip(keys.chunks(GROUP_BLOCKS)) {
            found += usize::from(number.get());
            if usize::from(number.get()) < group.len() {
                break;
            }
        }
        found
    }

    fn put(&mut self, now: Instant, keys: &[[u8; 8]], depth: usize, value: &[u8]) {
        let prefix = GroupPrefix::of(&keys[depth / GROUP_BLOCKS * GROUP_BLOCKS]);
        let key = prefix.stored_key(&keys[depth]);
        let parent = depth.checked_sub(1).filter(|_| !depth.is_multiple_of(GROUP_BLOCKS));
        let parent = parent.map(|parent| prefix.stored_key(&keys[parent]));
        let mut frame = Vec::new();
        let start = body::begin(&mut frame);
        let link = ChainLink { depth: depth as u32, parent: parent.as_deref().unwrap_or_default() };
        let request = PutRequest {
            key: &key,
            mode: PutMode::Put,
            pin: Pin::None,
            ttl_seconds: 0,
            group: b"",
            chain: Some(link),
        };
        put::append(&mut frame, &request);
        let mut header = Header::request(Opcode::Put, ShardId(0), 1, 1);
        header.payload_bytes = value.len() as u64;
        body::finish(&mut frame, start, header, MAX_VERSION);
        self.serve(now, &frame, value);
    }

    fn tick(&mut self, now: Instant) {
        let started = Clock.now();
        self.shard.tick(now);
        self.spent += Clock.now().since(started);
    }
}

/// Time that a shard under the adaptive order takes for a trace, and the leading blocks found.
fn whole_shard(requests: &[Request]) -> (Duration, u64) {
    let (mut served, value) = (Served::new(), vec![7; BLOCK_BYTES]);
    let mut found = 0;
    for request in requests {
        let now = Instant((request.at_ms + 1) * 1_000_000);
        served.tick(now);
        let keys: Vec<[u8; 8]> = request.blocks.iter().map(|block| block.to_le_bytes()).collect();
        let leading = served.match_chain(now, &keys);
        found += leading as u64;
        (leading..keys.len()).for_each(|depth| served.put(now, &keys, depth, &value));
    }
    let stats = served.shard.stats(Instant(u64::MAX / 2));
    assert!(stats.evictions() > 0 && stats.puts > 0, "{stats:?}");
    assert_eq!(stats.puts, stats.objects + stats.evictions(), "each put was stored");
    (served.spent, found)
}

fn scheduler(criterion: &mut Criterion) {
    let requests = requests();
    let blocks = blocks_of(&requests);
    let nanos = |spent: Duration| spent.as_nanos() as f64 / blocks as f64;
    let best = |kind| (0..REPLAYS).map(|_| order_alone(&requests, kind)).min().expect("some replays");
    let ((adaptive, found), (lru, _)) = (best(PolicyKind::Adaptive), best(PolicyKind::Lru));
    let (shard, found_by_shard) = whole_shard(&requests);
    let share = adaptive.saturating_sub(lru).as_secs_f64() / shard.as_secs_f64();
    println!(
        "{} requests for {blocks} blocks of 64 KiB, room for {}: the adaptive order takes {:.0} ns a block, LRU {:.0}, a shard's whole \
         work {:.0}: the scheduler's share is {:.1} %",
        requests.len(),
        capacity(),
        nanos(adaptive),
        nanos(lru),
        nanos(shard),
        100.0 * share,
    );
    // The shard has leases and a little less room.
    let (least, most) = (found.min(found_by_shard), found.max(found_by_shard));
    assert!(
        most - least <= blocks / 20,
        "{found} blocks found by the order alone, {found_by_shard} by the shard"
    );
    let is_of_a_trace = std::env::var_os("LANNER_TRACE").is_some();
    assert!(!is_measurement() || !is_of_a_trace || share <= LARGEST_SHARE, "{share}");
    for (name, kind) in [("adaptive", PolicyKind::Adaptive), ("lru", PolicyKind::Lru)] {
        criterion.bench_function(&format!("scheduler/{name} on the trace, each block"), |bencher| {
            bencher.iter_custom(|count| {
                let rounds = count.div_ceil(blocks);
                let spent: Duration = (0..rounds).map(|_| order_alone(&requests, kind).0).sum();
                spent.mul_f64(count as f64 / (rounds * blocks) as f64)
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_millis(1));
    targets = scheduler
}
criterion_main!(benches);
