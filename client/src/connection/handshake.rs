//! Making a connection: resolve, connect, say hello, answer a challenge, and take over shared memory. Blocks, until [`Caller::until`] at the
//! latest, whatever the peer does or doesn't. Only the resolving of a name has the time-outs of the system's resolver.

use super::shm::{Granted, ShmTransport};
use super::tcp::TcpTransport;
use super::{Connection, Transport};
use crate::config::ClientConfig;
use crate::filter_mapping::FilterMapping;
use crate::mapping::Mapping;
use crate::watcher::ServerLife;
use lanner_shared::auth;
use lanner_shared::shm::grant::{GRANTED_FILES, Grant, GrantedFile};
use lanner_shared::shm::lane_page::{REPLY_LINES, REQUEST_LINES, STAGING_BYTES};
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::hello::{ANY_SHARD, AuthProof, HELLO_MAGIC, Hello, Welcome};
use lanner_shared::{Error, Result, ShardId};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Who says hello.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub config: &'a ClientConfig,
    pub client_id: u64,
    /// When the attempt ends: over shared memory, TCP and RDMA together.
    pub until: Instant,
}

impl Caller<'_> {
    /// The same with half of the time that is left.
    pub fn with_half_the_time(self) -> Self {
        let now = Clock.now();
        Caller { until: now.plus(self.until.since(now) / 2), ..self }
    }

    /// What is left of the time, to be given to a socket, which takes zero for no limit.
    fn time_left(&self) -> Duration {
        self.until.since(Clock.now()).max(Duration::from_millis(1))
    }
}

/// Each read and write of `socket` takes at most as long.
fn set_timeouts(socket: &impl AsFd, timeout: Duration) -> std::io::Result<()> {
    set_socket_timeout(socket, Timeout::Recv, Some(timeout))?;
    Ok(set_socket_timeout(socket, Timeout::Send, Some(timeout))?)
}

/// Connects to `shard` of `server` (HOST:PORT) over TCP.
pub(crate) fn connect_tcp(
    caller: Caller<'_>,
    server: &Arc<str>,
    shard: u16,
    serial: u64,
) -> Result<(Connection, Welcome)> {
    let (stream, welcome) = open_tcp(caller, server, shard)?;
    Ok((over_tcp(server, stream, &welcome, serial)?, welcome))
}

/// The same, for a connection that is to become another one: a stream that has finished its handshake and blocks with a time-out.
pub(crate) fn open_tcp(caller: Caller<'_>, server: &Arc<str>, shard: u16) -> Result<(TcpStream, Welcome)> {
    let mut stream = connect_any(caller, server)?;
    let welcome = introduce(caller, &mut stream, shard).map_err(|error| at(server, error))?;
    Ok((stream, welcome))
}

/// The connection over a stream that has finished its handshake.
pub(crate) fn over_tcp(
    server: &Arc<str>,
    stream: TcpStream,
    welcome: &Welcome,
    serial: u64,
) -> Result<Connection> {
    stream.set_nonblocking(true).map_err(|error| unreachable(server, &error))?;
    let transport = Transport::Tcp(TcpTransport::new(stream));
    Ok(Connection::new(transport, ShardId(welcome.shard.get()), welcome.boot_id, serial))
}

/// A lane as the server handed it over, and its segment.
pub(crate) struct LaneOffer {
    socket: UnixStream,
    grant: Grant,
    files: [OwnedFd; GRANTED_FILES],
}

/// Asks the server that `welcome` came from for a shared-memory lane to `shard`.
pub(crate) fn ask_for_lane(
    caller: Caller<'_>,
    server: &Arc<str>,
    welcome: &Welcome,
    shard: u16,
) -> Result<LaneOffer> {
    let mut socket = connect_unix(caller, server, welcome)?;
    let local = introduce(caller, &mut socket, shard).map_err(|error| at(server, error))?;
    same_boot(server, welcome, &local)?;
    let (grant, files) = receive_grant(&socket).map_err(|error| at(server, error))?;
    socket.set_nonblocking(true).map_err(|error| unreachable(server, &error))?;
    Ok(LaneOffer { socket, grant, files })
}

impl LaneOffer {
    /// Maps the segment that the lane leads to, and its key filter.
    pub fn map_segment(
        &self,
        server: &Arc<str>,
        welcome: &Welcome,
        life: Arc<ServerLife>,
    ) -> Result<Mapping> {
        let segment = &self.files[GrantedFile::Segment as usize];
        let mapping = Mapping::new(segment.as_fd(), self.grant.segment_bytes.get(), life)?;
        if mapping.boot_id() != welcome.boot_id {
            return Err(unreachable(server, &"its shared memory belongs to another life of the server"));
        }
        let filter = &self.files[GrantedFile::Filter as usize];
        let filter = FilterMapping::new(filter.as_fd(), self.grant.filter_bytes.get(), welcome.boot_id)?;
        Ok(mapping.with_filter(filter))
    }

