//! Traces of made-up traffic, of four kinds that can be mixed. `docs/traces.md` describes them for people.
//!
//! Each kind is a stream of *visitors* that come at random (a Poisson process); a visitor makes requests that follow from one another. All
//! randomness comes from one seed, a stream of its own for each kind, so that adding a kind leaves the others as they were.

use clap::ValueEnum;
use fastrand::Rng;
use serde::Serialize;

use super::trace::Request;

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Conversations: turns that each carry all turns before, minutes apart; many end after the first
    Chat,
    /// Agents: few long shared prompts, then many quick steps that each add a little
    Agents,
    /// Documents: long, asked about once or a few times within a minute, then never again
    Documents,
    /// Scans: the same long list of documents read from end to end, over and over
    Scans,
}

impl Kind {
    /// What its blocks are numbered from, so that kinds share none.
    fn first_block(self) -> u64 {
        (self as u64 + 1) << 40
    }

    /// Visitors in a minute.
    fn visitors_a_minute(self) -> f64 {
        match self {
            Kind::Chat => 60.0,
            Kind::Agents => 6.0,
            Kind::Documents => 20.0,
            Kind::Scans => 0.1,
        }
    }
}

/// Requests of these kinds in the order of their time.
#[must_use]
pub fn generate(kinds: &[Kind], minutes: u64, seed: u64) -> Vec<Request> {
    let mut requests = Vec::new();
    for kind in kinds {
        let mut stream = Stream {
            kind: *kind,
            random: Rng::with_seed(seed.wrapping_mul(31).wrapping_add(*kind as u64)),
            next_block: kind.first_block(),
            end_ms: minutes * 60_000,
            requests: Vec::new(),
        };
        stream.run();
        requests.append(&mut stream.requests);
    }
    requests.sort_by_key(|request| request.at_ms);
    requests
}

struct Stream {
    kind: Kind,
    random: Rng,
    next_block: u64,
    end_ms: u64,
    requests: Vec<Request>,
}

impl Stream {
    fn run(&mut self) {
        let shared = self.shared_prompts();
        let corpus = self.corpus();
        let mut at_ms = 0;
        loop {
            let mean_ms = 60_000.0 / self.kind.visitors_a_minute();
            at_ms += self.exponential(mean_ms);
            if at_ms >= self.end_ms {
                return;
            }
            match self.kind {
                Kind::Chat => self.conversation(at_ms, &shared),
                Kind::Agents => self.agent(at_ms, &shared),
                Kind::Documents => self.document(at_ms),
                Kind::Scans => self.scan(at_ms, &corpus),
            }
        }
    }

    /// Prompts that visitors have in common: a block for all conversations, 20 to 80 blocks for each of twelve agents.
    fn shared_prompts(&mut self) -> Vec<Vec<u64>> {
        match self.kind {
            Kind::Chat => vec![self.new_blocks(1)],
            Kind::Agents => {
                let lengths: Vec<u64> = (0..12).map(|_| self.random.u64(20..=80)).collect();
                lengths.into_iter().map(|length| self.new_blocks(length)).collect()
            }
            Kind::Documents | Kind::Scans => Vec::new(),
        }
    }

    /// What scans read: 150 documents of 10 to 70 blocks.
    fn corpus(&mut self) -> Vec<Vec<u64>> {
        if self.kind != Kind::Scans {
            return Vec::new();
        }
        let lengths: Vec<u64> = (0..150).map(|_| self.random.u64(10..=70)).collect();
        lengths.into_iter().map(|length| self.new_blocks(length)).collect()
    }

    /// Four of ten conversations go on after their first turn, and those that did so are ever likelier to go on again. Between turns
    /// people read and write, a minute or two as a rule. The last block of a turn isn't full and so isn't the next turn's.
    fn conversation(&mut self, mut at_ms: u64, shared: &[Vec<u64>]) {
        let mut chain = shared.first().cloned().unwrap_or_default();
        for turn in 0..40 {
            let added = self.around(if turn == 0 { 8.0 } else { 3.0 }, 0.9, 120);
            let added = self.new_blocks(added);
            chain.extend(added);
            let mut blocks = chain.clone();
            blocks.extend(self.new_blocks(1));
            self.request(at_ms, blocks);
            if self.random.f64() > 0.4 + 0.5 * (1.0 - 0.6_f64.powi(turn)) {
                return;
            }
            at_ms += self.around(90_000.0, 0.9, 3_600_000);
        }
    }

