//! The link: one queue pair, its completion queue, and the registered memory that belongs to them.
//!
//! ```text
//! buffer:  │ receives: 32 messages │ sends: 8 messages │ staging 0: 256 KiB │ staging 1: 256 KiB │
//! ```
//!
//! | part | in the device's hands | in this side's |
//! |---|---|---|
//! | a receive | from its post on | from its completion until all its bytes were taken |
//! | a send | from its post on | from its completion on |
//! | a staging | from the post of its list on | from the completion of the list's last READ until it's given back |
//!
//! A list may also read straight to registered memory of a caller's ([`super::registration`]), and the server may READ values from there. That
//! memory is the device's from the post, or the offer, until the completion, or the answer, or until the link was dropped. The list holds the region that
//! it was posted with for as long, so that its registration can't end before, whoever forgets it meanwhile.

mod setup;

use super::registration::{self, Region};
use crate::connection::Broken;
use crate::connection::backoff::Backoff;
use crate::connection::presence::{Heard, heard};
use lanner_rdma::INLINE_BYTES;
use lanner_rdma::grants::Allowance;
use lanner_rdma::planner::{Limits, Piece, Plan};
use lanner_rdma::queue_pair::PostId;
use lanner_rdma::verbs::VerbsError;
use lanner_rdma::verbs::completion::{Completion, CompletionQueue, WorkStatus};
use lanner_rdma::verbs::connection::QueuePairOptions;
use lanner_rdma::verbs::device::Domain;
use lanner_rdma::verbs::memory::{Access, Buffer};
use lanner_rdma::verbs::queue_pair::{QueuePair, RECEIVE, RemoteRegion};
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::join_rdma::{LINK_FAILED, MESSAGE_BYTES};
use rustix::net::{RecvFlags, SendFlags};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Messages that there is room for. More answers than these wait at the server.
const RECEIVES: u32 = 32;
/// Requests that are under way at a time and are too long to be sent inline.
const SENDS: u32 = 8;
/// Posts under way at a time: the READs of 8 tokens of 48 rows fit one list.
const POSTS: u32 = 512;
/// Local segments of a READ.
const SEGMENTS: u32 = 4;
/// Lists of READs that are under way at a time.
const STAGINGS: usize = 2;
/// Bytes that one list reads.
pub(crate) const STAGING_BYTES: usize = 256 << 10;

/// A link that has worked for so long is tried again soon when it fails.
const LASTING: Duration = Duration::from_secs(10);

/// How long the cause of a failure, or the end of the server, may come behind the first that is known of it.
const CAUSE_PAUSE: Duration = Duration::from_millis(50);

const SENDS_AT: usize = RECEIVES as usize * MESSAGE_BYTES;
/// Time between two looks for the device: a system call.
const DEVICE_LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of a READ to a caller's registered memory: long enough to fill a link, short enough that several of a list are under way.
const DIRECT_READ_BYTES: u64 = 1 << 20;
/// Places of a list's regions in its plan.
const STAGED: u8 = 0;
const DIRECT: u8 = 1;

const STAGINGS_AT: usize = SENDS_AT + SENDS as usize * MESSAGE_BYTES;
const BUFFER_BYTES: usize = STAGINGS_AT + STAGINGS * STAGING_BYTES;
/// Each post, and each receive, completes at most once.
const COMPLETIONS: u32 = POSTS + RECEIVES;

