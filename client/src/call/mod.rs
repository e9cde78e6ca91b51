//! Calls: what a client asks its shards for, one file for each kind.
//!
//! A call is cut into *exchanges*, one frame to one shard and its answer; all of them are under way at once. [`drive`]
//! moves one exchange on, without waiting; [`run`] drives a whole call and waits for it. What is repeated by itself after
//! a lost connection, and what isn't, is decided here and only here.

pub(crate) mod absent;
pub(crate) mod each;
pub(crate) mod get;
pub(crate) mod keys;
pub(crate) mod list;
pub(crate) mod longest_prefix;
pub(crate) mod match_chain;
pub(crate) mod one_sided;
pub(crate) mod put;
pub(crate) mod read;
pub(crate) mod read_ranges;
pub(crate) mod scatter;

use crate::client::ClientInner;
use crate::connection::rdma::link::{RdmaLink, ReaderId};
use crate::connection::rdma::registration::{Offer, Region};
use crate::connection::reader::Reader;
use crate::connection::{Broken, Connection, Receiver};
use crate::interrupt;
use crate::lane::{Lane, Route, with_lane};
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::Opcode;
use lanner_shared::wire::put_offered::ValueOffer;
use lanner_shared::{Error, Result};
use smallvec::SmallVec;
use std::sync::Arc;
use std::task::Poll;

/// How often an exchange that changes nothing is sent again after its connection was lost.
const MAX_ATTEMPTS: u8 = 3;
/// Polls between two looks at the clock while spinning.
const POLLS_PER_LOOK: u32 = 16;

/// What one exchange asks.
pub(crate) trait Request {
    fn opcode(&self) -> Opcode;
    /// Keys, ranges or entries in the body.
    fn count(&self) -> u16;
    /// The value, for a put.
    fn payload(&self) -> &[u8] {
        &[]
    }
    /// Appends the body.
    fn encode(&self, body: &mut Vec<u8>);
    /// Where the value of a put lies, if the server is to READ it over `link`.
    fn offer(&self, _link: &RdmaLink) -> Option<Offer> {
        None
    }
    /// Appends the body of a put whose value is offered.
    fn encode_offer(&self, _body: &mut Vec<u8>, _offer: &ValueOffer) {}
}

/// One frame to one shard, and its answer.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub route: Route,
    /// Just before the frame was queued, for a query: the leases in its answer count from here.
    pub asked: Instant,
    /// The life of the server that answered.
    pub boot_id: [u8; 16],
    state: State,
    attempts: u8,
}

#[derive(Debug)]
enum State {
    /// Not queued yet.
    New,
    /// On its way on the connection with this serial number. If a value is offered, the server may read it until the answer has come, so the region
    /// that it was offered of is held until then.
    Sent { serial: u64, request_id: u32, offered: Option<Arc<Region>> },
    /// Answered before its payload was all out (a refusal); the rest must go out all the same, or the connection would be
    /// in the middle of a frame for ever.
    Answered { serial: u64, request_id: u32, outcome: Result<()> },
    /// Reading one-sided on the connection with this serial number; maybe straight to memory of the caller's.
    Reading { serial: u64, reader: Option<ReaderId>, is_direct: bool },
    /// Answered, or failed for good.
    Done,
}

impl Exchange {
    pub fn new(route: Route) -> Exchange {
        Exchange { route, asked: Instant::ZERO, boot_id: [0; 16], state: State::New, attempts: 0 }
    }

    /// Not asked yet: which connection it goes over isn't settled.
    #[inline]
    pub fn is_new(&self) -> bool {
        matches!(self.state, State::New)
    }

    #[inline]
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// The connection that it's reading one-sided on.
    #[inline]
    pub fn reading_on(&self) -> Option<u64> {
        match self.state {
            State::Reading { serial, .. } => Some(serial),
            _ => None,
        }
    }

    /// From here on it reads one-sided on the connection with this serial number, by `reader` once there is one.
    #[inline]
    pub fn begin_reading(&mut self, serial: u64, reader: Option<&Reader>) {
        let is_direct = reader.is_some_and(Reader::is_direct);
        self.state = State::Reading { serial, reader: reader.map(Reader::id), is_direct };
    }

    /// The connection that it waits for something on.
    fn waits_on(&self) -> Option<u64> {
        match self.state {
            State::Sent { serial, .. } | State::Answered { serial, .. } | State::Reading { serial, .. } => {
                Some(serial)
            }
            State::New | State::Done => None,
        }
    }

