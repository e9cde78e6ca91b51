//! Which server a key belongs to: rendezvous hashing, weighted by capacity.
//!
//! Each server scores each key; the highest score wins. A server that leaves moves only its own keys. Weights as in
//! Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005: score = -weight / ln(uniform).

use lanner_shared::KeyHash;

/// A server as placement sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Stays the same over restarts.
    pub server_id: u64,
    /// Bytes for values.
    pub capacity_bytes: u64,
}

/// The index of the server that `hash` belongs to. All keys of one placement tag belong to one server.
#[inline]
pub(crate) fn server_of(hash: KeyHash, candidates: &[Candidate]) -> usize {
    if candidates.len() <= 1 {
        return 0;
    }
    let scores = candidates.iter().map(|candidate| score(hash, *candidate));
    scores.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(index, _)| index)
}

fn score(hash: KeyHash, candidate: Candidate) -> f64 {
    // 53 bits fill a double's mantissa; the half keeps the logarithm away from ln(0) and ln(1).
    let mixed = mix(hash.high64 ^ mix(candidate.server_id));
    let uniform = ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    candidate.capacity_bytes as f64 / -uniform.ln()
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> impl Iterator<Item = KeyHash> {
        (0..20_000_u32).map(|i| KeyHash::of(format!("key {i}").as_bytes()))
    }

    #[test]
    fn keys_spread_by_capacity() {
        let candidates =
            [1, 2, 5].map(|weight| Candidate { server_id: weight, capacity_bytes: weight << 30 });
        let mut count = [0_u32; 3];
        keys().for_each(|hash| count[server_of(hash, &candidates)] += 1);
        // 2,500, 5,000 and 12,500 expected.
        assert!((2_200..2_800).contains(&count[0]) && (4_600..5_400).contains(&count[1]), "{count:?}");
    }

    #[test]
    fn a_server_that_leaves_moves_only_its_own_keys() {
        let three = [10, 20, 30].map(|server_id| Candidate { server_id, capacity_bytes: 1 << 30 });
        let two = [three[0], three[2]];
        for hash in keys() {
            match server_of(hash, &three) {
                0 => assert_eq!(server_of(hash, &two), 0),
                2 => assert_eq!(server_of(hash, &two), 1),
                _ => {}
            }
        }
    }
}
