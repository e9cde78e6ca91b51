//! The entry of each object on a shard: 32 bytes, never moved, reused with a new generation.
//!
//! Called by the shard, and by eviction policies and the quarantine for the links of their queues. What always holds:
//! a slot's generation is another one after its extent was freed, and a pair of slot and generation never names two
//! objects (a slot whose generations are used up is retired). So a client's descriptor is checked by one access to one
//! slot. Absent on purpose: key and value lengths, which the extent's header holds.
//!
//! ```text
//! 0        4        8            12         16     20               24        28         29      30          32
//! │ extent │ extent │ generation │ previous │ next │ lease end, low │ expires │ lease    │ state │ in flight │
//! │ start  │ units  │            │          │      │                │ (s)     │ end high │       │           │
//! └────────┴────────┴────────────┴─ in the queue it hangs in ───────┴─────────┴──────────┴───────┴───────────┘
//! state: bits 0-1 life · 2-3 frequency · 4-5 pin · 6 second queue · 7 set aside
//! ```
//!
//! When an object was published stands beside, in an array that only publication and eviction touch, and when it was last used, in one so
//! dense that a use that needs no more than it stays in the caches. So does what blocks of a chain need beside, in memory that is taken
//! when the first block comes into a chunk.

use super::extents::Extent;
use lanner_shared::wire::put::Pin;

/// The number of an object's entry on its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

impl SlotId {
    /// No slot: the end of a queue.
    pub(crate) const NONE: SlotId = SlotId(u32::MAX);

    /// `None` for [`SlotId::NONE`].
    pub(crate) fn some(self) -> Option<SlotId> {
        if self == SlotId::NONE { None } else { Some(self) }
    }
}

/// Which of a slot's successive objects is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(pub u32);

/// Numbers from here on name no slot: policies write the ends of their queues as such.
pub(crate) const FIRST_END: u32 = u32::MAX - (1 << 16);

/// How a block of a chain hangs in it, for the order of eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kin {
    /// The block before it in its group, or [`Kin::NO_PARENT`].
    pub(crate) parent: SlotId,
    /// Published blocks that hang on this one.
    pub(crate) children: u32,
    /// The low half of the parent's generation, so that another object in the parent's slot isn't taken for it.
    pub(crate) parent_generation: u16,
}

impl Kin {
    /// The parent of a block that hangs on none that is here.
    pub(crate) const NO_PARENT: SlotId = SlotId(u32::MAX - 1);
    /// What an object has that is no block of a chain.
    pub(crate) const NONE: Kin = Kin { parent: SlotId::NONE, children: 0, parent_generation: 0 };
}

/// Bytes that a block of a chain takes here more than another object.
pub const BYTES_PER_BLOCK: usize = size_of::<Kin>();

const _: () = assert!(BYTES_PER_BLOCK == 12);

/// A point in time in milliseconds since the shard started; 40 bits, so 34 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ShardMillis(pub u64);

/// How far an object has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Life {
    /// The slot has no object.
    Vacant = 0,
    /// The value is being received.
    Unfinished = 1,
    /// The index leads to it.
    Published = 2,
    /// Gone for new readers; the extent waits for the last lease and the last transfer.
    Hidden = 3,
}

/// Accesses counted up to this (S3-FIFO's two bits).
pub const MAX_FREQUENCY: u8 = 3;

/// Steps of [`Slots::use_class`].
pub(crate) const USE_CLASSES: usize = 2 * (MAX_FREQUENCY as usize + 1);

const MAX_LEASE_END: u64 = (1 << 40) - 1;
const LIFE_MASK: u8 = 0b11;
const FREQUENCY_SHIFT: u8 = 2;
const PIN_SHIFT: u8 = 4;
const SECOND_QUEUE: u8 = 1 << 6;
const SET_ASIDE: u8 = 1 << 7;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Slot {
    extent_start: u32,
    extent_units: u32,
    generation: u32,
    previous: u32,
    next: u32,
    lease_end_low: u32,
    expires_seconds: u32,
    lease_end_high: u8,
    state: u8,
    in_flight: u16,
}

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES);

