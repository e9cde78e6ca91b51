//! `put` and `upsert` of a batch. Each value is a frame of its own; the frames of one shard follow each other at once.

use super::{Call, Exchange, Request, drive, has_moved};
use crate::client::ClientInner;
use crate::connection::Receiver;
use crate::connection::rdma::link::RdmaLink;
use crate::connection::rdma::registration::{Offer, Registrations};
use crate::lane::{Lane, Route};
use lanner_shared::chain::{GROUP_BLOCKS, StoredKey};
use lanner_shared::wire::header::Header;
use lanner_shared::wire::put::{self, ChainLink, MAX_GROUP_BYTES, Pin, PutMode, PutRequest};
use lanner_shared::wire::put_offered::{self, ValueOffer};
use lanner_shared::wire::{Opcode, body::BodyReader};
use lanner_shared::{Error, KeyHash, Result, key};
use std::task::Poll;
use std::time::Duration;

/// What a `put` may be told beside key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions<'a> {
    /// When the object ends by itself, in whole seconds (rounded up); `None` for never.
    pub ttl: Option<Duration>,
    /// How it withstands eviction. A hard pin needs a `ttl`, for every pin has an end.
    pub pin: Pin,
    /// The epoch group that a change of this object is announced to; empty for that of its placement tag.
    pub group: &'a [u8],
}

/// The chain that a batch is a piece of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain<'a> {
    /// The keys of the whole chain, as they're stored.
    pub keys: &'a [StoredKey],
    /// Place of the batch's first block.
    pub from: usize,
}

impl<'a> Chain<'a> {
    /// What the batch's item at `index` hangs on.
    fn link(self, index: usize) -> ChainLink<'a> {
        let at = self.from + index;
        let parent: &[u8] = if at.is_multiple_of(GROUP_BLOCKS) { &[] } else { &self.keys[at - 1] };
        ChainLink { depth: at as u32, parent }
    }
}

/// A value in registered memory that is longer is READ by the server; a shorter one fits a message, and its READ would cost a round trip more.
const MOST_SENT_BYTES: usize = 8 << 10;

/// Puts of one call that are under way at a time. A connection takes four times as many requests, so that what waits here waits for
/// answers to this call and for nothing else.
const MOST_UNDER_WAY: usize = 1024;

/// A batch of puts under way.
pub(crate) struct PutCall<'a, K, V> {
    items: &'a [(K, V)],
    mode: PutMode,
    options: PutOptions<'a>,
    chain: Option<Chain<'a>>,
    /// Of the memory that all values lie in, if it's registered.
    registrations: Option<&'a Registrations>,
    exchanges: Vec<Exchange>,
    /// All before this one are done.
    first_open: usize,
    /// For each item what the server said.
    pub outcomes: Vec<Result<()>>,
}

