#!/usr/bin/env bash
# In the guest: each kind of `lanner bench` goes through to a report over RDMA, and what a limit on locked memory stops says so, with the
# need and the way out. Apart from `scripts/test --rdma`, because building the tools takes longer than all of its tests' programs:
#
#     scripts/rdma-vm/figures.sh build && scripts/rdma-vm/rdma-vm run --mem 2G --timeout 200 -- scripts/rdma-vm/tools.sh
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
programs=${PROGRAMS:-$root/out/rdma/release}
folder=$(mktemp -d)
# shellcheck source=scripts/servers.sh
source "$root/scripts/servers.sh"
trap stop_servers EXIT

failures=0
# shows NAME FILE TEXT: FILE has a line with TEXT.
shows() {
    grep -qF -- "$3" "$2" && { echo "$1: ok"; return; }
    echo "FAILED: $1: nothing says '$3':" >&2
    sed 's/^/  /' "$2" >&2
    failures=$((failures + 1))
}

# bench NAME ARGUMENT…: one `lanner bench`, which must end well and leave a report with results over RDMA.
bench() {
    local name=$1
    shift
    local began=$SECONDS
    "$programs/lanner" --url "lanner://$address?transport=rdma" bench "$@" --report "$folder/$name.json" >"$folder/$name" 2>&1 ||
        echo "exit status $?" >>"$folder/$name.json"
    cat "$folder/$name"
    echo "($((SECONDS - began)) s)"
    shows "bench $name" "$folder/$name.json" '"rdma"'
}

start_server "$folder/server" "$programs/lanner-server" --listen "$RDMA_VM_IP0:0" --admin off --memory 32MiB --shards 1 --cores 1 --shm off \
    --rdma auto --huge-pages off
address=$(ready_field listen)
bench latency latency --op exists,match,get,put --transport rdma --size 4KiB --working-set 256KiB --chain-blocks 16 --chains 8 \
    --duration 1s --iterations 20 --warmups 2
bench engram engram --preset store --mode query,snapshot --transport rdma --tokens 1 --duration 1s --iterations 20 --warmups 2
"$programs/lanner" bench make-trace --mix chat --minutes 1 --out "$folder/trace.jsonl.gz" >"$folder/made" 2>&1 || cat "$folder/made"
bench trace trace --trace "$folder/trace.jsonl.gz" --duration 2s
stop_servers

# Root without the capability that lifts the limit on locked memory, held to so many KiB.
limited() {
    local kib=$1
    shift
    setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock bash -c 'ulimit -l "$0" && exec "$@"' "$kib" "$@"
}
limited_server() {
    local kib=$1
    shift
    limited "$kib" timeout 30 "$programs/lanner-server" --listen "$RDMA_VM_IP0:0" --admin off --memory 64MiB --shards 2 --cores 0,1 --shm off \
        --huge-pages off "$@"
}

# lanner check says the limit, the need, and what to change; what it says suffices.
limited 8192 "$programs/lanner" check --memory 64MiB --shards 2 --listen "$RDMA_VM_IP0:7411" >"$folder/check" 2>&1 || true
grep -F -A 3 'locked memory' "$folder/check"
shows "lanner check, limit" "$folder/check" '8.0 MiB'
shows "lanner check, segment" "$folder/check" 'for --memory 64.0 MiB'
kib=$(sed -n 's/.*ulimit -l \([0-9][0-9]*\).*/\1/p; s/.*--memlock=\([0-9]*\).*/\1 bytes/p' "$folder/check" | head -n 1 |
    awk '{print $2 == "bytes" ? int(($1 + 1023) / 1024) : $1}')
start_server "$folder/suffices" limited_server "$kib" --rdma rxe0
echo "what lanner check asks for, $kib KiB, suffices: $READY_LINE"
stop_servers

# The limit is named whether it's less than one shard's segment, less than both together, or too little for a ring.
for kib in 8192 40000 65536; do
    limited_server "$kib" --rdma rxe0 >"$folder/limit-$kib" 2>&1 || true
    shows "server under $kib KiB" "$folder/limit-$kib" "limit on locked memory"
    shows "server under $kib KiB, the way out" "$folder/limit-$kib" "ulimit -l unlimited"
done
limited_server 0 --rdma off >"$folder/limit-0" 2>&1 || true
shows "server under nothing" "$folder/limit-0" "ulimit -l"

((failures == 0))
