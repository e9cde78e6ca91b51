//! Both ends of an RDMA connection in this process, on the devices that lead to a server and back: what the limits over RDMA are measured
//! with. It takes both devices on this machine (as in the guest of `scripts/rdma-vm`, or on a host whose card has two ports); across two
//! machines there are `ib_read_lat` and `ib_send_lat`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lanner_rdma::choice::RdmaChoice;
use lanner_rdma::inventory;
use lanner_rdma::queue_pair::PostId;
use lanner_rdma::selection::{self, Wanted};
use lanner_rdma::verbs::VerbsError;
use lanner_rdma::verbs::completion::CompletionQueue;
use lanner_rdma::verbs::connection::QueuePairOptions;
use lanner_rdma::verbs::device::{Device, Domain};
use lanner_rdma::verbs::memory::{Access, Buffer};
use lanner_rdma::verbs::queue_pair::{QueuePair, RECEIVE, RemoteRegion};
use lanner_shared::time::{Clock, Instant};

use crate::exit::Failure;

/// What takes longer never ends.
pub const LONGEST: Duration = Duration::from_secs(10);

/// What an end is to be like.
#[derive(Clone, Copy, Debug)]
pub struct EndOptions {
    /// Bytes of its memory, which the other end may read.
    pub bytes: usize,
    /// READs and sends that it has under way, at most.
    pub posts: u32,
    /// Bytes of a message that it sends inline.
    pub inline_bytes: u32,
}

/// One end. Fields are dropped in order: the queue pair first.
pub struct End {
    /// Its queue pair.
    pub queue_pair: QueuePair,
    completions: Arc<CompletionQueue>,
    /// Its memory.
    pub buffer: Buffer,
}

/// A connected pair, this side's end first, or `None` where the server's device isn't on this machine.
///
/// # Errors
/// What the devices refuse.
pub fn connect(server: &str, near: EndOptions, far: EndOptions) -> Result<Option<(End, End)>, Failure> {
    let Some((near_address, far_address)) = addresses(server) else { return Ok(None) };
    let (Some(near_device), Some(far_device)) = (device(near_address), device(far_address)) else {
        return Ok(None);
    };
    let make = |device: Result<Arc<Device>, VerbsError>, options| End::new(&device?, options);
    let mut near = make(near_device, near).map_err(refused)?;
    let mut far = make(far_device, far).map_err(refused)?;
    near.queue_pair.meet(&far.queue_pair.endpoint()).map_err(refused)?;
    far.queue_pair.meet(&near.queue_pair.endpoint()).map_err(refused)?;
    Ok(Some((near, far)))
}

/// What a device refuses, as a measurement's failure.
pub fn refused(error: VerbsError) -> Failure {
    Failure::Machine(format!("the bare RDMA connection: {error}"))
}

impl End {
    fn new(device: &Arc<Device>, options: EndOptions) -> Result<End, VerbsError> {
        let domain = Domain::new(device)?;
        // A receive beside the posts.
        let completions = CompletionQueue::new(device, options.posts + 1)?;
        let queue_pair_options = QueuePairOptions {
            sends: options.posts,
            receives: 1,
            inline_bytes: options.inline_bytes,
            segments: 1,
            shared: None,
            answers_reads: true,
            address: None,
        };
        let queue_pair = QueuePair::new(&domain, &completions, queue_pair_options, fastrand::u32(..))?;
        Ok(End { queue_pair, completions, buffer: Buffer::new(&domain, options.bytes, Access::RemoteRead)? })
    }

    /// What the other end has to know to read this one's memory.
    #[must_use]
    pub fn region(&self) -> RemoteRegion {
        let region = self.buffer.region();
        RemoteRegion { address: region.address(), length: region.len(), key: region.remote_key() }
    }

    /// Takes what has completed. Whether a message has come.
    ///
    /// # Errors
    /// What has failed.
    #[inline]
    pub fn poll(&mut self) -> Result<bool, Failure> {
        let (queue_pair, mut failed, mut has_come) = (&mut self.queue_pair, None, false);
        self.completions.poll(|completion| {
            if completion.id & RECEIVE != 0 && completion.status.is_success() {
                has_come = true;
            } else if !queue_pair.completed(&completion) {
                failed = Some(completion.status.explain());
            }
        });
        match failed {
            Some(reason) => Err(Failure::Machine(format!("the bare RDMA connection: {reason}"))),
            None => Ok(has_come),
        }
    }

    /// Polls until the post is done.
    ///
    /// # Errors
    /// What has failed, or that it never ends.
    pub fn wait_for(&mut self, id: PostId) -> Result<(), Failure> {
        let began = Clock.now();
        while !self.queue_pair.is_done(id) {
            self.poll()?;
            give_up_after(began)?;
        }
        Ok(())
    }
}

/// # Errors
/// That it never ends.
#[inline]
pub fn give_up_after(began: Instant) -> Result<(), Failure> {
    if Clock.now().since(began) > LONGEST {
        return Err(Failure::Machine("the bare RDMA connection never answers".to_owned()));
    }
    Ok(())
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
