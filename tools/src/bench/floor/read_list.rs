//! The limit of RDMA reads: a list of READs by a bare loop, from the device that leads to the server to the one that the server listens on,
//! with no store in between.

use lanner_rdma::planner::{Piece, Plan};
use lanner_rdma::verbs::queue_pair::RemoteRegion;
use lanner_shared::time::Clock;

use super::device_pair::{self, End, EndOptions, refused};
use super::tables::{TablePlace, bytes_of};
use crate::bench::workload::Workload;
use crate::exit::Failure;

/// READs of random rows, a list a round.
pub struct ReadList {
    near: End,
    /// Kept alive: its device answers.
    _far: End,
    remote: RemoteRegion,
    places: Vec<TablePlace>,
    row_bytes: usize,
    tokens: u64,
    random: fastrand::Rng,
    plan: Plan,
    offsets: Vec<u64>,
}

impl ReadList {
    /// A list of a row of each of `places` for each token, or `None` where the server's device isn't on this machine.
    ///
    /// # Errors
    /// What the devices refuse.
    pub fn new(
        server: &str,
        places: Vec<TablePlace>,
        row_bytes: usize,
        tokens: u64,
        seed: u64,
    ) -> Result<Option<ReadList>, Failure> {
        let bytes = bytes_of(&places, row_bytes) as usize;
        let rows = places.len() * tokens as usize;
        // Half of a queue's posts have no completion of their own.
        let near = EndOptions { bytes: rows * row_bytes, posts: rows as u32 * 2, inline_bytes: 0 };
        let far = EndOptions { bytes, posts: 1, inline_bytes: 0 };
        let Some((near, mut far)) = device_pair::connect(server, near, far)? else { return Ok(None) };
        let content: Vec<u8> = (0..bytes).map(content_at).collect();
        far.buffer.write(0, &content);
        let remote = far.region();
        Ok(Some(ReadList {
            near,
            _far: far,
            remote,
            places,
            row_bytes,
            tokens,
            random: fastrand::Rng::with_seed(seed),
            plan: Plan::default(),
            offsets: Vec::with_capacity(rows),
        }))
    }

    /// Draws rows and makes a list of them, which is no part of a round's time.
    fn draw(&mut self) -> Result<(), Failure> {
        self.plan.clear();
        self.offsets.clear();
        let limits = self.near.queue_pair.limits();
        let length = self.row_bytes as u64;
        for _ in 0..self.tokens {
            for place in &self.places {
                let row = self.random.u64(..place.rows);
                let remote_offset = place.start as u64 + row * length;
                let local_offset = self.offsets.len() as u64 * length;
                self.offsets.push(remote_offset);
                if self.plan.push(Piece { remote_offset, length, local_region: 0, local_offset }, &limits)
                    < length
                {
                    return Err(Failure::Machine("the device's queue is too short for the list".to_owned()));
                }
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<u64, Failure> {
        let before = Clock.now();
        // SAFETY: the buffer is looked at behind the last READ's completion only, and lives as long as the queue pair.
        let posted = unsafe {
            self.near.queue_pair.post_reads(&self.plan, &[self.near.buffer.region()], &self.remote)
        };
        self.near.wait_for(posted.map_err(refused)?)?;
        Ok(Clock.now().since(before).as_nanos() as u64)
    }
}

impl Workload for ReadList {
    fn name(&self) -> String {
        format!("bare list of READs, {} tokens", self.tokens)
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.draw()?;
        self.read()?;
        let mut row = vec![0; self.row_bytes];
        for (index, offset) in self.offsets.iter().enumerate() {
            self.near.buffer.read(index * self.row_bytes, &mut row);
            if !row.iter().enumerate().all(|(at, byte)| *byte == content_at(*offset as usize + at)) {
                return Err(Failure::Machine(format!("a READ brought wrong bytes for offset {offset}")));
            }
        }
        Ok((self.offsets.len() * self.row_bytes) as u64)
    }

    fn round(&mut self) -> Result<u64, Failure> {
        self.draw()?;
        self.read()
    }
}

fn content_at(offset: usize) -> u8 {
    (offset as u8).wrapping_mul(31).wrapping_add((offset >> 8) as u8)
}
