"""Calls of ``Client`` and what they answer, over shared memory and TCP."""

from __future__ import annotations

import array
import ctypes

import numpy as np
import pytest

import lanner


def test_a_miss_is_not_an_empty_value(client, name):
    client.upsert(name + "empty", b"")
    assert client.get(name + "empty") == b""
    assert client.get(name + "nothing") is None
    assert client.get_batch([name + "nothing", name + "empty"]) == [None, b""]
    assert client.get_into(name + "empty", bytearray(0)) == 0
    assert client.get_into(name + "nothing", bytearray(8)) is None
    assert client.size(name + "empty") == 0
    assert client.size(name + "nothing") is None


def test_put_refuses_what_upsert_replaces(client, name):
    client.upsert(name + "k", b"one")
    with pytest.raises(lanner.AlreadyExists) as raised:
        client.put(name + "k", b"two")
    assert (raised.value.code, raised.value.index) == (2, 0)
    assert client.put_batch([name + "k", name + "new"], [b"two", b"2"]) == [False, True]
    assert client.upsert_batch([name + "k"], [b"three"]) == [True]
    assert client.get_batch([name + "k", name + "new"]) == [b"three", b"2"]
    assert client.remove_batch([name + "k", name + "k2", name + "new"]) == [True, False, True]


def test_keys_are_text_or_bytes(client, name):
    client.upsert(name + "ä", b"1")
    assert client.get((name + "ä").encode()) == b"1"
    assert client.exists_batch([name + "ä", name.encode() + b"\xff\x00"]) == [True, False]
    for wrong in (7, None, bytearray(b"k")):
        with pytest.raises(TypeError, match="str or bytes"):
            client.get(wrong)
    for call in (client.get_batch, client.exists_batch, client.match_chain, lanner.stored_keys):
        for one in ("key", b"key"):
            with pytest.raises(TypeError, match=r"give \[key\]"):
                call(one)
    with pytest.raises(lanner.InvalidArgument) as raised:
        client.get_batch(["k", b"x" * 1025])
    assert (raised.value.code, raised.value.index) == (5, 1)


def test_values_are_whatever_has_memory(client, name):
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    for value in (b"bytes", bytearray(b"array"), memoryview(b"view"), array.array("d", [1.5, 2.5]), matrix, matrix[1:]):
        client.upsert(name + "v", value)
        assert client.get(name + "v") == bytes(memoryview(value).cast("B") if not isinstance(value, np.ndarray) else value.tobytes())
    for wrong in ("text", 7, None, [b"x"]):
        with pytest.raises(TypeError, match="buffer protocol"):
            client.put(name + "w", wrong)
    with pytest.raises(BufferError, match="contiguous"):
        client.put(name + "w", matrix[:, 1])


def test_memory_that_holds_addresses_is_refused(client, name):
    """Reading to it made objects of whatever the value held, and the process ended."""
    objects = np.array([object()] * 3)
    fields = np.zeros(3, [("number", "i4"), ("object", "O")])
    dates = np.zeros(3, [("when", "M8[s]"), ("object", "O")])  # formats have no letter for dates
    for wrong in (objects, memoryview(objects), fields, dates, (ctypes.py_object * 3)(), (ctypes.c_char_p * 3)(), (ctypes.c_wchar_p * 3)()):
        with pytest.raises(TypeError, match="addresses"):
            client.upsert(name, wrong)
        with pytest.raises(TypeError, match="addresses"):
            client.get_into(name, wrong)
    with pytest.raises(TypeError, match="addresses"):
        client.register(objects)
    for plain in (np.zeros(3, [("O", "i4"), ("P", "f8")]), np.zeros(3, "M8[s]"), np.zeros(3, np.complex64), (ctypes.c_int * 3)()):
        client.upsert(name, plain)


def test_get_into_writes_to_the_buffer_itself(client, name):
    data = np.random.default_rng(1).integers(0, 255, 1 << 20, dtype=np.uint8)
    client.upsert(name + "big", data)
    target = np.zeros(len(data) + 3, np.uint8)
    assert client.get_into(name + "big", target) == len(data)
    assert (target[:-3] == data).all() and not target[-3:].any()
    part = np.zeros((4, 1 << 18), np.uint8)
    assert client.get_into(name + "big", part) == len(data)
    assert (part.ravel() == data).all()
    for read_only in (bytes(8), memoryview(b"12345678"), np.frombuffer(b"12345678", np.uint8)):
        with pytest.raises(BufferError, match="writable"):
            client.get_into(name + "big", read_only)
    with pytest.raises(BufferError, match="contiguous"):
        client.get_into(name + "big", part[:, ::2])
    with pytest.raises(lanner.InvalidArgument) as raised:
        client.get_into(name + "big", bytearray(5))
    assert (raised.value.code, raised.value.needed) == (8, 1 << 20)


