//! One shard: a state machine over its segment. The time and a request in, an answer out; no clock, socket or thread.
//!
//! Called by the pump of its core (or by a simulator) and by nobody else. One file for each event:
//!
//! | event | file |
//! |---|---|
//! | a value arrives, whole or not at all | `put` |
//! | where is it, may I read it | `query`, `read`, `exists`, `list`, `longest_prefix` |
//! | it is to go | `remove` |
//! | time passes | `tick`, `expire` |
//! | room is needed | `evict` |
//! | many keys at once | `warm` |
//! | the same part of a chain, or the same list of keys, once more | `group_answers`, `list_answers` |
//!
//! and below them `known_keys` (filter and prefix index beside the index), `lease` (until when may memory not be reused), `quarantine` (the one place that gives memory back),
//! `epoch`, `extent_access`, `tuning` (what the shard sets for itself) and `stats`.
//!
//! What always holds:
//! - **P1** An extent is given back only by `quarantine::release`, and only when the last lease on it has ended and no
//!   transfer uses it; its slot then has another generation.
//! - **P5** Every call but `list` (a page) touches a bounded number of objects.
//! - **P6** An object leaves by eviction, removal, overwriting or expiry, and each is counted.
//!
//! Absent on purpose: tenants (a segment belongs to one), connections (a `PeerId` is a number), and the bytes of a value
//! (they go between the wire and the segment without passing here).

mod epoch;
mod evict;
mod exists;
mod expire;
mod extent_access;
mod group_answers;
mod known_keys;
mod lease;
mod list;
mod list_answers;
mod longest_prefix;
mod put;
mod quarantine;
mod query;
mod read;
mod remove;
pub mod stats;
mod tick;
mod tuning;
mod warm;

#[cfg(test)]
mod model_test;
#[cfg(test)]
pub(crate) mod test_support;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::eviction::lru::Lru;
use crate::eviction::queue::Queue;
use crate::eviction::{Policy, PolicyKind};
use crate::filter::KeyFilter;
use crate::memory::extents::{Extent, ExtentAllocator, ExtentError, UNIT_BYTES};
use crate::memory::index::Index;
use crate::memory::segment::Segment;
use crate::memory::slots::{Generation, SlotId, Slots};
use crate::radix::Radix;
use lanner_shared::ShardId;
use lanner_shared::key::KeyHash;
use lanner_shared::lease::DEFAULT_LEASE_TTL;
use lanner_shared::shm::segment_page::{
    PARKED_OFFSET, SEGMENT_FORMAT, SEGMENT_MAGIC, SEGMENT_PAGE_BYTES, SegmentIdentity,
};
use lanner_shared::time::Instant;
use slab::Slab;
use zerocopy::IntoBytes;

use expire::ExpiryHand;
use group_answers::GroupAnswers;
use lease::LeaseWheel;
use put::{PeerPuts, UnfinishedPut};
use stats::Counters;
use tuning::Tuning;

pub use evict::Watermarks;
pub use group_answers::GroupQuestion;
pub(crate) use group_answers::most_answer_bytes;
pub use list::ListPage;
pub use list_answers::{FoundList, ListQuestion};
pub use put::PutTicket;
pub use query::Found;
pub use stats::ShardStats;
pub use tick::TickOutcome;
pub use tuning::{Tuned, TuningDecision, TuningState};
pub use warm::WARMED_KEYS;

/// Who a request is from: a connection, under a number that never comes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// What a shard is told when it's made.
#[derive(Debug, Clone)]
pub struct ShardConfig {
    /// This shard's number.
    pub shard: ShardId,
    /// Shards of the server.
    pub shards: u16,
    /// The server's boot id, written into the segment's page.
    pub boot_id: [u8; 16],
    /// The shard's time zero. No call has an earlier `now`.
    pub started: Instant,
    /// How long a lease is, at first.
    pub lease_ttl: Duration,
    /// The longest that it can be set to later. The ends of leases are told apart by a 256th to a 512th of this, which is how well a
    /// put that finds no room knows when to try again.
    pub max_lease_ttl: Duration,
    /// Who is evicted first.
    pub policy: PolicyKind,
    /// When to evict ahead of demand, at first.
    pub watermarks: Watermarks,
    /// Which of watermarks and leases the shard may set for itself.
    pub tuned: Tuned,
    /// A put that makes no progress for this long is given up.
    pub put_timeout: Duration,
    /// The most puts that one peer can have begun and not ended.
    pub max_unfinished_puts: u32,
    /// The most objects, unfinished and quarantined ones included.
    pub max_objects: u32,
    /// Keep a checksum of each value in its header. Costs a pass over the value when a put ends.
    pub value_checksums: bool,
    /// Keep the keys in order too: lists in order, and the longest prefix of a key in one search. Costs at most 48 bytes an object.
    pub prefix_index: bool,
}

