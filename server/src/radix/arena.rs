//! Where the index's branches keep their twigs: bundles of 2 to 17 twigs in pages, each page with bundles of one size.
//!
//! Called by the index only. A bundle is named by its page, its number there and its generation, which stands in the bundle's first
//! entry and in the one twig that leads to it. So a name that has outlived its bundle leads to nothing, never to another
//! bundle: that removing and merging branches goes wrong silently is ruled out here rather than by care there.
//!
//! ```text
//! page:    │ head │ twig │ twig │ … │ head │ twig │ twig │ … │      680 entries of 12 bytes
//!            └ generation; while free: the next free bundle
//! ```
//!
//! What always holds: a page is in its size's list of pages with room if it has some; a page without bundles belongs to no size and
//! is the next to be used. Absent on purpose: giving pages back to the system.

/// Entries of a page: a multiple of most strides, and few enough that a bundle's number has eight bits.
const PAGE_ENTRIES: usize = 680;
/// The most twigs of a bundle: 16 half-bytes and the end of a key.
pub const MAX_TWIGS: usize = 17;
/// No page, or no bundle.
const NONE: u32 = u32::MAX;

/// What a symbol leads to: a slot, or a branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Twig {
    /// The slot of a leaf; page and number of a branch's bundle.
    pub target: u32,
    /// 0 for a leaf; of a branch the symbols that it has (17 bits) and the position that it looks at (12 bits).
    pub shape: u32,
    /// Of a branch's bundle.
    pub generation: u32,
}

const _: () = assert!(size_of::<Twig>() == 12);

#[derive(Debug)]
struct Page {
    entries: Box<[Twig]>,
    /// Twigs of each bundle.
    size: u8,
    used: u16,
    /// The first free bundle, by number.
    first_free: u32,
    /// Neighbours among the pages of this size with room.
    previous: u32,
    next: u32,
}

/// All bundles.
#[derive(Debug)]
pub struct Arena {
    pages: Vec<Page>,
    /// By size: the first page with room.
    with_room: [u32; MAX_TWIGS + 1],
    /// Pages without bundles.
    empty: Vec<u32>,
    last_generation: u32,
}

impl Default for Arena {
    fn default() -> Arena {
        Arena { pages: Vec::new(), with_room: [NONE; MAX_TWIGS + 1], empty: Vec::new(), last_generation: 0 }
    }
}

impl Arena {
    /// A bundle of these twigs: its target and generation. `None` if they are too many, or 2^24 pages are in use.
    pub fn bundle(&mut self, twigs: &[Twig]) -> Option<(u32, u32)> {
        let size = twigs.len();
        let number = match self.with_room.get(size).copied()? {
            NONE => self.page_for(size)?,
            number => number,
        };
        self.last_generation = self.last_generation.checked_add(1).unwrap_or(1);
        let generation = self.last_generation;
        let page = self.pages.get_mut(number as usize)?;
        let bundle = page.first_free;
        let start = bundle as usize * (size + 1);
        let (head, entries) = page.entries.get_mut(start..start + size + 1)?.split_first_mut()?;
        page.first_free = head.target;
        page.used += 1;
        *head = Twig { target: 0, shape: 0, generation };
        entries.copy_from_slice(twigs);
        if page.first_free == NONE {
            self.leave_list(number);
        }
        Some((number << 8 | bundle, generation))
    }

    /// The twigs of a bundle; none if the bundle has been freed.
    #[inline]
    pub fn twigs(&self, target: u32, generation: u32) -> &[Twig] {
        let Some(page) = self.pages.get((target >> 8) as usize) else { return &[] };
        let stride = usize::from(page.size) + 1;
        let start = (target & 0xff) as usize * stride;
        match page.entries.get(start..start + stride) {
            Some([head, twigs @ ..]) if head.generation == generation => twigs,
            _ => &[],
        }
    }

    /// The same, to change them.
    #[inline]
    pub fn twigs_mut(&mut self, target: u32, generation: u32) -> &mut [Twig] {
        let Some(page) = self.pages.get_mut((target >> 8) as usize) else { return &mut [] };
        let stride = usize::from(page.size) + 1;
        let start = (target & 0xff) as usize * stride;
        match page.entries.get_mut(start..start + stride) {
            Some([head, twigs @ ..]) if head.generation == generation => twigs,
            _ => &mut [],
        }
    }

