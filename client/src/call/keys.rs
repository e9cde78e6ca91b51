//! Calls that send keys and get a fixed answer for each: `query`, `exists`, `remove`. The keys of one shard share a frame.

use super::{Call, Exchange, Request, drive, has_moved};
use crate::client::ClientInner;
use crate::connection::Receiver;
use crate::lane::{Lane, Route};
use lanner_shared::error::Malformation;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::header::Header;
use lanner_shared::wire::{Descriptor, MAX_BATCH, MAX_BODY_BYTES, Opcode, body::BodyReader, keys};
use lanner_shared::{Error, KeyHash, Result, key};
use smallvec::SmallVec;
use std::task::Poll;
use zerocopy::FromBytes;

/// Places of keys in the caller's batch.
pub(crate) type Indices = SmallVec<[u32; 4]>;

/// The keys that go to one shard in one frame.
#[derive(Debug)]
pub(crate) struct KeyGroup {
    pub exchange: Exchange,
    pub indices: Indices,
    body_bytes: usize,
}

/// The groups of a batch.
pub(crate) type KeyGroups = SmallVec<[KeyGroup; 1]>;

/// Groups keys by shard, and cuts what would exceed a frame. `extra_bytes` are taken by the rest of the body.
pub(crate) fn group<K: AsRef<[u8]>>(
    client: &ClientInner,
    batch: &[K],
    extra_bytes: usize,
) -> Result<KeyGroups> {
    group_some(client, batch, 0..batch.len(), extra_bytes)
}

/// [`group`] of those keys of `batch` that `indices` name.
fn group_some<K: AsRef<[u8]>>(
    client: &ClientInner,
    batch: &[K],
    indices: impl Iterator<Item = usize>,
    extra_bytes: usize,
) -> Result<KeyGroups> {
    let mut groups = KeyGroups::new();
    for index in indices {
        let key = key::checked(batch[index].as_ref(), index)?;
        let route = client.route(KeyHash::of(key));
        push(&mut groups, route, index as u32, keys::encoded_bytes(key), extra_bytes);
    }
    Ok(groups)
}

/// The keys of a group that was refused, grouped anew, if they belong elsewhere now ([`has_moved`]).
#[cold]
pub(crate) fn regroup<K: AsRef<[u8]>>(
    client: &ClientInner,
    batch: &[K],
    group: &KeyGroup,
    refused: &Error,
    extra_bytes: usize,
) -> Option<KeyGroups> {
    let indices = group.indices.iter().map(|index| *index as usize);
    let routes = indices.clone().map(|index| client.route(KeyHash::of(batch[index].as_ref())));
    if !has_moved(refused, group.exchange.route, routes) {
        return None;
    }
    group_some(client, batch, indices, extra_bytes).ok()
}

fn push(groups: &mut KeyGroups, route: Route, index: u32, bytes: usize, extra_bytes: usize) {
    // From the end: of two groups for one shard the later is the one with room. There are as many groups as shards.
    let open = groups.iter_mut().rev().find(|group| group.exchange.route == route);
    if let Some(group) = open
        && group.body_bytes + bytes <= MAX_BODY_BYTES
        && group.indices.len() < MAX_BATCH
        // The answer must fit a frame too.
        && (group.indices.len() + 1) * size_of::<Descriptor>() <= MAX_BODY_BYTES
    {
        group.body_bytes += bytes;
        group.indices.push(index);
        return;
    }
    let indices = SmallVec::from_slice(&[index]);
    groups.push(KeyGroup { exchange: Exchange::new(route), indices, body_bytes: extra_bytes + bytes });
}

/// Takes the answer for each key of a batch.
pub(crate) trait Answers {
    /// What the answer for one key looks like.
    type Answer: FromBytes + Copy;
    const OPCODE: Opcode;
    /// The answer for the key at `index` of the batch.
    fn answer(&mut self, index: usize, answer: Self::Answer) -> Result<()>;
}

/// A batch of keys under way.
pub(crate) struct KeysCall<'a, K, A> {
    batch: &'a [K],
    groups: KeyGroups,
    pub answers: A,
}

impl<'a, K: AsRef<[u8]>, A: Answers> KeysCall<'a, K, A> {
    pub fn new(client: &ClientInner, batch: &'a [K], answers: A) -> Result<KeysCall<'a, K, A>> {
        Ok(KeysCall { batch, groups: group(client, batch, 0)?, answers })
    }

    /// A call that asks for those keys of `batch` that `indices` name, and gets no answer for the others.
    pub fn of_some(
        client: &ClientInner,
        batch: &'a [K],
        indices: &[u32],
        answers: A,
    ) -> Result<KeysCall<'a, K, A>> {
        let indices = indices.iter().map(|index| *index as usize);
        Ok(KeysCall { batch, groups: group_some(client, batch, indices, 0)?, answers })
    }

