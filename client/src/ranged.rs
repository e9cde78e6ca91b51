//! Ranged reads that ask first: by key, without a snapshot of the caller's.

use crate::call::read_ranges::ReadRangesCall;
use crate::call::run;
use crate::client::Client;
use crate::config::TransportChoice;
use crate::connection::rdma::registration::Registrations;
use crate::lane::with_lane;
use crate::snapshot::ranges::{self, Range};
use crate::snapshot::{Freshness, KeyList};
use lanner_shared::{Error, KeyHash, Result};

impl Client {
    /// Reads ranges of the objects under `keys` as they are now: asks first, then reads. `Range::key` is a place in `keys`.
    /// `NotFound` names a key that a range needs and that isn't there; of keys that no range needs nobody is asked. Repeated once if a lease
    /// ends during the read.
    pub fn read_ranges<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        ranges: &[Range],
        destination: &mut [u8],
    ) -> Result<()> {
        self.read_ranges_to(keys, ranges, destination, None)
    }

    /// [`Client::read_ranges`], to registered memory where `registrations` are those of what `destination` lies in.
    pub(crate) fn read_ranges_to<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        ranges: &[Range],
        destination: &mut [u8],
        registrations: Option<&Registrations>,
    ) -> Result<()> {
        ranges::check(ranges, keys.len(), destination.len() as u64, |key| {
            ((key as usize) < keys.len()).then_some(u64::MAX)
        })?;
        if !self.reads_locally(keys)? {
            let mut call = ReadRangesCall::new(&self.inner, keys, ranges, destination)?;
            return run(&self.inner, &mut call);
        }
        let mut places: Vec<Option<u32>> = vec![None; keys.len()];
        ranges.iter().for_each(|range| places[range.key as usize] = Some(0));
        if places.contains(&None) {
            return self.read_some_keys(keys, places, ranges, destination, registrations);
        }
        self.read_once_or_twice(keys, ranges, destination, registrations)
    }

    /// [`Client::read_ranges`] of those keys that have a place in `places`, which is made anew here.
    #[cold]
    fn read_some_keys<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut places: Vec<Option<u32>>,
        ranges: &[Range],
        destination: &mut [u8],
        registrations: Option<&Registrations>,
    ) -> Result<()> {
        let needed: Vec<usize> = (0..keys.len()).filter(|key| places[*key].is_some()).collect();
        (0..).zip(&needed).for_each(|(place, key)| places[*key] = Some(place));
        let needed_keys: Vec<&K> = needed.iter().map(|key| &keys[*key]).collect();
        let moved = |range: &Range| Range { key: places[range.key as usize].unwrap_or(0), ..*range };
        let moved: Vec<Range> = ranges.iter().map(moved).collect();
        match self.read_once_or_twice(&needed_keys, &moved, destination, registrations) {
            Err(Error::NotFound { index }) => {
                Err(Error::NotFound { index: needed.get(index as usize).map_or(index, |key| *key as u64) })
            }
            outcome => outcome,
        }
    }

    fn read_once_or_twice<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        ranges: &[Range],
        destination: &mut [u8],
        registrations: Option<&Registrations>,
    ) -> Result<()> {
        match self.read_once(keys, ranges, destination, registrations) {
            Err(Error::LeaseExpired { .. }) => self.read_once(keys, ranges, destination, registrations),
            outcome => outcome,
        }
    }

    fn read_once<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        ranges: &[Range],
        destination: &mut [u8],
        registrations: Option<&Registrations>,
    ) -> Result<()> {
        let snapshot = self.prepare(KeyList::default(), keys)?;
        match registrations {
            None => self.read_ranges_from_snapshot(&snapshot, ranges, destination, Freshness::Lease),
            Some(registrations) => {
                let lengths = |key: u32| snapshot.value_bytes(key as usize);
                ranges::check(ranges, keys.len(), destination.len() as u64, lengths)?;
                self.read_registered(&snapshot, ranges, destination, Freshness::Lease, registrations)
            }
        }
    }

    /// Whether any of `keys` lies where this thread can read it itself, in shared memory or one-sided.
    fn reads_locally<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<bool> {
        for (index, key) in keys.iter().enumerate() {
            lanner_shared::key::checked(key.as_ref(), index)?;
        }
        if self.inner.config().transport == TransportChoice::Tcp {
            return Ok(false);
        }
        with_lane(&self.inner, |lane| {
            for key in keys {
                let key = key.as_ref();
                let route = self.inner.route(KeyHash::of(key));
                let connection = lane.connection(&self.inner, route)?;
                if connection.mapping().is_some() || connection.link().is_some() {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}
