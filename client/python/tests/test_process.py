"""Threads, forks, signals, and the interpreter's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import lanner
from conftest import run_python


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


def test_no_exception_of_the_tree_is_unknown():
    from lanner import errors

    for code in range(1, 26):
        error = errors.of_code(code, "text")
        assert type(error) is not lanner.LannerError and error.code == code, f"code {code} has no class"
    assert type(errors.of_code(99, "text")) is lanner.LannerError
