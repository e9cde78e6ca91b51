//! Which ranking a shard follows: the one whose shadow hits most often on the live traffic, once it's beyond chance.
//!
//! Two shadows are compared on the same uses, so only those count that one hit and the other missed (McNemar's test).
//! Blocks of a chain are hit or missed together, so the difference has to be several times what single coins would give. The first
//! of the rankings is home: it learns, so it is left on such evidence only, and taken up again as soon as it's no worse. Otherwise a
//! passing scan would decide for hours, as a small difference takes long to be beyond chance.

use std::collections::VecDeque;
use std::fmt::{self, Display};

use serde::Serialize;

use super::ranking::Ranking;
use super::teacher::ShadowHits;
use crate::eviction::PolicyTime;

const RANKINGS: usize = Ranking::ALL.len();

/// The ranking that a shard begins with and comes back to.
const HOME: usize = 0;

/// Uses after which all counts are halved: what is older than the last some ten thousand uses of the sample hardly counts.
const HALVED_AT_USES: u64 = 32_768;

/// Uses before the first decision and between decisions.
const USES_BETWEEN_DECISIONS: u64 = 2_048;

/// By how many standard deviations of as many coins the better ranking has to be ahead.
const DEVIATIONS: f64 = 8.0;

/// And by which part of all uses: less isn't worth a change.
const LEAST_GAIN: f64 = 0.005;

/// Decisions kept.
const DECISIONS_KEPT: usize = 16;

/// What was decided, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// When, in milliseconds since the shard started.
    pub at_ms: u64,
    /// The ranking until then.
    pub from: Ranking,
    /// The ranking from then on.
    pub to: Ranking,
    /// Hits of the shadow of the former, in thousandths of the uses that were watched.
    pub from_hits_per_mille: u32,
    /// The same of the latter.
    pub to_hits_per_mille: u32,
    /// Uses that only the latter hit less those that only the former hit, in standard deviations.
    pub deviations: u32,
}

impl Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "after {:.0} s: {} instead of {}, whose shadows hit {} and {} of a thousand uses ({} standard deviations apart)",
            self.at_ms as f64 / 1000.0,
            self.to.name(),
            self.from.name(),
            self.to_hits_per_mille,
            self.from_hits_per_mille,
            self.deviations,
        )
    }
}

/// How a ranking does in its shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ShadowStats {
    /// The ranking.
    pub ranking: Ranking,
    /// Uses that it hit, since the shard started.
    pub hits: u64,
    /// Uses that it missed.
    pub misses: u64,
}

/// Counts and decides.
#[derive(Debug)]
pub(super) struct Referee {
    current: Ranking,
    /// The configuration says so.
    is_fixed: bool,
    hits: [u64; RANKINGS],
    /// How often one ranking (row) hit and another one (column) missed.
    only: [[u64; RANKINGS]; RANKINGS],
    uses: u64,
    uses_since_decision: u64,
    /// Never halved.
    hits_ever: [u64; RANKINGS],
    uses_ever: u64,
    decisions: VecDeque<Decision>,
    decisions_ever: u64,
}

impl Referee {
    /// Follows `fixed`, or at first the ranking that is home.
    pub fn new(fixed: Option<Ranking>) -> Self {
        Self {
            current: fixed.unwrap_or(Ranking::ALL[HOME]),
            is_fixed: fixed.is_some(),
            hits: [0; RANKINGS],
            only: [[0; RANKINGS]; RANKINGS],
            uses: 0,
            uses_since_decision: 0,
            hits_ever: [0; RANKINGS],
            uses_ever: 0,
            decisions: VecDeque::new(),
            decisions_ever: 0,
        }
    }

    /// The ranking to follow.
    pub fn current(&self) -> Ranking {
        self.current
    }

