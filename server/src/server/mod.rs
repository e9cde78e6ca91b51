//! A server as a whole: listens, makes a shard for each core and tenant, starts the cores, and ends them.
//!
//! Everything that can be refused is refused here, before the first client is served, by an error that names the cure.

pub mod bind;
pub mod control;
pub mod identity;
pub mod rdma;
pub mod socket_file;

use crate::admin::board::Board;
use crate::config::{HugePages, LeaseLength, RdmaChoice, ServerConfig, ShmChoice, WatermarkChoice, machine};
use crate::memory::segment::{HUGE_PAGE_BYTES, Segment, SegmentError, SegmentOptions};
use crate::pump::mail::{Mailbox, Post, mailbox};
use crate::pump::{Pump, PumpParts};
use crate::runtime::{CoreThread, spawn_on};
use crate::shard::{Shard, ShardConfig, Tuned};
use crate::transport::handshake::{Acceptor, SocketKind};
use crate::transport::rdma::Rdma;
use crate::transport::rdma_home::RdmaHome;
use control::Control;
use identity::Identity;
use lanner_shared::ShardId;
use lanner_shared::lease::MIN_LEASE_TTL;
use lanner_shared::shm::segment_page::SEGMENT_PAGE_BYTES;
use lanner_shared::time::{Clock, Instant};
use socket_file::SocketFile;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use thiserror::Error;

/// Why a server can't be started: one line, and what to do about it.
#[derive(Debug, Error)]
pub enum StartError {
    /// A port can't be listened on.
    #[error("--listen {address}: {source}; {hint}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
        /// What to do.
        hint: String,
    },
    /// The Unix socket can't be listened on.
    #[error("--shm {path}: {source}; choose another path with --shm PATH, or do without by --shm off", path = path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The RDMA device that was asked for can't be used.
    #[error("--rdma {device}: RDMA unavailable: {reason}")]
    Rdma {
        /// What was asked for.
        device: String,
        /// Why, and the way out.
        reason: String,
    },
    /// A core can't be started.
    #[error("shard {shard}: {reason}")]
    Core {
        /// Which.
        shard: u16,
        /// Why, and the cure.
        reason: String,
    },
    /// A core's executor doesn't start.
    #[error(
        "a core's executor doesn't start: {reason}; 'lanner check' says what io_uring and the limit on locked memory (ulimit -l) lack"
    )]
    Executor {
        /// What it said.
        reason: String,
    },
    /// The system refused something that every process needs.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A server that serves.
pub struct Running {
    /// Where it listens, with the ports that were really taken.
    pub addresses: Vec<SocketAddr>,
    /// Random at each start.
    pub boot_id: [u8; 16],
    /// Number of shards.
    pub shards: u16,
    /// Bytes for values and what belongs to them, all segments together.
    pub memory_bytes: u64,
    /// Where shared memory is handed out.
    pub socket: Option<SocketFile>,
    /// What it does without, and how to get it: a line each.
    pub remarks: Vec<String>,
    control: Arc<Control>,
    posts: Vec<Post>,
    cores: Vec<CoreThread>,
}

/// Starts servers.
pub struct Server;

