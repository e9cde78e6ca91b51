//! Values of puts that this side READs out of a client's registered memory, straight to their extents: no copy, and no instruction for
//! each packet.
//!
//! ```text
//! offered ─► extent pinned ─► READs of 1 MiB, four under way ─► unpinned, committed, answered
//!                         └─ the shard gave the put up: no further READ ─► those under way end ─► unpinned, answered
//! ```
//!
//! What always holds: an extent is pinned from before its first READ is posted until the last has completed or the queue pair was destroyed, so
//! a device never writes where something else may lie by then; a value is committed only if every byte of it was read.

use crate::service::inbound::OfferedValue;
use crate::shard::{PutTicket, Shard};
use lanner_rdma::planner::{Piece, Plan};
use lanner_rdma::queue_pair::PostId;
use lanner_rdma::verbs::VerbsError;
use lanner_rdma::verbs::memory::Region;
use lanner_rdma::verbs::queue_pair::{QueuePair, RemoteRegion};
use lanner_shared::time::Instant;
use std::collections::VecDeque;

/// Bytes of a READ: enough to fill any link, few enough that progress shows on a slow one.
const READ_BYTES: u64 = 1 << 20;
/// READs of a connection that are under way at a time.
const MOST_READS: usize = 4;

/// The READs of one connection. It has one value under way at a time.
#[derive(Debug, Default)]
pub(super) struct ValueReads {
    /// Their posts, and how many bytes each reads.
    under_way: VecDeque<(PostId, u64)>,
    /// The put whose extent is pinned.
    pinned: Option<PutTicket>,
    /// Bytes of it that were asked for.
    posted: u64,
    plan: Plan,
}

impl ValueReads {
    /// Posts as many READs of `value` as there is room for. How many bytes the put is to be told are there without having been read, because
    /// the shard gave it up: 0 or all that is missing.
    pub fn post(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        value: &OfferedValue,
        queue_pair: &mut QueuePair,
        segment: &Region,
    ) -> Result<u64, VerbsError> {
        let OfferedValue { ticket, offer, missing } = value;
        if self.pinned.is_none() {
            if shard.pin_for_receive(ticket).is_err() {
                // Should it still be unfinished: what is told to have its value without having it must not be published.
                shard.put_abort(now, *ticket);
                return Ok(*missing);
            }
            (self.pinned, self.posted) = (Some(*ticket), 0);
        }
        let source = RemoteRegion {
            address: offer.address.get(),
            length: offer.value_bytes.get(),
            key: offer.key.get(),
        };
        while shard.is_unfinished(ticket)
            && self.posted < ticket.value_bytes
            && self.under_way.len() < MOST_READS
            && queue_pair.room() > 0
        {
            let mut limits = queue_pair.limits();
            limits.bytes_per_read = limits.bytes_per_read.min(READ_BYTES);
            let piece = Piece {
                remote_offset: self.posted,
                length: (ticket.value_bytes - self.posted).min(limits.bytes_per_read),
                local_region: 0,
                local_offset: ticket.value_offset + self.posted,
            };
            self.plan.clear();
            let length = self.plan.push(piece, &limits);
            // SAFETY: the extent is pinned until the READ has completed or the queue pair was destroyed, and an unfinished put's value is
            // written by its one connection alone. The segment stays registered as long as the tenant, which is dropped behind all queue pairs.
            let id = unsafe { queue_pair.post_reads(&self.plan, &[segment], &source) }?;
            self.under_way.push_back((id, length));
            self.posted += length;
        }
        if self.under_way.is_empty() && !shard.is_unfinished(ticket) {
            self.unpin(shard, now);
            return Ok(*missing);
        }
        Ok(0)
    }

    /// Takes the READs that are done. How many bytes of the value are there by them; its extent is unpinned once that is all.
    pub fn completed(&mut self, shard: &mut Shard, now: Instant, queue_pair: &QueuePair) -> u64 {
        let mut bytes = 0;
        while let Some((id, length)) = self.under_way.front().copied()
            && queue_pair.is_done(id)
        {
            self.under_way.pop_front();
            bytes += length;
        }
        if self.under_way.is_empty() && self.pinned.is_some_and(|ticket| self.posted == ticket.value_bytes) {
            self.unpin(shard, now);
        }
        bytes
    }

    /// The queue pair was destroyed, or none was ever there: the device is done with the extent, of which some may be missing.
    pub fn end(&mut self, shard: &mut Shard, now: Instant) {
        self.under_way.clear();
        if let Some(ticket) = self.pinned {
            self.unpin(shard, now);
            shard.put_abort(now, ticket);
        }
    }

    /// Whether the client's device owes something.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    fn unpin(&mut self, shard: &mut Shard, now: Instant) {
        if let Some(ticket) = self.pinned.take() {
            shard.unpin_after_receive(now, &ticket);
        }
    }
}
