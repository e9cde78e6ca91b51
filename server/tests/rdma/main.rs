//! Servers and clients over RDMA, on the two devices of the guest: `scripts/test --rdma` runs these there. What every transport has to do
//! is in `served`, which runs over RDMA there too; here is what only RDMA can do, and what only its devices can do wrong.
//!
//! Each test is marked `#[ignore]`, for without the devices none of them can do anything.

#[path = "../served/by_hand.rs"]
#[allow(dead_code, reason = "shared with `served`, which uses more of it")]
mod by_hand;
#[path = "../counting/mod.rs"]
mod counting;
mod devices;
mod failures;
mod raw;
mod reads;
mod registered;
mod shares;
#[path = "../served/support.rs"]
#[allow(dead_code, reason = "shared with `served`, which uses more of it")]
mod support;
