//! Makes a link out of a TCP connection: chooses the device that leads to the server, and exchanges what each side has to know. Blocks.

use super::link::RdmaLink;
use crate::connection::backoff::Backoff;
use crate::connection::handshake::{read_until, told};
use crate::connection::tcp::TcpTransport;
use crate::fork::OfProcess;
use lanner_rdma::choice::RdmaChoice;
use lanner_rdma::inventory;
use lanner_rdma::selection::{self, Wanted};
use lanner_rdma::verbs::device::Device;
pub(crate) use lanner_rdma::verbs::device::Domain;
use lanner_shared::error::Malformation;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use lanner_shared::wire::hello::Welcome;
use lanner_shared::wire::join_rdma::{JoinRdma, LEAST_MESSAGE_BYTES, MESSAGE_BYTES, RdmaJoined};
use lanner_shared::wire::{self, MAX_VERSION, Opcode, body};
use lanner_shared::{Error, Result, ShardId};
use std::io::Write;
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The number of the one request that goes over TCP.
const REQUEST_ID: u32 = 1;

/// Domains that are open, by what was chosen and this side's address.
#[expect(clippy::disallowed_types, reason = "taken only while a connection is being made")]
type Domains = std::sync::Mutex<Vec<(RdmaChoice, IpAddr, Weak<Domain>)>>;

/// All clients of a process share them: a domain keeps tenants of a server apart, and this side has none.
static DOMAINS: OfProcess<Domains> = OfProcess::new();

/// For the child of a fork: the parent's device contexts do nothing for it.
pub(super) fn forget_domains() {
    DOMAINS.forget();
}

/// The domain of a device that leads to where `stream` leads: its GID is this side's address, or it's the one that was named. One that is open is
/// used only if what was chosen is still so: an address may have moved to another device, or to another place in its port's table.
pub(crate) fn open_domain(choice: &RdmaChoice, stream: &TcpStream) -> Result<Arc<Domain>> {
    let local: IpAddr = stream.local_addr().map_err(|error| unavailable(&error))?.ip().to_canonical();
    let known = || {
        let mut domains = DOMAINS.get().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        domains.retain(|(_, _, domain)| domain.upgrade().is_some_and(|domain| is_as_chosen(&domain)));
        let known = domains.iter().find(|(known, address, _)| known == choice && *address == local);
        known.and_then(|(_, _, domain)| domain.upgrade())
    };
    if let Some(domain) = known() {
        return Ok(domain);
    }
    let wanted = Wanted { addresses: &[local], numa_node: None };
    let devices = inventory::devices(Path::new(inventory::ROOT));
    let selection = selection::choose(choice, &devices, wanted).map_err(|error| unavailable(&error))?;
    let device = Device::open(selection).map_err(|error| unavailable(&error))?;
    let domain = Domain::new(&device).map_err(|error| unavailable(&error))?;
    // Another client may have opened it meanwhile.
    if let Some(domain) = known() {
        return Ok(domain);
    }
    let mut domains = DOMAINS.get().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    domains.push((choice.clone(), local, Arc::downgrade(&domain)));
    Ok(domain)
}

/// Whether the domain's device is there, and its port has the GID at the place where it was chosen. Reads a file.
fn is_as_chosen(domain: &Arc<Domain>) -> bool {
    let selection = &domain.device().selection;
    let root = Path::new(inventory::ROOT);
    let gid = inventory::gid_at(root, &selection.device, selection.port, selection.gid_index);
    is_there(domain) && gid == Some(selection.gid)
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
    let mut domains = DOMAINS.get().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    domains.retain(|(_, _, known)| known.as_ptr() != Arc::as_ptr(domain));
}

/// A link that was made and isn't known to work: the network may carry TCP and lose what RDMA sends. A READ of a few bytes tells, before
/// any call, of which nobody would know what has become of it, goes that way.
#[derive(Debug)]
pub(crate) struct Probe {
    link: Box<RdmaLink>,
    boot_id: [u8; 16],
    until: Instant,
}

/// What is known of a probe.
pub(crate) enum Probed {
    /// Its READ came back.
    Works(Box<TcpTransport<RdmaLink>>),
    /// Nothing yet.
    UnderWay(Probe),
    /// It didn't come back, and why, as far as can be known.
    Failed(Error),
}

