//! Servers, their shards and the network, on one clock and from one seed.
//!
//! A thread has one world. Clients reach it from below their own code: through the bytes that they read and write, through
//! connecting, and through the clock. Whenever a client looks at the clock it may be held up, and the world goes on meanwhile;
//! so a lease can end between any check of it and what was checked.

use crate::model::{Model, Moment, ShardLife};
use crate::wire::Wire;
use crate::{content, settings};
use fastrand::Rng;
use lanner_client::simulation::{Joined, Life, Link, Memory, Network};
use lanner_server::memory::segment::{Segment, SegmentOptions};
use lanner_server::memory::slots::{Generation, SlotId};
use lanner_server::service::Caller;
use lanner_server::shard::{PeerId, PlantedFaults, Shard, ShardConfig};
use lanner_shared::time::{Instant, simulation};
use lanner_shared::wire::MAX_VERSION;
use lanner_shared::wire::hello::{Welcome, short_boot};
use lanner_shared::{Error, KeyHash, ShardId};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// Worlds made so far.
static WORLDS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Makes `world` this thread's, and its clock the thread's clock.
pub fn begin(world: World) {
    WORLD.set(Some(world));
    simulation::set_clock(Some(client_clock));
}

/// Ends this thread's world.
pub fn end() {
    simulation::set_clock(None);
    WORLD.set(None);
}

/// Calls `act` with this thread's world. Not to be nested.
pub fn with<T>(act: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| act(world.as_mut().expect("the thread has a world")))
}

/// A server's clock or a client's: how it differs from true time.
#[derive(Debug, Clone, Copy)]
pub struct Drift {
    origin: u64,
    parts_per_million: i64,
}

impl Drift {
    fn new(random: &mut Rng) -> Drift {
        // Any two differ by less than a thousandth, which is what the leases' margin allows for.
        Drift { origin: random.u64(1..1 << 50), parts_per_million: random.i64(-499..=499) }
    }

    pub fn shows(self, time: u64) -> Instant {
        let drift = i128::from(time) * i128::from(self.parts_per_million) / 1_000_000;
        Instant((i128::from(self.origin) + i128::from(time) + drift) as u64)
    }
}

/// A lease that a server has granted, and what it covers. The earliest end comes first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Granted {
    ends: u64,
    slot: u32,
    generation: u32,
    value_offset: u64,
    value_bytes: u64,
    version: content::Version,
}

/// One life of a server.
#[derive(Debug)]
struct Alive {
    number: u64,
    boot_id: [u8; 16],
    shards: Vec<Shard>,
    leases: Vec<BinaryHeap<Reverse<Granted>>>,
    life: Life,
}

#[derive(Debug)]
struct Server {
    clock: Drift,
    alive: Option<Alive>,
    /// When it ticks next, or is started again.
    next_tick: u64,
    paused_until: u64,
}

/// What happened how often: a simulation in which something never happens shows nothing about it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Happened {
    pub crashes: u64,
    pub cuts: u64,
    pub pauses: u64,
    pub leases_checked: u64,
    pub evictions: u64,
    pub expired: u64,
    pub puts_timed_out: u64,
}

/// See the module.
#[derive(Debug)]
pub struct World {
    random: Rng,
    pub time: u64,
    pub steps: u64,
    servers: Vec<Server>,
    clients: Vec<Drift>,
    wires: BTreeMap<u64, Wire>,
    next_wire: u64,
    next_life: u64,
    pub model: Model,
    pub failure: Option<String>,
    pub happened: Happened,
    faults: PlantedFaults,
    /// Which client looks at the clock now.
    pub acting: usize,
    /// The acting client waits within a call, so time has to pass.
    pub is_waiting: bool,
    idle_looks: u32,
    /// Lives that have ended and whose clients haven't noticed.
    dying: Vec<(u64, Life)>,
    /// Faults of network and servers happen.
    pub is_stormy: bool,
    seed: u64,
    /// No other world of the process has it.
    pub number: u64,
}