    /// All has been read, or nothing more is to come.
    #[inline]
    pub fn end(&mut self) {
        self.state = State::Done;
    }

    /// To be asked once more, after an answer that wasn't good enough.
    pub fn reset(&mut self) {
        self.state = State::New;
    }

    /// Gives the exchange up. Its connection ends where that leaves a frame half written, or a device with memory of the caller's: a queue
    /// pair that was destroyed uses no memory any more.
    #[cold]
    pub fn abandon(&mut self, lane: &mut Lane) {
        if let State::Sent { serial, offered: Some(_), .. } | State::Reading { serial, is_direct: true, .. } =
            self.state
        {
            lane.close(self.route, serial);
        }
        if let State::Sent { serial, request_id, .. } | State::Answered { serial, request_id, .. } =
            self.state
            && let Some(connection) = lane.existing(self.route, serial)
            && !connection.abandon(request_id)
        {
            // What others have asked over it is still answered.
            lane.set_aside(self.route, serial);
        }
        if let State::Reading { serial, reader: Some(reader), .. } = self.state
            && let Some(connection) = lane.existing(self.route, serial)
            && let Some(link) = connection.link()
        {
            link.give_up(reader);
        }
        self.state = State::Done;
    }
}

/// Queues the request of a new exchange, if its connection takes one now, and returns that connection.
#[inline]
fn queue<'l>(
    exchange: &mut Exchange,
    lane: &'l mut Lane,
    client: &ClientInner,
    request: &dyn Request,
) -> Result<Option<&'l mut Connection>> {
    if request.opcode().changes_the_store()
        && let Some(connection) = lane.open_connection(exchange.route)
        && connection.was_left()
    {
        let serial = connection.serial;
        lane.close(exchange.route, serial);
    }
    let connection = lane.connection(client, exchange.route)?;
    if !connection.can_submit() {
        return Ok(None);
    }
    submit(exchange, connection, request)?;
    Ok(Some(connection))
}

/// Has the next request to `route` go over another connection if one that is half written and doesn't go on is in its way.
#[cold]
fn make_way(lane: &mut Lane, route: Route) {
    if let Some(connection) = lane.open_connection(route)
        && connection.is_stuck()
    {
        let serial = connection.serial;
        lane.set_aside(route, serial);
    }
}

/// Whether what was `refused` over `asked` belongs elsewhere now: the server was started again with another number of shards. It has done
/// nothing then, and the same can be asked over `routes`.
#[cold]
pub(crate) fn has_moved(refused: &Error, asked: Route, mut routes: impl Iterator<Item = Route>) -> bool {
    matches!(refused, Error::WrongShard { .. }) && routes.any(|route| route != asked)
}

/// Queues a request that wasn't yet, where that can be done now, without looking for its answer: a call of several frames to one shard
/// sends them together. Whatever stands in the way is [`drive`]'s to say.
#[inline]
pub(crate) fn start(exchange: &mut Exchange, lane: &mut Lane, client: &ClientInner, request: &dyn Request) {
    if matches!(exchange.state, State::New)
        && let Ok(Some(connection)) = queue(exchange, lane, client, request)
    {
        connection.flush_at_no_cost();
    }
}

/// Moves an exchange on. Ready with what the server said (or with why it can't be asked) once that's known.
#[inline]
pub(crate) fn drive(
    exchange: &mut Exchange,
    lane: &mut Lane,
    client: &ClientInner,
    request: &dyn Request,
    receiver: &mut dyn Receiver,
) -> Poll<Result<()>> {
    if matches!(exchange.state, State::New) {
        match queue(exchange, lane, client, request) {
            Ok(Some(connection)) if !connection.holds_back() => {}
            Ok(Some(_)) => return Poll::Pending,
            Ok(None) => {
                make_way(lane, exchange.route);
                return Poll::Pending;
            }
            Err(error) => return finish(exchange, Err(error)),
        }
    }
    if matches!(exchange.state, State::Answered { .. }) {
        return drive_rest(exchange, lane, request);
    }
    let State::Sent { serial, request_id, .. } = exchange.state else { return Poll::Ready(Ok(())) };
    let Some(connection) = lane.existing(exchange.route, serial) else {
        return lost(exchange, client, request.opcode());
    };
    exchange.boot_id = connection.boot_id;
    let is_out = match connection.write_payload(request_id, request.payload()) {
        Ok(is_out) => is_out,
        Err(broken) => return broke(exchange, lane, client, serial, broken, request.opcode()),
    };
    match connection.poll(request_id, receiver) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(outcome)) if is_out => finish(exchange, outcome),
        Ok(Poll::Ready(outcome)) => {
            exchange.state = State::Answered { serial, request_id, outcome };
            Poll::Pending
        }
        Err(broken) => broke(exchange, lane, client, serial, broken, request.opcode()),
    }
}

