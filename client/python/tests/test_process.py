"""Threads, forks, signals, the interpreter's end, and servers that go away."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import lanner
from conftest import Server, run_python


def in_child(act) -> int:
    """Runs `act` in the child of a fork; the child's exit status, 0 if all went well."""
    child = os.fork()
    if child == 0:
        try:
            act()
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_child_of_a_fork_has_connections_of_its_own(server, transport, name):
    client = lanner.Client(server.url(transport))
    client.upsert(name, b"parent")
    snapshot = client.prepare_snapshot([name])
    tensor = lanner.ShardedTensor.create(client, f"{transport}-fork", "uint8", [4], parts=1)
    tensor.write_part(0, b"0123")
    part = tensor.slice(0, 1, 3)
    engram = lanner.EngramStore(client, 77, [4], row_bytes=2)
    engram.remove_from_store(force=True)
    engram.populate([bytes(range(8))])
    engram.lookup([[[1]]])
    rows = bytearray(2)

    def use(writer: bytes):
        for index in range(200):
            key = name + writer.decode() + str(index)
            client.upsert(key, writer * 50)
            assert client.get(key) == writer * 50
        target = bytearray(6)
        snapshot.read_into([(0, 0, 6, 0)], target, refresh=True)
        assert target == b"parent"
        two = bytearray(2)
        part.read_into(two)
        assert two == b"12"
        engram.lookup_into([[[3]]], rows)
        assert rows == bytes([6, 7])

    def child():
        with pytest.raises(lanner.Stale):
            snapshot.read_into([(0, 0, 6, 0)], bytearray(6))
        use(b"child")
        # A child of the child, which makes everything anew once more.
        assert in_child(lambda: use(b"grandchild")) == 0

    use(b"parent")
    pid = os.fork()
    if pid == 0:
        try:
            child()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    # Both at the same time.
    use(b"parent")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    use(b"parent")


def test_a_child_that_ends_leaves_its_parents_connections_alone(server, name):
    """The child's interpreter is taken down, destructors and all, and objects are dropped in it."""
    script = """
import lanner, os, sys
url, name = sys.argv[1:]
client = lanner.Client(url)
client.upsert(name, b"x" * 100)
snapshot = client.prepare_snapshot([name])
for _ in range(3):
    if os.fork() == 0:
        del snapshot
        del client
        sys.exit(0)
    os.wait()
    target = bytearray(100)
    snapshot.read_into([(0, 0, 100, 0)], target)
    assert target == b"x" * 100 and client.get(name) == target
print("fine")
"""
    for transport in ("shm", "tcp"):
        done = run_python(script, server.url(transport), name)
        assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_threads_use_one_client(client, name):
    failures = []

    def use(number: int):
        try:
            buffer = np.zeros(4096, np.uint8)
            for index in range(100):
                key = f"{name}{number}:{index}"
                client.upsert(key, bytes([number, index]) * 2048)
                assert client.get_into(key, buffer) == 4096
                assert (buffer[::2] == number).all() and (buffer[1::2] == index).all()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures


def test_other_threads_run_while_one_waits(own_server):
    client = lanner.Client(own_server.url("tcp", timeout="700ms"))
    client.upsert("k", b"v")
    counted, failures, connected, paused = 0, [], threading.Event(), threading.Event()

    def wait():
        client.get("k")
        connected.set()
        paused.wait()
        try:
            client.get("k")
        except lanner.LannerError as failure:
            failures.append(failure)

    thread = threading.Thread(target=wait)
    thread.start()
    connected.wait()
    own_server.pause()
    paused.set()
    while thread.is_alive():
        counted += 1
    own_server.resume()
    assert [type(failure) for failure in failures] == [lanner.Timeout]
    assert counted > 10_000
    assert client.get("k") == b"v"


def test_several_clients_in_one_process(server):
    other = Server("--memory", "64MiB")
    try:
        here, there, again = lanner.Client(server.url()), lanner.Client(other.url()), lanner.Client(server.url("tcp"))
        here.upsert("several", b"here")
        there.upsert("several", b"there")
        assert (here.get("several"), there.get("several"), again.get("several")) == (b"here", b"there", b"here")
        del here
        assert again.get("several") == b"here"
    finally:
        other.kill()