impl World {
    pub fn new(seed: u64, faults: PlantedFaults) -> World {
        let mut random = Rng::with_seed(seed);
        let servers = (0..settings::SERVERS).map(|_| Server {
            clock: Drift::new(&mut random),
            alive: None,
            next_tick: 0,
            paused_until: 0,
        });
        let servers = servers.collect();
        let clients = (0..settings::CLIENTS).map(|_| Drift::new(&mut random)).collect();
        let mut world = World {
            random,
            time: 1,
            steps: 0,
            servers,
            clients,
            wires: BTreeMap::new(),
            next_wire: 0,
            next_life: 0,
            model: Model::default(),
            failure: None,
            happened: Happened::default(),
            faults,
            acting: 0,
            is_waiting: false,
            idle_looks: 0,
            dying: Vec::new(),
            is_stormy: true,
            seed,
            number: WORLDS.fetch_add(1, Ordering::Relaxed),
        };
        (0..settings::SERVERS).for_each(|server| world.start(server));
        world
    }

    pub fn fail(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.failure.get_or_insert(what);
    }

    fn check(&mut self, outcome: Result<(), String>) {
        if let Err(what) = outcome {
            self.fail(what);
        }
    }

    /// The acting client's clock.
    pub fn client_now(&self) -> Instant {
        self.clients[self.acting].shows(self.time)
    }

    // ── servers ────────────────────────────────────────────────────────────────────────────────────────────────────

    fn start(&mut self, server: usize) {
        let started = self.servers[server].clock.shows(self.time);
        let mut boot_id = [0; 16];
        self.random.fill(&mut boot_id);
        let shards: Vec<Shard> = (0..settings::SHARDS)
            .map(|shard| {
                let options =
                    SegmentOptions { len: settings::SEGMENT_BYTES, huge_pages: false, numa_node: None };
                let segment = Segment::memfd(&options).expect("memory for a small segment");
                let config = ShardConfig {
                    shard: ShardId(shard),
                    shards: settings::SHARDS,
                    boot_id,
                    started,
                    policy: settings::policy(self.seed),
                    ..settings::shard_config()
                };
                let mut shard = Shard::new(config, segment).expect("a segment of that size");
                shard.plant_faults(self.faults);
                shard
            })
            .collect();
        let leases = shards.iter().map(|_| BinaryHeap::new()).collect();
        let life = Life::begin().expect("a pair of sockets");
        self.next_life += 1;
        self.servers[server].alive = Some(Alive { number: self.next_life, boot_id, shards, leases, life });
        self.servers[server].next_tick = self.time;
    }

    fn crash(&mut self, server: usize) {
        self.settle_leases(server);
        self.tally(server);
        let Some(alive) = self.servers[server].alive.take() else { return };
        self.happened.crashes += 1;
        let noticed = self.time + self.random.u64(0..settings::NOTICED_WITHIN);
        self.dying.push((noticed, alive.life));
        let time = self.time;
        self.model.lost(time, noticed, alive.number);
        for wire in self.wires.values_mut().filter(|wire| wire.server == server && wire.is_open_at_server) {
            wire.server_crashed(time, &mut self.random);
        }
        self.servers[server].next_tick = time + self.random.u64(2 * settings::NOTICED_WITHIN..60_000_000);
        self.forget_closed_wires();
    }

    /// Checks the account of each shard of a server that is about to end.
    fn tally(&mut self, server: usize) {
        let now = self.servers[server].clock.shows(self.time);
        let Some(alive) = &mut self.servers[server].alive else { return };
        let lives = alive.shards.iter_mut().enumerate();
        let all: Vec<_> =
            lives.map(|(shard, state)| ((alive.number, shard as u16), state.stats(now))).collect();
        for (life, stats) in all {
            self.happened.evictions += stats.evictions();
            self.happened.expired += stats.expired;
            self.happened.puts_timed_out += stats.puts_timed_out;
            let outcome = self.model.check_ledger(life, &stats);
            self.check(outcome);
        }
    }

    fn tick_due(&mut self) {
        for server in 0..self.servers.len() {
            let Server { next_tick, paused_until, .. } = self.servers[server];
            if self.time < next_tick || self.time < paused_until {
                continue;
            }
            if self.servers[server].alive.is_none() {
                self.start(server);
                continue;
            }
            self.settle_leases(server);
            let now = self.servers[server].clock.shows(self.time);
            let mut more_is_due = false;
            for shard in self.servers[server].alive.iter_mut().flat_map(|alive| &mut alive.shards) {
                more_is_due |= shard.tick(now).more_is_due;
                shard.drain_given_up().for_each(drop);
            }
            let pause = if more_is_due { 125_000 } else { 1_000_000 };
            self.servers[server].next_tick = self.time + pause + self.random.u64(0..100_000);
        }
        let time = self.time;
        self.dying.retain(|(noticed, life)| {
            let is_noticed = *noticed <= time;
            if is_noticed {
                life.end();
            }
            !is_noticed
        });
    }

