"""Mooncake Store's interface, given what can't be meant: each bad item is answered with its own code, the others as if it weren't there."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest

from lanner import mooncake
from lanner.mooncake.checks import contiguous, for_good, good_values, is_memory
from lanner.mooncake.tensors import HEADER_BYTES


@pytest.fixture(params=["shm", "tcp"])
def store(server, request):
    store = mooncake.MooncakeDistributedStore()
    assert store.setup({"master_server_addr": server.url(request.param)}) == 0
    store.remove_all()
    yield store
    store.close()


def test_what_is_good_of_a_batch():
    places = [(0, 0), (0, 1), (1, 1), (-1, 0), (1, -1), (1, 1 << 63), (1 << 63, 0), (np.int64(8), np.int64(8))]
    assert [is_memory(*place) for place in places] == [True, False, True, False, False, False, False, True]
    assert good_values([[1], [2, 3]], [[4], [5, 0]]) == [True, True] and good_values([], []) == []
    assert good_values([[1], [2, 3], [0], []], [[4], [5], [0], []]) == [True, False, True, True]
    assert good_values([[1, 2], [3]], [[1], [1, 1]]) == [False, False]
    double = lambda items: [2 * item for item in items]
    assert for_good([True, False, True], double, [1, 2, 3]) == [2, -600, 6]
    assert for_good([False], double, [1]) == [-600] and for_good([], double, []) == []


def test_one_bad_key_spoils_no_batch(store):
    """It used to be the answer for all keys, or an exception."""
    room = np.zeros(20, np.uint8)
    at = room.ctypes.data
    long = "k" * 1025
    assert store.put("k", b"value") == 0
    assert store.batch_get_into(["", "k", long], [at + 10, at, at + 15], [5, 5, 5]) == [-704, 5, -704]
    assert room[:5].tobytes() == b"value" and not room[5:].any()
    assert store.get_batch(["k", "", "k"]) == [b"value", b"", b"value"]
    assert store.batch_is_exist(["k", "", long, "none"]) == [1, 0, 0, 0] and store.get_size(long) == store.get_into("", at, 5) == -704
    assert store.batch_get_session_start(["", "k"]) == [-704, 0] and store.get_into_ranges([at], [[""]], [[[0]]], [[[0]]], [[[1]]]) == [[[-704]]]
    assert list(store.batch_get_replica_desc(["k", "", "none"])) == ["k"]
    assert store.put_batch(["", "b1"], [b"x", b"y"]) == -600 and store.is_exist("b1") == 1
    assert store.batch_put_from(["", "new"], [at, at], [5, 5]) == [-600, 0] and store.get("new") == b"value"
    assert store.batch_put_session_start(["", "w"], [5, 5]) == [-600, 0]
    assert store.batch_remove(["k", "", "none"]) == [0, -704, -704] and store.is_exist("k") == 0


@pytest.mark.parametrize("address, size", [(0, 5), (-8, 5), (8, -5), (8, 1 << 62), (8, 1 << 70), (1 << 70, 5)])
def test_memory_that_can_not_be_is_an_answer(store, address, size):
    """Null ended the process in some calls, was stored as whatever memory held in one, and huge numbers raised OverflowError."""
    room = np.arange(20, dtype=np.uint8)
    at = room.ctypes.data
    assert store.put("k", b"value") == 0
    assert store.get_into("k", address, size) == store.put_from("n", address, size) == store.upsert_from("n", address, size) == -600
    assert store.batch_get_into(["k", "k"], [address, at], [size, 5]) == [-600, 5]
    assert store.batch_put_from(["n", "m"], [address, at], [size, 5]) == [-600, 0]
    assert store.batch_get_into_multi_buffers(["k", "k"], [[at, address], [at, at + 1]], [[1, size], [1, 4]]) == [-600, 5]
    assert store.batch_put_from_multi_buffers(["n"], [[at, address]], [[1, size]]) == [-600]
    assert store.put_from_with_metadata("n", address, at, size, 5) == -600
    assert store.get_into_ranges([address, at], [["k"], ["k"]], [[[0]], [[0]]], [[[0]], [[0]]], [[[size]], [[5]]]) == [[[-600]], [[5]]]
    assert store.batch_get_session_start(["k"]) == [0]
    assert store.batch_get_into_multi_buffer_ranges(["k"], [[address]], [[size]], [[0]]) == [-600]
    assert store.batch_put_session_start(["w"], [5]) == [0]
    assert store.batch_put_from_multi_buffer_ranges(["w"], [[address]], [[size]], [[0]]) == [-600]
    assert store.put_tensor_from("n", address, size) == -600 and store.get_tensor_into("k", address, size) is None
    assert store.register_buffer(address, size) == -600
    assert store.is_exist("n") == 0


@pytest.mark.parametrize("address, offset", [(0, 8192), (-100, 200)])
def test_an_address_that_can_not_be_is_refused_whatever_is_added_to_it(store, address, offset):
    """The sum was looked at, not the address itself, and the process ended."""
    room = np.zeros(20, np.uint8)
    store.put("k", b"value")
    answered = store.get_into_ranges([address, room.ctypes.data], [["k"], ["k"]], [[[offset]], [[0]]], [[[0]], [[0]]], [[[3]], [[3]]])
    assert answered == [[[-600]], [[3]]]
    with pytest.raises(BufferError, match="address 0"):
        store.client.get_into("k", (ctypes.c_ubyte * 8).from_address(0))


def test_lists_of_different_lengths_are_an_answer(store):
    """They raised. What Mooncake answers is in the shape of the offsets."""
    room = np.zeros(20, np.uint8)
    at, bad = room.ctypes.data, -600
    store.put("k", b"value"), store.put("l", b"value")
    ranges = store.get_into_ranges
    assert ranges([at], [["k"]], [[[0, 1]]], [[[0]]], [[[1]]]) == [[[bad, bad]]]
    assert ranges([at], [["k"]], [], [], []) == ranges([at], [], [[[0]]], [[[0]]], [[[1]]]) == [[[bad]]]
    assert ranges([at, at], [["k"]], [[[0]]], [[[0]]], [[[1]]]) == [[[bad]], [[bad]]]
    assert ranges([], [["k"]], [[[0]]], [[[0]]], [[[1]]]) == []
    assert ranges([at], [["k", "l"]], [[[0]]], [[[0]]], [[[1]]]) == [[[bad], [bad]]]
    assert ranges([at], [["k", "l"]], [[[0], [1]]], [[[0], [0, 0]]], [[[1], [1, 1]]]) == [[[1], [bad]]]
    assert ranges([at], [["k", "l"]], [[[0], [1, 2]]], [[[0]]], [[[1], [1, 1]]]) == [[[bad], [bad, bad]]]
    store.batch_get_session_start(["k"]), store.batch_put_session_start(["w"], [5])
    assert store.batch_get_into_multi_buffer_ranges(["k", "k"], [[at]], [[3]], [[0]]) == [bad, bad]
    assert store.batch_put_from_multi_buffer_ranges(["w"], [[at]], [[5]], []) == [bad]


def test_memory_in_pieces_is_stored_in_order(store):
    """It raised. Mooncake 0.3.13.post1 stores what lies from its first byte on, of elements that lie apart others than those."""
    rows = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for value in (rows, rows.T, np.asfortranarray(rows)):
        assert store.upsert("k", value) == 0 and store.get("k") == value.tobytes("A")
    for value in (rows[:, ::2], memoryview(b"abcdef")[::2], rows[::2]):
        assert store.upsert_batch(["k"], [value]) == 0 and store.get("k") == bytes(value.tobytes())
        assert store.upsert_parts("k", b"<", value) == 0 and store.get("k") == b"<" + value.tobytes()
    for wrong in (np.array([object()]), np.array([object()] * 4)[::2]):
        with pytest.raises(TypeError):
            store.put("o", wrong)
        with pytest.raises(TypeError):
            store.put_parts("o", b"", wrong)
    assert contiguous(np.zeros(2, [("FOO", "i4")])[::2]).nbytes == 4


def test_what_is_no_miss_is_logged(two_servers, caplog):
    """Calls without a code answered as to a miss, and nothing said why."""
    servers, url = two_servers
    store = mooncake.MooncakeDistributedStore()
    assert store.setup({"master_server_addr": f"{url}?timeout=500ms"}) == 0
    logged = lambda call, *arguments: (caplog.clear(), call(*arguments), len(caplog.records))[-1]
    keys = [str(number) for number in range(20)]
    assert logged(store.get, "none") == logged(store.get_batch, keys) == logged(store.get_replica_desc, "none") == logged(store.is_exist, "none") == 0
    servers[0].kill()
    assert logged(store.get, "k" * 1025) == logged(store.get_batch, keys) == logged(store.get_replica_desc, "") == logged(store.is_exist, "") == 1
    assert logged(store.batch_get_replica_desc, keys) == 1 and "of 20" in caplog.text
    store.put_batch(keys, [b"v"] * 20)
    there = store.batch_is_exist(keys)
    assert set(there) == {1, -900} and store.batch_remove(keys) == [0 if code == 1 else -900 for code in there]


def test_ranges_and_sessions_answer_to_numbers_that_can_not_be(store):
    room = np.zeros(20, np.uint8)
    at = room.ctypes.data
    store.put("k", b"value")
    for bad in (-1, 1 << 70):
        assert store.get_into_ranges([at], [["k"]], [[[0, 0]]], [[[bad, 1]]], [[[1, 2]]]) == [[[-600, 2]]]
        assert store.get_into_ranges([at], [["k"]], [[[bad, 0]]], [[[0, 1]]], [[[1, 2]]]) == [[[-600, 2]]]
        store.batch_get_session_start(["k"])
        assert store.batch_get_into_multi_buffer_ranges(["k"], [[at]], [[1]], [[bad]]) == [-600]
        assert store.batch_put_session_start(["big"], [bad]) == [-600]
        store.batch_put_session_start(["w"], [5])
        assert store.batch_put_from_multi_buffer_ranges(["w"], [[at]], [[1]], [[bad]]) == [-600]
    assert store.batch_put_session_start(["big"], [1 << 50]) == [-600]


def test_before_setup_calls_fail(store):
    none = mooncake.MooncakeDistributedStore()
    room = np.zeros(8, np.uint8)
    assert none.batch_put_session_start(["k"], [5]) == [-1] and none.batch_put_from(["k"], [room.ctypes.data], [8]) == [-1]
    assert none.batch_get_into(["k"], [room.ctypes.data], [8]) == [-1] and none.health_check() == 1
    assert none.batch_is_exist(["k"]) == none.batch_remove(["k"]) == [-1]
    with pytest.raises(RuntimeError, match="setup"):
        mooncake.EngramStore(1, mooncake.EngramStoreConfig([5], 2), none)


def test_tensors_that_are_lazily_conjugated_or_negated(store):
    """What their memory holds isn't what they are; the wrong one of the two was stored."""
    torch = pytest.importorskip("torch")
    z = torch.tensor([[1 + 2j, 3 - 4j]])
    for lazy in (z.conj(), z.conj().imag, torch._neg_view(torch.tensor([1.0, -2.0])), z.mH):
        assert lazy.is_conj() or lazy.is_neg()
        assert store.upsert_tensor("t", lazy) == 0 and torch.equal(store.get_tensor("t"), lazy)
        assert store.batch_upsert_tensor(["t"], [lazy]) == [0] and torch.equal(store.get_tensor("t"), lazy)
    assert store.put_tensor_with_tp("p", z.conj(), 0, 2, 1) == 0
    assert [store.get_tensor_with_tp("p", rank, 2) for rank in (0, 1)] == [z.conj()[:, :1], z.conj()[:, 1:]]
    with pytest.raises(BufferError, match="resolve_conj"):
        store.client.put("raw", z.conj())


