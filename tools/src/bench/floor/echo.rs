//! The limit of a request over TCP: so many bytes there and so many back over loopback, between two cores that both poll and never
//! sleep. Large replies make it the limit of a transfer. The answering half is in `echo_server`.

use std::hint;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use lanner_shared::time::{Clock, Instant};

use super::cores::CorePair;
use super::echo_server::{EchoServer, REPLY_BYTES, Shape, reply_byte};
use super::peer::Peer;
use crate::bench::workload::Workload;
use crate::exit::Failure;

/// Longer than any scheduler keeps a thread waiting.
const TIME_OUT: Duration = Duration::from_secs(5);

/// Fruitless polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 1 << 12;

/// Round trips over one connection.
pub struct TcpEcho {
    shape: Shape,
    connection: TcpStream,
    server: Peer,
    request: Vec<u8>,
    reply: Vec<u8>,
    /// Stamp of the last request; the reply carries it back.
    stamp: u64,
}

impl TcpEcho {
    /// Connects to an answering thread on the server's CPU. The caller is to run on the client's. At the server's end values lie in
    /// `memory_bytes`, as [`EchoServer::new`] says.
    ///
    /// # Errors
    /// What this machine refuses: a port, a thread, an io_uring. Sizes below 8 bytes, which hold no stamp.
    pub fn new(cores: CorePair, shape: Shape, memory_bytes: usize) -> Result<TcpEcho, Failure> {
        if shape.request < 8 || shape.reply < 8 {
            return Err(Failure::WrongUse("requests and replies have at least 8 bytes".to_owned()));
        }
        let refused = |error: io::Error| Failure::Machine(format!("a connection over loopback: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused)?;
        let connection = TcpStream::connect(listener.local_addr().map_err(refused)?).map_err(refused)?;
        let (servers_end, _) = listener.accept().map_err(refused)?;
        for end in [&connection, &servers_end] {
            end.set_nodelay(true).map_err(refused)?;
        }
        connection.set_nonblocking(true).map_err(refused)?;
        let server = Peer::start(cores.server, move || {
            let server = EchoServer::new(servers_end, shape, memory_bytes)?;
            Ok(move |turn: &_| server.run(turn))
        })?;
        Ok(TcpEcho {
            shape,
            connection,
            server,
            request: vec![1; shape.request],
            reply: vec![0; shape.reply],
            stamp: 0,
        })
    }

    fn round_trip(&mut self) -> Result<(), Failure> {
        self.stamp += 1;
        self.request[..8].copy_from_slice(&self.stamp.to_le_bytes());
        let mut patience = Patience::default();
        let mut sent = 0;
        while sent < self.request.len() {
            sent += some_or_wait(self.connection.write(&self.request[sent..]), &mut patience, &self.server)?;
        }
        let mut received = 0;
        while received < self.reply.len() {
            received +=
                some_or_wait(self.connection.read(&mut self.reply[received..]), &mut patience, &self.server)?;
        }
        Ok(())
    }

    fn has_stamp(&self) -> Result<(), Failure> {
        if self.reply[..8] == self.stamp.to_le_bytes() {
            return Ok(());
        }
        Err(Failure::Machine(format!("the reply to request {} carries another's stamp", self.stamp)))
    }
}

/// Bytes moved, or none where the socket isn't ready yet.
fn some_or_wait(
    outcome: io::Result<usize>,
    patience: &mut Patience,
    server: &Peer,
) -> Result<usize, Failure> {
    match outcome {
        Ok(0) => Err(Failure::Machine("the answering thread closed its connection".to_owned())),
        Ok(bytes) => Ok(bytes),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            patience.spend(server)?;
            Ok(0)
        }
        Err(error) => Err(Failure::Machine(format!("loopback: {error}"))),
    }
}

/// How long a round has polled in vain.
#[derive(Default)]
struct Patience {
    polls: u32,
    waiting_since: Option<Instant>,
}

impl Patience {
    fn spend(&mut self, server: &Peer) -> Result<(), Failure> {
        hint::spin_loop();
        self.polls += 1;
        if !self.polls.is_multiple_of(POLLS_PER_LOOK) {
            return Ok(());
        }
        let now = Clock.now();
        if server.has_ended() || now.since(*self.waiting_since.get_or_insert(now)) > TIME_OUT {
            return Err(Failure::Machine("no answer from the answering thread within 5 s".to_owned()));
        }
        Ok(())
    }
}

impl Workload for TcpEcho {
    fn name(&self) -> String {
        format!("TCP, {} B there, {} B back", self.shape.request, self.shape.reply)
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.server.wake();
        let outcome = self.round_trip();
        self.server.rest();
        outcome?;
        self.has_stamp()?;
        // It may begin anywhere in the server's memory, which says where by its bytes.
        let start = self.reply.get(8).map_or(0, |byte| usize::from(*byte) + REPLY_BYTES - 8);
        let expected = |index: usize| reply_byte(start + index);
        let wrong = self.reply.iter().enumerate().skip(8).find(|(index, byte)| **byte != expected(*index));
        if let Some((index, byte)) = wrong {
            return Err(Failure::Machine(format!(
                "byte {index} of the reply is {byte}, not {}",
                expected(index)
            )));
        }
        Ok(self.shape.reply as u64)
    }

    fn begin_turn(&mut self) -> Result<(), Failure> {
        self.server.wake();
        Ok(())
    }

    fn round(&mut self) -> Result<u64, Failure> {
        let before = Clock.now();
        self.round_trip()?;
        let nanos = Clock.now().since(before).as_nanos() as u64;
        self.has_stamp()?;
        Ok(nanos)
    }

    fn end_turn(&mut self) {
        self.server.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that replies are whole and belong to their request, for sizes within one segment of TCP and far beyond a socket's buffers, both ways.
    #[test]
    fn replies_belong_to_their_requests() {
        let cores = CorePair::of_this_machine().expect("two CPUs");
        let shapes = [
            (8, 8, 0),
            (264, 12_672, 0),
            (64, 4 << 20, 0),
            (4 << 20, 64, 0),
            (64, 5000, 1 << 20),
            (5000, 64, 1 << 20),
        ];
        for (request, reply, memory_bytes) in shapes {
            let mut echo = TcpEcho::new(cores, Shape { request, reply }, memory_bytes).expect("a connection");
            assert_eq!(echo.prepare().expect("the right bytes"), reply as u64);
            for _ in 0..2 {
                echo.begin_turn().expect("awake");
                for _ in 0..5 {
                    assert!(echo.round().expect("the right stamp") > 0);
                }
                echo.end_turn();
                assert_eq!(echo.prepare().expect("the right bytes"), reply as u64);
            }
        }
    }

    /// Shows that sizes without room for a stamp are refused.
    #[test]
    fn a_request_holds_a_stamp() {
        let cores = CorePair::of_this_machine().expect("two CPUs");
        assert!(matches!(TcpEcho::new(cores, Shape { request: 7, reply: 8 }, 0), Err(Failure::WrongUse(_))));
        assert!(matches!(TcpEcho::new(cores, Shape { request: 8, reply: 7 }, 0), Err(Failure::WrongUse(_))));
    }
}
