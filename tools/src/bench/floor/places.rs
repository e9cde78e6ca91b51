//! Where values lie in the memory of a limit: at cache lines, as in a store.

use fastrand::Rng;

/// Where a value may begin.
const ALIGNMENT: usize = 64;

/// Any place for `bytes` in `memory_bytes`, which are at least as many.
pub fn any(random: &mut Rng, bytes: usize, memory_bytes: usize) -> usize {
    random.usize(0..=(memory_bytes - bytes) / ALIGNMENT) * ALIGNMENT
}

/// The place behind `bytes` that begin at `start`, as a store goes on with what it stores; from the memory's end on the first again.
pub fn behind(start: usize, bytes: usize, memory_bytes: usize) -> usize {
    let next = start + bytes.next_multiple_of(ALIGNMENT);
    if next + bytes <= memory_bytes { next } else { 0 }
}