def test_a_batch_keeps_its_places(client, name):
    keys = [f"{name}{index}" for index in range(10)]
    client.upsert_batch(keys, [bytes([index] * 100) for index in range(10)])
    client.remove(keys[4])
    rows = np.full((10, 100), 255, np.uint8)
    assert client.get_into_batch(keys, list(rows)) == [100] * 4 + [None] + [100] * 5
    assert [row[0] for row in rows] == [0, 1, 2, 3, 255, 5, 6, 7, 8, 9]
    assert client.size_batch(keys) == [100] * 4 + [None] + [100] * 5
    small = [bytearray(100), bytearray(3)]
    with pytest.raises(lanner.InvalidArgument):
        client.get_into_batch(keys[:2], small)
    size, error = client.get_into_batch(keys[:2], small, return_exceptions=True)
    assert size == 100 and isinstance(error, lanner.InvalidArgument) and error.index == 1
    with pytest.raises(TypeError, match=r"give \[buffer\]"):
        client.put_batch(keys[:2], b"ab")
    for call, others in ((client.get_into_batch, [bytearray(1)]), (client.put_batch, [b""])):
        with pytest.raises(ValueError, match="2 keys and 1"):
            call(keys[:2], others)


def test_a_bad_key_stands_in_its_place(client, name):
    """One key that can't be used to spoil the whole batch, also with return_exceptions."""
    keys = ["", name + "a", "k" * 1025, name + "none", name + "a", ""]
    client.upsert(name + "a", b"value")
    memory = np.zeros(30, np.uint8)
    addresses, sizes = [memory.ctypes.data + 5 * index for index in range(6)], [5] * 6
    registered = client.register(bytearray(30))
    places = [(5 * index, 5) for index in range(6)]
    reads = [
        lambda **more: client.get_batch(keys, **more),
        lambda **more: client.size_batch(keys, **more),
        lambda **more: client.get_into_batch(keys, [bytearray(5) for _ in keys], **more),
        lambda **more: client.get_into_addresses(keys, addresses, sizes, **more),
        lambda **more: client.get_into_parts(keys, [[each] for each in addresses], [[each] for each in sizes], **more),
        lambda **more: registered.get_into_batch(keys, places, **more),
    ]
    for read in reads:
        with pytest.raises(lanner.InvalidArgument, match="1 to 1024"):
            read()
        answers = read(return_exceptions=True)
        assert [answer for index, answer in enumerate(answers) if index in (1, 3, 4)] in ([5, None, 5], [b"value", None, b"value"])
        assert [(type(answers[index]), answers[index].index) for index in (0, 2, 5)] == [(lanner.InvalidArgument, index) for index in (0, 2, 5)]
    assert memory.tobytes() == bytes(5) + b"value" + bytes(10) + b"value" + bytes(5)
    # The error of an item names its place in the call, not that among the good ones.
    assert client.get_into_batch(["", name + "a"], [bytearray(5), bytearray(1)], return_exceptions=True)[1].index == 1
    writes = [
        lambda: client.upsert_batch(["", name + "w"], [b"1", b"2"], return_exceptions=True),
        lambda: client.put_batch(["", name + "w"], [b"1", b"2"], return_exceptions=True),
        lambda: client.put_from_addresses(["", name + "w"], addresses[:2], sizes[:2], return_exceptions=True),
        lambda: client.put_from_parts(["", name + "w"], [addresses[:1], addresses[1:2]], [[5], [5]], return_exceptions=True),
        lambda: registered.put_batch(["", name + "w"], places[:2], replace=True, return_exceptions=True),
    ]
    for write, is_stored in zip(writes, (True, False, False, False, True)):
        error, stored = write()
        assert isinstance(error, lanner.InvalidArgument) and error.index == 0 and stored == is_stored
    registered.close()


def test_buffers_that_overlap_are_refused(client, name):
    client.upsert_batch([name + "a", name + "b"], [b"a" * 8, b"b" * 8])
    memory = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="buffers 0 and 1 overlap"):
        client.get_into_batch([name + "a", name + "b"], [memory[:8], memory[7:15]])
    assert client.get_into_batch([name + "a", name + "b"], [memory[8:], memory[:8]]) == [8, 8]
    assert memory.tobytes() == b"b" * 8 + b"a" * 8


