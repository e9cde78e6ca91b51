//! Chains in the order of eviction: a block leaves only after the blocks that hang on it.
//!
//! Called by every policy. A block whose children are all gone is a *leaf*; only leaves hang in the queues of a policy. A
//! parent that loses its last child comes into them as a leaf, where its own last use puts it. So the order needs no
//! search, and a chain is eaten from its end.
//!
//! What always holds: a block counts the published children that name it as their parent. Children of a block that was
//! removed before them (a client may) hang on nothing from then on: the parent's slot has another generation.

use crate::memory::slots::{Kin, Life, SlotId, Slots};

/// Where in a chain a published object stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChainPlace {
    /// It's no block of a chain.
    #[default]
    None,
    /// A block.
    Block {
        /// The slot of the block before it in its group: published, on this shard, and under the same policy. `None` for a group's
        /// first block, and where the one before has left.
        parent: Option<SlotId>,
        /// How many blocks of the chain stand before it, other groups included.
        depth: u32,
    },
}

impl ChainPlace {
    /// How many blocks stand before it; 0 for an object that is no block.
    pub fn depth(self) -> u32 {
        match self {
            ChainPlace::None => 0,
            ChainPlace::Block { depth, .. } => depth,
        }
    }
}

/// Whether it's a block of a chain.
#[inline]
pub(super) fn is_block(slots: &Slots, slot: SlotId) -> bool {
    slots.kin(slot) != Kin::NONE
}

/// Whether blocks hang on it: it's in no queue then.
#[inline]
pub(super) fn has_children(slots: &Slots, slot: SlotId) -> bool {
    slots.kin(slot).children > 0
}

/// Hangs a new block on its parent. Returns the parent if it was a leaf until now: it has to leave its queue.
pub(super) fn attach(slots: &mut Slots, slot: SlotId, place: ChainPlace) -> Option<SlotId> {
    let ChainPlace::Block { parent, .. } = place else { return None };
    let parent = parent.filter(|parent| *parent != slot && slots.life(*parent) == Life::Published);
    let parent_generation = parent.map_or(0, |parent| slots.generation(parent).0 as u16);
    let kin = Kin { parent: parent.unwrap_or(Kin::NO_PARENT), children: 0, parent_generation };
    slots.set_kin(slot, kin);
    let parent = parent?;
    let kin = slots.kin(parent);
    slots.set_kin(parent, Kin { children: kin.children + 1, ..kin });
    (kin.children == 0).then_some(parent)
}

/// Takes a block that leaves off its parent. Returns the parent if it has become a leaf: it has to come into a queue.
pub(super) fn detach(slots: &mut Slots, slot: SlotId) -> Option<SlotId> {
    let kin = slots.kin(slot);
    let parent = kin.parent.some()?;
    slots.set_kin(slot, Kin { parent: Kin::NO_PARENT, ..kin });
    let is_same = slots.generation(parent).0 as u16 == kin.parent_generation;
    if !is_same || slots.life(parent) != Life::Published {
        return None;
    }
    let parent_kin = slots.kin(parent);
    let children = parent_kin.children.checked_sub(1)?;
    slots.set_kin(parent, Kin { children, ..parent_kin });
    (children == 0).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::extents::Extent;

    fn published(slots: &mut Slots) -> SlotId {
        let slot = slots.occupy(Extent { start: 0, units: 1 }).unwrap();
        slots.set_life(slot, Life::Published);
        slot
    }

    fn under(parent: SlotId) -> ChainPlace {
        ChainPlace::Block { parent: Some(parent), depth: 1 }
    }

    /// Shows that a parent is reported when its first child comes and when its last one leaves, and at no other time.
    #[test]
    fn parents_are_leaves_without_children() {
        let mut slots = Slots::new(10);
        let [root, one, two] = [(); 3].map(|()| published(&mut slots));
        assert_eq!(attach(&mut slots, root, ChainPlace::Block { parent: None, depth: 0 }), None);
        assert_eq!(attach(&mut slots, one, under(root)), Some(root));
        assert_eq!(attach(&mut slots, two, under(root)), None);
        assert!(has_children(&slots, root) && !has_children(&slots, one));
        assert_eq!(detach(&mut slots, one), None);
        assert_eq!(detach(&mut slots, one), None, "taken off twice counts once");
        assert_eq!(detach(&mut slots, two), Some(root));
        assert!(!has_children(&slots, root));
    }

    /// A client may remove a block before its children. Shows that another object in the parent's slot isn't taken for it.
    #[test]
    fn orphans_hang_on_nothing() {
        let mut slots = Slots::new(10);
        let [root, child] = [(); 2].map(|()| published(&mut slots));
        attach(&mut slots, root, ChainPlace::Block { parent: None, depth: 0 });
        attach(&mut slots, child, under(root));
        slots.vacate(root);
        let other = published(&mut slots);
        assert_eq!(other, root);
        let grandchild = published(&mut slots);
        attach(&mut slots, grandchild, under(other));
        assert_eq!(detach(&mut slots, child), None);
        assert!(has_children(&slots, other));
    }
}
