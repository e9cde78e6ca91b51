//! Learning that a server of this host has ended, without asking it.
//!
//! A reader of shared memory talks to nobody, so nobody could tell it that the server is gone. The kernel can: it closes the
//! server's end of a Unix socket that is kept open for this alone. A thread sleeps on it and costs nothing until then.

use lanner_shared::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// One life of a server, from its start to its end. All mappings of its memory share it.
#[derive(Debug)]
pub(crate) struct ServerLife {
    /// Set once, by the watcher; read before each use of the server's memory.
    is_over: AtomicBool,
    socket: UnixStream,
}

impl ServerLife {
    /// Starts to watch the server at the other end of `socket`.
    pub fn watch(socket: UnixStream) -> Result<Arc<ServerLife>> {
        let failed = |reason: std::io::Error| Error::System {
            what: "watching a server".into(),
            reason: reason.to_string().into(),
        };
        let watched = socket.try_clone().map_err(failed)?;
        let life = Arc::new(ServerLife { is_over: AtomicBool::new(false), socket });
        let weak = Arc::downgrade(&life);
        let thread = std::thread::Builder::new().name("lanner-watcher".into());
        thread.spawn(move || wait_for_end(&watched, &weak)).map_err(failed)?;
        Ok(life)
    }

    /// A life whose end a simulator announces by [`ServerLife::end`].
    #[cfg(feature = "simulation")]
    pub fn simulated() -> std::io::Result<Arc<ServerLife>> {
        let (socket, _) = UnixStream::pair()?;
        Ok(Arc::new(ServerLife { is_over: AtomicBool::new(false), socket }))
    }

    /// What the watcher does when it sees the server's end.
    #[cfg(feature = "simulation")]
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Whether the server has ended.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Drop for ServerLife {
    fn drop(&mut self) {
        // Wakes the watcher, which then finds nobody to tell.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

/// Nothing is ever sent over the socket, so that it can be read from means that it has ended.
fn wait_for_end(socket: &UnixStream, life: &Weak<ServerLife>) {
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    while let Err(rustix::io::Errno::INTR) = rustix::event::poll(&mut polled, None) {}
    if let Some(life) = life.upgrade() {
        life.is_over.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_end_of_the_peer_is_noticed_and_the_end_of_this_side_ends_the_thread() {
        let (near, far) = UnixStream::pair().unwrap();
        let life = ServerLife::watch(near).unwrap();
        assert!(!life.is_over());
        drop(far);
        let noticed = (0..2_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            life.is_over()
        });
        assert!(noticed);

        let (near, mut far) = UnixStream::pair().unwrap();
        drop(ServerLife::watch(near).unwrap());
        // The other side sees the end of both descriptors: the thread has let go of its one.
        assert_eq!(std::io::Read::read(&mut far, &mut [0; 1]).unwrap(), 0);
    }
}
