//! Pipelined gets over TCP from Lanner and from Redis, in turns: what one core of each serves.
//!
//! `benches/against-redis` starts both servers and runs this. One client thread takes equal pains with both: its requests are
//! encoded once, 64 are under way all the time (32 are sent whenever 32 were answered), and every byte of every answer is compared.
//! The protocol of Redis is its documented RESP2, that of Lanner is `lanner_shared::wire`.

use lanner_client::{Client, Clock};
use lanner_shared::ShardId;
use lanner_shared::wire::get::GetBody;
use lanner_shared::wire::header::{HEADER_BYTES, Header};
use lanner_shared::wire::hello::{ANY_SHARD, Hello, Welcome};
use lanner_shared::wire::{Descriptor, Opcode, body, keys};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use zerocopy::{FromZeros, IntoBytes};

/// Gets under way.
const DEPTH: usize = 64;
/// Gets that are sent together.
const HALF: usize = DEPTH / 2;
const VALUE_BYTES: usize = 264;
const TURNS: usize = 40;
/// Halves in a turn.
const HALVES: usize = 400;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn key(number: usize) -> String {
    format!("pipelined {number:02}")
}

fn value(number: usize) -> Vec<u8> {
    (0..VALUE_BYTES).map(|at| (at * 7 + number) as u8).collect()
}

/// A connection with the requests of [`HALF`] gets and the answers to them.
struct Peer {
    name: &'static str,
    stream: TcpStream,
    requests: Vec<u8>,
    expected: Vec<u8>,
    answers: Vec<u8>,
    times: Vec<u64>,
}

impl Peer {
    fn redis(address: &str) -> Outcome<Peer> {
        let mut stream = TcpStream::connect(address)?;
        let (mut requests, mut expected) = (Vec::new(), Vec::new());
        for number in 0..HALF {
            let (key, value) = (key(number), value(number));
            write!(stream, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len())?;
            stream.write_all(&value)?;
            stream.write_all(b"\r\n")?;
            stream.read_exact(&mut [0; 5])?;
            write!(requests, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())?;
            write!(expected, "${}\r\n", value.len())?;
            expected.extend_from_slice(&value);
            expected.extend_from_slice(b"\r\n");
        }
        Peer::new("redis", stream, requests, expected)
    }

    /// Stores by the client library, and learns the answers from a first half whose values it checks.
    fn lanner(url: &str) -> Outcome<Peer> {
        let client = Client::connect(url)?;
        let mut requests = Vec::new();
        for number in 0..HALF {
            client.upsert(key(number).as_bytes(), &value(number))?;
            let start = body::begin(&mut requests);
            body::append(&mut requests, &GetBody { max_value_bytes: u64::MAX.into() });
            keys::append(&mut requests, key(number).as_bytes());
            body::finish(&mut requests, start, Header::request(Opcode::Get, ShardId(0), number as u32, 1), 1);
        }
        let mut stream = TcpStream::connect(&client.servers()[0].address)?;
        stream.write_all(Hello::new(b"", 1, ANY_SHARD).as_bytes())?;
        let mut welcome: Welcome = FromZeros::new_zeroed();
        stream.read_exact(welcome.as_mut_bytes())?;
        welcome.check()?;
        stream.write_all(&requests)?;
        let answer_bytes = HEADER_BYTES + size_of::<Descriptor>() + VALUE_BYTES;
        let mut expected = vec![0; HALF * answer_bytes];
        stream.read_exact(&mut expected)?;
        for (number, answer) in expected.chunks(answer_bytes).enumerate() {
            if answer[answer_bytes - VALUE_BYTES..] != value(number) {
                return Err("Lanner answered something else".into());
            }
        }
        Peer::new("lanner", stream, requests, expected)
    }

    fn new(name: &'static str, stream: TcpStream, requests: Vec<u8>, expected: Vec<u8>) -> Outcome<Peer> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let answers = vec![0; expected.len()];
        Ok(Peer { name, stream, requests, expected, answers, times: Vec::new() })
    }

    /// A turn: as many halves as that, with [`DEPTH`] gets under way until the last is sent.
    fn turn(&mut self) -> Outcome<()> {
        self.stream.write_all(&self.requests)?;
        let began = Clock.now();
        for half in 1..=HALVES {
            if half < HALVES {
                self.stream.write_all(&self.requests)?;
            }
            self.receive()?;
        }
        self.times.push(Clock.now().since(began).as_nanos() as u64);
        Ok(())
    }

    fn receive(&mut self) -> Outcome<()> {
        let mut done = 0;
        while done < self.answers.len() {
            match self.stream.read(&mut self.answers[done..]) {
                Ok(0) => return Err(format!("{} closed the connection", self.name).into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error.into()),
            }
        }
        if self.answers == self.expected {
            Ok(())
        } else {
            Err(format!("{} answered something else", self.name).into())
        }
    }

    /// Gets a second at this percentile of the turns, from the quickest.
    fn rate(&mut self, percent: usize) -> f64 {
        self.times.sort_unstable();
        (HALVES * HALF) as f64 / self.times[(self.times.len() - 1) * percent / 100] as f64 * 1e9
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, redis] = arguments.as_slice() else {
        return Err("usage: against_redis LANNER_URL REDIS_HOST:PORT".into());
    };
    let (mut lanner, mut redis) = (Peer::lanner(url)?, Peer::redis(redis)?);
    for turn in 0..=TURNS {
        lanner.turn()?;
        redis.turn()?;
        if turn == 0 {
            // Warm-up.
            lanner.times.clear();
            redis.times.clear();
        }
    }
    println!("gets of {VALUE_BYTES} B over TCP, {DEPTH} under way, {TURNS} turns of {} each", HALVES * HALF);
    for peer in [&mut lanner, &mut redis] {
        let (median, slowest) = (peer.rate(50), peer.rate(100));
        println!("{:7} {median:9.0} gets/s in the median turn, {slowest:9.0} in the slowest", peer.name);
    }
    println!("lanner serves {:.2} times as many", lanner.rate(50) / redis.rate(50));
    Ok(())
}