    /// Looks at each lease that has ended since the server did something last: up to then its extent must have stood still.
    /// To be called before the server does anything; it has done nothing since the time before.
    fn settle_leases(&mut self, server: usize) {
        let now = self.servers[server].clock.shows(self.time).0;
        let Some(alive) = &mut self.servers[server].alive else { return };
        let mut broken = None;
        for (shard, leases) in alive.shards.iter().zip(&mut alive.leases) {
            while leases.peek().is_some_and(|Reverse(lease)| lease.ends <= now) {
                let Some(Reverse(lease)) = leases.pop() else { break };
                self.happened.leases_checked += 1;
                let (slot, generation) = (SlotId(lease.slot), Generation(lease.generation));
                let is_same =
                    shard.check_range(slot, generation, lease.value_offset, lease.value_bytes).is_ok();
                let bytes = shard.segment().slice(lease.value_offset, lease.value_bytes).expect("in bounds");
                if !is_same || !content::is_of(lease.version, 0, bytes) {
                    broken = Some(format!("an extent was reused before the end of its lease: {lease:?}"));
                }
            }
        }
        self.check(broken.map_or(Ok(()), Err));
    }

    // ── network ────────────────────────────────────────────────────────────────────────────────────────────────────

    fn connect(
        &mut self,
        client: usize,
        server: usize,
        shard: u16,
    ) -> lanner_shared::Result<(Welcome, u64, Option<Memory>)> {
        let is_paused = self.servers[server].paused_until > self.time;
        let Some(alive) = self.servers[server].alive.as_ref().filter(|_| !is_paused) else {
            let server = format!("simulated-{server}").into();
            return Err(Error::Unreachable { server, reason: "nobody listens".into() });
        };
        let welcome = welcome(server, alive);
        let memory = settings::maps(client).then(|| Memory {
            segment: alive.shards[usize::from(shard)]
                .segment()
                .fd()
                .and_then(|file| file.try_clone_to_owned().ok())
                .expect("a memfd"),
            bytes: settings::SEGMENT_BYTES,
            life: alive.life.clone(),
        });
        let caller = Caller {
            peer: PeerId(self.next_wire),
            boot: short_boot(&alive.boot_id),
            version: MAX_VERSION,
            reads_values: false,
            sends_values: memory.is_none(),
            is_draining: false,
            can_move: false,
        };
        let wire = Wire::new(server, shard, client, caller, &mut self.random);
        self.wires.insert(self.next_wire, wire);
        self.next_wire += 1;
        Ok((welcome, self.next_wire - 1, memory))
    }

    fn turn_of(&mut self, number: u64) {
        let Some(server) = self.wires.get(&number).map(|wire| wire.server) else { return };
        if self.servers[server].paused_until > self.time {
            return;
        }
        self.settle_leases(server);
        let (time, now) = (self.time, self.servers[server].clock.shows(self.time));
        let Some(wire) = self.wires.get_mut(&number).filter(|wire| wire.is_open_at_server) else { return };
        let Some(alive) = &mut self.servers[server].alive else { return };
        let shard = &mut alive.shards[usize::from(wire.shard)];
        let turn = wire.turn(time, now, shard, &mut self.random);
        let life: ShardLife = (alive.number, wire.shard);
        let leases = &mut alive.leases[usize::from(wire.shard)];
        let at = Moment { time, server_nanos: now.0, shard: life, client: wire.client };
        let (model, mut wrong) = (&mut self.model, Ok(()));
        wire.tap.replied(&turn.answers, |asked, answer| {
            let outcome = model.answered(at, &asked, &answer);
            for (key, found) in answer.found(&asked) {
                let Some(found) = found else { continue };
                leases.push(Reverse(Granted {
                    ends: now.0 + u64::from(found.lease_ms.get()) * 1_000_000,
                    slot: found.slot.get(),
                    generation: found.generation.get(),
                    value_offset: found.value_offset(),
                    value_bytes: found.value_bytes.get(),
                    version: model.current_version(key).unwrap_or_default(),
                }));
            }
            if wrong.is_ok() {
                wrong = outcome;
            }
        });
        if turn.has_ended {
            wire.down.end(time, &mut self.random);
            self.forget_closed_wires();
        }
        self.check(wrong);
    }