    /// The connection over this lane to `shard`, whose segment is `mapping`.
    pub fn accept(self, shard: u16, serial: u64, mapping: Arc<Mapping>) -> Result<Connection> {
        // In the order of `GrantedFile`.
        let [_segment, lane, wake_shard, wake_client, _filter] = self.files;
        let boot_id = mapping.boot_id();
        let transport =
            ShmTransport::new(Granted { mapping, lane, wake_shard, wake_client, socket: self.socket })?;
        let transport = Transport::Shm(Box::new(transport));
        Ok(Connection::new(transport, ShardId(shard), boot_id, serial))
    }
}

/// A connection whose only purpose is to end when the server does.
pub(crate) fn connect_watch(caller: Caller<'_>, server: &Arc<str>, welcome: &Welcome) -> Result<UnixStream> {
    let mut socket = connect_unix(caller, server, welcome)?;
    let local = introduce(caller, &mut socket, ANY_SHARD).map_err(|error| at(server, error))?;
    same_boot(server, welcome, &local)?;
    Ok(socket)
}

fn connect_unix(caller: Caller<'_>, server: &Arc<str>, welcome: &Welcome) -> Result<UnixStream> {
    let path = welcome.socket_path().ok_or_else(|| unreachable(server, &"it offers no shared memory"))?;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    connect_to_path(path, caller.time_left())
        .map_err(|error| unreachable(server, &format_args!("{} (shared memory): {error}", path.display())))
}

/// [`UnixStream::connect`] with a time-out: a server that accepts nothing lets those who connect wait once its backlog is full.
fn connect_to_path(path: &Path, timeout: Duration) -> std::io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // For such a socket the time-out for sending is that for connecting too.
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    match retry_on_intr(|| rustix::net::connect(&socket, &address)) {
        Err(Errno::AGAIN) => Err(ErrorKind::TimedOut.into()),
        outcome => outcome.map(|()| socket.into()).map_err(Into::into),
    }
}

/// Another server may listen at a path of the same name, in another container say.
fn same_boot(server: &Arc<str>, remote: &Welcome, local: &Welcome) -> Result<()> {
    if remote.boot_id == local.boot_id {
        return Ok(());
    }
    Err(unreachable(server, &"another server answers at its shared-memory socket; it runs on another host"))
}

fn connect_any(caller: Caller<'_>, server: &Arc<str>) -> Result<TcpStream> {
    let addresses: Vec<SocketAddr> =
        server.to_socket_addrs().map_err(|error| unreachable(server, &error))?.collect();
    let mut last = unreachable(server, &"its name has no address");
    let count = addresses.len();
    for (tried, address) in addresses.into_iter().enumerate() {
        // An address that swallows packets leaves time for the next.
        let time = caller.time_left() / (count - tried) as u32;
        match TcpStream::connect_timeout(&address, time).and_then(prepare) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = unreachable(server, &error),
        }
    }
    Err(last)
}

fn prepare(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    // A path that silently drops an idle connection is noticed within 30 seconds, and before that by the call's deadline.
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(15))?;
    rustix::net::sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))?;
    rustix::net::sockopt::set_tcp_keepcnt(&stream, 3)?;
    Ok(stream)
}

/// Says hello and answers the challenge, if there is one.
fn introduce(caller: Caller<'_>, stream: &mut (impl Read + Write + AsFd), shard: u16) -> Result<Welcome> {
    let config = caller.config;
    let tenant = config.tenant.as_bytes();
    set_timeouts(stream, caller.time_left()).map_err(talking)?;
    stream.write_all(Hello::new(tenant, caller.client_id, shard).as_bytes()).map_err(talking)?;
    let welcome = read_welcome(caller, stream)?;
    if welcome.challenge == [0; auth::CHALLENGE_BYTES] {
        return Ok(welcome);
    }
    let proof = auth::proof(config.token.as_bytes(), &welcome.challenge, tenant, caller.client_id);
    stream.write_all(AuthProof { magic: HELLO_MAGIC, proof }.as_bytes()).map_err(talking)?;
    read_welcome(caller, stream)
}

/// Reads a welcome. What is read next has the rest of the time.
fn read_welcome(caller: Caller<'_>, stream: &mut (impl Read + AsFd)) -> Result<Welcome> {
    let mut welcome: Welcome = FromZeros::new_zeroed();
    read_until(stream, welcome.as_mut_bytes(), caller.until).map_err(talking)?;
    set_timeouts(stream, caller.time_left()).map_err(talking)?;
    welcome.check()?;
    Ok(welcome)
}

