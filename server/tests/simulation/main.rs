//! The whole store in one thread and on a simulated clock: servers, shards, the network and clients, from one seed.
//!
//! What runs is what serves in earnest: the client's calls, lanes, snapshots and Engram tables, the server's frames and shards.
//! What is played are the clock, the network (late, cut, in pieces, silent), the servers' ends, and clients that are held up.
//!
//! | what must hold | who checks it |
//! |---|---|
//! | a read gives bytes of a version that was there meanwhile (P1) | `actor` against `model` |
//! | an extent stands still until its last lease has ended (P1) | `world::settle_leases` |
//! | an answer says what is the case when it's given | `model`, by what `tap` hears |
//! | nothing is stored twice, and nothing that was refused | `model` |
//! | what is gone was removed or counted (P6), and nothing is left over (P5) | `model::check_ledger`, `world::settle` |
//! | a call ends within its time-out | `actor` |
//!
//! ```text
//! LANNER_SIMULATION_SEED=7 cargo test -p lanner-server --test simulation        replays a failure
//! LANNER_SIMULATION_STEPS=50000000 cargo test …                                 goes on for longer
//! ```

mod actor;
mod content;
mod engram;
mod model;
mod settings;
mod tap;
mod wire;
mod world;

use actor::{Actor, Outcomes};
use fastrand::Rng;
use lanner_client::faults;
use lanner_server::shard::PlantedFaults;
use world::{Happened, World};

/// What a simulation has shown.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    steps: u64,
    failure: Option<String>,
    /// Of all clients together.
    outcomes: Outcomes,
    happened: Happened,
    digest: u64,
}