def test_ranges(client, name):
    client.upsert_batch([name + "a", name + "b"], [bytes(range(100)), bytes(range(100, 200))])
    keys = [name + "a", name + "b"]
    target = bytearray(6)
    client.read_ranges(keys, [(1, 5, 2, 0), (0, 97, 3, 3)], target)
    assert target == bytes([105, 106, 0, 97, 98, 99])
    client.read_ranges(keys, np.array([[0, 1, 1, 2]]), target)
    assert target[2] == 1
    with pytest.raises(lanner.InvalidArgument) as raised:
        client.read_ranges(keys, [(0, 0, 1, 0), (0, 99, 2, 1)], target)
    assert (raised.value.code, raised.value.index) == (6, 1)
    with pytest.raises(lanner.InvalidArgument, match="range 0 ends at byte 7 of a buffer of 6"):
        client.read_ranges(keys, [(0, 0, 2, 5)], target)
    with pytest.raises(lanner.InvalidArgument, match="range 0 is of key 3, and keys are 0 to 1"):
        client.read_ranges(keys, [(3, 0, 1, 0)], target)
    with pytest.raises(lanner.NotFound) as raised:
        client.read_ranges([name + "a", name + "none"], [(1, 0, 1, 0)], target)
    assert raised.value.index == 1
    client.read_ranges([name + "a", name + "none"], [(0, 0, 1, 0)], target)  # no range is of the key that is missing
    with pytest.raises(ValueError, match=r"\[n, 4\]"):
        client.read_ranges(keys, np.zeros((2, 3), np.int64), target)
    with pytest.raises(ValueError, match="negative"):
        client.read_ranges(keys, np.array([[0, -1, 1, 2]]), target)
    with pytest.raises(TypeError, match="int64"):
        client.read_ranges(keys, np.zeros((2, 4), np.int32), target)
    client.read_ranges(keys, [[0, 7, 1, 2]], target)
    assert target[2] == 7
    for number in (-1, 1 << 64):
        with pytest.raises(ValueError, match="range 1 .*negative"):
            client.read_ranges(keys, [(0, 0, 1, 0), (0, number, 1, 2)], target)
    for wrong in ([(0, 1.5, 1, 2)], [(0, 1, 1)], ["abcd"]):
        with pytest.raises((TypeError, ValueError)):
            client.read_ranges(keys, wrong, target)


def test_list_and_longest_prefix(client, name):
    client.upsert_batch([name + "x/1", name + "x/2", name + "y"], [b"1", b"22", b"3"])
    assert client.list(name + "x/") == [((name + "x/1").encode(), 1), ((name + "x/2").encode(), 2)]
    assert client.list(name + "x/", limit=1) == [((name + "x/1").encode(), 1)]
    assert client.list(name + "x/", limit=0) == []
    assert client.longest_prefix(name + "x/15") == (name + "x/1").encode()
    assert client.longest_prefix("nothing begins like this") is None


def test_chains(client, name):
    keys = [f"{name}block{index}" for index in range(70)]
    values = [bytes([index]) * 64 for index in range(70)]
    nothing = client.match_chain(keys)
    assert len(nothing) == 0
    with pytest.raises(lanner.InvalidArgument, match="is of key 0, and there are no keys"):
        nothing.read_into([(0, 0, 1, 0)], bytearray(1))
    assert client.put_chain(keys, 0, values[:40]) == [True] * 40
    assert client.put_chain(keys, 38, values[38:]) == [False] * 2 + [True] * 30
    snapshot = client.match_chain(keys)
    assert len(snapshot) == 70
    client.remove(lanner.stored_keys(keys)[50])
    held = client.match_chain(keys)
    assert len(held) == 50
    rows = np.zeros((50, 64), np.uint8)
    held.read_into([(index, 0, 64, 64 * index) for index in range(50)], rows)
    assert (rows == np.arange(50, dtype=np.uint8)[:, None]).all()
    with pytest.raises(lanner.InvalidArgument):
        client.match_chain([])


def test_snapshots(client, name):
    keys = [name + "a", name + "b"]
    client.upsert_batch(keys, [b"0123456789", b"abcdefghij"])
    snapshot = client.prepare_snapshot(keys)
    assert len(snapshot) == 2 and snapshot.value_bytes(1) == 10 and 0 < snapshot.remaining <= 5
    assert not snapshot.needs_refresh
    with pytest.raises(IndexError):
        snapshot.value_bytes(2)
    target = bytearray(4)
    client.upsert(name + "a", b"new content")
    snapshot.read_into([(0, 8, 2, 0), (1, 0, 2, 2)], target)
    assert target == b"89ab"
    with pytest.raises(lanner.Stale) as raised:
        snapshot.read_into([(0, 8, 2, 0)], target, checked=True)
    assert raised.value.code == 4
    snapshot.read_into([(0, 8, 2, 0)], target, checked=True, refresh=True)
    assert target[:2] == b"en"
    with pytest.raises(lanner.NotFound) as raised:
        client.prepare_snapshot([name + "a", name + "none"])
    assert raised.value.index == 1
    client.remove_batch(keys)
    with pytest.raises(lanner.NotFound):
        snapshot.refresh()


