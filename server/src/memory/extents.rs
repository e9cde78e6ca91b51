//! Where extents lie in a segment: a two-level segregated-fit allocator whose book-keeping costs a live object nothing.
//!
//! Called by the shard. Source: Masmano, Ripoll, Crespo and Real, "TLSF: a new dynamic memory allocator for real-time
//! systems", ECRTS 2004: free runs hang in bins by size, two levels of bitmaps find the first bin that surely fits, and
//! a freed extent is merged with its free neighbours at once. So both calls take constant time.
//!
//! Everything counts in units of 64 bytes, so that a `u32` reaches 256 GiB.
//!
//! ```text
//! free run:  0       8       12          16       20 …                    size-8    size-4     size
//!            │ magic │ units │ next      │ previous │ (left as it was)    │ units   │ magic    │
//!            └───────┴───────┴─ in bin ──┴─ in bin ─┴─────────────────────┴─────────┴──────────┘
//! extent:    whatever the shard writes there: a header, the key, the value
//! ```
//!
//! The two tags of a free run lie in the run itself. Whether a unit *is* a tag is never read from the segment, where a
//! user's value could look like one: `free_ends` holds one bit for each unit, set for the first and the last unit
//! of each free run and for no other. The unit before an extent is free exactly if its bit is set, and then the tag in
//! it was written here. That costs 1/512 of the memory, in pages that the system gives when they are first touched. A
//! "previous is free" flag in the extent's header, the usual way, would change a header that clients read one-sided and
//! that its checksum covers.
//!
//! What always holds: extents and free runs cover all units, none overlaps another, and no two free runs are neighbours.
//! Absent on purpose: moving extents, and any knowledge of what is in them.

use super::segment::{Segment, SegmentError};

/// Bytes of one unit: the alignment of extents.
pub const UNIT_BYTES: u64 = 64;

const _: () = assert!(UNIT_BYTES == lanner_shared::extent::EXTENT_ALIGN);

/// 2^5 bins for each power of two, so a bin spans 1/32 of its size: the most that rounding up to a bin can pass over.
const SUB_BINS_LOG2: u32 = 5;
const SUB_BINS: usize = 1 << SUB_BINS_LOG2;
/// Sizes below 32 units have a bin each (the first row); each further power of two up to 2^31 has a row.
const BIN_ROWS: usize = 32 - SUB_BINS_LOG2 as usize + 1;

/// Where no larger bin has a run, this many runs of the extent's own bin are tried, whose sizes may or may not do.
const OWN_BIN_TRIES: usize = 16;

/// From this size on (64 KiB) extents are cut from the back of a free run, smaller ones from its front. Neighbours are
/// then of a kind, and a large run isn't crumbled by a small extent left in its middle. In the bench `extents` a full
/// store that frees at random stays 78 % full with this rule, 67 % without it (and with `offset-allocator` 35 %).
/// Reserved regions for each kind of size brought nothing on top of it.
const LARGE_UNITS: u32 = 1024;

/// "No run" in a link.
const NONE: u32 = u32::MAX;

/// First eight bytes of a free run ("LNRFREE" and the layout's number).
const FREE_HEAD_MAGIC: u64 = u64::from_le_bytes(*b"LNRFREE\x01");
/// Last four bytes of a free run.
const FREE_TAIL_MAGIC: u32 = u32::from_le_bytes(*b"LNRf");

/// Where something lies in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// First unit.
    pub start: u32,
    /// Length in units, at least 1.
    pub units: u32,
}

impl Extent {
    /// Offset of the first byte in the segment.
    pub fn byte_offset(self) -> u64 {
        u64::from(self.start) * UNIT_BYTES
    }

    /// Length in bytes.
    pub fn byte_len(self) -> u64 {
        u64::from(self.units) * UNIT_BYTES
    }

    /// First unit behind.
    fn end(self) -> u32 {
        self.start + self.units
    }
}

/// One step of a walk: what lies at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// An extent that was allocated and not freed.
    Live(Extent),
    /// A free run.
    Free(Extent),
}

