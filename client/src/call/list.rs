//! Calls to one shard for people's eyes: a page of keys, and a shard's statistics.

use super::{Call, Exchange, Request, drive};
use crate::client::ClientInner;
use crate::connection::Receiver;
use crate::lane::{Lane, Route};
use lanner_shared::Result;
use lanner_shared::wire::header::Header;
use lanner_shared::wire::{Opcode, list};
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
    pub next_cursor: Vec<u8>,
}

/// One shard's keys: the page at hand, and where the next begins.
pub(crate) struct Pages {
    pub route: Route,
    pub cursor: Vec<u8>,
    /// The next key last.
    entries: Vec<Listed>,
    is_last: bool,
}

impl Pages {
    /// Before the first page.
    pub fn new(route: Route) -> Pages {
        Pages { route, cursor: Vec::new(), entries: Vec::new(), is_last: false }
    }

    /// Whether the page at hand is used up and another may come.
    pub fn wants_more(&self) -> bool {
        self.entries.is_empty() && !self.is_last
    }

    /// Takes the next page, which may be empty and not the last.
    pub fn take(&mut self, page: Page) {
        self.is_last = page.next_cursor.is_empty();
        self.cursor = page.next_cursor;
        self.entries = page.entries;
        self.entries.reverse();
    }

    /// The next key.
    pub fn first(&self) -> Option<&Listed> {
        self.entries.last()
    }

    /// Takes the next key out.
    pub fn next(&mut self) -> Option<Listed> {
        self.entries.pop()
    }
}

struct ListRequest<'a> {
    prefix: &'a [u8],
    cursor: &'a [u8],
}

impl<'a> ListCall<'a> {
    pub fn new(route: Route, prefix: &'a [u8], cursor: &'a [u8]) -> ListCall<'a> {
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
        list::append(frame, self.prefix, self.cursor);
    }
}

impl Receiver for Page {
    fn reply(&mut self, header: &Header, body: &[u8]) -> Result<()> {
        let entries = &mut self.entries;
        entries.clear();
        self.next_cursor = list::decode_reply(body, usize::from(header.count), |key, value_bytes| {
            entries.push(Listed { key: key.to_vec(), value_bytes });
        })?
        .to_vec();
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
