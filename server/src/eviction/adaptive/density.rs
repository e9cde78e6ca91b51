//! What an object is worth keeping for: hits to be expected for each second that it takes its place, learned from the traffic
//! by its class of uses and its age since the last use.
//!
//! Source of the idea: Beckmann, Chen and Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018. LHD
//! counts hits and evictions as they happen to its own cache, so it learns from its own decisions. Here the rates are those of the
//! traffic itself, watched on a sample of the keys whether they're cached or not ([`teacher`](super::teacher)): how often an object of this
//! class and age is used in a second. From the rates follows the density as the best that can be done from now on, over all
//! times at which one could give up waiting: hits until then, divided by the time until a hit or until then (Gittins' index).
//!
//! What always holds: all tables have a fixed size, and old traffic counts half as much as traffic that is as much again.
//! Absent on purpose: any constant about a workload. Where little was seen, a class behaves like all classes together, and an age like
//! the age before it.

use crate::memory::slots::USE_CLASSES;

/// Ages are told apart by half octaves of quarters of a second: the last begins after ten years.
pub(super) const AGES: usize = 60;

/// Hits in all tables together at which everything is halved.
const HALVED_AT_HITS: f32 = 65_536.0;

/// So many hits of its own count as much as what is known from all classes or from the age before. Blocks of a chain are used
/// together, so it takes more than a few to know something.
const TRUSTED_HITS: f32 = 20.0;

/// Where nothing is known of an age, its rate is this part of that of the age before it: interest ages.
const RATE_AFTER: f32 = 0.7;

/// So many hits weigh as much as that supposition.
const SUPPOSED_HITS: f32 = 3.0;

/// Hits in a quarter of a second before anything was seen.
const FIRST_RATE: f32 = 0.01;

/// What is known of one class.
#[derive(Debug, Clone, Copy)]
struct ClassTable {
    /// Uses by the age at which they came.
    hits: [f32; AGES],
    /// Quarters of a second that objects spent at each age.
    exposure: [f32; AGES],
    /// Hits to be expected in a quarter of a second.
    density: [f32; AGES],
}

const EMPTY: ClassTable = ClassTable { hits: [0.0; AGES], exposure: [0.0; AGES], density: [0.0; AGES] };

/// What is known of all classes.
#[derive(Debug)]
pub(super) struct Density {
    classes: Box<[ClassTable; USE_CLASSES]>,
    hits: f32,
}

impl Density {
    /// Nothing is known: the younger, the better.
    pub fn new() -> Self {
        let mut density = Self { classes: Box::new([EMPTY; USE_CLASSES]), hits: 0.0 };
        density.conclude();
        density
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.classes) as u64
    }

    /// Hits to be expected for each quarter of a second, of an object of this class and age.
    #[inline]
    pub fn of(&self, class: u8, age: u32) -> f32 {
        let table = self.classes.get(usize::from(class));
        table.and_then(|table| table.density.get(age_number(age))).copied().unwrap_or(0.0)
    }

    /// Counts a use of an object at this age.
    pub fn note_hit(&mut self, class: u8, age: u32) {
        let table = self.classes.get_mut(usize::from(class));
        if let Some(hits) = table.and_then(|table| table.hits.get_mut(age_number(age))) {
            *hits += 1.0;
            self.hits += 1.0;
        }
    }

    /// Counts the time that an object spent growing from one age to another.
    pub fn note_exposure(&mut self, class: u8, from: u32, to: u32) {
        let Some(table) = self.classes.get_mut(usize::from(class)) else { return };
        for number in age_number(from)..AGES {
            let (start, end) = (age_start(number).max(from), age_start(number + 1).min(to));
            if let Some(exposure) = table.exposure.get_mut(number).filter(|_| start < end) {
                *exposure += (end - start) as f32;
            }
            if end >= to {
                break;
            }
        }
    }

    /// Works out the densities from what was counted. Takes some ten microseconds.
    pub fn conclude(&mut self) {
        if self.hits > HALVED_AT_HITS {
            self.halve();
        }
        let rates = self.rates_of_all();
        for table in self.classes.iter_mut() {
            table.conclude(&rates);
        }
    }

    fn halve(&mut self) {
        self.hits /= 2.0;
        let numbers =
            self.classes.iter_mut().flat_map(|table| table.hits.iter_mut().chain(&mut table.exposure));
        numbers.for_each(|number| *number /= 2.0);
    }

    /// Uses in a quarter of a second at each age, all classes together.
    fn rates_of_all(&self) -> [f32; AGES] {
        let mut rates = [0.0; AGES];
        let mut before = FIRST_RATE;
        for (number, rate) in rates.iter_mut().enumerate() {
            let hits: f32 = self.classes.iter().map(|table| table.hits[number]).sum();
            let exposure: f32 = self.classes.iter().map(|table| table.exposure[number]).sum();
            let supposed = before * RATE_AFTER;
            // A few hits are supposed to have come at the rate supposed, but in no more time than was really seen: after ages without a
            // hit, which conversations have, too little would be supposed to be corrected.
            let weight = (SUPPOSED_HITS / supposed).min(exposure);
            *rate = if exposure > 0.0 { (hits + weight * supposed) / (exposure + weight) } else { supposed };
            before = *rate;
        }
        rates
    }
}

