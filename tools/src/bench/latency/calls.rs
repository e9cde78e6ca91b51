//! The product's rounds: one call of `get`, `exists` or `put`, or many gets in flight.

use std::sync::Arc;

use fastrand::Rng;
use lanner_client::{Client, PutOptions, Registered, Result};
use lanner_shared::time::Clock;

use super::values::{Stored, Values, wrong_bytes};
use crate::bench::progress::Progress;
use crate::bench::workload::Workload;
use crate::exit::Failure;

/// Which memory values go to and come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Any.
    Plain,
    /// Registered with the device that leads to the server, where there is one.
    Registered,
}

/// Memory of a value.
enum Buffer {
    Plain(Vec<u8>),
    /// Of memory that lives as long as the process: a row's few mebibytes.
    Registered(Box<Registered<'static>>),
    /// Registering was refused.
    Refused(lanner_client::Error),
}

impl Buffer {
    fn new(client: &Client, memory: Memory, value: Vec<u8>) -> Buffer {
        match memory {
            Memory::Plain => Buffer::Plain(value),
            Memory::Registered => match client.register(value.leak()) {
                Ok(registered) => Buffer::Registered(Box::new(registered)),
                Err(error) => Buffer::Refused(error),
            },
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Buffer::Plain(bytes) => bytes,
            Buffer::Registered(bytes) => bytes,
            Buffer::Refused(_) => &[],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Buffer::Plain(bytes) => bytes,
            Buffer::Registered(bytes) => bytes,
            Buffer::Refused(_) => &mut [],
        }
    }

    fn get_into(&mut self, client: &Client, key: &[u8]) -> Result<u64> {
        match self {
            Buffer::Plain(bytes) => client.get_into(key, bytes),
            Buffer::Registered(bytes) => bytes.get_into(key, 0..bytes.len()),
            Buffer::Refused(error) => Err(error.clone()),
        }
    }

    fn put(&self, client: &Client, key: &[u8]) -> Result<()> {
        match self {
            Buffer::Plain(bytes) => client.put(key, bytes),
            Buffer::Registered(bytes) => bytes.put(key, 0..bytes.len(), PutOptions::default()),
            Buffer::Refused(error) => Err(error.clone()),
        }
    }
}

/// Reads an object at random.
pub struct GetCall {
    client: Client,
    stored: Arc<Stored>,
    random: Rng,
    buffer: Buffer,
}

impl GetCall {
    /// Reads of `stored`.
    #[must_use]
    pub fn new(client: Client, stored: Arc<Stored>, memory: Memory, seed: u64) -> GetCall {
        let buffer = Buffer::new(&client, memory, vec![0; stored.values.bytes]);
        GetCall { client, stored, random: Rng::with_seed(seed), buffer }
    }
}

impl Workload for GetCall {
    fn name(&self) -> String {
        format!("get, {} bytes", self.stored.values.bytes)
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.stored.verify()
    }

    fn round(&mut self) -> Result<u64, Failure> {
        let number = self.random.usize(0..self.stored.keys.len());
        let key = &self.stored.keys[number];
        let before = Clock.now();
        let bytes = self.buffer.get_into(&self.client, key)?;
        let nanos = Clock.now().since(before).as_nanos() as u64;
        let read = self.buffer.bytes();
        let is_right = bytes == read.len() as u64 && self.stored.values.is_stamped(number as u64, read);
        if is_right { Ok(nanos) } else { Err(wrong_bytes(key)) }
    }
}

/// Asks whether an object at random is there.
pub struct ExistsCall {
    client: Client,
    stored: Arc<Stored>,
    random: Rng,
}

impl ExistsCall {
    /// Asks for those of `stored`.
    #[must_use]
    pub fn new(client: Client, stored: Arc<Stored>, seed: u64) -> ExistsCall {
        ExistsCall { client, stored, random: Rng::with_seed(seed) }
    }
}

impl Workload for ExistsCall {
    fn name(&self) -> String {
        "exists".to_owned()
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.stored.verify()
    }

    fn round(&mut self) -> Result<u64, Failure> {
        let key = &self.stored.keys[self.random.usize(0..self.stored.keys.len())];
        let before = Clock.now();
        let is_there = self.client.exists(key)?;
        let nanos = Clock.now().since(before).as_nanos() as u64;
        if is_there { Ok(nanos) } else { Err(missing(key)) }
    }
}

fn missing(key: &[u8]) -> Failure {
    Failure::Machine(format!(
        "{} is missing: the store is too small for the working set, or lost it",
        key.escape_ascii()
    ))
}

/// Stores a new object; removes the oldest of its own beyond a number of them, untimed.
pub struct PutCall {
    client: Client,
    values: Values,
    /// The value, but for its first bytes, which each object has of its own.
    value: Buffer,
    next: u64,
    oldest: u64,
    /// `None` if nothing is removed.
    most: Option<u64>,
}

/// Puts between two looks of whoever waits at how far the filling is.
const PUTS_PER_STEP: u64 = 256;
/// Keys that are removed in one call.
const KEYS_PER_REMOVAL: u64 = 1024;

impl PutCall {
    /// Puts that keep at most `most` objects in the store, or, without it, that fill the store first and then have it evict.
    #[must_use]
    pub fn new(client: Client, values: Values, memory: Memory, most: Option<u64>) -> PutCall {
        let value = Buffer::new(&client, memory, values.value(0));
        PutCall { client, values, value, next: 0, oldest: 0, most: most.map(|most| most.max(1)) }
    }

