//! `longest_prefix`: every shard of every server is asked at once, and the longest answer for each key counts.

use super::{Call, Exchange, Request, drive};
use crate::client::ClientInner;
use crate::connection::Receiver;
use crate::lane::{Lane, Route};
use lanner_shared::error::Malformation;
use lanner_shared::wire::body::BodyReader;
use lanner_shared::wire::header::Header;
use lanner_shared::wire::longest_prefix::LongestPrefixAnswer;
use lanner_shared::wire::{MAX_BATCH, MAX_BODY_BYTES, Opcode, keys};
use lanner_shared::{Error, Result, key};
use std::task::Poll;

/// A search for any number of keys: as many as a frame takes, then the next.
pub(crate) struct PrefixesCall<'a, K> {
    batch: &'a [K],
    under_way: Option<LongestPrefixCall<'a, K>>,
    /// Of the keys whose frames are answered; see [`LongestPrefixCall::longest`].
    longest: Vec<u16>,
}

impl<'a, K: AsRef<[u8]>> PrefixesCall<'a, K> {
    pub fn new(batch: &'a [K]) -> PrefixesCall<'a, K> {
        PrefixesCall { batch, under_way: None, longest: Vec::with_capacity(batch.len()) }
    }

    /// Bytes of the longest prefix of a key that was found, if one was.
    pub fn longest_of(&self, index: usize) -> Option<usize> {
        self.longest.get(index).map(|bytes| usize::from(*bytes)).filter(|bytes| *bytes > 0)
    }

    /// The longest prefix of each key.
    pub fn into_prefixes(self) -> Vec<Option<&'a [u8]>> {
        let prefix = |(index, key): (usize, &'a K)| key.as_ref().get(..self.longest_of(index)?);
        self.batch.iter().enumerate().map(prefix).collect()
    }
}

impl<K: AsRef<[u8]>> Call for PrefixesCall<'_, K> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        while self.longest.len() < self.batch.len() {
            let call = match &mut self.under_way {
                Some(call) => call,
                next => {
                    let first = self.longest.len();
                    next.insert(LongestPrefixCall::new(client.routes(), self.batch, first)?)
                }
            };
            match call.poll(lane, client) {
                Poll::Ready(Ok(())) => self.longest.append(&mut call.longest),
                other => return other,
            }
            self.under_way = None;
        }
        Poll::Ready(Ok(()))
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.under_way.iter_mut().for_each(|call| call.each_exchange(act));
    }
}

/// A search under way: one frame with all keys to each shard.
struct LongestPrefixCall<'a, K> {
    batch: &'a [K],
    exchanges: Vec<Exchange>,
    /// For each key the length of the longest that was found so far, in bytes; 0 for none.
    longest: Vec<u16>,
}

impl<'a, K: AsRef<[u8]>> LongestPrefixCall<'a, K> {
    /// Searches for the keys of `batch` from `first` on, as many as a frame takes; `longest` has an entry for each of them.
    fn new(
        routes: impl Iterator<Item = Route>,
        batch: &'a [K],
        first: usize,
    ) -> Result<LongestPrefixCall<'a, K>> {
        let (mut body_bytes, mut count) = (0, 0);
        for (index, key) in batch.iter().enumerate().skip(first).take(MAX_BATCH) {
            body_bytes += keys::encoded_bytes(key::checked(key.as_ref(), index)?);
            if body_bytes > MAX_BODY_BYTES {
                break;
            }
            count += 1;
        }
        let exchanges = routes.map(Exchange::new).collect();
        Ok(LongestPrefixCall { batch: &batch[first..first + count], exchanges, longest: vec![0; count] })
    }
}

impl<K: AsRef<[u8]>> Call for LongestPrefixCall<'_, K> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        let mut is_done = true;
        let request = LongestPrefixRequest { batch: self.batch };
        for exchange in self.exchanges.iter_mut().filter(|exchange| !exchange.is_done()) {
            let mut receiver = Answers { batch: self.batch, longest: &mut self.longest };
            match drive(exchange, lane, client, &request, &mut receiver) {
                Poll::Pending => is_done = false,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        if is_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.exchanges.iter_mut().for_each(act);
    }
}

struct LongestPrefixRequest<'a, K> {
    batch: &'a [K],
}

impl<K: AsRef<[u8]>> Request for LongestPrefixRequest<'_, K> {
    fn opcode(&self) -> Opcode {
        Opcode::LongestPrefix
    }

    fn count(&self) -> u16 {
        self.batch.len() as u16
    }

    fn encode(&self, frame: &mut Vec<u8>) {
        self.batch.iter().for_each(|key| keys::append(frame, key.as_ref()));
    }
}

struct Answers<'a, K> {
    batch: &'a [K],
    longest: &'a mut [u16],
}

impl<K: AsRef<[u8]>> Receiver for Answers<'_, K> {
    fn reply(&mut self, _header: &Header, body: &[u8]) -> Result<()> {
        let mut reader = BodyReader::new(body);
        for (key, longest) in self.batch.iter().zip(self.longest.iter_mut()) {
            let bytes = reader.value::<LongestPrefixAnswer>()?.get();
            if usize::from(bytes) > key.as_ref().len() {
                return Err(Error::Malformed { reason: Malformation::Field, detail: u64::from(bytes) });
            }
            *longest = bytes.max(*longest);
        }
        reader.end()
    }

    fn destination(&mut self) -> &mut [u8] {
        &mut []
    }

    fn advance(&mut self, _bytes: usize) {}
}
