"""Lifetimes of buffers: memory that a call uses is held by its exporter until the call has returned."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import lanner

SIZE = 1 << 20


@pytest.fixture
def held_up(own_server, name):
    """A client whose calls wait, because its server is paused, and what a key holds."""
    client = lanner.Client(own_server.url("tcp", timeout="10s"))
    data = np.random.default_rng(3).integers(0, 255, SIZE, dtype=np.uint8)
    client.upsert(name, data)
    return client, own_server, data


def in_flight(client, server, call):
    """Makes `call` in a thread that is connected to a server that has been paused since."""
    outcome = []
    connected, paused = threading.Event(), threading.Event()

    def run():
        client.exists("k")
        connected.set()
        paused.wait()
        outcome.append(call())

    thread = threading.Thread(target=run)
    thread.start()
    connected.wait()
    server.pause()
    paused.set()
    time.sleep(0.1)
    assert thread.is_alive()
    return thread, outcome


def test_memory_can_not_be_resized_during_a_read(held_up, name):
    client, server, data = held_up
    for buffer, grow in (
        (bytearray(SIZE), lambda buffer: buffer.extend(b"x" * SIZE)),
        (np.zeros(SIZE, np.uint8), lambda buffer: buffer.resize(2 * SIZE)),
    ):
        thread, outcome = in_flight(client, server, lambda: client.get_into(name, buffer))
        with pytest.raises((BufferError, ValueError)):
            grow(buffer)
        server.resume()
        thread.join()
        assert outcome == [SIZE] and bytes(buffer) == data.tobytes()
        if isinstance(buffer, bytearray):
            grow(buffer)
            assert len(buffer) == 2 * SIZE


def test_memory_that_nobody_else_knows_lives_until_the_read_is_done(held_up, name):
    client, server, data = held_up
    holder = [np.zeros(SIZE, np.uint8)]
    seen = weakref.ref(holder[0])
    read = lambda: client.get_into(name, holder.pop())
    thread, outcome = in_flight(client, server, read)
    gc.collect()
    assert not holder and seen() is not None
    kept = seen()
    server.resume()
    thread.join()
    assert outcome == [SIZE] and (kept == data).all()
    del kept
    gc.collect()
    assert seen() is None


def test_a_failed_call_lets_go_of_its_memory(client, name):
    buffer = bytearray(8)
    client.upsert(name, b"x" * 9)
    for _ in range(3):
        with pytest.raises(lanner.InvalidArgument):
            client.get_into(name, buffer)
        with pytest.raises(ValueError):
            client.get_into_batch([name, name], [buffer, buffer])
        with pytest.raises(ValueError):
            client.read_ranges([name], [(0, 8, 2, 0)], buffer)
    buffer.extend(b"more")


def test_objects_outlive_the_client_that_made_them(server, name):
    client = lanner.Client(server.url())
    client.upsert(name, b"value")
    snapshot = client.prepare_snapshot([name])
    seen = weakref.ref(client)
    del client
    gc.collect()
    assert seen() is not None
    target = bytearray(5)
    snapshot.read_into([(0, 0, 5, 0)], target)
    snapshot.refresh()
    assert target == b"value"
    del snapshot
    gc.collect()
    assert seen() is None


def test_tensors_of_torch(client, name):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool):
        source = torch.arange(24, dtype=torch.uint8).view(2, 3, 4).to(dtype)
        client.upsert(name, source)
        target = torch.zeros_like(source)
        assert client.get_into(name, target) == source.nbytes
        assert (target.view(torch.uint8) == source.view(torch.uint8)).all()
    parameter = torch.nn.Parameter(torch.zeros(3))
    client.upsert(name, torch.ones(3))
    client.get_into(name, parameter)
    assert parameter.detach().tolist() == [1, 1, 1]
    scalar = torch.tensor(7, dtype=torch.bfloat16)
    client.upsert(name, scalar)
    assert client.get(name) == scalar.reshape(1).view(torch.uint8).numpy().tobytes()
    with pytest.raises(BufferError, match="contiguous"):
        client.get_into(name, torch.zeros(4, 4).t())
    with pytest.raises(BufferError, match="scale"):
        client.upsert(name, torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8))
    with pytest.raises(TypeError, match="meta"):
        client.get_into(name, torch.zeros(4, device="meta"))
    target = torch.zeros(3)
    client.upsert(name, torch.ones(3))
    client.get_into(name, target)
    with pytest.raises(RuntimeError, match="resiz"):
        target.resize_(1 << 20)


def test_what_has_only_dlpack(client, name):
    class OnlyDlpack:
        def __init__(self, inner):
            self.inner = inner

        def __dlpack__(self, **keywords):
            return self.inner.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return self.inner.__dlpack_device__()

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "numpy", None)  # as if it weren't installed
        for call in (lambda: client.upsert(name, OnlyDlpack(None)), lambda: lanner.EngramStore(None, 1, [2], row_bytes=1).lookup([[[1]]])):
            with pytest.raises(ImportError, match=r"lanner\[numpy\]"):
                call()
    client.upsert(name, OnlyDlpack(np.arange(3.0)))
    target = np.zeros(3)
    assert client.get_into(name, OnlyDlpack(target)) == 24
    assert target.tolist() == [0, 1, 2]


def test_registered_memory(client, name):
    memory = bytearray(range(200)) * 10
    registered = client.register(memory)
    assert len(registered) == registered.nbytes == 2000 and not registered.is_with_device
    keys = [f"{name}{index}" for index in range(3)]
    assert registered.put_batch(keys, [(0, 100), (100, 0), (1900, 100)]) == [True] * 3
    assert registered.put_batch(keys[:1], [(5, 5)]) == [False]
    assert registered.put_batch(keys[:1], [(5, 5)], replace=True) == [True]
    assert registered.get_into_batch([*keys, "none"], [(1000, 5), (0, 0), (500, 100), (0, 9)]) == [5, 0, 100, None]
    assert memory[1000:1005] == bytes(range(5, 10)) and memory[500:600] == memory[1900:]
    assert registered.get_into(keys[2], 0, 100) == 100 and registered.get_into("none", 0, 100) is None
    snapshot = client.prepare_snapshot(keys)
    registered.read_from_snapshot(snapshot, [(2, 10, 20, 700), (0, 0, 5, 0)])
    assert memory[700:720] == memory[1910:1930] and memory[:5] == bytes(range(5, 10))
    for wrong in ((1999, 2), (2001, 0), (1 << 63, 1 << 63), (-1, 5), (10, -1), (-5, 10)):
        with pytest.raises(ValueError, match="no place in 2000 bytes"):
            registered.get_into(keys[0], *wrong)
        with pytest.raises(ValueError, match="no place in 2000 bytes"):
            registered.put_batch(keys[:1], [wrong])
    with pytest.raises(lanner.InvalidArgument):
        registered.get_into_batch(keys[:2], [(0, 10), (5, 10)])
    with pytest.raises(BufferError):
        memory.append(1)
    registered.close()
    memory.append(1)
    with pytest.raises(RuntimeError, match="closed"):
        registered.get_into(keys[0], 0, 10)
    with pytest.raises(BufferError):
        client.register(b"read-only")