impl Probe {
    /// Looks, without waiting.
    pub fn look(mut self, now: Instant) -> Probed {
        match self.link.probe() {
            Err(()) => Probed::Failed(self.failure(self.link.explain_failure())),
            Ok(true) => Probed::Works(Box::new(TcpTransport::new(*self.link))),
            Ok(false) if !self.link.is_peer_there() => {
                Probed::Failed(self.failure("the server has closed the connection"))
            }
            Ok(false) if now >= self.until => Probed::Failed(self.failure("no answer in time")),
            Ok(false) => Probed::UnderWay(self),
        }
    }

    /// Waits for at most `limit`.
    pub fn wait(mut self, limit: Duration) -> Probed {
        let until = Clock.now().plus(limit);
        loop {
            let now = Clock.now();
            match self.look(now) {
                Probed::UnderWay(probe) if now < until => {
                    self = probe;
                    self.link.sleep(until.since(now).min(LONGEST_SLEEP));
                }
                known => return known,
            }
        }
    }

    /// What to say of a probe that has failed for this reason.
    pub fn failure(&self, reason: &str) -> Error {
        let text = format!(
            "{reason}. TCP works, so see that the network lets UDP port 4791 (RoCE v2) through in both directions, that these two GIDs reach each other ('ib_read_lat' between the machines), and that packets of the ports' MTU get through"
        );
        Error::System { what: format!("RDMA from {}", self.link.path()).into(), reason: text.into() }
    }
}

/// Probes of a server's shards that nobody waits for: they are looked at when somebody connects to the shard again.
#[derive(Debug, Default)]
pub(crate) struct Probes(Vec<(u16, Probe)>);

impl Probes {
    /// Keeps the probe of a shard, unless there is one already.
    pub fn keep(&mut self, shard: u16, probe: Probe) {
        if self.0.iter().all(|(of, _)| *of != shard) {
            self.0.push((shard, probe));
        }
    }

    /// Takes the probe of a shard, if there is one of this life of the server.
    pub fn take(&mut self, shard: u16, boot_id: [u8; 16]) -> Option<Probe> {
        let at = self.0.iter().position(|(of, _)| *of == shard)?;
        let (_, probe) = self.0.swap_remove(at);
        (probe.boot_id == boot_id).then_some(probe)
    }

    /// Gives them all up.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// How long a look at a probe sleeps at most: what its peer does is seen by looking.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// Makes a link of `stream`, which has finished its handshake with `welcome`, and asks the server's device for a few bytes over it. The
/// exchange over `stream` ends at `until`, the probe, unless somebody gives up before, at `probe_until`.
pub(crate) fn join(
    domain: &Arc<Domain>,
    mut stream: TcpStream,
    welcome: &Welcome,
    backoff: Arc<Backoff>,
    until: Instant,
    probe_until: Instant,
) -> Result<Probe> {
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
    let joined = exchange(&mut stream, ShardId(welcome.shard.get()), &request, until)?;
    if joined.boot_id != welcome.boot_id || joined.message_bytes.get() < LEAST_MESSAGE_BYTES {
        return Err(Error::Malformed { reason: Malformation::Field, detail: 0 });
    }
    link.meet(&joined).map_err(|error| failed("connecting to the server's queue pair", &error))?;
    stream.set_nonblocking(true).map_err(|error| failed("an RDMA connection", &error))?;
    let probe = Probe { link: Box::new(link), boot_id: welcome.boot_id, until: probe_until };
    Ok(probe)
}

/// Asks over TCP.
fn exchange(
    stream: &mut TcpStream,
    shard: ShardId,
    request: &JoinRdma,
    until: Instant,
) -> Result<RdmaJoined> {
    let talking = |error: std::io::Error| Error::System { what: "join_rdma".into(), reason: told(&error) };
    let mut frame = Vec::new();
    let start = body::begin(&mut frame);
    body::append(&mut frame, request);
    body::finish(&mut frame, start, Header::request(Opcode::JoinRdma, shard, REQUEST_ID, 0), MAX_VERSION);
    // It fits an empty socket's buffer.
    stream.write_all(&frame).map_err(talking)?;
    let mut header = [0; HEADER_BYTES];
    read_until(stream, &mut header, until).map_err(talking)?;
    let header = Header::decode(&header, MAX_VERSION)?;
    let mut answer = vec![0; header.body_bytes as usize];
    read_until(stream, &mut answer, until).map_err(talking)?;
    if header.status != 0 {
        return Err(wire::error::decode(header.status, &answer)?);
    }
    let mut reader = body::BodyReader::new(&answer);
    let joined = reader.value()?;
    reader.end()?;
    Ok(joined)
}
