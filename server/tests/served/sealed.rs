//! Promise P3: a client that is handed shared memory can't write it, by whatever way it tries.

use crate::support::TestServer;
use lanner_shared::shm::grant::{GRANTED_FILES, Grant, GrantedFile};
use lanner_shared::wire::hello::{Hello, Welcome};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use zerocopy::{FromZeros, IntoBytes};

/// What a client gets, taken without the client library.
fn granted(server: &TestServer) -> (UnixStream, Vec<OwnedFd>) {
    let mut socket = UnixStream::connect(server.running().socket.as_ref().unwrap().path()).unwrap();
    socket.write_all(Hello::new(b"", 1, 0).as_bytes()).unwrap();
    let mut welcome: Welcome = FromZeros::new_zeroed();
    socket.read_exact(welcome.as_mut_bytes()).unwrap();
    welcome.check().unwrap();
    let mut bytes = [0; size_of::<Grant>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GRANTED_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::empty())
        .unwrap();
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(files) => files,
        _ => panic!("nothing else is sent"),
    };
    let files: Vec<OwnedFd> = ancillary.drain().flat_map(rights).collect();
    assert_eq!(files.len(), GRANTED_FILES);
    (socket, files)
}

#[test]
fn a_segment_can_be_read_and_not_be_written() {
    let server = TestServer::start(&[]);
    let (_socket, files) = granted(&server);
    let segment = &files[GrantedFile::Segment as usize];
    // SAFETY: new mappings at addresses of the kernel's choice, of which only the first byte is read.
    unsafe {
        let readable =
            rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, segment, 0)
                .unwrap();
        assert_eq!(*readable.cast::<u8>(), b'L');
        assert_eq!(
            rustix::mm::mprotect(readable, 4096, MprotectFlags::READ | MprotectFlags::WRITE),
            Err(Errno::ACCESS)
        );
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let writable = rustix::mm::mmap(std::ptr::null_mut(), 4096, both, MapFlags::SHARED, segment, 0);
        assert_eq!(writable.unwrap_err(), Errno::PERM);
    }
    assert_eq!(rustix::io::pwrite(segment, b"x", 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(segment, 0), Err(Errno::PERM));
    let again = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", segment.as_raw_fd()));
    if let Ok(again) = again {
        assert_eq!(rustix::io::pwrite(&again, b"x", 0), Err(Errno::PERM), "opened again");
        // SAFETY: as above; nothing is read or written through it.
        let writable = unsafe {
            let both = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), 4096, both, MapFlags::SHARED, &again, 0)
        };
        assert_eq!(writable.unwrap_err(), Errno::PERM);
    }
}

#[test]
fn a_lane_can_neither_shrink_nor_grow() {
    // Else a client could take the ground from under the server, which would end with SIGBUS.
    let server = TestServer::start(&[]);
    let (_socket, files) = granted(&server);
    let lane = &files[GrantedFile::Lane as usize];
    for length in [0, 4096, 1 << 30] {
        assert_eq!(rustix::fs::ftruncate(lane, length), Err(Errno::PERM));
    }
}

#[test]
fn a_lane_full_of_nonsense_ends_and_harms_nobody() {
    let server = TestServer::start(&[]);
    let client = server.client("shm");
    client.put(b"witness", b"unharmed").unwrap();
    for seed in 0..20_u64 {
        let (mut socket, files) = granted(&server);
        let lane = &files[GrantedFile::Lane as usize];
        let mut random = fastrand::Rng::with_seed(seed);
        let noise: Vec<u8> = (0..lanner_shared::shm::lane_page::LANE_BYTES).map(|_| random.u8(..)).collect();
        let mut at = 0;
        // Valid tags for the first lines, so that the noise is taken for frames.
        let mut lines = noise;
        for line in 0..1024 {
            let tag = lanner_shared::shm::lane_page::REQUESTS_OFFSET + line * 64;
            lines[tag..tag + 8].copy_from_slice(&(line as u64 + 1).to_le_bytes());
        }
        while at < lines.len() {
            at += rustix::io::pwrite(lane, &lines[at..], at as u64).unwrap();
        }
        rustix::io::write(&files[GrantedFile::WakeShard as usize], &1_u64.to_ne_bytes()).unwrap();
        // The server ends the lane: its socket closes.
        socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0, "seed {seed}");
        assert_eq!(client.get(b"witness").unwrap(), b"unharmed");
    }
}
