#!/usr/bin/env bash
# Measures every row of docs/rdma.md's table and says which reach what they must. `scripts/figures --rdma` builds what it needs and runs it in
# the guest; only ratios within one boot mean anything there.
#
#     figures.sh build            on the host: release programs to out/rdma/release
#     figures.sh run [PART…]      in the guest: snapshot, get, put, idle [default: all of them]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
programs=$root/out/rdma/release
results=$root/out/rdma/figures
seconds=${SECONDS_EACH:-8}
address=${RDMA_VM_IP0:-10.77.0.1}

build() {
    cd "$root"
    cargo build --release --locked --package lanner-server --package lanner-tools --bins \
        --features lanner-server/rdma,lanner-tools/rdma
    mkdir -p "$programs"
    # Debug information stays here: the guest reads over a slow file system.
    for program in lanner-server lanner; do
        strip -o "$programs/$program" "${CARGO_TARGET_DIR:-$root/target}/release/$program"
    done
}

servers=()
# server PORT FLAG…: one on the second CPU.
server() {
    local port=$1
    shift
    "$programs/lanner-server" --listen "$address:$port" --admin "127.0.0.1:$((port + 1))" --memory 64MiB --shards 1 --cores 1 --shm off \
        --rdma auto "$@" >"/tmp/server-$port" 2>&1 &
    servers+=($!)
    for _ in $(seq 150); do
        grep -q '^ready' "/tmp/server-$port" && return
        sleep 0.1
    done
    cat "/tmp/server-$port" >&2
    exit 1
}
stop() {
    kill "${servers[@]}" 2>/dev/null || true
    wait "${servers[@]}" 2>/dev/null || true
    servers=()
}
trap stop EXIT

# bench NAME URL ARGUMENT…: one `lanner bench`, its report as JSON.
bench() {
    local name=$1 url=$2
    shift 2
    echo "==> lanner --url '$url' bench $*"
    "$programs/lanner" --url "$url" bench "$@" --transport rdma --duration "${seconds}s" --report "$results/$name.json"
}

# perftest TOOL BYTES COUNT: the median of each of three runs between the devices, in microseconds, least first.
perftest() {
    local tool=$1 bytes=$2 count=$3
    for _ in 1 2 3; do
        "$tool" -d rxe0 -x 1 -F -n "$count" -s "$bytes" >/dev/null 2>&1 &
        for _ in $(seq 100); do
            ss -ltn | grep -q :18515 && break
            sleep 0.05
        done
        # bytes, iterations, min, max, typical, …
        "$tool" -d rxe1 -x 1 -F -n "$count" -s "$bytes" "$address" 2>/dev/null | grep -A1 '#bytes' | tail -1 | awk '{print $5}'
        wait $!
    done | sort -n | tr '\n' ' '
}

# Rows of the presets, from two servers.
snapshot() {
    server 7411
    server 7421
    local url="lanner://$address:7411,$address:7421"
    bench ngram-1 "$url" engram --preset ngram --mode snapshot,query --tokens 1 --iterations 400
    bench ngram "$url" engram --preset ngram --mode snapshot,query --tokens 4,8 --iterations 100
    stop
}

# A value at a time, both sides polling. perftest stands beside it: a READ, and a round trip of messages (it reports half of one).
get() {
    server 7411 --poll busy
    local url="lanner://$address:7411?spin=2s"
    bench get-4KiB "$url" latency --op get --size 4KiB --working-set 1MiB --iterations 400
    bench get-1MiB "$url" latency --op get --size 1MiB --working-set 8MiB --iterations 60
    bench get-1MiB-registered "$url" latency --op get --size 1MiB --working-set 8MiB --iterations 60 --registered
    stop
    echo "ib_send_lat 64: $(perftest ib_send_lat 64 500)" | tee "$results/perftest"
    echo "ib_read_lat 4096: $(perftest ib_read_lat 4096 500)" | tee -a "$results/perftest"
    echo "ib_read_lat 1048576: $(perftest ib_read_lat 1048576 40)" | tee -a "$results/perftest"
}

put() {
    server 7411 --poll busy
    local url="lanner://$address:7411?spin=2s"
    bench put-1MiB "$url" latency --op put --size 64KiB,1MiB --working-set 8MiB --iterations 60
    bench put-1MiB-registered "$url" latency --op put --size 64KiB,1MiB --working-set 8MiB --iterations 60 --registered
    stop
}

# What snapshot reads cost a server that sleeps: its processor time and its counters, with and without them, for as long. Under a lease that
# is longer than that, so that no refresh of the snapshot is among them.
idle() {
    server 7411 --lease-ttl 1m
    local ticks before after quiet reading
    ticks() { awk '{print $14 + $15}' "/proc/${servers[0]}/stat"; }
    counters() { curl -s http://127.0.0.1:7412/metrics | grep -E '^lanner_(hits|misses|puts|touches|evictions|received_bytes|sent_bytes)_total'; }
    sleep 2
    before=$(ticks)
    sleep "$seconds"
    after=$(ticks)
    quiet=$((after - before))
    "$programs/lanner" --url "lanner://$address:7411" bench engram --preset ngram --mode snapshot --transport rdma --tokens 1 \
        --iterations 1000000 --duration "$((seconds + 12))s" --json >/tmp/reads 2>/tmp/reads.err &
    local reader=$!
    # Behind the storing of its tables.
    sleep 8
    counters >/tmp/counters-before
    before=$(ticks)
    sleep "$seconds"
    after=$(ticks)
    counters >/tmp/counters-after
    reading=$((after - before))
    wait $reader
    echo "processor time of a parked server in $seconds s: $((quiet * 10)) ms in silence, $((reading * 10)) ms under snapshot reads" |
        tee "$results/idle"
    echo "counters that moved meanwhile:" | tee -a "$results/idle"
    diff /tmp/counters-before /tmp/counters-after | grep '^[<>]' | tee -a "$results/idle" || true
    python3 -c '
import json
row = json.load(open("/tmp/reads"))["results"][0]
print("snapshot reads recorded in all:", row["iterations"], "ratio of p25:", round(row["us_per_token"]["p25"] / row["floor"]["p25"], 2))' | tee -a "$results/idle"
    stop
}

run() {
    mkdir -p "$results"
    local part
    (($# > 0)) || set -- snapshot get put idle
    for part in "$@"; do
        "$part"
    done
    python3 "$here/figures.py" "$results"
}

case ${1:-} in
build) build ;;
run) shift && run "$@" ;;
*) echo "usage: scripts/rdma-vm/figures.sh build|run [PART…]" >&2; exit 2 ;;
esac
