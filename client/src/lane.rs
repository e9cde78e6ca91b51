//! A lane: the connections of one thread of one client. Threads share nothing here, so no call takes a lock.
//!
//! A lane connects when a call first needs a shard, closes when its thread ends, and does the waiting: it spins for a
//! while, for an answer takes tens of microseconds and two wake-ups cost more than that, and then sleeps in `poll(2)`.

use crate::client::ClientInner;
use crate::cluster::Patience;
use crate::connection::{Connection, WaitSet};
use lanner_shared::time::{Clock, Instant};
use lanner_shared::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// After a failed attempt to connect, calls fail at once for this long; doubled with each further failure up to
/// [`LONGEST_PAUSE`]. So an engine whose store is down isn't slowed down by it.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the next attempt may take where the last one has ended with its time, as against a frozen server; doubled with each further one up
/// to the whole time-out. Longer than a live server takes for a handshake.
const SHORT_ATTEMPT: Duration = Duration::from_millis(100);
/// The pause before such an attempt is so many times as long as it may take: calls don't spend more than a tenth of their time on it.
const PAUSES_OF_ATTEMPT: u32 = 9;
/// But not longer than this, so that a server that is back is found.
const LONGEST_PAUSE_OF_FROZEN: Duration = Duration::from_secs(10);

/// Connections of a thread that take no further requests and have answers to come. One more, and the oldest ends.
const MOST_ASIDE: usize = 4;

/// A shard of one of the client's servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Route {
    /// Index among the client's servers.
    pub server: u16,
    /// Shard of that server.
    pub shard: u16,
}

/// One thread's connections.
pub(crate) struct Lane {
    client: Weak<ClientInner>,
    client_id: u64,
    /// By server, then by shard.
    connections: Vec<Vec<Option<Box<Connection>>>>,
    /// Those that a value half written leaves good for nothing but the answers that are to come.
    aside: Vec<(Route, Box<Connection>)>,
    pauses: Vec<Pause>,
    next_serial: u64,
    /// When the call that is being polled began to connect, if it did: what its deadline counts from.
    connecting_since: Option<Instant>,
    /// What of its time that call has waited for its turns at connecting.
    waited: Duration,
    /// Connections made and ended, and the frames of those that ended.
    changes: u64,
}

/// Why and until when a server isn't tried again.
#[derive(Clone, Default)]
struct Pause {
    until: Instant,
    length: Duration,
    /// How long the next attempt may take, of a server that let the last one's time pass.
    attempt: Option<Duration>,
    error: Option<Error>,
}

