//! The radix index of a shard: its keys in order, by what they begin with.
//!
//! Called by the shard, which tells it of each key that comes and goes; asked by `longest_prefix` and `list`. A qp-trie (Finch,
//! "QP tries are smaller and faster than crit-bit tries", 2015): a Patricia trie over half-bytes in which a branch keeps only the twigs
//! that it has, side by side, and a map of 17 bits says which. A branch names the position that it looks at, so what all keys below
//! have in common costs nothing.
//!
//! A leaf is a slot. The key's bytes are in the object's extent; the caller brings them by slot when they have to be compared: once in each
//! insertion and each search, and never in a removal.
//!
//! With ten million keys that is some 20 bytes a key and seven levels; a crit-bit trie would take 16 bytes and have 24 levels,
//! each of which waits for memory. ARCHITECTURE.md compares it with others.
//!
//! What always holds: a branch has at least two twigs, in the order of their symbols; positions grow on the way down; the twig of the
//! end is a leaf. Absent on purpose: keys, and any memory for an iteration but its own way down (a list goes on behind the last key).

mod arena;
mod symbols;

use crate::memory::slots::SlotId;
use arena::{Arena, MAX_TWIGS, Twig};
use lanner_shared::key::MAX_KEY_BYTES;
use smallvec::SmallVec;
use symbols::{END, first_difference, shared_bytes, symbol_at};

const SYMBOLS: u32 = 17;
const SYMBOLS_MASK: u32 = (1 << SYMBOLS) - 1;

const _: () = {
    assert!(MAX_TWIGS as u32 == SYMBOLS);
    assert!(2 * MAX_KEY_BYTES < 1 << (32 - SYMBOLS));
};

impl Twig {
    fn leaf(slot: SlotId) -> Twig {
        Twig { target: slot.0, shape: 0, generation: 0 }
    }

    fn branch(position: u32, symbols: u32, (target, generation): (u32, u32)) -> Twig {
        Twig { target, shape: position << SYMBOLS | symbols, generation }
    }

    /// The slot, if it is a leaf.
    #[inline]
    fn slot(self) -> Option<SlotId> {
        (self.shape == 0).then_some(SlotId(self.target))
    }

    /// The position that a branch looks at.
    #[inline]
    fn position(self) -> u32 {
        self.shape >> SYMBOLS
    }

    /// A bit for each symbol that a branch has a twig for.
    #[inline]
    fn symbols(self) -> u32 {
        self.shape & SYMBOLS_MASK
    }

    /// Number of twigs with a lower symbol: where this symbol's twig is, or would be.
    #[inline]
    fn rank(self, symbol: u32) -> usize {
        (self.symbols() & ((1 << symbol) - 1)).count_ones() as usize
    }

    #[inline]
    fn has(self, symbol: u32) -> bool {
        self.symbols() >> symbol & 1 != 0
    }
}

/// Where a twig is.
#[derive(Debug, Clone, Copy)]
enum Spot {
    Root,
    Below { branch: Twig, rank: usize },
}

/// The keys of a shard in order.
#[derive(Debug, Default)]
pub struct Radix {
    arena: Arena,
    root: Option<Twig>,
    len: u64,
}