impl Server {
    /// Starts a server and returns once all its cores serve. Blocks while memory is taken.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub fn start(config: ServerConfig, board: Arc<Board>) -> Result<Running, StartError> {
        let (mut listeners, addresses) = listen(&config)?;
        let socket = listen_unix(&config, &addresses, &mut listeners)?;
        let system = |what| move |source| StartError::System { what, source };
        let boxes: Vec<(Post, Mailbox)> = config
            .cores
            .iter()
            .map(|_| mailbox())
            .collect::<io::Result<_>>()
            .map_err(system("making an eventfd"))?;
        let (posts, mailboxes): (Vec<Post>, Vec<Mailbox>) = boxes.into_iter().unzip();
        let rdma = rdma::plan(&config, &addresses)?;
        let identity =
            Arc::new(identify(&config, &addresses, socket.as_ref().map(|socket| socket.path().to_owned()))?);
        let control = Arc::new(Control::new(config.drain_timeout, config.shards()));
        let mut acceptor = Some(Acceptor::new(listeners, identity.clone(), posts.clone()));
        let (said, answers) = channel();
        let prefaulted = Arc::new(AtomicU64::new(0));
        let mut cores = Vec::new();
        for (index, mailbox) in mailboxes.into_iter().enumerate() {
            let plan = CorePlan {
                shard: index as u16,
                config: config.clone(),
                identity: identity.clone(),
                prefaulted: prefaulted.clone(),
                rdma: rdma.selection.clone(),
                addresses: addresses.iter().map(SocketAddr::ip).collect(),
            };
            let (acceptor, said, posts) = (acceptor.take(), said.clone(), posts.clone());
            let (identity, control, board, poll) =
                (identity.clone(), control.clone(), board.clone(), config.poll);
            let task = move || async move {
                let made = plan.make_shards().and_then(|(mut shards, remark)| {
                    let (rdma, without) = plan.open_rdma(&mut shards)?;
                    let rdma_home = rdma.is_some().then(|| plan.rdma_home());
                    let ready = CoreReady { remarks: [remark, without].into_iter().flatten().collect() };
                    let parts = PumpParts {
                        shards,
                        rdma,
                        rdma_home,
                        acceptor,
                        mailbox,
                        posts,
                        identity,
                        control,
                        board,
                        poll,
                    };
                    Pump::new(parts).map(|pump| (pump, ready)).map_err(ring_refused)
                });
                match made {
                    Ok((pump, ready)) => {
                        let _ = said.send((plan.shard, Ok(ready)));
                        // Once all have, it's known that no other comes.
                        drop(said);
                        pump.run().await;
                    }
                    Err(reason) => drop(said.send((plan.shard, Err(reason)))),
                }
            };
            let core = spawn_on(config.cores[index], &format!("shard-{index}"), task);
            cores.push(core.map_err(|reason| StartError::Core { shard: index as u16, reason })?);
        }
        drop(said);
        let mut running = Running {
            addresses,
            boot_id: identity.boot_id,
            shards: config.shards(),
            memory_bytes: config.memory_bytes,
            socket,
            remarks: Vec::new(),
            control,
            posts,
            cores,
        };
        match await_cores(&answers, &config, &prefaulted) {
            Ok(ready) => {
                running.remarks = rdma.remark.into_iter().chain(ready.remarks).collect();
                Ok(running)
            }
            Err(error) => {
                running.stop();
                let ended = running.join();
                Err(error.unwrap_or_else(|| StartError::Executor {
                    reason: ended
                        .err()
                        .unwrap_or_else(|| "a core's thread ended before it served".to_owned()),
                }))
            }
        }
    }
}

impl Running {
    /// Begins to drain, see [`Control::drain`].
    pub fn drain(&self) {
        self.control.drain();
        self.posts.iter().for_each(Post::wake);
    }

    /// Ends the cores at once.
    pub fn stop(&self) {
        self.control.stop();
        self.posts.iter().for_each(Post::wake);
    }

    /// Whether the cores are to stop, or have.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.control.is_stopped()
    }

    /// Waits for the cores to end.
    ///
    /// # Errors
    /// What the first core that failed says.
    pub fn join(self) -> Result<(), String> {
        let outcomes: Vec<Result<(), String>> = self.cores.into_iter().map(CoreThread::join).collect();
        if let Some(socket) = &self.socket {
            socket.remove();
        }
        outcomes.into_iter().collect()
    }
}

/// What a core says once it serves.
struct CoreReady {
    /// What it does without, and how to get it.
    remarks: Vec<String>,
}

/// What one core is made from.
struct CorePlan {
    shard: u16,
    config: ServerConfig,
    identity: Arc<Identity>,
    prefaulted: Arc<AtomicU64>,
    /// The RDMA device, if one was chosen.
    rdma: Option<lanner_rdma::selection::Selection>,
    /// The addresses that are listened on.
    addresses: Vec<IpAddr>,
}

impl CorePlan {
    /// Opens the RDMA device for this core. With why it does without, where that's allowed.
    fn open_rdma(&self, shards: &mut [Shard]) -> Result<(Option<Rdma>, Option<String>), String> {
        let Some(selection) = &self.rdma else { return Ok((None, None)) };
        match Rdma::open(selection, shards, self.config.max_connections) {
            Ok(rdma) => {
                // Clients are told once every core has.
                self.identity.rdma_opened();
                Ok((Some(rdma), None))
            }
            Err(reason) if self.config.rdma == RdmaChoice::Auto => {
                Ok((None, Some(rdma::unavailable_on_a_core(&reason))))
            }
            Err(reason) => Err(format!("--rdma {}: RDMA unavailable: {reason}", self.config.rdma)),
        }
    }

    /// What the device that this core has open was chosen by.
    fn rdma_home(&self) -> RdmaHome {
        RdmaHome {
            choice: self.config.rdma.clone(),
            addresses: self.addresses.clone(),
            numa_node: self.config.numa_node,
            max_connections: self.config.max_connections,
            next_look: Instant::ZERO,
        }
    }

