//! The limit of a one-sided read over shared memory: random rows copied out of tables into one buffer by a loop that knows where
//! everything lies. No lease, no bounds of a caller, no descriptor: what a store adds is what it costs.

use std::rc::Rc;

use fastrand::Rng;
use lanner_shared::time::Clock;

use super::segment::{Segment, is_copy_of};
use super::tables::TablePlace;
use crate::bench::workload::Workload;
use crate::exit::Failure;

/// Rows that are fetched ahead of the one being copied. Measured on tables of 4 GB: 4 to 16 are alike, less is slower.
const ROWS_AHEAD: usize = 6;

/// Bytes that a core fetches at a time.
const CACHE_LINE: usize = 64;

/// One row of each table for each of `tokens`, row numbers drawn anew for each round.
pub struct Gather<const ROW: usize> {
    segment: Rc<Segment>,
    tables: Vec<TablePlace>,
    tokens: u64,
    random: Rng,
    /// Offsets of the rows of this round, in the order of the destination.
    offsets: Vec<usize>,
    destination: Vec<u8>,
}

impl<const ROW: usize> Gather<ROW> {
    /// A gather from `tables` of rows of `ROW` bytes in `segment`.
    ///
    /// # Panics
    /// If the tables don't lie within the segment.
    #[must_use]
    pub fn new(segment: Rc<Segment>, tables: Vec<TablePlace>, tokens: u64, seed: u64) -> Gather<ROW> {
        assert!(
            super::tables::bytes_of(&tables, ROW) <= segment.bytes().len() as u64,
            "tables beyond the segment"
        );
        let rows = tables.len() * tokens as usize;
        Gather {
            segment,
            tables,
            tokens,
            random: Rng::with_seed(seed),
            offsets: vec![0; rows],
            destination: vec![0; rows * ROW],
        }
    }

    fn draw(&mut self) {
        let tables = self.tables.iter().cycle();
        for (offset, table) in self.offsets.iter_mut().zip(tables) {
            *offset = table.start + self.random.u64(0..table.rows) as usize * ROW;
        }
    }
}

impl<const ROW: usize> Workload for Gather<ROW> {
    fn name(&self) -> String {
        format!("gather, {} pages, {} tokens", self.segment.pages().label(), self.tokens)
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.draw();
        gather_rows::<ROW>(self.segment.bytes(), &self.offsets, &mut self.destination);
        let rows = self.destination.chunks_exact(ROW).zip(&self.offsets);
        for (row, offset) in rows {
            if !is_copy_of(row, *offset) {
                return Err(Failure::Machine(format!("the gather copied wrong bytes for offset {offset}")));
            }
        }
        Ok(self.destination.len() as u64)
    }

    fn round(&mut self) -> Result<u64, Failure> {
        self.draw();
        let before = Clock.now();
        gather_rows::<ROW>(self.segment.bytes(), &self.offsets, &mut self.destination);
        let nanos = Clock.now().since(before).as_nanos() as u64;
        std::hint::black_box(&self.destination);
        Ok(nanos)
    }
}

/// Copies the row of `ROW` bytes at each offset of `source`, one behind the other, into `destination`.
///
/// # Panics
/// If an offset lies beyond the source or the destination holds fewer rows than there are offsets.
fn gather_rows<const ROW: usize>(source: &[u8], offsets: &[usize], destination: &mut [u8]) {
    let (rows, _) = destination.as_chunks_mut::<ROW>();
    assert!(rows.len() >= offsets.len(), "{} rows for {} offsets", rows.len(), offsets.len());
    for offset in offsets.iter().take(ROWS_AHEAD) {
        fetch_row::<ROW>(source, *offset);
    }
    for (index, (row, offset)) in rows.iter_mut().zip(offsets).enumerate() {
        if let Some(ahead) = offsets.get(index + ROWS_AHEAD) {
            fetch_row::<ROW>(source, *ahead);
        }
        let from: &[u8; ROW] = source[*offset..].first_chunk().expect("offsets lie within the source");
        copy_row(from, row);
    }
}

/// Copies in pieces of a vector register's size. With a constant length this becomes a straight line of loads and stores, which beats
/// the C library's `memcpy` by a tenth on rows of 264 bytes: no call, no choice by length.
#[inline(always)]
fn copy_row<const ROW: usize>(from: &[u8; ROW], to: &mut [u8; ROW]) {
    let (from_pieces, from_rest) = from.as_chunks::<16>();
    let (to_pieces, to_rest) = to.as_chunks_mut::<16>();
    for (to, from) in to_pieces.iter_mut().zip(from_pieces) {
        *to = *from;
    }
    to_rest.copy_from_slice(from_rest);
}

/// Asks for the cache lines of a row without waiting for them.
#[inline(always)]
fn fetch_row<const ROW: usize>(source: &[u8], offset: usize) {
    for line in 0..ROW.div_ceil(CACHE_LINE) {
        if let Some(byte) = source.get(offset + line * CACHE_LINE) {
            prefetch(byte);
        }
    }
}

#[inline(always)]
fn prefetch(byte: &u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see, and SSE is part of every x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            std::ptr::from_ref(byte).cast(),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch changes neither memory nor registers nor flags.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) byte, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = byte;
}

#[cfg(test)]
mod tests {
    use super::super::segment::Pages;
    use super::super::tables::{NGRAM_ROW_BYTES, ngram_tables};
    use super::*;

    /// Shows that every row of every table can be gathered and is right: all rows of the preset in one call.
    #[test]
    fn every_row_is_gathered_right() {
        let tables = ngram_tables(1);
        let segment = Segment::new(super::super::tables::bytes_of(&tables, NGRAM_ROW_BYTES), Pages::Small)
            .expect("memory");
        let rows = |table: &TablePlace| {
            (0..table.rows as usize).map(|row| row * NGRAM_ROW_BYTES).collect::<Vec<_>>()
        };
        let offsets: Vec<usize> =
            tables.iter().flat_map(|table| rows(table).into_iter().map(|at| table.start + at)).collect();
        let mut destination = vec![0; offsets.len() * NGRAM_ROW_BYTES];
        gather_rows::<NGRAM_ROW_BYTES>(segment.bytes(), &offsets, &mut destination);
        for (row, offset) in destination.chunks_exact(NGRAM_ROW_BYTES).zip(&offsets) {
            assert!(is_copy_of(row, *offset), "row at {offset}");
        }
    }

    /// Shows that a round draws other rows than the one before, all within their tables, the same for the same seed.
    #[test]
    fn rounds_draw_rows_from_the_seed() {
        let tables = ngram_tables(1);
        let segment = Rc::new(Segment::new(2 << 20, Pages::Small).expect("memory"));
        let draw = |seed| {
            let mut gather = Gather::<NGRAM_ROW_BYTES>::new(segment.clone(), tables.clone(), 2, seed);
            assert_eq!(gather.prepare().expect("right bytes"), 2 * 12_672);
            let first = gather.offsets.clone();
            gather.round().expect("right bytes");
            assert_ne!(first, gather.offsets);
            for (offset, table) in gather.offsets.iter().zip(tables.iter().cycle()) {
                let end = table.start + table.rows as usize * NGRAM_ROW_BYTES;
                assert!((table.start..end).contains(offset) && (offset - table.start) % NGRAM_ROW_BYTES == 0);
            }
            gather.offsets
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