/// A link. Fields are dropped in order: the queue pair first, after which the device uses nothing of this any more.
#[derive(Debug)]
pub(crate) struct RdmaLink {
    queue_pair: QueuePair,
    completions: Arc<CompletionQueue>,
    buffer: Buffer,
    remote: RemoteRegion,
    /// The TCP connection that this one was made from. Its end is the server's end.
    control: TcpStream,
    /// Messages that came: which, bytes taken, bytes.
    received: VecDeque<(u64, usize, usize)>,
    free_sends: Vec<u32>,
    /// Messages that the server lets this side send.
    allowance: Allowance,
    in_flight: VecDeque<(PostId, u32)>,
    stagings: [Staging; STAGINGS],
    put_by: Vec<PutBy>,
    next_reader: u64,
    next_list: u64,
    plan: Plan,
    /// The longest message that the server takes.
    message_bytes: usize,
    /// The server READs values that are offered to it.
    reads_values: bool,
    /// What has failed, if something has.
    failure: Option<WorkStatus>,
    /// Everybody who has to know of it was told.
    is_told: bool,
    /// Something has completed since this thread last wanted to sleep. It may have been taken while another exchange was polled.
    has_news: bool,
    /// The GID of the server's port.
    peer_gid: [u8; 16],
    /// The first list of READs, until it was read.
    probe: Option<ListId>,
    /// Since when it's known to work.
    proven: Option<Instant>,
    /// Its failure counts against RDMA already.
    is_counted: bool,
    /// Completions taken since the beginning.
    completed: u64,
    backoff: Arc<Backoff>,
    /// When to see next whether the device is still there.
    next_device_look: Instant,
}

/// Where the bytes of a list of READs go.
#[derive(Debug)]
enum Staging {
    Free,
    /// A list of so many bytes, which is done with this post.
    Reading {
        list: ListId,
        reader: ReaderId,
        last: PostId,
        bytes: usize,
        /// What it reads counts for nothing from then on.
        deadline: Instant,
        /// What it reads to beside the staging.
        direct: Option<Arc<Region>>,
    },
    /// For a reader that has given up: free once the device is done.
    GivenUp(PostId),
}

/// Who reads, of all that ever read on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaderId(u64);

/// A list of READs, of all that were ever posted on a link; its reader gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListId(u64);

/// What has become of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// It's being read.
    UnderWay,
    /// It has been read.
    Read,
    /// Its lease ended before its reader asked for it, and it had to make room.
    Forgotten,
}

/// A list that has been read and whose reader hasn't asked for it yet, while another one needed its staging.
#[derive(Debug)]
struct PutBy {
    list: ListId,
    reader: ReaderId,
    bytes: Box<[u8]>,
    deadline: Instant,
}

/// A list of READs being put together.
pub(crate) struct ListBuilder<'a> {
    link: &'a mut RdmaLink,
    reader: ReaderId,
    staging: usize,
    limits: Limits,
    bytes: usize,
    direct: Option<&'a Arc<Region>>,
    deadline: Instant,
}

impl RdmaLink {
    /// A link whose peer isn't known yet, with room for its first messages posted. `control` is the connection that it's made from.
    pub fn new(
        domain: &Arc<Domain>,
        control: TcpStream,
        first_packet: u32,
        backoff: Arc<Backoff>,
    ) -> Result<RdmaLink, VerbsError> {
        let completions = CompletionQueue::new(domain.device(), COMPLETIONS)?;
        let buffer = Buffer::new(domain, BUFFER_BYTES, Access::Local)?;
        let options = QueuePairOptions {
            sends: POSTS,
            receives: RECEIVES,
            inline_bytes: INLINE_BYTES,
            segments: SEGMENTS,
            shared: None,
            // The server READs values that are offered to it. Nothing but what was registered for that can be read: not this link's buffer.
            answers_reads: true,
            // The device was chosen by it.
            address: None,
        };
        let queue_pair = QueuePair::new(domain, &completions, options, first_packet)?;
        let mut link = RdmaLink {
            queue_pair,
            completions,
            buffer,
            remote: RemoteRegion { address: 0, length: 0, key: 0 },
            control,
            received: VecDeque::with_capacity(RECEIVES as usize),
            free_sends: (0..SENDS).collect(),
            allowance: Allowance::default(),
            in_flight: VecDeque::with_capacity(SENDS as usize),
            stagings: [const { Staging::Free }; STAGINGS],
            put_by: Vec::new(),
            next_reader: 0,
            next_list: 0,
            plan: Plan::default(),
            message_bytes: MESSAGE_BYTES,
            reads_values: false,
            failure: None,
            is_told: false,
            has_news: false,
            peer_gid: [0; 16],
            probe: None,
            proven: None,
            is_counted: false,
            completed: 0,
            backoff,
            next_device_look: Instant::ZERO,
        };
        (0..u64::from(RECEIVES)).try_for_each(|index| link.post_receive(RECEIVE | index))?;
        Ok(link)
    }

