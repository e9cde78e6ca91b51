//! The limits of reading and of storing one large value over shared memory: the C library's `memcpy` from memory that no cache holds into a buffer
//! that the caller uses again and again, and the other way round.

use std::rc::Rc;

use fastrand::Rng;
use lanner_shared::time::Clock;

use super::places;
use super::segment::{Segment, is_copy_of};
use crate::bench::workload::Workload;
use crate::exit::Failure;

/// A copy of `bytes` from a random place for each round.
pub struct ColdCopy {
    segment: Rc<Segment>,
    random: Rng,
    offset: usize,
    destination: Vec<u8>,
}

impl ColdCopy {
    /// Copies of `bytes` out of `segment`, which has to be many times larger than the caches to be cold.
    ///
    /// # Panics
    /// If the segment is smaller than a copy.
    #[must_use]
    pub fn new(segment: Rc<Segment>, bytes: usize, seed: u64) -> ColdCopy {
        assert!(bytes <= segment.bytes().len(), "a copy of {bytes} bytes from a smaller segment");
        ColdCopy { segment, random: Rng::with_seed(seed), offset: 0, destination: vec![0; bytes] }
    }

    fn draw(&mut self) {
        self.offset = places::any(&mut self.random, self.destination.len(), self.segment.bytes().len());
    }

    fn copy(&mut self) {
        let source = &self.segment.bytes()[self.offset..self.offset + self.destination.len()];
        self.destination.copy_from_slice(source);
    }
}

impl Workload for ColdCopy {
    fn name(&self) -> String {
        format!("copy, {} pages, {} bytes", self.segment.pages().label(), self.destination.len())
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.draw();
        self.copy();
        if !is_copy_of(&self.destination, self.offset) {
            return Err(Failure::Machine(format!("memcpy copied wrong bytes for offset {}", self.offset)));
        }
        Ok(self.destination.len() as u64)
    }

    fn round(&mut self) -> Result<u64, Failure> {
        self.draw();
        let before = Clock.now();
        self.copy();
        let nanos = Clock.now().since(before).as_nanos() as u64;
        std::hint::black_box(&self.destination);
        Ok(nanos)
    }
}

/// A copy of `bytes` to one place after the other for each round, as a store uses its memory.
pub struct ColdWrite {
    segment: Segment,
    offset: usize,
    source: Vec<u8>,
}

impl ColdWrite {
    /// Copies of `bytes` into `segment`, which has to be many times larger than the caches to be cold.
    ///
    /// # Panics
    /// If the segment is smaller than a copy.
    #[must_use]
    pub fn new(segment: Segment, bytes: usize) -> ColdWrite {
        assert!(bytes <= segment.bytes().len(), "a copy of {bytes} bytes into a smaller segment");
        ColdWrite { segment, offset: 0, source: (0..bytes).map(|at| (at % 251) as u8).collect() }
    }

    fn copy(&mut self) {
        self.segment.bytes_mut()[self.offset..][..self.source.len()].copy_from_slice(&self.source);
    }

    fn advance(&mut self) {
        self.offset = places::behind(self.offset, self.source.len(), self.segment.bytes().len());
    }
}

impl Workload for ColdWrite {
    fn name(&self) -> String {
        format!("copy to {} pages, {} bytes", self.segment.pages().label(), self.source.len())
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.copy();
        if self.segment.bytes()[self.offset..][..self.source.len()] != self.source {
            return Err(Failure::Machine(format!("memcpy copied wrong bytes to offset {}", self.offset)));
        }
        Ok(self.source.len() as u64)
    }

    fn round(&mut self) -> Result<u64, Failure> {
        self.advance();
        let before = Clock.now();
        self.copy();
        let nanos = Clock.now().since(before).as_nanos() as u64;
        std::hint::black_box(self.segment.bytes());
        Ok(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment::Pages;
    use super::*;

    /// Shows that copies of any size up to the whole segment are right and stay within it.
    #[test]
    fn copies_stay_within_the_segment() {
        let segment = Rc::new(Segment::new(2 << 20, Pages::Small).expect("memory"));
        for bytes in [1, 64, 4096, (2 << 20) - 1, 2 << 20] {
            let mut copy = ColdCopy::new(segment.clone(), bytes, 3);
            assert_eq!(copy.prepare().expect("right bytes"), bytes as u64);
            for _ in 0..20 {
                copy.round().expect("right bytes");
                assert!(is_copy_of(&copy.destination, copy.offset));
            }
        }
    }

    /// Shows that copies into a segment of which they are any part are right and stay within it.
    #[test]
    fn writes_stay_within_the_segment() {
        for bytes in [1, 64, 4097, (2 << 20) - 1, 2 << 20] {
            let mut write = ColdWrite::new(Segment::new(2 << 20, Pages::Small).expect("memory"), bytes);
            for _ in 0..600 {
                assert_eq!(write.prepare().expect("right bytes"), bytes as u64);
                write.round().expect("right bytes");
            }
        }
    }
}
