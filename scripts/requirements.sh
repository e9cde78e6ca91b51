# Sourced by the scripts beside it: checks what a build needs and installs or names what is missing. Nothing here runs by itself.
# shellcheck shell=bash

# Debian package and the command whose absence tells that it is missing. git is run by the build script of glommio.
REQUIRED_PACKAGES=("gcc cc" "libc6-dev" "git git")

# What a build with `--features rdma` needs beside these: headers, and clang to read them. Running it needs none of them.
RDMA_PACKAGES=(pkg-config libclang-dev libibverbs-dev librdmacm-dev)

say() { printf '%s\n' "$*" >&2; }

# Prints the packages of REQUIRED_PACKAGES that are missing, one a line.
missing_packages() {
    local entry package command
    for entry in "${REQUIRED_PACKAGES[@]}"; do
        read -r package command <<<"$entry"
        if [[ -n "$command" ]]; then
            command -v "$command" >/dev/null || echo "$package"
        elif [[ ! -e /usr/include/stdio.h ]]; then
            echo "$package"
        fi
    done
}

# Prints the packages of RDMA_PACKAGES that are missing, one a line; all of them where there is no dpkg to ask and something is missing.
missing_rdma_packages() {
    local package
    if ! command -v dpkg-query >/dev/null; then
        pkg-config --exists libibverbs librdmacm 2>/dev/null && command -v clang >/dev/null || printf '%s\n' "${RDMA_PACKAGES[@]}"
        return 0
    fi
    for package in "${RDMA_PACKAGES[@]}"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
    done
}

# True if a build with RDMA is possible here, or was made so by installing what it needs.
require_rdma_packages() {
    local -a packages
    mapfile -t packages < <(missing_rdma_packages)
    install_packages ${packages[@]+"${packages[@]}"}
}

# Installs the missing packages of REQUIRED_PACKAGES.
require_packages() {
    local -a packages
    mapfile -t packages < <(missing_packages)
    install_packages ${packages[@]+"${packages[@]}"}
}

# install_packages NAME…: installs them when this user may (root, or sudo that asks for no password); otherwise names the command and fails.
install_packages() {
    local -a packages=("$@") as_root=()
    ((${#packages[@]} == 0)) && return 0
    if ! command -v apt-get >/dev/null; then
        say "missing: ${packages[*]} (names of Debian's packages); install what your distribution calls them"
        return 1
    fi
    if ((EUID != 0)); then
        if ! sudo -n true 2>/dev/null; then
            say "missing: ${packages[*]}"
            say "  mend:  sudo apt-get update && sudo apt-get install -y ${packages[*]}"
            return 1
        fi
        as_root=(sudo -n)
    fi
    say "installing ${packages[*]} with apt-get"
    "${as_root[@]}" apt-get update -q >&2 &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}" >&2
}

# True if version $1 is at least version $2.
version_at_least() {
    [[ "$(printf '%s\n%s\n' "$2" "$1" | sort --version-sort | head -n 1)" == "$2" ]]
}

# Fails with the cure unless a Rust toolchain is there that is new enough for the workspace in folder $1.
require_rust() {
    local root=$1 wanted found
    # A toolchain that rustup has just installed is not on the PATH of a shell opened before.
    if ! command -v cargo >/dev/null && [[ -x "$HOME/.cargo/bin/cargo" ]]; then
        PATH="$HOME/.cargo/bin:$PATH"
        export PATH
    fi
    wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
    if ! command -v cargo >/dev/null; then
        say "missing: a Rust toolchain, version $wanted or newer"
        say "  mend:  install rustup (https://rustup.rs), then open a new shell"
        return 1
    fi
    found=$(cd "$root" && cargo --version | awk '{print $2}')
    if ! version_at_least "$found" "$wanted"; then
        say "too old: cargo is $found, and the workspace needs $wanted or newer"
        say "  mend:  rustup update stable"
        return 1
    fi
}

# Fails with the cure unless cargo has the component named $1 (rustfmt, clippy).
require_cargo_component() {
    local component=$1 command=${1/rustfmt/fmt}
    cargo "$command" --version >/dev/null 2>&1 && return 0
    if command -v rustup >/dev/null && rustup component add "$component" >&2; then
        return 0
    fi
    say "missing: cargo $command"
    say "  mend:  rustup component add $component"
    return 1
}

# Fails unless this is Linux with a kernel that has what the data path asks of io_uring (SINGLE_ISSUER and DEFER_TASKRUN: 6.1).
require_kernel() {
    local release
    release=$(uname -r)
    if [[ "$(uname -s)" != Linux ]] || ! version_at_least "${release%%-*}" 6.1; then
        say "this kernel is $(uname -sr); Lanner needs Linux 6.1 or newer"
        say "  mend:  Debian 12 and Ubuntu 24.04 have it; on Ubuntu 22.04: sudo apt-get install linux-generic-hwe-22.04, then reboot"
        return 1
    fi
}