    pub fn queue_pair_mut(&mut self) -> &mut QueuePair {
        &mut self.queue_pair
    }

    /// A call has waited for its whole time-out. Whether the server or the way there is to blame can't be known; the way is tried again later.
    #[cold]
    pub fn timed_out(&self) {
        let reason = format!("RDMA from {}: a call got no answer within its time-out", self.path());
        self.backoff.failed(Clock.now(), false, &reason);
    }

    fn post_receive(&mut self, receive: u64) -> Result<(), VerbsError> {
        let offset = (receive & !RECEIVE) * MESSAGE_BYTES as u64;
        // SAFETY: the message's bytes are read only between its completion and its next post, and the buffer is dropped behind the queue
        // pair.
        unsafe { self.queue_pair.post_receive(receive, self.buffer.region(), offset, MESSAGE_BYTES as u32) }
    }

    /// Takes what has completed.
    #[inline]
    pub fn poll(&mut self) -> Result<(), Broken> {
        let completions = self.completions.clone();
        completions.poll(|completion| self.take(&completion));
        if self.failure.is_some() || !self.queue_pair.state().takes_sends() {
            while completions.poll(|completion| self.take(&completion)) > 0 {}
            self.tell_of_failure();
            return Err(Broken::Closed);
        }
        Ok(())
    }

    #[inline]
    fn take(&mut self, completion: &Completion) {
        self.has_news = true;
        self.completed += 1;
        if completion.id & RECEIVE != 0 {
            if !completion.status.is_success() {
                return self.fail(completion.status);
            }
            if let Some(grant) = completion.immediate {
                self.allowance.heard(grant);
            }
            match (completion.bytes as usize).min(MESSAGE_BYTES) {
                // It said nothing but that.
                0 if self.post_receive(completion.id).is_err() => self.fail(WorkStatus::DEVICE_GONE),
                0 => {}
                length => self.received.push_back((completion.id, 0, length)),
            }
            return;
        }
        if !self.queue_pair.completed(completion) {
            self.fail(completion.status);
            return;
        }
        while let Some((id, place)) = self.in_flight.front().copied()
            && self.queue_pair.is_done(id)
        {
            self.in_flight.pop_front();
            self.free_sends.push(place);
        }
    }

    /// The first failure says why; those behind it only that everything else was given up. Such a one may be seen first, where the cause is a
    /// post whose completion comes behind those of receives.
    #[cold]
    fn fail(&mut self, status: WorkStatus) {
        self.queue_pair.fail();
        if self.failure.is_none_or(|known| known.is_given_up() && !status.is_given_up()) {
            self.failure = Some(status);
        }
    }

    /// Says what has failed, if something has, once all that has completed was taken.
    #[cold]
    fn tell_of_failure(&mut self) {
        if self.failure.is_none() || std::mem::replace(&mut self.is_told, true) {
            return;
        }
        self.await_cause();
        let Some(status) = self.failure else { return };
        // A server that has gone is no failure of its device's; and of a link that never worked whoever made it knows.
        if let Some(proven) = self.proven.filter(|_| self.is_peer_there()) {
            self.is_counted = true;
            let now = Clock.now();
            let reason = format!("RDMA from {}: {}", self.path(), status.explain());
            self.backoff.failed(now, now.since(proven) >= LASTING, &reason);
        }
        // Nobody has to wait until the next call of a registered buffer for a device that is being taken away.
        if !self.domain().device().is_there() {
            registration::tidy();
        }
        self.say_failed();
    }

