//! Calls to one shard for people's eyes: a page of keys, and a shard's statistics.

use super::{Call, Exchange, Request, drive};
use crate::client::ClientInner;
use crate::connection::Receiver;
use crate::lane::{Lane, Route};
use lanner_shared::Result;
use lanner_shared::wire::header::Header;
use lanner_shared::wire::list::{ListBody, decode_reply};
use lanner_shared::wire::{Opcode, body};
use std::task::Poll;

/// A key of the store and the length of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Vec<u8>,
    /// Length of the value in bytes.
    pub value_bytes: u64,
}

/// One page of one shard's keys.
pub(crate) struct ListCall<'a> {
    exchange: Exchange,
    request: ListRequest<'a>,
    pub page: Page,
}

/// What came.
#[derive(Default)]
pub(crate) struct Page {
    pub entries: Vec<Listed>,
    pub next_cursor: u64,
}

struct ListRequest<'a> {
    prefix: &'a [u8],
    cursor: u64,
}

impl<'a> ListCall<'a> {
    pub fn new(route: Route, prefix: &'a [u8], cursor: u64) -> ListCall<'a> {
        ListCall {
            exchange: Exchange::new(route),
            request: ListRequest { prefix, cursor },
            page: Page::default(),
        }
    }
}

impl Call for ListCall<'_> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        drive(&mut self.exchange, lane, client, &self.request, &mut self.page)
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        act(&mut self.exchange);
    }
}

impl Request for ListRequest<'_> {
    fn opcode(&self) -> Opcode {
        Opcode::List
    }

    fn count(&self) -> u16 {
        0
    }

    fn encode(&self, frame: &mut Vec<u8>) {
        body::append(frame, &ListBody { cursor: self.cursor.into() });
        frame.extend_from_slice(self.prefix);
    }
}

impl Receiver for Page {
    fn reply(&mut self, header: &Header, body: &[u8]) -> Result<()> {
        let entries = &mut self.entries;
        entries.clear();
        self.next_cursor = decode_reply(body, usize::from(header.count), |key, value_bytes| {
            entries.push(Listed { key: key.to_vec(), value_bytes });
        })?;
        Ok(())
    }

    fn destination(&mut self) -> &mut [u8] {
        &mut []
    }

    fn advance(&mut self, _bytes: usize) {}
}

/// One shard's statistics.
pub(crate) struct StatsCall {
    exchange: Exchange,
    pub document: Document,
}

/// A JSON document.
#[derive(Default)]
pub(crate) struct Document(pub String);

impl StatsCall {
    pub fn new(route: Route) -> StatsCall {
        StatsCall { exchange: Exchange::new(route), document: Document::default() }
    }
}

impl Call for StatsCall {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        drive(&mut self.exchange, lane, client, &StatsRequest, &mut self.document)
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        act(&mut self.exchange);
    }
}

struct StatsRequest;

impl Request for StatsRequest {
    fn opcode(&self) -> Opcode {
        Opcode::Stats
    }

    fn count(&self) -> u16 {
        0
    }

    fn encode(&self, _frame: &mut Vec<u8>) {}
}

impl Receiver for Document {
    fn reply(&mut self, _header: &Header, body: &[u8]) -> Result<()> {
        self.0 = String::from_utf8_lossy(body).into_owned();
        Ok(())
    }

    fn destination(&mut self) -> &mut [u8] {
        &mut []
    }

    fn advance(&mut self, _bytes: usize) {}
}
