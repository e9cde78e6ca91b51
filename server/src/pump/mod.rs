//! The pump: the one task of a core that moves everything. It polls the lanes, the ring and the mail, in turn, and when
//! nothing has come for a while it sleeps.
//!
//! ```text
//!   ┌─► ring completions ─► tcp / handshakes ─┐
//!   │   mail              ─► new connections  │
//!   │   shm lanes         ─► turn             ├─► shard ─► replies ─► ring, lanes
//!   │   tick (1 ms)       ─► shard, time-outs ┘
//!   └── nothing for `SPIN` and --poll adaptive: announce, look once more, sleep on the ring
//! ```

pub mod mail;
pub mod ring;

use crate::admin::board::{Board, ShardReport};
use crate::config::PollMode;
use crate::config::memory_plan::SHM_LANES;
use crate::server::control::Control;
use crate::server::identity::Identity;
use crate::shard::TickOutcome;
use crate::transport::handshake::{Acceptor, SocketKind, say};
use crate::transport::rdma::Rdma;
use crate::transport::rdma_home::RdmaHome;
use crate::transport::shm::{NewLane, Shm};
use crate::transport::tcp::Tcp;
use crate::transport::{Core, Transport};
use lanner_shared::ShardId;
use lanner_shared::shm::grant::{GRANTED_FILES, Grant};
use lanner_shared::shm::lane_page::{REPLY_LINES, REQUEST_LINES, STAGING_BYTES};
use lanner_shared::shm::park;
use lanner_shared::time::{Clock, Instant};
use mail::{Mail, Mailbox, NewConnection};
use ring::{Completion, Operation, OperationKind};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// How long a core polls on after its last work before it sleeps, with `--poll adaptive`. Long against the pauses within a
/// burst of requests, short against the pauses between bursts.
const SPIN: Duration = Duration::from_millis(1);
/// Empty turns between two looks at the clock.
const TURNS_PER_LOOK: u32 = 64;
/// Bytes received between two looks at the clock: as many short puts as take a part of a tick. Other requests look at it themselves.
const BYTES_PER_LOOK: u64 = 64 << 10;
/// How often the shards' clean-up runs while there is work.
const TICK: Duration = Duration::from_millis(1);
/// The longest sleep: statistics and time-outs of connections are looked at this often even when nothing happens.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Everything that one core serves.
pub struct Pump {
    /// Where there is a device. Before the core, so that it's dropped before the memory that the device reads.
    rdma: Option<Rdma>,
    /// Where there was one at the start.
    rdma_home: Option<RdmaHome>,
    core: Core,
    tcp: Tcp,
    shm: Shm,
    /// On the first core.
    acceptor: Option<Acceptor>,
    mailbox: Mailbox,
    /// Sockets of clients that only wait for the server's end, by place.
    watchers: slab::Slab<std::os::fd::OwnedFd>,
    control: Arc<Control>,
    board: Arc<Board>,
    poll: PollMode,
    completions: Vec<Completion>,
    last_work: Instant,
    next_tick: Instant,
    next_report: Instant,
    is_drained: bool,
}

/// What a pump is made of.
pub struct PumpParts {
    /// Shards, one for each tenant.
    pub shards: Vec<crate::shard::Shard>,
    /// Where there is a device.
    pub rdma: Option<Rdma>,
    /// How it's chosen, where there is one.
    pub rdma_home: Option<RdmaHome>,
    /// On the first core.
    pub acceptor: Option<Acceptor>,
    /// This core's mail.
    pub mailbox: Mailbox,
    /// The ways to all cores' mail, by shard.
    pub posts: Vec<mail::Post>,
    /// Who the server is.
    pub identity: Arc<Identity>,
    /// Whether it's to go on.
    pub control: Arc<Control>,
    /// Where reports go.
    pub board: Arc<Board>,
    /// Whether the core sleeps.
    pub poll: PollMode,
}

