//! Callers' own memory that devices read and write directly: registered once, used again and again.
//!
//! | call | over RDMA | over shared memory and TCP |
//! |---|---|---|
//! | reads of snapshots and ranges, values of more than 4 KiB | READ straight to their place | as into any other buffer |
//! | puts of more than 8 KiB | the server READs the value from its place | as from any other buffer |
//!
//! What always holds: a device, or the server through one, uses the memory within a call only, and each call here is waited for. A call that
//! gives up ends its queue pair before it returns. So between calls the bytes are the caller's alone, and they can't be freed during one.
//! Calls in two halves ([`crate::Pending`]) are absent on purpose: one that is forgotten would leave a device writing to memory given back.

use crate::call::get::{GetCall, Target};
use crate::call::put::{PutCall, PutOptions};
use crate::call::run;
use crate::client::Client;
use crate::connection::rdma::registration::Registrations;
use crate::lane::{Route, with_lane};
use crate::snapshot::ranges::{self, Range};
use crate::snapshot::{Freshness, Snapshot};
use lanner_shared::time::Clock;
use lanner_shared::wire::put::PutMode;
use lanner_shared::{Error, Result};
use std::marker::PhantomData;
use std::ops::{self, Deref, DerefMut};
use std::ptr::NonNull;

/// What [`Client::register`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The buffer is registered with a device, which reads and writes it directly.
    WithDevice,
    /// None of this client's connections is over RDMA now: calls copy, as they do for any buffer. Should RDMA come (back), the first call
    /// that can use it registers the buffer.
    NotNeeded,
}

/// A buffer of the caller's that is registered with the RDMA devices which lead to a client's servers.
///
/// Dereferences to its bytes. Dropping it ends the registration, which takes system calls. It holds the buffer's pages in memory
/// meanwhile; they count against the limit on locked memory (`ulimit -l`). The servers of the client can read the buffer, and nobody else
/// can: don't keep secrets from them there. A handle that is forgotten (`std::mem::forget`) never ends its registration, so the pages stay in
/// memory and readable by the servers until the process ends; nothing is ever written to them.
#[derive(Debug)]
pub struct Registered<'a> {
    client: Client,
    // Dropped before the buffer is the caller's again.
    registrations: Registrations,
    start: NonNull<u8>,
    length: usize,
    buffer: PhantomData<&'a mut [u8]>,
}

// SAFETY: it's as good as the `&mut [u8]` that it was made from.
unsafe impl Send for Registered<'_> {}
// SAFETY: as above: through `&` the bytes are only read.
unsafe impl Sync for Registered<'_> {}

