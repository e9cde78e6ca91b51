//! Makes a link out of a TCP connection: chooses the device that leads to the server, and exchanges what each side has to know. Blocks.

use super::link::{MESSAGE_BYTES, RdmaLink};
use crate::connection::backoff::Backoff;
use lanner_rdma::choice::RdmaChoice;
use lanner_rdma::inventory;
use lanner_rdma::selection::{self, Wanted};
use lanner_rdma::verbs::device::Device;
pub(crate) use lanner_rdma::verbs::device::Domain;
use lanner_rdma::verbs::queue_pair::RemoteRegion;
use lanner_shared::error::Malformation;
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use lanner_shared::wire::hello::Welcome;
use lanner_shared::wire::join_rdma::{FEATURE_READS_VALUES, JoinRdma, LEAST_MESSAGE_BYTES, RdmaJoined};
use lanner_shared::wire::{self, MAX_VERSION, Opcode, body};
use lanner_shared::{Error, Result, ShardId};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Weak};

/// The number of the one request that goes over TCP.
const REQUEST_ID: u32 = 1;

/// Domains that are open, by what was chosen and this side's address. All clients of a process share them: a domain keeps tenants of a server
/// apart, and this side has none.
#[expect(clippy::disallowed_types, reason = "taken only while a connection is being made")]
static DOMAINS: std::sync::Mutex<Vec<(RdmaChoice, IpAddr, Weak<Domain>)>> = std::sync::Mutex::new(Vec::new());

/// The domain of a device that leads to where `stream` leads: its GID is this side's address, or it's the one that was named.
pub(crate) fn open_domain(choice: &RdmaChoice, stream: &TcpStream) -> Result<Arc<Domain>> {
    let local: IpAddr = stream.local_addr().map_err(|error| unavailable(&error))?.ip().to_canonical();
    let mut domains = DOMAINS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    domains.retain(|(_, _, domain)| domain.upgrade().is_some_and(|domain| is_there(&domain)));
    let known = domains.iter().find(|(known, address, _)| known == choice && *address == local);
    if let Some(domain) = known.and_then(|(_, _, domain)| domain.upgrade()) {
        return Ok(domain);
    }
    let wanted = Wanted { addresses: &[local], numa_node: None };
    let devices = inventory::devices(Path::new(inventory::ROOT));
    let selection = selection::choose(choice, &devices, wanted).map_err(|error| unavailable(&error))?;
    let device = Device::open(selection).map_err(|error| unavailable(&error))?;
    let domain = Domain::new(&device).map_err(|error| unavailable(&error))?;
    domains.push((choice.clone(), local, Arc::downgrade(&domain)));
    Ok(domain)
}

fn unavailable(reason: &dyn std::fmt::Display) -> Error {
    Error::System { what: "RDMA unavailable".into(), reason: reason.to_string().into() }
}

/// Whether the system still shows the domain's device.
pub(crate) fn is_there(domain: &Arc<Domain>) -> bool {
    domain.device().is_there()
}

/// Lets go of a domain that connections can't be made in any more: its device may have gone, and be another one when it's back.
pub(crate) fn forget_domain(domain: &Arc<Domain>) {
    let mut domains = DOMAINS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    domains.retain(|(_, _, known)| known.as_ptr() != Arc::as_ptr(domain));
}

/// Makes a link of `stream`, which has finished its handshake with `welcome` and blocks with a time-out.
pub(crate) fn join(
    domain: &Arc<Domain>,
    mut stream: TcpStream,
    welcome: &Welcome,
    backoff: Arc<Backoff>,
) -> Result<RdmaLink> {
    let failed = |what: &'static str, error: &dyn std::fmt::Display| Error::System {
        what: what.into(),
        reason: error.to_string().into(),
    };
    let control = stream.try_clone().map_err(|error| failed("an RDMA connection", &error))?;
    let mut first_packet = [0; 4];
    getrandom::fill(&mut first_packet).map_err(|error| failed("random numbers", &error))?;
    let mut link = RdmaLink::new(domain, control, u32::from_le_bytes(first_packet), backoff)
        .map_err(|error| failed("an RDMA connection", &error))?;
    let request = JoinRdma {
        endpoint: link.queue_pair_mut().endpoint().into(),
        message_bytes: (MESSAGE_BYTES as u32).into(),
        reserved: 0.into(),
    };
    let joined = exchange(&mut stream, ShardId(welcome.shard.get()), &request)?;
    if joined.boot_id != welcome.boot_id || joined.message_bytes.get() < LEAST_MESSAGE_BYTES {
        return Err(Error::Malformed { reason: Malformation::Field, detail: 0 });
    }
    link.queue_pair_mut()
        .meet(&joined.endpoint.into())
        .map_err(|error| failed("connecting to the server's queue pair", &error))?;
    let remote = RemoteRegion {
        address: joined.segment_address.get(),
        length: joined.segment_bytes.get(),
        key: joined.segment_key.get(),
    };
    let reads_values = joined.endpoint.features.get() & FEATURE_READS_VALUES != 0;
    link.meet(remote, joined.message_bytes.get() as usize, reads_values);
    stream.set_nonblocking(true).map_err(|error| failed("an RDMA connection", &error))?;
    Ok(link)
}

/// Asks over TCP.
fn exchange(stream: &mut TcpStream, shard: ShardId, request: &JoinRdma) -> Result<RdmaJoined> {
    let talking =
        |error: std::io::Error| Error::System { what: "join_rdma".into(), reason: error.to_string().into() };
    let mut frame = Vec::new();
    let start = body::begin(&mut frame);
    body::append(&mut frame, request);
    body::finish(&mut frame, start, Header::request(Opcode::JoinRdma, shard, REQUEST_ID, 0), MAX_VERSION);
    stream.write_all(&frame).map_err(talking)?;
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).map_err(talking)?;
    let header = Header::decode(&header, MAX_VERSION)?;
    let mut answer = vec![0; header.body_bytes as usize];
    stream.read_exact(&mut answer).map_err(talking)?;
    if header.status != 0 {
        return Err(wire::error::decode(header.status, &answer)?);
    }
    let mut reader = body::BodyReader::new(&answer);
    let joined = reader.value()?;
    reader.end()?;
    Ok(joined)
}
