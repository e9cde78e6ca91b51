//! One request after the other: match, read what is there and compare it, store the rest.

use lanner_client::{Client, Error, Freshness, PutOptions, Range, Snapshot};
use lanner_shared::time::{Clock, Instant};

use std::time::Duration;

use super::blocks::Blocks;
use crate::bench::histogram::LatencyHistogram;
use crate::exit::Failure;

/// Blocks are read and stored in pieces of so many bytes: a chain may have gigabytes, and a read is to end within its lease.
const PIECE_BYTES: usize = 4 << 20;

/// What came of all requests so far.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests replayed.
    pub requests: u64,
    /// Blocks of all of them.
    pub uses: u64,
    /// Of which blocks before the first missing one, read and right.
    pub hits: u64,
    /// Blocks that were there, but whose lease ended before they were read: no hits.
    pub expired: u64,
    /// Blocks stored.
    pub stored: u64,
    /// Blocks to be stored that were there already: behind a gap, or twice in a chain.
    pub already_there: u64,
    /// Blocks that found no room.
    pub refused: u64,
    /// Bytes read, every one of which was compared.
    pub read_bytes: u64,
    /// Bytes of the blocks stored.
    pub written_bytes: u64,
    /// Time of the match, for each request.
    pub matching: LatencyHistogram,
    /// Time of all reads of a request that had something to read.
    pub reading: LatencyHistogram,
    /// Time of all puts of a request that had something to store.
    pub putting: LatencyHistogram,
    /// How long after its time the latest request began.
    pub most_late: Duration,
}

impl Outcome {
    /// A request began so long after its time.
    pub fn begun_late(&mut self, late: Duration) {
        self.most_late = self.most_late.max(late);
    }
}

/// A replay under way.
pub struct Replay<'a> {
    client: &'a Client,
    blocks: Blocks,
    /// Blocks of a piece.
    piece_blocks: usize,
    buffer: Vec<u8>,
    /// What came of it so far.
    pub outcome: Outcome,
}

impl<'a> Replay<'a> {
    /// One that hasn't begun.
    #[must_use]
    pub fn new(client: &'a Client, blocks: Blocks) -> Replay<'a> {
        let piece_blocks = (PIECE_BYTES / blocks.bytes.max(1)).max(1);
        let buffer = vec![0; piece_blocks * blocks.bytes];
        Replay { client, blocks, piece_blocks, buffer, outcome: Outcome::default() }
    }

    /// The request for the chain of the blocks with these numbers.
    ///
    /// # Errors
    /// What the store says, but for a lease that ended and a store that is full; a wrong byte.
    pub fn request(&mut self, numbers: &[u64]) -> Result<(), Failure> {
        self.outcome.requests += 1;
        self.outcome.uses += numbers.len() as u64;
        if numbers.is_empty() {
            return Ok(());
        }
        let keys: Vec<[u8; 16]> = numbers.iter().map(|number| self.blocks.key(*number)).collect();
        let before = Clock.now();
        let matched = self.client.match_chain(&keys);
        self.outcome.matching.record(nanos_since(before));
        let hits = match matched {
            Ok(snapshot) => self.read(&snapshot, numbers)?,
            Err(Error::LeaseExpired { .. }) => {
                // It isn't known how many there were beside the one that the error names.
                self.outcome.expired += 1;
                0
            }
            Err(error) => return Err(error.into()),
        };
        self.outcome.hits += hits as u64;
        self.store(&keys, hits, numbers)
    }

    /// Reads and compares what `snapshot` found, and returns how many blocks that were.
    fn read(&mut self, snapshot: &Snapshot, numbers: &[u64]) -> Result<usize, Failure> {
        let found = snapshot.len();
        let (mut done, mut nanos) = (0, 0);
        while done < found {
            let end = found.min(done + self.piece_blocks);
            let ranges = self.ranges(snapshot, numbers, done..end)?;
            let destination = &mut self.buffer[..(end - done) * self.blocks.bytes];
            let before = Clock.now();
            let outcome =
                self.client.read_ranges_from_snapshot(snapshot, &ranges, destination, Freshness::Lease);
            nanos += nanos_since(before);
            match outcome {
                Ok(()) => self.compare(&numbers[done..end])?,
                Err(Error::LeaseExpired { .. }) => {
                    self.outcome.expired += (found - done) as u64;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            done = end;
        }
        if found > 0 {
            self.outcome.reading.record(nanos);
        }
        Ok(done)
    }

    /// Whole blocks, one after the other. A block of another length is a wrong one.
    fn ranges(
        &self,
        snapshot: &Snapshot,
        numbers: &[u64],
        piece: std::ops::Range<usize>,
    ) -> Result<Vec<Range>, Failure> {
        let length = self.blocks.bytes as u64;
        let range = |(place, index): (u64, usize)| match snapshot.value_bytes(index) {
            Some(bytes) if bytes == length => {
                Ok(Range { key: index as u32, source_offset: 0, length, destination_offset: place * length })
            }
            other => Err(wrong_bytes(numbers[index], &format!("{} bytes long", other.unwrap_or(0)))),
        };
        (0..).zip(piece).map(range).collect()
    }

    fn compare(&mut self, numbers: &[u64]) -> Result<(), Failure> {
        for (number, contents) in numbers.iter().zip(self.buffer.chunks(self.blocks.bytes)) {
            if let Some(place) = self.blocks.first_wrong(*number, contents) {
                return Err(wrong_bytes(*number, &format!("wrong from byte {place} on")));
            }
            self.outcome.read_bytes += contents.len() as u64;
        }
        Ok(())
    }

    /// Stores the chain's blocks from block `from` on.
    fn store(&mut self, keys: &[[u8; 16]], from: usize, numbers: &[u64]) -> Result<(), Failure> {
        let (mut done, mut nanos) = (from, 0);
        while done < keys.len() {
            let end = keys.len().min(done + self.piece_blocks);
            let contents = self.buffer.chunks_mut(self.blocks.bytes);
            for (number, contents) in numbers[done..end].iter().zip(contents) {
                self.blocks.fill(*number, contents);
            }
            let values: Vec<&[u8]> = self.buffer.chunks(self.blocks.bytes).take(end - done).collect();
            let before = Clock.now();
            let outcomes = self.client.put_chain(keys, done, &values, PutOptions::default())?;
            nanos += nanos_since(before);
            outcomes.into_iter().try_for_each(|outcome| self.count(outcome))?;
            done = end;
        }
        if from < keys.len() {
            self.outcome.putting.record(nanos);
        }
        Ok(())
    }

    fn count(&mut self, stored: Result<(), Error>) -> Result<(), Failure> {
        match stored {
            Ok(()) => {
                self.outcome.stored += 1;
                self.outcome.written_bytes += self.blocks.bytes as u64;
            }
            Err(Error::AlreadyExists { .. }) => self.outcome.already_there += 1,
            Err(Error::StoreFull { .. }) => self.outcome.refused += 1,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn nanos_since(before: Instant) -> u64 {
    Clock.now().since(before).as_nanos() as u64
}

/// The failure that a replay must not survive.
fn wrong_bytes(number: u64, what: &str) -> Failure {
    Failure::Machine(format!("WRONG BYTES in block {number}: {what}"))
}
