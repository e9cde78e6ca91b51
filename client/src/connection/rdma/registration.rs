//! Memory of a caller's that is registered with the devices that lead to its servers: one region for each domain, made when a link of that
//! domain first needs it and used again from then on.
//!
//! What always holds: work is posted on a region, or bytes of it are offered to a server, only within a blocking call that borrows the
//! registration; and such a call returns only once the posts are done and the offers answered, or their link was dropped, after which the
//! device uses nothing of it any more. So whoever has the buffer back has it alone.

use super::link::RdmaLink;
use lanner_rdma::verbs::device::Domain;
use lanner_rdma::verbs::memory::Access;
pub(crate) use lanner_rdma::verbs::memory::Region;
use lanner_shared::wire::put_offered::ValueOffer;
use lanner_shared::{Error, Result};
use std::sync::{Arc, OnceLock};

/// Domains that a buffer can be registered in: a client's servers are mostly reached by one device, and a device that was taken away and came
/// back is another one. Beyond these, reads and puts pass the link's own memory.
const MOST_DOMAINS: usize = 8;

/// The registrations of one buffer.
#[derive(Debug)]
pub(crate) struct Registrations {
    start: *mut u8,
    length: usize,
    places: [OnceLock<Place>; MOST_DOMAINS],
}

/// A domain, and the region in it unless the device refused.
#[derive(Debug)]
struct Place {
    domain: Arc<Domain>,
    region: Option<Region>,
}

// SAFETY: the pointer is only handed to devices, under the promise of `new`.
unsafe impl Send for Registrations {}
// SAFETY: as above; places are set once.
unsafe impl Sync for Registrations {}

impl Registrations {
    /// Registrations of `length` bytes at `start`, none yet.
    ///
    /// # Safety
    /// The bytes stay mapped, and are plain memory, until the value is dropped.
    pub unsafe fn new(start: *mut u8, length: usize) -> Registrations {
        Registrations { start, length, places: Default::default() }
    }

    /// Registers the buffer in the link's domain, if it isn't. System calls, unless it is.
    ///
    /// # Errors
    /// What the device says, and the way out.
    pub fn register(&self, link: &RdmaLink) -> Result<()> {
        if self.length == 0 || self.known(link.domain()).is_some() {
            return Ok(());
        }
        // SAFETY: the bytes stay mapped until behind the region's end (promise of `new`, which `self` keeps by its fields).
        let made = unsafe { Region::new(link.domain(), self.start, self.length as u64, Access::RemoteRead) };
        let (region, outcome) = match made {
            Ok(region) => (Some(region), Ok(())),
            Err(error) => {
                let (what, reason) = ("registering a buffer".into(), error.to_string().into());
                (None, Err(Error::System { what, reason }))
            }
        };
        let mut place = Place { domain: link.domain().clone(), region };
        for free in &self.places {
            match free.set(place) {
                Ok(()) => break,
                // Another thread's, maybe for this very domain: one of the two is used, and both are good.
                Err(back) => place = back,
            }
        }
        outcome
    }

    /// The region in the link's domain: made now if there is none yet; `None` where the device refuses it.
    #[inline]
    pub fn region(&self, link: &RdmaLink) -> Option<&Region> {
        // With no place left it would be registered for this call alone, which takes longer than the copy.
        if self.known(link.domain()).is_none() && self.places.iter().any(|place| place.get().is_none()) {
            let _ = self.register(link);
        }
        self.known(link.domain())?.region.as_ref()
    }

    /// What a server has to know to READ `value`, which lies in the buffer, over the link.
    pub fn offer(&self, link: &RdmaLink, value: &[u8]) -> Option<ValueOffer> {
        let region = self.region(link).filter(|_| link.reads_values())?;
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
        !self.places.iter().filter_map(OnceLock::get).any(|place| place.region.is_some())
    }

    #[inline]
    fn known(&self, domain: &Arc<Domain>) -> Option<&Place> {
        self.places.iter().map_while(OnceLock::get).find(|place| Arc::ptr_eq(&place.domain, domain))
    }
}