    fn say_failed(&self) {
        // The server may be gone itself.
        let _ = rustix::net::send(&self.control, &[LINK_FAILED], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// A queue pair that has ended gives its receives up first. Why it did, or that the server has gone, may come a moment later, so it's waited for
    /// where nothing else is known.
    #[cold]
    fn await_cause(&mut self) {
        let until = Clock.now().plus(CAUSE_PAUSE);
        let completions = self.completions.clone();
        while self.failure.is_some_and(WorkStatus::is_given_up)
            && self.is_peer_there()
            && self.domain().device().is_there()
            && Clock.now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
            while completions.poll(|completion| self.take(&completion)) > 0 {}
        }
    }

    /// Lets go of a device that the system doesn't show any more; then the next poll fails. Looks once in a while only.
    #[inline]
    pub fn look_after_device(&mut self, now: Instant) {
        if now >= self.next_device_look {
            self.next_device_look = now.plus(DEVICE_LOOK_PAUSE);
            if !self.domain().device().is_there() {
                self.fail(WorkStatus::DEVICE_GONE);
            }
        }
    }

    /// Completions taken since the beginning.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether the server is still there, as far as the system knows.
    pub fn is_peer_there(&self) -> bool {
        // The server says nothing more over this socket, so anything to be read is its end.
        heard(&self.control) == Heard::Nothing
    }

    /// Asks to be woken by the next completion. Whether the thread may sleep: none has come in the meantime.
    pub fn prepare_to_sleep(&mut self) -> bool {
        self.completions.request_event();
        let completions = self.completions.clone();
        completions.poll(|completion| self.take(&completion));
        !std::mem::take(&mut self.has_news) && self.received.is_empty() && self.failure.is_none()
    }

    /// What to sleep on: a completion, or the end of the server.
    pub fn wake_sources(&self) -> [BorrowedFd<'_>; 2] {
        [self.completions.event_source(), self.control.as_fd()]
    }

    /// Takes back [`RdmaLink::prepare_to_sleep`]. Whether the server is still there.
    pub fn after_sleep(&mut self) -> bool {
        self.completions.take_events();
        self.is_peer_there()
    }

    /// A name for somebody who is about to read.
    #[inline]
    pub fn new_reader(&mut self) -> ReaderId {
        self.next_reader += 1;
        ReaderId(self.next_reader)
    }

    /// A reader has given up: nobody will ask for its lists any more. Not for one that reads to a caller's memory: that one's link is dropped.
    #[cold]
    pub fn give_up(&mut self, reader: ReaderId) {
        self.put_by.retain(|list| list.reader != reader);
        for staging in &mut self.stagings {
            if let Staging::Reading { reader: of, last, direct, .. } = staging
                && *of == reader
            {
                debug_assert!(direct.is_none());
                *staging = Staging::GivenUp(*last);
            }
        }
    }

    /// The domain that memory has to be registered in to be read to, or from, over this link.
    pub fn domain(&self) -> &Arc<Domain> {
        self.queue_pair.domain()
    }

    /// Whether the server READs values that are offered to it.
    pub fn reads_values(&self) -> bool {
        self.reads_values
    }

    /// Begins a list of READs, if there is room for one. If there isn't, some list is under way, so there will be.
    #[inline]
    pub fn begin_list<'a>(
        &'a mut self,
        reader: ReaderId,
        direct: Option<&'a Arc<Region>>,
        deadline: Instant,
    ) -> Option<ListBuilder<'a>> {
        let is_free = |staging: &Staging| match staging {
            Staging::Free => true,
            Staging::Reading { .. } => false,
            Staging::GivenUp(last) => self.queue_pair.is_done(*last),
        };
        let free = self.stagings.iter().position(is_free);
        let free = free.or_else(|| self.put_one_by())?;
        let limits = self.queue_pair.limits();
        if limits.reads == 0 {
            return None;
        }
        self.plan.clear();
        Some(ListBuilder { link: self, reader, staging: free, limits, bytes: 0, direct, deadline })
    }

    /// Makes room by copying a list that has been read, and that its reader may not ask for before the one who needs the room is done. Lists whose
    /// leases have ended are forgotten: their readers may be, too.
    #[cold]
    fn put_one_by(&mut self) -> Option<usize> {
        let now = Clock.now();
        self.put_by.retain(|list| now < list.deadline);
        for index in 0..STAGINGS {
            if let Staging::Reading { list, reader, last, bytes, deadline, .. } = self.stagings[index]
                && self.queue_pair.is_done(last)
            {
                if now >= deadline {
                    self.stagings[index] = Staging::Free;
                    return Some(index);
                }
                let mut copy = vec![0; bytes].into_boxed_slice();
                self.buffer.read(staging_at(index), &mut copy);
                self.put_by.push(PutBy { list, reader, bytes: copy, deadline });
                self.stagings[index] = Staging::Free;
                return Some(index);
            }
        }
        None
    }

    /// Where a list is, if it has one of the stagings, and whether it has been read.
    #[inline]
    fn find(&self, wanted: ListId) -> Option<(usize, bool)> {
        self.stagings.iter().enumerate().find_map(|(index, staging)| match staging {
            Staging::Reading { list, last, .. } if *list == wanted => {
                Some((index, self.queue_pair.is_done(*last)))
            }
            _ => None,
        })
    }

    /// Whether a list has been read.
    #[inline]
    pub fn whereabouts(&self, list: ListId) -> Whereabouts {
        match self.find(list) {
            Some((_, false)) => Whereabouts::UnderWay,
            Some((_, true)) => Whereabouts::Read,
            None if self.put_by.iter().any(|other| other.list == list) => Whereabouts::Read,
            None => Whereabouts::Forgotten,
        }
    }

    /// Copies bytes of a list that has been read.
    #[inline]
    pub fn copy_out(&self, list: ListId, from: usize, target: &mut [u8]) {
        debug_assert!(self.whereabouts(list) == Whereabouts::Read);
        if let Some((index, _)) = self.find(list) {
            debug_assert!(from + target.len() <= STAGING_BYTES);
            self.buffer.read(staging_at(index) + from, target);
        } else if let Some(list) = self.put_by.iter().find(|other| other.list == list) {
            target.copy_from_slice(&list.bytes[from..from + target.len()]);
        }
    }

    /// Gives back what a list has, which has been read.
    #[inline]
    pub fn give_back(&mut self, list: ListId) {
        debug_assert!(self.whereabouts(list) == Whereabouts::Read);
        match self.find(list) {
            Some((index, _)) => self.stagings[index] = Staging::Free,
            None => self.put_by.retain(|other| other.list != list),
        }
    }
}

