//! Listens to a connection at the server's end: which frames came in, and how each was answered.

use crate::content::{self, Version};
use lanner_shared::wire::body::BodyReader;
use lanner_shared::wire::get::GetBody;
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use lanner_shared::wire::put::PutMode;
use lanner_shared::wire::{Descriptor, MAX_VERSION, Opcode, keys, match_chain, put};
use std::collections::VecDeque;

/// A request, as far as the model cares.
#[derive(Debug)]
pub struct Asked {
    pub opcode: Opcode,
    pub keys: Vec<Vec<u8>>,
    /// Into how many groups the keys of a `match_chain` fall, and how many each has.
    groups: Vec<usize>,
    pub is_upsert: bool,
    pub ttl_seconds: u32,
    pub payload_bytes: u64,
    /// The payload's first bytes.
    number: Vec<u8>,
}

impl Asked {
    /// The version of the value, once all of it has come.
    pub fn version(&self) -> Version {
        content::version_of(&self.number)
    }
}

/// What was answered.
#[derive(Debug)]
pub struct Answer<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

impl<'a> Answer<'a> {
    /// What was said of which keys by a look-up: the descriptor of one that was found.
    pub fn found<'k>(&self, asked: &'k Asked) -> Vec<(&'k [u8], Option<&'a Descriptor>)> {
        if self.status != 0 {
            return Vec::new();
        }
        let keys = asked.keys.iter().map(Vec::as_slice);
        match asked.opcode {
            Opcode::Get | Opcode::Query => {
                let count = self.body.len() / size_of::<Descriptor>();
                let descriptors: &[Descriptor] = BodyReader::new(self.body).values(count).unwrap_or_default();
                let found = |descriptor: &'a Descriptor| (descriptor.status.get() == 0).then_some(descriptor);
                keys.zip(descriptors.iter().map(found)).collect()
            }
            Opcode::MatchChain => {
                let (numbers, mut descriptors) = match_chain::decode_reply(self.body, asked.groups.len())
                    .expect("shards send what can be understood");
                let (mut keys, mut said) = (keys, Vec::new());
                for (blocks, number) in asked.groups.iter().zip(numbers) {
                    let found = descriptors.split_off(..usize::from(number.get())).expect("as many");
                    let of_group = keys.by_ref().take(*blocks).zip(found.iter().map(Some).chain([None]));
                    said.extend(of_group.collect::<Vec<_>>());
                    keys.by_ref().take(blocks.saturating_sub(found.len() + 1)).for_each(drop);
                }
                said
            }
            _ => Vec::new(),
        }
    }
}

/// Cuts a stream into frames.
#[derive(Debug, Default)]
struct Cutter {
    partial: Vec<u8>,
    payload_missing: u64,
}

/// A piece of a stream.
enum Part<'a> {
    Frame(Header, &'a [u8]),
    /// Some of the payload behind the last frame.
    Payload(&'a [u8]),
}

impl Cutter {
    fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(Part<'_>)) {
        while !bytes.is_empty() {
            if self.payload_missing > 0 {
                let count = bytes.len().min(self.payload_missing as usize);
                each(Part::Payload(&bytes[..count]));
                self.payload_missing -= count as u64;
                bytes = &bytes[count..];
                continue;
            }
            let header = |partial: &[u8]| Header::decode(partial.first_chunk()?, MAX_VERSION).ok();
            let wanted = HEADER_BYTES + header(&self.partial).map_or(0, |header| header.body_bytes as usize);
            let count = bytes.len().min(wanted - self.partial.len());
            self.partial.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if let Some(header) = header(&self.partial)
                && self.partial.len() == HEADER_BYTES + header.body_bytes as usize
            {
                each(Part::Frame(header, &self.partial[HEADER_BYTES..]));
                self.payload_missing = header.payload_bytes;
                self.partial.clear();
            }
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Tap {
    requests: Cutter,
    replies: Cutter,
    unanswered: VecDeque<Asked>,
    asked: u64,
    answered: u64,
}

impl Tap {
    /// These bytes were taken in by the server.
    pub fn requested(&mut self, bytes: &[u8]) {
        let Tap { requests, unanswered, asked, answered, .. } = self;
        requests.feed(bytes, |part| match part {
            Part::Frame(header, body) => {
                *asked += 1;
                unanswered.push_back(understood(&header, body));
            }
            // A put that was refused is answered before its payload has come; nobody wants to know its version.
            Part::Payload(payload) if answered < asked => {
                if let Some(last) = unanswered.back_mut() {
                    let missing = 8_usize.saturating_sub(last.number.len());
                    last.number.extend_from_slice(&payload[..payload.len().min(missing)]);
                }
            }
            Part::Payload(_) => {}
        });
    }

    /// These bytes were queued as answers; `each` is told of every one that is whole.
    pub fn replied(&mut self, bytes: &[u8], mut each: impl FnMut(Asked, Answer<'_>)) {
        let Tap { replies, unanswered, answered, .. } = self;
        replies.feed(bytes, |part| {
            let Part::Frame(header, body) = part else { return };
            *answered += 1;
            if let Some(asked) = unanswered.pop_front() {
                each(asked, Answer { status: header.status, body });
            }
        });
    }
}

fn understood(header: &Header, body: &[u8]) -> Asked {
    let mut asked = Asked {
        opcode: header.opcode,
        keys: Vec::new(),
        groups: Vec::new(),
        is_upsert: false,
        ttl_seconds: 0,
        payload_bytes: header.payload_bytes,
        number: Vec::new(),
    };
    let mut reader = BodyReader::new(body);
    match header.opcode {
        Opcode::Put => {
            let put = put::decode(body).expect("clients send what can be understood");
            asked.keys.push(put.key.to_vec());
            asked.is_upsert = put.mode == PutMode::Upsert;
            asked.ttl_seconds = put.ttl_seconds;
        }
        Opcode::Get | Opcode::Query | Opcode::Exists | Opcode::Remove => {
            if header.opcode == Opcode::Get {
                let _: GetBody = reader.value().expect("clients send what can be understood");
            }
            for index in 0..usize::from(header.count) {
                asked.keys.push(keys::next(&mut reader, index).expect("a valid key").to_vec());
            }
        }
        Opcode::MatchChain => {
            for _ in 0..header.count {
                let head = match_chain::next_head(&mut reader).expect("a head");
                let (prefix, blocks) = head.checked().expect("a group");
                asked.groups.push(blocks);
                for index in 0..blocks {
                    let key = match_chain::next_key(&mut reader, index).expect("a valid key");
                    asked.keys.push(prefix.stored_key(key).to_vec());
                }
            }
        }
        _ => {}
    }
    asked
}