    /// An agent's task: some fifteen steps, seconds apart, each with the answer of a tool behind all before it.
    fn agent(&mut self, mut at_ms: u64, shared: &[Vec<u64>]) {
        // Some agents are much more in demand than others.
        let which = (self.random.f64().powi(2) * shared.len() as f64) as usize;
        let mut chain = shared.get(which).cloned().unwrap_or_default();
        for _ in 0..self.random.u64(3..30) {
            let added = self.around(2.0, 0.8, 60);
            let added = self.new_blocks(added);
            chain.extend(added);
            self.request(at_ms, chain.clone());
            at_ms += self.around(6_000.0, 0.8, 120_000);
        }
    }

    /// A document of some sixty blocks and one question, sometimes two or three.
    fn document(&mut self, mut at_ms: u64) {
        let length = self.around(60.0, 0.6, 240);
        let document = self.new_blocks(length);
        let mut more = true;
        while more {
            let mut blocks = document.clone();
            blocks.extend(self.new_blocks(1));
            self.request(at_ms, blocks);
            at_ms += self.around(15_000.0, 0.5, 60_000);
            more = self.random.u8(0..10) < 3;
        }
    }

    /// The whole corpus, four documents a second.
    fn scan(&mut self, mut at_ms: u64, corpus: &[Vec<u64>]) {
        for document in corpus {
            self.request(at_ms, document.clone());
            at_ms += 250;
        }
    }

    fn request(&mut self, at_ms: u64, blocks: Vec<u64>) {
        if at_ms < self.end_ms {
            self.requests.push(Request { at_ms, blocks });
        }
    }

    fn new_blocks(&mut self, number: u64) -> Vec<u64> {
        let first = self.next_block;
        self.next_block += number;
        (first..self.next_block).collect()
    }

    /// A log-normal number of at least 1 and at most `most` with this median.
    fn around(&mut self, median: f64, deviation: f64, most: u64) -> u64 {
        let number = median * (deviation * self.normal()).exp();
        (number as u64).clamp(1, most)
    }

    /// Box and Muller, "A note on the generation of random normal deviates", 1958.
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.random.f64(), self.random.f64());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    fn exponential(&mut self, mean: f64) -> u64 {
        (-mean * (1.0 - self.random.f64()).ln()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const ALL: [Kind; 4] = [Kind::Chat, Kind::Agents, Kind::Documents, Kind::Scans];

    /// Shows that a seed gives one trace, another seed another, that time doesn't go back or beyond the end, and that a block always
    /// has the same one before it, as its number stands for all before it.
    #[test]
    fn traces_are_chains_in_time() {
        let requests = generate(&ALL, 20, 1);
        assert_eq!(requests, generate(&ALL, 20, 1));
        assert_ne!(requests, generate(&ALL, 20, 2));
        assert!(requests.is_sorted_by_key(|request| request.at_ms));
        assert!(requests.last().is_some_and(|last| last.at_ms < 20 * 60_000));
        let mut before: HashMap<u64, Option<u64>> = HashMap::new();
        for request in &requests {
            assert!(!request.blocks.is_empty());
            for (depth, block) in request.blocks.iter().enumerate() {
                let parent = depth.checked_sub(1).map(|depth| request.blocks[depth]);
                assert_eq!(*before.entry(*block).or_insert(parent), parent);
            }
        }
    }

    /// Shows that each kind has what it's for, by the part of its uses that were seen before, and that kinds don't disturb each other.
    #[test]
    fn kinds_are_of_their_kind() {
        let reuse = |kind: Kind| {
            let requests = generate(&[kind], 120, 1);
            let uses = requests.iter().flat_map(|request| &request.blocks);
            let different = uses.clone().collect::<std::collections::HashSet<_>>().len();
            1.0 - different as f64 / uses.count() as f64
        };
        assert!((0.5..0.85).contains(&reuse(Kind::Chat)), "{}", reuse(Kind::Chat));
        assert!(reuse(Kind::Agents) > 0.8, "{}", reuse(Kind::Agents));
        assert!((0.1..0.4).contains(&reuse(Kind::Documents)), "{}", reuse(Kind::Documents));
        assert!(reuse(Kind::Scans) > 0.8, "{}", reuse(Kind::Scans));
        let chat = generate(&[Kind::Chat], 20, 1);
        let mixed = generate(&ALL, 20, 1);
        let of_chat = mixed.into_iter().filter(|request| request.blocks[0] >> 40 == 1);
        assert!(of_chat.eq(chat));
    }
}