fn staging_at(staging: usize) -> usize {
    STAGINGS_AT + staging * STAGING_BYTES
}

impl Drop for RdmaLink {
    /// A link that the server's device gave up ends with a word of the server's. It's given back, so that the server tells this from a client that has
    /// gone, which fails its device, too.
    fn drop(&mut self) {
        let mut byte = [0; 1];
        let heard = rustix::net::recv(&self.control, &mut byte, RecvFlags::DONTWAIT);
        if !heard.is_ok_and(|(count, _)| count > 0) || byte[0] != LINK_FAILED {
            return;
        }
        self.say_failed();
        if let Some(proven) = self.proven.filter(|_| !self.is_counted) {
            let now = Clock.now();
            let reason =
                format!("RDMA from {}: the server's device has given the connection up", self.path());
            self.backoff.failed(now, now.since(proven) >= LASTING, &reason);
        }
    }
}

impl ListBuilder<'_> {
    /// Adds bytes of the segment: to that place of the caller's region, or behind those that were added to the staging before. How many were
    /// taken: fewer than asked for means that the list is full.
    #[inline]
    pub fn push(&mut self, remote_offset: u64, length: u64, direct_offset: Option<u64>) -> u64 {
        if let (Some(local_offset), Some(_)) = (direct_offset, self.direct) {
            let limits =
                Limits { bytes_per_read: self.limits.bytes_per_read.min(DIRECT_READ_BYTES), ..self.limits };
            let piece = Piece { remote_offset, length, local_region: DIRECT, local_offset };
            return self.link.plan.push(piece, &limits);
        }
        let length = length.min((STAGING_BYTES - self.bytes) as u64);
        let local_offset = (staging_at(self.staging) + self.bytes) as u64;
        let piece = Piece { remote_offset, length, local_region: STAGED, local_offset };
        let taken = self.link.plan.push(piece, &self.limits);
        self.bytes += taken as usize;
        taken
    }

    /// Posts the list: one doorbell, one completion. A list of nothing isn't posted.
    #[inline]
    pub fn post(self) -> Result<Option<ListId>, Broken> {
        self.try_to_post().map_err(|_| Broken::Closed)
    }

    /// The same, with what stands in its way.
    #[inline]
    fn try_to_post(self) -> Result<Option<ListId>, VerbsError> {
        let link = self.link;
        if link.plan.reads().is_empty() {
            return Ok(None);
        }
        let staging = link.buffer.region();
        let regions = [staging, self.direct.map_or(staging, |direct| &**direct)];
        // SAFETY: the staging's bytes are read only once its list is done (`copy_out`), it isn't used for another before it's given back,
        // and the buffer is dropped behind the queue pair. The bytes of a caller's region are borrowed by its call, which gives them back only once its
        // lists are done or this link was dropped (`Exchange::abandon`). The region itself is held by the staging below until its list is done, or
        // it's dropped behind the queue pair; if the post fails, by the call until it drops this link, for the queue pair has failed then.
        let last = unsafe { link.queue_pair.post_reads(&link.plan, &regions, &link.remote) }?;
        let list = ListId(link.next_list);
        link.next_list += 1;
        let ListBuilder { reader, bytes, deadline, direct, .. } = self;
        let direct = direct.cloned();
        link.stagings[self.staging] = Staging::Reading { list, reader, last, bytes, deadline, direct };
        Ok(Some(list))
    }
}

