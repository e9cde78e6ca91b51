//! Replies that arrived while another call of the thread was looking.

use super::{Broken, Receiver, tell};
use lanner_shared::Result;
use lanner_shared::wire::header::Header;

/// A reply, or the rest of one, whose owner hasn't asked for it yet.
#[derive(Debug)]
pub(super) struct PutBy {
    pub header: Header,
    pub body: Vec<u8>,
    pub payload: Vec<u8>,
    pub is_whole: bool,
    /// The owner has had header, body, and what came of the payload before: this is the rest.
    pub is_begun: bool,
}

impl PutBy {
    /// Gives the receiver what it hasn't had yet: what the server said.
    pub fn hand_over(self, receiver: &mut dyn Receiver) -> Result<Result<()>, Broken> {
        if !self.is_begun
            && let Err(error) = tell(receiver, &self.header, &self.body)?
        {
            return Ok(Err(error));
        }
        let mut rest = self.payload.as_slice();
        while !rest.is_empty() {
            let target = receiver.destination();
            let count = target.len().min(rest.len());
            if count == 0 {
                // More than was asked for, as in `Connection::receive`.
                return Err(Broken::Closed);
            }
            target[..count].copy_from_slice(&rest[..count]);
            receiver.advance(count);
            rest = &rest[count..];
        }
        Ok(Ok(()))
    }
}