impl Default for ShardConfig {
    /// The only shard of its server, with the defaults of `lanner-server`.
    fn default() -> Self {
        Self {
            shard: ShardId(0),
            shards: 1,
            boot_id: [0; 16],
            started: Instant::ZERO,
            lease_ttl: DEFAULT_LEASE_TTL,
            max_lease_ttl: DEFAULT_LEASE_TTL,
            policy: PolicyKind::default(),
            watermarks: Watermarks::default(),
            tuned: Tuned { watermarks: true, leases: true },
            put_timeout: Duration::from_secs(30),
            max_unfinished_puts: 256,
            max_objects: u32::MAX,
            value_checksums: false,
            prefix_index: true,
        }
    }
}

/// Faults that a test plants to see that it would notice them.
#[cfg(any(test, feature = "planted-faults"))]
#[derive(Debug, Clone, Copy, Default)]
pub struct PlantedFaults {
    /// Leases count as ended this many milliseconds before they are.
    pub lease_ends_early_by_millis: u64,
    /// Memory is given back although a transfer still reads or writes it.
    pub forgets_transfers: bool,
    /// An answer about a chain is given again whatever has become of its blocks.
    pub repeats_old_answers: bool,
    /// An answer about a list of keys is given again to another list with the same first key.
    pub takes_lists_for_another: bool,
    /// Such an answer promises a whole lease and grants none.
    pub promises_without_lease: bool,
}

/// The state of one shard. `Send` so that it can be made before its core's thread is; not `Sync`.
#[derive(Debug)]
pub struct Shard {
    config: ShardConfig,
    segment: Segment,
    allocator: ExtentAllocator,
    slots: Slots,
    index: Index,
    /// Says "not here" without the index. Told of the same keys.
    filter: KeyFilter,
    /// When its rate of false positives is measured next.
    next_probe: Instant,
    /// The same keys in order, if the configuration wants them.
    radix: Option<Radix>,
    /// What was said of the chains that are asked for again and again.
    group_answers: GroupAnswers,
    /// Order of eviction of published objects without a pin.
    policy: Policy,
    /// Order of eviction of soft-pinned objects, which go when nothing unpinned can.
    soft_pinned: Lru,
    /// Hard-pinned objects, newest first.
    hard_pinned: Queue,
    /// Which leases end when, and what waits for that.
    leases: LeaseWheel,
    /// What the shard sets for itself.
    tuning: Tuning,
    /// When it's to look next.
    next_tuning: Instant,
    /// The longest leases that may be granted, in milliseconds: what the configuration or a drain says.
    lease_limit_ms: u32,
    /// Length of the leases granted now, in milliseconds.
    lease_ms: u32,
    unfinished: Slab<UnfinishedPut>,
    peers: HashMap<PeerId, PeerPuts>,
    /// Peers that are gone and whose unfinished puts `tick` ends.
    gone_peers: VecDeque<PeerId>,
    /// Puts that the shard gave up, until the transport has taken notice.
    given_up: Vec<PutTicket>,
    /// Where `tick` goes on looking for puts that make no progress.
    put_cursor: usize,
    /// Finds objects whose time has ended.
    expiry: ExpiryHand,
    /// Published objects that have a time to live.
    mortal_objects: u32,
    /// Free memory fell below the lower watermark and hasn't reached the upper one.
    is_evicting_ahead: bool,
    /// Objects of the neighbourhood that is being evicted; kept for its memory.
    window: Vec<SlotId>,
    /// Reads that the order of eviction doesn't know of yet.
    later_touches: Vec<(SlotId, Generation)>,
    counters: Counters,
    #[cfg(any(test, feature = "planted-faults"))]
    planted_faults: PlantedFaults,
}

impl Shard {
    /// A shard without objects on a segment of its own, whose page it writes. Its key filter is this process's alone.
    ///
    /// # Errors
    /// [`ExtentError::Segment`] for a segment that can't hold its page and one extent.
    pub fn new(config: ShardConfig, segment: Segment) -> Result<Self, ExtentError> {
        let filter_memory = Segment::heap(Shard::filter_bytes(segment.len()))?;
        Shard::with_filter(config, segment, filter_memory)
    }