    fn cut(&mut self, number: u64) {
        let time = self.time;
        let Some(wire) = self.wires.get_mut(&number) else { return };
        self.happened.cuts += 1;
        // A black hole tells the client nothing; the server gives a silent peer up in the end.
        let told = (self.random.u8(..3) > 0).then(|| time + self.random.u64(0..2_000_000));
        wire.down.cut(told, &mut self.random);
        wire.up.cut(Some(time + self.random.u64(0..50_000_000)), &mut self.random);
    }

    fn forget_closed_wires(&mut self) {
        self.wires.retain(|_, wire| wire.is_open_at_server || wire.is_open_at_client);
    }

    // ── time ───────────────────────────────────────────────────────────────────────────────────────────────────────

    /// One step: time passes, and one thing happens that no client does.
    pub fn step(&mut self) {
        self.steps += 1;
        self.time += match self.random.u32(..10_000) {
            0 => self.random.u64(0..90_000_000),
            1..50 => self.random.u64(0..3_000_000),
            50..2_000 => self.random.u64(0..100_000),
            _ => self.random.u64(0..10_000),
        };
        self.tick_due();
        let Some(number) = self.any_wire() else { return };
        let server = self.random.usize(..settings::SERVERS);
        match self.random.u32(..12_000) {
            0 if self.is_stormy => self.crash(server),
            1..4 if self.is_stormy => {
                self.happened.pauses += 1;
                self.servers[server].paused_until = self.time + self.random.u64(0..80_000_000);
            }
            4..24 if self.is_stormy => self.cut(number),
            _ => self.turn_of(number),
        }
    }

    /// A connection at whose server's end there is something to do; mostly one of the client that waits.
    fn any_wire(&mut self) -> Option<u64> {
        let time = self.time;
        let due = self.wires.iter().filter(|(_, wire)| wire.is_due(time));
        let due: SmallVec<[(u64, usize); 32]> = due.map(|(number, wire)| (*number, wire.client)).collect();
        let any = self.random.choice(&due).map(|(number, _)| *number);
        let mine = due.iter().find(|(_, client)| self.is_waiting && *client == self.acting);
        mine.filter(|_| self.random.bool()).map(|(number, _)| *number).or(any)
    }

    /// The acting client is held up: mostly not at all, sometimes for longer than a lease.
    fn hold_up(&mut self) {
        let steps = match self.random.u32(..1_000) {
            0 => {
                self.time += self.random.u64(0..2 * settings::LEASE_NANOS);
                12
            }
            1..30 => self.random.u32(1..30),
            _ => u32::from(self.is_waiting),
        };
        (0..steps).for_each(|_| self.step());
        if self.is_waiting {
            // A client that waits looks often; without this a time-out would take a hundred thousand looks.
            self.idle_looks += 1;
            self.time += 2_000 << (self.idle_looks / 8).min(8);
        }
    }

    /// Whether any client has a connection.
    pub fn has_open_clients(&self) -> bool {
        self.wires.values().any(|wire| wire.is_open_at_client)
    }

    /// A number that changes with everything that has happened.
    pub fn digest(&self) -> u64 {
        self.random.clone().u64(..) ^ self.time.rotate_left(32) ^ self.next_wire
    }

    // ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// With all clients gone: lets every lease and every unfinished put end, and checks that nothing is left of them.
    pub fn settle(&mut self) {
        self.is_stormy = false;
        for _ in 0..200_000 {
            if self.wires.is_empty() {
                break;
            }
            self.step();
        }
        if !self.wires.is_empty() {
            self.fail(format!("{} connections never ended", self.wires.len()));
        }
        for _ in 0..20_000 {
            self.time += 200_000;
            self.tick_due();
        }
        for server in 0..settings::SERVERS {
            self.settle_leases(server);
            self.count_what_is_there(server);
            self.tally(server);
            self.must_be_empty(server);
        }
    }

