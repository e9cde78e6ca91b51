//! Tests of [`super::ExtentAllocator`], against a plain map of runs. In a file of their own because of their length.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const RANGE: Extent = Extent { start: 3, units: 4096 };

fn new_allocator() -> (Segment, ExtentAllocator) {
    let mut segment = Segment::heap(u64::from(RANGE.end()) * UNIT_BYTES).unwrap();
    let allocator = ExtentAllocator::new(&mut segment, RANGE).unwrap();
    (segment, allocator)
}

/// Writes what a hostile user would: every byte of the extent looks like a tag of a free run.
fn fill_with_false_tags(segment: &mut Segment, extent: Extent) {
    for unit in extent.start..extent.end() {
        write_free_head(segment, unit, FreeHead { units: 7, next: 3, previous: 4 }).unwrap();
        let mut tail = [0; 8];
        tail[..4].copy_from_slice(&2u32.to_le_bytes());
        tail[4..].copy_from_slice(&FREE_TAIL_MAGIC.to_le_bytes());
        segment.write(u64::from(unit + 1) * UNIT_BYTES - 8, &tail).unwrap();
    }
}

/// Compares the allocator with the model: what a walk finds, the sums, the bins, and that no two free runs touch.
fn check(segment: &Segment, allocator: &ExtentAllocator, live: &BTreeMap<u32, u32>) {
    let (mut seen_live, mut seen_free) = (BTreeMap::new(), Vec::new());
    let visit = |run| match run {
        Run::Live(extent) => {
            seen_live.insert(extent.start, extent.units);
        }
        Run::Free(extent) => seen_free.push(extent),
    };
    allocator.walk(segment, |_, unit| live.get(&unit).copied(), visit).unwrap();
    assert_eq!(&seen_live, live);
    assert!(seen_free.windows(2).all(|pair| pair[0].end() < pair[1].start), "free neighbours: {seen_free:?}");
    let free: u64 = seen_free.iter().map(|run| u64::from(run.units)).sum();
    let used: u64 = live.values().map(|units| u64::from(*units)).sum();
    assert_eq!(free + used, u64::from(RANGE.units));
    let space = allocator.free_space();
    assert_eq!((space.free_units, space.free_runs), (free, seen_free.len() as u64));
    let largest = u64::from(seen_free.iter().map(|run| run.units).max().unwrap_or(0));
    assert!(space.largest_run_units <= largest && space.largest_run_units * 33 / 32 + 1 >= largest);
    let ends: u32 = allocator.free_ends.iter().map(|word| word.count_ones()).sum();
    assert_eq!(ends as usize, seen_free.iter().map(|run| if run.units == 1 { 1 } else { 2 }).sum::<usize>());
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(u32),
    Free(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![4 => 1u32..8, 2 => 8u32..100, 1 => 100u32..2000, 1 => Just(1024u32)];
    let step = prop_oneof![3 => size.prop_map(Step::Allocate), 2 => any::<prop::sample::Index>().prop_map(Step::Free)];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Shows, against a map of what is live, that extents never overlap, that every unit is accounted for, that
    /// freed neighbours are merged, that a walk finds every run, and that values made of false tags change nothing.
    /// A request may be refused only if no free run is longer than it by more than a bin's span.
    #[test]
    fn agrees_with_a_map_of_extents(steps in steps()) {
        let (mut segment, mut allocator) = new_allocator();
        let mut live = BTreeMap::<u32, u32>::new();
        for step in steps {
            match step {
                Step::Allocate(units) => match allocator.allocate(&mut segment, units).unwrap() {
                    Some(extent) => {
                        prop_assert_eq!(extent.units, units);
                        let before = live.range(..extent.end()).next_back();
                        prop_assert!(before.is_none_or(|(start, units)| start + units <= extent.start));
                        live.insert(extent.start, units);
                        fill_with_false_tags(&mut segment, extent);
                    }
                    None => prop_assert!(
                        allocator.free_space().largest_run_units <= u64::from(units) * 33 / 32 + 1
                    ),
                },
                Step::Free(index) if !live.is_empty() => {
                    let start = *index.get(&live.keys().copied().collect::<Vec<_>>());
                    let units = live.remove(&start).unwrap();
                    allocator.free(&mut segment, Extent { start, units }).unwrap();
                }
                Step::Free(_) => {}
            }
            check(&segment, &allocator, &live);
        }
        for (start, units) in std::mem::take(&mut live) {
            allocator.free(&mut segment, Extent { start, units }).unwrap();
        }
        check(&segment, &allocator, &live);
        prop_assert_eq!(allocator.free_space().free_runs, 1);
    }

    /// Shows for any size that its bin holds it, and that the bin that surely fits has no shorter run.
    #[test]
    fn bins_are_in_order(units in 1u32..=u32::MAX) {
        let bin = Bin::of(units);
        prop_assert!(bin.row < BIN_ROWS && bin.shortest() <= u64::from(units));
        prop_assert!(u64::from(units) < bin.shortest() + bin.shortest() / 32 + 1);
        if let Some(fits) = Bin::that_surely_fits(units) {
            prop_assert!(fits.shortest() >= u64::from(units));
        }
    }
}

/// Shows that freeing twice, freeing a free run's middle's ends, and freeing beyond the range are refused and
/// change nothing.
#[test]
fn what_is_not_live_is_refused() {
    let (mut segment, mut allocator) = new_allocator();
    let extent = allocator.allocate(&mut segment, 10).unwrap().unwrap();
    allocator.free(&mut segment, extent).unwrap();
    let outside = Extent { start: 0, units: 2 };
    let beyond = Extent { start: RANGE.end() - 1, units: 2 };
    let empty = Extent { start: 5, units: 0 };
    for wrong in [extent, outside, beyond, empty, Extent { start: u32::MAX, units: u32::MAX }] {
        assert!(matches!(allocator.free(&mut segment, wrong), Err(ExtentError::NotLive { .. })), "{wrong:?}");
    }
    check(&segment, &allocator, &BTreeMap::new());
}

/// Plants a fault: a byte of a free run's tag, front or back, is overwritten. Shows that the next call that would
/// rely on it says so instead of handing out memory.
#[test]
fn an_overwritten_tag_is_noticed() {
    let (mut segment, mut allocator) = new_allocator();
    let first = allocator.allocate(&mut segment, 10).unwrap().unwrap();
    let second = allocator.allocate(&mut segment, 10).unwrap().unwrap();
    allocator.free(&mut segment, first).unwrap();
    segment.write(first.byte_offset() + first.byte_len() - 1, &[0xff]).unwrap();
    assert!(matches!(allocator.free(&mut segment, second), Err(ExtentError::DamagedFreeRun { .. })));
    segment.write(first.byte_offset(), &[0xff]).unwrap();
    assert!(matches!(allocator.allocate(&mut segment, 10), Err(ExtentError::DamagedFreeRun { .. })));
}

/// Shows that the whole range can be handed out as one extent and in single units, and then nothing more.
#[test]
fn the_whole_range_can_be_used() {
    let (mut segment, mut allocator) = new_allocator();
    let all = allocator.allocate(&mut segment, RANGE.units).unwrap().unwrap();
    assert_eq!(all, RANGE);
    assert_eq!(allocator.allocate(&mut segment, 1).unwrap(), None);
    assert_eq!(allocator.free_space(), FreeSpace::default());
    allocator.free(&mut segment, all).unwrap();
    for _ in 0..RANGE.units {
        allocator.allocate(&mut segment, 1).unwrap().unwrap();
    }
    assert_eq!(allocator.allocate(&mut segment, 1).unwrap(), None);
}
