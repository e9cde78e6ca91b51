//! What all measurements share. A measurement is a [`workload::Workload`], whose single round can be timed; [`workload::alternate`]
//! runs a product and the limit it is held against in turns, so that both see the same machine. [`histogram`] keeps
//! the latencies, [`report`] prints them as a table or JSON, [`plot`] draws them, [`progress`] says how far a run has got.
//!
//! [`floor`] holds the limits themselves: what this machine could do if there were no store at all. [`latency`] and [`engram`] are the
//! products' measurements, [`target`] the store that they measure. [`eviction`] measures no time: it replays traces on the server's orders of
//! eviction; [`trace`] replays them against running servers.

pub mod engram;
pub mod environment;
pub mod eviction;
pub mod floor;
pub mod histogram;
pub mod latency;
pub mod plot;
pub mod progress;
pub mod report;
pub mod target;
pub mod trace;
pub mod workload;
