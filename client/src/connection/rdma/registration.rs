//! Memory of a caller's that is registered with the devices that lead to its servers: one region for each domain, made when a link of that
//! domain first needs it and used again from then on.
//!
//! What always holds: work is posted on a region, or bytes of it are offered to a server, only within a blocking call that borrows the
//! registration; and such a call returns only once the posts are done and the offers answered, or their link was dropped, after which the
//! device uses nothing of it any more. So whoever has the buffer back has it alone.
//!
//! A region holds its device open. One whose device has gone, or to whose domain no connection leads any more, is let go of ([`tidy`]): by the link
//! that notices first, or by the next call of any registered buffer, once a second. What a call has under way on it fails at the device.

use super::link::RdmaLink;
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
static BUFFERS: std::sync::Mutex<Vec<Weak<Places>>> = std::sync::Mutex::new(Vec::new());

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
    region: Option<Region>,
    domain: Arc<Domain>,
}

/// A place in use: it stays until this is dropped, whatever becomes of the list.
pub(crate) struct Held {
    list: arc_swap::Guard<Arc<Vec<Arc<Place>>>>,
    at: usize,
}

impl Held {
    /// The region, unless the device refused.
    #[inline]
    pub fn region(&self) -> Option<&Region> {
        self.list.get(self.at)?.region.as_ref()
    }
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
        let mut buffers = BUFFERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        buffers.retain(|known| known.strong_count() > 0);
        buffers.push(Arc::downgrade(&places));
        Registrations(places)
    }

    /// Registers the buffer in the link's domain, if it isn't. System calls, unless it is.
    ///
    /// # Errors
    /// What the device says, and the way out.
    pub fn register(&self, link: &RdmaLink) -> Result<()> {
        let places = &*self.0;
        if places.length == 0 || places.find(link.domain()).is_some() {
            return Ok(());
        }
        // Before this one holds on to anything more.
        tidy();
        let _changes = places.changes();
        if places.find(link.domain()).is_some() {
            return Ok(());
        }
        // SAFETY: the bytes stay mapped until behind the region's end (promise of `new`, kept by `drop`).
        let made =
            unsafe { Region::new(link.domain(), places.start, places.length as u64, Access::RemoteRead) };
        let (region, outcome) = match made {
            Ok(region) => (Some(region), Ok(())),
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

    /// The place in the link's domain: made now if there is none yet.
    #[inline]
    pub fn held(&self, link: &RdmaLink) -> Option<Held> {
        self.0.find(link.domain()).or_else(|| {
            let _ = self.register(link);
            self.0.find(link.domain())
        })
    }

    /// What a server has to know to READ `value`, which lies in the buffer, over the link.
    pub fn offer(&self, link: &RdmaLink, value: &[u8]) -> Option<ValueOffer> {
        if !link.reads_values() {
            return None;
        }
        let held = self.held(link)?;
        let region = held.region()?;
        region.offset_of(value)?;
        Some(ValueOffer {
            address: (value.as_ptr() as u64).into(),
            value_bytes: (value.len() as u64).into(),
            key: region.remote_key().into(),
            reserved: 0.into(),
        })
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
    /// No region is left when this returns: nobody holds one, for a call borrows this, and who tidies up has `changes`.
    fn drop(&mut self) {
        let _changes = self.0.changes();
        self.0.list.store(Arc::default());
    }
}

impl Places {
    #[inline]
    fn find(&self, domain: &Arc<Domain>) -> Option<Held> {
        let list = self.list.load();
        let at = list.iter().position(|place| Arc::ptr_eq(&place.domain, domain))?;
        Some(Held { list, at })
    }

    fn changes(&self) -> std::sync::MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Ends all registrations with devices that have gone, and those in domains that nothing but registered buffers refers to. System calls.
#[cold]
pub(crate) fn tidy() {
    let buffers: Vec<Arc<Places>> = {
        let known = BUFFERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
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