def header(dtype: str, *shape: int) -> bytes:
    return struct.pack("<8s16sI4x20Q", b"LNRTENS1", dtype.encode(), len(shape), *shape, *[0] * (20 - len(shape)))


@pytest.mark.parametrize("dtype", ["qint8", "quint4x2", "bits8", "int4", "uint1", "float4_e2m1fn_x2", "dtype", "nn", "float32\0x"])
def test_a_stored_type_that_is_none_is_no_tensor(store, dtype):
    """torch ends the process when it makes some of these of plain memory."""
    pytest.importorskip("torch")
    store.put("t", header(dtype, 2) + bytes(64))
    room = np.zeros(1000, np.uint8)
    assert store.get_tensor("t") is None and store.get_tensor_into("t", room.ctypes.data, 1000) is None
    room[: HEADER_BYTES + 64] = np.frombuffer(header(dtype, 2) + bytes(64), np.uint8)
    assert store.put_tensor_from("n", room.ctypes.data, HEADER_BYTES + 64) == -600


@pytest.mark.parametrize("shape", [(0, 1 << 63), ((1 << 64) - 1, 0), (0, 1 << 40, 1 << 40), (1 << 63, 2), (1 << 32, 1 << 32)])
def test_a_stored_shape_that_can_not_be_is_no_tensor(store, shape):
    pytest.importorskip("torch")
    store.put("t", header("float32", *shape) + bytes(64))
    assert store.get_tensor("t") is None and store.batch_get_tensor(["t", "t"]) == [None, None]


