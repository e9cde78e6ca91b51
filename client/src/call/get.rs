//! `get` of a batch, over both kinds of transport at once.
//!
//! Where the client maps the segment it asks for descriptors and copies the values itself, and throws a copy away that was
//! not finished before the lease ended (promise P1). Over RDMA short values come with the descriptors, and longer ones are read one-sided
//! under the same rule. Over TCP the server sends the values, of which it takes care itself.

use super::keys::{Indices, KeyGroups, group, regroup};
use super::{Call, Exchange, Request, drive};
use crate::client::ClientInner;
use crate::connection::rdma::registration::Registrations;
use crate::connection::reader::{Pieces, Reader};
use crate::connection::{Broken, Connection, Receiver};
use crate::lane::{Lane, Route};
use crate::mapping::Mapping;
use lanner_shared::error::{Malformation, WireError};
use lanner_shared::lease::client_deadline;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::get::GetBody;
use lanner_shared::wire::header::Header;
use lanner_shared::wire::{Descriptor, Opcode, body, keys, query};
use lanner_shared::{Error, Result};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// A copy that took longer than its lease is repeated under a new lease so often.
const MAX_LEASES: u8 = 3;

/// Values of at most this many bytes come with the answer over RDMA, in the same message: a READ would cost another round trip, and these
/// bytes cost the shard a copy that is a tenth of it. In the guest a `get` of 4 KiB took 203 us with a READ.
const SHORT_VALUE_BYTES: u64 = 4096;

/// Where values go.
pub(crate) enum Target<'a, 'b> {
    /// Into buffers of their own length.
    New(Vec<Vec<u8>>),
    /// Into the caller's buffers, one for each key.
    Given(&'a mut [&'b mut [u8]]),
}

impl Target<'_, '_> {
    /// The buffer for the value of `bytes` of key `index`.
    fn buffer(&mut self, index: usize, bytes: u64) -> Result<&mut [u8]> {
        let too_small =
            |given: usize| Error::BufferTooSmall { index: index as u64, needed: bytes, given: given as u64 };
        let length = usize::try_from(bytes).map_err(|_| too_small(0))?;
        match self {
            Target::New(values) => {
                values[index].clear();
                // A peer's length is no reason to panic for want of memory.
                values[index].try_reserve_exact(length).map_err(|_| too_small(0))?;
                values[index].resize(length, 0);
                Ok(&mut values[index])
            }
            Target::Given(buffers) => {
                let given = buffers[index].len();
                buffers[index].get_mut(..length).ok_or_else(|| too_small(given))
            }
        }
    }

    /// The buffer again, once [`Target::buffer`] has made it.
    fn made(&mut self, index: usize) -> &mut [u8] {
        match self {
            Target::New(values) => &mut values[index],
            Target::Given(buffers) => buffers[index],
        }
    }

    /// Where the buffer begins in the registered one, if the caller's buffers lie there.
    fn direct_offset(&self, index: usize, registrations: Option<&Registrations>) -> Option<u64> {
        match self {
            Target::New(_) => None,
            Target::Given(buffers) => registrations?.offset_of(buffers[index]),
        }
    }

    fn longest(&self) -> u64 {
        match self {
            Target::New(_) => u64::MAX,
            Target::Given(buffers) => buffers.iter().map(|buffer| buffer.len() as u64).max().unwrap_or(0),
        }
    }
}

/// A batch of gets under way.
pub(crate) struct GetCall<'a, 'b, K> {
    batch: &'a [K],
    groups: KeyGroups,
    /// For each group.
    progress: SmallVec<[Progress; 1]>,
    /// For each group how its values come over the connection that it was asked over.
    ways: SmallVec<[Way; 1]>,
    target: Target<'a, 'b>,
    /// Of the memory that all of the caller's buffers lie in, if it's registered.
    registrations: Option<&'a Registrations>,
    /// For each key the length of its value, or why there is none.
    pub outcomes: Outcomes,
}

/// How it went with each key; of one key without an allocation.
pub(crate) type Outcomes = SmallVec<[Result<u64>; 1]>;

/// How far a group's answer has come.
#[derive(Default)]
struct Progress {
    /// Values that are still to come over TCP: key (or [`SKIPPED`]), and bytes of it that are missing.
    expected: VecDeque<(u32, u64)>,
    /// Where bytes without a place go.
    bin: Vec<u8>,
    leases: u8,
    /// The shortest lease of the answer, which may have begun to come some polls before its end does.
    earliest_lease_ms: u32,
    /// Values that are read one-sided.
    remote: Remote,
}

/// Values that are read one-sided, once it's known where they lie.
#[derive(Default)]
struct Remote {
    /// Key, first byte in the segment, bytes.
    values: Vec<(u32, u64, u64)>,
    /// From the first look at the connection on.
    reader: Option<Reader>,
    /// The earliest end of their leases.
    deadline: Instant,
}