impl Pause {
    /// After an attempt that was allowed `allowed` and failed after `took`. `whole` is the time that an attempt has at most.
    fn after(&mut self, error: Error, failed: Instant, took: Duration, allowed: Duration, whole: Duration) {
        self.length = (self.length * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.error = Some(error);
        let mut pause = self.length;
        if took >= allowed / 2 {
            let attempt = self.attempt.map_or(SHORT_ATTEMPT, |last| last * 2).min(whole);
            self.attempt = Some(attempt);
            pause = pause.max((attempt * PAUSES_OF_ATTEMPT).min(LONGEST_PAUSE_OF_FROZEN));
        }
        self.until = failed.plus(pause);
    }
}

thread_local! {
    static LANES: RefCell<Vec<(u64, Rc<RefCell<Lane>>)>> = const { RefCell::new(Vec::new()) };
}

/// Calls `act` with this thread's lane of `client`: once for a call that is waited for, for each poll of one that isn't. What connects within it
/// shares one time-out.
#[inline]
pub(crate) fn with_lane<T>(client: &Arc<ClientInner>, act: impl FnOnce(&mut Lane) -> T) -> T {
    let lane = LANES.with(|lanes| {
        // A handler of signals may make a call within another one of its thread's; it gets a lane of its own.
        let is_free =
            |(id, lane): &&(u64, Rc<RefCell<Lane>>)| *id == client.id() && lane.try_borrow_mut().is_ok();
        let found = lanes.borrow().iter().find(is_free).map(|(_, lane)| lane.clone());
        found.unwrap_or_else(|| open_lane(client, &mut lanes.borrow_mut()))
    });
    let mut lane = lane.borrow_mut();
    // Whoever connected last, and when, is of no concern here.
    lane.connecting_since = None;
    lane.waited = Duration::ZERO;
    act(&mut lane)
}

#[cold]
fn open_lane(client: &Arc<ClientInner>, lanes: &mut Vec<(u64, Rc<RefCell<Lane>>)>) -> Rc<RefCell<Lane>> {
    // The lanes of clients that are gone go too.
    lanes.retain(|(_, lane)| lane.try_borrow().map_or(true, |lane| lane.client.strong_count() > 0));
    let servers = client.server_count();
    let lane = Rc::new(RefCell::new(Lane {
        client: Arc::downgrade(client),
        client_id: client.id(),
        connections: std::iter::repeat_with(Vec::new).take(servers).collect(),
        aside: Vec::new(),
        pauses: vec![Pause::default(); servers],
        next_serial: 1,
        connecting_since: None,
        waited: Duration::ZERO,
        changes: 0,
    }));
    lanes.push((client.id(), lane.clone()));
    lane
}

/// Ends this thread's connections of a client whose last handle is gone. Those of other threads end with their thread, or when it
/// opens the lane of another client.
#[cold]
pub(crate) fn close_lane(client_id: u64) {
    // A thread that is ending has none any more. What is dropped here must not find the list borrowed.
    let closed = LANES.try_with(|lanes| {
        let mut lanes = lanes.borrow_mut();
        lanes.extract_if(.., |(id, _)| *id == client_id).collect::<Vec<_>>()
    });
    drop(closed);
}

/// The lanes' part of [`crate::forget_lanes`].
pub(crate) fn forget_all() {
    // A thread that is ending has none any more. A list in use is that of a thread that forked within a call, which none does.
    let _ = LANES.try_with(|lanes| {
        lanes.try_borrow_mut().map(|mut lanes| std::mem::forget(std::mem::take(&mut *lanes)))
    });
}

impl Lane {
    /// The connection to `route`, made if there is none. Blocks while it's being made: for the shorter of `connect_timeout` and `timeout`
    /// (half of that where there are several servers) at most, for all connections that a call makes together; and for its turn where many threads connect, within `timeout`.
    #[inline]
    pub fn connection(&mut self, client: &ClientInner, route: Route) -> Result<&mut Connection> {
        debug_assert_eq!(self.client_id, client.id());
        if !self.aside.is_empty() {
            self.sweep_aside();
        }
        let (server, shard) = (usize::from(route.server), usize::from(route.shard));
        // The borrow checker can't see that a connection found is returned at once, hence the second look below.
        match self.connections.get(server).and_then(|shards| shards.get(shard)) {
            Some(Some(connection)) if !connection.is_upgrade_due() => {}
            Some(Some(_)) => self.upgrade(client, route),
            _ => self.connect(client, route)?,
        }
        let slot = self.connections.get_mut(server).and_then(|shards| shards.get_mut(shard));
        slot.and_then(Option::as_deref_mut).ok_or_else(|| Error::InvalidArgument("no such server".into()))
    }

    /// The connection to `route`, if there is one.
    #[inline]
    pub fn open_connection(&mut self, route: Route) -> Option<&mut Connection> {
        self.connections.get_mut(usize::from(route.server))?.get_mut(usize::from(route.shard))?.as_deref_mut()
    }

    /// The connection to `route` with this serial number, if it's still the one, or set aside.
    #[inline]
    pub fn existing(&mut self, route: Route, serial: u64) -> Option<&mut Connection> {
        let shards = self.connections.get_mut(usize::from(route.server))?;
        let connection = shards.get_mut(usize::from(route.shard)).and_then(Option::as_deref_mut);
        connection
            .into_iter()
            .chain(self.aside.iter_mut().map(|(_, connection)| &mut **connection))
            .find(|connection| connection.serial == serial)
    }

    /// Ends the connection to `route` with this serial number.
    #[cold]
    pub fn close(&mut self, route: Route, serial: u64) {
        if self.open_connection(route).is_some_and(|connection| connection.serial == serial) {
            self.end(route);
        }
        self.keep_aside(|connection| connection.serial != serial);
    }

    /// Makes way for another connection to `route` where the one with this serial number can take no further requests. What was asked over
    /// it goes on; it ends with the last answer.
    #[cold]
    pub fn set_aside(&mut self, route: Route, serial: u64) {
        if self.open_connection(route).is_some_and(|connection| connection.serial == serial)
            && let Some(connection) =
                self.connections[usize::from(route.server)][usize::from(route.shard)].take()
        {
            self.aside.push((route, connection));
        }
        self.sweep_aside();
        if self.aside.len() > MOST_ASIDE {
            let oldest = self.aside[0].1.serial;
            self.keep_aside(|connection| connection.serial != oldest);
        }
    }

    /// Ends those that were set aside and have had all their answers.
    #[cold]
    fn sweep_aside(&mut self) {
        self.keep_aside(Connection::has_pending);
    }

    fn keep_aside(&mut self, is_kept: impl Fn(&Connection) -> bool) {
        let changes = &mut self.changes;
        self.aside.retain(|(_, connection)| {
            let is_kept = is_kept(connection);
            *changes += if is_kept { 0 } else { 1 + connection.news() };
            is_kept
        });
    }

