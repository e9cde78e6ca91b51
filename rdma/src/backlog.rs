//! Messages of one connection that came to a server and aren't served yet, because its answers wait, or a value that it has offered is being read.
//!
//! ```text
//! arrives in a receive ─► served ─► the receive is posted again
//!       └─ holds more than its share of the shard's receives ─► copied to memory of its own; the receive is posted again at once
//! ```
//!
//! What always holds: some receives are free, however many connections wait with whatever they have sent; what was copied is bounded by what a
//! client may send ahead ([`UNTAKEN_MESSAGES`]) and counts as a frame that hasn't arrived whole.

use crate::share::may_keep;
use lanner_shared::wire::join_rdma::UNTAKEN_MESSAGES;
use std::collections::VecDeque;

/// The messages, oldest first.
#[derive(Debug, Default)]
pub struct Backlog {
    messages: VecDeque<Message>,
    /// Those that lie in a receive.
    held: usize,
    copied_bytes: usize,
}

#[derive(Debug)]
struct Message {
    place: Place,
    /// Bytes that were served.
    served: usize,
    length: usize,
}

#[derive(Debug)]
enum Place {
    Receive(u64),
    Copy(Box<[u8]>),
}

impl Backlog {
    /// A message of so many bytes has come in `receive`.
    pub fn push(&mut self, receive: u64, length: usize) {
        self.messages.push_back(Message { place: Place::Receive(receive), served: 0, length });
        self.held += 1;
    }

    /// To be asked once what can be served was: whether the last message has to leave its receive to others, which have `free` ones. Then it's to
    /// be copied.
    pub fn excess(&self, free: usize) -> Option<u64> {
        match self.messages.back()?.place {
            Place::Receive(receive) if !may_keep(self.held, free) => Some(receive),
            _ => None,
        }
    }

    /// Copies the last message, which `read` reads. Its receive isn't used any more.
    pub fn copy_last(&mut self, read: impl FnOnce(&mut [u8])) {
        let Some(message) = self.messages.back_mut() else { return };
        let mut copy = vec![0; message.length].into_boxed_slice();
        read(&mut copy);
        message.place = Place::Copy(copy);
        self.held -= 1;
        self.copied_bytes += message.length;
    }

    /// Copies what isn't served of the first message to the start of `target`, which has room for any; `read` reads a receive from a byte on. Those bytes.
    pub fn first<'a>(
        &self,
        target: &'a mut [u8],
        read: impl FnOnce(u64, usize, &mut [u8]),
    ) -> Option<&'a [u8]> {
        let Message { place, served, length } = self.messages.front()?;
        let target = &mut target[..length - served];
        match place {
            Place::Receive(receive) => read(*receive, *served, target),
            Place::Copy(copy) => target.copy_from_slice(&copy[*served..]),
        }
        Some(target)
    }

    /// So many more bytes of the first message were served.
    pub fn served(&mut self, count: usize) {
        if let Some(first) = self.messages.front_mut() {
            first.served += count;
        }
    }

    /// Lets go of the first message. The receive that it lies in, if it does.
    pub fn pop(&mut self) -> Option<u64> {
        let message = self.messages.pop_front()?;
        match message.place {
            Place::Receive(receive) => {
                self.held -= 1;
                Some(receive)
            }
            Place::Copy(_) => {
                self.copied_bytes -= message.length;
                None
            }
        }
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether the client has sent more than it may before some was taken up.
    pub fn is_overdrawn(&self) -> bool {
        self.messages.len() > UNTAKEN_MESSAGES as usize
    }

    /// Bytes of copies.
    pub fn copied_bytes(&self) -> usize {
        self.copied_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECEIVES: usize = 256;

    /// What a device's receives would hold.
    fn byte(receive: u64) -> u8 {
        receive as u8 ^ 0x5a
    }

    fn first(backlog: &Backlog) -> Vec<u8> {
        let mut target = [0; 100];
        let read = |receive: u64, _: usize, target: &mut [u8]| target.fill(byte(receive));
        backlog.first(&mut target, read).unwrap_or_default().to_vec()
    }

    /// 2 MiB of puts behind one long registered value took all receives of the shard, and everybody else waited for that value. Shows that a
    /// connection with all that it may send ahead leaves receives to others, also where many do, and that its messages stay whole and in order.
    #[test]
    fn a_connection_that_waits_leaves_receives_to_others() {
        for connections in [1_usize, 8, 40, 500] {
            let mut backlogs: Vec<Backlog> = (0..connections).map(|_| Backlog::default()).collect();
            let mut free = RECEIVES;
            let mut next = 0_u64;
            let mut sent = vec![Vec::new(); connections];
            for _ in 0..UNTAKEN_MESSAGES {
                for (backlog, sent) in backlogs.iter_mut().zip(&mut sent) {
                    free -= 1;
                    let receive = next;
                    next += 1;
                    sent.push(byte(receive));
                    backlog.push(receive, 100);
                    if let Some(excess) = backlog.excess(free) {
                        assert_eq!(excess, receive);
                        backlog.copy_last(|copy| copy.fill(byte(receive)));
                        free += 1;
                    }
                    assert!(free > 0 && !backlog.is_overdrawn(), "none is left by {connections}");
                }
            }
            assert!(connections > 8 || free >= RECEIVES / 8, "{free} are left by {connections}");
            for (backlog, sent) in backlogs.iter_mut().zip(sent) {
                for byte in sent {
                    assert_eq!(first(backlog), vec![byte; 100]);
                    backlog.served(40);
                    assert_eq!(first(backlog), vec![byte; 60]);
                    free += usize::from(backlog.pop().is_some());
                }
                assert_eq!((backlog.is_empty(), backlog.held, backlog.copied_bytes()), (true, 0, 0));
            }
            assert_eq!(free, RECEIVES, "every receive is posted again");
        }
    }

    #[test]
    fn who_sends_more_than_was_granted_is_found_out() {
        let mut backlog = Backlog::default();
        (0..u64::from(UNTAKEN_MESSAGES)).for_each(|receive| backlog.push(receive, 1));
        assert!(!backlog.is_overdrawn());
        backlog.push(99, 1);
        assert!(backlog.is_overdrawn());
    }
}
