//! The binary `lanner-server`: reads what it is told, starts the server and its admin endpoint, says when it serves, and ends it when a
//! signal asks for that.
//!
//! Exit status: 0 after a drain, 1 if a core failed, 2 if it can't be started as told, 70 after a panic, 130 after a second SIGINT.
//! Standard output has the ready line (or what `--print-config`, `--help` asked for) and nothing else.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lanner_server::admin::Admin;
use lanner_server::admin::board::Board;
use lanner_server::admin::health::{Health, hexadecimal};
use lanner_server::config::flags::{self, Asked, Flags};
use lanner_server::config::machine::Machine;
use lanner_server::config::{ServerConfig, print, resolve};
use lanner_server::server::{Running, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::EnvFilter;

/// What `sysexits.h` calls an internal software error.
const EXIT_PANIC: i32 = 70;
/// What a shell says of a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;
/// How often `main` looks for signals and for cores that have ended. Nothing else depends on it.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    end_process_on_panic();
    let outcome = match flags::parse(std::env::args_os()) {
        Ok(Asked::Serve(flags)) => run(*flags),
        Ok(Asked::Print(text)) => print_out(&text),
        Err(error) => Err(Refusal::to_start(error)),
    };
    outcome.map_or_else(
        |Refusal { reason, status }| {
            eprintln!("lanner-server: {reason}");
            ExitCode::from(status)
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Why the process ends with another status than 0.
struct Refusal {
    reason: String,
    status: u8,
}

impl Refusal {
    /// What was asked for can't be started.
    fn to_start(reason: impl ToString) -> Refusal {
        Refusal { reason: reason.to_string(), status: 2 }
    }

    /// It was started and has failed.
    fn to_go_on(reason: impl ToString) -> Refusal {
        Refusal { reason: reason.to_string(), status: 1 }
    }
}

fn run(flags: Flags) -> Result<(), Refusal> {
    let prints_only = flags.print_config;
    let config = resolve::resolve(flags).map_err(Refusal::to_start)?;
    if prints_only {
        return print_out(&print::as_toml(&config));
    }
    log_to_standard_error(&config);
    if let Some(node) = config.numa_node {
        stay_on_node(node);
    }
    let signals = Signals::listen().map_err(Refusal::to_start)?;
    allow_many_connections();
    serve(config, &signals)
}

/// Keeps this thread, and those that it starts, on the CPUs of a NUMA node: the cores have CPUs of their own there, and what else there is
/// (this thread, metrics) isn't to run on another node's. A system that refuses costs speed only.
fn stay_on_node(number: u32) {
    let machine = Machine::probe();
    let mut cpus = CpuSet::new();
    let of_node = machine.nodes.iter().filter(|node| node.number == number).flat_map(|node| &node.cpus);
    let may = |cpu: &&usize| **cpu < CpuSet::MAX_CPU && machine.allowed_cpus.contains(*cpu);
    of_node.filter(may).for_each(|cpu| cpus.set(*cpu));
    if cpus.count() > 0 {
        let _ = sched_setaffinity(None, &cpus);
    }
}

fn serve(config: ServerConfig, signals: &Signals) -> Result<(), Refusal> {
    let board = Arc::new(Board::new(config.shards(), config.tenants.len()));
    let health = Arc::new(Health::default());
    let admin = Admin::new(&config, board.clone(), health.clone());
    let admin = config.admin.map(|address| admin.serve(address)).transpose().map_err(Refusal::to_start)?;
    let running = Server::start(config, board).map_err(Refusal::to_start)?;
    health.is_ready(running.boot_id);
    for remark in &running.remarks {
        eprintln!("lanner-server: {remark}");
    }
    // Whoever started the server may have stopped listening; it serves all the same.
    let _ = print_out(&ready_line(&running, admin.map_or("off".to_owned(), |address| address.to_string())));
    let mut is_draining = false;
    while !running.is_stopped() {
        if !is_draining && signals.ask_to_end() {
            is_draining = true;
            tracing::info!("draining");
            health.is_draining();
            running.drain();
        }
        thread::sleep(LOOK_INTERVAL);
    }
    running.join().map_err(Refusal::to_go_on)?;
    tracing::info!("drained");
    Ok(())
}

/// The line that scripts wait for; part of the command-line contract.
fn ready_line(running: &Running, admin: String) -> String {
    let listen = running.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let boot = hexadecimal(&running.boot_id);
    format!(
        "ready listen={listen} admin={admin} shards={} memory={} boot={boot}\n",
        running.shards, running.memory_bytes
    )
}

fn print_out(text: &str) -> Result<(), Refusal> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        // Whoever closed the pipe has what was wanted.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Refusal::to_go_on(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn log_to_standard_error(config: &ServerConfig) {
    // The filter was checked when the configuration was resolved.
    let filter = EnvFilter::builder().parse_lossy(&config.log);
    let terminal = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(terminal).init();
}

/// A shard that panics may have left its state half changed, and its clients would wait for ever: the whole process ends, with
/// the thread's name and the cause as its last words.
fn end_process_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let place = panic.location().map_or(String::new(), |place| format!(" at {place}"));
        let payload = panic.payload();
        let cause =
            payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let cause = cause.unwrap_or("no cause given");
        eprintln!(
            "lanner-server: thread '{}' panicked{place}: {cause}",
            thread.name().unwrap_or("without a name")
        );
        // Not exit(): that runs what other threads may be in the middle of.
        signal_hook::low_level::exit(EXIT_PANIC);
    }));
}

/// SIGTERM and SIGINT, as a wish that `main` looks at. A second SIGINT ends the process in the handler itself, however busy the rest is.
struct Signals {
    wish: Arc<AtomicBool>,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        let wish = Arc::new(AtomicBool::new(false));
        let interrupted = Arc::new(AtomicBool::new(false));
        // The order matters: the first SIGINT must find `interrupted` unset.
        signal_hook::flag::register_conditional_shutdown(SIGINT, EXIT_INTERRUPTED, interrupted.clone())?;
        signal_hook::flag::register(SIGINT, interrupted)?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, wish.clone())?;
        }
        Ok(Signals { wish })
    }

    fn ask_to_end(&self) -> bool {
        self.wish.load(Ordering::Relaxed)
    }
}

/// Raises the soft limit on open files to the hard one: each connection is one, and a shell's default of 1024 is meant for programs
/// that use `select`.
fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    // What is refused is left as it was: the limit then shows as refused connections, which are counted.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
