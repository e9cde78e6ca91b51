//! What a tenant has on a core's device: a domain of its own, its segment registered for reading, room for messages in both directions.
//!
//! A key of one domain opens no memory of another, so a tenant can't read another's segment whatever key and address it sends (P3).

use crate::config::memory_plan::{RDMA_MESSAGE_BYTES, RDMA_RECEIVES, RDMA_SENDS};
use crate::shard::Shard;
use lanner_rdma::verbs::VerbsError;
use lanner_rdma::verbs::device::{Device, Domain};
use lanner_rdma::verbs::memory::{Access, Buffer, Region};
use lanner_rdma::verbs::receive_queue::SharedReceiveQueue;
use std::sync::Arc;

/// A tenant's part of a device. Fields are dropped in order: what the device may still use goes first.
#[derive(Debug)]
pub(super) struct Tenant {
    pub receives: Arc<SharedReceiveQueue>,
    pub sends: SendPool,
    /// The segment.
    pub segment: Region,
    pub domain: Arc<Domain>,
}

impl Tenant {
    /// Registers what the tenant at `index` needs. All of its segment's memory is taken and held.
    pub fn new(device: &Arc<Device>, index: usize, shard: &mut Shard) -> Result<Tenant, VerbsError> {
        let domain = Domain::new(device)?;
        let length = shard.segment().len();
        let range = shard
            .segment_mut()
            .as_mut_ptr_range(0, length)
            .map_err(|_| VerbsError::Peer("a segment without memory"))?;
        // SAFETY: the segment stays mapped as long as its shard, which the pump drops behind its transports. Peers may read it only.
        let segment = unsafe { Region::new(&domain, range.start, length, Access::RemoteRead) }?;
        let receives = SharedReceiveQueue::new(&domain, RDMA_RECEIVES, RDMA_MESSAGE_BYTES, index as u32)?;
        Ok(Tenant { receives, sends: SendPool::new(&domain)?, segment, domain })
    }
}

/// Registered room for answers on their way.
#[derive(Debug)]
pub(super) struct SendPool {
    buffer: Buffer,
    free: Vec<u32>,
}

impl SendPool {
    fn new(domain: &Arc<Domain>) -> Result<SendPool, VerbsError> {
        let buffer = Buffer::new(domain, RDMA_SENDS as usize * RDMA_MESSAGE_BYTES, Access::Local)?;
        Ok(SendPool { buffer, free: (0..RDMA_SENDS).rev().collect() })
    }

    /// Whether there is room for another answer of a connection that holds so many places.
    pub fn has_room_beside(&self, held: usize) -> bool {
        may_take_another(held, self.free.len())
    }

    /// Copies a message to a place of its own, and says which.
    pub fn fill(&mut self, message: &[u8]) -> Option<u32> {
        let place = self.free.pop()?;
        self.buffer.write(place as usize * RDMA_MESSAGE_BYTES, message);
        Some(place)
    }

    /// The device is done with a place.
    pub fn free(&mut self, place: u32) {
        self.free.push(place);
    }

    /// Where a place starts in [`SendPool::region`].
    pub fn offset(place: u32) -> u64 {
        u64::from(place) * RDMA_MESSAGE_BYTES as u64
    }

    pub fn region(&self) -> &Region {
        self.buffer.region()
    }
}

/// How connections share places: one may hold half as many as are free, and one always. So those that take no answers leave some to the others,
/// and one alone has as many as it wants (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
fn may_take_another(held: usize, free: usize) -> bool {
    free > 0 && held < (free / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::memory_plan::RDMA_POSTS;

    /// Four clients that took no answers had all places, and everybody else waited until they were given up. Shows that one that comes then
    /// gets one, and that a client alone has as many as a connection can use.
    #[test]
    fn connections_that_take_nothing_leave_places_to_others() {
        for stalled in [1, 4, 32, 100] {
            let mut held = vec![0; stalled];
            let mut free = RDMA_SENDS as usize;
            for _ in 0..RDMA_POSTS {
                for held in &mut held {
                    if *held < RDMA_POSTS as usize && may_take_another(*held, free) {
                        *held += 1;
                        free -= 1;
                    }
                }
            }
            assert!(may_take_another(0, free), "{free} are left by {stalled}");
            assert!(stalled > 1 || held[0] == RDMA_POSTS as usize);
        }
        assert!(!may_take_another(0, 0));
    }
}
