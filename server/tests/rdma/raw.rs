//! A client that does with its queue pair what it likes: takes no answers, sends more than it may, is gone in the middle of a message.

use crate::support::TestServer;
use lanner_client::Clock;
use lanner_rdma::choice::RdmaChoice;
use lanner_rdma::inventory;
use lanner_rdma::selection::{self, Wanted};
use lanner_rdma::verbs::completion::CompletionQueue;
use lanner_rdma::verbs::connection::QueuePairOptions;
use lanner_rdma::verbs::device::{Device, Domain};
use lanner_rdma::verbs::memory::{Access, Buffer};
use lanner_rdma::verbs::queue_pair::{QueuePair, RECEIVE};
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use lanner_shared::wire::hello::{ANY_SHARD, Hello, Welcome};
use lanner_shared::wire::join_rdma::{EndpointBody, JoinRdma, RdmaJoined};
use lanner_shared::wire::{self, Opcode, body, keys};
use lanner_shared::{Error, ShardId};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a message.
pub const MESSAGE: usize = 8 << 10;
const SENDS: usize = 64;

/// Fields are dropped in order: the queue pair first.
pub struct RawClient {
    queue_pair: QueuePair,
    completions: Arc<CompletionQueue>,
    buffer: Buffer,
    next: usize,
    /// Its end is the client's.
    _control: TcpStream,
}

/// What raw clients share, for opening a device takes long.
pub fn domain(server: &TestServer) -> Arc<Domain> {
    let local = TcpStream::connect(server.address()).unwrap().local_addr().unwrap().ip();
    let devices = inventory::devices(Path::new(inventory::ROOT));
    let wanted = Wanted { addresses: &[local], numa_node: None };
    let selection = selection::choose(&RdmaChoice::Auto, &devices, wanted).unwrap();
    Domain::new(&Device::open(selection).unwrap()).unwrap()
}

/// A connection that is known to the server, which has nothing of RDMA yet.
fn introduced(server: &TestServer) -> TcpStream {
    let mut control = TcpStream::connect(server.address()).unwrap();
    control.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    control.write_all(Hello::new(b"", 1, ANY_SHARD).as_bytes()).unwrap();
    let mut welcome: Welcome = FromZeros::new_zeroed();
    control.read_exact(welcome.as_mut_bytes()).unwrap();
    welcome.check().unwrap();
    control
}

/// What the server says to a client that names this GID.
pub fn refusal_of(server: &TestServer, gid: [u8; 16]) -> Error {
    let mut control = introduced(server);
    let mut join: JoinRdma = FromZeros::new_zeroed();
    join.endpoint = EndpointBody { gid, queue_pair: 77.into(), mtu: 3, reads_answered: 4, ..join.endpoint };
    join.message_bytes = (MESSAGE as u32).into();
    control.write_all(&frame(Opcode::JoinRdma, 0, 0, |body| body::append(body, &join))).unwrap();
    let mut header = [0; HEADER_BYTES];
    control.read_exact(&mut header).unwrap();
    let header = Header::decode(&header, wire::MAX_VERSION).unwrap();
    let mut body = vec![0; header.body_bytes as usize];
    control.read_exact(&mut body).unwrap();
    wire::error::decode(header.status, &body).unwrap()
}

impl RawClient {
    /// A client that takes `receives` messages and no more.
    pub fn join(server: &TestServer, domain: &Arc<Domain>, receives: u32) -> RawClient {
        let mut control = introduced(server);
        let completions = CompletionQueue::new(domain.device(), SENDS as u32 + receives).unwrap();
        let buffer = Buffer::new(domain, (SENDS + receives as usize) * MESSAGE, Access::Local).unwrap();
        let options = QueuePairOptions {
            sends: SENDS as u32,
            receives: receives.max(1),
            inline_bytes: 0,
            segments: 1,
            shared: None,
            answers_reads: true,
            address: None,
        };
        let mut queue_pair = QueuePair::new(domain, &completions, options, 77).unwrap();
        for index in 0..u64::from(receives) {
            let at = (SENDS as u64 + index) * MESSAGE as u64;
            // SAFETY: nobody looks at the bytes, and the buffer is dropped behind the queue pair.
            unsafe { queue_pair.post_receive(RECEIVE | index, buffer.region(), at, MESSAGE as u32) }.unwrap();
        }
        let join = JoinRdma {
            endpoint: queue_pair.endpoint().into(),
            message_bytes: (MESSAGE as u32).into(),
            reserved: 0.into(),
        };
        control.write_all(&frame(Opcode::JoinRdma, 0, 0, |body| body::append(body, &join))).unwrap();
        let mut answer = [0; HEADER_BYTES + size_of::<RdmaJoined>()];
        control.read_exact(&mut answer).unwrap();
        let joined: RdmaJoined = body::BodyReader::new(&answer[HEADER_BYTES..]).value().unwrap();
        queue_pair.meet(&joined.endpoint.into()).unwrap();
        RawClient { queue_pair, completions, buffer, next: 0, _control: control }
    }

    /// Sends a message, as soon as there is room for it. Whether the server still takes any.
    pub fn send(&mut self, message: &[u8]) -> bool {
        let began = Clock.now();
        let mut is_fine = true;
        while is_fine && self.queue_pair.room() == 0 {
            let completions = self.completions.clone();
            completions.poll(|completion| {
                if completion.id & RECEIVE == 0 {
                    is_fine &= self.queue_pair.completed(&completion);
                }
            });
            is_fine &= Clock.now().since(began) < Duration::from_secs(10);
        }
        let at = self.next % SENDS * MESSAGE;
        self.next += 1;
        self.buffer.write(at, message);
        // SAFETY: a place is written again only once as many others were sent as there is room for, and the buffer is dropped behind the queue pair.
        is_fine
            && unsafe {
                self.queue_pair.post_message(self.buffer.region(), at as u64, message.len() as u32, None)
            }
            .is_ok()
    }
}

/// A frame to the first shard, with so many keys and bytes of payload.
pub fn frame(opcode: Opcode, count: u16, payload_bytes: u64, append: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    let start = body::begin(&mut frame);
    append(&mut frame);
    let mut header = Header::request(opcode, ShardId(0), 7, count);
    header.payload_bytes = payload_bytes;
    body::finish(&mut frame, start, header, 1);
    frame
}

/// Asks for a value.
pub fn get(key: &[u8]) -> Vec<u8> {
    frame(Opcode::Get, 1, 0, |body| {
        body.extend(u64::MAX.to_le_bytes());
        keys::append(body, key);
    })
}

/// Begins to put a value of so many bytes.
pub fn put(key: &[u8], bytes: u64) -> Vec<u8> {
    let put = wire::put::PutRequest {
        key,
        mode: wire::put::PutMode::Put,
        pin: wire::put::Pin::None,
        ttl_seconds: 0,
        group: b"",
        chain: None,
    };
    frame(Opcode::Put, 1, bytes, |body| wire::put::append(body, &put))
}