    /// Makes a connection anew that had to do without RDMA, or without a lane of shared memory because all were taken. If that fails the old
    /// one stays for a while.
    #[cold]
    fn upgrade(&mut self, client: &ClientInner, route: Route) {
        let serial = self.next_serial;
        self.next_serial += 1;
        // There is one that will do: nobody's turn is waited for.
        let patience = Patience { waits: false, ..self.patience(client) };
        let made = client.connect_to(route, serial, patience, &mut self.waited);
        let Some(connection) = self.open_connection(route) else { return };
        match made {
            Ok(better) => {
                let old = std::mem::replace(connection, better);
                self.changes += 1 + old.news();
            }
            Err(_) => connection.upgrade_at = Some(Clock.now().plus(LONGEST_PAUSE)),
        }
    }

    /// When the call that is being polled began to connect, if it did.
    #[inline]
    pub fn connecting_since(&self) -> Option<Instant> {
        self.connecting_since
    }

    /// When attempts to connect within this call end, all together.
    fn patience(&mut self, client: &ClientInner) -> Patience {
        let since = *self.connecting_since.get_or_insert_with(|| Clock.now());
        let config = client.config();
        let until = since.plus(config.attempt_timeout()).plus(self.waited);
        Patience { until, call_until: since.plus(config.timeout), waits: true }
    }

    fn end(&mut self, route: Route) {
        let slot = &mut self.connections[usize::from(route.server)][usize::from(route.shard)];
        self.changes += 1 + slot.take().map_or(0, |connection| connection.news());
    }

    /// A number that is another one after anything has come for any call of this lane. Only if it stayed the same while a call was
    /// polled is there nothing left for that call to see: a reply that came while another exchange was asked about is put by until its
    /// owner asks, and no socket tells of it a second time.
    pub fn news(&self) -> u64 {
        let open = self.connections.iter().flatten().flatten();
        let aside = self.aside.iter().map(|(_, connection)| connection);
        let frames = open.chain(aside).map(|connection| connection.news());
        self.changes + frames.sum::<u64>()
    }

