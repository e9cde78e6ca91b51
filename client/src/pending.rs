//! Calls in two halves, for a caller that overlaps them: `submit_…` starts one, [`Pending::poll`] asks whether it's done.
//!
//! The first call to a shard goes out at once; those that are submitted while it's unanswered go out together, when the first
//! of them is polled or 16 KiB have come together.
//!
//! A caller's buffers are written only inside `poll` and `wait`, so a [`Pending`] may be dropped or forgotten at any time:
//! the call is then given up, and nobody writes into its buffers any more. A `Pending` belongs to the thread that made it.
//!
//! The value of a put goes out inside `poll` and `wait` too. One that is half written and not polled any more keeps other calls of its thread
//! waiting for 10 ms; then they go over another connection, and the put ends with its owner's next polls, or never.

use crate::call::get::{GetCall, Target};
use crate::call::keys::{Flags, KeysCall};
use crate::call::longest_prefix::PrefixesCall;
use crate::call::match_chain::MatchCall;
use crate::call::one_sided::{self, OneSidedCall, Sources};
use crate::call::put::{PutCall, PutOptions};
use crate::call::read::ReadCall;
use crate::call::{Call, Exchange, give_up, time_out};
use crate::client::{Client, ClientInner};
use crate::lane::{Lane, Route, with_lane};
use crate::snapshot::ranges::{self, Range};
use crate::snapshot::{Freshness, Snapshot, Source};
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::put::PutMode;
use lanner_shared::{Error, Result, key};
use std::marker::PhantomData;
use std::task::Poll;

/// A call under way, whose outcome is a `T`.
#[must_use = "a call that is dropped is given up"]
pub struct Pending<'a, T> {
    client: Client,
    call: Option<Box<dyn Outcome<T> + 'a>>,
    /// What became of the call, if that was known at once.
    early: Option<Result<()>>,
    deadline: Instant,
    /// The connections that the call runs on belong to this thread.
    not_send: PhantomData<*const ()>,
}

/// A call whose outcome can be taken when it's done.
trait Outcome<T>: Call {
    fn outcome(self: Box<Self>) -> Result<T>;
}

impl<'a, T> Pending<'a, T> {
    fn start(client: &Client, call: impl Outcome<T> + 'a) -> Pending<'a, T> {
        let deadline = Clock.now().plus(client.inner.config().timeout);
        let call: Option<Box<dyn Outcome<T> + 'a>> = Some(Box::new(call));
        let mut pending =
            Pending { client: client.clone(), call, early: None, deadline, not_send: PhantomData };
        // Sends what can be sent.
        if let Poll::Ready(outcome) = pending.advance() {
            pending.early = Some(outcome);
        }
        pending
    }

    fn advance(&mut self) -> Poll<Result<()>> {
        let Some(call) = self.call.as_mut() else { return Poll::Pending };
        let inner = &self.client.inner;
        with_lane(inner, |lane| call.poll(lane, inner))
    }

    /// Moves the call on without waiting. Ready once; after that it's pending for ever.
    pub fn poll(&mut self) -> Poll<Result<T>> {
        let outcome = match self.early.take().map_or_else(|| self.advance(), Poll::Ready) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending if Clock.now() < self.deadline => return Poll::Pending,
            Poll::Pending => self.time_out(),
        };
        let Some(mut call) = self.call.take() else { return Poll::Pending };
        if let Err(error) = outcome {
            with_lane(&self.client.inner, |lane| give_up(lane, &mut *call));
            return Poll::Ready(Err(error));
        }
        Poll::Ready(call.outcome())
    }

    #[cold]
    fn time_out(&mut self) -> Result<()> {
        let Some(call) = self.call.as_mut() else { return Ok(()) };
        let inner = &self.client.inner;
        with_lane(inner, |lane| time_out(inner, lane, &mut **call))
    }