INTERRUPTED = """
import lanner, signal, sys, threading, time
client = lanner.Client(sys.argv[1])
client.upsert("k", b"v")
print("ready", flush=True)
sys.stdin.readline()
started = time.monotonic()
try:
    client.get("k")
    print("answered")
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - started, flush=True)
sys.stdin.readline()
print(client.get("k"))
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_wait_can_be_interrupted(own_server, transport):
    """Ctrl-C during a call ends it and raises KeyboardInterrupt, long before the client's time-out."""
    url = own_server.url(transport, timeout="20s")
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    own_server.pause()
    child.stdin.write("\n")
    child.stdin.flush()
    time.sleep(0.3)
    sent = time.monotonic()
    child.send_signal(signal.SIGINT)
    word, _ = child.stdout.readline().split()
    assert word == "interrupted" and time.monotonic() - sent < 2
    own_server.resume()
    output, _ = child.communicate("\n", timeout=10)
    assert output == "b'v'\n"


INTERRUPTED_BATCH = """
import lanner, sys, time
client = lanner.Client(sys.argv[1])
keys, buffers = ["a", "b"], [bytearray(5), bytearray(5)]
calls = {
    "get": lambda **more: client.get_batch(keys, **more),
    "get_into": lambda **more: client.get_into_batch(keys, buffers, **more),
    "put": lambda **more: client.put_batch(keys, buffers, **more),
    "put_chain": lambda **more: client.put_chain(keys, 0, buffers, **more),
}
print("ready", flush=True)
sys.stdin.readline()
try:
    print("answered", calls[sys.argv[2]](return_exceptions=True), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("call", ["get", "get_into", "put", "put_chain"])
def test_a_signal_during_a_batch_is_raised_and_no_item_of_it(own_server, call):
    """While the connection was being made, the exception stood in the list that the call answered."""
    command = [sys.executable, "-c", INTERRUPTED_BATCH, own_server.url("tcp", timeout="1s"), call]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    own_server.pause()
    child.stdin.write("\n")
    child.stdin.flush()
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=10)
    own_server.resume()
    assert output == "interrupted\n"


INTERRUPTED_IN_CHILD = """
import lanner, os, signal, sys, threading, time
client = lanner.Client(sys.argv[1])
client.upsert("k", b"v")
def fork():
    client.get("k")
    child = os.fork()
    if child == 0:
        client.get("k")
        print("ready", os.getpid(), flush=True)
        sys.stdin.readline()
        started = time.monotonic()
        try:
            client.get("k")
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - started, flush=True)
        except lanner.LannerError as error:
            print("unheard", error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
thread = threading.Thread(target=fork)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_wait_can_be_interrupted_in_the_child_of_a_worker_thread(own_server, transport):
    """The thread that forks is the child's main thread. As it wasn't the parent's, its calls didn't look for signals."""
    command = [sys.executable, "-c", INTERRUPTED_IN_CHILD, own_server.url(transport, timeout="5s")]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    word, child = parent.stdout.readline().split()
    assert word == "ready"
    own_server.pause()
    parent.stdin.write("\n")
    parent.stdin.flush()
    time.sleep(0.3)
    os.kill(int(child), signal.SIGINT)
    word, seconds = parent.stdout.readline().split(maxsplit=1)
    own_server.resume()
    assert word == "interrupted" and float(seconds) < 3
    parent.communicate(timeout=10)


def test_the_interpreter_may_end_while_reads_are_open(own_server):
    """Daemon threads wait for a paused server while the interpreter ends; it ends at once and without a crash."""
    script = """
import lanner, sys, threading, time
client = lanner.Client(sys.argv[1])
client.upsert("k", b"v" * 100000)
connected, paused = threading.Barrier(5), threading.Event()
def wait():
    buffer = bytearray(100000)
    client.get_into("k", buffer)
    connected.wait()
    paused.wait()
    client.get_into("k", buffer)
    client.get_into("k", buffer)
for _ in range(4):
    threading.Thread(target=wait, daemon=True).start()
connected.wait()
print("ready", flush=True)
sys.stdin.readline()
paused.set()
time.sleep(0.2)
print("ends", flush=True)
"""
    for transport in ("shm", "tcp"):
        command = [sys.executable, "-c", script, own_server.url(transport, timeout="4s")]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        own_server.pause()
        started = time.monotonic()
        output, errors = child.communicate("\n", timeout=10)
        own_server.resume()
        assert (child.returncode, output, errors) == (0, "ends\n", "")
        assert time.monotonic() - started < 3


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(lanner.ConnectionFailed, match="127.0.0.1:1") as raised:
        lanner.Client("lanner://127.0.0.1:1?timeout=1s")
    assert raised.value.code == 13 and isinstance(raised.value, ConnectionError)
    with pytest.raises(lanner.InvalidArgument, match="lanner://"):
        lanner.Client("http://127.0.0.1")


def test_a_server_that_is_not_understood_is_named(server):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = "127.0.0.1:%d" % other.getsockname()[1]
        answer = threading.Thread(target=lambda: other.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n" * 100), daemon=True)
        answer.start()
        with pytest.raises(lanner.ConnectionFailed, match=f"{address}: .*not a Lanner handshake") as raised:
            lanner.Client(f"lanner://{address}?timeout=1s")
        answer.join()
    assert raised.value.code == 18
    with pytest.raises(lanner.ConnectionFailed, match=f"{server.fields['listen']}: .*refused tenant") as raised:
        lanner.Client(server.url() + "&tenant=nobody&token=wrong")
    assert raised.value.code == 17


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_server_that_was_killed_comes_back(transport):
    server = Server("--memory", "64MiB")
    client = lanner.Client(server.url(transport, timeout="1s"))
    client.upsert("k", b"old")
    snapshot = client.prepare_snapshot(["k"])
    server.kill()
    with pytest.raises((lanner.ConnectionFailed, lanner.Stale)):
        client.get("k")
    again = Server("--memory", "64MiB", port=server.port)
    try:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                assert client.get("k") is None
                break
            except lanner.ConnectionFailed:
                time.sleep(0.05)
        with pytest.raises((lanner.Stale, lanner.NotFound)):
            snapshot.read_into([(0, 0, 3, 0)], bytearray(3))
        client.put("k", b"new")
        snapshot.refresh()
        target = bytearray(3)
        snapshot.read_into([(0, 0, 3, 0)], target)
        assert target == b"new"
    finally:
        again.kill()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("is_hung", [False, True])
def test_a_server_that_is_away_takes_only_its_own_keys(two_servers, transport, is_hung):
    (one, other), url = two_servers
    client = lanner.Client(f"{url}?transport={transport}&timeout=700ms")
    keys = [f"k{index}" for index in range(20)]
    client.put_batch(keys, [b"v" * 5] * 20)
    there = [key.encode() in {key for key, _ in lanner.Client(one.url()).list()} for key in keys]
    assert 0 < sum(there) < 20
    other.pause() if is_hung else other.kill()
    calls = {client.exists_batch: True, client.size_batch: 5, client.remove_batch: True}
    for call, good in calls.items():
        answers = call(["", *keys, "k" * 1025], return_exceptions=True)
        assert type(answers[0]) is type(answers[-1]) is lanner.InvalidArgument
        assert [answer == good for answer in answers[1:-1]] == there
        assert all(isinstance(answer, lanner.ConnectionFailed) for answer, is_there in zip(answers[1:-1], there) if not is_there)
        if not is_hung:
            with pytest.raises(lanner.ConnectionFailed):
                call(keys)
    live = [key for key, is_there in zip(keys, there) if is_there]
    assert client.exists_batch([*live, "none"], return_exceptions=True)[: len(live)] == [False] * len(live)
    other.resume()


def test_blocks_are_found_though_the_first_server_is_gone(two_servers):
    """A group that nobody was reached about was taken for one of the first server's, which was then connected to, in vain."""
    (first, second), url = two_servers
    client = lanner.Client(f"{url}?timeout=700ms")
    chains = [[f"{number}/{block}" for block in range(64)] for number in range(16)]
    for chain in chains:
        client.put_chain(chain, 0, [b"v"] * 64)
    held = {key for key, _ in lanner.Client(second.url()).list()}
    first.kill()
    found = 0
    for chain in chains:
        there = [key in held for key in lanner.stored_keys(chain)] + [False]
        if any(there):
            assert len(client.match_chain(chain)) == there.index(False)
            found += there.index(False)
    assert found > 0


def test_a_store_that_is_full_says_so(own_server):
    client = lanner.Client(own_server.url())
    with pytest.raises(lanner.InvalidArgument) as raised:
        client.put("k", bytes(128 << 20))
    assert raised.value.code == 9
    stored = 0
    with pytest.raises(lanner.Busy) as raised:
        while stored < 200:
            client.put(f"pinned{stored}", bytes(1 << 20), pin="hard", ttl=60)
            stored += 1
    assert raised.value.code == 10 and stored > 10


def test_no_exception_of_the_tree_is_unknown():
    from lanner import errors

    for code in range(1, 26):
        error = errors.of_code(code, "text")
        assert type(error) is not lanner.LannerError and error.code == code, f"code {code} has no class"
    assert type(errors.of_code(99, "text")) is lanner.LannerError