/// A fault in the segment or in the caller. The extent that it was about is then neither handed out nor reused.
#[derive(Debug, thiserror::Error)]
pub enum ExtentError {
    /// A tag of a free run isn't what was written there: someone wrote to memory that isn't theirs.
    #[error("the free run at unit {unit} was overwritten: stop the server and report this as a fault")]
    DamagedFreeRun {
        /// Where the tag was expected.
        unit: u32,
    },
    /// The extent to free is free, wholly or in part, or lies outside.
    #[error("the extent at unit {start} of {units} units is not allocated: it was freed twice or never made")]
    NotLive {
        /// First unit.
        start: u32,
        /// Length in units.
        units: u32,
    },
    /// A walk came to an extent whose length its caller couldn't tell.
    #[error("the extent at unit {unit} doesn't say how long it is")]
    UnknownLength {
        /// First unit.
        unit: u32,
    },
    /// An access outside the segment.
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

/// How free space is cut up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpace {
    /// All free units.
    pub free_units: u64,
    /// Units of the largest free run, exact to 1/32: the lower bound of the highest bin that has a run.
    pub largest_run_units: u64,
    /// Number of free runs.
    pub free_runs: u64,
}

impl FreeSpace {
    /// The share of free space that the largest run doesn't hold: 0 in one piece, near 1 in crumbs.
    pub fn fragmentation(&self) -> f64 {
        if self.free_units == 0 { 0.0 } else { 1.0 - self.largest_run_units as f64 / self.free_units as f64 }
    }
}

/// The tag at a free run's front, as read.
#[derive(Debug, Clone, Copy)]
struct FreeHead {
    units: u32,
    next: u32,
    previous: u32,
}

/// Row and column of a bin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bin {
    row: usize,
    column: usize,
}

impl Bin {
    /// The bin that a free run of this size hangs in.
    fn of(units: u32) -> Self {
        if units < SUB_BINS as u32 {
            return Self { row: 0, column: units as usize };
        }
        let log2 = units.ilog2();
        let column = (units >> (log2 - SUB_BINS_LOG2)) as usize & (SUB_BINS - 1);
        Self { row: (log2 - SUB_BINS_LOG2 + 1) as usize, column }
    }

    /// The first bin all of whose runs are at least this long, or `None` if sizes end before.
    fn that_surely_fits(units: u32) -> Option<Self> {
        if units < SUB_BINS as u32 {
            return Some(Self::of(units));
        }
        let span_of_bin = 1 << (units.ilog2() - SUB_BINS_LOG2);
        units.checked_add(span_of_bin - 1).map(Self::of)
    }

    /// The shortest run that hangs in this bin.
    fn shortest(self) -> u64 {
        match self.row {
            0 => self.column as u64,
            row => ((SUB_BINS + self.column) as u64) << (row - 1),
        }
    }
}

/// Which parts of a range of units are free. Owns no bytes of the segment; each call is given it.
#[derive(Debug)]
pub struct ExtentAllocator {
    /// All units managed here.
    range: Extent,
    /// One bit for each unit of the range: it is the first or the last of a free run.
    free_ends: Vec<u64>,
    /// Bit r: row r has a run.
    rows_in_use: u32,
    /// Bit c of word r: the bin in row r, column c has a run.
    columns_in_use: [u32; BIN_ROWS],
    /// First run of each bin, or `NONE`.
    bins: [[u32; SUB_BINS]; BIN_ROWS],
    free_units: u64,
    free_runs: u64,
}

impl ExtentAllocator {
    /// Takes over `range` of the segment, all of it free. What is in front of the range (the segment's own page) stays
    /// untouched for ever.
    ///
    /// # Errors
    /// [`ExtentError::Segment`] if the range doesn't lie within the segment.
    pub fn new(segment: &mut Segment, range: Extent) -> Result<Self, ExtentError> {
        segment.slice(range.byte_offset(), range.byte_len())?;
        let mut allocator = Self {
            range,
            free_ends: vec![0; (range.units as usize).div_ceil(64)],
            rows_in_use: 0,
            columns_in_use: [0; BIN_ROWS],
            bins: [[NONE; SUB_BINS]; BIN_ROWS],
            free_units: 0,
            free_runs: 0,
        };
        if range.units > 0 {
            allocator.add_free_run(segment, range)?;
        }
        Ok(allocator)
    }