/// Bytes of one slot.
pub const SLOT_BYTES: usize = 32;

/// Bytes that an object takes here: its slot, when it was published and when it was last used.
pub const BYTES_PER_OBJECT: usize = SLOT_BYTES + size_of::<u32>() + size_of::<u16>();

const VACANT: Slot = Slot {
    extent_start: 0,
    extent_units: 0,
    generation: 0,
    previous: u32::MAX,
    next: u32::MAX,
    lease_end_low: 0,
    expires_seconds: 0,
    lease_end_high: 0,
    state: Life::Vacant as u8,
    in_flight: 0,
};

/// Slots come in chunks of this many (128 KiB): growth allocates one chunk and copies nothing.
const CHUNK_SLOTS: u32 = 4096;

#[derive(Debug)]
struct Chunk {
    slots: Box<[Slot]>,
    /// When each slot's object was published, in tenths of a second since the shard started.
    published_tenths: Box<[u32]>,
    /// When each slot's object was last used, as its policy tells it.
    used_at: Box<[u16]>,
    /// Empty until a block of a chain is among the objects.
    kin: Box<[Kin]>,
}

/// All slots of a shard. Reading a slot that doesn't exist gives a vacant one, writing it does nothing: a wrong number
/// is harmless here, and the shard compares generations before it believes one.
#[derive(Debug)]
pub struct Slots {
    chunks: Vec<Chunk>,
    /// Slots ever handed out; those behind are fresh.
    made: u32,
    limit: u32,
    /// First vacant slot of those handed out before; they hang on each other by `next`.
    first_vacant: SlotId,
    occupied: u32,
}

impl Slots {
    /// No slots yet, and never more than `limit`.
    pub fn new(limit: u32) -> Self {
        // The largest numbers stand for "none" and for ends in links.
        let limit = limit.min(FIRST_END);
        Self { chunks: Vec::new(), made: 0, limit, first_vacant: SlotId::NONE, occupied: 0 }
    }

    /// A slot for an unfinished object in `extent`, or `None` at the limit.
    pub fn occupy(&mut self, extent: Extent) -> Option<SlotId> {
        let id = match self.first_vacant.some() {
            Some(id) => {
                self.first_vacant = self.next(id);
                id
            }
            None => self.make()?,
        };
        self.occupied += 1;
        self.update(id, |slot| {
            *slot = Slot {
                extent_start: extent.start,
                extent_units: extent.units,
                generation: slot.generation,
                state: Life::Unfinished as u8,
                ..VACANT
            };
        });
        if self.kin(id) != Kin::NONE {
            self.set_kin(id, Kin::NONE);
        }
        Some(id)
    }

    /// Ends the slot's object: every descriptor of it is stale from now on. The caller has freed the extent.
    pub fn vacate(&mut self, id: SlotId) {
        if self.life(id) == Life::Vacant {
            return;
        }
        self.occupied -= 1;
        let retired = self.slot(id).generation == u32::MAX - 1;
        let first_vacant = self.first_vacant;
        self.update(id, |slot| {
            *slot = Slot { generation: slot.generation + 1, next: first_vacant.0, ..VACANT };
        });
        // The last generation is given to no object, and the slot to nobody: after four thousand million objects.
        if !retired {
            self.first_vacant = id;
        }
    }

    /// Number of slots with an object, unfinished and hidden ones included.
    pub fn occupied(&self) -> u32 {
        self.occupied
    }

    /// Slots handed out so far; every object's number is below.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// The most slots that there can be.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Bytes of memory that the slots take.
    pub fn bytes(&self) -> u64 {
        let kin: usize = self.chunks.iter().map(|chunk| chunk.kin.len() * BYTES_PER_BLOCK).sum();
        (self.chunks.len() * CHUNK_SLOTS as usize * BYTES_PER_OBJECT + kin) as u64
    }

    /// Where the object lies.
    #[inline]
    pub fn extent(&self, id: SlotId) -> Extent {
        let slot = self.slot(id);
        Extent { start: slot.extent_start, units: slot.extent_units }
    }

