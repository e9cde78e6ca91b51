//! What a link does before calls go over it: it meets its peer, and sees whether what it sends comes back.

use super::{RdmaLink, Whereabouts};
use lanner_rdma::verbs::VerbsError;
use lanner_rdma::verbs::completion::WorkStatus;
use lanner_rdma::verbs::queue_pair::RemoteRegion;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::join_rdma::{FEATURE_READS_VALUES, MESSAGE_BYTES, RdmaJoined};
use rustix::event::{PollFd, PollFlags};
use std::net::IpAddr;
use std::time::Duration;

/// Bytes that are READ to see whether a link works: some packets of the port's MTU, for a network may carry small ones only.
const PROBE_BYTES: u64 = 8 << 10;
impl RdmaLink {
    /// Connects to the server's side, and begins to READ a few bytes of its segment: [`RdmaLink::probe`] says whether they came.
    pub fn meet(&mut self, joined: &RdmaJoined) -> Result<(), VerbsError> {
        let peer = joined.endpoint.into();
        self.queue_pair.meet(&peer)?;
        self.peer_gid = peer.gid;
        self.remote = RemoteRegion {
            address: joined.segment_address.get(),
            length: joined.segment_bytes.get(),
            key: joined.segment_key.get(),
        };
        self.reads_values = joined.endpoint.features.get() & FEATURE_READS_VALUES != 0;
        self.message_bytes = (joined.message_bytes.get() as usize).min(MESSAGE_BYTES);
        let reader = self.new_reader();
        let length = self.remote.length.min(PROBE_BYTES);
        if let Some(mut list) = self.begin_list(reader, None, Instant::NEVER) {
            list.push(0, length, None);
            self.probe = list.try_to_post()?;
        }
        Ok(())
    }

    /// Whether the first READ has come, so that the link is known to work; an error if it never will.
    pub fn probe(&mut self) -> Result<bool, ()> {
        self.poll().map_err(drop)?;
        let Some(list) = self.probe else { return Ok(self.works()) };
        if self.whereabouts(list) == Whereabouts::UnderWay {
            return Ok(false);
        }
        self.give_back(list);
        self.probe = None;
        Ok(self.works())
    }

    fn works(&mut self) -> bool {
        self.proven = Some(Clock.now());
        self.backoff.works();
        true
    }

    /// Sleeps until something has completed, or the server has gone, for at most so long.
    pub fn sleep(&mut self, limit: Duration) {
        if !self.prepare_to_sleep() {
            return;
        }
        let mut polled = self.wake_sources().map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
        if let Ok(limit) = rustix::time::Timespec::try_from(limit) {
            let _ = rustix::event::poll(&mut polled, Some(&limit));
        }
        self.after_sleep();
    }

    /// From where to where it leads, for a person.
    pub fn path(&self) -> String {
        let selection = &self.domain().device().selection;
        let (index, gid) = self.queue_pair.gid();
        let address = |gid: [u8; 16]| IpAddr::from(gid).to_canonical();
        let (device, port) = (&selection.device, selection.port);
        format!("{device} port {port} GID {index} ({}) to GID {}", address(gid), address(self.peer_gid))
    }

    /// Why it has failed, for a person.
    pub fn explain_failure(&self) -> &'static str {
        self.failure.map_or("the connection has ended", WorkStatus::explain)
    }
}