/// Writes the rest of the payload of a put that was refused.
#[cold]
fn drive_rest(exchange: &mut Exchange, lane: &mut Lane, request: &dyn Request) -> Poll<Result<()>> {
    let State::Answered { serial, request_id, .. } = exchange.state else { return Poll::Pending };
    let progress = match lane.existing(exchange.route, serial) {
        Some(connection) => connection.write_payload(request_id, request.payload()),
        None => Ok(true),
    };
    match progress {
        Ok(false) => return Poll::Pending,
        Ok(true) => {}
        // The answer is there; that the connection has ended since is the next call's affair.
        Err(_) => lane.close(exchange.route, serial),
    }
    match std::mem::replace(&mut exchange.state, State::Done) {
        State::Answered { outcome, .. } => Poll::Ready(outcome),
        _ => Poll::Pending,
    }
}

/// The connection is of no use any more.
#[cold]
fn broke(
    exchange: &mut Exchange,
    lane: &mut Lane,
    client: &ClientInner,
    serial: u64,
    broken: Broken,
    opcode: Opcode,
) -> Poll<Result<()>> {
    lane.close(exchange.route, serial);
    match broken {
        Broken::Closed => lost(exchange, client, opcode),
        Broken::Protocol(error) => finish(exchange, Err(error)),
    }
}

#[inline]
fn submit(exchange: &mut Exchange, connection: &mut Connection, request: &dyn Request) -> Result<()> {
    // Leases that this side relies on count from here.
    if matches!(request.opcode(), Opcode::Query | Opcode::Fetch) {
        exchange.asked = Clock.now();
    }
    if let Some(link) = connection.link() {
        // Whatever is asked: who only puts would hold a device that is to go for ever.
        link.look_after_device(Clock.now());
        if request.opcode() == Opcode::Put
            && let Some(offer) = request.offer(link)
        {
            return submit_offered(exchange, connection, request, offer);
        }
    }
    let request_id = connection
        .submit(request.opcode(), request.count(), request.payload(), |body| request.encode(body))?;
    exchange.state = State::Sent { serial: connection.serial, request_id, offered: None };
    Ok(())
}

/// Queues a put whose value the server is to READ. Apart from [`submit`], so that the compiler makes one straight piece of that.
#[inline(never)]
fn submit_offered(
    exchange: &mut Exchange,
    connection: &mut Connection,
    request: &dyn Request,
    offer: Offer,
) -> Result<()> {
    let Offer { value, region } = offer;
    let request_id = connection
        .submit(Opcode::PutOffered, request.count(), &[], |body| request.encode_offer(body, &value))?;
    exchange.state = State::Sent { serial: connection.serial, request_id, offered: Some(region) };
    Ok(())
}

#[inline]
fn finish(exchange: &mut Exchange, outcome: Result<()>) -> Poll<Result<()>> {
    exchange.state = State::Done;
    Poll::Ready(outcome)
}

/// The connection ended before the answer. A change is never repeated: it may have taken place, and then have been undone
/// by another client, so that repeating it would change the store twice.
#[cold]
fn lost(exchange: &mut Exchange, client: &ClientInner, opcode: Opcode) -> Poll<Result<()>> {
    let server = client.server_address(exchange.route);
    exchange.attempts += 1;
    if crate::faults::retries_changes() || !opcode.changes_the_store() {
        if exchange.attempts < MAX_ATTEMPTS {
            exchange.state = State::New;
            return Poll::Pending;
        }
        return finish(exchange, Err(Error::ConnectionLost { server }));
    }
    finish(exchange, Err(Error::OutcomeUnknown { server }))
}

/// A call as a whole.
pub(crate) trait Call {
    /// Moves all its exchanges on, without waiting. Ready once all are answered; outcomes of single keys are the call's own affair.
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>>;

    /// Calls `act` with each of its exchanges.
    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange));

    /// The call's time is over: puts what `error` says of a server in the place of each answer of it that hasn't come, and ends those exchanges.
    /// Whether there are such places; a call that has none fails as a whole.
    fn keep_what_came(&mut self, _error: &dyn Fn(Route) -> Error) -> bool {
        false
    }
}

/// Drives `call` until it's done or its deadline has come.
pub(crate) fn run(client: &Arc<ClientInner>, call: &mut dyn Call) -> Result<()> {
    with_lane(client, |lane| {
        let mut running = Running { lane, call, is_done: false };
        let outcome = run_on(client, running.lane, running.call);
        running.is_done = outcome.is_ok();
        outcome
    })
}