    /// Finds room for `units` (at least 1), or `None` if no free run is long enough that constant time finds. The bytes
    /// are those that were there before. The caller writes a header at once, so that a walk can pass.
    ///
    /// # Errors
    /// [`ExtentError::DamagedFreeRun`].
    pub fn allocate(&mut self, segment: &mut Segment, units: u32) -> Result<Option<Extent>, ExtentError> {
        let Some((run, head)) = self.find(segment, units.max(1))? else { return Ok(None) };
        let units = units.max(1);
        self.remove_free_run(segment, run, head)?;
        let rest = run.units - units;
        let (extent, rest) = if units >= LARGE_UNITS {
            (Extent { start: run.start + rest, units }, Extent { start: run.start, units: rest })
        } else {
            (Extent { start: run.start, units }, Extent { start: run.start + units, units: rest })
        };
        if rest.units > 0 {
            self.add_free_run(segment, rest)?;
        }
        Ok(Some(extent))
    }

    /// Gives an extent back and merges it with the free runs beside it.
    ///
    /// # Errors
    /// [`ExtentError::NotLive`] for what can be told to be no extent, [`ExtentError::DamagedFreeRun`].
    pub fn free(&mut self, segment: &mut Segment, extent: Extent) -> Result<(), ExtentError> {
        self.refuse_unless_live(extent)?;
        let mut merged = extent;
        let before = self.free_run_ending_at(segment, extent.start)?;
        let after = self.free_run_starting_at(segment, extent.end())?;
        if let Some((run, head)) = before {
            self.remove_free_run(segment, run, head)?;
            merged = Extent { start: run.start, units: run.units + merged.units };
        }
        if let Some((run, _)) = after {
            // Read again: the links in the tag may have changed when `before` was taken out of the same bin.
            let head = self.free_head(segment, run.start)?;
            self.remove_free_run(segment, run, head)?;
            merged.units += run.units;
        }
        self.add_free_run(segment, merged)
    }

    /// What lies at `unit`, which must be where an extent or a free run starts: the start of the range, or the end of
    /// what an earlier step returned. `None` at the end of the range. `live_units` says how long the extent at a unit
    /// is, from the header that the shard wrote there.
    ///
    /// # Errors
    /// [`ExtentError::UnknownLength`], [`ExtentError::DamagedFreeRun`].
    pub fn run_at(
        &self,
        segment: &Segment,
        unit: u32,
        live_units: impl FnOnce(&Segment, u32) -> Option<u32>,
    ) -> Result<Option<Run>, ExtentError> {
        if unit >= self.range.end() {
            return Ok(None);
        }
        if let Some((run, _)) = self.free_run_starting_at(segment, unit)? {
            return Ok(Some(Run::Free(run)));
        }
        match live_units(segment, unit) {
            Some(units) if units > 0 && units <= self.range.end() - unit => {
                Ok(Some(Run::Live(Extent { start: unit, units })))
            }
            _ => Err(ExtentError::UnknownLength { unit }),
        }
    }

    /// Calls `visit` for each extent and free run from the start of the range to its end.
    ///
    /// # Errors
    /// As [`ExtentAllocator::run_at`]; the walk ends there.
    pub fn walk(
        &self,
        segment: &Segment,
        mut live_units: impl FnMut(&Segment, u32) -> Option<u32>,
        mut visit: impl FnMut(Run),
    ) -> Result<(), ExtentError> {
        let mut unit = self.range.start;
        while let Some(run) = self.run_at(segment, unit, &mut live_units)? {
            let (Run::Live(extent) | Run::Free(extent)) = run;
            visit(run);
            unit = extent.end();
        }
        Ok(())
    }

    /// The free run that ends just before `unit`, if the unit before it is free.
    ///
    /// # Errors
    /// [`ExtentError::DamagedFreeRun`].
    pub fn free_run_before(&self, segment: &Segment, unit: u32) -> Result<Option<Extent>, ExtentError> {
        Ok(self.free_run_ending_at(segment, unit)?.map(|(run, _)| run))
    }

    /// All units that this allocator manages.
    pub fn range(&self) -> Extent {
        self.range
    }

    /// Free units; exact.
    pub fn free_units(&self) -> u64 {
        self.free_units
    }

    /// How the free space is cut up, in constant time.
    pub fn free_space(&self) -> FreeSpace {
        let largest = match self.rows_in_use {
            0 => 0,
            rows => {
                let row = rows.ilog2() as usize;
                let column = self.columns_in_use.get(row).map_or(0, |columns| columns.ilog2() as usize);
                Bin { row, column }.shortest()
            }
        };
        FreeSpace { free_units: self.free_units, largest_run_units: largest, free_runs: self.free_runs }
    }

    /// Bytes of book-keeping outside the segment, at most: 1/512 of the range and a fixed 4 KiB.
    pub fn bookkeeping_bytes(&self) -> u64 {
        (self.free_ends.len() * size_of::<u64>() + size_of::<Self>()) as u64
    }

