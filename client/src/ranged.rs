//! Ranged reads that ask first: by key, without a snapshot of the caller's.

use crate::call::read_ranges::ReadRangesCall;
use crate::call::run;
use crate::client::Client;
use crate::config::TransportChoice;
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
            return self.read_some_keys(keys, places, ranges, destination);
        }
        self.read_once_or_twice(keys, ranges, destination)
    }

    /// [`Client::read_ranges`] of those keys that have a place in `places`, which is made anew here.
    #[cold]
    fn read_some_keys<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut places: Vec<Option<u32>>,
        ranges: &[Range],
        destination: &mut [u8],
    ) -> Result<()> {
        let needed: Vec<usize> = (0..keys.len()).filter(|key| places[*key].is_some()).collect();
        (0..).zip(&needed).for_each(|(place, key)| places[*key] = Some(place));
        let needed_keys: Vec<&K> = needed.iter().map(|key| &keys[*key]).collect();
        let moved = |range: &Range| Range { key: places[range.key as usize].unwrap_or(0), ..*range };
        let moved: Vec<Range> = ranges.iter().map(moved).collect();
        match self.read_once_or_twice(&needed_keys, &moved, destination) {
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
    ) -> Result<()> {
        match self.read_once(keys, ranges, destination) {
            Err(Error::LeaseExpired { .. }) => self.read_once(keys, ranges, destination),
            outcome => outcome,
        }
    }

    fn read_once<K: AsRef<[u8]>>(&self, keys: &[K], ranges: &[Range], destination: &mut [u8]) -> Result<()> {
        let snapshot = self.prepare(KeyList::default(), keys)?;
        self.read_ranges_from_snapshot(&snapshot, ranges, destination, Freshness::Lease)
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
