"""Sets the RDMA guest up, once: packages, Debian's kernel, an initramfs. Used by the program rdma-vm beside it."""
import contextlib
import fcntl
import glob
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
CACHE = os.path.abspath(
    os.environ.get("RDMA_VM_CACHE")
    or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "rdma-vm"
    )
)
KERNEL = os.path.join(CACHE, "kernel")

PACKAGES = """
    qemu-system-x86 busybox-static iproute2 e2fsprogs kmod numactl
    rdma-core ibverbs-providers ibverbs-utils rdmacm-utils perftest
    libibverbs-dev librdmacm-dev libnuma-dev
""".split()

# Loaded by /init, with what they depend on, in this order.
MODULES_BOOT = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"]
# Loaded by guest.sh.
MODULES_RDMA = ["veth", "rdma_rxe", "ib_uverbs", "rdma_ucm"]
MODULES_PMEM = ["crc32c_generic", "ext4", "dax_pmem", "device_dax", "nd_pmem", "nfit"]
MODULES_DISK = ["crc32c_generic", "ext4", "virtio_blk"]

EXIT_VM = 125


def die(message, code=EXIT_VM):
    print(f"rdma-vm: {message}", file=sys.stderr)
    sys.exit(code)


def missing_packages():
    out = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES],
        capture_output=True,
        text=True,
    ).stdout
    have = {line.split()[0] for line in out.splitlines() if line.endswith(" installed")}
    return [p for p in PACKAGES if p not in have]


def apt(*args, cwd=None):
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    done = subprocess.run(
        ["apt-get", "-q", *args], cwd=cwd, env=env, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )
    return done.returncode, done.stdout


def apt_or_update(*args, cwd=None):
    """Try from the package lists at hand; refresh them only if that fails."""
    code, out = apt(*args, cwd=cwd)
    if code:
        apt("update")
        code, out = apt(*args, cwd=cwd)
    if code:
        die(f"apt-get {' '.join(args)} failed:\n{out}")


def kernel_package():
    for _ in range(2):
        out = subprocess.run(
            ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True
        ).stdout
        for line in out.splitlines():
            word, _, name = line.strip().partition(": ")
            if word == "Depends" and name.startswith("linux-image-"):
                return name
        apt("update")
    die("apt-cache knows no linux-image-amd64")


def extract_vmlinux(vmlinuz, target):
    """The ELF image: QEMU enters it by PVH, so no decompression in the guest."""
    with open(vmlinuz, "rb") as f:
        data = f.read()
    at = data.find(b"\xfd7zXZ\x00")
    if at < 0:
        die(f"{os.path.basename(vmlinuz)} holds no xz payload")
    elf = lzma.LZMADecompressor().decompress(data[at:])
    if elf[:4] != b"\x7fELF":
        die("the kernel's payload is no ELF file")
    with open(target, "wb") as f:
        f.write(elf)


def module_order(moddir, names):
    """Paths of the named modules after those that they depend on."""
    deps, by_name = {}, {}
    with open(os.path.join(moddir, "modules.dep")) as f:
        for line in f:
            path, _, rest = line.partition(":")
            deps[path] = rest.split()
            by_name[os.path.basename(path).split(".ko")[0].replace("-", "_")] = path
    with open(os.path.join(moddir, "modules.builtin")) as f:
        builtin = {os.path.basename(x.strip())[:-3].replace("-", "_") for x in f}
    order = []

    def visit(path):
        if path in order:
            return
        for d in reversed(deps[path]):
            visit(d)
        if path not in order:
            order.append(path)

    for name in names:
        if name in by_name:
            visit(by_name[name])
        elif name not in builtin:
            die(f"the kernel has no module {name}")
    return order


def cpio(entries):
    """A newc archive of (name, mode, data)."""
    out = bytearray()

    def add(name, mode, data):
        raw = name.encode() + b"\0"
        fields = [len(out) + 1, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0]
        out.extend(b"070701" + b"".join(b"%08x" % f for f in fields) + raw)
        out.extend(b"\0" * (-len(out) % 4))
        out.extend(data)
        out.extend(b"\0" * (-len(out) % 4))

    for entry in entries:
        add(*entry)
    add("TRAILER!!!", 0, b"")
    return bytes(out)


