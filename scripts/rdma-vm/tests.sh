#!/usr/bin/env bash
# In the guest, or before it: `tests.sh build` builds the RDMA tests to out/rdma on the host, `tests.sh run` runs them on the guest's devices.
# `scripts/test --rdma` does both.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=$root/out/rdma

build() {
    local line name path
    cd "$root"
    rm -rf "$folder/tests"
    mkdir -p "$folder/tests"
    # Each executable with the name that cargo calls it by. Debug information stays here: the guest reads over a slow file system.
    cargo test --package lanner-rdma --package lanner-server --package lanner-client --locked --no-run \
        --features lanner-rdma/verbs,lanner-server/rdma,lanner-client/rdma \
        --test devices --test served --test rdma --bin lanner-server --message-format json >"$folder/built.json"
    while IFS=$'\t' read -r name path; do
        strip -o "$folder/tests/$name" "$path"
    done < <(python3 - "$folder/built.json" <<'PYTHON'
import json, sys
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message.get("reason") != "compiler-artifact" or not message.get("executable"):
        continue
    target, is_test = message["target"], message["profile"]["test"]
    if "test" in target["kind"] or (target["name"] == "lanner-server" and "bin" in target["kind"] and not is_test):
        print(target["name"], message["executable"], sep="\t")
PYTHON
    )
    # Python's package, with RDMA.
    rm -rf "$folder/python"
    mkdir -p "$folder/python/lanner"
    cargo build --package lanner-python --features rdma --locked --message-format json >"$folder/built.json"
    path=$(python3 - "$folder/built.json" <<'PYTHON'
import json, sys
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message.get("reason") == "compiler-artifact" and message["target"]["name"] == "_lanner":
        print(message["filenames"][0])
PYTHON
    )
    strip -o "$folder/python/lanner/_lanner.abi3.so" "$path"
    (cd client/python/python && find lanner -name '*.py' -exec cp --parents --target-directory "$folder/python" {} +)
    cc -shared -fPIC -O -Wall -Werror -o "$folder/tests/device_fatal.so" scripts/rdma-vm/device_fatal.c -ldl
}

# Everything is slower here, and tests share two devices: one after the other. Each program has all memory to itself, so those of `served`
# are run in parts.
run() {
    local status=0 part
    # Over TCP and shared memory the host runs them.
    export LANNER_TEST_TRANSPORTS=rdma
    cd "$folder/tests"
    ./devices --ignored --test-threads 1 || status=1
    ./rdma --ignored --test-threads 1 || status=1
    # Of the prefixes, what takes no part in RDMA stays with the host.
    for part in calls:: chains:: connecting:: engram:: leases:: lives:: prefixes::the_longest registered::; do
        ./served "$part" --test-threads 1 || status=1
    done
    python "$root/client/python/tests/over_rdma.py" || status=1
    return $status
}

# The system's interpreter, which has nothing but the standard library.
python() {
    PYTHONPATH="$folder/python" PYTHONDONTWRITEBYTECODE=1 LANNER_SERVER="$folder/tests/lanner-server" "$(command -v /usr/bin/python3 || command -v python3)" "$@"
}

case ${1:-} in
build) build ;;
run) run ;;
*) echo "usage: scripts/rdma-vm/tests.sh build|run" >&2; exit 2 ;;
esac
