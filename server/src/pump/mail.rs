//! What one core sends to another: connections, which it accepted for it or whose next frame is for it. No request passes here
//! without its connection.

use crate::service::Caller;
use crate::transport::handshake::SocketKind;
use lanner_shared::wire::hello::Welcome;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Letters that wait for a core at most. A core that takes none for that long is refused more.
const CAPACITY: usize = 1024;

/// A letter.
#[derive(Debug)]
pub enum Mail {
    /// A connection that belongs to the receiver's shard.
    Connection(Box<NewConnection>),
}

/// A connection whose handshake is done, but for the last welcome.
#[derive(Debug)]
pub struct NewConnection {
    /// Its socket.
    pub socket: OwnedFd,
    /// How it came.
    pub kind: SocketKind,
    /// Index of its tenant.
    pub tenant: usize,
    /// Who it is.
    pub caller: Caller,
    /// What is still to be said, if the connection is new.
    pub welcome: Option<Welcome>,
    /// What was received of it and not served yet.
    pub received: Vec<u8>,
    /// It wants a shared-memory lane, not only to know of the server's end.
    pub wants_lane: bool,
}

/// The sending half.
#[derive(Clone, Debug)]
pub struct Post {
    letters: SyncSender<Mail>,
    wake: Arc<OwnedFd>,
}

/// The receiving half, with the eventfd that wakes the core: for mail, and for clients' requests.
#[derive(Debug)]
pub struct Mailbox {
    letters: Receiver<Mail>,
    wake: Arc<OwnedFd>,
}

/// A mailbox and the way to it.
///
/// # Errors
/// What the system says: file descriptors are used up.
pub fn mailbox() -> std::io::Result<(Post, Mailbox)> {
    let (sender, letters) = sync_channel(CAPACITY);
    let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
    let wake = Arc::new(rustix::event::eventfd(0, flags)?);
    Ok((Post { letters: sender, wake: wake.clone() }, Mailbox { letters, wake }))
}

impl Post {
    /// Sends a letter and wakes the core. If too many wait already, or the core has ended, the letter is dropped, and its
    /// connection with it.
    #[must_use = "a letter that wasn't sent has to be accounted for"]
    pub fn send(&self, mail: Mail) -> bool {
        let is_sent = self.letters.try_send(mail).is_ok();
        if is_sent {
            self.wake();
        }
        is_sent
    }

    /// Makes the core look around.
    pub fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Mailbox {
    /// The next letter.
    pub fn next(&self) -> Option<Mail> {
        self.letters.try_recv().ok()
    }

    /// What wakes the core.
    pub fn wake_source(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes the wake source silent again.
    pub fn hush(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
    }
}
