//! Counts what a snapshot read over shared memory costs beside the copying: no system call and no allocation (promise P2). And what
//! `exists` and `get_into` of one key do: no allocation.
//!
//! Allocations are counted by a global allocator, system calls by a seccomp filter that turns each into a signal, whose
//! handler counts. The filter holds for one thread, which can't leave it and therefore ends with the process: so this file is
//! one test. That both counters count is shown with a planted system call and a planted allocation.

mod counting;

use counting::ALLOCATIONS;
use lanner_client::{Client, EngramConfig, EngramSet, EngramStore, Freshness, Range, RowFormat, RowIds};
use lanner_server::admin::board::Board;
use lanner_server::config::flags::{self, Asked};
use lanner_server::config::resolve::resolve;
use lanner_server::server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

static SYSTEM_CALLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_system_call(_signal: libc::c_int) {
    SYSTEM_CALLS.fetch_add(1, Ordering::Relaxed);
}

/// From here on every system call of this thread is counted and not made.
fn trap_system_calls() {
    const LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let mut program = [
        statement(LOAD_NUMBER, 0),
        libc::sock_filter { code: IF_EQUAL, jt: 0, jf: 1, k: libc::SYS_rt_sigreturn as u32 },
        statement(RETURN, libc::SECCOMP_RET_ALLOW),
        statement(RETURN, libc::SECCOMP_RET_TRAP),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a handler that touches one atomic is safe at any time; the filter is a valid program that lives during the call.
    unsafe {
        libc::signal(libc::SIGSYS, count_system_call as extern "C" fn(libc::c_int) as libc::sighandler_t);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// What `act` costs: allocations and system calls.
fn cost(act: impl FnOnce()) -> [u64; 2] {
    let before = [ALLOCATIONS.get(), SYSTEM_CALLS.load(Ordering::Relaxed)];
    act();
    [ALLOCATIONS.get() - before[0], SYSTEM_CALLS.load(Ordering::Relaxed) - before[1]]
}

const ROW: u64 = 264;
const ROUNDS: u64 = 1_000;

fn config(layer: u32) -> EngramConfig {
    EngramConfig { layer, table_vocab_sizes: vec![17; 24], row: RowFormat::Bytes(ROW) }
}

/// The costs of: a planted fault, look-ups of both kinds of freshness, ranged reads, questions about one key.
fn measure(client: &Client) -> [[u64; 2]; 5] {
    let set = EngramSet::new(client.clone(), vec![config(1), config(14)]).unwrap();
    let ids = [3; 24];
    let row_ids = [RowIds::new(&ids, [1, 1, 24]).unwrap(); 2];
    let mut rows = vec![0; 48 * ROW as usize];
    let keys: Vec<String> = (0..24).map(|head| config(1).key(head)).collect();
    let snapshot = client.prepare_snapshot(&keys).unwrap();
    let range =
        |key| Range { key, source_offset: ROW, length: ROW, destination_offset: u64::from(key) * ROW };
    let ranges: Vec<Range> = (0..24).map(range).collect();
    // Warm-up: the snapshot is prepared.
    set.lookup_into(&row_ids, &mut rows, Freshness::Checked).unwrap();
    let (key, mut table) = (keys[0].as_bytes(), vec![0; 17 * ROW as usize]);
    let ask = |table: &mut [u8]| {
        assert!(client.exists(key).unwrap());
        assert_eq!(client.get_into(key, table), Ok(17 * ROW));
    };
    ask(&mut table);
    // They may have to wait for the shard, by a system call that must be made.
    let single = cost(|| (0..ROUNDS).for_each(|_| ask(&mut table)));
    trap_system_calls();
    let planted = cost(|| {
        drop(std::hint::black_box(Box::new(1_u64)));
        // SAFETY: asks for a number.
        unsafe { libc::syscall(libc::SYS_getppid) };
    });
    let mut lookups = |freshness| {
        cost(|| (0..ROUNDS).for_each(|_| set.lookup_into(&row_ids, &mut rows, freshness).unwrap()))
    };
    let (lease, checked) = (lookups(Freshness::Lease), lookups(Freshness::Checked));
    let mut bytes = vec![0; 24 * ROW as usize];
    let ranged = cost(|| {
        for _ in 0..ROUNDS {
            client.read_ranges_from_snapshot(&snapshot, &ranges, &mut bytes, Freshness::Lease).unwrap();
        }
    });
    [planted, lease, checked, ranged, single]
}

#[test]
fn a_snapshot_read_makes_no_system_call_and_no_allocation() {
    let line = "s --listen 127.0.0.1:0 --admin off --huge-pages off --memory 16MiB --shards 1 --poll busy --lease-ttl 60s";
    let Ok(Asked::Serve(flags)) = flags::parse(line.split(' ')) else { panic!("flags") };
    let running = Server::start(resolve(*flags).unwrap(), Arc::new(Board::new(1, 1))).unwrap();
    let client = Client::connect(&format!("lanner://{}?transport=shm", running.addresses[0])).unwrap();
    for layer in [1, 14] {
        let tables = vec![vec![layer as u8; 17 * ROW as usize]; 24];
        EngramStore::new(client.clone(), config(layer)).unwrap().populate(&tables).unwrap();
    }
    static COSTS: std::sync::OnceLock<[[u64; 2]; 5]> = std::sync::OnceLock::new();
    std::thread::spawn(move || {
        let costs = measure(&client);
        // Not `set`, which would wake waiters by a system call; nobody waits.
        let _ = COSTS.set(costs);
        // This thread can't end any more: that takes system calls.
        loop {
            std::hint::spin_loop();
        }
    });
    let costs = (0..3_000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        COSTS.get()
    });
    let [planted, lease, checked, ranged, single] = costs.expect("the measuring thread came through");
    assert_eq!(planted, &[1, 1], "both counters count");
    assert_eq!(lease, &[0, 0], "allocations, system calls of {ROUNDS} look-ups");
    assert_eq!(checked, &[0, 0], "the same, checked");
    assert_eq!(ranged, &[0, 0], "the same of ranged reads");
    assert_eq!(single[0], 0, "allocations of {ROUNDS} times exists and get_into");
    running.stop();
    running.join().unwrap();
}