    #[cold]
    fn connect(&mut self, client: &ClientInner, route: Route) -> Result<()> {
        let (server, shard) = (usize::from(route.server), usize::from(route.shard));
        let now = Clock.now();
        if let Some(Pause { until, error: Some(error), .. }) = self.pauses.get(server)
            && now < *until
        {
            return Err(error.clone());
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let attempt = self.pauses[server].attempt;
        let (whole, waited) = (self.patience(client), self.waited);
        let until = attempt.map_or(whole.until, |attempt| whole.until.min(now.plus(attempt)));
        let outcome = client.connect_to(route, serial, Patience { until, ..whole }, &mut self.waited);
        // Waiting for a turn says nothing of the server.
        let waited = self.waited.saturating_sub(waited);
        let pause = &mut self.pauses[server];
        match outcome {
            Ok(connection) => {
                *pause = Pause::default();
                let shards = &mut self.connections[server];
                if shards.len() <= shard {
                    shards.resize_with(shard + 1, || None);
                }
                shards[shard] = Some(Box::new(connection));
                self.changes += 1;
                Ok(())
            }
            Err(error) => {
                let failed = Clock.now();
                let whole = client.config().attempt_timeout();
                let took = failed.since(now).saturating_sub(waited);
                pause.after(error.clone(), failed, took, until.since(now), whole);
                Err(error)
            }
        }
    }

    /// Sleeps until one of `routes` may have news, or until `until`. Not if none of them is connected: then a poll connects.
    pub fn sleep(&mut self, routes: &[Route], until: Instant) {
        let now = Clock.now();
        let timeout = until.since(now);
        if timeout.is_zero() {
            return;
        }
        let mut sleepers: SmallVec<[Sleeper<'_>; 8]> = SmallVec::new();
        for (server, shards) in self.connections.iter_mut().enumerate() {
            for (shard, connection) in shards.iter_mut().enumerate() {
                let route = Route { server: server as u16, shard: shard as u16 };
                if let (true, Some(connection)) = (routes.contains(&route), connection.as_deref_mut()) {
                    sleepers.push(Sleeper { set: connection.wait_set() });
                }
            }
        }
        let aside = self.aside.iter_mut().filter(|(route, _)| routes.contains(route));
        sleepers.extend(aside.map(|(_, connection)| Sleeper { set: connection.wait_set() }));
        let mut may_sleep = !sleepers.is_empty();
        for sleeper in &mut sleepers {
            may_sleep &= sleeper.prepare();
        }
        if may_sleep {
            let mut polled: SmallVec<[PollFd<'_>; 8]> = SmallVec::new();
            sleepers.iter().for_each(|sleeper| sleeper.push_to(&mut polled));
            let limit = sleepers.iter().map(Sleeper::longest_sleep).min();
            let timeout = limit.unwrap_or(timeout).min(timeout);
            if let Ok(timeout) = rustix::time::Timespec::try_from(timeout) {
                let _ = rustix::event::poll(&mut polled, Some(&timeout));
            }
        }
        let gone: SmallVec<[bool; 8]> = sleepers.iter_mut().map(|sleeper| !sleeper.finish()).collect();
        drop(sleepers);
        if gone.contains(&true) {
            self.close_gone(routes);
        }
    }

    /// Ends the connections among `routes`, over shared memory and RDMA, whose server has gone.
    fn close_gone(&mut self, routes: &[Route]) {
        let is_gone = |connection: &mut Connection| match connection.wait_set() {
            WaitSet::Shm { shm, .. } => !shm.after_sleep(),
            WaitSet::Rdma { link, .. } => !link.is_peer_there(),
            _ => false,
        };
        for route in routes {
            if self.open_connection(*route).is_some_and(is_gone) {
                self.end(*route);
            }
        }
        let aside = self.aside.iter_mut().filter(|(route, _)| routes.contains(route));
        let gone: SmallVec<[u64; MOST_ASIDE]> =
            aside.filter_map(|(_, connection)| is_gone(connection).then_some(connection.serial)).collect();
        self.keep_aside(|connection| !gone.contains(&connection.serial));
    }
}

/// One connection during a sleep.
struct Sleeper<'a> {
    set: WaitSet<'a>,
}

impl Sleeper<'_> {
    fn prepare(&mut self) -> bool {
        match &mut self.set {
            WaitSet::Tcp { .. } => true,
            WaitSet::Shm { shm, .. } => shm.prepare_to_sleep(),
            WaitSet::Rdma { link, .. } => link.prepare_to_sleep(),
            #[cfg(feature = "simulation")]
            WaitSet::Simulated => false,
        }
    }

    fn push_to<'b>(&'b self, polled: &mut SmallVec<[PollFd<'b>; 8]>) {
        match &self.set {
            WaitSet::Tcp { tcp, wants_room } => {
                let room = if *wants_room { PollFlags::OUT } else { PollFlags::empty() };
                polled.push(PollFd::from_borrowed_fd(tcp.socket(), PollFlags::IN | room));
            }
            WaitSet::Shm { shm, .. } => {
                let sources =
                    shm.wake_sources().map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
                polled.extend(sources);
            }
            WaitSet::Rdma { link, .. } => {
                let sources =
                    link.wake_sources().map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
                polled.extend(sources);
            }
            #[cfg(feature = "simulation")]
            WaitSet::Simulated => {}
        }
    }

    /// How long to sleep at most. The shard says nothing when it has made room in a ring, only when it has answered.
    fn longest_sleep(&self) -> Duration {
        match self.set {
            WaitSet::Shm { wants_room: true, .. } => Duration::from_micros(100),
            // Room comes with a completion; that another call's value goes on too slowly, with nothing.
            WaitSet::Tcp { wants_room: true, .. } | WaitSet::Rdma { wants_room: true, .. } => {
                Duration::from_millis(1)
            }
            _ => Duration::MAX,
        }
    }

    fn finish(&mut self) -> bool {
        match &mut self.set {
            WaitSet::Tcp { .. } => true,
            WaitSet::Shm { shm, .. } => shm.after_sleep(),
            WaitSet::Rdma { link, .. } => link.after_sleep(),
            #[cfg(feature = "simulation")]
            WaitSet::Simulated => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that was frozen for long held every thread up for half of its time. Shows that attempts to connect take a tenth of it at most,
    /// or a sixth where they may take long and a server that is back is still to be found; and that one that refuses is asked again each second.
    #[test]
    fn a_frozen_server_costs_a_part_of_the_time() {
        let (whole, error) = (Duration::from_secs(2), Error::ShuttingDown);
        for takes_long in [true, false] {
            let (mut pause, mut now, mut blocked) = (Pause::default(), Instant::ZERO, Duration::ZERO);
            for round in 0..30 {
                let allowed = pause.attempt.unwrap_or(whole);
                let took = if takes_long { allowed } else { Duration::from_micros(50) };
                blocked += if round > 0 { took } else { Duration::ZERO };
                now = now.plus(took);
                pause.after(error.clone(), now, took, allowed, whole);
                assert!(pause.until.since(now) <= LONGEST_PAUSE_OF_FROZEN);
                now = pause.until;
                if round == 4 {
                    assert!(blocked <= now.since(Instant::ZERO) / 10, "{blocked:?} of the first {now:?}");
                }
            }
            assert!(blocked <= now.since(Instant::ZERO) / 6, "{blocked:?} of {now:?}");
            assert_eq!(pause.attempt, takes_long.then_some(whole));
            if !takes_long {
                assert!(now.since(Instant::ZERO) <= 30 * LONGEST_PAUSE);
            }
        }
    }
}