def test_options_of_puts(client, name):
    client.upsert(name + "k", b"1", ttl=60, pin="hard", group=name)
    with pytest.raises(lanner.InvalidArgument):
        client.upsert(name + "k", b"1", pin="hard")
    with pytest.raises(ValueError, match="none of none, soft, hard"):
        client.upsert(name + "k", b"1", pin="nail")
    for wrong, why in ((-1, "positive number"), (float("nan"), "positive number"), (1e300, "counted"), (float("inf"), "counted")):
        with pytest.raises(ValueError, match=why):
            client.upsert(name + "k", b"1", ttl=wrong)


def test_addresses_are_read_and_written(client, name):
    source = np.arange(300, dtype=np.uint8).reshape(3, 100)
    target = np.zeros_like(source)
    keys = [f"{name}{index}" for index in range(3)]
    at = lambda rows: [row.ctypes.data for row in rows]
    assert client.put_from_addresses(keys, at(source), [100] * 3) == [True] * 3
    assert client.put_from_addresses(keys, at(source), [100] * 3) == [False] * 3
    assert client.put_from_addresses(keys, at(source), [100] * 3, replace=True) == [True] * 3
    assert client.get_into_addresses([*keys[:2], name + "none"], at(target), [100] * 3) == [100, 100, None]
    assert (target[:2] == source[:2]).all() and not target[2].any()
    with pytest.raises(ValueError, match="no memory"):
        client.get_into_addresses(keys[:1], [0], [100])
    with pytest.raises(ValueError, match="overlap"):
        client.get_into_addresses(keys[:2], [target.ctypes.data] * 2, [100] * 2)


def test_values_in_several_pieces(client, name):
    source = np.arange(100, dtype=np.uint8)
    target = np.zeros(100, np.uint8)
    start, to = source.ctypes.data, target.ctypes.data
    keys = [name + "a", name + "b"]
    assert client.put_from_parts(keys, [[start + 50, start], [start]], [[10, 5], [7]]) == [True, True]
    assert client.get(name + "a") == bytes([*range(50, 60), *range(5)])
    got = client.get_into_parts([*keys, name + "none"], [[to, to + 90, to + 20], [to + 50], [to + 70]], [[4, 6, 20], [7], [1]])
    assert got == [15, 7, None]
    assert target[:4].tolist() == [50, 51, 52, 53] and target[90:96].tolist() == list(range(54, 60))
    assert target[20:25].tolist() == list(range(5)) and target[50:57].tolist() == list(range(7))
    assert not target[25:50].any() and not target[70]
    with pytest.raises(lanner.InvalidArgument):
        client.get_into_parts(keys[:1], [[to, to + 90]], [[4, 6]])
    with pytest.raises(ValueError, match="overlap"):
        client.get_into_parts(keys[:1], [[to, to + 3]], [[4, 60]])
    # Room for a value is as large as values can be, not as sizes are said to be.
    assert client.get_into_parts(keys[1:], [[to, to + 4]], [[4, 1 << 60]]) == [7]


def test_what_a_client_says_of_itself(client):
    assert client.transport_for("k") in client.url
    assert client.rdma_failures() == []
    server = client.servers()[0]
    assert server["shards"] == 1 and server["capacity_bytes"] > 0
    assert client.stats()[0][0] == server["address"]
    assert repr(client).startswith("lanner.Client('lanner://127.0.0.1:")


def test_a_time_to_live_is_positive(client, name):
    for ttl in (0, 0.0, -1, float("nan")):
        with pytest.raises(ValueError, match="positive"):
            client.upsert(name, b"", ttl=ttl)
    client.upsert(name, b"", ttl=0.001)


def test_the_key_of_a_block_is_shorter_than_others(client):
    for call in (client.match_chain, lanner.stored_keys):
        with pytest.raises(lanner.InvalidArgument, match="key 1 .* 991 bytes.* 1 to 990"):
            call(["k", "k" * 991])
        with pytest.raises(lanner.InvalidArgument, match="key 0"):
            call([""])
    assert lanner.stored_keys([]) == [] and len(lanner.stored_keys(["k"] * 5000)) == 5000
