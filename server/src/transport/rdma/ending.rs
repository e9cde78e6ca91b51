//! How an RDMA connection ends, and that nothing of it is left.
//!
//! ```text
//! serving ── failed, broke the rules, client gone ─► ending: queue pair in error ── last receive reached, or 200 ms ─► destroyed
//! ```
//!
//! A queue pair that is destroyed before the device has said that it took its last receive may keep that receive for good (the manual of
//! ibv_get_async_event, `IBV_EVENT_QP_LAST_WQE_REACHED`). Soft-RoCE doesn't say it, so nobody waits for long.

use super::{Rdma, tenant_of};
use crate::transport::Core;
use lanner_rdma::verbs::completion::forget_all_of;
use lanner_rdma::verbs::queue_pair::QueuePair;
use std::time::Duration;

/// How long a device has to say that it took a queue pair's last receive. Those that say it do within microseconds.
pub(super) const LAST_RECEIVE_PAUSE: Duration = Duration::from_millis(200);

impl Rdma {
    /// A connection of which something has failed.
    #[cold]
    pub(super) fn fail(&mut self, core: &mut Core, index: usize) {
        let peer = &mut self.peers[index];
        if !std::mem::replace(&mut peer.has_failed, true) {
            peer.tell_of_failure();
        }
        self.end(core, index);
    }

    /// Ends a connection's queue pair: it sends and receives nothing more. It's destroyed once the device has seen to that.
    #[cold]
    pub(super) fn end(&mut self, core: &mut Core, index: usize) {
        let peer = &mut self.peers[index];
        if let Some(queue_pair) = &mut peer.queue_pair
            && peer.ending_since.is_none()
        {
            queue_pair.fail();
            peer.ending_since = Some(core.now);
        }
    }

    /// Destroys a connection's queue pair, and sees to all that it has received or that has become of its posts: its number may be another's next.
    #[cold]
    pub(super) fn destroy(&mut self, core: &mut Core, index: usize) {
        let peer = &mut self.peers[index];
        let Some(number) = peer.queue_pair.as_ref().map(QueuePair::number) else { return };
        // A client that is killed fails this side's device before its socket ends, so it's known only now whether that was all.
        if peer.has_failed && !peer.has_left && (peer.is_client_gone || !peer.has_just_left()) {
            core.stats.rdma_failures += 1;
        }
        self.by_queue_pair.remove(&number);
        self.has_made_room = true;
        peer.end(core, &mut self.tenants[peer.tenant]);
        while self.completions.poll(|completion| self.ready.push(completion)) > 0 {}
        let tenants = &mut self.tenants;
        forget_all_of(number, &mut self.ready, |receive| {
            tenants[tenant_of(receive)].took_receive();
            tenants[tenant_of(receive)].give_receive(receive);
        });
        if self.peers[index].is_client_gone {
            self.remove(core, index);
        }
    }

    /// The client has closed its TCP connection, or this side has.
    #[cold]
    pub(super) fn client_gone(&mut self, core: &mut Core, index: usize) {
        let peer = &mut self.peers[index];
        if peer.queue_pair.is_none() {
            self.remove(core, index);
        } else if !std::mem::replace(&mut peer.is_client_gone, true) {
            peer.has_left = peer.has_just_left();
            if peer.has_left {
                self.end(core, index);
            } else {
                self.fail(core, index);
            }
        }
    }

    /// Takes a connection without a queue pair out of the table.
    fn remove(&mut self, core: &mut Core, index: usize) {
        let mut peer = self.peers.remove(index);
        self.waiting.retain(|other| *other != index);
        let shard = &mut core.shards[peer.tenant];
        peer.replies.drop_all(shard, core.now);
        core.partial_bytes -= peer.held.0;
        core.reply_bytes -= peer.held.1;
        shard.peer_gone(peer.caller.peer);
        core.stats.rdma_connections -= 1;
        core.stats.connections_closed += 1;
        core.identity.connection_closed();
    }
}