/// Runs a world for so many steps, or until something is wrong.
fn simulate(seed: u64, steps: u64, faults: PlantedFaults) -> Report {
    world::begin(World::new(seed, faults));
    let mut actors: Vec<Actor> = (0..settings::CLIENTS).map(|number| Actor::new(number, seed)).collect();
    let mut random = Rng::with_seed(!seed);
    loop {
        let is_over = world::with(|world| {
            world.step();
            world.steps >= steps || world.failure.is_some()
        });
        if is_over {
            break;
        }
        if random.bool() {
            let actor = random.usize(..actors.len());
            actors[actor].act();
            world::with(|world| world.steps += 1);
        }
    }
    let mut outcomes = Outcomes::default();
    actors.iter().for_each(|actor| outcomes.add(&actor.outcomes));
    drop(actors);
    let report = world::with(|world| {
        if world.failure.is_none() {
            world.settle();
        }
        let (steps, failure) = (world.steps, world.failure.take());
        Report { steps, failure, outcomes, happened: world.happened, digest: world.digest() }
    });
    world::end();
    report
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Runs seeds one after the other, `steps` in all, and says how to replay the first that fails.
fn must_hold(first_seed: u64, seeds: u64, steps: u64) -> Vec<Report> {
    let only = std::env::var("LANNER_SIMULATION_SEED").ok().and_then(|text| text.parse().ok());
    let seeds = only.map_or(first_seed..first_seed + seeds, |seed: u64| seed..seed + 1);
    let steps = from_environment("LANNER_SIMULATION_STEPS", steps);
    let each = steps / (seeds.end - seeds.start);
    let run = |seed| {
        println!(
            "LANNER_SIMULATION_SEED={seed} LANNER_SIMULATION_STEPS={each} cargo test -p lanner-server --test simulation"
        );
        let report = simulate(seed, each, PlantedFaults::default());
        println!("{report:?}");
        assert_eq!(report.failure, None, "after {} steps; the line above replays it", report.steps);
        report
    };
    seeds.map(run).collect()
}

/// Shows that all promises hold in a million steps and more, and that there was something to hold: each kind of outcome and
/// of misfortune was met, many times.
#[test]
fn promises_hold_whatever_happens() {
    let reports = must_hold(1, 8, 3_200_000);
    if std::env::var_os("LANNER_SIMULATION_SEED").is_some() {
        return;
    }
    let sum = |of: &dyn Fn(&Outcomes) -> u64| reports.iter().map(|report| of(&report.outcomes)).sum::<u64>();
    let happened =
        |of: &dyn Fn(&Happened) -> u64| reports.iter().map(|report| of(&report.happened)).sum::<u64>();
    for (what, count, at_least) in [
        ("puts", sum(&|it| it.puts), 5_000),
        ("refused puts", sum(&|it| it.already_exists), 500),
        ("unknown outcomes", sum(&|it| it.unknown), 50),
        ("full stores", sum(&|it| it.full), 20),
        ("gets", sum(&|it| it.gets), 5_000),
        ("removals", sum(&|it| it.removals), 500),
        ("snapshot reads", sum(&|it| it.snapshot_reads), 2_000),
        ("checked reads", sum(&|it| it.checked_reads), 200),
        ("ended leases", sum(&|it| it.leases_expired), 200),
        ("changed epochs", sum(&|it| it.epochs_changed), 50),
        ("time-outs", sum(&|it| it.time_outs), 20),
        ("failed connections", sum(&|it| it.unreachable), 50),
        ("Engram look-ups", sum(&|it| it.engram_look_ups), 50),
        ("matched blocks", sum(&|it| it.matched_blocks), 2_000),
        ("crashes", happened(&|it| it.crashes), 20),
        ("cuts", happened(&|it| it.cuts), 200),
        ("pauses", happened(&|it| it.pauses), 50),
        ("leases", happened(&|it| it.leases_checked), 5_000),
        ("evictions", happened(&|it| it.evictions), 2_000),
        ("puts given up", happened(&|it| it.puts_timed_out), 5),
    ] {
        assert!(count >= at_least, "only {count} {what}");
    }
}

/// Shows that a seed replays a run to the last random number.
#[test]
fn a_seed_replays_its_run() {
    let run = || simulate(99, 60_000, PlantedFaults::default());
    assert_eq!(run(), run());
}

/// A client that was dropped kept its connections until its thread ended or used another client: the simulation found them still
/// open when all leases had long ended. Shows that they end with the last handle.
#[test]
fn a_dropped_client_leaves_no_connection() {
    world::begin(World::new(5, PlantedFaults::default()));
    let mut actor = Actor::new(1, 5);
    let has_open = || world::with(|world| world.has_open_clients());
    while !has_open() {
        actor.act();
    }
    drop(actor);
    assert!(!has_open());
    world::end();
}

/// For hours: `cargo test --release -p lanner-server --test simulation -- --ignored`.
#[test]
#[ignore = "minutes; scripts/test --long runs it"]
fn promises_hold_for_long() {
    must_hold(1_000, 64, 40_000_000);
}

/// Runs seeds until one notices the planted fault, and says what was noticed.
fn must_find(faults: PlantedFaults, expected: &[&str]) {
    let mut steps = 0;
    for seed in 1..40 {
        let report = simulate(seed, 200_000, faults);
        steps += report.steps;
        if let Some(failure) = report.failure {
            println!("found after {steps} steps: {failure}");
            let is_expected = expected.iter().any(|text| failure.contains(text));
            assert!(is_expected, "another fault than was planted: {failure}");
            return;
        }
    }
    panic!("not found in {steps} steps");
}

/// Shows that an extent which is reused a millisecond before its lease ends is noticed, though every client stops a
/// millisecond earlier by its own margin.
#[test]
fn a_lease_that_ends_a_millisecond_early_is_found() {
    must_find(
        PlantedFaults { lease_ends_early_by_millis: 1, ..PlantedFaults::default() },
        &["reused before the end of its lease"],
    );
}

/// Shows that memory which is reused while a slow peer's value is still being received into it, or sent from it, is noticed: by
/// foreign bytes, or by a header that the value was received over, whose key then leads nowhere, or whose length is another's.
#[test]
fn a_forgotten_transfer_is_found() {
    let faults = PlantedFaults { forgets_transfers: true, ..PlantedFaults::default() };
    let expected = [
        "gave none of the versions",
        "reused before the end of its lease",
        "keys that lead to one",
        "bytes of a value of",
    ];
    must_find(faults, &expected);
}

/// Shows that an answer about a chain which is given again after one of its blocks has left is noticed.
#[test]
fn an_old_answer_given_again_is_found() {
    let faults = PlantedFaults { repeats_old_answers: true, ..PlantedFaults::default() };
    must_find(
        faults,
        &["which is gone", "bytes of a value of", "gave none of the versions", "whose time to live"],
    );
}

/// Shows that an answer about other keys than were asked for is noticed, though it begins with the same key.
#[test]
fn an_answer_about_another_list_is_found() {
    let faults = PlantedFaults { takes_lists_for_another: true, ..PlantedFaults::default() };
    must_find(faults, &["a ranged read of"]);
}

/// Shows that an answer given again with a lease which no block was granted is noticed.
#[test]
fn a_lease_that_is_promised_and_not_granted_is_found() {
    let faults = PlantedFaults { promises_without_lease: true, ..PlantedFaults::default() };
    must_find(faults, &["reused before the end of its lease", "gave none of the versions"]);
}

/// Shows that a client which reads through a snapshot beyond its deadline is noticed by the bytes that it gets.
#[test]
fn a_snapshot_refreshed_too_late_is_found() {
    faults::plant_late_refresh(true);
    must_find(PlantedFaults::default(), &["gave none of the versions"]);
    faults::plant_late_refresh(false);
}

/// Shows that a put which is sent again because its answer was lost is noticed.
#[test]
fn a_retried_change_is_found() {
    faults::plant_retried_changes(true);
    // The writer is told that the key exists, by its own first attempt; or its upsert or its removal is carried out twice.
    let signs = ["was told false, and it was stored 1 times", "a put was repeated", "removals of a key"];
    must_find(PlantedFaults::default(), &signs);
    faults::plant_retried_changes(false);
}

/// Shows that a call which takes the rest of its reply for a whole one, because another call has looked in between, is noticed. That gave wrong
/// bytes over TCP wherever one thread had two long answers on their way: calls in two halves, and ranges in more than one frame.
#[test]
fn a_reply_that_begins_again_is_found() {
    faults::plant_replies_begun_again(true);
    must_find(PlantedFaults::default(), &["gave none of the versions", "nobody expects this error"]);
    faults::plant_replies_begun_again(false);
}