def test_tensors_that_are_not_stored_are_answered_one_by_one(store):
    torch = pytest.importorskip("torch")
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)
    sparse = torch.eye(3).to_sparse()
    good = torch.ones(3)
    for bad in (quantized, sparse, sparse.to_sparse_csr(), torch.ones(3, device="meta"), np.ones(3), None):
        assert store.put_tensor("b", bad) == store.put_tensor_with_tp("b", bad, 0, 3) == -600
        assert store.batch_upsert_tensor(["b", "g"], [bad, good]) == [-600, 0]
    assert store.is_exist("b") == 0 and torch.equal(store.get_tensor("g"), good)
    # As many group_ids as objects, not as parts.
    groups = mooncake.ReplicateConfig(group_ids=["a", "b"])
    assert store.batch_pub_tensor(["p1", "p2"], [good, good], groups) == store.batch_pub_tensor_with_tp(["p3", "p4"], [good, good], groups, 0, 3) == [0, 0]
    assert store.pub_tensor("p5", good, groups) == -600
    assert store.batch_get_tensor_into(["g", "g"], [1 << 20], [5]) == [None, None]
    room = np.frombuffer(store.get("g"), np.uint8).copy()
    at, size = room.ctypes.data, len(room)
    assert store.batch_put_tensor_from(["x", "y", "z"], [at, 0, at], [size, size, 20]) == [0, -600, -600]
    assert torch.equal(store.get_tensor("x"), good)