    /// Waits for the outcome, spinning.
    pub fn wait(mut self) -> Result<T> {
        loop {
            if let Poll::Ready(outcome) = self.poll() {
                return outcome;
            }
            std::hint::spin_loop();
        }
    }
}

impl<T> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        if let Some(call) = &mut self.call {
            with_lane(&self.client.inner, |lane| give_up(lane, &mut **call));
        }
    }
}

impl Client {
    /// Starts [`Client::put_batch`].
    pub fn submit_put_batch<'a, K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        items: &'a [(K, V)],
        options: PutOptions<'a>,
    ) -> Result<Pending<'a, Vec<Result<()>>>> {
        Ok(Pending::start(self, PutCall::new(&self.inner, items, PutMode::Put, options)?))
    }

    /// Starts [`Client::upsert_batch`].
    pub fn submit_upsert_batch<'a, K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        items: &'a [(K, V)],
        options: PutOptions<'a>,
    ) -> Result<Pending<'a, Vec<Result<()>>>> {
        Ok(Pending::start(self, PutCall::new(&self.inner, items, PutMode::Upsert, options)?))
    }

    /// Starts [`Client::get_batch`].
    pub fn submit_get_batch<'a, K: AsRef<[u8]>>(
        &self,
        keys: &'a [K],
    ) -> Result<Pending<'a, Vec<Result<Vec<u8>>>>> {
        let target = Target::New(keys.iter().map(|_| Vec::new()).collect());
        Ok(Pending::start(self, NewBuffers(GetCall::new(&self.inner, keys, target)?)))
    }

    /// Starts [`Client::get_into_batch`].
    pub fn submit_get_into_batch<'a, 'b: 'a, K: AsRef<[u8]>>(
        &self,
        keys: &'a [K],
        buffers: &'a mut [&'b mut [u8]],
    ) -> Result<Pending<'a, Vec<Result<u64>>>> {
        Client::check_buffers(keys.len(), buffers.len())?;
        Ok(Pending::start(self, GivenBuffers(GetCall::new(&self.inner, keys, Target::Given(buffers))?)))
    }

    /// Starts [`Client::exists_batch`]. What a filter in reach says is absent is known at once; only the rest is asked.
    pub fn submit_exists_batch<'a, K: AsRef<[u8]>>(&self, keys: &'a [K]) -> Result<Pending<'a, Vec<bool>>> {
        Ok(Pending::start(self, self.exists_call(keys)?))
    }

    /// Starts [`Client::longest_prefix_batch`].
    pub fn submit_longest_prefix_batch<'a, K: AsRef<[u8]>>(
        &self,
        keys: &'a [K],
    ) -> Result<Pending<'a, Vec<Option<&'a [u8]>>>> {
        for (index, key) in keys.iter().enumerate() {
            key::checked(key.as_ref(), index)?;
        }
        Ok(Pending::start(self, PrefixesCall::new(keys)))
    }

    /// Starts [`Client::match_chains`].
    pub fn submit_match_chains<'a, K: AsRef<[u8]>>(
        &self,
        chains: &'a [&'a [K]],
    ) -> Result<Pending<'a, Vec<Snapshot>>> {
        let call = MatchCall::new(&self.inner, chains)?;
        Ok(Pending::start(self, Matching { client: self.clone(), call }))
    }

    /// Starts [`Client::remove_batch`].
    pub fn submit_remove_batch<'a, K: AsRef<[u8]>>(&self, keys: &'a [K]) -> Result<Pending<'a, Vec<bool>>> {
        Ok(Pending::start(
            self,
            KeysCall::new(&self.inner, keys, Flags::<true> { flags: vec![false; keys.len()] })?,
        ))
    }

    /// Starts [`Client::read_ranges_from_snapshot`]. What lies in shared memory is read at once.
    pub fn submit_read_ranges_from_snapshot<'a>(
        &self,
        snapshot: &'a Snapshot,
        ranges: &'a [Range],
        destination: &'a mut [u8],
        freshness: Freshness,
    ) -> Result<Pending<'a, ()>> {
        let lengths = |key: u32| snapshot.value_bytes(key as usize);
        ranges::check(ranges, snapshot.len(), destination.len() as u64, lengths)?;
        snapshot.check_lease()?;
        if snapshot.has_local_source() {
            self.read_local(snapshot, ranges, destination, freshness)?;
        }
        let one_sided = with_lane(&self.inner, |lane| one_sided::sources(lane, &self.inner, snapshot));
        let is_remote = |(source, one_sided): (&Source, &bool)| source.mapping.is_some() || *one_sided;
        if one_sided.contains(&true) && snapshot.sources.iter().zip(&one_sided).all(is_remote) {
            let call = OneSidedCall::new(snapshot, ranges, destination, freshness, &one_sided);
            return Ok(Pending::start(self, call));
        }
        let none = Sources::new();
        Ok(Pending::start(self, ReadCall::new(snapshot, ranges, destination, freshness, &none)))
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> Outcome<Vec<Result<()>>> for PutCall<'_, K, V> {
    fn outcome(self: Box<Self>) -> Result<Vec<Result<()>>> {
        Ok(self.outcomes)
    }
}