    /// Frees a bundle. Does nothing if it was freed before.
    pub fn free(&mut self, target: u32, generation: u32) {
        if self.twigs(target, generation).is_empty() {
            return;
        }
        let (number, bundle) = (target >> 8, target & 0xff);
        let Some(page) = self.pages.get_mut(number as usize) else { return };
        let was_full = page.first_free == NONE;
        let start = bundle as usize * (usize::from(page.size) + 1);
        let Some(head) = page.entries.get_mut(start) else { return };
        // No generation is 0.
        *head = Twig { target: page.first_free, shape: 0, generation: 0 };
        page.first_free = bundle;
        page.used -= 1;
        let is_empty = page.used == 0;
        match (is_empty, was_full) {
            (true, true) => self.empty.push(number),
            (true, false) => {
                self.leave_list(number);
                self.empty.push(number);
            }
            (false, true) => self.join_list(number),
            (false, false) => {}
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        let page = PAGE_ENTRIES * size_of::<Twig>();
        (self.pages.len() * page + self.pages.capacity() * size_of::<Page>() + self.empty.capacity() * 4)
            as u64
    }

    /// Bundles in use.
    #[cfg(test)]
    pub fn bundles(&self) -> usize {
        self.pages.iter().map(|page| usize::from(page.used)).sum()
    }

    /// A page with room for bundles of `size`: one without bundles, or a new one.
    fn page_for(&mut self, size: usize) -> Option<u32> {
        let number = match self.empty.pop() {
            Some(number) => number,
            None => {
                let number = u32::try_from(self.pages.len()).ok().filter(|number| *number < 1 << 24)?;
                let entries = vec![Twig::default(); PAGE_ENTRIES].into_boxed_slice();
                self.pages.push(Page {
                    entries,
                    size: 0,
                    used: 0,
                    first_free: NONE,
                    previous: NONE,
                    next: NONE,
                });
                number
            }
        };
        let page = self.pages.get_mut(number as usize)?;
        page.size = size as u8;
        page.first_free = 0;
        let bundles = PAGE_ENTRIES / (size + 1);
        for (bundle, entries) in page.entries.chunks_exact_mut(size + 1).enumerate() {
            let next = if bundle + 1 < bundles { bundle as u32 + 1 } else { NONE };
            entries[0] = Twig { target: next, shape: 0, generation: 0 };
        }
        self.join_list(number);
        Some(number)
    }

    fn join_list(&mut self, number: u32) {
        let Some(page) = self.pages.get_mut(number as usize) else { return };
        let Some(first) = self.with_room.get_mut(usize::from(page.size)) else { return };
        page.previous = NONE;
        page.next = std::mem::replace(first, number);
        let next = page.next;
        if let Some(next) = self.pages.get_mut(next as usize) {
            next.previous = number;
        }
    }

    fn leave_list(&mut self, number: u32) {
        let Some(page) = self.pages.get(number as usize) else { return };
        let (size, previous, next) = (usize::from(page.size), page.previous, page.next);
        match self.pages.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => {
                if let Some(first) = self.with_room.get_mut(size) {
                    *first = next;
                }
            }
        }
        if let Some(next) = self.pages.get_mut(next as usize) {
            next.previous = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn twigs(size: usize, mark: u32) -> Vec<Twig> {
        (0..size as u32).map(|number| Twig { target: number, shape: mark, generation: mark }).collect()
    }

    proptest! {
        /// Shows, against a plain list, that bundles keep their twigs while others of all sizes come and go, and that the name of
        /// a freed one leads to nothing ever after.
        #[test]
        fn bundles_keep_their_twigs(steps in prop::collection::vec((2_usize..=17, 0_usize..1000, any::<bool>()), 1..600)) {
            let mut arena = Arena::default();
            let (mut live, mut freed) = (Vec::new(), Vec::new());
            for (mark, (size, chosen, is_free)) in steps.into_iter().enumerate() {
                if is_free && !live.is_empty() {
                    let (name, _): ((u32, u32), Vec<Twig>) = live.swap_remove(chosen % live.len());
                    arena.free(name.0, name.1);
                    arena.free(name.0, name.1);
                    freed.push(name);
                } else {
                    let wanted = twigs(size, mark as u32);
                    live.push((arena.bundle(&wanted).unwrap(), wanted));
                }
            }
            for (name, wanted) in &live {
                prop_assert_eq!(arena.twigs(name.0, name.1), wanted.as_slice());
            }
            prop_assert!(freed.iter().all(|name| arena.twigs(name.0, name.1).is_empty()));
            prop_assert_eq!(arena.bundles(), live.len());
        }
    }

    /// Shows that pages without bundles serve another size: a hundred thousand bundles that grow from 2 to 17 twigs leave no more memory
    /// behind than two sizes take.
    #[test]
    fn pages_change_their_size() {
        let mut arena = Arena::default();
        let mut names: Vec<_> = (0..20_000).map(|_| arena.bundle(&twigs(2, 0)).unwrap()).collect();
        for size in 3..=17 {
            for name in &mut names {
                arena.free(name.0, name.1);
                *name = arena.bundle(&twigs(size, 0)).unwrap();
            }
        }
        let least = 20_000 * 18 * 12;
        assert!(arena.bytes() < least * 11 / 10, "{} against {least}", arena.bytes());
        assert_eq!(arena.bundle(&twigs(18, 0)), None);
    }
}
