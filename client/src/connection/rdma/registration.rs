//! Memory of a caller's that is registered with the devices that lead to its servers: one region for each domain, made when a link of that
//! domain first needs it and used again from then on.
//!
//! What always holds: work is posted on a region, or bytes of it are offered to a server, only within a blocking call that borrows the
//! registration; and such a call returns only once the posts are done and the offers answered, or their link was dropped, after which the
//! device uses nothing of it any more. So whoever has the buffer back has it alone.
//!
//! A region holds its device open. One whose device has gone, or to whose domain no connection leads any more, is forgotten ([`tidy`]): by the link
//! that notices first, or by the next call of any registered buffer, once a second. It ends with the last who holds it: what was posted or offered goes on
//! with the region that it began with, and no call takes another one meanwhile. Nothing new is registered with a device that has gone.

use super::link::RdmaLink;
use crate::fork::OfProcess;
use arc_swap::ArcSwap;
use lanner_rdma::verbs::device::Domain;
use lanner_rdma::verbs::memory::Access;
pub(crate) use lanner_rdma::verbs::memory::Region;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::put_offered::ValueOffer;
use lanner_shared::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two looks of calls for devices that have gone: some system calls.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// When calls look next, nanoseconds of the monotonic clock. Any thread writes it, and two that look at once do no harm.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);

/// All buffers of the process.
#[expect(
    clippy::disallowed_types,
    reason = "taken when a buffer is registered or dropped, and once a second"
)]
type Buffers = std::sync::Mutex<Vec<Weak<Places>>>;

/// A parent's are none of its child's, which would end the parent's registrations.
static BUFFERS: OfProcess<Buffers> = OfProcess::new();

/// For the child of a fork.
pub(super) fn forget_buffers() {
    BUFFERS.forget();
}

/// The registrations of one buffer. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Registrations(Arc<Places>);

/// Where a buffer is registered.
#[derive(Debug)]
struct Places {
    start: *mut u8,
    length: usize,
    list: ArcSwap<Vec<Arc<Place>>>,
    /// Taken to change the list, and until what was taken out of it is gone.
    #[expect(clippy::disallowed_types, reason = "taken when the list is changed only")]
    changes: std::sync::Mutex<()>,
}

/// A domain, and the region in it unless the device refused.
#[derive(Debug)]
struct Place {
    // Dropped before the domain.
    region: Option<Arc<Region>>,
    domain: Arc<Domain>,
}

/// A value that a server is to READ.
pub(crate) struct Offer {
    /// What the server has to know.
    pub value: ValueOffer,
    /// What the value lies in. Held until the server has answered, or the link was dropped.
    pub region: Arc<Region>,
}

// SAFETY: the pointer is only handed to devices, under the promise of `Registrations::new`.
unsafe impl Send for Places {}
// SAFETY: as above; the list is changed as a whole.
unsafe impl Sync for Places {}

impl Registrations {
    /// Registrations of `length` bytes at `start`, none yet.
    ///
    /// # Safety
    /// The bytes stay mapped, and are plain memory, until the value is dropped.
    pub unsafe fn new(start: *mut u8, length: usize) -> Registrations {
        let places = Places { start, length, list: ArcSwap::default(), changes: Default::default() };
        let places = Arc::new(places);
        let mut buffers = BUFFERS.get().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        buffers.retain(|known| known.strong_count() > 0);
        buffers.push(Arc::downgrade(&places));
        Registrations(places)
    }

    /// Registers the buffer in the link's domain, if it isn't and the domain's device is there. System calls, unless it is registered.
    ///
    /// # Errors
    /// What the device says, and the way out.
    pub fn register(&self, link: &RdmaLink) -> Result<()> {
        let places = &*self.0;
        if places.length == 0 || places.find(link.domain()).is_some() || !link.domain().device().is_there() {
            return Ok(());
        }
        // Before this one holds on to anything more.
        tidy();
        let _changes = places.changes();
        if places.find(link.domain()).is_some() {
            return Ok(());
        }
        // SAFETY: the bytes stay mapped until behind the region's end (promise of `new`, kept as `drop` says).
        let made =
            unsafe { Region::new(link.domain(), places.start, places.length as u64, Access::RemoteRead) };
        let (region, outcome) = match made {
            Ok(region) => (Some(Arc::new(region)), Ok(())),
            Err(error) => {
                let (what, reason) = ("registering a buffer".into(), error.to_string().into());
                (None, Err(Error::System { what, reason }))
            }
        };
        let mut list = Vec::clone(&places.list.load());
        list.push(Arc::new(Place { region, domain: link.domain().clone() }));
        places.list.store(Arc::new(list));
        outcome
    }