impl<K: AsRef<[u8]>, const REMOVES: bool> Outcome<Vec<bool>> for KeysCall<'_, K, Flags<REMOVES>> {
    fn outcome(self: Box<Self>) -> Result<Vec<bool>> {
        Ok(self.answers.flags)
    }
}

impl<'a, K: AsRef<[u8]>> Outcome<Vec<Option<&'a [u8]>>> for PrefixesCall<'a, K> {
    fn outcome(self: Box<Self>) -> Result<Vec<Option<&'a [u8]>>> {
        Ok(self.into_prefixes())
    }
}

/// Chains that are matched, and the client that makes snapshots of what was found.
struct Matching<'a, K> {
    client: Client,
    call: MatchCall<'a, K>,
}

impl<K: AsRef<[u8]>> Outcome<Vec<Snapshot>> for Matching<'_, K> {
    fn outcome(self: Box<Self>) -> Result<Vec<Snapshot>> {
        self.call.into_snapshots(&self.client)
    }
}

impl<K: AsRef<[u8]>> Call for Matching<'_, K> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        self.call.poll(lane, client)
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.call.each_exchange(act);
    }
}

impl Outcome<()> for OneSidedCall<'_, [Range]> {
    fn outcome(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Outcome<()> for ReadCall<'_> {
    fn outcome(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A get that makes its buffers.
struct NewBuffers<'a, 'b, K>(GetCall<'a, 'b, K>);
/// A get into its caller's buffers.
struct GivenBuffers<'a, 'b, K>(GetCall<'a, 'b, K>);

impl<K: AsRef<[u8]>> Outcome<Vec<Result<Vec<u8>>>> for NewBuffers<'_, '_, K> {
    fn outcome(self: Box<Self>) -> Result<Vec<Result<Vec<u8>>>> {
        Ok(self.0.into_values())
    }
}

impl<K: AsRef<[u8]>> Outcome<Vec<Result<u64>>> for GivenBuffers<'_, '_, K> {
    fn outcome(self: Box<Self>) -> Result<Vec<Result<u64>>> {
        Ok(self.0.outcomes.into_vec())
    }
}

impl<K: AsRef<[u8]>> Call for NewBuffers<'_, '_, K> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        self.0.poll(lane, client)
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.0.each_exchange(act);
    }

    fn keep_what_came(&mut self, error: &dyn Fn(Route) -> Error) -> bool {
        self.0.keep_what_came(error)
    }
}

impl<K: AsRef<[u8]>> Call for GivenBuffers<'_, '_, K> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        self.0.poll(lane, client)
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        self.0.each_exchange(act);
    }

    fn keep_what_came(&mut self, error: &dyn Fn(Route) -> Error) -> bool {
        self.0.keep_what_came(error)
    }
}
