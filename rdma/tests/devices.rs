//! What devices refuse, on the two of the guest (`scripts/test --rdma`): keys and addresses that don't belong to a connection.

#![cfg(feature = "verbs")]

use lanner_rdma::choice::RdmaChoice;
use lanner_rdma::inventory;
use lanner_rdma::planner::{Piece, Plan};
use lanner_rdma::queue_pair::State;
use lanner_rdma::selection::{self, Wanted};
use lanner_rdma::verbs::completion::{Completion, CompletionQueue};
use lanner_rdma::verbs::connection::QueuePairOptions;
use lanner_rdma::verbs::device::{Device, Domain};
use lanner_rdma::verbs::memory::{Access, Buffer};
use lanner_rdma::verbs::queue_pair::{QueuePair, RemoteRegion};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BYTES: usize = 64 << 10;

fn device(name: &str) -> Arc<Device> {
    let choice: RdmaChoice = name.parse().unwrap();
    let devices = inventory::devices(Path::new(inventory::ROOT));
    Device::open(selection::choose(&choice, &devices, Wanted::default()).unwrap()).unwrap()
}

/// One end of a connection, in a domain of its own.
struct End {
    queue_pair: QueuePair,
    completions: Arc<CompletionQueue>,
    buffer: Buffer,
}

impl End {
    fn new(device: &Arc<Device>) -> End {
        let domain = Domain::new(device).unwrap();
        let completions = CompletionQueue::new(device, 64).unwrap();
        let options = QueuePairOptions {
            sends: 16,
            receives: 4,
            inline_bytes: 64,
            segments: 2,
            shared: None,
            answers_reads: true,
            address: None,
        };
        let queue_pair = QueuePair::new(&domain, &completions, options, 7).unwrap();
        End { queue_pair, completions, buffer: Buffer::new(&domain, BYTES, Access::RemoteRead).unwrap() }
    }

    fn region(&self) -> RemoteRegion {
        let region = self.buffer.region();
        RemoteRegion { address: region.address(), length: region.len(), key: region.remote_key() }
    }

    /// Reads `length` bytes of `remote` and waits for what becomes of it.
    fn read(&mut self, remote: &RemoteRegion, offset: u64, length: u64) -> Completion {
        let mut plan = Plan::default();
        let piece = Piece { remote_offset: offset, length, local_region: 0, local_offset: 0 };
        assert_eq!(plan.push(piece, &self.queue_pair.limits()), length);
        // SAFETY: the buffer is looked at behind the completion only, and lives as long as the queue pair.
        unsafe { self.queue_pair.post_reads(&plan, &[self.buffer.region()], remote) }.unwrap();
        for _ in 0..5_000 {
            let mut found = None;
            self.completions.poll(|completion| found = Some(completion));
            if let Some(completion) = found {
                self.queue_pair.completed(&completion);
                return completion;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no completion");
    }
}

fn connected() -> (End, End) {
    let (mut near, mut far) = (End::new(&device("rxe1")), End::new(&device("rxe0")));
    let (a, b) = (near.queue_pair.endpoint(), far.queue_pair.endpoint());
    near.queue_pair.meet(&b).unwrap();
    far.queue_pair.meet(&a).unwrap();
    (near, far)
}

#[test]
#[ignore = "needs two RDMA devices: scripts/test --rdma"]
fn a_read_brings_the_bytes() {
    let (mut near, mut far) = connected();
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 31 + at / 256) as u8).collect();
    far.buffer.write(0, &bytes);
    let remote = far.region();
    assert!(near.read(&remote, 100, 5_000).status.is_success());
    let mut read = vec![0; 5_000];
    near.buffer.read(0, &mut read);
    assert_eq!(read, bytes[100..5_100]);
}

#[test]
#[ignore = "needs two RDMA devices: scripts/test --rdma"]
fn a_wrong_key_and_an_address_out_of_bounds_are_refused_by_the_device() {
    // P3. Each refusal ends the connection, so each has one of its own.
    let as_it_is = |region: RemoteRegion| region;
    let wrong_key = |region: RemoteRegion| RemoteRegion { key: region.key ^ 0x55_00, ..region };
    // What this side would refuse itself, were it told the truth about the length.
    let too_long = |region: RemoteRegion| RemoteRegion { length: u64::MAX / 2, ..region };
    type Change = fn(RemoteRegion) -> RemoteRegion;
    let cases: [(Change, u64, bool); 4] = [
        (as_it_is, 0, true),
        (wrong_key, 0, false),
        (too_long, BYTES as u64 - 8, false),
        (too_long, 1 << 40, false),
    ];
    for (change, offset, works) in cases {
        let (mut near, far) = connected();
        let completion = near.read(&change(far.region()), offset, 64);
        assert_eq!(completion.status.is_success(), works, "{completion:?}");
        if !works {
            assert!(completion.status.explain().contains("refused the address or the key"), "{completion:?}");
            assert_eq!(near.queue_pair.state(), State::Error);
            assert_eq!(near.queue_pair.room(), 0, "nothing more is posted");
        }
    }
}

#[test]
#[ignore = "needs two RDMA devices: scripts/test --rdma"]
fn the_key_of_one_domain_opens_nothing_in_another() {
    // P3: two tenants of one device. The second one's connection is given the first one's true address and key.
    let (mut near, far) = connected();
    let other = End::new(far.buffer.region().domain().device());
    let completion = near.read(&other.region(), 0, 64);
    assert!(!completion.status.is_success());
    assert!(completion.status.explain().contains("refused the address or the key"), "{completion:?}");
}

#[test]
#[ignore = "needs two RDMA devices: scripts/test --rdma"]
fn a_peer_that_is_not_there_is_given_up_within_seconds() {
    let (mut near, far) = connected();
    let remote = far.region();
    drop(far);
    let completion = near.read(&remote, 0, 64);
    assert!(completion.status.explain().contains("doesn't answer"), "{completion:?}");
}

#[test]
#[ignore = "needs two RDMA devices: scripts/test --rdma"]
fn nonsense_from_a_peer_is_an_error() {
    let mut end = End::new(&device("rxe1"));
    let there = End::new(&device("rxe0")).queue_pair.endpoint();
    for wrong in [
        lanner_rdma::verbs::connection::Endpoint { queue_pair: 1 << 24, ..there },
        lanner_rdma::verbs::connection::Endpoint { first_packet: u32::MAX, ..there },
        lanner_rdma::verbs::connection::Endpoint { mtu: 0, ..there },
        lanner_rdma::verbs::connection::Endpoint { mtu: 9, ..there },
    ] {
        assert!(end.queue_pair.meet(&wrong).unwrap_err().to_string().contains("makes no sense"));
    }
}