    /// The region in the link's domain, made now if there is none yet; `None` if the device refuses, or has gone. For a call to hold for as long as it
    /// has anything under way that was begun with it: the next one may get another.
    #[inline]
    pub fn region(&self, link: &RdmaLink) -> Option<Arc<Region>> {
        let found = self.0.find(link.domain()).or_else(|| {
            let _ = self.register(link);
            self.0.find(link.domain())
        });
        found?
    }

    /// How far from the buffer's first byte `bytes` begin, if all of them are in it.
    #[inline]
    pub fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.0.start as usize)?;
        let end = offset.checked_add(bytes.len())?;
        (end <= self.0.length).then_some(offset as u64)
    }

    /// What a server has to know to READ `value`, which lies in the buffer, over the link.
    pub fn offer(&self, link: &RdmaLink, value: &[u8]) -> Option<Offer> {
        if !link.reads_values() {
            return None;
        }
        self.offset_of(value)?;
        let region = self.region(link)?;
        let value = ValueOffer {
            address: (value.as_ptr() as u64).into(),
            value_bytes: (value.len() as u64).into(),
            key: region.remote_key().into(),
            reserved: 0.into(),
        };
        Some(Offer { value, region })
    }

    /// Whether it's registered nowhere.
    pub fn is_empty(&self) -> bool {
        !self.0.list.load().iter().any(|place| place.region.is_some())
    }

    /// Lets go of what has gone, of all buffers, if nobody has looked for a while.
    #[inline]
    pub fn look_after_devices(&self) {
        if !self.0.list.load().is_empty() {
            let now = Clock.now();
            if now >= Instant(NEXT_LOOK.load(Ordering::Relaxed)) {
                NEXT_LOOK.store(now.plus(LOOK_PAUSE).0, Ordering::Relaxed);
                tidy();
            }
        }
    }

    /// The same now.
    pub fn let_go_of_what_has_gone(&self) {
        if !self.0.list.load().is_empty() {
            tidy();
        }
    }
}

impl Drop for Registrations {
    /// No region is left when this returns. Calls borrow this, so none is left that holds one; what they posted or offered was done, or dropped with its
    /// link, when they returned; and who tidies up has `changes`.
    fn drop(&mut self) {
        let _changes = self.0.changes();
        let places = self.0.list.swap(Arc::default());
        let is_alone =
            |place: &Arc<Place>| place.region.as_ref().is_none_or(|region| Arc::strong_count(region) == 1);
        debug_assert!(places.iter().all(is_alone), "a region of {places:?} is still in use");
    }
}

impl Places {
    /// What there is in the domain: the region, unless the device refused.
    #[inline]
    fn find(&self, domain: &Arc<Domain>) -> Option<Option<Arc<Region>>> {
        let list = self.list.load();
        let place = list.iter().find(|place| Arc::ptr_eq(&place.domain, domain))?;
        Some(place.region.clone())
    }

    fn changes(&self) -> std::sync::MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Forgets all registrations with devices that have gone, and those in domains that nothing but registered buffers refers to. They end, unless they are in
/// use. System calls.
#[cold]
pub(crate) fn tidy() {
    let buffers: Vec<Arc<Places>> = {
        let known = BUFFERS.get().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.iter().filter_map(Weak::upgrade).collect()
    };
    let mut domains: Vec<(Arc<Domain>, usize)> = Vec::new();
    for places in &buffers {
        let _changes = places.changes();
        for place in places.list.load().iter() {
            let references = 1 + usize::from(place.region.is_some());
            match domains.iter_mut().find(|(domain, _)| Arc::ptr_eq(domain, &place.domain)) {
                Some((_, count)) => *count += references,
                None => domains.push((place.domain.clone(), references)),
            }
        }
    }
    // One more is the list's.
    domains.retain(|(domain, of_buffers)| {
        !domain.device().is_there() || Arc::strong_count(domain) <= of_buffers + 1
    });
    if domains.is_empty() {
        return;
    }
    let stays = |place: &Place| !domains.iter().any(|(domain, _)| Arc::ptr_eq(domain, &place.domain));
    for places in &buffers {
        let _changes = places.changes();
        let old = places.list.load_full();
        if !old.iter().all(|place| stays(place)) {
            let kept = old.iter().filter(|place| stays(place)).cloned().collect();
            places.list.store(Arc::new(kept));
        }
        drop(old);
    }
}
