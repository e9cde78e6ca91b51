//! What a shard sets for itself by what it sees: how far ahead of demand it evicts, and how long the leases are that it grants.
//!
//! Asked by `tick`, once a second, with what was counted since. Two rules, both of which act on harm that was measured and go back when
//! there has been none for a while:
//!
//! - **Watermarks** are doubled, up to fourfold, while more than one in twenty evictions is made by a put that waits for it. They cost
//!   room: four times the default keeps 8 % of the memory free at most. So a doubling that doesn't at least halve the part of the
//!   evictions that puts wait for (they may come faster than anything can be evicted ahead of them) is taken back. If a step back brings the
//!   harm back, or a doubling was in vain, the next try comes twice as late.
//! - **Leases** are halved, down to an eighth, while puts are refused and leases hold half of the memory or more: removed, overwritten and
//!   evicted objects then wait for less time. A lease that was granted stays as long as it was said to be (P1).
//!
//! What always holds: neither leaves its bounds, and each change is a [`TuningDecision`] that says why. Absent on purpose: admission. A put
//! that succeeded is readable (P6), so what isn't worth its place can't be turned away; the order of eviction has it leave
//! first (`crate::eviction::adaptive`).

use super::Watermarks;
use serde::Serialize;
use std::collections::VecDeque;

/// Watermarks are at most doubled so often.
const MOST_DOUBLINGS: u32 = 2;
/// Leases are at most halved so often.
const MOST_HALVINGS: u32 = 3;
/// Nor are leases made shorter than this, in milliseconds: a client has to have time to read.
const SHORTEST_LEASE_MS: u32 = 100;
/// Fewer evictions on demand in a look than this aren't worth a change.
const LEAST_ON_DEMAND: u64 = 16;
/// Looks without harm before a step back.
const CALM_LOOKS: u32 = 60;
/// The most that becomes of them where steps back brought the harm back.
const MOST_CALM_LOOKS: u32 = 3_600;
/// Looks after a doubling of the watermarks by which it has to have helped.
const TRIAL_LOOKS: u32 = 4;
/// Decisions kept.
const DECISIONS_KEPT: usize = 16;

/// Which of its settings a shard may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuned {
    /// When eviction ahead of demand begins and ends.
    pub watermarks: bool,
    /// The length of leases.
    pub leases: bool,
}

/// What a shard has counted since it started, and how much of it leases hold now.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    pub evicted_ahead: u64,
    pub evicted_on_demand: u64,
    pub puts_refused_full: u64,
    pub leased_units: u64,
    pub capacity_units: u64,
}

/// What was changed, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TuningDecision {
    /// When, in milliseconds since the shard started.
    pub at_ms: u64,
    /// In a sentence, with what was seen.
    pub text: String,
}

/// What is set now, and the last changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TuningState {
    /// Length of the leases that are granted, in milliseconds.
    pub lease_ms: u32,
    /// Below so many thousandths of the memory free, eviction ahead of demand begins.
    pub begin_below_per_mille: u16,
    /// At so many it ends.
    pub end_at_per_mille: u16,
    /// Decisions since the shard started.
    pub decisions_ever: u64,
    /// The last ones, the latest last.
    pub decisions: VecDeque<TuningDecision>,
}

/// A setting that is moved from its configured value in steps, and back.
#[derive(Debug, Clone, Copy)]
struct Steps {
    most: u32,
    taken: u32,
    /// Looks since the last step.
    looks: u32,
    /// Looks without harm since then or since the last harm.
    calm: u32,
    /// Looks without harm before a step back, and before a new try after one in vain.
    calm_needed: u32,
    last: Step,
    /// The harm that led to the last step on.
    harm_before: f64,
    /// Of all looks since then.
    harm_since: f64,
}

/// What a look led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    None,
    /// There is harm.
    On,
    /// There was none for long.
    Back,
    /// The step on didn't help.
    InVain,
}

impl Steps {
    fn new(most: u32) -> Steps {
        Steps {
            most,
            taken: 0,
            looks: 0,
            calm: 0,
            calm_needed: CALM_LOOKS,
            last: Step::None,
            harm_before: 0.0,
            harm_since: 0.0,
        }
    }

