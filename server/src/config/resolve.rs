//! From what was given to a [`ServerConfig`]: flags over the file over the defaults, checked against each other and against the
//! machine. The only place that knows a default.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytesize::ByteSize;
use lanner_shared::lease::{DEFAULT_LEASE_TTL, MIN_LEASE_TTL};
use tracing_subscriber::EnvFilter;

use super::flags::Flags;
use super::machine::Machine;
use super::memory_plan::DEFAULT_MAX_CONNECTIONS;
use super::settings::Settings;
use super::values::{AdminChoice, HugePages, LeaseLength, PollMode, ShmChoice, WatermarkChoice};
use super::{ConfigError, ServerConfig, file, tenant};
use lanner_rdma::NOT_IN_BUILD;
use lanner_rdma::choice::RdmaChoice;

/// The port for data. Below the range that Linux takes for outgoing connections, so that none can sit on it.
pub const DEFAULT_PORT: u16 = 7411;
/// The port for metrics and health of a server at [`DEFAULT_PORT`].
pub const DEFAULT_ADMIN_PORT: u16 = 7412;
/// A server whose memory isn't given takes this much, or half of what is available where that is less.
pub const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;
/// A smaller segment holds its page and little else.
pub const MIN_SEGMENT_BYTES: u64 = 1 << 20;
/// What units of 64 bytes under a `u32` reach.
pub const MAX_SEGMENT_BYTES: u64 = 256 << 30;
/// The longest lease: a removed object's memory waits for it.
pub const MAX_LEASE_TTL: Duration = Duration::from_secs(60);
/// The longest drain.
pub const MAX_DRAIN_TIMEOUT: Duration = Duration::from_secs(3600);
const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_LOG: &str = "info";

/// The configuration that `flags` and the file they name amount to here.
///
/// # Errors
/// The first thing that can't be meant or had, with what to write instead.
pub fn resolve(flags: Flags) -> Result<ServerConfig, ConfigError> {
    resolve_on(flags, &Machine::probe())
}

/// The configuration that `flags` and the file they name amount to on `machine`.
///
/// # Errors
/// As for [`resolve`].
pub fn resolve_on(flags: Flags, machine: &Machine) -> Result<ServerConfig, ConfigError> {
    let from_file = flags.config.as_deref().map(file::read).transpose()?.unwrap_or_default();
    resolve_settings(flags.settings.or(from_file), machine)
}

/// The configuration that `given` amounts to on `machine`.
///
/// # Errors
/// As for [`resolve`].
pub fn resolve_settings(given: Settings, machine: &Machine) -> Result<ServerConfig, ConfigError> {
    let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let cores = cores(&given, machine)?;
    let listen = given.listen.map_or_else(|| vec![loopback(DEFAULT_PORT)], |list| list.addresses);
    let config = ServerConfig {
        admin: match given.admin {
            None => Some(loopback(admin_port_beside(&listen))),
            Some(AdminChoice::Off) => None,
            Some(AdminChoice::At(address)) => Some(address),
        },
        listen,
        cores,
        numa_node: given.numa_node,
        memory_bytes: given.memory.map_or_else(|| default_memory(machine), |size| size.as_u64()),
        huge_pages: given.huge_pages.unwrap_or(HugePages::Auto),
        prefault: given.prefault.unwrap_or(true),
        shm: given.shm.unwrap_or(ShmChoice::Auto),
        rdma: rdma(given.rdma)?,
        lease_ttl: within("--lease-ttl", given.lease_ttl, DEFAULT_LEASE_TTL, MIN_LEASE_TTL, MAX_LEASE_TTL)?,
        lease_length: given.lease_length.unwrap_or(LeaseLength::Adaptive),
        watermarks: given.watermarks.unwrap_or(WatermarkChoice::Adaptive),
        poll: given.poll.unwrap_or(PollMode::Adaptive),
        policy: given.policy.unwrap_or_default(),
        value_checksums: given.value_checksums.unwrap_or(false),
        prefix_index: given.prefix_index.unwrap_or(true),
        max_connections: given.max_connections.unwrap_or(DEFAULT_MAX_CONNECTIONS),
        drain_timeout: within(
            "--drain-timeout",
            given.drain_timeout,
            DEFAULT_DRAIN_TIMEOUT,
            Duration::ZERO,
            MAX_DRAIN_TIMEOUT,
        )?,
        log: log_filter(given.log)?,
        tenants: tenant::tenants(&given.tenants)?,
    };
    check_ports(&config)?;
    check_segments(&config)?;
    check_memory(&config, machine)?;
    Ok(config)
}