impl ClassTable {
    fn conclude(&mut self, rates_of_all: &[f32; AGES]) {
        // How much more often this class is used than all together would be at the same ages.
        let (mut hits, mut expected) = (0.0, 0.0);
        for (number, rate) in rates_of_all.iter().enumerate() {
            hits += self.hits[number];
            expected += self.exposure[number] * rate;
        }
        let ratio = (hits + TRUSTED_HITS) / (expected + TRUSTED_HITS);
        let mut rates = [0.0; AGES];
        for (number, rate) in rates.iter_mut().enumerate() {
            let supposed = rates_of_all[number] * ratio;
            *rate = (self.hits[number] + TRUSTED_HITS) / (self.exposure[number] + TRUSTED_HITS / supposed);
        }
        let chances = chances(&rates);
        for (number, density) in self.density.iter_mut().enumerate() {
            *density = best_density(&chances[number..]);
        }
    }
}

/// What comes of an object that reaches an age: the chance that it's used at that age, and how long it's there for.
#[derive(Clone, Copy, Default)]
struct Chance {
    of_use: f32,
    time: f32,
}

/// The chances at all ages, where uses come at these rates.
fn chances(rates: &[f32; AGES]) -> [Chance; AGES] {
    std::array::from_fn(|number| {
        let width = (age_start(number + 1) - age_start(number)) as f32;
        let of_use = -(-rates[number] * width).exp_m1();
        Chance { of_use, time: of_use / rates[number] }
    })
}

/// The most hits for the time, over all ages at which one could give up an object that is at the first of these ages.
fn best_density(chances: &[Chance]) -> f32 {
    let (mut alive, mut hits, mut time, mut best) = (1.0_f32, 0.0, 0.0, 0.0_f32);
    for chance in chances {
        hits += alive * chance.of_use;
        time += alive * chance.time;
        alive *= 1.0 - chance.of_use;
        best = best.max(hits / time);
        // Hardly any object gets here without having been used.
        if alive < 1e-4 {
            break;
        }
    }
    best
}

/// Number of an age in quarters of a second: 0, 1, 2, 3, 4-5, 6-7, 8-11, 12-15, …
fn age_number(age: u32) -> usize {
    if age < 2 {
        return age as usize;
    }
    let octave = age.ilog2();
    let upper_half = age >> (octave - 1) & 1;
    ((2 * octave + upper_half) as usize).min(AGES - 1)
}

/// The first age of a number.
fn age_start(number: usize) -> u32 {
    if number < 2 {
        return number as u32;
    }
    let (octave, upper_half) = (number as u32 / 2, number as u32 % 2);
    (2 + upper_half).checked_shl(octave - 1).filter(|_| octave < 31).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that each age belongs to the number whose beginning is the last not after it.
    #[test]
    fn ages_have_numbers() {
        for age in (0..5_000).chain([1 << 20, (1 << 30) - 1, u32::MAX]) {
            let number = age_number(age);
            assert!(age_start(number) <= age, "{age}");
            assert!(number == AGES - 1 || age < age_start(number + 1), "{age}");
        }
    }

    /// Shows that time is counted where it was spent, whole.
    #[test]
    fn exposure_is_split_at_ages() {
        let mut density = Density::new();
        density.note_exposure(2, 1, 100);
        density.note_exposure(2, 100, 100);
        let table = &density.classes[2];
        assert_eq!(table.exposure.iter().sum::<f32>(), 99.0);
        assert_eq!((table.exposure[0], table.exposure[1], table.exposure[age_number(64)]), (0.0, 1.0, 32.0));
    }

    /// Objects of class 1 come back after 100 quarters with a chance of 3 in 4, those of class 0 with one of 1 in 10, and never after
    /// 200. Shows that before, class 1 is worth more the nearer its time, always more than class 0, and that afterwards both are worth
    /// next to nothing: young ones of class 0 are worth more than old ones of class 1.
    #[test]
    fn densities_follow_the_traffic() {
        let mut density = Density::new();
        for number in 0..10_000u32 {
            for (class, returns) in [(0, number % 10 == 0), (1, number % 4 != 0)] {
                let until = if returns { 100 + number % 20 } else { 10_000 };
                density.note_exposure(class, 0, until);
                if returns {
                    density.note_hit(class, until);
                }
            }
        }
        density.conclude();
        for age in [0, 20, 60, 96] {
            assert!(density.of(1, age) > 2.0 * density.of(0, age), "age {age}");
        }
        assert!(density.of(1, 90) > 2.0 * density.of(1, 0));
        assert!(density.of(0, 0) > 10.0 * density.of(1, 300));
        // Three of four come after 110, the fourth is given up at 128.
        let expected = 0.75 / (0.75 * 110.0 + 0.25 * 128.0);
        assert!((density.of(1, 0) / expected - 1.0).abs() < 0.2, "{} is not {expected}", density.of(1, 0));
    }

    /// Shows that with nothing known younger objects are worth more, and that a class of which nothing was seen is worth as
    /// much as all together.
    #[test]
    fn the_unknown_is_like_the_known() {
        let mut density = Density::new();
        assert!(density.of(0, 1) > density.of(0, 10) && density.of(0, 10) > density.of(0, 1_000));
        for _ in 0..1_000 {
            density.note_exposure(0, 0, 50);
            density.note_hit(0, 50);
        }
        density.conclude();
        let (unknown, known) = (density.of(5, 0), density.of(0, 0));
        assert!((unknown / known - 1.0).abs() < 0.5, "{unknown} is not about {known}");
    }

    /// Shows that what was counted long ago is outweighed by as much that came since.
    #[test]
    fn old_traffic_is_forgotten() {
        let mut density = Density::new();
        for _ in 0..20 {
            for _ in 0..10_000 {
                density.note_hit(0, 50);
                density.note_exposure(0, 0, 50);
            }
            density.conclude();
        }
        assert!(density.hits < 1.3 * HALVED_AT_HITS);
    }
}