    /// A look that found so much harm, 0 for none. A step on that doesn't halve it within `trial_looks` is taken back; with 0 it's
    /// given all the time it needs.
    fn look(&mut self, harm: f64, trial_looks: u32) -> Step {
        self.looks += 1;
        self.harm_since += harm;
        self.calm = if harm > 0.0 { 0 } else { self.calm + 1 };
        let is_tried = self.last == Step::On && self.looks == trial_looks;
        if is_tried && self.harm_since > self.harm_before / 2.0 * f64::from(trial_looks) {
            self.try_later();
            return self.step(Step::InVain, self.taken - 1);
        }
        if self.taken > 0 && self.calm >= self.calm_needed {
            return self.step(Step::Back, self.taken - 1);
        }
        let waits = match self.last {
            Step::On => self.looks < trial_looks,
            Step::InVain => self.looks < self.calm_needed,
            Step::None | Step::Back => false,
        };
        if harm == 0.0 || waits || self.taken == self.most {
            return Step::None;
        }
        if self.last == Step::Back && self.looks <= CALM_LOOKS {
            self.try_later();
        }
        self.harm_before = harm;
        self.step(Step::On, self.taken + 1)
    }

    fn try_later(&mut self) {
        self.calm_needed = (2 * self.calm_needed).min(MOST_CALM_LOOKS);
    }

    fn step(&mut self, step: Step, taken: u32) -> Step {
        (self.taken, self.last, self.looks, self.calm, self.harm_since) = (taken, step, 0, 0, 0.0);
        step
    }
}

/// Decides for one shard.
#[derive(Debug)]
pub(super) struct Tuning {
    tuned: Tuned,
    watermarks: Watermarks,
    lease_ms: u32,
    doublings: Steps,
    halvings: Steps,
    last: Seen,
    decisions: VecDeque<TuningDecision>,
    decisions_ever: u64,
}

impl Tuning {
    /// From the configured values on.
    pub fn new(tuned: Tuned, watermarks: Watermarks, lease_ms: u32) -> Tuning {
        Tuning {
            tuned,
            watermarks,
            lease_ms,
            doublings: Steps::new(MOST_DOUBLINGS),
            halvings: Steps::new(MOST_HALVINGS),
            last: Seen::default(),
            decisions: VecDeque::new(),
            decisions_ever: 0,
        }
    }

    /// The watermarks to go by.
    pub fn watermarks(&self) -> Watermarks {
        let Watermarks { begin_below_per_mille, end_at_per_mille } = self.watermarks;
        let doubled = |mark: u16| (mark << self.doublings.taken).min(1000).max(mark);
        Watermarks {
            begin_below_per_mille: doubled(begin_below_per_mille),
            end_at_per_mille: doubled(end_at_per_mille),
        }
    }

    /// The length of the leases to grant, in milliseconds.
    pub fn lease_ms(&self) -> u32 {
        (self.lease_ms >> self.halvings.taken).max(SHORTEST_LEASE_MS.min(self.lease_ms))
    }

    /// To be called about once a second, at so many milliseconds after the shard's start.
    pub fn look(&mut self, at_ms: u64, seen: Seen) {
        let on_demand = seen.evicted_on_demand - self.last.evicted_on_demand;
        let evicted = on_demand + seen.evicted_ahead - self.last.evicted_ahead;
        let refused = seen.puts_refused_full - self.last.puts_refused_full;
        self.last = seen;
        let waits = on_demand >= LEAST_ON_DEMAND && on_demand * 20 > evicted;
        let harm = if waits { on_demand as f64 / evicted as f64 } else { 0.0 };
        if self.tuned.watermarks {
            let step = self.doublings.look(harm, TRIAL_LOOKS);
            self.note(at_ms, step, "eviction ahead of demand", |tuning| {
                let Watermarks { begin_below_per_mille: begin, end_at_per_mille: end } = tuning.watermarks();
                (
                    format!("from {begin} to {end} thousandths of free memory"),
                    format!(
                        "{on_demand} of {evicted} evictions in the last second were made by a put that waited"
                    ),
                )
            });
        }
        let is_held = 2 * seen.leased_units >= seen.capacity_units;
        let harm = if is_held { refused as f64 } else { 0.0 };
        if self.tuned.leases {
            let step = self.halvings.look(harm, 0);
            self.note(at_ms, step, "leases", |tuning| {
                let held = 100 * seen.leased_units / seen.capacity_units.max(1);
                (
                    format!("of {} ms", tuning.lease_ms()),
                    format!(
                        "{refused} puts in the last second found no room, and leases held {held} % of the memory"
                    ),
                )
            });
        }
    }

    /// What is set and why. A drain may grant shorter leases, of `lease_ms`.
    pub fn state(&self, lease_ms: u32) -> TuningState {
        let Watermarks { begin_below_per_mille, end_at_per_mille } = self.watermarks();
        TuningState {
            lease_ms,
            begin_below_per_mille,
            end_at_per_mille,
            decisions_ever: self.decisions_ever,
            decisions: self.decisions.clone(),
        }
    }