    /// A shard for each tenant, made on the core itself, so that its memory comes from the core's own node. With what it
    /// does without.
    fn make_shards(&self) -> Result<(Vec<Shard>, Option<String>), String> {
        let mut shards = Vec::new();
        let mut remark = None;
        for tenant in &self.config.tenants {
            let (mut segment, without) = self.make_segment(self.config.segment_bytes(tenant))?;
            remark = remark.or(without);
            if self.config.prefault {
                let mut done = 0;
                let mut progress = |bytes: u64, _total: u64| {
                    self.prefaulted.fetch_add(bytes - done, Ordering::Relaxed);
                    done = bytes;
                };
                segment.prefault(&mut progress).map_err(|error| error.to_string())?;
            }
            let config = ShardConfig {
                shard: ShardId(self.shard),
                shards: self.identity.shards,
                boot_id: self.identity.boot_id,
                started: Clock.now(),
                lease_ttl: self.config.lease_ttl,
                max_lease_ttl: self.config.lease_ttl.max(MIN_LEASE_TTL),
                policy: self.config.policy,
                watermarks: self.config.watermarks.at_first(),
                tuned: Tuned {
                    watermarks: self.config.watermarks == WatermarkChoice::Adaptive,
                    leases: self.config.lease_length == LeaseLength::Adaptive,
                },
                value_checksums: self.config.value_checksums,
                prefix_index: self.config.prefix_index,
                ..ShardConfig::default()
            };
            let filter = SegmentOptions {
                len: Shard::filter_bytes(segment.len()),
                huge_pages: false,
                numa_node: self.config.numa_node,
            };
            let filter = Segment::memfd(&filter).map_err(|error| error.to_string())?;
            shards.push(Shard::with_filter(config, segment, filter).map_err(|error| error.to_string())?);
        }
        Ok((shards, remark))
    }

    fn make_segment(&self, len: u64) -> Result<(Segment, Option<String>), String> {
        let numa_node = self.config.numa_node;
        let plain = SegmentOptions { len, huge_pages: false, numa_node };
        let huge = SegmentOptions { huge_pages: true, ..plain };
        let refused = |error: SegmentError| error.to_string();
        match self.config.huge_pages {
            HugePages::Off => Ok((Segment::memfd(&plain).map_err(refused)?, None)),
            HugePages::On => Ok((Segment::memfd(&huge).map_err(refused)?, None)),
            HugePages::Auto if len.is_multiple_of(HUGE_PAGE_BYTES) => match Segment::memfd(&huge) {
                Ok(segment) => Ok((segment, None)),
                Err(SegmentError::HugePagesLacking { pages, .. }) => {
                    let all = pages * u64::from(self.identity.shards);
                    let remark = format!(
                        "no huge pages: reads of large tables take about a third longer; to reserve them: sysctl -w vm.nr_hugepages={all}"
                    );
                    Ok((Segment::memfd(&plain).map_err(refused)?, Some(remark)))
                }
                Err(other) => Err(refused(other)),
            },
            HugePages::Auto => Ok((Segment::memfd(&plain).map_err(refused)?, None)),
        }
    }
}

fn ring_refused(error: io::Error) -> String {
    format!(
        "no io_uring can be made ({error}); it needs Linux 6.1, and a container's seccomp profile or kernel.io_uring_disabled may forbid it: 'lanner check' says which"
    )
}

/// Waits until all cores serve. Says how far the memory is when that takes longer. An error without a reason: a core ended without a word,
/// and its thread knows why.
fn await_cores(
    answers: &Receiver<(u16, Result<CoreReady, String>)>,
    config: &ServerConfig,
    prefaulted: &AtomicU64,
) -> Result<CoreReady, Option<StartError>> {
    let mut remarks: Vec<(String, Vec<u16>)> = Vec::new();
    let mut waiting = config.cores.len();
    while waiting > 0 {
        match answers.recv_timeout(Duration::from_secs(1)) {
            Ok((shard, Ok(ready))) => {
                waiting -= 1;
                for remark in ready.remarks {
                    match remarks.iter_mut().find(|(known, _)| *known == remark) {
                        Some((_, shards)) => shards.push(shard),
                        None => remarks.push((remark, vec![shard])),
                    }
                }
            }
            Ok((shard, Err(reason))) => return Err(Some(StartError::Core { shard, reason })),
            Err(RecvTimeoutError::Timeout) => {
                let (done, all) = (prefaulted.load(Ordering::Relaxed) >> 20, config.memory_bytes >> 20);
                tracing::info!("taking memory: {done} of {all} MiB");
            }
            Err(RecvTimeoutError::Disconnected) => return Err(None),
        }
    }
    Ok(CoreReady {
        remarks: remarks.into_iter().map(|(remark, of)| of_shards(remark, of, config.cores.len())).collect(),
    })
}

