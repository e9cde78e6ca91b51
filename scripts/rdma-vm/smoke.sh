#!/usr/bin/env bash
# Boots the guest, has the smallest verbs program read 48 pieces between its two devices, and checks every byte. Run it when RDMA tests
# fail for no reason that shows: it says whether the guest itself works.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "$root/out/rdma"
"$here/rdma-vm" setup
cc -O2 -o "$root/out/rdma/selftest" "$here/selftest.c" -libverbs
cd "$root"
exec "$here/rdma-vm" run --timeout 120 -- out/rdma/selftest
