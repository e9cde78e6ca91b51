#!/bin/busybox sh
# PID 1 in the initramfs: mounts the host's root (read-only, tmpfs on top) and goes there.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
load() { while read -r m; do $b insmod "/m/$m" 2>/dev/null; done <"/m/$1"; }
load boot
o=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o "$o,ro,cache=loose" root /lower || exec $b reboot -f
$b mount -t tmpfs -o size=90%,mode=755 upper /upper
$b mkdir /upper/u /upper/w
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/u,workdir=/upper/w root /new || exec $b reboot -f
$b mount -t tmpfs -o mode=755 run /new/run
$b mkdir -p /new/run/rdma-vm
$b mount -t 9p -o "$o,ro,cache=loose" run /new/run/rdma-vm || exec $b reboot -f
. /new/run/rdma-vm/conf
load rdma
[ -z "$PMEM$DEVDAX" ] || load pmem
[ "$DISK" = 1 ] && load disk
for d in proc sys dev; do $b mkdir -p /new/$d; $b mount --move /$d /new/$d; done
exec $b switch_root /new /bin/sh /run/rdma-vm/guest.sh
