//! A client that does with its queue pair what it likes: takes no answers, sends more than it may, is gone in the middle of a message.

use crate::by_hand::{frame, introduced, request};
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
use lanner_shared::Error;
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use lanner_shared::wire::join_rdma::{EndpointBody, JoinRdma, RdmaJoined};
use lanner_shared::wire::{self, Opcode, body};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::FromZeros;

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

/// Asks over TCP to go on over RDMA.
fn ask_to_join(control: &mut TcpStream, join: &JoinRdma) {
    control.write_all(&frame(request(Opcode::JoinRdma, 0), |body| body::append(body, join))).unwrap();
}

/// What the server says to a client that names this GID.
pub fn refusal_of(server: &TestServer, gid: [u8; 16]) -> Error {
    let mut control = introduced(server);
    let mut join: JoinRdma = FromZeros::new_zeroed();
    join.endpoint = EndpointBody { gid, queue_pair: 77.into(), mtu: 3, reads_answered: 4, ..join.endpoint };
    join.message_bytes = (MESSAGE as u32).into();
    ask_to_join(&mut control, &join);
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
        ask_to_join(&mut control, &join);
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
