//! What an order of eviction costs for each object: a removal from anywhere, and a use, at ten thousand, one million and ten million objects
//! under each policy.
//!
//! Both touch the object's slot and its neighbours in a queue, each somewhere else in memory, so what is to be expected beyond
//! the caches is a few times the memory's latency, at any number of objects. That latency is measured beside, by a walk through
//! slots in random order, in the same memory. Run: `cargo bench -p lanner-benches --bench eviction`. One iteration is one object.

use criterion::{Criterion, criterion_group, criterion_main};
use fastrand::Rng;
use lanner_server::eviction::{ChainPlace, EvictionPolicy, Policy, PolicyKind, PolicyTime};
use lanner_server::memory::extents::Extent;
use lanner_server::memory::slots::{SlotId, Slots};
use lanner_shared::key::KeyHash;
use lanner_shared::time::Clock;
use std::hint::black_box;
use std::time::Duration;

/// Units of an object: 384 bytes.
const UNITS: u32 = 6;

/// Objects handled in a row while the clock runs.
const IN_A_ROW: usize = 4096;

fn is_test() -> bool {
    std::env::args().any(|argument| argument == "--test")
}

/// A policy with so many objects, each used once, in an order that isn't that of their slots.
struct Store {
    slots: Slots,
    policy: Policy,
    ids: Vec<SlotId>,
    random: Rng,
}

impl Store {
    fn new(kind: PolicyKind, objects: u32) -> Self {
        let capacity = u64::from(objects) * u64::from(UNITS);
        let mut store = Self {
            slots: Slots::new(objects),
            policy: Policy::new(kind, capacity),
            ids: Vec::new(),
            random: Rng::with_seed(u64::from(objects)),
        };
        store.ids = (0..objects).map(|_| store.occupy()).collect();
        store.random.shuffle(&mut store.ids);
        for (number, id) in store.ids.iter().enumerate() {
            // An hour's work.
            let passed = Duration::from_millis(3_600_000 * number as u64 / u64::from(objects));
            store.policy.set_time(PolicyTime::after(passed));
            store.policy.inserted(&mut store.slots, *id, hash(*id), ChainPlace::None);
        }
        store.random.shuffle(&mut store.ids);
        store
    }

    fn occupy(&mut self) -> SlotId {
        self.slots.occupy(Extent { start: 0, units: UNITS }).expect("below the limit")
    }

    /// Removes objects from anywhere, and adds as many while nobody looks at the clock.
    fn removals(&mut self, count: u64) -> Duration {
        let mut spent = Duration::ZERO;
        let mut left = count as usize;
        while left > 0 {
            let now = left.min(IN_A_ROW).min(self.ids.len());
            let gone = self.ids.split_off(self.ids.len() - now);
            let before = self.policy.queued();
            let started = Clock.now();
            for id in &gone {
                self.policy.removed(&mut self.slots, *id);
                self.slots.vacate(*id);
            }
            spent += Clock.now().since(started);
            assert_eq!(before - self.policy.queued(), now as u32, "each of them left its queue");
            for _ in &gone {
                let id = self.occupy();
                self.policy.inserted(&mut self.slots, id, hash(id), ChainPlace::None);
                self.ids.push(id);
                let other = self.random.usize(..self.ids.len());
                let last = self.ids.len() - 1;
                self.ids.swap(other, last);
            }
            left -= now;
        }
        spent
    }

    /// Uses of objects anywhere.
    fn uses(&mut self, count: u64) -> Duration {
        let used: Vec<SlotId> =
            (0..count.min(1 << 20)).map(|_| self.ids[self.random.usize(..self.ids.len())]).collect();
        let before = self.policy.queued();
        let started = Clock.now();
        for number in 0..count as usize {
            let id = used[number % used.len()];
            self.policy.accessed(&mut self.slots, id, hash(id));
        }
        let spent = Clock.now().since(started);
        assert_eq!(self.policy.queued(), before, "each of them is still in a queue");
        spent
    }
}

fn hash(id: SlotId) -> KeyHash {
    let spread = u64::from(id.0).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    KeyHash { high64: spread.rotate_left(32), low64: spread }
}

/// One step of a walk in which each step depends on the one before, through as much memory as the slots take.
fn memory_latency(objects: u32, count: u64) -> Duration {
    const WORDS_IN_SLOT: usize = 8;
    let mut order: Vec<u32> = (0..objects).collect();
    Rng::with_seed(1).shuffle(&mut order);
    let mut memory = vec![0_u32; objects as usize * WORDS_IN_SLOT];
    for pair in order.windows(2) {
        memory[pair[0] as usize * WORDS_IN_SLOT] = pair[1];
    }
    memory[order[order.len() - 1] as usize * WORDS_IN_SLOT] = order[0];
    let started = Clock.now();
    let mut place = order[0];
    for _ in 0..count {
        place = memory[place as usize * WORDS_IN_SLOT];
    }
    black_box(place);
    Clock.now().since(started)
}

fn eviction(criterion: &mut Criterion) {
    let sizes: &[u32] = if is_test() { &[10_000] } else { &[10_000, 1_000_000, 10_000_000] };
    for objects in sizes.iter().copied() {
        criterion.bench_function(&format!("eviction/memory's latency/{objects}"), |bencher| {
            bencher.iter_custom(|count| memory_latency(objects, count));
        });
        for (name, kind) in
            [("lru", PolicyKind::Lru), ("s3-fifo", PolicyKind::S3Fifo), ("adaptive", PolicyKind::Adaptive)]
        {
            let mut store = Store::new(kind, objects);
            criterion.bench_function(&format!("eviction/{name}/remove/{objects}"), |bencher| {
                bencher.iter_custom(|count| store.removals(count));
            });
            criterion.bench_function(&format!("eviction/{name}/use/{objects}"), |bencher| {
                bencher.iter_custom(|count| store.uses(count));
            });
        }
    }
}

criterion_group!(benches, eviction);
criterion_main!(benches);
