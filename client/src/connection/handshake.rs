//! Making a connection: resolve, connect, say hello, answer a challenge, and take over shared memory. Blocks, with a deadline.

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
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Who says hello.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub config: &'a ClientConfig,
    pub client_id: u64,
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
    let mut stream = connect_any(server, caller.config.attempt_timeout())?;
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
        let [_, lane, wake_shard, wake_client, _] = self.files;
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
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
    let socket = UnixStream::connect(path)
        .map_err(|error| unreachable(server, &format_args!("{} (shared memory): {error}", path.display())))?;
    set_timeouts(&socket, caller.config.attempt_timeout()).map_err(|error| unreachable(server, &error))?;
    Ok(socket)
}

/// Another server may listen at a path of the same name, in another container say.
fn same_boot(server: &Arc<str>, remote: &Welcome, local: &Welcome) -> Result<()> {
    if remote.boot_id == local.boot_id {
        return Ok(());
    }
    Err(unreachable(server, &"another server answers at its shared-memory socket; it runs on another host"))
}

fn connect_any(server: &Arc<str>, timeout: Duration) -> Result<TcpStream> {
    let addresses: Vec<SocketAddr> =
        server.to_socket_addrs().map_err(|error| unreachable(server, &error))?.collect();
    let mut last = unreachable(server, &"its name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeout).and_then(|stream| prepare(stream, timeout)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = unreachable(server, &error),
        }
    }
    Err(last)
}

fn prepare(stream: TcpStream, timeout: Duration) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    // A path that silently drops an idle connection is noticed within 30 seconds, and before that by the call's deadline.
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(15))?;
    rustix::net::sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))?;
    rustix::net::sockopt::set_tcp_keepcnt(&stream, 3)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    Ok(stream)
}

fn set_timeouts(socket: &UnixStream, timeout: Duration) -> std::io::Result<()> {
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))
}

/// Says hello and answers the challenge, if there is one.
fn introduce(caller: Caller<'_>, stream: &mut (impl Read + Write), shard: u16) -> Result<Welcome> {
    let config = caller.config;
    let tenant = config.tenant.as_bytes();
    stream.write_all(Hello::new(tenant, caller.client_id, shard).as_bytes()).map_err(talking)?;
    let until = Clock.now().plus(config.attempt_timeout());
    let welcome = read_welcome(stream, until)?;
    if welcome.challenge == [0; auth::CHALLENGE_BYTES] {
        return Ok(welcome);
    }
    let proof = auth::proof(config.token.as_bytes(), &welcome.challenge, tenant, caller.client_id);
    stream.write_all(AuthProof { magic: HELLO_MAGIC, proof }.as_bytes()).map_err(talking)?;
    read_welcome(stream, until)
}

/// Reads a welcome. The stream's own time-out bounds each read; `until` bounds all of them, for a peer that sends a byte now and then.
fn read_welcome(stream: &mut impl Read, until: Instant) -> Result<Welcome> {
    let mut welcome: Welcome = FromZeros::new_zeroed();
    let mut rest = welcome.as_mut_bytes();
    while !rest.is_empty() {
        match stream.read(rest) {
            Ok(0) => return Err(talking(ErrorKind::UnexpectedEof.into())),
            Ok(count) => rest = &mut rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(talking(error)),
        }
        if !rest.is_empty() && Clock.now() >= until {
            return Err(talking(ErrorKind::TimedOut.into()));
        }
    }
    welcome.check()?;
    Ok(welcome)
}

fn talking(error: std::io::Error) -> Error {
    let reason = match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer within the time-out".into(),
        ErrorKind::UnexpectedEof => "the peer closed the connection before it had answered".into(),
        _ => error.to_string().into(),
    };
    Error::System { what: "handshake".into(), reason }
}

/// Reads the grant and its file descriptors.
fn receive_grant(socket: &UnixStream) -> Result<(Grant, [OwnedFd; GRANTED_FILES])> {
    let mut bytes = [0; size_of::<Grant>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GRANTED_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
    )
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