/// What was asked for, if this build can do it.
/// The port above the first one for data, which `lanner top` looks at; any free one where that is any free one.
fn admin_port_beside(listen: &[SocketAddr]) -> u16 {
    match listen.first().map(SocketAddr::port) {
        Some(0) => 0,
        Some(port) => port.checked_add(1).unwrap_or(DEFAULT_ADMIN_PORT),
        None => DEFAULT_ADMIN_PORT,
    }
}

fn rdma(given: Option<RdmaChoice>) -> Result<RdmaChoice, ConfigError> {
    match given.unwrap_or_default() {
        RdmaChoice::Device(named) if !lanner_rdma::HAS_VERBS => {
            let problem = format!("{} can't be used: {NOT_IN_BUILD}, or write auto or off", named.device);
            Err(ConfigError::setting("--rdma", problem))
        }
        choice => Ok(choice),
    }
}

/// The CPU of each shard.
fn cores(given: &Settings, machine: &Machine) -> Result<Vec<usize>, ConfigError> {
    let of_node = given.numa_node.map(|number| cpus_of_node(number, machine)).transpose()?;
    let is_on_node = |cpu: &usize| of_node.as_ref().is_none_or(|cpus| cpus.contains(cpu));
    let cores: Vec<usize> = match &given.cores {
        Some(list) => {
            for cpu in &list.0 {
                check_cpu(*cpu, machine, given.numa_node.filter(|_| !is_on_node(cpu)))?;
            }
            list.0.clone()
        }
        None => machine.allowed_cpus.iter().copied().filter(is_on_node).collect(),
    };
    if cores.is_empty() {
        let problem = "this process may run on none of the node's CPUs; name another node, or start it with other CPUs (taskset)";
        return Err(ConfigError::setting("--numa-node", problem));
    }
    let there = cores.len();
    match usize::from(given.shards.unwrap_or(0)) {
        0 => Ok(cores),
        wanted if wanted <= there => Ok(cores.into_iter().take(wanted).collect()),
        wanted => Err(ConfigError::setting(
            "--shards",
            format!(
                "{wanted} shards need as many cores, and there are {there}; write --shards {there} or fewer"
            ),
        )),
    }
}

fn cpus_of_node(number: u32, machine: &Machine) -> Result<Vec<usize>, ConfigError> {
    let node = machine.nodes.iter().find(|node| node.number == number);
    node.map(|node| node.cpus.clone()).ok_or_else(|| {
        let there = machine.nodes.iter().map(|node| node.number.to_string()).collect::<Vec<_>>().join(", ");
        let cure = if there.is_empty() { "leave it out".to_owned() } else { format!("there is: {there}") };
        ConfigError::setting("--numa-node", format!("there is no NUMA node {number} with CPUs; {cure}"))
    })
}

fn check_cpu(cpu: usize, machine: &Machine, not_on_node: Option<u32>) -> Result<(), ConfigError> {
    if !machine.allowed_cpus.contains(&cpu) {
        let allowed = super::values::CoreList(machine.allowed_cpus.clone());
        let problem = format!("this process may not run on CPU {cpu}; choose among {allowed}");
        return Err(ConfigError::setting("--cores", problem));
    }
    match not_on_node {
        None => Ok(()),
        Some(node) => Err(ConfigError::setting(
            "--cores",
            format!(
                "CPU {cpu} is not on NUMA node {node}; leave out --numa-node, or choose CPUs of that node"
            ),
        )),
    }
}

/// The default, less on a small machine, in whole mebibytes.
fn default_memory(machine: &Machine) -> u64 {
    (machine.available_bytes / 2).min(DEFAULT_MEMORY_BYTES) >> 20 << 20
}