    /// A free run of at least `units`: the first one of the first bin that surely fits, else one of the few tried in
    /// the bin below.
    fn find(&self, segment: &Segment, units: u32) -> Result<Option<(Extent, FreeHead)>, ExtentError> {
        if let Some(bin) = Bin::that_surely_fits(units).and_then(|bin| self.first_bin_in_use_from(bin)) {
            let start = self.first_of(bin);
            let head = self.free_head(segment, start)?;
            return Ok(Some((Extent { start, units: head.units }, head)));
        }
        let mut start = self.first_of(Bin::of(units));
        for _ in 0..OWN_BIN_TRIES {
            if start == NONE {
                break;
            }
            let head = self.free_head(segment, start)?;
            if head.units >= units {
                return Ok(Some((Extent { start, units: head.units }, head)));
            }
            start = head.next;
        }
        Ok(None)
    }

    fn first_bin_in_use_from(&self, bin: Bin) -> Option<Bin> {
        let columns = self.columns_in_use.get(bin.row)? & (u32::MAX << bin.column);
        if columns != 0 {
            return Some(Bin { row: bin.row, column: columns.trailing_zeros() as usize });
        }
        let rows = self.rows_in_use & u32::MAX.checked_shl(bin.row as u32 + 1).unwrap_or(0);
        let row = rows.trailing_zeros() as usize;
        let columns = self.columns_in_use.get(row)?;
        Some(Bin { row, column: columns.trailing_zeros() as usize })
    }

    fn first_of(&self, bin: Bin) -> u32 {
        self.bins.get(bin.row).and_then(|row| row.get(bin.column)).copied().unwrap_or(NONE)
    }

    fn set_first_of(&mut self, bin: Bin, start: u32) {
        let Some(first) = self.bins.get_mut(bin.row).and_then(|row| row.get_mut(bin.column)) else { return };
        *first = start;
        let Some(columns) = self.columns_in_use.get_mut(bin.row) else { return };
        if start == NONE {
            *columns &= !(1 << bin.column);
        } else {
            *columns |= 1 << bin.column;
        }
        if *columns == 0 {
            self.rows_in_use &= !(1 << bin.row);
        } else {
            self.rows_in_use |= 1 << bin.row;
        }
    }

    /// Writes the tags of a free run, marks its ends, and hangs it in front of its bin.
    fn add_free_run(&mut self, segment: &mut Segment, run: Extent) -> Result<(), ExtentError> {
        let bin = Bin::of(run.units);
        let next = self.first_of(bin);
        write_free_head(segment, run.start, FreeHead { units: run.units, next, previous: NONE })?;
        let mut tail = [0; 8];
        tail[..4].copy_from_slice(&run.units.to_le_bytes());
        tail[4..].copy_from_slice(&FREE_TAIL_MAGIC.to_le_bytes());
        segment.write(run.byte_offset() + run.byte_len() - 8, &tail)?;
        if next != NONE {
            write_link(segment, next, Link::Previous, run.start)?;
        }
        self.set_first_of(bin, run.start);
        self.set_free_end(run.start, true);
        self.set_free_end(run.end() - 1, true);
        self.free_units += u64::from(run.units);
        self.free_runs += 1;
        Ok(())
    }

    /// Takes a free run out of its bin and unmarks its ends.
    fn remove_free_run(
        &mut self,
        segment: &mut Segment,
        run: Extent,
        head: FreeHead,
    ) -> Result<(), ExtentError> {
        if head.previous == NONE {
            self.set_first_of(Bin::of(run.units), head.next);
        } else {
            write_link(segment, head.previous, Link::Next, head.next)?;
        }
        if head.next != NONE {
            write_link(segment, head.next, Link::Previous, head.previous)?;
        }
        self.set_free_end(run.start, false);
        self.set_free_end(run.end() - 1, false);
        self.free_units -= u64::from(run.units);
        self.free_runs -= 1;
        Ok(())
    }

    /// The free run that starts at `unit`, where that is the first unit of one.
    fn free_run_starting_at(
        &self,
        segment: &Segment,
        unit: u32,
    ) -> Result<Option<(Extent, FreeHead)>, ExtentError> {
        if !self.is_free_end(unit) {
            return Ok(None);
        }
        let head = self.free_head(segment, unit)?;
        Ok(Some((Extent { start: unit, units: head.units }, head)))
    }