    /// [`Shard::new`] with memory of [`Shard::filter_bytes`], all zero, for the key filter.
    ///
    /// # Errors
    /// As for [`Shard::new`], and for memory that is too short.
    pub fn with_filter(
        config: ShardConfig,
        mut segment: Segment,
        filter_memory: Segment,
    ) -> Result<Self, ExtentError> {
        write_segment_page(&config, &mut segment)?;
        let page_units = SEGMENT_PAGE_BYTES / UNIT_BYTES;
        // A shard's segment has at most 256 GiB, which is what a u32 of units reaches; more would lie idle.
        let units = (segment.len() / UNIT_BYTES).min(u64::from(u32::MAX)).saturating_sub(page_units);
        let range = Extent { start: page_units as u32, units: units as u32 };
        let lease_ms = whole_millis(config.lease_ttl.min(config.max_lease_ttl));
        let allocator = ExtentAllocator::new(&mut segment, range)?;
        Ok(Self {
            slots: Slots::new(config.max_objects),
            index: Index::new(),
            filter: known_keys::filter(&config, &segment, filter_memory)?,
            next_probe: config.started,
            radix: config.prefix_index.then(Radix::default),
            group_answers: GroupAnswers::new(segment.len()),
            policy: Policy::new(config.policy, units),
            soft_pinned: Lru::default(),
            hard_pinned: Queue::new(),
            leases: LeaseWheel::new(config.max_lease_ttl),
            tuning: Tuning::new(config.tuned, config.watermarks, lease_ms),
            next_tuning: config.started,
            lease_limit_ms: lease_ms,
            lease_ms,
            unfinished: Slab::new(),
            peers: HashMap::new(),
            gone_peers: VecDeque::new(),
            given_up: Vec::new(),
            put_cursor: 0,
            expiry: ExpiryHand::default(),
            mortal_objects: 0,
            is_evicting_ahead: false,
            window: Vec::new(),
            later_touches: Vec::new(),
            counters: Counters::default(),
            #[cfg(any(test, feature = "planted-faults"))]
            planted_faults: PlantedFaults::default(),
            config,
            segment,
            allocator,
        })
    }

    /// What the shard was made with.
    pub fn config(&self) -> &ShardConfig {
        &self.config
    }

    /// Whether a key with this hash belongs here.
    #[inline]
    pub fn owns(&self, hash: KeyHash) -> bool {
        hash.shard(self.config.shards) == self.config.shard
    }

    /// The bytes, to send from.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The bytes, to receive into: only into the extent of an unfinished put that is pinned for it.
    pub fn segment_mut(&mut self) -> &mut Segment {
        &mut self.segment
    }

    /// The word that tells clients whether the shard's pump sleeps; see `lanner_shared::shm::park`. `None` can't happen:
    /// a shard isn't made on a segment without its page.
    pub fn parked_word(&self) -> Option<&AtomicU32> {
        self.segment.word(PARKED_OFFSET).ok()
    }

    /// How long leases granted from now on are at most, in whole milliseconds: no more than what the configuration allows. A drain
    /// shortens it. The shard may grant shorter ones.
    pub fn set_lease_ttl(&mut self, lease_ttl: Duration) {
        self.lease_limit_ms = whole_millis(lease_ttl.min(self.config.max_lease_ttl));
        self.lease_ms = self.lease_limit_ms.min(self.tuning.lease_ms());
    }

    /// Plants faults, for a test to find.
    #[cfg(any(test, feature = "planted-faults"))]
    pub fn plant_faults(&mut self, faults: PlantedFaults) {
        self.planted_faults = faults;
        self.group_answers.takes_lists_for_another = faults.takes_lists_for_another;
    }
}

fn whole_millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn write_segment_page(config: &ShardConfig, segment: &mut Segment) -> Result<(), ExtentError> {
    let identity = SegmentIdentity {
        magic: SEGMENT_MAGIC,
        format: SEGMENT_FORMAT.into(),
        shard: config.shard.0.into(),
        shards: config.shards.into(),
        boot_id: config.boot_id,
        segment_bytes: segment.len().into(),
        reserved: [0; 24],
    };
    segment.write(0, &[0; SEGMENT_PAGE_BYTES as usize])?;
    segment.write(0, identity.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a shard can be handed to its core's thread, and, by its segment's pointer, to no second one.
    #[test]
    fn a_shard_can_move_to_its_core() {
        fn is_send<T: Send>() {}
        is_send::<Shard>();
    }

    /// Shows what clients find at the front of the segment, and that a segment without room for it is refused.
    #[test]
    fn the_segment_page_names_the_shard() {
        let config = ShardConfig { shard: ShardId(3), shards: 5, boot_id: [7; 16], ..ShardConfig::default() };
        let shard = Shard::new(config.clone(), Segment::heap(1 << 20).unwrap()).unwrap();
        let page = shard.segment().slice(0, 64).unwrap();
        assert_eq!(page[..8], SEGMENT_MAGIC);
        assert_eq!(page[8..16], [1, 0, 0, 0, 3, 0, 5, 0]);
        assert_eq!(page[16..32], [7; 16]);
        assert_eq!(page[32..40], (1u64 << 20).to_le_bytes());
        assert!(shard.parked_word().is_some());
        assert!(Shard::new(config, Segment::heap(4096).unwrap()).is_err());
    }
}