    /// Notes a step. `describe` says what is set now, and what was seen.
    fn note(
        &mut self,
        at_ms: u64,
        step: Step,
        subject: &str,
        describe: impl Fn(&Tuning) -> (String, String),
    ) {
        let why = match step {
            Step::None => return,
            Step::On => "because",
            Step::Back => "again, as there was no harm for a while:",
            Step::InVain => "again, as more didn't help:",
        };
        let (set, seen) = describe(self);
        if self.decisions.len() == DECISIONS_KEPT {
            self.decisions.pop_front();
        }
        self.decisions.push_back(TuningDecision { at_ms, text: format!("{subject} {set}, {why} {seen}") });
        self.decisions_ever += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShardConfig;
    use super::super::test_support::{TestShard, at};
    use super::*;

    const BOTH: Tuned = Tuned { watermarks: true, leases: true };

    fn tuning(tuned: Tuned) -> Tuning {
        Tuning::new(tuned, Watermarks { begin_below_per_mille: 10, end_at_per_mille: 20 }, 5_000)
    }

    /// One look after another, each of which adds to what was seen.
    struct Looks {
        tuning: Tuning,
        seen: Seen,
        at_ms: u64,
    }

    impl Looks {
        fn new(tuned: Tuned) -> Looks {
            Looks { tuning: tuning(tuned), seen: Seen { capacity_units: 1000, ..Seen::default() }, at_ms: 0 }
        }

        fn look(&mut self, ahead: u64, on_demand: u64, refused: u64, leased_units: u64) {
            self.seen.evicted_ahead += ahead;
            self.seen.evicted_on_demand += on_demand;
            self.seen.puts_refused_full += refused;
            self.seen.leased_units = leased_units;
            self.at_ms += 1000;
            self.tuning.look(self.at_ms, self.seen);
        }

        fn begin(&self) -> u16 {
            self.tuning.watermarks().begin_below_per_mille
        }
    }

    /// Shows that watermarks rise while puts wait for evictions and as far as it helps, that few such puts change nothing, and that a calm
    /// minute for each step brings them back; each time with a reason.
    #[test]
    fn watermarks_follow_the_puts_that_wait() {
        let mut looks = Looks::new(BOTH);
        looks.look(1000, 15, 0, 0);
        looks.look(1000, 40, 0, 0);
        assert_eq!(looks.begin(), 10, "too few, and too few of all");
        looks.look(100, 100, 0, 0);
        assert_eq!(looks.begin(), 20);
        (0..TRIAL_LOOKS).for_each(|_| looks.look(100, 20, 0, 0));
        assert_eq!(looks.begin(), 40, "it helped, and there is some harm left");
        let state = looks.tuning.state(5_000);
        assert_eq!((state.end_at_per_mille, state.decisions_ever, state.decisions[0].at_ms), (80, 2, 3_000));
        assert!(state.decisions[0].text.contains("100 of 200 evictions"), "{}", state.decisions[0].text);
        (0..CALM_LOOKS - 1).for_each(|_| looks.look(100, 0, 0, 0));
        assert_eq!(looks.begin(), 40);
        looks.look(100, 0, 0, 0);
        assert_eq!(looks.begin(), 20);
        (0..CALM_LOOKS).for_each(|_| looks.look(0, 0, 0, 0));
        let state = looks.tuning.state(5_000);
        assert_eq!((looks.begin(), state.decisions_ever, looks.tuning.lease_ms()), (10, 4, 5_000));
        assert!(state.decisions[3].text.contains("no harm"), "{}", state.decisions[3].text);
    }

    /// Puts can come faster than anything can be evicted ahead of them; then free memory is for nothing. Shows that a doubling that doesn't
    /// help is taken back after a few looks, with a reason, and tried again ever less often.
    #[test]
    fn a_doubling_in_vain_is_taken_back() {
        let mut looks = Looks::new(BOTH);
        let mut doubled_at = Vec::new();
        for second in 0..2_000 {
            let before = looks.begin();
            looks.look(100, 900, 0, 0);
            if looks.begin() > before {
                doubled_at.push(second);
            }
        }
        assert_eq!(doubled_at, [0, 124, 368, 852, 1816]);
        let state = looks.tuning.state(5_000);
        assert_eq!(state.decisions_ever, 10);
        assert!(state.decisions[1].text.contains("didn't help"), "{}", state.decisions[1].text);
    }

    /// Shows that where lower watermarks bring the harm back at once, they are tried ever less often.
    #[test]
    fn a_step_back_that_harms_is_tried_later_next_time() {
        let mut looks = Looks::new(BOTH);
        let mut pauses = Vec::new();
        looks.look(0, 100, 0, 0);
        for _ in 0..8 {
            let mut pause = 0;
            while looks.begin() > 10 {
                looks.look(100, 0, 0, 0);
                pause += 1;
            }
            pauses.push(pause);
            looks.look(0, 100, 0, 0);
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
    }

    /// Shows that leases become shorter only while puts are refused *and* leases are why, not below an eighth, and that they come back.
    #[test]
    fn leases_follow_the_puts_that_are_refused() {
        let mut looks = Looks::new(BOTH);
        looks.look(0, 0, 5, 499);
        looks.look(0, 0, 0, 900);
        assert_eq!(looks.tuning.lease_ms(), 5_000, "pins are in the way, or nothing is");
        for lease_ms in [2_500, 1_250, 625, 625] {
            looks.look(0, 0, 5, 600);
            assert_eq!(looks.tuning.lease_ms(), lease_ms);
        }
        assert!(looks.tuning.state(0).decisions[0].text.contains("5 puts"));
        (0..3 * CALM_LOOKS).for_each(|_| looks.look(0, 0, 0, 900));
        assert_eq!((looks.tuning.lease_ms(), looks.begin()), (5_000, 10));
        assert_eq!(Tuning::new(BOTH, Watermarks::default(), 50).lease_ms(), 50);
    }

    /// Shows that what the configuration fixes stays.
    #[test]
    fn what_is_fixed_stays() {
        let mut looks = Looks::new(Tuned { watermarks: false, leases: false });
        (0..10).for_each(|_| looks.look(0, 100, 100, 1000));
        assert_eq!((looks.begin(), looks.tuning.lease_ms()), (10, 5_000));
        assert_eq!(looks.tuning.state(0).decisions_ever, 0);
    }

    /// Evictions on demand in the last ten of forty seconds in which three large objects come between two ticks.
    fn waits_under_large_puts(tuned: Tuned) -> u64 {
        let mut shard = TestShard::new(8192 + (64 << 14), ShardConfig { tuned, ..ShardConfig::default() });
        let value = vec![1; (16 << 10) - 64];
        let mut before = 0;
        for tick in 0..4_000u32 {
            let now = at(u64::from(tick) * 10);
            for number in 0..3 {
                shard.put(now, &(3 * tick + number).to_le_bytes(), &value).unwrap();
            }
            shard.tick(now);
            if tick == 3_000 {
                before = shard.stats(now).evicted_for_demand;
            }
        }
        let stats = shard.stats(at(40_000));
        assert!(stats.evictions() > 10_000);
        stats.evicted_for_demand + stats.evicted_as_neighbour - before
    }

    /// Shows that it helps: puts that had to evict themselves have none to evict any more. Without it they go on.
    #[test]
    fn higher_watermarks_spare_puts_the_wait() {
        assert_eq!(waits_under_large_puts(BOTH), 0);
        let fixed = waits_under_large_puts(Tuned { watermarks: false, ..BOTH });
        assert!(fixed > 500, "{fixed}");
    }

    /// Puts refused in the last ten of forty seconds in which a key is overwritten and read ten times a second.
    fn refusals_under_leases(tuned: Tuned) -> u64 {
        let mut shard = TestShard::new(8192 + (16 << 16), ShardConfig { tuned, ..ShardConfig::default() });
        let value = vec![1; (64 << 10) - 64];
        let mut before = 0;
        for tick in 0..400 {
            let now = at(tick * 100);
            let _ = shard.upsert(now, b"key", &value);
            shard.get(now, b"key").unwrap();
            shard.tick(now);
            if tick == 300 {
                before = shard.stats(now).puts_refused_full;
            }
        }
        shard.stats(at(40_000)).puts_refused_full - before
    }

    /// Shows that it helps: where each version waited for its readers' leases until there was no room, all find room now.
    #[test]
    fn shorter_leases_make_room_for_puts() {
        assert_eq!(refusals_under_leases(BOTH), 0);
        let fixed = refusals_under_leases(Tuned { leases: false, ..BOTH });
        assert!(fixed > 30, "{fixed}");
    }

    /// Shows that only so many decisions are kept.
    #[test]
    fn decisions_are_bounded() {
        let mut looks = Looks::new(BOTH);
        for _ in 0..20 {
            looks.look(0, 100, 0, 0);
            (0..MOST_CALM_LOOKS).for_each(|_| looks.look(0, 0, 0, 0));
        }
        let state = looks.tuning.state(0);
        assert_eq!((state.decisions.len(), state.decisions_ever), (DECISIONS_KEPT, 40));
    }
}