    /// The free run whose last unit is the one before `unit`.
    fn free_run_ending_at(
        &self,
        segment: &Segment,
        unit: u32,
    ) -> Result<Option<(Extent, FreeHead)>, ExtentError> {
        let Some(last) = unit.checked_sub(1).filter(|last| self.is_free_end(*last)) else { return Ok(None) };
        let damaged = ExtentError::DamagedFreeRun { unit: last };
        let [u0, u1, u2, u3, magic @ ..] = segment.read_array::<8>(u64::from(unit) * UNIT_BYTES - 8)?;
        let units = u32::from_le_bytes([u0, u1, u2, u3]);
        let start = unit.checked_sub(units).filter(|start| *start >= self.range.start);
        let (Some(start), FREE_TAIL_MAGIC) = (start, u32::from_le_bytes(magic)) else { return Err(damaged) };
        let head = self.free_head(segment, start)?;
        if head.units != units {
            return Err(damaged);
        }
        Ok(Some((Extent { start, units }, head)))
    }

    /// Reads the tag at a free run's front, and refuses what can't be one.
    fn free_head(&self, segment: &Segment, unit: u32) -> Result<FreeHead, ExtentError> {
        let bytes = segment.read_array::<20>(u64::from(unit) * UNIT_BYTES)?;
        let [m0, m1, m2, m3, m4, m5, m6, m7, rest @ ..] = bytes;
        let [u0, u1, u2, u3, n0, n1, n2, n3, p0, p1, p2, p3] = rest;
        let units = u32::from_le_bytes([u0, u1, u2, u3]);
        let next = u32::from_le_bytes([n0, n1, n2, n3]);
        let previous = u32::from_le_bytes([p0, p1, p2, p3]);
        // A link that led anywhere but to a free run would have us write into someone's value.
        let links_to_free_runs = [next, previous].iter().all(|link| *link == NONE || self.is_free_end(*link));
        let whole = u64::from_le_bytes([m0, m1, m2, m3, m4, m5, m6, m7]) == FREE_HEAD_MAGIC
            && links_to_free_runs
            && units > 0
            && unit.checked_add(units).is_some_and(|end| end <= self.range.end())
            && self.is_free_end(unit)
            && self.is_free_end(unit + units - 1);
        if !whole {
            return Err(ExtentError::DamagedFreeRun { unit });
        }
        Ok(FreeHead { units, next, previous })
    }

    /// Refuses what can't be an extent: outside the range, or with an end of a free run at either end of it.
    fn refuse_unless_live(&self, extent: Extent) -> Result<(), ExtentError> {
        let end = extent.start.checked_add(extent.units);
        let inside = extent.start >= self.range.start && end.is_some_and(|end| end <= self.range.end());
        let live = extent.units > 0
            && inside
            && !self.is_free_end(extent.start)
            && !self.is_free_end(extent.end() - 1);
        if live { Ok(()) } else { Err(ExtentError::NotLive { start: extent.start, units: extent.units }) }
    }

    fn is_free_end(&self, unit: u32) -> bool {
        let Some(bit) = unit.checked_sub(self.range.start) else { return false };
        self.free_ends.get(bit as usize / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    fn set_free_end(&mut self, unit: u32, set: bool) {
        let bit = unit - self.range.start;
        let Some(word) = self.free_ends.get_mut(bit as usize / 64) else { return };
        if set {
            *word |= 1 << (bit % 64);
        } else {
            *word &= !(1 << (bit % 64));
        }
    }
}

/// Byte offset of each link in a free run's front tag.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
enum Link {
    Next = 12,
    Previous = 16,
}

fn write_link(segment: &mut Segment, unit: u32, link: Link, target: u32) -> Result<(), SegmentError> {
    segment.write(u64::from(unit) * UNIT_BYTES + link as u64, &target.to_le_bytes())
}

fn write_free_head(segment: &mut Segment, unit: u32, head: FreeHead) -> Result<(), SegmentError> {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&FREE_HEAD_MAGIC.to_le_bytes());
    bytes[8..12].copy_from_slice(&head.units.to_le_bytes());
    bytes[12..16].copy_from_slice(&head.next.to_le_bytes());
    bytes[16..].copy_from_slice(&head.previous.to_le_bytes());
    segment.write(u64::from(unit) * UNIT_BYTES, &bytes)
}

#[cfg(test)]
mod tests;
