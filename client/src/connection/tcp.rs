//! Frames over a TCP connection: non-blocking reads and writes, nothing else.
//!
//! Small replies are read many at a time into one buffer; of a long payload, what didn't come with its header goes from
//! the socket straight to where it belongs.

use super::Broken;
use super::presence::{Heard, heard};
use lanner_shared::wire::MAX_VERSION;
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// A reply of this many bytes is taken in with one system call.
const BUFFER_BYTES: usize = 64 << 10;
/// A payload piece at least this long is read from the socket to its destination without passing the buffer.
const DIRECT_BYTES: usize = 16 << 10;
/// A reply whose payload has this much room is received straight to there: what a second piece in a system call costs is won back.
const PLACED_BYTES: usize = 4 << 10;

/// A connected socket and what was read ahead from it.
#[derive(Debug)]
pub(crate) struct TcpTransport<S = TcpStream> {
    stream: S,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are not used up: `start..end`.
    start: usize,
    end: usize,
    /// Bytes of the current frame's header and body, which stay in the buffer until the frame is begun.
    frame_bytes: usize,
    /// Bytes of the current frame's payload that were received to where they belong.
    placed: usize,
}

impl TcpTransport {
    /// The socket, to sleep on.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether the server has not closed its end, as far as the system knows now.
    pub fn is_peer_there(&self) -> bool {
        // An answer that nobody waits for any more may lie there.
        heard(&self.stream) != Heard::End
    }
}

impl<S: Read + Write> TcpTransport<S> {
    /// Takes over a stream that has finished its handshake and doesn't block.
    pub fn new(stream: S) -> TcpTransport<S> {
        TcpTransport { stream, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, frame_bytes: 0, placed: 0 }
    }

    /// What carries the bytes.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The same, to act on it.
    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        match self.stream.write(bytes) {
            Ok(0) => Err(Broken::Closed),
            Ok(written) => Ok(written),
            Err(error) if is_temporary(&error) => Ok(0),
            Err(_) => Err(Broken::Closed),
        }
    }

    /// The next frame. Where it's a reply to `request_id` without a body, the start of its payload may have been received
    /// to `target` right away: [`TcpTransport::take_placed`] says how much. Else what is in `target` is of no meaning.
    #[inline]
    pub fn next_frame(&mut self, request_id: u32, target: &mut [u8]) -> Result<Option<Header>, Broken> {
        if self.start == self.end && target.len() >= PLACED_BYTES {
            self.fill_with(request_id, target)?;
        }
        loop {
            let buffered = self.end - self.start;
            let mut wanted = HEADER_BYTES;
            if let Some(header) = self.buffer[self.start..self.end].first_chunk::<HEADER_BYTES>() {
                let header = Header::decode(header, MAX_VERSION)?;
                wanted += header.body_bytes as usize;
                if buffered >= wanted {
                    self.frame_bytes = wanted;
                    return Ok(Some(header));
                }
            }
            self.make_room(wanted);
            if self.fill()? == 0 {
                return Ok(None);
            }
        }
    }

    /// Receives a header to the buffer and what comes behind it to `target`; what doesn't belong there follows the header.
    fn fill_with(&mut self, request_id: u32, target: &mut [u8]) -> Result<(), Broken> {
        self.make_room(HEADER_BYTES);
        let (header, _) = self.buffer.split_at_mut(HEADER_BYTES);
        let mut pieces = [IoSliceMut::new(header), IoSliceMut::new(target)];
        let read = received(self.stream.read_vectored(&mut pieces))?;
        self.end = read.min(HEADER_BYTES);
        let behind = read - self.end;
        if behind == 0 {
            return Ok(());
        }
        let belongs = |header: &Header| {
            header.request_id == request_id
                && header.status == 0
                && header.body_bytes == 0
                && header.payload_bytes >= behind as u64
        };
        let header = self.buffer.first_chunk::<HEADER_BYTES>();
        if header
            .is_some_and(|header| Header::decode(header, MAX_VERSION).is_ok_and(|header| belongs(&header)))
        {
            self.placed = behind;
            return Ok(());
        }
        self.make_room(HEADER_BYTES + behind);
        self.end += behind;
        self.buffer[HEADER_BYTES..self.end].copy_from_slice(&target[..behind]);
        Ok(())
    }

    /// Bytes of the current frame's payload that are where they belong already; asked once for each frame.
    #[inline]
    pub fn take_placed(&mut self) -> usize {
        std::mem::take(&mut self.placed)
    }

    #[inline]
    pub fn body(&self, header: &Header) -> &[u8] {
        let start = self.start + HEADER_BYTES;
        self.buffer.get(start..start + header.body_bytes as usize).unwrap_or_default()
    }

    #[inline]
    pub fn read_payload(&mut self, target: &mut [u8]) -> Result<usize, Broken> {
        self.end_frame();
        if self.start == self.end {
            if target.len() >= DIRECT_BYTES {
                return self.receive_into(target);
            }
            self.make_room(1);
            if self.fill()? == 0 {
                return Ok(0);
            }
        }
        let count = target.len().min(self.end - self.start);
        target[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.start += count;
        Ok(count)
    }

    /// Header and body of the current frame aren't needed any more.
    #[inline]
    pub fn end_frame(&mut self) {
        self.start += std::mem::take(&mut self.frame_bytes);
    }

    /// Makes room for `wanted` bytes from `start` on, all of them together.
    fn make_room(&mut self, wanted: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.start > 0 && self.start + wanted > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if wanted > self.buffer.len() {
            // At most a header and MAX_BODY_BYTES, which `Header::decode` has checked.
            self.buffer.resize(wanted, 0);
        }
    }

    #[inline]
    fn fill(&mut self) -> Result<usize, Broken> {
        let end = self.end;
        let read = read_some(&mut self.stream, &mut self.buffer[end..])?;
        self.end += read;
        Ok(read)
    }

    fn receive_into(&mut self, target: &mut [u8]) -> Result<usize, Broken> {
        read_some(&mut self.stream, target)
    }
}

/// What can be read now; 0 if that's nothing.
#[inline]
fn read_some(stream: &mut impl Read, target: &mut [u8]) -> Result<usize, Broken> {
    received(stream.read(target))
}

#[inline]
fn received(outcome: std::io::Result<usize>) -> Result<usize, Broken> {
    match outcome {
        Ok(0) => Err(Broken::Closed),
        Ok(read) => Ok(read),
        Err(error) if is_temporary(&error) => Ok(0),
        Err(_) => Err(Broken::Closed),
    }
}

fn is_temporary(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