/// Fills `target`, until `until` at the latest, also from a peer that sends a byte now and then. Changes the time-outs of `stream`.
pub(crate) fn read_until(
    stream: &mut (impl Read + AsFd),
    target: &mut [u8],
    until: Instant,
) -> std::io::Result<()> {
    let mut rest = target;
    while !rest.is_empty() {
        let left = until.since(Clock.now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        // Not less than the system can count, which takes zero for no limit.
        set_timeouts(stream, left.max(Duration::from_millis(1)))?;
        match stream.read(rest) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => rest = &mut rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // How the system says that a socket's time-out is over.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn talking(error: std::io::Error) -> Error {
    Error::System { what: "handshake".into(), reason: told(&error) }
}

/// What went wrong on a socket with time-outs, for a person.
pub(crate) fn told(error: &std::io::Error) -> Box<str> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer within the time-out".into(),
        ErrorKind::UnexpectedEof => "the peer closed the connection before it had answered".into(),
        _ => error.to_string().into(),
    }
}

/// Reads the grant and its file descriptors.
fn receive_grant(socket: &UnixStream) -> Result<(Grant, [OwnedFd; GRANTED_FILES])> {
    let mut bytes = [0; size_of::<Grant>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GRANTED_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)
    })
    .map_err(|error| talking(error.into()))?;
    let files: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .collect();
    let refused =
        |reason: &str| Error::System { what: "taking over shared memory".into(), reason: reason.into() };
    let files = <[OwnedFd; GRANTED_FILES]>::try_from(files)
        .map_err(|_| refused("the server sent other files than agreed"))?;
    let grant = Grant::read_from_bytes(&bytes).map_err(|_| refused("the server's message was cut"))?;
    let is_expected = received.bytes == bytes.len()
        && grant.request_lines.get() as usize == REQUEST_LINES
        && grant.reply_lines.get() as usize == REPLY_LINES
        && grant.staging_bytes.get() as usize == STAGING_BYTES;
    if is_expected { Ok((grant, files)) } else { Err(refused("the server's lanes have another layout")) }
}

/// A failed attempt over RDMA, except where the server has said why.
pub(crate) fn at_over_rdma(server: &Arc<str>, error: Error) -> Error {
    match error {
        Error::System { what, reason } => {
            Error::RdmaUnreachable { server: (&**server).into(), reason: format!("{what}: {reason}").into() }
        }
        no_path @ Error::NoRdmaPath { .. } => {
            Error::RdmaUnreachable { server: (&**server).into(), reason: no_path.to_string().into() }
        }
        said => said,
    }
}

pub(crate) fn unreachable(server: &Arc<str>, reason: &dyn std::fmt::Display) -> Error {
    Error::Unreachable { server: (&**server).into(), reason: reason.to_string().into() }
}

/// A failed handshake is a server that can't be reached, except where the server has said why.
pub(crate) fn at(server: &Arc<str>, error: Error) -> Error {
    match error {
        Error::System { what, reason } => unreachable(server, &format_args!("{what}: {reason}")),
        said => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that sent a byte before each time-out was over kept a thread that joined over RDMA for as long as it liked: each read had a
    /// time-out of its own. Shows that all of them together have one.
    #[test]
    fn a_peer_that_drips_bytes_costs_no_more_than_the_time_out() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let dripping = std::thread::spawn(move || {
            while far.write_all(&[1]).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let began = Clock.now();
        let outcome = read_until(&mut near, &mut [0; 100_000], began.plus(Duration::from_millis(60)));
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let took = Clock.now().since(began);
        assert!(took >= Duration::from_millis(60) && took < Duration::from_secs(2), "{took:?}");
        drop(near);
        dripping.join().unwrap();
    }

    /// "Resource temporarily unavailable (os error 11)" said nobody that the time was over.
    #[test]
    fn a_silent_peer_is_said_to_have_been_silent() {
        let (mut near, _far) = UnixStream::pair().unwrap();
        let error = read_until(&mut near, &mut [0], Clock.now().plus(Duration::from_millis(20))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(&*told(&error), "no answer within the time-out");
        assert_eq!(&*told(&Errno::AGAIN.into()), "no answer within the time-out");
    }

    #[test]
    fn a_socket_that_nobody_accepts_at_costs_no_more_than_the_time_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let began = Clock.now();
        let waiting: Vec<_> = (0..4).map(|_| connect_to_path(&path, Duration::from_millis(50))).collect();
        assert!(waiting[0].is_ok());
        assert_eq!(waiting[3].as_ref().unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(Clock.now().since(began) < Duration::from_secs(2));
    }
}
