//! Lanner's client: the library that an inference engine links.
//!
//! ```no_run
//! use lanner_client::{Client, Freshness, Range};
//!
//! let client = Client::connect("lanner://127.0.0.1:7411")?;
//! client.put(b"greeting", b"hello, world")?;
//! let snapshot = client.prepare_snapshot(&[b"greeting"])?;
//! let mut word = [0; 5];
//! let range = Range { key: 0, source_offset: 7, length: 5, destination_offset: 0 };
//! client.read_ranges_from_snapshot(&snapshot, &[range], &mut word, Freshness::Lease)?;
//! assert_eq!(&word, b"world");
//! # Ok::<(), lanner_client::Error>(())
//! ```

mod call;
pub mod chain;
mod client;
mod cluster;
mod config;
mod connection;
mod dtype;
mod each;
pub mod engram;
#[cfg(feature = "planted-faults")]
pub mod faults;
#[cfg(not(feature = "planted-faults"))]
mod faults;
mod filter_mapping;
mod fork;
mod interrupt;
mod lane;
mod mapping;
mod pending;
mod placement;
mod ranged;
mod registered;
#[cfg(feature = "simulation")]
pub mod simulation;
mod snapshot;
pub mod tensor;
mod turns;
mod watcher;

pub use call::list::Listed;
pub use call::put::PutOptions;
pub use client::{Client, Fallback, ObjectInfo, RdmaFailures, ServerInfo};
pub use config::{ClientConfig, DEFAULT_PORT, TransportChoice};
pub use dtype::Dtype;
pub use engram::{EngramConfig, EngramError, EngramSet, EngramStore, RowFormat, RowIds};
pub use fork::forget_lanes;
pub use interrupt::interrupt_calls_if;
pub use lanner_shared::time::{Clock, Instant};
pub use lanner_shared::wire::put::Pin;
pub use lanner_shared::{Error, Result};
pub use pending::Pending;
pub use registered::{Registered, Registration};
pub use snapshot::ranges::Range;
pub use snapshot::{Freshness, Snapshot};
pub use tensor::{ShardedTensor, TensorError, TensorSlice, TensorSpec};
