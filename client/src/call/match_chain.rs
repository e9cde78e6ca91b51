//! How much of each of several chains is there: every group of 32 blocks goes to the shard that holds it, all at once.

use super::keys::Asked;
use super::{Call, Exchange, Request, drive, give_up, has_moved, start};
use crate::client::{Client, ClientInner};
use crate::connection::Receiver;
use crate::lane::{Lane, Route};
use crate::snapshot::{KeyList, Snapshot};
use lanner_shared::chain::{self, GROUP_BLOCKS, GroupPrefix};
use lanner_shared::error::Malformation;
use lanner_shared::time::Clock;
use lanner_shared::wire::header::Header;
use lanner_shared::wire::{Descriptor, MAX_BODY_BYTES, Opcode, match_chain};
use lanner_shared::{Error, Result};
use smallvec::{SmallVec, smallvec};
use std::task::Poll;

/// Groups that share a frame, at most: while the shard looks up the blocks of one frame, this side writes the next and reads the last.
/// Measured with 247 blocks (`lanner bench latency --op match`): 8, 4 and 2 groups in a frame take 6.2, 5.7 and 5.6 us over shared memory
/// and 12.9, 13.2 and 13.8 over TCP.
const GROUPS_OF_FRAME: usize = 8;
/// The same where the shard's memory is mapped, so that a frame costs no system call.
const GROUPS_OF_LOCAL_FRAME: usize = 4;

/// Chains under way.
pub(crate) struct MatchCall<'a, K> {
    chains: &'a [&'a [K]],
    groups: SmallVec<[Group; GROUPS_OF_FRAME]>,
    parts: SmallVec<[Part; 2]>,
    /// For each chain the keys of all its blocks as they're stored; made while the shards look them up.
    stored: SmallVec<[KeyList; 1]>,
    /// Why no answer came from one of the shards, if any: its groups count as not there.
    failure: Option<Error>,
    asked: lanner_shared::time::Instant,
}

/// Up to 32 blocks of one chain that follow each other.
struct Group {
    chain: u32,
    /// Place of the first block in its chain.
    first: u32,
    prefix: GroupPrefix,
}

/// The groups that go to one shard in one frame.
struct Part {
    exchange: Exchange,
    groups: FrameOf<u32>,
    request_bytes: usize,
    reply_bytes: usize,
    answer: Option<Answer>,
}

/// Something for each group of a frame.
type FrameOf<T> = SmallVec<[T; GROUPS_OF_FRAME]>;

/// What was said of a frame's groups.
struct Answer {
    /// Of each group the number of leading blocks that are there.
    numbers: FrameOf<u16>,
    /// Those of all groups.
    found: Vec<Descriptor>,
}

impl<'a, K: AsRef<[u8]>> MatchCall<'a, K> {
    /// Chains that go out with the first poll.
    pub fn new(client: &ClientInner, chains: &'a [&'a [K]]) -> Result<MatchCall<'a, K>> {
        let groups = chains.iter().map(|keys| keys.len().div_ceil(GROUP_BLOCKS)).sum::<usize>();
        let mut call = MatchCall {
            chains,
            groups: SmallVec::with_capacity(groups),
            parts: SmallVec::new(),
            stored: SmallVec::new(),
            failure: None,
            asked: Clock.now(),
        };
        for (index, keys) in chains.iter().enumerate() {
            for (number, blocks) in chain::checked(keys)?.chunks(GROUP_BLOCKS).enumerate() {
                let prefix = GroupPrefix::of(blocks[0].as_ref());
                let route = client.route(prefix.placement());
                call.place(route, client.is_local(route), blocks);
                call.groups.push(Group {
                    chain: index as u32,
                    first: (number * GROUP_BLOCKS) as u32,
                    prefix,
                });
            }
        }
        Ok(call)
    }

    /// Puts the group that is about to be added into the last frame for `route` that has room.
    fn place(&mut self, route: Route, is_local: bool, blocks: &[K]) {
        let (request_bytes, reply_bytes) =
            (match_chain::encoded_bytes(blocks), match_chain::reply_bytes(blocks.len()));
        let group = self.groups.len() as u32;
        let most_groups = if is_local { GROUPS_OF_LOCAL_FRAME } else { GROUPS_OF_FRAME };
        let open = self.parts.iter_mut().rev().find(|part| part.exchange.route == route);
        match open {
            Some(part)
                if part.groups.len() < most_groups
                    && part.request_bytes + request_bytes <= MAX_BODY_BYTES
                    && part.reply_bytes + reply_bytes <= MAX_BODY_BYTES =>
            {
                part.groups.push(group);
                part.request_bytes += request_bytes;
                part.reply_bytes += reply_bytes;
            }
            _ => self.parts.push(Part {
                exchange: Exchange::new(route),
                groups: smallvec![group],
                request_bytes,
                reply_bytes,
                answer: None,
            }),
        }
    }

    fn store_keys(&mut self) {
        self.stored = self.chains.iter().map(|chain| KeyList::with_room_for(chain)).collect();
        for group in &self.groups {
            let keys = &mut self.stored[group.chain as usize];
            blocks(self.chains, group)
                .iter()
                .for_each(|key| keys.push(group.prefix.as_bytes(), key.as_ref()));
        }
    }

    /// A snapshot of the leading blocks of each chain that are there.
    pub fn into_snapshots(mut self, client: &Client) -> Result<Vec<Snapshot>> {
        let answered = self.parts.iter().filter(|part| part.answer.is_some());
        let answered_by = answered.map(|part| (part.exchange.route, part.exchange.boot_id)).collect();
        let asked = Asked { at: self.asked, answered_by };
        let stored = std::mem::take(&mut self.stored);
        let found = self.found();
        let mut rest = found.as_slice();
        let snapshot = |(mut keys, chain): (KeyList, &&[K])| {
            let groups = rest.split_off(..chain.len().div_ceil(GROUP_BLOCKS)).unwrap_or_default();
            // What is behind a gap doesn't count.
            let whole = groups.iter().take_while(|(_, found)| found.len() == GROUP_BLOCKS).count();
            let leading = &groups[..groups.len().min(whole + 1)];
            keys.truncate(leading.iter().map(|(_, found)| found.len()).sum());
            // Of which nothing is there is maybe a group that nobody was reached about.
            client.snapshot_of(keys, &asked, leading.iter().copied().filter(|(_, found)| !found.is_empty()))
        };
        stored.into_iter().zip(self.chains).map(snapshot).collect()
    }

    /// Of each group the leading blocks that are there, and where.
    fn found(&self) -> FrameOf<(Route, &[Descriptor])> {
        let mut found_of: FrameOf<(Route, &[Descriptor])> =
            smallvec![(Route { server: 0, shard: 0 }, [].as_slice()); self.groups.len()];
        for (part, answer) in self.parts.iter().filter_map(|part| Some((part, part.answer.as_ref()?))) {
            let mut rest = answer.found.as_slice();
            for (group, number) in part.groups.iter().zip(&answer.numbers) {
                let (found, behind) = rest.split_at(usize::from(*number));
                found_of[*group as usize] = (part.exchange.route, found);
                rest = behind;
            }
        }
        found_of
    }
}

