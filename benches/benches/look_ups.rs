//! Look-ups of many keys in one frame against frames of one key, in a shard with two million objects of 64 B: more than any cache
//! holds, so that a look-up waits for memory four times (bucket, slot, header, key) unless several are under way at once.
//!
//! Run: `cargo bench -p lanner-benches --bench look_ups`. One iteration is one key.

use criterion::{Criterion, criterion_group, criterion_main};
use fastrand::Rng;
use lanner_server::memory::segment::Segment;
use lanner_server::service::Caller;
use lanner_server::service::inbound::Inbound;
use lanner_server::service::replies::Replies;
use lanner_server::shard::{PeerId, Shard, ShardConfig};
use lanner_shared::ShardId;
use lanner_shared::time::Instant;
use lanner_shared::wire::header::Header;
use lanner_shared::wire::put::{PutMode, PutRequest};
use lanner_shared::wire::{MAX_VERSION, Opcode, body, keys};
use std::hint::black_box;

/// As many as make the point, or few when the bench is only tested.
fn objects() -> u32 {
    if std::env::args().any(|argument| argument == "--test") { 20_000 } else { 2_000_000 }
}

fn key(number: u32) -> Vec<u8> {
    format!("model/layer-1/block-{number:08}").into_bytes()
}

fn full_shard() -> Shard {
    let mut segment = Segment::heap(u64::from(objects()) * 192 + (1 << 20)).expect("400 MB of memory");
    segment.prefault(&mut |_, _| {}).expect("400 MB of memory");
    let mut shard = Shard::new(ShardConfig::default(), segment).expect("a segment that is long enough");
    for number in 0..objects() {
        let (key, value) = (key(number), [1; 64]);
        let request = PutRequest {
            key: &key,
            mode: PutMode::Put,
            pin: Default::default(),
            ttl_seconds: 0,
            group: b"",
            chain: None,
        };
        let ticket = shard.put_begin(Instant(1), PeerId(1), &request, 64).expect("room");
        shard.segment_mut().write(ticket.value_offset, &value).expect("in bounds");
        shard.put_commit(Instant(1), ticket).expect("a new key");
    }
    shard
}

/// Frames that ask for `count` random keys each, all different from one to the next.
fn frames(opcode: Opcode, count: usize) -> Vec<Vec<u8>> {
    let mut random = Rng::with_seed(7);
    let frame = |_| {
        let mut frame = Vec::new();
        let start = body::begin(&mut frame);
        (0..count).for_each(|_| keys::append(&mut frame, &key(random.u32(..objects()))));
        let header = Header::request(opcode, ShardId(0), 1, count as u16);
        body::finish(&mut frame, start, header, MAX_VERSION);
        frame
    };
    (0..65_536 / count).map(frame).collect()
}

fn look_ups(criterion: &mut Criterion) {
    let mut shard = full_shard();
    let caller = Caller {
        peer: PeerId(1),
        boot: 0,
        version: MAX_VERSION,
        reads_values: false,
        sends_values: true,
        can_move: false,
        is_draining: false,
    };
    for opcode in [Opcode::Exists, Opcode::Query] {
        for count in [1, 8, 64] {
            let frames = frames(opcode, count);
            let mut next = 0;
            let (mut inbound, mut replies) = (Inbound::default(), Replies::default());
            let name = format!("{} of {count} keys, each key", opcode.name());
            criterion.bench_function(&name, |bencher| {
                bencher.iter_custom(|keys| {
                    let started = lanner_shared::time::Clock.now();
                    for _ in 0..keys.div_ceil(count as u64) {
                        next = (next + 1) % frames.len();
                        let fed = inbound.feed(&mut shard, Instant(2), &caller, &frames[next], &mut replies);
                        assert_eq!(black_box(fed), (frames[next].len(), None));
                        replies.drop_all(&mut shard, Instant(2));
                    }
                    let whole = lanner_shared::time::Clock.now().since(started);
                    // The last frame may be longer than what was asked for.
                    whole.mul_f64(keys as f64 / (keys.div_ceil(count as u64) * count as u64) as f64)
                });
            });
        }
    }
}

criterion_group!(benches, look_ups);
criterion_main!(benches);