/// How a group's values come.
enum Way {
    /// Copied from shared memory.
    Mapped(Arc<Mapping>),
    /// Short ones with the answer, long ones read one-sided.
    OneSided,
    /// With the answer.
    Sent,
}

impl Way {
    fn over(connection: &mut Connection) -> Way {
        match connection.mapping().cloned() {
            Some(mapping) => Way::Mapped(mapping),
            None if connection.link().is_some() => Way::OneSided,
            None => Way::Sent,
        }
    }
}

impl<'a, 'b, K: AsRef<[u8]>> GetCall<'a, 'b, K> {
    pub fn new(client: &ClientInner, batch: &'a [K], target: Target<'a, 'b>) -> Result<GetCall<'a, 'b, K>> {
        let groups = group(client, batch, size_of::<GetBody>())?;
        let progress = groups.iter().map(|_| Progress::default()).collect();
        let ways = groups.iter().map(|_| Way::Sent).collect();
        let outcomes = (0..batch.len()).map(|index| Err(Error::NotFound { index: index as u64 })).collect();
        Ok(GetCall { batch, groups, progress, ways, target, registrations: None, outcomes })
    }

    /// The same, to registered memory. For calls that are waited for only: until they return a device may write there.
    pub fn into_registered(self, registrations: &'a Registrations) -> GetCall<'a, 'b, K> {
        GetCall { registrations: Some(registrations), ..self }
    }

    /// The values, for a call that made their buffers.
    pub fn into_values(self) -> Vec<Result<Vec<u8>>> {
        let Target::New(values) = self.target else { return Vec::new() };
        self.outcomes.into_iter().zip(values).map(|(outcome, value)| outcome.map(|_| value)).collect()
    }
}

impl<K: AsRef<[u8]>> GetCall<'_, '_, K> {
    /// What became of all keys of the group at `at`: other shards have answered, or will. The group is done.
    #[cold]
    fn fail(&mut self, at: usize, error: &Error) -> bool {
        let group = &mut self.groups[at];
        for index in &group.indices {
            self.outcomes[*index as usize] = Err(error.clone().at(u64::from(*index)));
        }
        group.exchange.end();
        true
    }

    /// Takes the group at `at` out, of which nothing was answered, and others in behind all that there are.
    #[cold]
    fn replace(&mut self, at: usize, groups: KeyGroups) {
        self.groups.remove(at);
        self.progress.remove(at);
        self.ways.remove(at);
        self.progress.extend(groups.iter().map(|_| Progress::default()));
        self.ways.extend(groups.iter().map(|_| Way::Sent));
        self.groups.extend(groups);
    }

    /// Moves the one-sided reads of the group at `at` on. Whether the group is done.
    fn read_remote(&mut self, at: usize, lane: &mut Lane, client: &ClientInner) -> Result<bool> {
        let (group, progress) = (&mut self.groups[at], &mut self.progress[at]);
        let Some(serial) = group.exchange.reading_on() else { return Ok(true) };
        let (route, boot_id) = (group.exchange.route, group.exchange.boot_id);
        let connection = lane.existing(route, serial).filter(|connection| connection.boot_id == boot_id);
        let Remote { values, reader, deadline } = &mut progress.remote;
        let polled = match connection.and_then(Connection::link) {
            Some(link) => {
                let registrations = self.registrations;
                let reader = match reader {
                    Some(reader) => reader,
                    none => {
                        let direct = registrations.and_then(|registrations| registrations.region(link));
                        let reader = none.insert(Reader::new(link.new_reader(), direct));
                        group.exchange.begin_reading(serial, Some(reader));
                        reader
                    }
                };
                let mut pieces = ValuePieces { values, target: &mut self.target, registrations };
                let polled = reader.poll(link, &mut pieces, *deadline);
                polled.map(|polled| polled.map(|()| reader.is_late()))
            }
            None => Err(Broken::Closed),
        };
        match polled {
            Ok(Poll::Pending) => return Ok(false),
            Ok(Poll::Ready(is_late)) if !is_late && covers(*deadline) => {
                group.exchange.end();
                return Ok(true);
            }
            Ok(Poll::Ready(_)) => {}
            Err(_) => {
                lane.close(route, serial);
                if progress.leases + 1 >= MAX_LEASES {
                    return Err(Error::ConnectionLost { server: client.server_address(route) });
                }
            }
        }
        // What was read may be other objects' bytes, or isn't whole: none of it counts.
        group.exchange.end();
        Ok(repeat_or_fail(&mut group.exchange, progress, &group.indices, &mut self.outcomes))
    }
}