/// A remark of these shards, as it's said: with their numbers, unless it's of all.
fn of_shards(remark: String, mut shards: Vec<u16>, count: usize) -> String {
    if shards.len() == count {
        return remark;
    }
    shards.sort_unstable();
    let numbers: Vec<String> = shards.iter().map(u16::to_string).collect();
    let name = if shards.len() == 1 { "shard" } else { "shards" };
    format!("{name} {} of {count}: {remark}", numbers.join(", "))
}

type Listeners = Vec<(OwnedFd, SocketKind)>;

fn listen(config: &ServerConfig) -> Result<(Listeners, Vec<SocketAddr>), StartError> {
    let mut listeners = Listeners::new();
    let mut addresses = Vec::new();
    for address in &config.listen {
        // Several addresses with port 0 (as of a name with IPv4 and IPv6) share the port that the first was given.
        let mut wanted = *address;
        if let (0, Some(first)) = (wanted.port(), addresses.first()) {
            let first: &SocketAddr = first;
            wanted.set_port(first.port());
        }
        let refused = |source: io::Error| StartError::Listen {
            address: wanted,
            hint: listen_hint(&wanted, &source),
            source,
        };
        let listener = bind::bind(wanted).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        // The system's default of 128 would turn a burst of clients away.
        rustix::net::listen(&listener, 4096).map_err(|error| refused(error.into()))?;
        addresses.push(listener.local_addr().map_err(refused)?);
        listeners.push((listener.into(), SocketKind::Tcp));
    }
    Ok((listeners, addresses))
}

fn listen_hint(address: &SocketAddr, error: &io::Error) -> String {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("'ss -ltnp sport = :{port}' shows who has it; choose another port, or 0 for a free one")
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; 'ip address' lists those that it has".to_owned()
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 are for root; choose a higher one".to_owned(),
        _ => "choose another address".to_owned(),
    }
}

fn listen_unix(
    config: &ServerConfig,
    addresses: &[SocketAddr],
    listeners: &mut Listeners,
) -> Result<Option<SocketFile>, StartError> {
    let port = addresses.first().map_or(0, SocketAddr::port);
    let (made, path) = match &config.shm {
        ShmChoice::Off => return Ok(None),
        ShmChoice::Path(path) => (SocketFile::listen_at(path), path.clone()),
        ShmChoice::Auto => {
            let folder = machine::socket_folder()
                .map_err(|source| StartError::Socket { path: PathBuf::from("auto"), source })?;
            let name = format!("{port}.sock");
            (SocketFile::listen_in(&folder, &name), folder.join(name))
        }
    };
    let (socket, listener) = made.map_err(|source| StartError::Socket { path, source })?;
    listeners.push((listener, SocketKind::Unix));
    Ok(Some(socket))
}

fn identify(
    config: &ServerConfig,
    addresses: &[SocketAddr],
    socket_path: Option<PathBuf>,
) -> Result<Identity, StartError> {
    let mut boot_id = [0; 16];
    getrandom::fill(&mut boot_id).map_err(|error| StartError::System {
        what: "random numbers",
        source: io::Error::other(error.to_string()),
    })?;
    // The same at each start at the same place.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let place = format!("{host}|{addresses:?}");
    let largest = config.tenants.iter().map(|tenant| config.segment_bytes(tenant)).max().unwrap_or(0);
    let smallest = config.tenants.iter().map(|tenant| config.segment_bytes(tenant)).min().unwrap_or(0);
    Ok(Identity {
        boot_id,
        server_id: xxhash_rust::xxh3::xxh3_64(place.as_bytes()),
        shards: config.shards(),
        capacity_bytes: largest * u64::from(config.shards()),
        // An extent beside its page, less a header and the shortest key.
        max_value_bytes: smallest.saturating_sub(SEGMENT_PAGE_BYTES + 64),
        lease_ms: config.lease_ttl.as_millis() as u32,
        page_bytes: if config.huge_pages == HugePages::On { HUGE_PAGE_BYTES } else { 4096 },
        socket_path,
        rdma_cores: AtomicU16::new(0),
        tenants: config.tenants.clone(),
        max_connections: config.max_connections.saturating_mul(u32::from(config.shards())),
        connections: AtomicU32::new(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where locked memory suffices for some shards only it was said that RDMA can't be had, and not of which.
    #[test]
    fn a_remark_of_some_shards_has_their_numbers() {
        let said = |shards: &[u16]| of_shards("no room".to_owned(), shards.to_vec(), 4);
        assert_eq!(said(&[3, 1]), "shards 1, 3 of 4: no room");
        assert_eq!(said(&[2]), "shard 2 of 4: no room");
        assert_eq!(said(&[2, 0, 1, 3]), "no room");
    }
}
