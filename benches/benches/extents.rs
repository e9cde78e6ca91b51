//! Extent allocator against the crate `offset-allocator` on a mix of what a shard stores: rows of 264 B, KV blocks of
//! 64 KiB, 1 MiB and 4 MiB, a quarter of the bytes each, headers included.
//!
//! Prints for both how full the memory is, and in how small pieces the rest, when a request fails: for the first time,
//! and over a long churn in which random extents are freed. Then measures one free and one allocation at 80 % full.
//! Run: `cargo bench -p lanner-benches --bench extents`.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use fastrand::Rng;
use lanner_server::memory::extents::{Extent, ExtentAllocator};
use lanner_server::memory::segment::Segment;

/// 1 GiB in units of 64 bytes.
const CAPACITY_UNITS: u32 = 1 << 24;
/// Extents of the four kinds of values: a header's line and the value, in units.
const SIZES: [u32; 4] = [6, 1025, 16_385, 65_537];

/// What is compared: both hand out numbers of units at an offset in units.
trait Placement {
    type Extent;
    fn new() -> Self;
    fn allocate(&mut self, units: u32) -> Option<Self::Extent>;
    fn free(&mut self, extent: Self::Extent);
    /// Free units, and those of the largest free run.
    fn free_space(&self) -> (u64, u64);
}

struct Lanner {
    segment: Segment,
    allocator: ExtentAllocator,
}

impl Placement for Lanner {
    type Extent = Extent;

    fn new() -> Self {
        let mut segment = Segment::heap(u64::from(CAPACITY_UNITS) * 64).expect("1 GiB of memory");
        // A server prefaults its segment; page faults are not what is measured here.
        segment.prefault(&mut |_, _| {}).expect("1 GiB of memory");
        let all = Extent { start: 0, units: CAPACITY_UNITS };
        let allocator = ExtentAllocator::new(&mut segment, all).expect("the range lies within the segment");
        Self { segment, allocator }
    }

    fn allocate(&mut self, units: u32) -> Option<Extent> {
        self.allocator.allocate(&mut self.segment, units).expect("no tag is damaged")
    }

    fn free(&mut self, extent: Extent) {
        self.allocator.free(&mut self.segment, extent).expect("it was allocated");
    }

    fn free_space(&self) -> (u64, u64) {
        let space = self.allocator.free_space();
        (space.free_units, space.largest_run_units)
    }
}

struct OffsetAllocator(offset_allocator::Allocator<u32>);

impl Placement for OffsetAllocator {
    type Extent = offset_allocator::Allocation<u32>;

    fn new() -> Self {
        Self(offset_allocator::Allocator::with_max_allocs(CAPACITY_UNITS, 4 << 20))
    }

    fn allocate(&mut self, units: u32) -> Option<Self::Extent> {
        self.0.allocate(units)
    }

    fn free(&mut self, extent: Self::Extent) {
        self.0.free(extent);
    }

    fn free_space(&self) -> (u64, u64) {
        let report = self.0.storage_report();
        (u64::from(report.total_free_space), u64::from(report.largest_free_region))
    }
}

/// A placement under load: what is live, and from where the next size comes.
struct Load<P: Placement> {
    placement: P,
    live: Vec<(P::Extent, u32)>,
    live_units: u64,
    random: Rng,
}

impl<P: Placement> Load<P> {
    fn new(seed: u64) -> Self {
        Self { placement: P::new(), live: Vec::new(), live_units: 0, random: Rng::with_seed(seed) }
    }

    /// A size such that each kind makes up a quarter of the bytes: chosen in inverse proportion to it.
    fn size(&mut self) -> u32 {
        let weight = |units: u32| 1.0 / f64::from(units);
        let mut point = self.random.f64() * SIZES.into_iter().map(weight).sum::<f64>();
        for units in SIZES {
            point -= weight(units);
            if point < 0.0 {
                return units;
            }
        }
        SIZES[0]
    }

    fn free_one(&mut self) {
        let chosen = self.random.usize(..self.live.len());
        let (extent, units) = self.live.swap_remove(chosen);
        self.placement.free(extent);
        self.live_units -= u64::from(units);
    }

    fn allocate_one(&mut self) -> bool {
        let units = self.size();
        self.allocate(units)
    }

    fn allocate(&mut self, units: u32) -> bool {
        match self.placement.allocate(units) {
            Some(extent) => {
                self.live.push((extent, units));
                self.live_units += u64::from(units);
                true
            }
            None => false,
        }
    }

    /// Fills to a share of the capacity and then replaces everything `rounds` times over at that level.
    fn churn(&mut self, share: f64, rounds: u64) {
        let level = (f64::from(CAPACITY_UNITS) * share) as u64;
        let mut allocated = 0;
        while allocated < rounds * level {
            let before = self.live_units;
            if self.live_units > level || !self.allocate_one() {
                self.free_one();
            } else {
                allocated += self.live_units - before;
            }
        }
    }
}

/// What a full cache lives with: each request that finds no room frees random extents until it does.
fn report_full_cache<P: Placement>(name: &str) {
    // `cargo test --benches` only looks whether it runs.
    let (seeds, turnovers) =
        if std::env::args().any(|argument| argument == "--test") { (1, 1) } else { (3, 8) };
    for seed in 1..=seeds {
        let mut load = Load::<P>::new(seed);
        while load.allocate_one() {}
        let first_fill = load.live_units as f64 / f64::from(CAPACITY_UNITS);
        let (mut allocated, mut failures, mut full, mut fragmentation) = (0, 0_u64, 0.0, 0.0);
        while allocated < turnovers * u64::from(CAPACITY_UNITS) {
            let units = load.size();
            allocated += u64::from(units);
            while !load.allocate(units) {
                let (free, largest) = load.placement.free_space();
                fragmentation += 1.0 - largest as f64 / free.max(1) as f64;
                full += load.live_units as f64 / f64::from(CAPACITY_UNITS);
                failures += 1;
                load.free_one();
            }
        }
        println!(
            "{name:<17} seed {seed}: {:.1} % full at the first failure; over {turnovers} times the capacity {failures} failures, \
             at {:.1} % full and fragmentation {:.3} on average",
            100.0 * first_fill,
            100.0 * full / failures as f64,
            fragmentation / failures as f64,
        );
    }
}

fn bench_replacement<P: Placement>(criterion: &mut Criterion, name: &str) {
    let mut load = Load::<P>::new(7);
    load.churn(0.8, 3);
    criterion.bench_function(&format!("extents/{name}/free and allocate, 80 % full"), |bencher| {
        bencher.iter_batched(
            || (),
            |()| {
                load.free_one();
                load.allocate_one()
            },
            BatchSize::NumIterations(4096),
        );
    });
}

fn extents(criterion: &mut Criterion) {
    report_full_cache::<Lanner>("lanner");
    report_full_cache::<OffsetAllocator>("offset-allocator");
    bench_replacement::<Lanner>(criterion, "lanner");
    bench_replacement::<OffsetAllocator>(criterion, "offset-allocator");
}

criterion_group!(benches, extents);
criterion_main!(benches);
