//! The client: every call of the library, blocking; [`crate::pending`] has the same calls in two halves.
//!
//! A [`Client`] is a handle that may be cloned and shared. Each thread that uses it has connections of its own
//! ([`crate::lane`]), so threads share no lock on the data path. Every call ends within the configured time-out.

use crate::call::absent::{self, Verdict};
use crate::call::get::{GetCall, Target};
use crate::call::keys::{Asked, Descriptors, Flags, KeysCall};
use crate::call::list::{ListCall, Listed, Pages, StatsCall};
use crate::call::longest_prefix::PrefixesCall;
use crate::call::one_sided::{self, OneSidedCall};
use crate::call::put::{PutCall, PutOptions};
use crate::call::read::ReadCall;
use crate::call::run;
use crate::cluster::{Cluster, Patience};
use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::connection::handshake::Caller;
use crate::connection::rdma::registration::Registrations;
use crate::lane::{Route, with_lane};
use crate::snapshot::ranges::{self, Range, Ranges};
use crate::snapshot::{Freshness, KeyList, Snapshot, Source};
use lanner_shared::error::WireError;
use lanner_shared::time::{Clock, Instant};
use lanner_shared::wire::Descriptor;
use lanner_shared::wire::put::PutMode;
use lanner_shared::{Error, KeyHash, Result};
use std::sync::Arc;
use std::time::Duration;

/// A handle on one or more servers. Cheap to clone; clones and threads may use it at the same time.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) inner: Arc<ClientInner>,
}

/// What all clones share.
#[derive(Debug)]
pub(crate) struct ClientInner {
    id: u64,
    config: ClientConfig,
    cluster: Cluster,
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        crate::lane::close_lane(self.id);
    }
}

impl ClientInner {
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    pub fn server_count(&self) -> usize {
        self.cluster.servers().len()
    }

    pub fn routes(&self) -> impl Iterator<Item = Route> {
        self.cluster.routes()
    }

    #[inline]
    pub fn route(&self, hash: KeyHash) -> Route {
        self.cluster.route(hash)
    }

    /// Whether the last connection to the shard's server is over shared memory.
    #[inline]
    pub fn is_local(&self, route: Route) -> bool {
        self.cluster.servers()[usize::from(route.server)].is_local()
    }

    pub fn server_address(&self, route: Route) -> Box<str> {
        self.cluster.servers().get(usize::from(route.server)).map_or("?", |server| &*server.address).into()
    }

    /// Makes a connection. Blocks for as long as `patience` says at most; what of that went by before its turn came is added to `waited`.
    pub fn connect_to(
        &self,
        route: Route,
        serial: u64,
        patience: Patience,
        waited: &mut Duration,
    ) -> Result<Connection> {
        let caller = Caller { config: &self.config, client_id: self.id, until: patience.until };
        let server = &self.cluster.servers()[usize::from(route.server)];
        server.connect(caller, patience, waited, route.shard, serial)
    }
}

/// A server as it described itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// HOST:PORT.
    pub address: String,
    /// Random at each start of the server.
    pub boot_id: [u8; 16],
    /// Number of shards.
    pub shards: u16,
    /// Bytes for values, all shards together.
    pub capacity_bytes: u64,
    /// The largest value that it takes, in bytes.
    pub max_value_bytes: u64,
    /// The lease that it grants, in milliseconds.
    pub lease_ms: u32,
}

/// What has gone wrong with RDMA on the way to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaFailures {
    /// HOST:PORT.
    pub server: String,
    /// Attempts and connections that have failed, and calls that timed out.
    pub failures: u64,
    /// Why, the last time, and what to look at.
    pub reason: String,
}

/// What [`Client::get_with`] does when there is no object under the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Nothing: `NotFound`.
    #[default]
    None,
    /// Takes the longest stored key that the key begins with.
    Prefix,
}

/// Objects that may vanish between their being found and being read, until [`Client::get_with`] gives up.
const MAX_FALLBACKS: u32 = 8;

/// What is known of one stored object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Length of the value in bytes.
    pub value_bytes: u64,
}

impl Client {
    /// Connects to the servers of `url`, see [`ClientConfig`]. Blocks until each has answered or the attempt has failed: all of them have to be there
    /// now (`Unreachable` names the first that isn't), and later each may go and come back.
    pub fn connect(url: &str) -> Result<Client> {
        Client::with_config(url.parse()?)
    }