impl Pump {
    /// A pump for the calling thread.
    ///
    /// # Errors
    /// What the system says about an io_uring.
    pub fn new(parts: PumpParts) -> std::io::Result<Pump> {
        let now = Clock.now();
        Ok(Pump {
            rdma: parts.rdma,
            rdma_home: parts.rdma_home,
            core: Core {
                shards: parts.shards,
                ring: ring::Ring::new()?,
                now,
                stats: crate::transport::stats::TransportStats::default(),
                is_draining: false,
                partial_bytes: 0,
                reply_bytes: 0,
                posts: parts.posts,
                identity: parts.identity.clone(),
            },
            tcp: Tcp::default(),
            shm: Shm::default(),
            acceptor: parts.acceptor,
            mailbox: parts.mailbox,
            watchers: slab::Slab::new(),
            control: parts.control,
            board: parts.board,
            poll: parts.poll,
            completions: Vec::with_capacity(256),
            last_work: now,
            next_tick: now,
            next_report: now,
            is_drained: false,
        })
    }

    /// Serves until the server is to end.
    pub async fn run(mut self) {
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.start(&mut self.core);
        }
        if let Some(rdma) = &mut self.rdma {
            rdma.start(&mut self.core);
        }
        self.watch_mailbox();
        while !self.control.is_stopped() {
            // Never gives the executor a turn: nothing else runs on it, and its sleep was seen not to end.
            self.spin();
        }
        if let Some(acceptor) = &self.acceptor {
            acceptor.stop();
        }
        self.tcp.end_all(&mut self.core);
        self.report();
    }

    /// Turns until it's time to look at the clock, and does what that says.
    fn spin(&mut self) {
        let enough_bytes = self.core.stats.received_bytes + BYTES_PER_LOOK;
        for _ in 0..TURNS_PER_LOOK {
            if self.turn() {
                self.last_work = self.core.now;
                if self.core.now >= self.next_tick || self.core.stats.received_bytes >= enough_bytes {
                    break;
                }
            }
        }
        self.core.now = Clock.now();
        if self.core.now >= self.next_tick {
            self.tick();
        }
        if self.poll == PollMode::Adaptive && self.core.now.since(self.last_work) >= SPIN {
            self.sleep();
        }
    }

    /// One look at everything. Whether there was something to do.
    #[inline]
    fn turn(&mut self) -> bool {
        let mut has_worked = self.shm.poll(&mut self.core);
        if let Some(rdma) = &mut self.rdma {
            has_worked |= rdma.poll(&mut self.core);
        }
        self.core.ring.submit();
        self.core.ring.take_completions(&mut self.completions);
        if !self.completions.is_empty() {
            // Later than what has arrived was sent (see `Core::now`).
            self.core.now = Clock.now();
            self.dispatch();
            self.core.ring.submit();
            // The answers are on their way.
            self.core.shards.iter_mut().for_each(crate::shard::Shard::apply_touches);
            has_worked = true;
        }
        has_worked
    }

    fn dispatch(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            match completion.operation.kind {
                OperationKind::TcpReceive | OperationKind::TcpSend => {
                    self.tcp.completed(&mut self.core, completion)
                }
                OperationKind::LaneEnd => self.lane_ended(completion),
                OperationKind::RdmaEnd | OperationKind::RdmaCompletion | OperationKind::RdmaDevice => {
                    if let Some(rdma) = &mut self.rdma {
                        rdma.completed(&mut self.core, completion);
                    }
                }
                OperationKind::Wake => {
                    self.mailbox.hush();
                    self.watch_mailbox();
                    self.read_mail();
                }
                OperationKind::Accept => {
                    if let Some(acceptor) = &mut self.acceptor {
                        acceptor.accepted(&mut self.core, completion);
                    }
                }
                OperationKind::HandshakeReceive => {
                    if let Some(acceptor) = &mut self.acceptor {
                        acceptor.completed(&mut self.core, completion);
                    }
                }
            }
        }
        self.completions = completions;
    }

    /// Places of watchers are told from those of lanes by this bit.
    const WATCHER: u32 = 1 << 31;

    fn lane_ended(&mut self, completion: Completion) {
        let index = completion.operation.index;
        if index & Self::WATCHER != 0 {
            self.watchers.try_remove((index & !Self::WATCHER) as usize);
        } else {
            self.shm.completed(&mut self.core, completion);
        }
        self.core.identity.connection_closed();
    }

    fn watch_mailbox(&mut self) {
        let operation = Operation { kind: OperationKind::Wake, index: 0 };
        self.core.ring.watch(self.mailbox.wake_source(), operation);
    }

    fn read_mail(&mut self) {
        while let Some(Mail::Connection(connection)) = self.mailbox.next() {
            self.adopt(*connection);
        }
    }

    fn adopt(&mut self, connection: NewConnection) {
        if connection.kind == SocketKind::Rdma {
            return self.adopt_rdma(connection);
        }
        let NewConnection { socket, kind, tenant, caller, welcome, received, wants_lane } = connection;
        // A lane's welcome waits until there is a lane.
        if let (Some(welcome), false) = (&welcome, wants_lane) {
            say(&socket, welcome);
        }
        match kind {
            SocketKind::Tcp | SocketKind::Rdma => {
                self.tcp.adopt(&mut self.core, socket, tenant, caller, &received);
            }
            SocketKind::Unix if !wants_lane => {
                let entry = self.watchers.vacant_entry();
                let operation =
                    Operation { kind: OperationKind::LaneEnd, index: entry.key() as u32 | Self::WATCHER };
                self.core.ring.watch(socket.as_fd(), operation);
                entry.insert(socket);
            }
            SocketKind::Unix => {
                if let Err(error) = self.adopt_lane(&socket, welcome, tenant, caller) {
                    tracing::warn!(%error, "no shared-memory lane could be made; the client falls back to TCP");
                    self.core.stats.connections_refused += 1;
                    self.core.identity.connection_closed();
                }
            }
        }
    }

    fn adopt_rdma(&mut self, connection: NewConnection) {
        match &mut self.rdma {
            Some(rdma) => rdma.adopt(&mut self.core, connection),
            // Nobody was told that there is RDMA here; whoever asks all the same finds the connection closed.
            None => {
                self.core.stats.protocol_errors += 1;
                self.core.identity.connection_closed();
            }
        }
    }

    fn adopt_lane(
        &mut self,
        socket: &std::os::fd::OwnedFd,
        welcome: Option<lanner_shared::wire::hello::Welcome>,
        tenant: usize,
        caller: crate::service::Caller,
    ) -> std::io::Result<()> {
        if self.shm.connections() >= SHM_LANES as usize {
            let limit = u64::from(SHM_LANES);
            let what = lanner_shared::error::Limit::SharedMemoryLanes;
            let error = lanner_shared::Error::Overloaded { what, limit };
            say(socket, &lanner_shared::wire::hello::Welcome::refusal(&error));
            return Err(std::io::Error::other(error.to_string()));
        }
        let lane = NewLane::new()?;
        if let Some(welcome) = &welcome {
            say(socket, welcome);
        }
        self.grant(socket, tenant, &lane)?;
        let socket = socket.try_clone()?;
        self.shm.adopt(&mut self.core, lane, socket, tenant, caller);
        Ok(())
    }

    /// Hands the segment, the lane, both eventfds and the key filter to the client.
    fn grant(&self, socket: &std::os::fd::OwnedFd, tenant: usize, lane: &NewLane) -> std::io::Result<()> {
        let shard = &self.core.shards[tenant];
        let (segment, filter) = (shard.segment(), shard.filter_memory());
        let file = segment.fd().ok_or(std::io::ErrorKind::Unsupported)?;
        let filter_file = filter.fd().ok_or(std::io::ErrorKind::Unsupported)?;
        let grant = Grant {
            segment_bytes: segment.len().into(),
            request_lines: (REQUEST_LINES as u32).into(),
            reply_lines: (REPLY_LINES as u32).into(),
            staging_bytes: (STAGING_BYTES as u64).into(),
            page_bytes: self.core.identity.page_bytes.into(),
            filter_bytes: filter.len().into(),
        };
        let lane_files = [lane.file.as_fd(), self.mailbox.wake_source(), lane.wake_client.as_fd()];
        let files = [file, lane_files[0], lane_files[1], lane_files[2], filter_file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GRANTED_FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(socket, &[IoSlice::new(grant.as_bytes())], &mut ancillary, flags)?;
        Ok(())
    }

    fn tick(&mut self) {
        self.drain();
        if let Some(lease_ttl) = self.control.lease_ttl_while_draining(self.core.now) {
            self.core.shards.iter_mut().for_each(|shard| shard.set_lease_ttl(lease_ttl));
        }
        // Takes the touches of clients, which the choice of victims is to know of.
        self.shm.tick(&mut self.core);
        let outcome = self.tick_shards();
        self.tcp.tick(&mut self.core);
        if let Some(rdma) = &mut self.rdma {
            rdma.tick(&mut self.core);
        }
        if let Some(home) = &mut self.rdma_home {
            home.tick(&mut self.rdma, &mut self.core);
        }
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.tick(&mut self.core);
        }
        if self.core.now >= self.next_report {
            self.report();
            self.next_report = self.core.now.plus(LONGEST_SLEEP);
        }
        let soon = if outcome.more_is_due { TICK / 8 } else { TICK };
        self.next_tick = self.core.now.plus(soon);
    }

    /// Notices that the server is to end, and says so when this core has no lease left to honour.
    fn drain(&mut self) {
        self.core.is_draining = self.control.is_draining();
        if !self.core.is_draining || self.is_drained {
            return;
        }
        let now = self.core.now;
        self.is_drained = self.core.shards.iter_mut().all(|shard| shard.stats(now).leased_bytes == 0);
        if self.is_drained {
            self.control.core_is_drained();
        }
    }

    fn tick_shards(&mut self) -> TickOutcome {
        let mut all = TickOutcome { more_is_due: false, next_at: None };
        for shard in &mut self.core.shards {
            let outcome = shard.tick(self.core.now);
            // What the shard gave up is noticed by its connection when it commits.
            shard.drain_given_up().for_each(drop);
            all.more_is_due |= outcome.more_is_due;
            all.next_at = [all.next_at, outcome.next_at].into_iter().flatten().min();
        }
        all
    }

    /// Publishes what the shards know about themselves.
    fn report(&mut self) {
        for (tenant, shard) in self.core.shards.iter_mut().enumerate() {
            let report = ShardReport::new(shard, tenant, self.core.stats, self.core.now);
            self.board.publish(ShardId(report.shard), tenant, report);
        }
    }

    /// Sleeps until something comes or something is due.
    #[cold]
    fn sleep(&mut self) {
        let outcome = self.tick_shards();
        if outcome.more_is_due {
            return;
        }
        let due = outcome.next_at.map_or(LONGEST_SLEEP, |next| next.since(self.core.now));
        let longest = self.shm.longest_sleep().min(LONGEST_SLEEP);
        let timeout = due.clamp(Duration::from_micros(50), longest);
        self.core.shards.iter().filter_map(|shard| shard.parked_word()).for_each(park::announce);
        let rdma_has_work = self.rdma.as_mut().is_some_and(Rdma::has_work_when_armed);
        // What was published before the announcement was seen is seen now.
        if !rdma_has_work && !self.shm.has_work() && !self.control.is_stopped() {
            self.core.ring.wait(timeout);
        }
        self.core.shards.iter().filter_map(|shard| shard.parked_word()).for_each(park::awake);
        self.core.now = Clock.now();
        self.tick();
    }
}