impl Read for RdmaLink {
    #[inline]
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if self.received.is_empty() && self.poll().is_err() && self.received.is_empty() {
            // The end of the stream.
            return Ok(0);
        }
        let Some((receive, taken, length)) = self.received.front().copied() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let count = target.len().min(length - taken);
        let at = (receive & !RECEIVE) as usize * MESSAGE_BYTES;
        self.buffer.read(at + taken, &mut target[..count]);
        if taken + count < length {
            self.received[0].1 = taken + count;
        } else {
            self.received.pop_front();
            self.post_receive(receive).map_err(io::Error::other)?;
        }
        Ok(count)
    }
}

impl Write for RdmaLink {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.queue_pair.room() == 0 || self.free_sends.is_empty() || self.allowance.room() == 0 {
            self.poll().map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        if self.queue_pair.room() == 0 || self.allowance.room() == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = bytes.len().min(self.message_bytes);
        if count <= self.queue_pair.inline_bytes() {
            self.queue_pair.post_inline(&bytes[..count], None).map_err(io::Error::other)?;
            self.allowance.sent_one();
            return Ok(count);
        }
        let Some(place) = self.free_sends.pop() else { return Err(io::ErrorKind::WouldBlock.into()) };
        let at = SENDS_AT + place as usize * MESSAGE_BYTES;
        self.buffer.write(at, &bytes[..count]);
        // SAFETY: the place isn't written again before its completion was taken, and the buffer is dropped behind the queue pair.
        let posted =
            unsafe { self.queue_pair.post_message(self.buffer.region(), at as u64, count as u32, None) };
        self.in_flight.push_back((posted.map_err(io::Error::other)?, place));
        self.allowance.sent_one();
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