/// A call that is being waited for. If it fails, or panics, what it has under way is given up: nobody would ask for those answers and lists
/// any more, and no device is left with memory of the caller's.
struct Running<'a> {
    lane: &'a mut Lane,
    call: &'a mut dyn Call,
    is_done: bool,
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_done {
            give_up(self.lane, self.call);
        }
    }
}

/// Gives up what a call has under way.
#[cold]
pub(crate) fn give_up(lane: &mut Lane, call: &mut dyn Call) {
    call.each_exchange(&mut |exchange| exchange.abandon(lane));
}

fn run_on(client: &Arc<ClientInner>, lane: &mut Lane, call: &mut dyn Call) -> Result<()> {
    // The fast path looks at no clock: over shared memory the answer is there within a few hundred polls.
    if let Poll::Ready(outcome) = call.poll(lane, client) {
        return outcome;
    }
    let config = client.config();
    let now = Clock.now();
    let started = lane.connecting_since().unwrap_or(now);
    let deadline = started.plus(config.timeout);
    let mut spin_until = now.plus(config.spin);
    let is_interrupted = interrupt::question();
    let mut ask_at = now.plus(interrupt::EVERY);
    let mut seen = lane.news();
    loop {
        for _ in 0..POLLS_PER_LOOK {
            if let Poll::Ready(outcome) = call.poll(lane, client) {
                return outcome;
            }
            std::hint::spin_loop();
        }
        let now = Clock.now();
        if now >= deadline {
            return time_out(client, lane, call);
        }
        if let Some(is_interrupted) = is_interrupted
            && now >= ask_at
        {
            if is_interrupted() {
                return Err(end_early(client, lane, call));
            }
            ask_at = Clock.now().plus(interrupt::EVERY);
        }
        let news = lane.news();
        if std::mem::replace(&mut seen, news) != news {
            // A long value goes on: asleep, this side would find a buffer that has been empty or full for long.
            spin_until = now.plus(config.spin);
            continue;
        }
        if now < spin_until {
            continue;
        }
        let mut routes: SmallVec<[Route; 8]> = SmallVec::new();
        call.each_exchange(&mut |exchange| {
            if !exchange.is_done() && !routes.contains(&exchange.route) {
                routes.push(exchange.route);
            }
        });
        lane.sleep(&routes, if is_interrupted.is_some() { deadline.min(ask_at) } else { deadline });
    }
}

/// The time of a call is over: what it waits for counts against the transports that it waits on, and is given up. What has come stays where the
/// call has a place for each answer.
#[cold]
pub(crate) fn time_out(client: &ClientInner, lane: &mut Lane, call: &mut dyn Call) -> Result<()> {
    call.each_exchange(&mut |exchange| {
        if let Some(serial) = exchange.waits_on()
            && let Some(connection) = lane.existing(exchange.route, serial)
        {
            connection.timed_out();
        }
    });
    close_waiting(lane, call);
    if call.keep_what_came(&|route| timed_out(client, route)) {
        return Ok(());
    }
    Err(fail_whole(client, call))
}

/// Gives up what wasn't answered, though there is time left, and says of which server.
#[cold]
fn end_early(client: &ClientInner, lane: &mut Lane, call: &mut dyn Call) -> Error {
    close_waiting(lane, call);
    fail_whole(client, call)
}

/// Ends what waits for no connection any more.
fn fail_whole(client: &ClientInner, call: &mut dyn Call) -> Error {
    let mut slow = None;
    call.each_exchange(&mut |exchange| {
        if !exchange.is_done() {
            slow.get_or_insert(exchange.route);
            exchange.state = State::Done;
        }
    });
    let millis = client.config().timeout.as_millis() as u64;
    slow.map_or_else(
        || Error::Timeout { server: "the server".into(), millis },
        |route| timed_out(client, route),
    )
}

/// Ends the connections that answers are waited for on. A path that swallows packets looks just like a slow server, and the next call must not
/// wait for either.
fn close_waiting(lane: &mut Lane, call: &mut dyn Call) {
    call.each_exchange(&mut |exchange| {
        if let Some(serial) = exchange.waits_on() {
            lane.close(exchange.route, serial);
        }
    });
}

fn timed_out(client: &ClientInner, route: Route) -> Error {
    let server = client.server_address(route);
    Error::Timeout { server, millis: client.config().timeout.as_millis() as u64 }
}