    /// Connects to the servers of `config`. Blocks until each has answered or the attempt has failed.
    pub fn with_config(config: ClientConfig) -> Result<Client> {
        config.check()?;
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(|error| Error::System {
            what: "random numbers".into(),
            reason: error.to_string().into(),
        })?;
        let id = u64::from_le_bytes(id);
        let cluster = Cluster::meet(&config, id)?;
        Ok(Client { inner: Arc::new(ClientInner { id, config, cluster }) })
    }

    /// A client of servers that a simulator plays. `id` is the client's for its life; two clients of a thread differ in it.
    #[cfg(feature = "simulation")]
    #[must_use]
    pub fn over_network(
        id: u64,
        config: ClientConfig,
        servers: Vec<(crate::simulation::NetworkOf, lanner_shared::wire::hello::Welcome)>,
    ) -> Client {
        Client { inner: Arc::new(ClientInner { id, config, cluster: Cluster::simulated(servers) }) }
    }

    /// The servers, as each described itself when it was last connected to.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerInfo> {
        let describe = |server: &crate::cluster::Server| {
            let welcome = server.welcome();
            ServerInfo {
                address: server.address.to_string(),
                boot_id: welcome.boot_id,
                shards: welcome.shards.get(),
                capacity_bytes: welcome.capacity_bytes.get(),
                max_value_bytes: welcome.max_value_bytes.get(),
                lease_ms: welcome.lease_ms.get(),
            }
        };
        self.inner.cluster.servers().iter().map(describe).collect()
    }

    /// Which transport this thread's connection for `key` uses: `"shm"`, `"rdma"` or `"tcp"`. Connects if need be. A connection that there is isn't
    /// looked at: that its server or its device has gone shows with the next call.
    pub fn transport_for(&self, key: &[u8]) -> Result<&'static str> {
        let route = self.inner.route(KeyHash::of(key));
        with_lane(&self.inner, |lane| Ok(lane.connection(&self.inner, route)?.transport().name()))
    }

    /// The servers on the way to which RDMA has failed since this client was made: how often, and why the last time. With `transport=auto` calls
    /// go on over TCP then, so nothing else says it. Empty where nothing has failed, and where nobody has tried.
    #[must_use]
    pub fn rdma_failures(&self) -> Vec<RdmaFailures> {
        let of = |server: &crate::cluster::Server| {
            let (failures, reason) = server.rdma_failures();
            Some(RdmaFailures { server: server.address.to_string(), failures, reason: reason?.to_string() })
        };
        self.inner.cluster.servers().iter().filter_map(of).collect()
    }

    /// Stores `value` under `key`; `AlreadyExists` if there is one. The value is copied before the call returns.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store_one(key, value, PutMode::Put, PutOptions::default())
    }

    /// Stores `value` under `key`, in place of the one that may be there. Readers that hold a lease go on reading that one.
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store_one(key, value, PutMode::Upsert, PutOptions::default())
    }

    /// [`Client::put`] with options.
    pub fn put_with(&self, key: &[u8], value: &[u8], options: PutOptions<'_>) -> Result<()> {
        self.store_one(key, value, PutMode::Put, options)
    }

    /// [`Client::upsert`] with options.
    pub fn upsert_with(&self, key: &[u8], value: &[u8], options: PutOptions<'_>) -> Result<()> {
        self.store_one(key, value, PutMode::Upsert, options)
    }

    /// Stores each value under its key. One outcome for each item, in their order: items don't depend on each other, and a server that doesn't answer
    /// in time takes only its own.
    pub fn put_batch<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        items: &[(K, V)],
        options: PutOptions<'_>,
    ) -> Result<Vec<Result<()>>> {
        self.store(items, PutMode::Put, options)
    }

    /// [`Client::put_batch`] that replaces what is there.
    pub fn upsert_batch<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        items: &[(K, V)],
        options: PutOptions<'_>,
    ) -> Result<Vec<Result<()>>> {
        self.store(items, PutMode::Upsert, options)
    }

    fn store_one(&self, key: &[u8], value: &[u8], mode: PutMode, options: PutOptions<'_>) -> Result<()> {
        self.store(&[(key, value)], mode, options)?.pop().unwrap_or(Ok(()))
    }

    fn store<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        items: &[(K, V)],
        mode: PutMode,
        options: PutOptions<'_>,
    ) -> Result<Vec<Result<()>>> {
        let mut call = PutCall::new(&self.inner, items, mode, options)?;
        run(&self.inner, &mut call)?;
        Ok(call.outcomes)
    }

    /// The value of `key` in a new buffer; `NotFound` if there is none, which is not the same as an empty one.
    pub fn get(&self, key: &[u8]) -> Result<Vec<u8>> {
        self.get_batch(&[key])?.pop().unwrap_or(Err(Error::NotFound { index: 0 }))
    }

    /// The value of each key, or why there is none, in the order of `keys`: a server that can't be reached or doesn't answer in time takes only its
    /// own. A key that stands twice is answered twice.
    pub fn get_batch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<Vec<u8>>>> {
        let target = Target::New(keys.iter().map(|_| Vec::new()).collect());
        let mut call = GetCall::new(&self.inner, keys, target)?;
        run(&self.inner, &mut call)?;
        Ok(call.into_values())
    }

    /// Reads the value of `key` to the start of `buffer` and returns its length in bytes. `BufferTooSmall` says how many are
    /// needed. After an error the buffer's contents are of no meaning.
    pub fn get_into(&self, key: &[u8], buffer: &mut [u8]) -> Result<u64> {
        let (keys, mut buffers) = ([key], [buffer]);
        let mut call = GetCall::new(&self.inner, &keys, Target::Given(&mut buffers))?;
        run(&self.inner, &mut call)?;
        call.outcomes.pop().unwrap_or(Err(Error::NotFound { index: 0 }))
    }

    /// [`Client::get_into`] for each key and its buffer. One outcome for each key, in their order.
    pub fn get_into_batch<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        buffers: &mut [&mut [u8]],
    ) -> Result<Vec<Result<u64>>> {
        Client::check_buffers(keys.len(), buffers.len())?;
        let mut call = GetCall::new(&self.inner, keys, Target::Given(buffers))?;
        run(&self.inner, &mut call)?;
        Ok(call.outcomes.into_vec())
    }

    pub(crate) fn check_buffers(keys: usize, buffers: usize) -> Result<()> {
        if keys == buffers {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!("{keys} keys and {buffers} buffers; give each key one").into()))
    }

    /// Whether there is an object under `key`. Asking extends no lease and counts as no access.
    pub fn exists(&self, key: &[u8]) -> Result<bool> {
        self.flag::<false>(key)
    }

    /// Whether there is an object under each key, in the order of `keys`.
    ///
    /// Over shared memory most absent keys are found out by the shard's key filter, which this process reads itself: no server takes
    /// part, and none counts them. It is the live filter: a key whose `put` has returned before this call began is never called
    /// absent for it, whoever put it; one whose `put` is under way may be, as ever.
    pub fn exists_batch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>> {
        let mut call = self.exists_call(keys)?;
        run(&self.inner, &mut call)?;
        Ok(call.answers.flags)
    }

    /// The questions that `exists` of `keys` leaves to the servers: of many keys those that no filter in reach says are absent.
    pub(crate) fn exists_call<'k, K: AsRef<[u8]>>(
        &self,
        keys: &'k [K],
    ) -> Result<KeysCall<'k, K, Flags<false>>> {
        let absent = Flags { flags: vec![false; keys.len()] };
        let verdict = match keys.len() {
            0..absent::FEWEST_KEYS => Verdict::Nothing,
            _ => with_lane(&self.inner, |lane| absent::look(&self.inner, lane, keys))?,
        };
        match verdict {
            Verdict::Nothing => KeysCall::new(&self.inner, keys, absent),
            Verdict::AbsentBut(possible) => KeysCall::of_some(&self.inner, keys, &possible, absent),
        }
    }

    /// Removes the object under `key`; whether there was one. It can't be found any more when this returns; readers that
    /// hold a lease on it go on reading, and its memory is free once their leases have ended.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.flag::<true>(key)
    }

    /// `exists` or `remove` of one key.
    fn flag<const REMOVES: bool>(&self, key: &[u8]) -> Result<bool> {
        let keys = [key];
        let mut call = KeysCall::new(&self.inner, &keys, Flags::<REMOVES, [bool; 1]> { flags: [false] })?;
        run(&self.inner, &mut call)?;
        let [was_there] = call.answers.flags;
        Ok(was_there)
    }

    /// [`Client::remove`] for each key, in the order of `keys`.
    pub fn remove_batch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>> {
        let mut call = KeysCall::new(&self.inner, keys, Flags::<true> { flags: vec![false; keys.len()] })?;
        run(&self.inner, &mut call)?;
        Ok(call.answers.flags)
    }

    /// Length in bytes of the value of `key`. Counts as an access.
    pub fn size(&self, key: &[u8]) -> Result<u64> {
        self.size_batch(&[key])?.pop().unwrap_or(Err(Error::NotFound { index: 0 }))
    }

    /// [`Client::size`] for each key, in the order of `keys`.
    pub fn size_batch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<u64>>> {
        Ok(self.query_batch(keys)?.into_iter().map(|info| info.map(|info| info.value_bytes)).collect())
    }

    /// What is known of the object under each key, in the order of `keys`. Counts as an access.
    pub fn query_batch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<ObjectInfo>>> {
        let answers = self.query(keys)?;
        let info = |(index, descriptor): (usize, &Descriptor)| match descriptor.status.get() {
            0 => Ok(ObjectInfo { value_bytes: descriptor.value_bytes.get() }),
            code => Err(Error::from_wire(WireError { code, numbers: [index as u64, 0, 0, 0] })),
        };
        Ok(answers.found.iter().enumerate().map(info).collect())
    }

    pub(crate) fn query<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Descriptors> {
        let mut call = KeysCall::new(&self.inner, keys, Descriptors::for_batch(keys.len()))?;
        run(&self.inner, &mut call)?;
        call.answers.asked.answered_by = call.answered_by().collect();
        Ok(call.answers)
    }

    /// Leases the objects under `keys` and keeps where they lie, to be read many times without asking a server. One round
    /// trip to all shards involved, in parallel. `NotFound` names the first key that is missing, `LeaseExpired` the first
    /// whose lease had ended when the answer came; then there is no snapshot.
    pub fn prepare_snapshot<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Snapshot> {
        let snapshot = self.prepare(KeyList::new(keys), keys)?;
        snapshot.populate();
        Ok(snapshot)
    }

    pub(crate) fn prepare<K: AsRef<[u8]>>(&self, list: KeyList, keys: &[K]) -> Result<Snapshot> {
        let answers = self.query(keys)?;
        let route_of = |key: &K| self.inner.route(KeyHash::of(key.as_ref()));
        let runs = keys.iter().zip(&answers.found);
        let runs = runs.map(|(key, descriptor)| (route_of(key), std::slice::from_ref(descriptor)));
        self.snapshot_of(list, &answers.asked, runs)
    }

    /// A snapshot of keys, of which `answers` are the answers; `route_of` says where each lies.
    pub(crate) fn snapshot_of<'a>(
        &self,
        list: KeyList,
        asked: &Asked,
        runs: impl Iterator<Item = (Route, &'a [Descriptor])>,
    ) -> Result<Snapshot> {
        with_lane(&self.inner, |lane| {
            Snapshot::new(list, asked.at, runs, |route| {
                let connection = lane.connection(&self.inner, route)?;
                if !asked.are_of(route, connection.boot_id) {
                    return Err(Error::LeaseExpired { index: 0 });
                }
                Ok(Source { route, boot_id: connection.boot_id, mapping: connection.mapping().cloned() })
            })
        })
    }

    /// Asks again for all keys of `snapshot`: new leases, new versions, a new deadline. If that fails the snapshot stays as
    /// it was.
    pub fn refresh_snapshot(&self, snapshot: &mut Snapshot) -> Result<()> {
        *snapshot = self.refreshed(snapshot)?;
        Ok(())
    }

    /// A new snapshot of the keys of `snapshot`.
    pub(crate) fn refreshed(&self, snapshot: &Snapshot) -> Result<Snapshot> {
        let list = snapshot.keys().clone();
        let fresh = self.prepare(list, &snapshot.keys().to_slices())?;
        fresh.populate();
        Ok(fresh)
    }

    /// Reads ranges through `snapshot` and nothing else: no query, no renewal. `LeaseExpired` if it wasn't finished before
    /// the snapshot's deadline, `EpochChanged` if it was to be checked and something has changed: then nothing counts as
    /// read, whatever `destination` holds. Ranges are checked before the first byte is read. Over RDMA nothing more is asked for behind the
    /// deadline: ranges that can't be read within one lease never are, so ask for fewer at a time, or give the server a longer `--lease-ttl`.
    pub fn read_ranges_from_snapshot(
        &self,
        snapshot: &Snapshot,
        ranges: &[Range],
        destination: &mut [u8],
        freshness: Freshness,
    ) -> Result<()> {
        let lengths = |key: u32| snapshot.value_bytes(key as usize);
        ranges::check(ranges, snapshot.len(), destination.len() as u64, lengths)?;
        self.read_checked(snapshot, ranges, destination, freshness).map(drop)
    }

    /// Reads ranges that were checked. Returns when the read was done.
    #[inline]
    pub(crate) fn read_checked<R: Ranges + ?Sized>(
        &self,
        snapshot: &Snapshot,
        ranges: &R,
        destination: &mut [u8],
        freshness: Freshness,
    ) -> Result<Instant> {
        if snapshot.is_local() {
            return self.read_local(snapshot, ranges, destination, freshness);
        }
        self.read_remote(snapshot, ranges, destination, freshness, None)
    }

    /// [`Client::read_checked`] to registered memory.
    pub(crate) fn read_registered(
        &self,
        snapshot: &Snapshot,
        ranges: &[Range],
        destination: &mut [u8],
        freshness: Freshness,
        registrations: &Registrations,
    ) -> Result<()> {
        if snapshot.is_local() {
            return self.read_local(snapshot, ranges, destination, freshness).map(drop);
        }
        self.read_remote(snapshot, ranges, destination, freshness, Some(registrations)).map(drop)
    }

    /// [`Client::read_checked`] where not all objects lie in shared memory. Apart from it, because that becomes a part of each look-up.
    #[inline(never)]
    fn read_remote<R: Ranges + ?Sized>(
        &self,
        snapshot: &Snapshot,
        ranges: &R,
        destination: &mut [u8],
        freshness: Freshness,
        registrations: Option<&Registrations>,
    ) -> Result<Instant> {
        // Nothing is sent for a lease that has ended already.
        snapshot.check_lease()?;
        let mut one_sided = with_lane(&self.inner, |lane| one_sided::sources(lane, &self.inner, snapshot));
        let mut read_at = None;
        if one_sided.contains(&true) {
            let call = OneSidedCall::new(snapshot, ranges, destination, freshness, &one_sided);
            let mut call = call.into_registered(registrations);
            match run(&self.inner, &mut call) {
                Ok(()) => {
                    let now = Clock.now();
                    read_at = Some(now);
                    if snapshot.note_one_sided(ranges, now) {
                        self.hand_in_touches(snapshot, now);
                    }
                }
                // Over another connection, of whatever kind, the server can be asked for the same.
                Err(Error::ConnectionLost { .. }) => one_sided.fill(false),
                Err(error) => return Err(error),
            }
        }
        let is_asked = |(source, one_sided): (&Source, &bool)| source.mapping.is_none() && !one_sided;
        if snapshot.sources.iter().zip(&one_sided).any(is_asked) {
            let mut call = ReadCall::new(snapshot, ranges, destination, freshness, &one_sided);
            run(&self.inner, &mut call)?;
        }
        if snapshot.has_local_source() {
            return self.read_local(snapshot, ranges, destination, freshness);
        }
        Ok(read_at.unwrap_or_else(|| Clock.now()))
    }

    #[inline]
    pub(crate) fn read_local<R: Ranges + ?Sized>(
        &self,
        snapshot: &Snapshot,
        ranges: &R,
        destination: &mut [u8],
        freshness: Freshness,
    ) -> Result<Instant> {
        let now = snapshot.read_local(ranges, destination, freshness)?;
        if snapshot.are_touches_due(now) {
            self.hand_in_touches(snapshot, now);
        }
        Ok(now)
    }

    /// Tells the shards what was read in their memory: no system call, or over RDMA one message for each shard, whose answer nobody waits
    /// for. No connection is made for it.
    #[cold]
    fn hand_in_touches(&self, snapshot: &Snapshot, now: Instant) {
        with_lane(&self.inner, |lane| {
            snapshot.take_touches(now, |source, touch| {
                if let Some(connection) = lane.open_connection(source.route)
                    && connection.boot_id == source.boot_id
                {
                    connection.tell_touch(touch);
                }
            });
            for source in &snapshot.sources {
                if let Some(connection) = lane.open_connection(source.route) {
                    connection.send_touches();
                }
            }
        });
    }

    /// [`Client::read_ranges_from_snapshot`] that refreshes the snapshot when that is due, and once more (and reads once
    /// more) if its lease has ended or, with [`Freshness::Checked`], something has changed.
    pub fn read_ranges_refreshing(
        &self,
        snapshot: &mut Snapshot,
        ranges: &[Range],
        destination: &mut [u8],
        freshness: Freshness,
    ) -> Result<()> {
        if snapshot.needs_refresh(Clock.now()) {
            self.refresh_snapshot(snapshot)?;
        }
        match self.read_ranges_from_snapshot(snapshot, ranges, destination, freshness) {
            Err(Error::LeaseExpired { .. } | Error::EpochChanged) => {
                self.refresh_snapshot(snapshot)?;
                self.read_ranges_from_snapshot(snapshot, ranges, destination, freshness)
            }
            outcome => outcome,
        }
    }

    /// Calls `each` with every key that starts with `prefix`, in the order of keys (in no particular order from servers without a
    /// prefix index). Keeps a page of each shard, however many keys there are. Objects that come or go meanwhile may or may not be
    /// among them. Stops when `each` returns `false`.
    pub fn list(&self, prefix: &[u8], mut each: impl FnMut(Listed) -> bool) -> Result<()> {
        let mut pages: Vec<Pages> = self.inner.cluster.routes().map(Pages::new).collect();
        loop {
            for page in &mut pages {
                while page.wants_more() {
                    let mut call = ListCall::new(page.route, prefix, &page.cursor);
                    run(&self.inner, &mut call)?;
                    page.take(call.page);
                }
            }
            let first = pages.iter_mut().filter(|page| page.first().is_some()).min_by(|one, other| {
                one.first().map(|listed| &listed.key).cmp(&other.first().map(|listed| &listed.key))
            });
            let Some(listed) = first.and_then(Pages::next) else { return Ok(()) };
            if !each(listed) {
                return Ok(());
            }
        }
    }

    /// The longest stored key that `key` begins with, `key` itself included; `None` if there is none. One round trip to all shards
    /// at once, because keys that begin alike lie on different ones. Extends no lease and counts as no access.
    pub fn longest_prefix<'k>(&self, key: &'k [u8]) -> Result<Option<&'k [u8]>> {
        let keys = [key];
        let mut call = PrefixesCall::new(&keys);
        run(&self.inner, &mut call)?;
        Ok(call.longest_of(0).and_then(|bytes| key.get(..bytes)))
    }

    /// [`Client::longest_prefix`] for each key, in the order of `keys`.
    pub fn longest_prefix_batch<'k, K: AsRef<[u8]>>(&self, keys: &'k [K]) -> Result<Vec<Option<&'k [u8]>>> {
        let mut call = PrefixesCall::new(keys);
        run(&self.inner, &mut call)?;
        Ok(call.into_prefixes())
    }

    /// The value of `key`, or with [`Fallback::Prefix`] that of the longest stored key that `key` begins with, and the key found.
    /// `NotFound` if there is neither.
    pub fn get_with<'k>(&self, key: &'k [u8], fallback: Fallback) -> Result<(&'k [u8], Vec<u8>)> {
        let mut found = key;
        // What was found may be gone when it's read; then there may be a shorter one. Each time round is another such loss.
        for _ in 0..MAX_FALLBACKS {
            match self.get(found) {
                Err(Error::NotFound { .. }) if fallback == Fallback::Prefix => {}
                outcome => return outcome.map(|value| (found, value)),
            }
            found = self.longest_prefix(key)?.ok_or(Error::NotFound { index: 0 })?;
        }
        Err(Error::NotFound { index: 0 })
    }

    /// What each shard of each server says of itself: the server's address, and a JSON object.
    pub fn stats(&self) -> Result<Vec<(String, String)>> {
        let routes: Vec<Route> = self.inner.cluster.routes().collect();
        let mut all = Vec::with_capacity(routes.len());
        for route in routes {
            let mut call = StatsCall::new(route);
            run(&self.inner, &mut call)?;
            all.push((self.inner.server_address(route).into(), call.document.0));
        }
        Ok(all)
    }
}
