"""Engram tables and sharded tensors."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import lanner
from lanner import errors

VOCABULARIES = [100, 50, 77]


@pytest.fixture
def layer(request):
    """A number of a layer that no other test has."""
    return abs(hash(request.node.nodeid)) % (1 << 31)


@pytest.fixture
def tables():
    random = np.random.default_rng(7)
    return [random.standard_normal((rows, 16), dtype=np.float32) for rows in VOCABULARIES]


@pytest.fixture
def store(client, layer, tables):
    store = lanner.EngramStore(client, layer, VOCABULARIES, dtype="float32", embedding_dim=16)
    store.populate(tables)
    yield store
    store.remove_from_store(force=True)


def ids_of(batch: int, length: int) -> np.ndarray:
    random = np.random.default_rng(batch * length)
    return np.stack([random.integers(0, rows, (batch, length)) for rows in VOCABULARIES], axis=-1)


def expected(tables, ids):
    return np.stack([table[ids[..., head]] for head, table in enumerate(tables)], axis=2)


def test_look_ups_are_the_rows(store, tables):
    ids = ids_of(2, 5)
    for given in (ids, ids.tolist(), memoryview(ids)):
        assert (store.lookup(given) == expected(tables, ids)).all()
    out = np.empty((2, 5, 3, 16), np.float32)
    store.lookup_into(ids, out, checked=True)
    assert (out == expected(tables, ids)).all()
    assert (store.heads, store.row_bytes, store.embedding_dim, store.dtype) == (3, 64, 16, "float32")


def test_what_is_wrong_with_a_look_up_is_said(store, client, layer):
    ids = ids_of(1, 2)
    with pytest.raises(errors.EngramError, match="out of range"):
        store.lookup(ids + 100)
    with pytest.raises(errors.EngramError, match="heads"):
        store.lookup(ids[..., :2].copy())
    with pytest.raises(errors.EngramError, match="buffer"):
        store.lookup_into(ids, bytearray(3))
    with pytest.raises(ValueError, match=r"\[B, L, H\]"):
        store.lookup_into(ids[0], bytearray(384))
    with pytest.raises(ValueError, match="different lengths"):
        store.lookup_into([[[1, 2, 3], [1, 2]]], bytearray(384))
    with pytest.raises(TypeError, match="int64"):
        store.lookup_into(ids.astype(np.int32), bytearray(384))
    with pytest.raises(errors.EngramError):
        store.lookup_into(np.empty((0, 0, 3), np.int64), bytearray(0))
    absent = lanner.EngramStore(client, layer + 1, [5], row_bytes=8)
    with pytest.raises(errors.MissingTables, match="populate"):
        absent.lookup([[[1]]])
    with pytest.raises(ValueError, match="row_bytes, or as dtype"):
        lanner.EngramStore(client, 1, [5])
    with pytest.raises(errors.EngramError, match="neither a client"):
        lanner.EngramStore(None, 1, [5], row_bytes=8).lookup([[[1]]])


def test_a_set_looks_all_layers_up_at_once(client, store, tables, layer):
    ids = ids_of(1, 3)
    layers = lanner.EngramSet(client, [store, store])
    out = np.empty((2, 1, 3, 3, 16), np.float32)
    layers.lookup_into([ids, ids[:, ::-1].copy()], out)
    assert (out[0] == expected(tables, ids)).all() and (out[1] == expected(tables, ids[:, ::-1])).all()
    assert layers.layers == [layer, layer]
    with pytest.raises(errors.EngramError):
        layers.lookup_into([ids], out[:1])


def test_any_partition_of_a_tensor_can_be_read(client, name):
    whole = np.arange(6 * 8, dtype=np.float32).reshape(6, 8)
    tensor = lanner.ShardedTensor.create(client, name[-100:], "float32", [6, 8], split_axis=0, parts=[4, 2])
    with pytest.raises(errors.MissingParts):
        tensor.whole().read_into(np.empty_like(whole))
    tensor.write_part(0, whole[:4])
    tensor.write_part(1, whole[4:])
    opened = lanner.ShardedTensor.open(client, name[-100:])
    assert (opened.shape, opened.dtype, opened.part_lengths) == ([6, 8], "float32", [4, 2])
    for index in range(2):
        half = opened.partition(1, 2, index)
        out = np.empty(half.shape, np.float32)
        half.read_into(out)
        half.read_into(out)
        assert (out == whole[:, 4 * index : 4 * index + 4]).all() and half.nbytes == out.nbytes
    rows = opened.slice(0, 3, 5)
    out = np.empty((2, 8), np.float32)
    rows.read_into(out)
    assert (out == whole[3:5]).all()
    with pytest.raises(errors.TensorError):
        opened.slice(0, 5, 3)
    with pytest.raises(errors.TensorError):
        tensor.write_part(0, whole)
    with pytest.raises(errors.TensorError):
        rows.read_into(bytearray(3))
    assert tensor.remove()
    with pytest.raises(errors.MissingParts):
        lanner.ShardedTensor.open(client, name[-100:])


def test_row_ids_in_the_memory_that_rows_are_written_to(store, client, tables):
    """The rows that were written changed the ids that were still to be read, which ended in a panic."""
    layers = lanner.EngramSet(client, [store])
    memory = np.zeros(3 * 4 * 8 + 4 * 3 * 64, np.uint8)
    ids = memory[:96].view(np.int64).reshape(1, 4, 3)
    for overlapping in (memory[:768], memory[95:863]):
        with pytest.raises(ValueError, match="copy the ids"):
            store.lookup_into(ids, overlapping)
        with pytest.raises(ValueError, match="copy the ids"):
            layers.lookup_into([ids], overlapping)
    beside = memory[96:]
    store.lookup_into(ids, beside)
    assert beside.tobytes() == expected(tables, ids).tobytes()
    with pytest.raises(ValueError, match="2 arrays of row ids for 1 layers"):
        layers.lookup_into([ids, ids], beside)


def test_a_tensor_is_cut_into_one_part_or_more(client, layer):
    with pytest.raises(ValueError, match="0 parts"):
        lanner.ShardedTensor.create(client, f"none{layer}", "uint8", [4], parts=0)
    tensor = lanner.ShardedTensor.create(client, f"one{layer}", "uint8", [4], parts=1)
    for wrong, why in (((0, 0, 0), "no part 0 of 0"), ((0, 3, 3), "no part 3 of 3"), ((1, 2, 0), "no axis 1"), ((0, 9, 8), "4..4 .* empty")):
        with pytest.raises(errors.TensorError, match=why):
            tensor.partition(*wrong)
    with pytest.raises(errors.TensorError, match="no part 1 of 1"):
        tensor.write_part(1, b"")
    tensor.remove()


def test_a_count_is_checked_before_anything_is_made_for_each(client, layer):
    """A list of 8 petabytes ended the process, and one of ten million parts stood in the error."""
    for parts in (10**7, 10**15, 1 << 62):
        with pytest.raises(errors.TensorError, match=f"{parts} parts: a tensor has 1 to 4096") as raised:
            lanner.ShardedTensor.create(client, f"none{layer}", "uint8", [10**12, 2], parts=parts)
        assert len(str(raised.value)) < 100
    for parts in (-1, 1 << 70):
        with pytest.raises(OverflowError):
            lanner.ShardedTensor.create(client, f"none{layer}", "uint8", [4], parts=parts)
    tensor = lanner.ShardedTensor.create(client, f"large{layer}", "uint8", [10**12, 2], parts=3)
    assert tensor.partition(0, 10**15, 0).shape == [1, 2]
    with pytest.raises(errors.TensorError, match="333333333334 pieces"):
        tensor.slice(1, 0, 1)
    tensor.remove()


def test_a_slice_is_read_by_one_thread_at_a_time(own_server, layer):
    """The others were told `Already borrowed`, also by calls that only tell its shape."""
    client = lanner.Client(own_server.url("tcp", timeout="10s"))
    tensor = lanner.ShardedTensor.create(client, f"busy{layer}", "uint8", [4], parts=1)
    tensor.write_part(0, b"0123")
    part = tensor.whole()
    begun, paused, read = threading.Event(), threading.Event(), bytearray(4)

    def wait():
        client.exists("k")
        begun.set()
        paused.wait()
        part.read_into(read)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    own_server.pause()
    paused.set()
    time.sleep(0.2)
    assert (part.nbytes, part.shape) == (4, [4])
    with pytest.raises(RuntimeError, match="a slice for each thread"):
        part.read_into(bytearray(4))
    own_server.resume()
    thread.join()
    assert read == b"0123"


def test_row_ids_that_another_thread_changes_meanwhile(store, tables):
    """An id was checked and then read again, so that one which changed in between led beyond its table: a panic, or another table's rows. Now a
    look-up reads the rows of ids that it has checked, or refuses those that it found."""
    rows = min(VOCABULARIES)
    ids = np.full((4, 256, 3), rows - 1, np.int64)
    out = np.empty((4, 256, 3, 16), np.float32)
    is_over = threading.Event()

    def change():
        while not is_over.is_set():
            ids[:] = 1 << 40
            ids[:] = rows - 1

    thread = threading.Thread(target=change)
    thread.start()
    outcomes = {"read": 0, "refused": 0}
    try:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            try:
                store.lookup_into(ids, out)
                assert all((out[..., head, :] == table[rows - 1]).all() for head, table in enumerate(tables))
                outcomes["read"] += 1
            except errors.EngramError:
                outcomes["refused"] += 1
    finally:
        is_over.set()
        thread.join()
    assert outcomes["refused"] > 0, outcomes