impl Radix {
    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Makes `slot` the answer for `key`, of at most [`MAX_KEY_BYTES`]. Returns the slot that was so before. `key_of` gives the
    /// key of any slot in the index; without it (a damaged extent) nothing is inserted.
    pub fn insert<'k>(
        &mut self,
        key: &[u8],
        slot: SlotId,
        key_of: impl Fn(SlotId) -> Option<&'k [u8]>,
    ) -> Option<SlotId> {
        let Some(root) = self.root else {
            self.root = Some(Twig::leaf(slot));
            self.len = 1;
            return None;
        };
        let nearest = self.nearest(root, key)?;
        let stored = key_of(nearest)?;
        match first_difference(key, stored) {
            None => {
                let (spot, _) = self.walk(root, key, u32::MAX)?;
                self.set(spot, Twig::leaf(slot));
                Some(nearest)
            }
            Some(position) => {
                let (spot, twig) = self.walk(root, key, position)?;
                let (symbol, other) = (symbol_at(key, position), symbol_at(stored, position));
                let grown = if twig.slot().is_none() && twig.position() == position {
                    self.with_twig(twig, symbol, Twig::leaf(slot))
                } else {
                    let twigs =
                        if symbol < other { [Twig::leaf(slot), twig] } else { [twig, Twig::leaf(slot)] };
                    self.arena
                        .bundle(&twigs)
                        .map(|bundle| Twig::branch(position, 1 << symbol | 1 << other, bundle))
                };
                self.set(spot, grown?);
                self.len += 1;
                None
            }
        }
    }

    /// Takes `key` out if `slot`, whose key it is, is the answer for it. Looks at no stored key.
    pub fn remove(&mut self, key: &[u8], slot: SlotId) -> bool {
        let Some(root) = self.root else { return false };
        let (mut spot, mut above, mut twig) = (Spot::Root, None, root);
        while twig.slot().is_none() {
            let symbol = symbol_at(key, twig.position());
            let Some(next) = self.twig_of(twig, symbol) else { return false };
            above = Some((spot, symbol));
            spot = Spot::Below { branch: twig, rank: twig.rank(symbol) };
            twig = next;
        }
        if twig.slot() != Some(slot) {
            return false;
        }
        match (above, spot) {
            (Some((above, symbol)), Spot::Below { branch, rank }) => {
                let Some(left) = self.without_twig(branch, symbol, rank) else { return false };
                self.set(above, left);
            }
            _ => self.root = None,
        }
        self.len -= 1;
        true
    }

    /// The slot of the longest key that `key` begins with, `key` itself included.
    #[must_use]
    pub fn longest_prefix<'k>(
        &self,
        key: &[u8],
        key_of: impl Fn(SlotId) -> Option<&'k [u8]>,
    ) -> Option<SlotId> {
        let root = self.root?;
        // No key has more bytes in common with this one.
        let nearest = self.nearest(root, key)?;
        let stored = key_of(nearest)?;
        let shared = shared_bytes(key, stored);
        if shared == stored.len() {
            return Some(nearest);
        }
        // Keys that end on the way have all their bytes in common with the nearest, as far as that is so with ours.
        let (mut twig, mut longest) = (root, None);
        while twig.slot().is_none() && twig.position() <= 2 * shared as u32 {
            if twig.has(END) {
                longest = self.twig_of(twig, END).and_then(Twig::slot).or(longest);
            }
            let Some(next) = self.twig_of(twig, symbol_at(key, twig.position())) else { break };
            twig = next;
        }
        longest
    }

    /// All slots whose keys are `from` or come behind it, in the order of their keys.
    pub fn from<'k>(&self, from: &[u8], key_of: impl Fn(SlotId) -> Option<&'k [u8]>) -> InOrder<'_> {
        let mut walk = InOrder { radix: self, first: None, open: SmallVec::new() };
        let Some(root) = self.root else { return walk };
        let Some(stored) = self.nearest(root, from).and_then(&key_of) else { return walk };
        let position = first_difference(from, stored).unwrap_or(u32::MAX);
        let mut twig = root;
        while twig.slot().is_none() && twig.position() < position {
            let symbol = symbol_at(from, twig.position());
            let Some(next) = self.twig_of(twig, symbol) else { return walk };
            walk.open.push((twig, twig.rank(symbol) + 1));
            twig = next;
        }
        if twig.slot().is_none() && twig.position() == position {
            // The branch has no twig for our symbol, so its lower ones come before us and its higher ones behind.
            walk.open.push((twig, twig.rank(symbol_at(from, position))));
        } else if position == u32::MAX || symbol_at(from, position) < symbol_at(stored, position) {
            walk.first = Some(twig);
        }
        walk
    }

    /// A key that has as many symbols in common with `key` as any.
    #[inline]
    fn nearest(&self, root: Twig, key: &[u8]) -> Option<SlotId> {
        let mut twig = root;
        loop {
            if let Some(slot) = twig.slot() {
                return Some(slot);
            }
            let symbol = symbol_at(key, twig.position());
            let rank = if twig.has(symbol) { twig.rank(symbol) } else { 0 };
            twig = *self.twigs(twig).get(rank)?;
        }
    }

    /// Down the way of `key` to the first twig that is a leaf or looks at `until` or behind.
    fn walk(&self, root: Twig, key: &[u8], until: u32) -> Option<(Spot, Twig)> {
        let (mut spot, mut twig) = (Spot::Root, root);
        while twig.slot().is_none() && twig.position() < until {
            let symbol = symbol_at(key, twig.position());
            let next = self.twig_of(twig, symbol)?;
            spot = Spot::Below { branch: twig, rank: twig.rank(symbol) };
            twig = next;
        }
        Some((spot, twig))
    }

    #[inline]
    fn twigs(&self, branch: Twig) -> &[Twig] {
        self.arena.twigs(branch.target, branch.generation)
    }

    #[inline]
    fn twig_of(&self, branch: Twig, symbol: u32) -> Option<Twig> {
        if !branch.has(symbol) {
            return None;
        }
        self.twigs(branch).get(branch.rank(symbol)).copied()
    }

    fn set(&mut self, spot: Spot, twig: Twig) {
        match spot {
            Spot::Root => self.root = Some(twig),
            Spot::Below { branch, rank } => {
                if let Some(place) = self.arena.twigs_mut(branch.target, branch.generation).get_mut(rank) {
                    *place = twig;
                }
            }
        }
    }

    /// The branch with one twig more, in a bundle of its own.
    fn with_twig(&mut self, branch: Twig, symbol: u32, twig: Twig) -> Option<Twig> {
        let mut twigs: SmallVec<[Twig; MAX_TWIGS]> = SmallVec::from_slice(self.twigs(branch));
        let rank = branch.rank(symbol);
        if rank > twigs.len() || twigs.len() == MAX_TWIGS {
            return None;
        }
        twigs.insert(rank, twig);
        let bundle = self.arena.bundle(&twigs)?;
        self.arena.free(branch.target, branch.generation);
        Some(Twig::branch(branch.position(), branch.symbols() | 1 << symbol, bundle))
    }

    /// What is left of a branch without one of its twigs: a smaller branch, or its only other twig.
    fn without_twig(&mut self, branch: Twig, symbol: u32, rank: usize) -> Option<Twig> {
        let mut twigs: SmallVec<[Twig; MAX_TWIGS]> = SmallVec::from_slice(self.twigs(branch));
        if rank >= twigs.len() {
            return None;
        }
        twigs.remove(rank);
        let left = match twigs.as_slice() {
            [only] => *only,
            several => {
                let bundle = self.arena.bundle(several)?;
                Twig::branch(branch.position(), branch.symbols() & !(1 << symbol), bundle)
            }
        };
        self.arena.free(branch.target, branch.generation);
        Some(left)
    }
}

/// Slots in the order of their keys. Takes memory for its way down: a branch and a number for each level.
#[derive(Debug)]
pub struct InOrder<'a> {
    radix: &'a Radix,
    /// What comes before all that is open.
    first: Option<Twig>,
    /// Branches on the way down, and which of their twigs comes next.
    open: SmallVec<[(Twig, usize); 32]>,
}

impl Iterator for InOrder<'_> {
    type Item = SlotId;

    fn next(&mut self) -> Option<SlotId> {
        loop {
            let twig = match self.first.take() {
                Some(twig) => twig,
                None => {
                    let (branch, rank) = self.open.last_mut()?;
                    match self.radix.twigs(*branch).get(*rank) {
                        Some(twig) => {
                            *rank += 1;
                            *twig
                        }
                        None => {
                            self.open.pop();
                            continue;
                        }
                    }
                }
            };
            match twig.slot() {
                Some(slot) => return Some(slot),
                None => self.open.push((twig, 0)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