impl<'a, K: AsRef<[u8]>, V: AsRef<[u8]>> PutCall<'a, K, V> {
    pub fn new(
        client: &ClientInner,
        items: &'a [(K, V)],
        mode: PutMode,
        options: PutOptions<'a>,
    ) -> Result<PutCall<'a, K, V>> {
        check(options)?;
        let exchanges = items.iter().enumerate().map(|(index, (key, _))| {
            let key = key::checked(key.as_ref(), index)?;
            Ok(Exchange::new(client.route(KeyHash::of(key))))
        });
        Ok(PutCall {
            items,
            mode,
            options,
            chain: None,
            registrations: None,
            exchanges: exchanges.collect::<Result<_>>()?,
            first_open: 0,
            outcomes: vec![Ok(()); items.len()],
        })
    }

    /// The same, of blocks of a chain.
    pub fn of_chain(self, chain: Chain<'a>) -> PutCall<'a, K, V> {
        PutCall { chain: Some(chain), ..self }
    }

    /// The same, of values in registered memory. For calls that are waited for only: until they return a server may read the memory.
    pub fn of_registered(self, registrations: &'a Registrations) -> PutCall<'a, K, V> {
        PutCall { registrations: Some(registrations), ..self }
    }
}

fn check(options: PutOptions<'_>) -> Result<()> {
    if options.group.len() > MAX_GROUP_BYTES {
        let text = format!(
            "the epoch group's name has {} bytes; at most {MAX_GROUP_BYTES} fit",
            options.group.len()
        );
        return Err(Error::InvalidArgument(text.into()));
    }
    if options.pin == Pin::Hard && options.ttl.is_none() {
        let text =
            "a hard pin needs a time to live, or it could fill the store for ever; give one, or pin softly";
        return Err(Error::InvalidArgument(text.into()));
    }
    Ok(())
}

/// Whole seconds, rounded up, so that a short time to live isn't taken for none.
fn ttl_seconds(ttl: Option<Duration>) -> u32 {
    let whole = |ttl: Duration| ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)).max(1);
    let seconds = ttl.map_or(0, whole);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> Call for PutCall<'_, K, V> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        while self.exchanges.get(self.first_open).is_some_and(Exchange::is_done) {
            self.first_open += 1;
        }
        let (mut is_done, mut under_way) = (true, 0);
        for (index, exchange) in self.exchanges.iter_mut().enumerate().skip(self.first_open) {
            if exchange.is_done() {
                continue;
            }
            if under_way == MOST_UNDER_WAY {
                return Poll::Pending;
            }
            let (key, value) = &self.items[index];
            let put = PutRequest {
                key: key.as_ref(),
                mode: self.mode,
                pin: self.options.pin,
                ttl_seconds: ttl_seconds(self.options.ttl),
                group: self.options.group,
                chain: self.chain.map(|chain| chain.link(index)),
            };
            let request = PutFrame { put, value: value.as_ref(), registrations: self.registrations };
            match drive(exchange, lane, client, &request, &mut Acknowledgement) {
                Poll::Pending => (is_done, under_way) = (false, under_way + 1),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    let route = client.route(KeyHash::of(key.as_ref()));
                    if has_moved(&error, exchange.route, std::iter::once(route)) {
                        *exchange = Exchange::new(route);
                        (is_done, under_way) = (false, under_way + 1);
                    } else {
                        self.outcomes[index] = Err(error.at(index as u64));
                    }
                }
            }
        }
        if is_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn keep_what_came(&mut self, error: &dyn Fn(Route) -> Error) -> bool {
        for (index, exchange) in self.exchanges.iter_mut().enumerate().filter(|(_, it)| !it.is_done()) {
            self.outcomes[index] = Err(error(exchange.route).at(index as u64));
            exchange.end();
        }
        true
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.exchanges.iter_mut().for_each(act);
    }
}

struct PutFrame<'a> {
    put: PutRequest<'a>,
    value: &'a [u8],
    registrations: Option<&'a Registrations>,
}

impl Request for PutFrame<'_> {
    fn opcode(&self) -> Opcode {
        Opcode::Put
    }

    fn count(&self) -> u16 {
        1
    }

    fn payload(&self) -> &[u8] {
        self.value
    }

    fn encode(&self, body: &mut Vec<u8>) {
        put::append(body, &self.put);
    }

    fn offer(&self, link: &RdmaLink) -> Option<Offer> {
        let registrations = self.registrations.filter(|_| self.value.len() > MOST_SENT_BYTES)?;
        registrations.offer(link, self.value)
    }

    fn encode_offer(&self, body: &mut Vec<u8>, offer: &ValueOffer) {
        put_offered::append(body, offer, &self.put);
    }
}

/// Expects an answer without contents.
struct Acknowledgement;

impl Receiver for Acknowledgement {
    fn reply(&mut self, _header: &Header, body: &[u8]) -> Result<()> {
        BodyReader::new(body).end()
    }

    fn destination(&mut self) -> &mut [u8] {
        &mut []
    }

    fn advance(&mut self, _bytes: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_life_is_not_an_endless_one() {
        for (ttl, seconds) in [
            (None, 0),
            (Some(Duration::ZERO), 1),
            (Some(Duration::from_millis(1)), 1),
            (Some(Duration::from_secs(2)), 2),
            (Some(Duration::from_millis(2_001)), 3),
            (Some(Duration::MAX), u32::MAX),
        ] {
            assert_eq!(ttl_seconds(ttl), seconds, "{ttl:?}");
        }
    }

    #[test]
    fn an_endless_hard_pin_and_a_long_group_are_refused() {
        let hard = PutOptions { pin: Pin::Hard, ..PutOptions::default() };
        assert!(check(hard).is_err());
        assert!(check(PutOptions { ttl: Some(Duration::from_secs(1)), ..hard }).is_ok());
        assert!(check(PutOptions { group: &[1; 256], ..PutOptions::default() }).is_err());
    }
}