/// Long values, each to its buffer.
struct ValuePieces<'a, 'b, 'c> {
    values: &'a [(u32, u64, u64)],
    target: &'a mut Target<'b, 'c>,
    registrations: Option<&'a Registrations>,
}

impl Pieces for ValuePieces<'_, '_, '_> {
    fn count(&self) -> usize {
        self.values.len()
    }

    fn piece(&self, index: usize) -> Option<(u64, u64)> {
        let (_, offset, bytes) = self.values[index];
        Some((offset, bytes))
    }

    fn place(&mut self, index: usize, from: u64, length: usize) -> &mut [u8] {
        let from = from as usize;
        &mut self.target.made(self.values[index].0 as usize)[from..from + length]
    }

    fn direct_offset(&self, index: usize) -> Option<u64> {
        self.target.direct_offset(self.values[index].0 as usize, self.registrations)
    }
}

impl<K: AsRef<[u8]>> Call for GetCall<'_, '_, K> {
    #[inline]
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        let (mut is_done, mut next) = (true, 0);
        while next < self.groups.len() {
            let at = next;
            next += 1;
            let group = &mut self.groups[at];
            if group.exchange.is_done() {
                continue;
            }
            if group.exchange.reading_on().is_some() {
                is_done &= self.read_remote(at, lane, client).unwrap_or_else(|error| self.fail(at, &error));
                continue;
            }
            if group.exchange.is_new() {
                match lane.connection(client, group.exchange.route) {
                    Ok(connection) => self.ways[at] = Way::over(connection),
                    Err(error) => {
                        self.fail(at, &error);
                        continue;
                    }
                }
            }
            let way = &self.ways[at];
            let request = GetRequest {
                batch: self.batch,
                indices: &group.indices,
                opcode: match way {
                    Way::Mapped(_) => Opcode::Query,
                    Way::OneSided => Opcode::Fetch,
                    Way::Sent => Opcode::Get,
                },
                max_value_bytes: match way {
                    Way::OneSided => SHORT_VALUE_BYTES,
                    _ => self.target.longest(),
                },
            };
            let mut receiver = GetReceiver {
                way,
                indices: &group.indices,
                progress: &mut self.progress[at],
                target: &mut self.target,
                outcomes: &mut self.outcomes,
            };
            let outcome = drive(&mut group.exchange, lane, client, &request, &mut receiver);
            let is_local = matches!(way, Way::Mapped(_));
            let progress = &mut self.progress[at];
            let lease = Duration::from_millis(u64::from(progress.earliest_lease_ms));
            match outcome {
                Poll::Pending => is_done = false,
                Poll::Ready(Err(error)) => {
                    match regroup(client, self.batch, group, &error, size_of::<GetBody>()) {
                        Some(groups) => {
                            self.replace(at, groups);
                            next = at;
                        }
                        None => {
                            self.fail(at, &error);
                        }
                    }
                }
                Poll::Ready(Ok(())) if is_local && !covers(client_deadline(group.exchange.asked, lease)) => {
                    // The copies may hold bytes of other objects: none of them counts.
                    is_done &=
                        repeat_or_fail(&mut group.exchange, progress, &group.indices, &mut self.outcomes);
                }
                Poll::Ready(Ok(())) if !progress.remote.values.is_empty() => {
                    progress.remote.deadline = client_deadline(group.exchange.asked, lease);
                    // The connection may have ended since; then the first look at it says so.
                    let serial = lane.open_connection(group.exchange.route).map_or(0, |open| open.serial);
                    group.exchange.begin_reading(serial, None);
                    // At once: a thread that slept now would wait for what nobody has asked for.
                    is_done &=
                        self.read_remote(at, lane, client).unwrap_or_else(|error| self.fail(at, &error));
                }
                Poll::Ready(Ok(())) => {}
            }
        }
        if is_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn keep_what_came(&mut self, error: &dyn Fn(Route) -> Error) -> bool {
        for at in 0..self.groups.len() {
            let exchange = &self.groups[at].exchange;
            if !exchange.is_done() {
                self.fail(at, &error(exchange.route));
            }
        }
        true
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.groups.iter_mut().for_each(|group| act(&mut group.exchange));
    }
}

#[inline]
fn covers(deadline: Instant) -> bool {
    Clock.now() < deadline
}

/// Asks for new leases, or gives up where the copy can't be made within one. Whether the group is done.
#[cold]
fn repeat_or_fail(
    exchange: &mut Exchange,
    progress: &mut Progress,
    indices: &Indices,
    outcomes: &mut [Result<u64>],
) -> bool {
    progress.leases += 1;
    if progress.leases < MAX_LEASES {
        exchange.reset();
        return false;
    }
    for index in indices {
        if outcomes[*index as usize].is_ok() {
            outcomes[*index as usize] = Err(Error::LeaseExpired { index: u64::from(*index) });
        }
    }
    true
}

