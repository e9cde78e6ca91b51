//! A shard's filter of 64 MiB: what a look at an absent key costs, alone, in batches of 1,024, with the keys' hashing, and with the
//! shard adding and removing keys meanwhile; and what adding, removing and rebuilding cost the shard.
//!
//! Run: `cargo bench -p lanner-benches --bench filter`. One iteration is one key. The filter lies in a memfd, as a server's does, and
//! holds as many keys as it takes before it grows. What is measured is compared with what it has to be: at most 1 % of absent keys
//! taken for present ones, no present one denied.

use criterion::{Criterion, criterion_group, criterion_main};
use lanner_server::memory::segment::{Segment, SegmentOptions};
use lanner_shared::filter::{Filter, FilterWriter, LINE_BYTES, LINES_OFFSET, Mark, PARTS, PLACES_OFFSET};
use lanner_shared::key::KeyHash;
use lanner_shared::time::Clock;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Keys of a batch.
const BATCH: usize = 1024;
/// Batches of absent keys: so many that their lines are in no cache when they come again.
const BATCHES: usize = 512;
/// Keys a line, with which a filter grows.
const KEYS_OF_LINE: u64 = 10;

/// Lines of each part: 64 MiB, or few when the bench is only tested.
fn lines_of_part() -> u64 {
    if std::env::args().any(|argument| argument == "--bench") { 256 } else { 2 }
}

fn memory() -> Segment {
    let len = LINES_OFFSET + lines_of_part() * PARTS as u64 * LINE_BYTES;
    Segment::memfd(&SegmentOptions { len, huge_pages: false, numa_node: None }).expect("64 MiB of memory")
}

fn view(memory: &Segment) -> Filter<'_> {
    Filter::new(memory.words(PLACES_OFFSET).expect("a whole filter"))
}

fn key(number: u64) -> [u8; 28] {
    let mut key = *b"model/layer-1/block-________";
    key[20..].copy_from_slice(&number.to_be_bytes());
    key
}

fn hash(number: u64) -> KeyHash {
    KeyHash::of(&key(number))
}

/// Fills the filter, and returns how many keys that took.
fn fill(memory: &Segment, writer: &mut FilterWriter) -> u64 {
    let lines = lines_of_part();
    for part in 0..PARTS as u64 {
        writer.rebuild(view(memory), part as u16, ((part * lines) as u32, lines as u16), std::iter::empty());
    }
    let keys = lines * PARTS as u64 * KEYS_OF_LINE;
    (0..keys).for_each(|number| assert!(!writer.add(view(memory), Mark::of(hash(number)))));
    assert!((0..keys).all(|number| view(memory).may_contain(hash(number))), "a present key is denied");
    let wrong = (keys..2 * keys).filter(|number| view(memory).may_contain(hash(*number))).count();
    let (share, bytes) = (wrong as f64 / keys as f64, (memory.len() - LINES_OFFSET) as f64 / keys as f64);
    println!("{keys} keys: {:.2} % false positives, {bytes:.1} bytes a key", 100.0 * share);
    assert!(share < 0.01 && bytes <= 8.0);
    keys
}

/// Time of `count` keys in batches, one after the other.
fn batches(count: u64, mut batch: impl FnMut(usize)) -> Duration {
    let rounds = count.div_ceil(BATCH as u64);
    let started = Clock.now();
    (0..rounds).for_each(|round| batch(round as usize % BATCHES));
    // The last batch may be longer than what was asked for.
    Clock.now().since(started).mul_f64(count as f64 / (rounds * BATCH as u64) as f64)
}

fn look_ups(criterion: &mut Criterion, filter: Filter<'_>, absent: &[KeyHash], meanwhile: &str) {
    let mut answers = [false; BATCH];
    criterion.bench_function(&format!("filter/batches of {BATCH} absent keys{meanwhile}"), |bencher| {
        bencher.iter_custom(|count| {
            let mut wrong = 0;
            let spent = batches(count, |batch| {
                filter.may_contain_batch(&absent[batch * BATCH..][..BATCH], &mut answers);
                wrong += answers.iter().filter(|answer| **answer).count() as u64;
            });
            assert!(wrong * 100 <= count.max(BATCH as u64) * 2, "{wrong} of {count}");
            spent
        });
    });
}

