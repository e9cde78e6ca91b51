//! What a tenant has on a core's device: a domain of its own, its segment registered for reading, room for messages in both directions.
//!
//! A key of one domain opens no memory of another, so a tenant can't read another's segment whatever key and address it sends (P3).

use crate::config::memory_plan::{RDMA_MESSAGE_BYTES, RDMA_RECEIVES, RDMA_SENDS};
use crate::shard::Shard;
use lanner_rdma::share;
use lanner_rdma::verbs::VerbsError;
use lanner_rdma::verbs::device::{Device, Domain};
use lanner_rdma::verbs::memory::{Access, Buffer, Region};
use lanner_rdma::verbs::receive_queue::SharedReceiveQueue;
use std::sync::Arc;

/// A tenant's part of a device. Fields are dropped in order: what the device may still use goes first.
#[derive(Debug)]
pub(super) struct Tenant {
    pub receives: Arc<SharedReceiveQueue>,
    /// Receives that the device has.
    free_receives: usize,
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
        let free_receives = receives.len();
        Ok(Tenant { receives, free_receives, sends: SendPool::new(&domain)?, segment, domain })
    }

    /// A receive has completed.
    pub fn took_receive(&mut self) {
        self.free_receives = self.free_receives.saturating_sub(1);
    }

    /// Gives a receive that has completed to the device again.
    pub fn give_receive(&mut self, receive: u64) {
        // Refused only if it was there already, which it isn't, or if the device has gone.
        if self.receives.post(receive).is_ok() {
            self.free_receives += 1;
        }
    }

    /// Receives that the device has.
    pub fn free_receives(&self) -> usize {
        self.free_receives
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
        share::may_take_another(held, self.free.len())
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