    /// Where the object of this generation lies, if it can be read: published, or hidden and its memory not given back.
    #[inline]
    pub fn readable(&self, id: SlotId, generation: Generation) -> Option<Extent> {
        let slot = self.slot(id);
        let life = slot.state & LIFE_MASK;
        let is_readable = life >= Life::Published as u8 && slot.generation == generation.0;
        is_readable.then_some(Extent { start: slot.extent_start, units: slot.extent_units })
    }

    /// Units of the object's extent.
    #[inline]
    pub fn units(&self, id: SlotId) -> u32 {
        self.slot(id).extent_units
    }

    /// Which of the slot's objects this is.
    #[inline]
    pub fn generation(&self, id: SlotId) -> Generation {
        Generation(self.slot(id).generation)
    }

    /// How far the object has come.
    #[inline]
    pub fn life(&self, id: SlotId) -> Life {
        match self.slot(id).state & LIFE_MASK {
            0 => Life::Vacant,
            1 => Life::Unfinished,
            2 => Life::Published,
            _ => Life::Hidden,
        }
    }

    pub(crate) fn set_life(&mut self, id: SlotId, life: Life) {
        self.update(id, |slot| slot.state = slot.state & !LIFE_MASK | life as u8);
    }

    /// Accesses since it was last asked to leave, at most [`MAX_FREQUENCY`].
    #[inline]
    pub fn frequency(&self, id: SlotId) -> u8 {
        self.slot(id).state >> FREQUENCY_SHIFT & MAX_FREQUENCY
    }

    pub(crate) fn set_frequency(&mut self, id: SlotId, frequency: u8) {
        let bits = frequency.min(MAX_FREQUENCY) << FREQUENCY_SHIFT;
        self.update(id, |slot| slot.state = slot.state & !(MAX_FREQUENCY << FREQUENCY_SHIFT) | bits);
    }

    /// How the object withstands eviction.
    #[inline]
    pub fn pin(&self, id: SlotId) -> Pin {
        match self.slot(id).state >> PIN_SHIFT & 0b11 {
            0 => Pin::None,
            1 => Pin::Soft,
            _ => Pin::Hard,
        }
    }

    pub(crate) fn set_pin(&mut self, id: SlotId, pin: Pin) {
        self.update(id, |slot| slot.state = slot.state & !(0b11 << PIN_SHIFT) | (pin as u8) << PIN_SHIFT);
    }

    /// Whether the object is in its policy's second queue rather than the first.
    #[inline]
    pub fn in_second_queue(&self, id: SlotId) -> bool {
        self.slot(id).state & SECOND_QUEUE != 0
    }

    pub(crate) fn set_in_second_queue(&mut self, id: SlotId, second: bool) {
        self.update(id, |slot| set_bit(&mut slot.state, SECOND_QUEUE, second));
    }

    /// Whether the object waits for the end of its lease: set aside by eviction, or hidden and in quarantine.
    #[inline]
    pub fn is_set_aside(&self, id: SlotId) -> bool {
        self.slot(id).state & SET_ASIDE != 0
    }

    pub(crate) fn set_set_aside(&mut self, id: SlotId, aside: bool) {
        self.update(id, |slot| set_bit(&mut slot.state, SET_ASIDE, aside));
    }

    /// When the last lease on the object ends; zero if there never was one.
    #[inline]
    pub fn lease_end(&self, id: SlotId) -> ShardMillis {
        let slot = self.slot(id);
        ShardMillis(u64::from(slot.lease_end_high) << 32 | u64::from(slot.lease_end_low))
    }

    /// Sets the end of the last lease. The caller has rounded it up, so that no lease ends early.
    pub(crate) fn set_lease_end(&mut self, id: SlotId, end: ShardMillis) {
        let end = end.0.min(MAX_LEASE_END);
        self.update(id, |slot| {
            slot.lease_end_low = end as u32;
            slot.lease_end_high = (end >> 32) as u8;
        });
    }