struct GetRequest<'a, K> {
    batch: &'a [K],
    indices: &'a [u32],
    /// `get`, `fetch`, or `query` where only descriptors are asked for.
    opcode: Opcode,
    max_value_bytes: u64,
}

impl<K: AsRef<[u8]>> Request for GetRequest<'_, K> {
    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn count(&self) -> u16 {
        self.indices.len() as u16
    }

    fn encode(&self, frame: &mut Vec<u8>) {
        if self.opcode != Opcode::Query {
            body::append(frame, &GetBody { max_value_bytes: self.max_value_bytes.into() });
        }
        self.indices.iter().for_each(|index| keys::append(frame, self.batch[*index as usize].as_ref()));
    }
}

struct GetReceiver<'a, 'b, 'c> {
    way: &'a Way,
    indices: &'a [u32],
    progress: &'a mut Progress,
    target: &'a mut Target<'b, 'c>,
    outcomes: &'a mut [Result<u64>],
}

impl GetReceiver<'_, '_, '_> {
    /// Takes the answer for one key; over shared memory the value with it.
    fn take(&mut self, index: u32, descriptor: &Descriptor) -> Result<()> {
        let at = index as usize;
        let bytes = descriptor.value_bytes.get();
        let status = descriptor.status.get();
        if status != 0 {
            let numbers = [u64::from(index), bytes, 0, 0];
            let error = Error::from_wire(WireError { code: status, numbers });
            self.outcomes[at] = Err(self.with_given(error, at));
            return Ok(());
        }
        let earliest_lease_ms = &mut self.progress.earliest_lease_ms;
        *earliest_lease_ms = (*earliest_lease_ms).min(descriptor.lease_ms.get());
        match (self.way, self.target.buffer(at, bytes)) {
            (Way::OneSided, buffer) if bytes > SHORT_VALUE_BYTES => {
                self.outcomes[at] = buffer.map(|_| {
                    self.progress.remote.values.push((index, descriptor.value_offset(), bytes));
                    bytes
                });
            }
            (Way::Mapped(mapping), buffer) => {
                let offset = descriptor.value_offset();
                if !mapping.contains(offset, bytes) {
                    return Err(Error::Malformed { reason: Malformation::Field, detail: offset });
                }
                self.outcomes[at] = buffer.map(|buffer| {
                    mapping.read(offset, buffer);
                    bytes
                });
            }
            (Way::OneSided | Way::Sent, Ok(_)) => {
                self.outcomes[at] = Ok(bytes);
                self.progress.expected.push_back((index, bytes));
            }
            (Way::OneSided | Way::Sent, Err(error)) => {
                // The server sends it all the same: the limit that it was given is that of the largest buffer.
                self.outcomes[at] = Err(error);
                self.progress.expected.push_back((SKIPPED, bytes));
            }
        }
        Ok(())
    }

    /// The server knows the value's length, and this side its buffer's.
    fn with_given(&mut self, error: Error, at: usize) -> Error {
        match error {
            Error::BufferTooSmall { index, needed, .. } => {
                Error::BufferTooSmall { index, needed, given: self.target.made(at).len() as u64 }
            }
            other => other,
        }
    }
}

/// In place of a key: bytes that arrive and have no place to go.
const SKIPPED: u32 = u32::MAX;
const BIN_BYTES: usize = 16 << 10;

impl Receiver for GetReceiver<'_, '_, '_> {
    fn reply(&mut self, _header: &Header, body: &[u8]) -> Result<()> {
        self.progress.expected.clear();
        self.progress.earliest_lease_ms = u32::MAX;
        self.progress.remote = Remote::default();
        let indices = self.indices;
        let descriptors = query::decode_reply(body, indices.len())?;
        for (index, descriptor) in indices.iter().zip(descriptors) {
            self.take(*index, descriptor)?;
        }
        self.progress.expected.retain(|(_, bytes)| *bytes > 0);
        Ok(())
    }

    fn destination(&mut self) -> &mut [u8] {
        let Some((index, missing)) = self.progress.expected.front().copied() else { return &mut [] };
        if index == SKIPPED {
            self.progress.bin.resize(BIN_BYTES, 0);
            return &mut self.progress.bin[..BIN_BYTES.min(usize::try_from(missing).unwrap_or(BIN_BYTES))];
        }
        let at = index as usize;
        let length = self.outcomes[at].as_ref().copied().unwrap_or(0);
        let start = (length - missing) as usize;
        self.target.made(at).get_mut(start..length as usize).unwrap_or_default()
    }

    fn advance(&mut self, bytes: usize) {
        if let Some((_, missing)) = self.progress.expected.front_mut() {
            *missing -= bytes as u64;
            if *missing == 0 {
                self.progress.expected.pop_front();
            }
        }
    }
}
