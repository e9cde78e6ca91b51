//! Flags, file and machine together, on machines that don't exist.

use std::path::Path;

use super::flags::{self, Asked};
use super::machine::{Machine, Node};
use super::values::HugePages;
use super::{ConfigError, ServerConfig, file, print, resolve};
use crate::eviction::PolicyKind;

/// Two nodes of four CPUs, 64 GiB.
fn machine() -> Machine {
    Machine {
        allowed_cpus: (0..8).collect(),
        nodes: vec![Node { number: 0, cpus: vec![0, 1, 2, 3] }, Node { number: 1, cpus: vec![4, 5, 6, 7] }],
        available_bytes: 64 << 30,
        free_huge_page_bytes: 0,
    }
}

fn configured(machine: &Machine, line: &str) -> Result<ServerConfig, ConfigError> {
    let words = std::iter::once("lanner-server").chain(line.split_whitespace());
    match flags::parse(words)? {
        Asked::Serve(flags) => resolve::resolve_on(*flags, machine),
        Asked::Print(text) => panic!("printed {text}"),
    }
}

fn config(line: &str) -> ServerConfig {
    configured(&machine(), line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Checks that a command line is refused in one line that says `wanted`.
fn refused(machine: &Machine, line: &str, wanted: &str) {
    let error = configured(machine, line).expect_err(line).to_string();
    assert!(error.contains(wanted) && !error.contains('\n'), "{line}: {error}");
}

/// Shows that a second server on a machine needs no second flag, and is where `lanner top` looks for it.
#[test]
fn the_admin_port_is_the_next_one() {
    for (listen, admin) in [("127.0.0.1:9000", 9001), ("0.0.0.0:0", 0), ("127.0.0.1:65535", 7412)] {
        let found = config(&format!("--listen {listen}")).admin;
        assert_eq!(found, Some(([127, 0, 0, 1], admin).into()), "{listen}");
    }
}

/// Shows the defaults that the command-line contract names.
#[test]
fn defaults_are_those_of_the_contract() {
    let config = config("");
    assert_eq!(config.listen, ["127.0.0.1:7411".parse().unwrap()]);
    assert_eq!(config.admin, Some("127.0.0.1:7412".parse().unwrap()));
    assert_eq!(config.memory_bytes, 1 << 30);
    assert_eq!(config.lease_ttl.as_secs(), 5);
    assert_eq!(config.policy, PolicyKind::Adaptive);
    assert_eq!(config.cores, (0..8).collect::<Vec<_>>());
    assert_eq!(config.tenants.len(), 1);
    assert_eq!(config.segment_bytes(&config.tenants[0]), 128 << 20);
}

/// Shows which CPUs the shards get: a node's, those listed, the first few; and that what can't be had is refused.
#[test]
fn shards_have_cores() {
    assert_eq!(config("--numa-node 1").cores, [4, 5, 6, 7]);
    assert_eq!(config("--numa-node 1 --shards 2").cores, [4, 5]);
    assert_eq!(config("--cores 6,2").cores, [6, 2]);
    let machine = machine();
    refused(&machine, "--shards 9", "write --shards 8 or fewer");
    refused(&machine, "--cores 1,9", "may not run on CPU 9");
    refused(&machine, "--cores 1 --numa-node 1", "CPU 1 is not on NUMA node 1");
    refused(&machine, "--numa-node 2", "there is: 0, 1");
    refused(&machine, "--shards 0", "0 is not in 1..=4096");
    let caged = Machine { allowed_cpus: vec![0], ..machine };
    refused(&caged, "--numa-node 1", "none of the node's CPUs");
}

/// Shows that memory which the machine lacks, or that is too little for the shards, is refused with a number that would do.
#[test]
fn memory_has_to_be_there() {
    let machine = machine();
    refused(&machine, "--memory 1PiB --cores 0-7", "a shard can use 256 GiB");
    refused(&machine, "--memory 64GiB", "write --memory 58");
    refused(&machine, "--memory 4MiB", "a shard needs 1 MiB");
    refused(&machine, "--memory much", "--memory");
    refused(&machine, "--memory 1GiB --huge-pages on", "sysctl -w vm.nr_hugepages=512");
    let reserved = Machine { available_bytes: 1 << 30, free_huge_page_bytes: 8 << 30, ..machine.clone() };
    for pages in ["on", "auto"] {
        let config = configured(&reserved, &format!("--memory 8GiB --huge-pages {pages}")).expect("fits");
        assert_eq!(config.memory_plan().segment_bytes(), 8 << 30);
    }
    // A number that an error offers is one that does.
    let small = Machine { available_bytes: 4 << 30, ..machine };
    let error = configured(&small, "--memory 5GiB").expect_err("too much").to_string();
    let offered = error.split("--memory ").nth(1).and_then(|rest| rest.split(',').next()).expect("an offer");
    configured(&small, &format!("--memory {offered}")).expect("does");
}

/// Shows that a server starts on a small machine without being told anything.
#[test]
fn the_default_fits_a_small_machine() {
    let small = Machine {
        allowed_cpus: vec![0],
        nodes: Vec::new(),
        available_bytes: 512 << 20,
        ..Machine::default()
    };
    assert_eq!(configured(&small, "").expect("fits").memory_bytes, 256 << 20);
}

/// Shows that a build without the RDMA transport refuses a device, and one with it takes it.
#[test]
fn a_device_is_taken_where_there_is_a_transport_for_it() {
    let outcome = configured(&machine(), "--rdma mlx5_0:1:3");
    match lanner_rdma::HAS_VERBS {
        true => assert_eq!(outcome.expect("taken").rdma.to_string(), "mlx5_0:1:3"),
        false => assert!(outcome.expect_err("refused").to_string().contains("no RDMA transport")),
    }
}

/// Shows that everything wrong on a command line is one line that names the flag.
#[test]
fn wrong_flags_are_one_line() {
    let machine = machine();
    for (line, wanted) in [
        ("--listen nowhere", "--listen"),
        ("--lease-ttl 1ms", "write 10ms to 1m"),
        ("--lease-ttl soon", "--lease-ttl"),
        ("--drain-timeout 2days", "write 0s to 1h"),
        ("--poll never", "adaptive, busy"),
        ("--policy clock", "none of adaptive"),
        ("--rdma mlx5_0:0", "port '0'"),
        ("--log =x=y", "--log"),
        ("--max-connections 0", "--max-connections"),
        ("--admin 127.0.0.1:7411", "is a --listen address too"),
        ("--lissten x", "--listen"),
        ("--config /no/such/file", "name a file that this user can read"),
        ("surplus", "surplus"),
    ] {
        refused(&machine, line, wanted);
    }
}

/// Shows that a mistake in the file is named with its line, whatever its kind.
#[test]
fn mistakes_in_the_file_have_a_line() {
    let at = |text: &str| file::parse(Path::new("lanner.toml"), text).expect_err(text).to_string();
    for (text, line, wanted) in [
        ("listen = \"127.0.0.1:1\"\nlissten = 1\n", 2, "lissten"),
        ("\n\nmemory = \"much\"\n", 3, "much"),
        ("policy = \"clock\"\n", 1, "none of adaptive"),
        ("shards = -1\n", 1, "-1"),
        ("memory = \n", 1, ""),
        ("[[tenant]]\nname = \"a\"\nshare = 1\n", 3, "share"),
    ] {
        let error = at(text);
        assert!(error.starts_with(&format!("lanner.toml:{line}: ")), "{error}");
        assert!(error.contains(wanted) && !error.contains('\n'), "{error}");
    }
}

/// Shows that flags win over the file, setting by setting.
#[test]
fn flags_win_over_the_file() {
    let given =
        file::parse(Path::new("x"), "shards = 2\nmemory = \"8MiB\"\nhuge-pages = \"off\"\n").expect("fine");
    let Asked::Serve(flags) = flags::parse(["lanner-server", "--shards", "4"]).expect("fine") else {
        panic!("printed")
    };
    let config = resolve::resolve_settings(flags.settings.or(given), &machine()).expect("fine");
    assert_eq!((config.shards(), config.memory_bytes), (4, 8 << 20));
    assert_eq!(config.huge_pages, HugePages::Off);
}

/// Shows that what `--print-config` prints is read back as the same configuration, says every setting, and adds up.
#[test]
fn a_printed_configuration_is_read_back() {
    let tenants =
        "[[tenant]]\nname = \"a\"\ntoken = \"se\\\"cret\"\nmemory-share = 0.25\n[[tenant]]\nname = \"\"\n";
    for (line, file_text) in [
        ("", ""),
        (
            "--numa-node 1 --listen [::1]:0,127.0.0.1:0 --admin off --shm off --policy lru --lease-ttl 1s500ms",
            "",
        ),
        (
            "--memory 123MiB --cores 3,1 --shm /run/x.sock --poll busy --value-checksums true --log lanner=debug",
            tenants,
        ),
    ] {
        let given = file::parse(Path::new("x"), file_text).expect("fine");
        let words = std::iter::once("lanner-server").chain(line.split_whitespace());
        let Asked::Serve(flags) = flags::parse(words).expect("fine") else { panic!("printed") };
        let config = resolve::resolve_settings(flags.settings.or(given), &machine()).expect("fine");
        let printed = print::as_toml(&config);
        let read =
            file::parse(Path::new("printed"), &printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        let again = resolve::resolve_settings(read, &machine()).expect("fine");
        assert_eq!(format!("{again:?}"), format!("{config:?}"), "{printed}");
        assert_eq!(again.tenants, config.tenants);
        for key in
            ["listen", "shards", "memory", "lease-ttl", "drain-timeout", "max-connections", "log", "admin"]
        {
            assert!(printed.contains(&format!("\n{key} = ")), "{key} is missing in\n{printed}");
        }
    }
}

/// Shows that the plan has a line for each user, and that its sums are those of its lines.
#[test]
fn the_memory_plan_adds_up() {
    let plan = config("--shards 2 --memory 256MiB").memory_plan();
    assert_eq!(plan.segment_bytes(), 256 << 20);
    assert_eq!(plan.bytes_at_most(), plan.lines().iter().map(|line| line.bytes).sum::<u64>());
    assert!(plan.bytes_at_start() > 256 << 20 && plan.bytes_at_start() < plan.bytes_at_most());
    let off = config("--shards 2 --memory 256MiB --shm off").memory_plan();
    assert!(off.bytes_at_most() < plan.bytes_at_most());
}
