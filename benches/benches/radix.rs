//! The radix index against the crates `blart`, `rart` and `fast_radix_trie`: bytes a key, and the time of an insertion, of a search for
//! the longest prefix, and of a removal, in random order. Keys are counted block names with a long common start, and 16 random
//! bytes.
//!
//! Run: `cargo bench -p lanner-benches --bench radix [-- --keys 10000000]`. Each answer is compared with what it has to be. Our index finds
//! keys by slot, as in the shard, where they lie in extents; the others store the keys' bytes themselves, so all that they
//! allocate counts.

use fastrand::Rng;
use lanner_server::memory::slots::SlotId;
use lanner_server::radix::Radix;
use lanner_shared::time::Clock;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the bytes that are allocated now.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: all is passed on to the system's allocator; only a number is kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Keys one after the other, as in a segment: found by their number.
struct Keys {
    bytes: Vec<u8>,
    /// Where each begins, and the end.
    starts: Vec<u64>,
}

impl Keys {
    fn of(count: u32, key: impl Fn(u32) -> Vec<u8>) -> Keys {
        let mut keys = Keys { bytes: Vec::new(), starts: vec![0] };
        for number in 0..count {
            keys.bytes.extend(key(number));
            keys.starts.push(keys.bytes.len() as u64);
        }
        keys
    }

    fn key(&self, number: u32) -> &[u8] {
        let number = number as usize;
        &self.bytes[self.starts[number] as usize..self.starts[number + 1] as usize]
    }
}

/// What is compared.
trait OrderedKeys: Default {
    const NAME: &'static str;
    fn insert(&mut self, keys: &Keys, number: u32);
    /// The number of the longest key that `key` begins with.
    fn longest_prefix(&self, keys: &Keys, key: &[u8]) -> Option<u32>;
    fn remove(&mut self, keys: &Keys, number: u32) -> bool;
}

impl OrderedKeys for Radix {
    const NAME: &'static str = "lanner";

    fn insert(&mut self, keys: &Keys, number: u32) {
        Radix::insert(self, keys.key(number), SlotId(number), |slot| Some(keys.key(slot.0)));
    }

    fn longest_prefix(&self, keys: &Keys, key: &[u8]) -> Option<u32> {
        Radix::longest_prefix(self, key, |slot| Some(keys.key(slot.0))).map(|slot| slot.0)
    }

    fn remove(&mut self, keys: &Keys, number: u32) -> bool {
        Radix::remove(self, keys.key(number), SlotId(number))
    }
}

#[derive(Default)]
struct Blart(blart::TreeMap<Box<[u8]>, u32>);

impl OrderedKeys for Blart {
    const NAME: &'static str = "blart";

    fn insert(&mut self, keys: &Keys, number: u32) {
        self.0.try_insert(keys.key(number).into(), number).expect("no key is the prefix of another");
    }

    fn longest_prefix(&self, _: &Keys, key: &[u8]) -> Option<u32> {
        self.0.prefix_get(key).copied()
    }

    fn remove(&mut self, keys: &Keys, number: u32) -> bool {
        self.0.remove(keys.key(number)).is_some()
    }
}

struct Rart(rart::AdaptiveRadixTree<rart::VectorKey, u32>);

impl Default for Rart {
    fn default() -> Rart {
        Rart(rart::AdaptiveRadixTree::new())
    }
}

fn vector_key(key: &[u8]) -> rart::VectorKey {
    rart::VectorKey::new_from_vec(key.to_vec())
}

impl OrderedKeys for Rart {
    const NAME: &'static str = "rart";

    fn insert(&mut self, keys: &Keys, number: u32) {
        self.0.insert_k(&vector_key(keys.key(number)), number);
    }

    fn longest_prefix(&self, _: &Keys, key: &[u8]) -> Option<u32> {
        self.0.longest_prefix_value_bytes(key).copied()
    }

    fn remove(&mut self, keys: &Keys, number: u32) -> bool {
        self.0.remove_k(&vector_key(keys.key(number))).is_some()
    }
}

#[derive(Default)]
struct FastRadixTrie(fast_radix_trie::RadixMap<u32>);

impl OrderedKeys for FastRadixTrie {
    const NAME: &'static str = "fast_radix_trie";

    fn insert(&mut self, keys: &Keys, number: u32) {
        self.0.insert(keys.key(number), number);
    }

    fn longest_prefix(&self, _: &Keys, key: &[u8]) -> Option<u32> {
        self.0.get_longest_common_prefix(key).map(|(_, number)| *number)
    }

    fn remove(&mut self, keys: &Keys, number: u32) -> bool {
        self.0.remove(keys.key(number)).is_some()
    }
}

/// Nanoseconds of each of `count` calls.
fn nanoseconds_each(count: usize, calls: impl FnOnce()) -> f64 {
    let started = Clock.now();
    calls();
    Clock.now().since(started).as_nanos() as f64 / count as f64
}

fn measure<T: OrderedKeys>(kind: &str, keys: &Keys, order: &[u32]) {
    let allocated_before = ALLOCATED.load(Ordering::Relaxed);
    let mut index = T::default();
    let insert =
        nanoseconds_each(order.len(), || order.iter().for_each(|number| index.insert(keys, *number)));
    let bytes = (ALLOCATED.load(Ordering::Relaxed) - allocated_before) as f64 / order.len() as f64;
    // Each key with something behind it, which is then its longest prefix.
    let mut asked = Vec::with_capacity(2048);
    let search = nanoseconds_each(order.len(), || {
        for number in order.iter().rev() {
            asked.clear();
            asked.extend_from_slice(keys.key(*number));
            asked.extend_from_slice(b"/behind");
            assert_eq!(index.longest_prefix(keys, &asked), Some(*number));
        }
    });
    let remove = nanoseconds_each(order.len(), || {
        order.iter().for_each(|number| assert!(index.remove(keys, *number)));
    });
    println!(
        "{kind:<8} {:<16} {:>9} keys: {bytes:>6.1} bytes a key, insert {insert:>5.0} ns, longest prefix {search:>5.0} ns, \
         remove {remove:>5.0} ns",
        T::NAME,
        order.len(),
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| arguments.iter().skip_while(|argument| *argument != flag).nth(1);
    // `cargo test` only looks whether it runs.
    let default = if arguments.iter().any(|argument| argument == "--bench") { 1_000_000 } else { 10_000 };
    let count = after("--keys").map_or(default, |keys| keys.parse().expect("a number of keys"));
    let mut order: Vec<u32> = (0..count).collect();
    Rng::with_seed(7).shuffle(&mut order);
    let counted = Keys::of(count, |number| format!("model/layer-1/block-{number:08}").into_bytes());
    let random = Keys::of(count, |number| {
        let hash = lanner_shared::KeyHash::of(&number.to_le_bytes());
        [hash.high64.to_be_bytes(), hash.low64.to_be_bytes()].concat()
    });
    for (kind, keys) in [("counted", counted), ("random", random)] {
        measure::<Radix>(kind, &keys, &order);
        measure::<Blart>(kind, &keys, &order);
        measure::<Rart>(kind, &keys, &order);
        // It panics where 256 different bytes follow a common start.
        if kind == "counted" {
            measure::<FastRadixTrie>(kind, &keys, &order);
        }
    }
}
