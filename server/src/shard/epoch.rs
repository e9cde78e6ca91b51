//! The epoch words in the segment's page: a group's word changes whenever an object of it stops being the answer to its
//! key, so that a reader notices without asking.

use super::Shard;
use lanner_shared::shm::segment_page::epoch_offset;
use std::sync::atomic::Ordering;

impl Shard {
    /// The value of an epoch word now.
    #[inline]
    pub fn epoch(&self, epoch_slot: u16) -> u32 {
        self.segment.word(epoch_offset(epoch_slot)).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Says to all readers that something of the group was replaced. Called after the index has changed, so that whoever
    /// sees the new value and asks gets the new answer.
    pub(super) fn bump_epoch(&mut self, epoch_slot: u16) {
        if let Ok(word) = self.segment.word(epoch_offset(epoch_slot)) {
            // This shard is the word's only writer, so a load and a store are no race (promise P4).
            word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
    }
}