fn within(
    setting: &'static str,
    given: Option<humantime::Duration>,
    default: Duration,
    least: Duration,
    most: Duration,
) -> Result<Duration, ConfigError> {
    let time = given.map_or(default, Duration::from);
    if (least..=most).contains(&time) {
        return Ok(time);
    }
    let [time, least, most] = [time, least, most].map(humantime::format_duration);
    Err(ConfigError::setting(setting, format!("{time} is out of range; write {least} to {most}")))
}

fn log_filter(given: Option<String>) -> Result<String, ConfigError> {
    let filter = given.unwrap_or_else(|| DEFAULT_LOG.to_owned());
    match EnvFilter::builder().parse(&filter) {
        Ok(_) => Ok(filter),
        Err(error) => Err(ConfigError::setting(
            "--log",
            format!("'{filter}' is no filter ({error}); write error, warn, info, debug or trace"),
        )),
    }
}

/// A port twice would show as one in use, by a process that nobody finds.
fn check_ports(config: &ServerConfig) -> Result<(), ConfigError> {
    let clash = config.admin.filter(|admin| admin.port() != 0 && config.listen.contains(admin));
    clash.map_or(Ok(()), |admin| {
        Err(ConfigError::setting(
            "--admin",
            format!("{admin} is a --listen address too; choose another port, or off"),
        ))
    })
}

fn check_segments(config: &ServerConfig) -> Result<(), ConfigError> {
    let (shards, tenants) = (config.shards(), config.tenants.len());
    for tenant in &config.tenants {
        let bytes = config.segment_bytes(tenant);
        let size = ByteSize(bytes).display().iec();
        let whose = if tenants == 1 { String::new() } else { format!(" for tenant '{}'", tenant.name) };
        let split = format!(
            "{} over {shards} shards leave {size} each{whose}",
            ByteSize(config.memory_bytes).display().iec()
        );
        if bytes < MIN_SEGMENT_BYTES {
            let problem = format!("{split}, and a shard needs 1 MiB; raise it, or write fewer --shards");
            return Err(ConfigError::setting("--memory", problem));
        }
        if bytes > MAX_SEGMENT_BYTES {
            let problem = format!("{split}, and a shard can use 256 GiB; lower it, or use more cores");
            return Err(ConfigError::setting("--memory", problem));
        }
    }
    Ok(())
}

fn check_memory(config: &ServerConfig, machine: &Machine) -> Result<(), ConfigError> {
    let plan = config.memory_plan();
    let fits_huge_pages = plan.segment_bytes() <= machine.free_huge_page_bytes;
    let needed = match config.huge_pages {
        HugePages::On if !fits_huge_pages => return Err(huge_pages_lacking(plan.segment_bytes(), machine)),
        HugePages::On => plan.bytes_at_start() - plan.segment_bytes(),
        HugePages::Auto if fits_huge_pages => plan.bytes_at_start() - plan.segment_bytes(),
        HugePages::Auto | HugePages::Off => plan.bytes_at_start(),
    };
    if needed <= machine.available_bytes {
        return Ok(());
    }
    let beside = plan.bytes_at_start() - plan.segment_bytes();
    // What would do, in mebibytes, with a tenth left for others.
    let would_do = ((machine.available_bytes / 10 * 9).saturating_sub(beside) >> 20).max(1);
    let [objects, beside, available] =
        [plan.segment_bytes(), beside, machine.available_bytes].map(|bytes| ByteSize(bytes).display().iec());
    let problem = format!(
        "{objects} for objects and {beside} beside them are needed, and {available} are available; \
         write --memory {would_do}MiB, or free memory (or raise the container's limit)"
    );
    Err(ConfigError::setting("--memory", problem))
}

fn huge_pages_lacking(bytes: u64, machine: &Machine) -> ConfigError {
    let page = crate::memory::segment::HUGE_PAGE_BYTES;
    let (needed, free) = (bytes.div_ceil(page), machine.free_huge_page_bytes / page);
    let problem = format!(
        "on: {needed} huge pages of 2 MiB are needed and {free} are free; reserve them as root with \
         `sysctl -w vm.nr_hugepages={needed}`, or write auto"
    );
    ConfigError::setting("--huge-pages", problem)
}
