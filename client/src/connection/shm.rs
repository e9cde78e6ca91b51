//! Frames over a pair of rings in shared memory; values are read from the mapped segment, so replies carry none.
//!
//! The Unix socket over which the lane was handed out stays open: its end is how each side learns of the other's.

use super::Broken;
use super::presence::{Heard, heard};
use crate::mapping::Mapping;
use lanner_shared::shm::lane_memory::LaneMemory;
use lanner_shared::shm::lane_page::STAGING_BYTES;
use lanner_shared::shm::line_ring::{Consumer, LINE_DATA_BYTES, Producer};
use lanner_shared::shm::park;
use lanner_shared::shm::touch_ring::{Touch, TouchWriter};
use lanner_shared::wire::MAX_VERSION;
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use lanner_shared::{Error, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are copied into the staging buffer before the shard is told, so that both copy at the same time. Less keeps the shard
/// closer behind, and what it reads in the caches: 64 KiB take 7 us in steps of 8 KiB and 20 us in steps of 32.
const STAGING_STEP_BYTES: usize = 8 << 10;

/// A lane and the segment that it leads to.
#[derive(Debug)]
pub(crate) struct ShmTransport {
    lane: LaneMemory,
    mapping: Arc<Mapping>,
    socket: UnixStream,
    wake_shard: OwnedFd,
    wake_client: OwnedFd,
    requests: Producer,
    replies: Consumer,
    touches: TouchWriter,
    /// Bytes put into the staging buffer since the beginning.
    staged: u64,
    /// Header and body of the frame that's being received, as far as its lines have come.
    frame: Vec<u8>,
    /// Bytes of that, as far as is known.
    wanted: usize,
    is_frame_whole: bool,
}

/// What the server handed over.
pub(crate) struct Granted {
    pub mapping: Arc<Mapping>,
    pub lane: OwnedFd,
    pub wake_shard: OwnedFd,
    pub wake_client: OwnedFd,
    pub socket: UnixStream,
}

impl ShmTransport {
    pub fn new(granted: Granted) -> Result<ShmTransport> {
        Ok(ShmTransport {
            lane: LaneMemory::map(granted.lane.as_fd()).map_err(not_mapped)?,
            mapping: granted.mapping,
            socket: granted.socket,
            wake_shard: granted.wake_shard,
            wake_client: granted.wake_client,
            requests: Producer::default(),
            replies: Consumer::default(),
            touches: TouchWriter::default(),
            staged: 0,
            frame: Vec::new(),
            wanted: 0,
            is_frame_whole: false,
        })
    }

    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let written = self.requests.push(self.lane.requests(), bytes);
        if written > 0 {
            self.wake_shard_if_parked();
        }
        Ok(written)
    }

    /// Publishes a touch, which the shard takes at its next tick; if it takes none, the touch is dropped. A shard that sleeps isn't
    /// woken for one.
    pub fn tell_touch(&mut self, touch: Touch) {
        self.touches.publish(self.lane.touches(), std::iter::once(touch));
    }

    /// Puts payload bytes into the staging buffer, as many as there is room for.
    pub fn write_staged(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let page = self.lane.page();
        let consumed = page.staging_consumed.0.load(Ordering::Acquire);
        let used = self.staged.checked_sub(consumed).filter(|used| *used <= STAGING_BYTES as u64);
        let used = used.ok_or(Broken::Closed)? as usize;
        let at = self.staged as usize % STAGING_BYTES;
        let count = bytes.len().min(STAGING_BYTES - used).min(STAGING_BYTES - at).min(STAGING_STEP_BYTES);
        if count > 0 {
            self.lane.write_staging(at, &bytes[..count]);
            self.staged += count as u64;
            self.lane.page().staging_written.0.store(self.staged, Ordering::Release);
            self.wake_shard_if_parked();
        }
        Ok(count)
    }

    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<Header>, Broken> {
        loop {
            if let Some(header) = self.frame.first_chunk::<HEADER_BYTES>() {
                let header = Header::decode(header, MAX_VERSION)?;
                self.wanted = HEADER_BYTES + header.body_bytes as usize;
                if self.frame.len() >= self.wanted {
                    self.is_frame_whole = true;
                    return Ok(Some(header));
                }
            }
            let missing = self.wanted.saturating_sub(self.frame.len());
            if !self.replies.take(self.lane.replies(), missing, &mut self.frame) {
                return Ok(None);
            }
        }
    }

    #[inline]
    pub fn body(&self, header: &Header) -> &[u8] {
        self.frame.get(HEADER_BYTES..HEADER_BYTES + header.body_bytes as usize).unwrap_or_default()
    }

    #[inline]
    pub fn end_frame(&mut self) {
        if std::mem::take(&mut self.is_frame_whole) {
            self.frame.clear();
            self.wanted = 0;
        }
    }

    /// What to sleep on: the shard's answer, or the end of the server.
    pub fn wake_sources(&self) -> [BorrowedFd<'_>; 2] {
        [self.wake_client.as_fd(), self.socket.as_fd()]
    }

    /// Announces that this thread is about to sleep. Whether it may: no reply has come in the meantime.
    pub fn prepare_to_sleep(&mut self) -> bool {
        park::announce(&self.lane.page().client_parked.0);
        !self.replies.is_ready_for(self.lane.replies(), self.wanted.saturating_sub(self.frame.len()))
    }

    /// Takes back [`ShmTransport::prepare_to_sleep`]. Whether the server is still there.
    pub fn after_sleep(&mut self) -> bool {
        park::awake(&self.lane.page().client_parked.0);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake_client, &mut count);
        self.is_peer_there()
    }

    /// Whether the server is still there.
    pub fn is_peer_there(&self) -> bool {
        // The server says nothing more over this socket, so anything to be read is its end.
        heard(&self.socket) == Heard::Nothing
    }

    #[inline]
    fn wake_shard_if_parked(&self) {
        if park::must_wake(self.mapping.parked()) {
            let _ = rustix::io::write(&self.wake_shard, &1_u64.to_ne_bytes());
        }
    }

    const _LINES: () = assert!(LINE_DATA_BYTES >= HEADER_BYTES, "a header comes with the first line");
}

/// Pads queued frames to whole lines: each frame starts on a fresh one, also when several are pushed at once.
#[inline]
pub(super) fn pad_to_line(queued: &mut Vec<u8>) {
    let whole = queued.len().next_multiple_of(LINE_DATA_BYTES);
    queued.resize(whole, 0);
}

fn not_mapped(error: std::io::Error) -> Error {
    Error::System { what: "mapping a shared-memory lane".into(), reason: error.to_string().into() }
}