fn blocks<'a, K>(chains: &[&'a [K]], group: &Group) -> &'a [K] {
    let rest = &chains[group.chain as usize][group.first as usize..];
    &rest[..rest.len().min(GROUP_BLOCKS)]
}

impl<K: AsRef<[u8]>> Call for MatchCall<'_, K> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        let mut is_done = true;
        for part in &mut self.parts {
            let request = PartRequest { chains: self.chains, groups: &self.groups, indices: &part.groups };
            start(&mut part.exchange, lane, client, &request);
        }
        let mut moved = None;
        for part in &mut self.parts {
            if part.exchange.is_done() {
                continue;
            }
            let request = PartRequest { chains: self.chains, groups: &self.groups, indices: &part.groups };
            let mut receiver = Collector {
                chains: self.chains,
                groups: &self.groups,
                indices: &part.groups,
                answer: &mut part.answer,
            };
            match drive(&mut part.exchange, lane, client, &request, &mut receiver) {
                Poll::Pending => is_done = false,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) if error.is_about_the_way() => {
                    part.exchange.end();
                    self.failure = Some(error);
                }
                Poll::Ready(Err(error)) => {
                    let route = |group: &u32| client.route(self.groups[*group as usize].prefix.placement());
                    if !has_moved(&error, part.exchange.route, part.groups.iter().map(route)) {
                        return Poll::Ready(Err(error));
                    }
                    moved = Some(MatchCall::new(client, self.chains)?);
                    break;
                }
            }
        }
        // All is asked anew.
        if let Some(call) = moved {
            give_up(lane, self);
            *self = call;
            return Poll::Pending;
        }
        // All questions are on their way.
        if self.stored.is_empty() {
            self.store_keys();
        }
        if !is_done {
            return Poll::Pending;
        }
        // What some shards have is worth knowing though another can't be reached.
        let has_answer = |part: &Part| part.answer.is_some();
        match self.failure.take() {
            Some(error) if !self.parts.iter().any(has_answer) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.parts.iter_mut().for_each(|part| act(&mut part.exchange));
    }
}

struct PartRequest<'a, K> {
    chains: &'a [&'a [K]],
    groups: &'a [Group],
    indices: &'a [u32],
}

impl<K: AsRef<[u8]>> Request for PartRequest<'_, K> {
    fn opcode(&self) -> Opcode {
        Opcode::MatchChain
    }

    fn count(&self) -> u16 {
        self.indices.len() as u16
    }

    fn encode(&self, frame: &mut Vec<u8>) {
        for index in self.indices {
            let group = &self.groups[*index as usize];
            match_chain::append_group(frame, &group.prefix, blocks(self.chains, group));
        }
    }
}

/// Takes the answer of one frame.
struct Collector<'a, K> {
    chains: &'a [&'a [K]],
    groups: &'a [Group],
    indices: &'a [u32],
    answer: &'a mut Option<Answer>,
}

impl<K> Receiver for Collector<'_, K> {
    fn reply(&mut self, _header: &Header, body: &[u8]) -> Result<()> {
        let (numbers, found) = match_chain::decode_reply(body, self.indices.len())?;
        let asked = self.indices.iter().map(|index| blocks(self.chains, &self.groups[*index as usize]).len());
        for (number, asked) in numbers.iter().zip(asked) {
            if usize::from(number.get()) > asked {
                return Err(Error::Malformed { reason: Malformation::Field, detail: number.get().into() });
            }
        }
        let numbers = numbers.iter().map(|number| number.get()).collect();
        *self.answer = Some(Answer { numbers, found: found.to_vec() });
        Ok(())
    }

    fn destination(&mut self) -> &mut [u8] {
        &mut []
    }

    fn advance(&mut self, _bytes: usize) {}
}
