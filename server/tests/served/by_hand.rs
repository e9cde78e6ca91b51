//! Connections and frames made by hand, for peers that do with them what no client does.

use crate::support::TestServer;
use lanner_client::Error;
use lanner_shared::ShardId;
use lanner_shared::wire::header::Header;
use lanner_shared::wire::hello::{ANY_SHARD, Hello, Welcome};
use lanner_shared::wire::put::{self, Pin, PutMode, PutRequest};
use lanner_shared::wire::{Opcode, body, keys};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

pub fn connect(server: &TestServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

pub fn welcome(stream: &mut TcpStream) -> Result<(), Error> {
    let mut welcome: Welcome = FromZeros::new_zeroed();
    stream.read_exact(welcome.as_mut_bytes()).unwrap();
    welcome.check()
}

/// A connection whose handshake is done.
pub fn introduced(server: &TestServer) -> TcpStream {
    let mut stream = connect(server);
    stream.write_all(Hello::new(b"", 1, ANY_SHARD).as_bytes()).unwrap();
    welcome(&mut stream).unwrap();
    stream
}

pub fn frame(header: Header, append: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    let start = body::begin(&mut frame);
    append(&mut frame);
    body::finish(&mut frame, start, header, 1);
    frame
}

/// The header of a request to the first shard.
pub fn request(opcode: Opcode, count: u16) -> Header {
    Header::request(opcode, ShardId(0), 7, count)
}

/// Asks for a value.
pub fn get(key: &[u8]) -> Vec<u8> {
    frame(request(Opcode::Get, 1), |body| {
        body.extend(u64::MAX.to_le_bytes());
        keys::append(body, key);
    })
}

/// Begins to put a value of so many bytes.
pub fn put(key: &[u8], bytes: u64) -> Vec<u8> {
    let put = PutRequest { key, mode: PutMode::Put, pin: Pin::None, ttl_seconds: 0, group: b"", chain: None };
    let header = Header { payload_bytes: bytes, ..request(Opcode::Put, 1) };
    frame(header, |body| put::append(body, &put))
}

/// Asks for a value and takes no answer yet.
pub fn ask_for(stream: &mut TcpStream, key: &[u8]) {
    stream.write_all(&get(key)).unwrap();
}

/// Begins to put a value of `bytes`, of which `sent` goes out.
pub fn begin_put(stream: &mut TcpStream, key: &[u8], bytes: u64, sent: &[u8]) {
    stream.write_all(&put(key, bytes)).unwrap();
    stream.write_all(sent).unwrap();
}
