# Sourced by scripts that run servers: finds the NUMA nodes, starts programs and waits until they say that they are ready, and stops by
# process id exactly what it started. Nothing here runs by itself.
# shellcheck shell=bash

# How long a server may take to be ready: it may have to clear a large memory.
READY_SECONDS=${READY_SECONDS:-60}
# How long a server may take to drain after SIGTERM before it is killed.
STOP_SECONDS=${STOP_SECONDS:-15}

# Process ids of what start_server started, in that order.
SERVER_PIDS=()
# The last server's ready line.
READY_LINE=

# Prints the numbers of the NUMA nodes that have CPUs, one a line. A kernel without NUMA has node 0.
numa_nodes() {
    local list
    list=$(cat "${NODE_FOLDER:-/sys/devices/system/node}/has_cpu" 2>/dev/null) || list=0
    cpus_in "${list:-0}"
}

# cpus_in LIST: prints the numbers of a kernel's list such as 0-3,8, one a line.
cpus_in() {
    local entry
    local -a entries
    IFS=, read -ra entries <<<"$1"
    for entry in "${entries[@]}"; do
        seq "${entry%-*}" "${entry#*-}"
    done
}

# server_cores NODE: prints the CPUs that a server on this node is to run on, separated by commas, when clients are to run beside it: those
# of the node that this process may use but the first one, where `lanner bench` runs; that one too if there is no other.
server_cores() {
    local of_node allowed
    local -a cpus
    allowed=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "${STATUS_FILE:-/proc/self/status}")
    of_node=$(cat "${NODE_FOLDER:-/sys/devices/system/node}/node$1/cpulist" 2>/dev/null) || of_node=$allowed
    mapfile -t cpus < <(comm -12 <(cpus_in "$of_node" | sort) <(cpus_in "$allowed" | sort) | sort -n)
    ((${#cpus[@]} > 1)) && cpus=("${cpus[@]:1}")
    (IFS=, && echo "${cpus[*]}")
}

# ready_field NAME: prints a field of READY_LINE, `listen` or `boot`, say.
ready_field() {
    local word
    for word in $READY_LINE; do
        [[ $word == "$1="* ]] && { echo "${word#*=}"; return 0; }
    done
    return 1
}

# start_server LOG COMMAND…: starts the command with its output in LOG.out and LOG.err, and returns once it has printed its ready line,
# which is then in READY_LINE. A command that ends before, or takes longer than READY_SECONDS, is a failure that shows its last words.
start_server() {
    local log=$1 pid deadline=$((SECONDS + READY_SECONDS))
    shift
    "$@" >"$log.out" 2>"$log.err" </dev/null &
    pid=$!
    SERVER_PIDS+=("$pid")
    while ! READY_LINE=$(grep -m 1 '^ready ' "$log.out"); do
        if ! kill -0 "$pid" 2>/dev/null; then
            printf '%s ended before it was ready; its last words (%s.err):\n' "$1" "$log" >&2
            tail -n 5 "$log.err" | sed 's/^/  /' >&2
            return 1
        fi
        if ((SECONDS >= deadline)); then
            printf '%s was not ready after %s s; its last words (%s.err):\n' "$1" "$READY_SECONDS" "$log" >&2
            tail -n 5 "$log.err" | sed 's/^/  /' >&2
            return 1
        fi
        sleep 0.05
    done
}

# Ends every server that start_server started: SIGTERM to all, so that they drain at the same time, then SIGKILL to those that take longer
# than STOP_SECONDS. Calling it again does nothing. Meant for `trap stop_servers EXIT`.
stop_servers() {
    local pid deadline=$((SECONDS + STOP_SECONDS))
    for pid in ${SERVER_PIDS[@]+"${SERVER_PIDS[@]}"}; do
        kill -TERM "$pid" 2>/dev/null || true
    done
    for pid in ${SERVER_PIDS[@]+"${SERVER_PIDS[@]}"}; do
        while kill -0 "$pid" 2>/dev/null && ((SECONDS < deadline)); do
            sleep 0.05
        done
        if kill -KILL "$pid" 2>/dev/null; then
            printf 'process %s did not end within %s s and was killed\n' "$pid" "$STOP_SECONDS" >&2
        fi
        wait "$pid" 2>/dev/null || true
    done
    SERVER_PIDS=()
}