    /// Which life of which shard's server has answered.
    pub fn answered_by(&self) -> impl Iterator<Item = (Route, [u8; 16])> + '_ {
        self.groups.iter().map(|group| (group.exchange.route, group.exchange.boot_id))
    }
}

impl<K: AsRef<[u8]>, A: Answers> Call for KeysCall<'_, K, A> {
    #[inline]
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        let (mut is_done, mut at) = (true, 0);
        while let Some(group) = self.groups.get_mut(at) {
            at += 1;
            if group.exchange.is_done() {
                continue;
            }
            let request = KeysRequest { opcode: A::OPCODE, batch: self.batch, indices: &group.indices };
            let mut receiver = KeysReceiver { answers: &mut self.answers, indices: &group.indices };
            match drive(&mut group.exchange, lane, client, &request, &mut receiver) {
                Poll::Pending => is_done = false,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => match regroup(client, self.batch, group, &error, 0) {
                    // Those come behind all others.
                    Some(groups) => {
                        at -= 1;
                        self.groups.remove(at);
                        self.groups.extend(groups);
                    }
                    None => return Poll::Ready(Err(in_batch(error, &group.indices))),
                },
            }
        }
        if is_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.groups.iter_mut().for_each(|group| act(&mut group.exchange));
    }
}

/// An error that names a key of a group, naming it by its place in the caller's batch.
pub(crate) fn in_batch(error: Error, indices: &[u32]) -> Error {
    let place = error.to_wire().numbers[0] as usize;
    match indices.get(place) {
        Some(index) => error.at(u64::from(*index)),
        None => error,
    }
}

struct KeysRequest<'a, K> {
    opcode: Opcode,
    batch: &'a [K],
    indices: &'a [u32],
}

impl<K: AsRef<[u8]>> Request for KeysRequest<'_, K> {
    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn count(&self) -> u16 {
        self.indices.len() as u16
    }

    fn encode(&self, body: &mut Vec<u8>) {
        self.indices.iter().for_each(|index| keys::append(body, self.batch[*index as usize].as_ref()));
    }
}

struct KeysReceiver<'a, A> {
    answers: &'a mut A,
    indices: &'a [u32],
}

impl<A: Answers> Receiver for KeysReceiver<'_, A> {
    fn reply(&mut self, _header: &Header, body: &[u8]) -> Result<()> {
        let mut reader = BodyReader::new(body);
        for index in self.indices {
            self.answers.answer(*index as usize, reader.value()?)?;
        }
        reader.end()
    }

    fn destination(&mut self) -> &mut [u8] {
        &mut []
    }

    fn advance(&mut self, _bytes: usize) {}
}

/// Collects the answers of `exists` and `remove`: whether each key was there. Of a single key without an allocation.
pub(crate) struct Flags<const REMOVES: bool, F = Vec<bool>> {
    pub flags: F,
}

impl<const REMOVES: bool, F: AsMut<[bool]>> Answers for Flags<REMOVES, F> {
    type Answer = u8;
    const OPCODE: Opcode = if REMOVES { Opcode::Remove } else { Opcode::Exists };

    fn answer(&mut self, index: usize, answer: u8) -> Result<()> {
        if answer > 1 {
            return Err(Error::Malformed { reason: Malformation::Field, detail: u64::from(answer) });
        }
        self.flags.as_mut()[index] = answer == 1;
        Ok(())
    }
}

/// Collects the answers of `query`.
pub(crate) struct Descriptors {
    pub found: Vec<Descriptor>,
    pub asked: Asked,
}

/// When descriptors were asked for, and of whom.
pub(crate) struct Asked {
    /// Just before the first question was sent: the leases count from here.
    pub at: Instant,
    /// Which life of which shard's server has answered.
    pub answered_by: SmallVec<[(Route, [u8; 16]); 1]>,
}

impl Descriptors {
    /// Room for the answers for `count` keys that are asked for from now on.
    pub fn for_batch(count: usize) -> Descriptors {
        Descriptors {
            found: vec![Descriptor::without(0, 0); count],
            asked: Asked { at: Clock.now(), answered_by: SmallVec::new() },
        }
    }
}

impl Asked {
    /// Whether all that was answered for `route` comes from this life of its server. A connection that was lost half way may have
    /// been made again to the next one, whose memory the first answers say nothing about.
    pub fn are_of(&self, route: Route, boot_id: [u8; 16]) -> bool {
        self.answered_by.iter().all(|(other, life)| *other != route || *life == boot_id)
    }
}

impl Answers for Descriptors {
    type Answer = Descriptor;
    const OPCODE: Opcode = Opcode::Query;

    fn answer(&mut self, index: usize, answer: Descriptor) -> Result<()> {
        self.found[index] = answer;
        Ok(())
    }
}
