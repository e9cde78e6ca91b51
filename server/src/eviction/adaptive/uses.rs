//! How many uses are known of an object, in eight classes that three bits hold.
//!
//! ```text
//! class   0  1  2   3    4     5      6       7
//! uses    1  2  3  4-5  6-8  9-16  17-128  129 and more
//! ```
//!
//! From the fourth class on, a use leads to the next one by chance, so that no exact count is kept (Morris, "Counting large
//! numbers of events in small registers", CACM 1978). The chance is one for all uses in the same quarter of a second: blocks of a
//! chain that are used together stay together.

use crate::eviction::PolicyTime;
use crate::memory::slots::USE_CLASSES;

/// How many uses a class spans: one in so many leads on.
const USES: [u32; USE_CLASSES] = [1, 1, 1, 2, 3, 8, 112, u32::MAX];

/// The class after one more use.
pub(super) fn after_use(class: u8, now: PolicyTime) -> u8 {
    let uses = USES.get(usize::from(class)).copied().unwrap_or(u32::MAX);
    let leads_on = uses == 1 || uses < u32::MAX && draw(now).is_multiple_of(uses);
    class + u8::from(leads_on)
}

/// A number that looks like chance: the finaliser of MurmurHash3 (Appleby, public domain).
fn draw(now: PolicyTime) -> u32 {
    let mut bits = now.0 ^ 0x9e37_79b9;
    bits = (bits ^ bits >> 16).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ bits >> 13).wrapping_mul(0xc2b2_ae35);
    bits ^ bits >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that classes are reached after about as many uses as the table says, and that the last one is the last.
    #[test]
    fn classes_span_uses() {
        let mut sums = [0_u32; USE_CLASSES];
        for run in 0..1_000 {
            let (mut class, mut uses) = (0, 1);
            while usize::from(class) < USE_CLASSES - 1 {
                uses += 1;
                let next = after_use(class, PolicyTime(run * 100_000 + uses));
                if next != class {
                    class = next;
                    sums[usize::from(class)] += uses;
                }
            }
            assert_eq!(after_use(class, PolicyTime(uses)), class);
        }
        for (sum, expected) in sums.iter().zip([0.0_f32, 2.0, 3.0, 4.0, 6.0, 9.0, 17.0, 129.0]) {
            let mean = *sum as f32 / 1_000.0;
            assert!((mean - expected).abs() <= expected * 0.1, "{mean} is not {expected}");
        }
    }
}