    /// When the object's time to live ends, in seconds since the shard started; 0 for never.
    #[inline]
    pub fn expires_seconds(&self, id: SlotId) -> u32 {
        self.slot(id).expires_seconds
    }

    pub(crate) fn set_expires_seconds(&mut self, id: SlotId, seconds: u32) {
        self.update(id, |slot| slot.expires_seconds = seconds);
    }

    /// When the object was published, in tenths of a second since the shard started.
    pub fn published_tenths(&self, id: SlotId) -> u32 {
        let chunk = self.chunks.get((id.0 / CHUNK_SLOTS) as usize);
        let tenths = chunk.and_then(|chunk| chunk.published_tenths.get((id.0 % CHUNK_SLOTS) as usize));
        tenths.copied().unwrap_or(0)
    }

    pub(crate) fn set_published_tenths(&mut self, id: SlotId, tenths: u32) {
        let chunk = self.chunks.get_mut((id.0 / CHUNK_SLOTS) as usize);
        let place = chunk.and_then(|chunk| chunk.published_tenths.get_mut((id.0 % CHUNK_SLOTS) as usize));
        if let Some(place) = place {
            *place = tenths;
        }
    }

    /// When the object was last used: the policy's to write and to read.
    #[inline]
    pub(crate) fn used_at(&self, id: SlotId) -> u16 {
        let chunk = self.chunks.get((id.0 / CHUNK_SLOTS) as usize);
        let used_at = chunk.and_then(|chunk| chunk.used_at.get((id.0 % CHUNK_SLOTS) as usize));
        used_at.copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn set_used_at(&mut self, id: SlotId, used_at: u16) {
        let chunk = self.chunks.get_mut((id.0 / CHUNK_SLOTS) as usize);
        if let Some(place) = chunk.and_then(|chunk| chunk.used_at.get_mut((id.0 % CHUNK_SLOTS) as usize)) {
            *place = used_at;
        }
    }

    /// How many uses are known of the object, on a scale of [`USE_CLASSES`] steps: the frequency's bits and that of the second
    /// queue, for a policy that has no queues in that sense.
    #[inline]
    pub(crate) fn use_class(&self, id: SlotId) -> u8 {
        self.frequency(id) | u8::from(self.in_second_queue(id)) << 2
    }

    pub(crate) fn set_use_class(&mut self, id: SlotId, class: u8) {
        self.set_frequency(id, class & MAX_FREQUENCY);
        self.set_in_second_queue(id, class > MAX_FREQUENCY);
    }

    /// How the object hangs in a chain.
    #[inline]
    pub(crate) fn kin(&self, id: SlotId) -> Kin {
        let chunk = self.chunks.get((id.0 / CHUNK_SLOTS) as usize);
        let kin = chunk.and_then(|chunk| chunk.kin.get((id.0 % CHUNK_SLOTS) as usize));
        kin.copied().unwrap_or(Kin::NONE)
    }

    pub(crate) fn set_kin(&mut self, id: SlotId, kin: Kin) {
        let Some(chunk) = self.chunks.get_mut((id.0 / CHUNK_SLOTS) as usize) else { return };
        if chunk.kin.is_empty() {
            chunk.kin = vec![Kin::NONE; CHUNK_SLOTS as usize].into_boxed_slice();
        }
        if let Some(place) = chunk.kin.get_mut((id.0 % CHUNK_SLOTS) as usize) {
            *place = kin;
        }
    }

    /// Transfers by the kernel or a device that still use the extent.
    #[inline]
    pub fn in_flight(&self, id: SlotId) -> u16 {
        self.slot(id).in_flight
    }

    /// Counts one more transfer; `false`, and nothing counted, at the most that can be counted.
    pub(crate) fn begin_transfer(&mut self, id: SlotId) -> bool {
        let Some(more) = self.in_flight(id).checked_add(1) else { return false };
        self.update(id, |slot| slot.in_flight = more);
        true
    }

    /// Counts one transfer less, and returns how many are left.
    pub(crate) fn end_transfer(&mut self, id: SlotId) -> u16 {
        let left = self.in_flight(id).saturating_sub(1);
        self.update(id, |slot| slot.in_flight = left);
        left
    }

    /// The neighbour towards the front of the queue that the slot hangs in.
    pub(crate) fn previous(&self, id: SlotId) -> SlotId {
        SlotId(self.slot(id).previous)
    }

    /// The neighbour towards the back of the queue that the slot hangs in.
    pub(crate) fn next(&self, id: SlotId) -> SlotId {
        SlotId(self.slot(id).next)
    }

    pub(crate) fn set_previous(&mut self, id: SlotId, previous: SlotId) {
        self.update(id, |slot| slot.previous = previous.0);
    }

    pub(crate) fn set_next(&mut self, id: SlotId, next: SlotId) {
        self.update(id, |slot| slot.next = next.0);
    }

    #[inline]
    fn slot(&self, id: SlotId) -> &Slot {
        let chunk = self.chunks.get((id.0 / CHUNK_SLOTS) as usize);
        chunk.and_then(|chunk| chunk.slots.get((id.0 % CHUNK_SLOTS) as usize)).unwrap_or(&VACANT)
    }

    #[inline]
    fn update(&mut self, id: SlotId, change: impl FnOnce(&mut Slot)) {
        let chunk = self.chunks.get_mut((id.0 / CHUNK_SLOTS) as usize);
        if let Some(slot) = chunk.and_then(|chunk| chunk.slots.get_mut((id.0 % CHUNK_SLOTS) as usize)) {
            change(slot);
        }
    }

    fn make(&mut self) -> Option<SlotId> {
        if self.made >= self.limit {
            return None;
        }
        if self.made.is_multiple_of(CHUNK_SLOTS) {
            self.chunks.push(Chunk {
                slots: vec![VACANT; CHUNK_SLOTS as usize].into_boxed_slice(),
                published_tenths: vec![0; CHUNK_SLOTS as usize].into_boxed_slice(),
                used_at: vec![0; CHUNK_SLOTS as usize].into_boxed_slice(),
                kin: Box::default(),
            });
        }
        self.made += 1;
        Some(SlotId(self.made - 1))
    }
}

fn set_bit(state: &mut u8, bit: u8, set: bool) {
    if set {
        *state |= bit;
    } else {
        *state &= !bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: Extent = Extent { start: 5, units: 9 };

    /// Shows that each field keeps its value when every other one is set to its extreme.
    #[test]
    fn fields_do_not_run_into_each_other() {
        let mut slots = Slots::new(10);
        let id = slots.occupy(EXTENT).unwrap();
        let end = ShardMillis(0x12_3456_789a);
        slots.set_life(id, Life::Published);
        slots.set_frequency(id, 2);
        slots.set_pin(id, Pin::Hard);
        slots.set_in_second_queue(id, true);
        slots.set_set_aside(id, true);
        slots.set_lease_end(id, end);
        slots.set_expires_seconds(id, u32::MAX);
        slots.set_previous(id, SlotId(7));
        slots.set_next(id, SlotId(8));
        assert!(slots.begin_transfer(id));
        assert_eq!((slots.life(id), slots.frequency(id), slots.pin(id)), (Life::Published, 2, Pin::Hard));
        assert!(slots.in_second_queue(id) && slots.is_set_aside(id));
        slots.set_frequency(id, 200);
        slots.set_pin(id, Pin::Soft);
        slots.set_in_second_queue(id, false);
        assert_eq!((slots.life(id), slots.frequency(id), slots.pin(id)), (Life::Published, 3, Pin::Soft));
        assert!(!slots.in_second_queue(id) && slots.is_set_aside(id));
        assert_eq!((slots.lease_end(id), slots.expires_seconds(id)), (end, u32::MAX));
        assert_eq!((slots.previous(id), slots.next(id), slots.in_flight(id)), (SlotId(7), SlotId(8), 1));
        assert_eq!(slots.extent(id), EXTENT);
        slots.set_lease_end(id, ShardMillis(u64::MAX));
        assert_eq!(slots.lease_end(id), ShardMillis(MAX_LEASE_END), "the far future stays far");
    }

    /// Shows that a slot comes back with another generation and a clean state, and that growth keeps what there is.
    #[test]
    fn slots_are_reused_under_a_new_generation() {
        let mut slots = Slots::new(3 * CHUNK_SLOTS);
        let ids: Vec<_> = (0..2 * CHUNK_SLOTS + 1).map(|_| slots.occupy(EXTENT).unwrap()).collect();
        assert_eq!(slots.bytes(), 3 * 4096 * 38);
        let before = slots.generation(ids[3]);
        slots.set_pin(ids[3], Pin::Hard);
        slots.vacate(ids[3]);
        assert_eq!(slots.life(ids[3]), Life::Vacant);
        assert_ne!(slots.generation(ids[3]), before, "stale at once, not only when reused");
        slots.vacate(ids[3]);
        assert_eq!(slots.occupied(), 2 * CHUNK_SLOTS, "vacating twice counts once");
        assert_eq!(slots.occupy(EXTENT), Some(ids[3]));
        assert_eq!((slots.pin(ids[3]), slots.in_flight(ids[3])), (Pin::None, 0));
    }

    /// Shows that a slot whose generations are used up isn't given out again, and that the limit holds.
    #[test]
    fn a_worn_out_slot_is_retired() {
        let mut slots = Slots::new(2);
        let id = slots.occupy(EXTENT).unwrap();
        slots.update(id, |slot| slot.generation = u32::MAX - 1);
        slots.vacate(id);
        let other = slots.occupy(EXTENT).unwrap();
        assert_ne!(other, id);
        assert_eq!(slots.occupy(EXTENT), None);
    }

    /// Shows that transfers are counted to the limit and no further.
    #[test]
    fn transfers_are_counted_within_bounds() {
        let mut slots = Slots::new(1);
        let id = slots.occupy(EXTENT).unwrap();
        assert_eq!(slots.end_transfer(id), 0);
        for _ in 0..u16::MAX {
            assert!(slots.begin_transfer(id));
        }
        assert!(!slots.begin_transfer(id));
        assert_eq!(slots.end_transfer(id), u16::MAX - 1);
    }

    /// Shows that only blocks of chains pay for their kin, that a class of uses takes the bits of queue and frequency and no
    /// others, and that the slot's next object has neither.
    #[test]
    fn kin_is_paid_for_by_blocks() {
        let mut slots = Slots::new(2 * CHUNK_SLOTS);
        let ids: Vec<_> = (0..CHUNK_SLOTS + 1).map(|_| slots.occupy(EXTENT).unwrap()).collect();
        let before = slots.bytes();
        let kin = Kin { parent: ids[1], children: 3, parent_generation: 4 };
        slots.set_used_at(ids[2], 5);
        slots.set_kin(ids[2], kin);
        assert_eq!(slots.bytes() - before, u64::from(CHUNK_SLOTS) * 12);
        assert_eq!((slots.kin(ids[2]), slots.kin(ids[1])), (kin, Kin::NONE));
        slots.set_pin(ids[2], Pin::Hard);
        for class in 0..USE_CLASSES as u8 {
            slots.set_use_class(ids[2], class);
            assert_eq!((slots.use_class(ids[2]), slots.pin(ids[2])), (class, Pin::Hard));
            assert_eq!((slots.used_at(ids[2]), slots.used_at(ids[1])), (5, 0));
        }
        slots.vacate(ids[2]);
        assert_eq!(slots.occupy(EXTENT), Some(ids[2]));
        assert_eq!((slots.kin(ids[2]), slots.use_class(ids[2])), (Kin::NONE, 0));
    }

    /// Shows that a number that no slot has is harmless.
    #[test]
    fn unknown_slots_are_vacant() {
        let mut slots = Slots::new(1);
        for id in [SlotId(0), SlotId(77), SlotId::NONE] {
            slots.set_life(id, Life::Published);
            slots.vacate(id);
            assert_eq!((slots.life(id), slots.occupied()), (Life::Vacant, 0));
        }
    }
}
