//! `longest_prefix`: the longest stored key that each key begins with, as far as the shard asked knows.
//!
//! The body is keys, which need not belong to the shard; the answer is the length in bytes ([`LongestPrefixAnswer`]) of the key found for
//! each: its bytes are the first ones of the key asked for. Asking extends no lease and counts as no access. Keys that begin
//! alike lie on different shards, so a client asks them all, and the longest answer counts.

use zerocopy::little_endian as le;

/// Length of the key found, in bytes; 0 if there is none.
pub type LongestPrefixAnswer = le::U16;

const _: () = assert!(crate::key::MAX_KEY_BYTES <= u16::MAX as usize);
