//! Where a simulator takes the place of the world: a byte stream for a socket, a memfd for a server's segment, and word of a
//! server's end for the kernel's. Everything above (frames, calls, lanes, snapshots, leases) is what serves in earnest.
//!
//! The clock is simulated too ([`lanner_shared::time::simulation`]). A simulator that lets time pass while a client looks at it can use
//! the blocking calls; one that polls needs [`crate::Pending`] only.

use crate::connection::tcp::TcpTransport;
use crate::connection::{Connection, Transport};
use crate::mapping::Mapping;
use crate::watcher::ServerLife;
use lanner_shared::wire::hello::Welcome;
use lanner_shared::{Result, ShardId};
use std::fmt::Debug;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// One way from a client to a server, chosen when the client is made.
pub type NetworkOf = Arc<dyn Network>;

/// A network that leads to one server.
pub trait Network: Debug + Send + Sync {
    /// Connects to a shard, handshake included.
    ///
    /// # Errors
    /// What a failed attempt would say.
    fn connect(&self, shard: u16) -> Result<Joined>;
}

/// A non-blocking byte stream in both directions: `WouldBlock` for not now, nothing read for its end.
pub trait Link: Read + Write + Debug {}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Joined {
    /// What the server said of itself.
    pub welcome: Welcome,
    /// The byte stream.
    pub link: Box<dyn Link>,
    /// The segment, where the client is to read it itself: then the server's answers carry descriptors only.
    pub memory: Option<Memory>,
}

/// A segment that a client may map.
#[derive(Debug)]
pub struct Memory {
    /// Its memfd.
    pub segment: OwnedFd,
    /// Its length.
    pub bytes: u64,
    /// The server's life.
    pub life: Life,
}

/// One life of a simulated server. Clones are the same life.
#[derive(Clone, Debug)]
pub struct Life(Arc<ServerLife>);

impl Life {
    /// A life that has just begun.
    ///
    /// # Errors
    /// File descriptors are used up.
    pub fn begin() -> std::io::Result<Life> {
        ServerLife::simulated().map(Life)
    }

    /// Has clients of this host notice that the server has ended.
    pub fn end(&self) {
        self.0.end();
    }
}

impl Joined {
    /// The connection to `shard`; its segment is mapped once for each life.
    pub(crate) fn into_connection(
        self,
        shard: u16,
        serial: u64,
        mappings: &mut Vec<Option<Arc<Mapping>>>,
    ) -> Result<Connection> {
        let at = usize::from(shard);
        let mapping = match self.memory {
            None => None,
            Some(memory) => {
                mappings.resize(mappings.len().max(at + 1), None);
                let known = mappings[at].clone().filter(|mapping| !mapping.is_server_gone());
                let mapping = match known {
                    Some(mapping) => mapping,
                    None => Arc::new(Mapping::new(memory.segment.as_fd(), memory.bytes, memory.life.0)?),
                };
                mappings[at] = Some(mapping.clone());
                Some(mapping)
            }
        };
        let transport = SimulatedTransport { stream: TcpTransport::new(self.link), mapping };
        let boot_id = self.welcome.boot_id;
        Ok(Connection::new(Transport::Simulated(Box::new(transport)), ShardId(shard), boot_id, serial))
    }
}

/// Frames over a [`Link`], by the code that reads and writes sockets.
#[derive(Debug)]
pub(crate) struct SimulatedTransport {
    pub stream: TcpTransport<Box<dyn Link>>,
    pub mapping: Option<Arc<Mapping>>,
}