impl Deref for Registered<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: made from a slice that is borrowed for as long as this lives; no device writes there while nobody has `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Registered<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.split().0
    }
}

impl Client {
    /// Registers `buffer` with the RDMA devices that lead to this client's servers, to be read to and put from without a copy. Connects to
    /// the servers if need be, and blocks: registering takes some 100 us a mebibyte of small pages, so do it once, for memory that is used
    /// again and again. Where no server is reached over RDMA this does nothing, and [`Registered::registration`] says so.
    ///
    /// # Errors
    /// `System` if a device refuses: mostly the limit on locked memory, which the text names.
    pub fn register<'a>(&self, buffer: &'a mut [u8]) -> Result<Registered<'a>> {
        let (start, length) = (NonNull::from(&mut *buffer).cast::<u8>(), buffer.len());
        // SAFETY: the buffer is borrowed for longer than `Registered` lives, whose field the registrations are.
        let registrations = unsafe { Registrations::new(start.as_ptr(), length) };
        for server in 0..self.inner.server_count() {
            let route = Route { server: server as u16, shard: 0 };
            with_lane(&self.inner, |lane| match lane.connection(&self.inner, route) {
                Ok(connection) => connection.link().map_or(Ok(()), |link| registrations.register(link)),
                // Calls say so.
                Err(_) => Ok(()),
            })?;
        }
        Ok(Registered { client: self.clone(), registrations, start, length, buffer: PhantomData })
    }
}

impl Registered<'_> {
    /// Whether a device has the buffer now. Ends registrations with devices that have gone. Some system calls if there are any.
    #[must_use]
    pub fn registration(&self) -> Registration {
        self.registrations.let_go_of_what_has_gone();
        if self.registrations.is_empty() { Registration::NotNeeded } else { Registration::WithDevice }
    }

    /// [`Client::put_with`] of the bytes at `place`.
    pub fn put(&self, key: &[u8], place: ops::Range<usize>, options: PutOptions<'_>) -> Result<()> {
        self.put_batch(&[(key, place)], options)?.pop().unwrap_or(Ok(()))
    }

    /// [`Client::upsert_with`] of the bytes at `place`.
    pub fn upsert(&self, key: &[u8], place: ops::Range<usize>, options: PutOptions<'_>) -> Result<()> {
        self.upsert_batch(&[(key, place)], options)?.pop().unwrap_or(Ok(()))
    }

    /// [`Client::put_batch`] of the bytes at each place.
    pub fn put_batch<K: AsRef<[u8]>>(
        &self,
        items: &[(K, ops::Range<usize>)],
        options: PutOptions<'_>,
    ) -> Result<Vec<Result<()>>> {
        self.store(items, PutMode::Put, options)
    }

    /// [`Client::upsert_batch`] of the bytes at each place.
    pub fn upsert_batch<K: AsRef<[u8]>>(
        &self,
        items: &[(K, ops::Range<usize>)],
        options: PutOptions<'_>,
    ) -> Result<Vec<Result<()>>> {
        self.store(items, PutMode::Upsert, options)
    }

    fn store<K: AsRef<[u8]>>(
        &self,
        items: &[(K, ops::Range<usize>)],
        mode: PutMode,
        options: PutOptions<'_>,
    ) -> Result<Vec<Result<()>>> {
        let mut valued: Vec<(&[u8], &[u8])> = Vec::with_capacity(items.len());
        for (key, place) in items {
            let value = self.get(place.clone()).ok_or_else(|| beyond(place, self.length))?;
            valued.push((key.as_ref(), value));
        }
        self.registrations.look_after_devices();
        let client = &self.client.inner;
        let mut call = PutCall::new(client, &valued, mode, options)?.of_registered(&self.registrations);
        run(client, &mut call)?;
        Ok(call.outcomes)
    }

    /// [`Client::get_into`] to the start of `place`. After an error the bytes there are of no meaning.
    pub fn get_into(&mut self, key: &[u8], place: ops::Range<usize>) -> Result<u64> {
        self.get_into_batch(&[key], &[place])?.pop().unwrap_or(Err(Error::NotFound { index: 0 }))
    }

    /// [`Client::get_into_batch`] to places that don't overlap.
    pub fn get_into_batch<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        places: &[ops::Range<usize>],
    ) -> Result<Vec<Result<u64>>> {
        Client::check_buffers(keys.len(), places.len())?;
        self.registrations.look_after_devices();
        let client = self.client.inner.clone();
        let (bytes, registrations) = self.split();
        let mut buffers = disjoint(bytes, places)?;
        let call = GetCall::new(&client, keys, Target::Given(&mut buffers))?;
        let mut call = call.into_registered(registrations);
        run(&client, &mut call)?;
        Ok(call.outcomes.into_vec())
    }

    /// [`Client::read_ranges_from_snapshot`] to this buffer.
    pub fn read_ranges_from_snapshot(
        &mut self,
        snapshot: &Snapshot,
        ranges: &[Range],
        freshness: Freshness,
    ) -> Result<()> {
        let lengths = |key: u32| snapshot.value_bytes(key as usize);
        ranges::check(ranges, snapshot.len(), self.length as u64, lengths)?;
        self.registrations.look_after_devices();
        let client = self.client.clone();
        let (bytes, registrations) = self.split();
        client.read_registered(snapshot, ranges, bytes, freshness, registrations)
    }

    /// [`Client::read_ranges_refreshing`] to this buffer.
    pub fn read_ranges_refreshing(
        &mut self,
        snapshot: &mut Snapshot,
        ranges: &[Range],
        freshness: Freshness,
    ) -> Result<()> {
        if snapshot.needs_refresh(Clock.now()) {
            self.client.refresh_snapshot(snapshot)?;
        }
        match self.read_ranges_from_snapshot(snapshot, ranges, freshness) {
            Err(Error::LeaseExpired { .. } | Error::EpochChanged) => {
                self.client.refresh_snapshot(snapshot)?;
                self.read_ranges_from_snapshot(snapshot, ranges, freshness)
            }
            outcome => outcome,
        }
    }

    /// [`Client::read_ranges`] to this buffer.
    pub fn read_ranges<K: AsRef<[u8]>>(&mut self, keys: &[K], ranges: &[Range]) -> Result<()> {
        self.registrations.look_after_devices();
        let client = self.client.clone();
        let (bytes, registrations) = self.split();
        client.read_ranges_to(keys, ranges, bytes, Some(registrations))
    }

    /// The bytes, and the registrations of them.
    fn split(&mut self) -> (&mut [u8], &Registrations) {
        // SAFETY: made from a mutable slice that is borrowed for as long as this lives. A device writes there only behind a call that has these
        // bytes, which looks at what is written once the device is done.
        (unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }, &self.registrations)
    }
}

/// The bytes at each place, in their order.
fn disjoint<'b>(bytes: &'b mut [u8], places: &[ops::Range<usize>]) -> Result<Vec<&'b mut [u8]>> {
    let length = bytes.len();
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_unstable_by_key(|index| (places[*index].start, places[*index].end));
    let mut parts: Vec<(usize, &'b mut [u8])> = Vec::with_capacity(places.len());
    let (mut rest, mut at) = (bytes, 0);
    for index in order {
        let place = &places[index];
        if place.start > place.end || place.end > length {
            return Err(beyond(place, length));
        }
        let Some(gap) = place.start.checked_sub(at) else {
            let text = format!("place {index} ({place:?}) overlaps another one; each value needs its own");
            return Err(Error::InvalidArgument(text.into()));
        };
        let (part, behind) = rest.split_at_mut(gap).1.split_at_mut(place.len());
        parts.push((index, part));
        (rest, at) = (behind, place.end);
    }
    parts.sort_unstable_by_key(|(index, _)| *index);
    Ok(parts.into_iter().map(|(_, part)| part).collect())
}

#[cold]
fn beyond(place: &ops::Range<usize>, length: usize) -> Error {
    Error::InvalidArgument(format!("{place:?} is no place in a registered buffer of {length} bytes").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_in_their_own_order_and_never_overlap() {
        let mut bytes: Vec<u8> = (0..100).collect();
        let parts = disjoint(&mut bytes, &[50..60, 0..10, 10..10, 60..100]).expect("they don't overlap");
        let firsts: Vec<Option<u8>> = parts.iter().map(|part| part.first().copied()).collect();
        assert_eq!(firsts, [Some(50), Some(0), None, Some(60)]);
        for (places, says) in [
            (vec![0..10, 9..20], "overlaps"),
            (vec![5..6, 5..6], "overlaps"),
            (vec![0..1, 90..101], "100 bytes"),
            (vec![0..1, ops::Range { start: 7, end: 3 }], "no place"),
        ] {
            let error = disjoint(&mut bytes, &places).expect_err("refused").to_string();
            assert!(error.contains(says), "{places:?}: {error}");
        }
    }
}