fn filter(criterion: &mut Criterion) {
    let memory = memory();
    let mut writer = FilterWriter::default();
    let keys = fill(&memory, &mut writer);
    let absent: Vec<KeyHash> = (0..(BATCH * BATCHES) as u64).map(|number| hash(2 * keys + number)).collect();
    look_ups(criterion, view(&memory), &absent, "");
    criterion.bench_function("filter/hashing and batches of 1024 absent keys", |bencher| {
        let (mut hashes, mut answers) = ([KeyHash { high64: 0, low64: 0 }; BATCH], [false; BATCH]);
        bencher.iter_custom(|count| {
            batches(count, |batch| {
                for (number, hash_of) in hashes.iter_mut().enumerate() {
                    *hash_of = hash(2 * keys + (batch * BATCH + number) as u64);
                }
                view(&memory).may_contain_batch(&hashes, &mut answers);
                black_box(&answers);
            })
        });
    });
    criterion.bench_function("filter/one absent key at a time", |bencher| {
        let mut absent = absent.iter().cycle();
        bencher.iter(|| absent.next().is_some_and(|hash| view(&memory).may_contain(*hash)));
    });
    criterion.bench_function("filter/adding a key and removing another", |bencher| {
        let mut next = 0;
        bencher.iter(|| {
            writer.add(view(&memory), Mark::of(absent[next % absent.len()]));
            writer.remove(view(&memory), Mark::of(absent[next % absent.len()]));
            next += 1;
        });
    });
    rebuild(criterion, view(&memory), &mut writer, &absent);
    with_a_writer(criterion, view(&memory), writer, &absent);
}

/// A part with as many keys as ten million on a shard make, rebuilt where it is, and one slice of it; what readers see meanwhile is of no
/// interest here.
fn rebuild(criterion: &mut Criterion, filter: Filter<'_>, writer: &mut FilterWriter, absent: &[KeyHash]) {
    let all: Vec<u32> = absent.iter().take(20_000).map(|hash| Mark::of(*hash).fingerprint).collect();
    let fingerprints = &all[..2_441];
    let place = FilterWriter::place(filter, 7);
    criterion.bench_function("filter/rebuilding a part of 2441 keys", |bencher| {
        bencher.iter(|| {
            let home = (place.first_line, place.lines);
            writer.rebuild(filter, 7, home, fingerprints.iter().copied());
        });
    });
    // As many keys and lines as a tick goes on by, of a part that is larger than that.
    criterion.bench_function("filter/a slice of 2048 keys and lines of a rebuild", |bencher| {
        bencher.iter_custom(|slices| {
            let mut spent = Duration::ZERO;
            for _ in 0..slices {
                if !writer.is_rebuilding() {
                    let home = (place.first_line, place.lines);
                    writer.begin_rebuild(filter, 7, home, all.iter().copied());
                }
                let started = Clock.now();
                black_box(writer.rebuild_some(filter, 2048));
                spent += Clock.now().since(started);
            }
            spent
        });
    });
    writer.rebuild_some(filter, u64::MAX);
}

/// The look-ups while a writer adds and removes keys as fast as it can. Those are among the keys looked for.
fn with_a_writer(
    criterion: &mut Criterion,
    filter: Filter<'_>,
    mut writer: FilterWriter,
    absent: &[KeyHash],
) {
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for hash in absent.iter().cycle() {
                writer.add(filter, Mark::of(*hash));
                writer.remove(filter, Mark::of(*hash));
                changes.store(changes.load(Ordering::Relaxed) + 2, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        while changes.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let (started, before) = (Clock.now(), changes.load(Ordering::Relaxed));
        look_ups(criterion, filter, absent, ", with a writer at work");
        let rate =
            (changes.load(Ordering::Relaxed) - before) as f64 / Clock.now().since(started).as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        println!("the writer made {:.1} million changes a second meanwhile", rate / 1e6);
    });
}

criterion_group!(benches, filter);
criterion_main!(benches);