    /// The last decisions, the latest last.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter()
    }

    /// Number of decisions since the shard started.
    pub fn decisions_ever(&self) -> u64 {
        self.decisions_ever
    }

    /// How each ranking's shadow did since the shard started.
    pub fn shadows(&self) -> [ShadowStats; RANKINGS] {
        std::array::from_fn(|number| ShadowStats {
            ranking: Ranking::ALL[number],
            hits: self.hits_ever[number],
            misses: self.uses_ever - self.hits_ever[number],
        })
    }

    /// Counts a use that was watched.
    pub fn count(&mut self, hits: ShadowHits) {
        for (row, hit) in hits.iter().enumerate().filter(|(_, hit)| **hit) {
            self.hits[row] += 1;
            self.hits_ever[row] += 1;
            for (column, other) in hits.iter().enumerate() {
                self.only[row][column] += u64::from(*hit && !other);
            }
        }
        self.uses += 1;
        self.uses_ever += 1;
        self.uses_since_decision += 1;
    }

    /// Decides, if enough was seen since the last time.
    pub fn decide(&mut self, now: PolicyTime) {
        if self.uses_since_decision < USES_BETWEEN_DECISIONS {
            return;
        }
        self.uses_since_decision = 0;
        if !self.is_fixed {
            self.follow_the_best(now);
        }
        if self.uses > HALVED_AT_USES {
            self.uses /= 2;
            let counts = self.hits.iter_mut().chain(self.only.iter_mut().flatten());
            counts.for_each(|count| *count /= 2);
        }
    }

    fn follow_the_best(&mut self, now: PolicyTime) {
        let current = number_of(self.current);
        // The last of the greatest counts: home, if it is among them.
        let Some(best) = (0..RANKINGS).rev().max_by_key(|number| self.hits[*number]) else { return };
        let (ahead, behind) = (self.only[best][current] as f64, self.only[current][best] as f64);
        let deviations = (ahead - behind) / (ahead + behind).max(1.0).sqrt();
        let is_beyond_chance = deviations >= DEVIATIONS && ahead - behind >= LEAST_GAIN * self.uses as f64;
        if best == current || best != HOME && !is_beyond_chance {
            return;
        }
        let per_mille = |number: usize| (self.hits[number] * 1000 / self.uses.max(1)) as u32;
        let decision = Decision {
            at_ms: now.millis(),
            from: self.current,
            to: Ranking::ALL[best],
            from_hits_per_mille: per_mille(current),
            to_hits_per_mille: per_mille(best),
            deviations: deviations as u32,
        };
        self.current = decision.to;
        self.decisions_ever += 1;
        if self.decisions.len() == DECISIONS_KEPT {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
    }
}

fn number_of(ranking: Ranking) -> usize {
    Ranking::ALL.iter().position(|other| *other == ranking).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses of which the shadow of recency hits `more` in a hundred more than that of density, in random order.
    fn watch(referee: &mut Referee, seed: u64, uses: u64, more: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..uses {
            let (point, both) = (random.u64(0..100), random.bool());
            let density = both && point >= more || point < 3;
            referee.count([density, both || (3..3 + more).contains(&point), false]);
            referee.decide(PolicyTime(16));
        }
    }

    /// Shows that a ranking that hits clearly more often is followed from then on, and that the decision says from when and why.
    #[test]
    fn the_better_shadow_is_followed() {
        let mut referee = Referee::new(None);
        assert_eq!(referee.current(), Ranking::Density);
        watch(&mut referee, 1, 10_000, 20);
        assert_eq!(referee.current(), Ranking::Recency);
        let decision = referee.decisions().next().unwrap();
        assert_eq!((decision.at_ms, decision.from, decision.to), (4_000, Ranking::Density, Ranking::Recency));
        assert!(
            decision.to_hits_per_mille > decision.from_hits_per_mille
                && f64::from(decision.deviations) >= DEVIATIONS
        );
        assert_eq!(referee.decisions_ever(), 1);
        let [density, recency, segmented] = referee.shadows();
        assert!(recency.hits > density.hits && segmented.hits == 0);
        assert_eq!(recency.hits + recency.misses, 10_000);
    }

    /// Shows that home is taken up again once it's ahead by anything at all.
    #[test]
    fn the_way_home_is_short() {
        let mut referee = Referee::new(None);
        watch(&mut referee, 1, 10_000, 20);
        assert_eq!(referee.current(), Ranking::Recency);
        let behind = referee.hits[1] - referee.hits[0];
        for _ in 0..behind + USES_BETWEEN_DECISIONS {
            referee.count([true, false, false]);
            referee.decide(PolicyTime(17));
        }
        assert_eq!((referee.current(), referee.decisions_ever()), (Ranking::Density, 2));
    }

    /// Shows that chance changes nothing: with rankings that are equally good there is no decision in any of many runs.
    #[test]
    fn chance_decides_nothing() {
        for seed in 0..50 {
            let mut referee = Referee::new(None);
            watch(&mut referee, seed, 40_000, 3);
            assert_eq!(referee.decisions_ever(), 0, "seed {seed}");
        }
    }

    /// Shows that a ranking fixed by the configuration stays, and that shadows are counted all the same.
    #[test]
    fn a_fixed_ranking_stays() {
        let mut referee = Referee::new(Some(Ranking::Density));
        watch(&mut referee, 1, 10_000, 20);
        assert_eq!((referee.current(), referee.decisions_ever()), (Ranking::Density, 0));
        assert!(referee.shadows()[1].hits > referee.shadows()[0].hits);
    }

    /// Shows that only so many decisions are kept.
    #[test]
    fn decisions_are_bounded() {
        let mut referee = Referee::new(None);
        for round in 0..200 {
            for _ in 0..USES_BETWEEN_DECISIONS * 20 {
                let even = round % 2 == 0;
                referee.count([!even, even, false]);
                referee.decide(PolicyTime(0));
            }
        }
        assert_eq!(referee.decisions().count(), DECISIONS_KEPT);
        assert!(referee.decisions_ever() > DECISIONS_KEPT as u64);
    }
}