def unsigned(ko):
    """Drop the signature: checking it is slow under TCG and nothing asks for it."""
    magic = b"~Module signature appended~\n"
    if not ko.endswith(magic):
        return ko
    size = int.from_bytes(ko[-len(magic) - 4 : -len(magic)], "big")
    return ko[: -len(magic) - 12 - size]


def build_initramfs(moddir, target):
    entries = [(d, 0o40755, b"") for d in "bin dev proc sys m lower upper new".split()]
    with open("/bin/busybox", "rb") as f:
        entries.append(("bin/busybox", 0o100755, f.read()))
    with open(os.path.join(HERE, "init.sh"), "rb") as f:
        entries.append(("init", 0o100755, f.read()))
    packed = {}
    groups = dict(boot=MODULES_BOOT, rdma=MODULES_RDMA, pmem=MODULES_PMEM, disk=MODULES_DISK)
    for group, names in groups.items():
        lines = []
        for path in module_order(moddir, names):
            base = os.path.basename(path)
            if base not in packed:
                with open(os.path.join(moddir, path), "rb") as f:
                    packed[base] = unsigned(f.read())
            lines.append(base)
        entries.append((f"m/{group}", 0o100644, ("\n".join(lines) + "\n").encode()))
    entries += [(f"m/{base}", 0o100644, data) for base, data in packed.items()]
    with open(target, "wb") as f:
        f.write(cpio(entries))


def initramfs_path():
    """Named by what it is made of, so that two versions of this program get along."""
    h = hashlib.sha256()
    for name in ("setup.py", "init.sh"):
        with open(os.path.join(HERE, name), "rb") as f:
            h.update(f.read())
    return os.path.join(KERNEL, f"initramfs-{h.hexdigest()[:16]}")


@contextlib.contextmanager
def setup_lock():
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, "lock"), "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def setup(force=False):
    with setup_lock():
        need = missing_packages()
        if need:
            if os.geteuid():
                die(f"needs root to install {' '.join(need)}")
            print(f"rdma-vm: installing {' '.join(need)}", file=sys.stderr)
            apt_or_update("install", "-y", "--no-install-recommends", *need)
        if force or not os.path.exists(os.path.join(KERNEL, "vmlinux")):
            fetch_kernel()
        target = initramfs_path()
        if not os.path.exists(target):
            build_initramfs(glob.glob(os.path.join(KERNEL, "lib/modules/*"))[0], target + ".new")
            os.rename(target + ".new", target)


def fetch_kernel():
    work = tempfile.mkdtemp(prefix="kernel-", dir=CACHE)
    try:
        os.chmod(work, 0o755)
        package = kernel_package()
        print(f"rdma-vm: fetching {package}", file=sys.stderr)
        apt_or_update("-o", "APT::Sandbox::User=root", "download", package, cwd=work)
        deb = glob.glob(os.path.join(work, "*.deb"))[0]
        subprocess.run(["dpkg", "-x", deb, work], check=True)
        extract_vmlinux(
            glob.glob(os.path.join(work, "boot/vmlinuz-*"))[0], os.path.join(work, "vmlinux")
        )
        os.unlink(deb)
        shutil.rmtree(os.path.join(work, "boot"))
        shutil.rmtree(os.path.join(work, "usr"), ignore_errors=True)
        moddir = glob.glob(os.path.join(work, "lib/modules/*"))[0]
        if not os.path.exists(os.path.join(moddir, "modules.dep")):
            subprocess.run(["/sbin/depmod", "-b", work, os.path.basename(moddir)], check=True)
        shutil.rmtree(KERNEL, ignore_errors=True)
        os.rename(work, KERNEL)
    finally:
        shutil.rmtree(work, ignore_errors=True)