    /// Asks for every key of the model once more.
    fn count_what_is_there(&mut self, server: usize) {
        let now = self.servers[server].clock.shows(self.time);
        let time = self.time;
        let Some(alive) = &mut self.servers[server].alive else { return };
        let (mut found, mut objects) = (0, 0);
        for (number, shard) in alive.shards.iter_mut().enumerate() {
            let at = Moment { time, server_nanos: now.0, shard: (alive.number, number as u16), client: 0 };
            for key in settings::keys().filter(|key| shard.owns(KeyHash::of(key))).collect::<Vec<_>>() {
                if shard.exists(now, &key) {
                    found += 1;
                } else if self.model.is_in(&key, alive.number) {
                    self.model.is_missing(at, &key);
                }
            }
            objects += shard.stats(now).objects;
        }
        if found != objects {
            self.fail(format!("{objects} objects, and {found} keys that lead to one"));
        }
    }

    /// Removes everything and checks that all memory is in one piece again.
    fn must_be_empty(&mut self, server: usize) {
        let now = self.servers[server].clock.shows(self.time);
        let Some(alive) = &mut self.servers[server].alive else { return };
        let mut left = Vec::new();
        for shard in &mut alive.shards {
            settings::keys().for_each(|key| _ = shard.remove(now, &key));
            let stats = shard.stats(now);
            let is_empty = stats.unfinished_puts + stats.quarantined_bytes + stats.leased_bytes == 0
                && stats.free_bytes == stats.capacity_bytes
                && (stats.objects, stats.free_runs) == (0, 1);
            if !is_empty {
                left.push(format!("{stats:?}"));
            }
        }
        if !left.is_empty() {
            self.fail(format!("something is left when all is removed: {left:?}"));
        }
    }
}

fn welcome(server: usize, alive: &Alive) -> Welcome {
    Welcome {
        shards: settings::SHARDS.into(),
        boot_id: alive.boot_id,
        server_id: (server as u64 + 1).into(),
        capacity_bytes: (1 << 20).into(),
        lease_ms: ((settings::LEASE_NANOS / 1_000_000) as u32).into(),
        ..Welcome::new_zeroed_with_magic()
    }
}

/// What a client first knows of the servers.
pub fn welcomes() -> Vec<Welcome> {
    with(|world| {
        let servers = world.servers.iter().enumerate();
        servers.filter_map(|(place, server)| Some(welcome(place, server.alive.as_ref()?))).collect()
    })
}

/// The clock of the client that acts. It may be held up before it looks, and between its look and what it makes of it.
fn client_clock() -> Instant {
    WORLD.with_borrow_mut(|world| {
        let Some(world) = world else { return Instant::ZERO };
        world.hold_up();
        let now = world.client_now();
        if world.random.u8(..8) == 0 {
            world.hold_up();
        }
        now
    })
}

/// The way of a client to a server.
#[derive(Debug)]
pub struct Way {
    pub client: usize,
    pub server: usize,
}

impl Network for Way {
    fn connect(&self, shard: u16) -> lanner_shared::Result<Joined> {
        let (welcome, number, memory) = with(|world| world.connect(self.client, self.server, shard))?;
        let world = with(|world| world.number);
        Ok(Joined { welcome, link: Box::new(Cable { number, world }), memory })
    }
}

/// The client's end of a wire.
#[derive(Debug)]
struct Cable {
    number: u64,
    /// The number of its world, which it may outlive.
    world: u64,
}

impl Cable {
    fn act<T>(&self, act: impl FnOnce(&mut Wire, u64, &mut Rng) -> io::Result<T>) -> io::Result<T> {
        let acted = WORLD.try_with(|world| {
            let mut world = world.try_borrow_mut().ok()?;
            let world = world.as_mut().filter(|world| world.number == self.world)?;
            let wire = world.wires.get_mut(&self.number)?;
            let outcome = act(wire, world.time, &mut world.random);
            if outcome.is_ok() {
                world.idle_looks = 0;
            }
            Some(outcome)
        });
        acted.ok().flatten().unwrap_or(Err(ErrorKind::BrokenPipe.into()))
    }
}

impl Link for Cable {}

impl Read for Cable {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.act(|wire, time, random| wire.client_reads(time, target, random))
    }
}

impl Write for Cable {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.act(|wire, time, random| wire.client_writes(time, bytes, random))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // The wire stays until the server has seen the end, too.
        let _ = self.act(|wire, time, random| {
            wire.is_open_at_client = false;
            if wire.is_open_at_server {
                wire.up.end(time, random);
            }
            Ok(())
        });
    }
}
