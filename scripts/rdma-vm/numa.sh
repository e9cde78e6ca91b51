#!/usr/bin/env bash
# In a guest with two NUMA nodes (rdma-vm run --numa 2): starts a server for each by scripts/start-numa, and checks that every page of a
# server's segment lies on its node and that none of its threads may run on another node's CPUs.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export LANNER_SERVER=${LANNER_SERVER:-$root/out/rdma/tests/lanner-server}
folder=$(mktemp -d)
"$root/scripts/start-numa" --host "$RDMA_VM_IP0" --memory 64MiB --shm off >"$folder/out" 2>"$folder/err" &
starter=$!
trap 'kill -TERM $starter 2>/dev/null || true' EXIT
for _ in $(seq 200); do
    grep -q '^lanner://' "$folder/out" && break
    sleep 0.1
done
grep '^lanner://' "$folder/out" || { cat "$folder/err" >&2; exit 1; }

failures=0
fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

servers=0
for process in $(pgrep -x lanner-server); do
    servers=$((servers + 1))
    node=$(tr '\0' ' ' <"/proc/$process/cmdline" | sed -n 's/.*--numa-node \([0-9]*\).*/\1/p')
    cpus=$(cat "/sys/devices/system/node/node$node/cpulist")
    maps=$(grep lanner-segment "/proc/$process/numa_maps")
    pages=$(grep -o " N$node=[0-9]*" <<<"$maps" | awk -F= '{sum += $2} END {print sum + 0}')
    elsewhere=$(grep -o ' N[0-9]*=[0-9]*' <<<"$maps" | grep -vc " N$node=" || true)
    ((pages >= 16384)) || fail "node $node: $pages pages of its server are there, and 64 MiB are 16384"
    ((elsewhere == 0)) || fail "node $node: pages of its server are elsewhere: $maps"
    for thread in "/proc/$process/task/"*; do
        allowed=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$thread/status")
        [[ $allowed == "$cpus" ]] || fail "node $node: thread $(cat "$thread/comm") may run on $allowed, and the node has $cpus"
    done
    echo "node $node: $pages pages of its server there, all threads on CPUs $cpus"
done
((servers == 2)) || fail "$servers servers on two nodes"
((failures == 0))
