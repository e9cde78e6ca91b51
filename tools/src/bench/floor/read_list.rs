//! The limit of RDMA reads: a list of READs by a bare loop, from the device that leads to the server to the one that the server listens on,
//! with no store in between. Both ends are in this process, so it takes both devices on this machine (as in the guest of
//! `scripts/rdma-vm`, or on a host whose card has two ports); across two machines there is `ib_read_lat`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lanner_rdma::choice::RdmaChoice;
use lanner_rdma::inventory;
use lanner_rdma::planner::{Piece, Plan};
use lanner_rdma::selection::{self, Wanted};
use lanner_rdma::verbs::VerbsError;
use lanner_rdma::verbs::completion::CompletionQueue;
use lanner_rdma::verbs::connection::QueuePairOptions;
use lanner_rdma::verbs::device::{Device, Domain};
use lanner_rdma::verbs::memory::{Access, Buffer};
use lanner_rdma::verbs::queue_pair::{QueuePair, RemoteRegion};
use lanner_shared::time::Clock;

use super::tables::{TablePlace, bytes_of};
use crate::bench::workload::Workload;
use crate::exit::Failure;

/// A list that takes longer never ends.
const LONGEST: Duration = Duration::from_secs(10);

/// READs of random rows, a list a round.
pub struct ReadList {
    near: End,
    /// Kept alive: its device answers.
    _far: End,
    remote: RemoteRegion,
    places: Vec<TablePlace>,
    row_bytes: usize,
    tokens: u64,
    random: fastrand::Rng,
    plan: Plan,
    offsets: Vec<u64>,
}

/// One end. Fields are dropped in order: the queue pair first.
struct End {
    queue_pair: QueuePair,
    completions: Arc<CompletionQueue>,
    buffer: Buffer,
}

impl ReadList {
    /// A list of a row of each of `places` for each token, or `None` where the server's device isn't on this machine.
    ///
    /// # Errors
    /// What the devices refuse.
    pub fn new(
        server: &str,
        places: Vec<TablePlace>,
        row_bytes: usize,
        tokens: u64,
        seed: u64,
    ) -> Result<Option<ReadList>, Failure> {
        let Some((near, far)) = addresses(server) else { return Ok(None) };
        let bytes = bytes_of(&places, row_bytes) as usize;
        let rows = places.len() * tokens as usize;
        let refused = |error: VerbsError| Failure::Machine(format!("a bare list of READs: {error}"));
        let (Some(near), Some(far)) = (device(near), device(far)) else { return Ok(None) };
        let mut near = End::new(&near.map_err(refused)?, rows * row_bytes, rows).map_err(refused)?;
        let mut far = End::new(&far.map_err(refused)?, bytes, 1).map_err(refused)?;
        near.queue_pair.meet(&far.queue_pair.endpoint()).map_err(refused)?;
        far.queue_pair.meet(&near.queue_pair.endpoint()).map_err(refused)?;
        let content: Vec<u8> = (0..bytes).map(content_at).collect();
        far.buffer.write(0, &content);
        let region = far.buffer.region();
        let remote =
            RemoteRegion { address: region.address(), length: region.len(), key: region.remote_key() };
        Ok(Some(ReadList {
            near,
            _far: far,
            remote,
            places,
            row_bytes,
            tokens,
            random: fastrand::Rng::with_seed(seed),
            plan: Plan::default(),
            offsets: Vec::with_capacity(rows),
        }))
    }

    /// Draws rows and makes a list of them, which is no part of a round's time.
    fn draw(&mut self) -> Result<(), Failure> {
        self.plan.clear();
        self.offsets.clear();
        let limits = self.near.queue_pair.limits();
        let length = self.row_bytes as u64;
        for _ in 0..self.tokens {
            for place in &self.places {
                let row = self.random.u64(..place.rows);
                let remote_offset = place.start as u64 + row * length;
                let local_offset = self.offsets.len() as u64 * length;
                self.offsets.push(remote_offset);
                if self.plan.push(Piece { remote_offset, length, local_region: 0, local_offset }, &limits)
                    < length
                {
                    return Err(Failure::Machine("the device's queue is too short for the list".to_owned()));
                }
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<u64, Failure> {
        let before = Clock.now();
        // SAFETY: the buffer is looked at behind the last READ's completion only, and lives as long as the queue pair.
        let posted = unsafe {
            self.near.queue_pair.post_reads(&self.plan, &[self.near.buffer.region()], &self.remote)
        };
        let id = posted.map_err(|error| Failure::Machine(format!("a bare list of READs: {error}")))?;
        while !self.near.queue_pair.is_done(id) {
            let (queue_pair, mut failed) = (&mut self.near.queue_pair, None);
            let count = self.near.completions.poll(|completion| {
                if !queue_pair.completed(&completion) {
                    failed = Some(completion.status.explain());
                }
            });
            if let Some(reason) = failed {
                return Err(Failure::Machine(format!("a bare list of READs: {reason}")));
            }
            if count == 0 && Clock.now().since(before) > LONGEST {
                return Err(Failure::Machine("a bare list of READs never ends".to_owned()));
            }
        }
        Ok(Clock.now().since(before).as_nanos() as u64)
    }
}

impl Workload for ReadList {
    fn name(&self) -> String {
        format!("bare list of READs, {} tokens", self.tokens)
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.draw()?;
        self.read()?;
        let mut row = vec![0; self.row_bytes];
        for (index, offset) in self.offsets.iter().enumerate() {
            self.near.buffer.read(index * self.row_bytes, &mut row);
            if !row.iter().enumerate().all(|(at, byte)| *byte == content_at(*offset as usize + at)) {
                return Err(Failure::Machine(format!("a READ brought wrong bytes for offset {offset}")));
            }
        }
        Ok((self.offsets.len() * self.row_bytes) as u64)
    }

    fn round(&mut self) -> Result<u64, Failure> {
        self.draw()?;
        self.read()
    }
}

impl End {
    fn new(device: &Arc<Device>, bytes: usize, reads: usize) -> Result<End, VerbsError> {
        let domain = Domain::new(device)?;
        let completions = CompletionQueue::new(device, reads as u32 + 1)?;
        let options = QueuePairOptions {
            // One more than half of them have no completion of their own.
            sends: reads as u32 * 2,
            receives: 1,
            inline_bytes: 0,
            segments: 1,
            shared: None,
            answers_reads: true,
            address: None,
        };
        let queue_pair = QueuePair::new(&domain, &completions, options, fastrand::u32(..))?;
        Ok(End { queue_pair, completions, buffer: Buffer::new(&domain, bytes, Access::RemoteRead)? })
    }
}

/// This side's and the server's address of a connection to `server`.
fn addresses(server: &str) -> Option<(IpAddr, IpAddr)> {
    let server: SocketAddr = server.to_socket_addrs().ok()?.next()?;
    let any: IpAddr = if server.is_ipv4() { [0_u8; 4].into() } else { [0_u8; 16].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Sends nothing; the kernel chooses the way.
    socket.connect(server).ok()?;
    Some((socket.local_addr().ok()?.ip(), server.ip()))
}

/// The device whose GID is this address, if it's on this machine.
fn device(address: IpAddr) -> Option<Result<Arc<Device>, VerbsError>> {
    let devices = inventory::devices(Path::new(inventory::ROOT));
    let wanted = Wanted { addresses: &[address], numa_node: None };
    selection::choose(&RdmaChoice::Auto, &devices, wanted).ok().map(Device::open)
}

fn content_at(offset: usize) -> u8 {
    (offset as u8).wrapping_mul(31).wrapping_add((offset >> 8) as u8)
}