    /// Puts until every server has evicted.
    fn fill(&mut self) -> Result<(), Failure> {
        let capacity: u64 = self.client.servers().iter().map(|server| server.capacity_bytes).sum();
        let objects = capacity / 4 * 5 / self.values.bytes.max(1) as u64;
        let progress = Progress::new("filling the store", objects);
        for done in 0..objects {
            self.round()?;
            if done % PUTS_PER_STEP == 0 {
                progress.set(done);
            }
        }
        Ok(())
    }

    fn stamp(&mut self) {
        let stamp = self.next.to_le_bytes();
        let value = self.value.bytes_mut();
        let count = value.len().min(stamp.len());
        value[..count].copy_from_slice(&stamp[..count]);
    }

    /// Compares the object that was stored last.
    fn verify_last(&mut self) -> Result<u64, Failure> {
        if self.next == 0 {
            return Ok(0);
        }
        let key = self.values.key(self.next - 1);
        let value = self.client.get(&key)?;
        if value == self.value.bytes() { Ok(value.len() as u64) } else { Err(wrong_bytes(&key)) }
    }
}

impl Workload for PutCall {
    fn name(&self) -> String {
        format!("put, {} bytes", self.values.bytes)
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        if self.most.is_none() {
            self.fill()?;
        }
        self.round()?;
        self.verify_last()
    }

    /// What the turn before stored last is compared at the start of this one.
    fn begin_turn(&mut self) -> Result<(), Failure> {
        self.verify_last().map(drop)
    }

    fn round(&mut self) -> Result<u64, Failure> {
        if self.most.is_some_and(|most| self.next - self.oldest >= most) {
            self.client.remove(&self.values.key(self.oldest))?;
            self.oldest += 1;
        }
        let key = self.values.key(self.next);
        self.stamp();
        let before = Clock.now();
        self.value.put(&self.client, &key)?;
        let nanos = Clock.now().since(before).as_nanos() as u64;
        self.next += 1;
        Ok(nanos)
    }
}

impl Drop for PutCall {
    fn drop(&mut self) {
        while self.oldest < self.next {
            let end = self.next.min(self.oldest + KEYS_PER_REMOVAL);
            let keys: Vec<Vec<u8>> = (self.oldest..end).map(|number| self.values.key(number)).collect();
            let _ = self.client.remove_batch(&keys);
            self.oldest = end;
        }
    }
}

/// Reads many objects at random, each with a request of its own, all in flight at the same time.
pub struct PipelinedGets {
    client: Client,
    stored: Arc<Stored>,
    random: Rng,
    buffers: Vec<Vec<u8>>,
}

impl PipelinedGets {
    /// `depth` reads of `stored` at a time.
    #[must_use]
    pub fn new(client: Client, stored: Arc<Stored>, depth: usize, seed: u64) -> PipelinedGets {
        let buffers = vec![vec![0; stored.values.bytes]; depth];
        PipelinedGets { client, stored, random: Rng::with_seed(seed), buffers }
    }
}

impl Workload for PipelinedGets {
    fn name(&self) -> String {
        format!("get, {} bytes, {} in flight", self.stored.values.bytes, self.buffers.len())
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.stored.verify()
    }

    fn round(&mut self) -> Result<u64, Failure> {
        let numbers: Vec<usize> =
            self.buffers.iter().map(|_| self.random.usize(0..self.stored.keys.len())).collect();
        let mut targets: Vec<[&mut [u8]; 1]> =
            self.buffers.iter_mut().map(|buffer| [buffer.as_mut_slice()]).collect();
        let before = Clock.now();
        let mut pending = Vec::with_capacity(targets.len());
        for (number, target) in numbers.iter().zip(&mut targets) {
            pending.push(self.client.submit_get_into_batch(&self.stored.keys[*number..=*number], target)?);
        }
        for call in pending {
            for outcome in call.wait()? {
                outcome?;
            }
        }
        let nanos = Clock.now().since(before).as_nanos() as u64;
        let is_right =
            |(number, buffer): (&usize, &Vec<u8>)| self.stored.values.is_stamped(*number as u64, buffer);
        match numbers.iter().zip(&self.buffers).find(|pair| !is_right(*pair)) {
            None => Ok(nanos),
            Some((number, _)) => Err(wrong_bytes(&self.stored.keys[*number])),
        }
    }
}
