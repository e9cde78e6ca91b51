"""Mooncake Store's interface: what each call answers is what Mooncake 0.3.13 answered to the same calls, unless a comment says otherwise."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from lanner import mooncake
from lanner.mooncake.absent import HINTS
from lanner.mooncake.regions import access_to
from lanner.mooncake.setup import arguments_of, bytes_of, url_of
from lanner.mooncake.tensors import HEADER_BYTES, NoTensor, tensor_in


@pytest.fixture
def store(server):
    store = mooncake.MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", "16 MB", 1 << 20, "tcp", "", server.fields["listen"]) == 0
    store.remove_all(True)
    yield store
    store.close()


@pytest.fixture
def memory(store):
    source, target = (np.zeros(1000, np.uint8) for _ in range(2))
    source[:] = np.arange(1000) % 251
    assert store.register_buffer(source.ctypes.data, 1000) == 0
    return source, target


def test_values(store):
    assert store.put("a", b"hello") == 0
    assert store.put("a", b"other") == 0
    assert store.get("a") == b"hello" and store.get("none") == b""
    assert store.put("e", b"") == -600 and store.get_size("e") == -704
    assert [store.is_exist(key) for key in ("a", "none")] == store.batch_is_exist(["a", "none"]) == [1, 0]
    assert store.put_batch(["b", "c"], [b"1", bytearray(b"22")]) == 0
    assert store.put_batch(["b", "d"], [b"1"]) == -600
    assert store.put_parts("p", b"ab", b"cd") == 0 and store.get("p") == b"abcd"
    assert store.get_batch(["a", "none", "b"]) == [b"hello", b"", b"1"]
    assert store.upsert("a", b"new") == 0 and store.get("a") == b"new"
    assert store.upsert_batch(["a", "b"], [b"x", b"y"]) == 0 and store.upsert_parts("p", b"q", b"r") == 0
    assert store.get_batch(["a", "b", "p"]) == [b"x", b"y", b"qr"]
    assert store.put("", b"x") == -600
    # Mooncake takes longer keys; Lanner's have at most 1024 bytes.
    assert store.put("k" * 2000, b"x") == -600
    assert store.put("big", bytes(300 << 20)) == -600
    with pytest.raises(TypeError):
        store.put("s", "text")


def test_buffers(store):
    store.put("a", b"hello")
    handle = store.get_buffer("a")
    assert bytes(memoryview(handle)) == b"hello" and handle.size() == 5
    assert ctypes.string_at(handle.ptr(), 5) == b"hello"
    assert store.get_buffer("none") is None
    assert [handle and bytes(handle) for handle in store.batch_get_buffer(["a", "none"])] == [b"hello", None]


def test_memory_by_address(store, memory):
    source, target = memory
    start, to = source.ctypes.data, target.ctypes.data
    assert store.register_buffer(start, 1000) == -600
    assert store.put_from("z", start, 100) == 0 and store.put_from("z", start, 50) == 0
    assert store.get_into("z", to, 1000) == 100 and (target[:100] == source[:100]).all()
    assert store.get_into("z", to, 10) == -600 and store.get_into("none", to, 10) == -704
    assert store.batch_get_into(["z", "none"], [to, to + 500], [500, 500]) == [100, -704]
    assert store.batch_get_into(["z"], [to, to + 500], [500, 500]) == [-600]
    assert store.batch_put_from(["z1", "z"], [start, start + 100], [100, 100]) == [0, 0]
    assert store.batch_put_from_multi_buffers(["m"], [[start, start + 100]], [[10, 20]]) == [0]
    assert store.get_size("m") == 30
    assert store.batch_get_into_multi_buffers(["m", "none"], [[to, to + 10], [to + 200]], [[10, 20], [5]]) == [30, -704]
    assert (target[10:30] == source[100:120]).all()
    assert store.batch_get_into_multi_buffers(["m"], [[to, to + 10]], [[10, 10]]) == [-600]
    assert store.batch_get_into_multi_buffers(["m", "m"], [[to, to + 10], [to + 100]], [[10, 21], [31]]) == [-800, -800]
    assert store.upsert_from("z", start, 60) == 0 and store.get_size("z") == 60
    assert store.batch_upsert_from(["z"], [start], [70]) == [0] and store.get_size("z") == 70
    assert store.put_from_with_metadata("pm", start + 50, start, 20, 3) == 0
    assert store.get("pm") == source[:3].tobytes() + source[50:70].tobytes()
    assert store.unregister_buffer(start) == 0 and store.unregister_buffer(start) == -600


def test_memory_is_registered_once_and_is_main_memory(store):
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    page = mmap.PAGESIZE
    assert store.register_buffer(start, 2 * page) == 0
    for inside in ((start, page), (start + page, page), (start + page, 2 * page), (start - 1, 4 * page), (start + 3 * page, 0), (0, page)):
        assert store.register_buffer(*inside) == -600
    assert store.register_buffer(start + 2 * page, page) == 0
    assert store.unregister_buffer(start + page) == -600 and store.unregister_buffer(start) == 0
    # Reserved only, as a driver does with addresses of a GPU: reading there would end the process.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert access_to(start, 4 * page) == "rw"
    assert libc.mprotect(start, page, mmap.PROT_READ) == 0 and access_to(start, page) == "r" and access_to(start + page, page) == "rw"
    assert libc.mprotect(start, page, 0) == 0 and access_to(start, 2 * page) == ""
    assert store.register_buffer(start, 2 * page) == -600
    assert libc.mprotect(start, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0 and store.register_buffer(start, 2 * page) == 0
    assert access_to(1 << 46, page) == ""
    store.close()
    assert store.register_buffer(start, page) == -1


class WithDevice:
    """A registration as a device would have it. The bytes go the ways of the real one; which calls came is kept."""

    is_with_device = True

    def __init__(self, real):
        self.real, self.calls = real, []

    def close(self):
        self.calls.append("close")
        self.real.close()

    def __getattr__(self, name):
        def call(*arguments, **keywords):
            self.calls.append((name, arguments[1]))
            return getattr(self.real, name)(*arguments, **keywords)

        return call


class ClientWithDevice:
    """A client whose registrations are."""

    def __init__(self, client):
        self.client, self.made = client, []

    def register(self, memory):
        self.made.append(WithDevice(self.client.register(memory)))
        return self.made[-1]

    def __getattr__(self, name):
        return getattr(self.client, name)


def test_memory_that_a_device_has_is_used_through_its_registration(store):
    store._client = client = ClientWithDevice(store.client)
    one, other, plain = (np.arange(1000, dtype=np.uint16).view(np.uint8) for _ in range(3))
    first, second, rest = (each.ctypes.data for each in (one, other, plain))
    assert store.register_buffer(first, 2000) == store.register_buffer(second, 2000) == 0
    ours, theirs = client.made
    assert store.batch_put_from(["a", "b", "c", "d"], [first, second + 10, rest, first + 500], [100, 200, 300, 400]) == [0] * 4
    assert ours.calls == [("put_batch", [(0, 100), (500, 400)])] and theirs.calls == [("put_batch", [(10, 200)])]
    assert store.get("a") + store.get("b") == bytes(one[:100]) + bytes(other[10:210])
    ours.calls.clear(), theirs.calls.clear()
    # Behind the region's end, and in pieces: not through the registration.
    one[:], other[:], plain[:] = 0, 0, 0
    assert store.batch_get_into(["a", "none", "b", "c", "d"], [first + 7, first + 200, second, rest, second + 600], [100, 9, 200, 300, 399]) == [
        100, -704, 200, 300, -600,
    ]
    assert ours.calls == [("get_into_batch", [(7, 100), (200, 9)])] and theirs.calls == [("get_into_batch", [(0, 200), (600, 399)])]
    assert (one[7:107] == np.arange(1000, dtype=np.uint16).view(np.uint8)[:100]).all()
    ours.calls.clear(), theirs.calls.clear()
    assert store.batch_get_into_multi_buffers(["a"], [[first, second]], [[50, 50]]) == [100]
    assert store.batch_get_session_start(["a"]) == [0]
    assert store.batch_get_into_multi_buffer_ranges(["a"], [[first + 40, rest]], [[10, 10]], [[20, 30]]) == [20]
    assert ours.calls == [("read_from_snapshot", [(0, 20, 10, 40)])] and bytes(one[40:50]) == store.get("a")[20:30]
    # What one registration refuses is the answer for its keys only.
    assert store.batch_get_into(["a", "b", "b"], [first, second, second + 1], [100, 200, 200]) == [100, -600, -600]
    assert store.unregister_buffer(first) == 0 and ours.calls[-1] == "close"
    assert store.put_from("e", first, 10) == 0 and "put_batch" not in [call[0] for call in ours.calls]
    assert store.close() == 0 and theirs.calls[-1] == "close"


def test_ranges(store, memory):
    source, target = memory
    store.put("z", source[:100])
    to = target.ctypes.data
    answered = store.get_into_ranges([to], [["z", "none"]], [[[0, 10], [20]]], [[[0, 50], [0]]], [[[5, 5], [5]]])
    assert answered == [[[5, 5], [-704]]]
    assert (target[:5] == source[:5]).all() and (target[10:15] == source[50:55]).all()
    assert store.get_into_ranges([to], [["z"]], [[[0]]], [[[99]]], [[[5]]]) == [[[-600]]]
    assert store.get_into_ranges([to, to + 500], [["z"], ["z"]], [[[0]], [[1]]], [[[7]], [[9]]], [[[5]], [[5]]]) == [[[5]], [[5]]]
    assert (target[501:506] == source[9:14]).all()


def test_sessions(store, memory):
    source, target = memory
    start, to = source.ctypes.data, target.ctypes.data
    store.put("z", source[:100])
    assert store.batch_get_session_start(["z", "none"]) == [0, -704]
    store.upsert("z", b"another value")
    answered = store.batch_get_into_multi_buffer_ranges(["z", "none"], [[to, to + 5], [to]], [[5, 5], [5]], [[0, 50], [0]])
    assert answered == [10, -600] and (target[5:10] == source[50:55]).all()
    assert store.batch_get_session_end(["z"]) == 0
    assert store.batch_put_session_start(["z", "ps2"], [20, 20], mooncake.ReplicateConfig()) == [-705, 0]
    assert store.batch_put_session_start(["ps"], [20]) == [0] and store.batch_put_session_start(["ps"], [20]) == [-600]
    assert store.batch_put_from_multi_buffer_ranges(["ps"], [[start, start + 100]], [[10, 10]], [[0, 10]]) == [20]
    assert store.batch_put_from_multi_buffer_ranges(["ps"], [[start]], [[10]], [[11]]) == [-600]
    assert store.is_exist("ps") == 0
    assert store.batch_put_session_end(["ps"]) == [0]
    assert store.get("ps") == source[:10].tobytes() + source[100:110].tobytes()
    assert store.batch_put_session_revoke(["nops"]) == [-600]


def test_removing(store):
    for key in ("a", "b", "c", "p", "z", "z1", "y"):
        store.put(key, b"v")
    assert store.remove("none") == -704 and store.remove("a") == 0 and store.remove("b", True) == 0
    assert store.batch_remove(["c", "none"], True) == [0, -704]
    assert store.remove_by_regex("^z", True) == 2 and store.remove_by_regex("(", True) == -600
    assert store.remove_all(True) == 2 and store.remove_all() == 0


def test_what_the_store_says_of_itself(store, server):
    assert store.health_check() == 0 and store.get_hostname() == "localhost"
    store.put("r", b"abc")
    assert store.get_replica_desc("none") == []
    (replica,) = store.get_replica_desc("r")
    assert replica.status == mooncake.ReplicaStatus.COMPLETE and replica.is_memory_replica()
    buffer = replica.get_memory_descriptor().buffer_descriptor
    assert (buffer.size, buffer.transport_endpoint) == (3, server.fields["listen"])
    assert list(store.batch_get_replica_desc(["r", "none"])) == ["r"]
    assert store.close() == 0 and store.health_check() == 1
    assert store.get("r") == b"" and store.put("r", b"x") == -1 and store.is_exist("r") == -1


def test_configuration_of_replicas(store):
    config = mooncake.ReplicateConfig()
    config.replica_num = 2
    config.with_hard_pin = True
    config.preferred_segment = "somewhere"
    assert config.pin == "soft"
    assert store.put("pinned", b"v", config) == 0 and store.put_batch(["p2"], [b"v"], config=config) == 0
    assert mooncake.ReplicateConfig().pin is None
    assert mooncake.ReplicateConfig(soft_pin_action=mooncake.SoftPinAction.ENABLE).pin == "soft"
    for name, value in {"nonsense": 1, "replica_num": "a", "soft_pin_ttl_ms": -5, "soft_pin_action": 1, "group_ids": "abc", "data_type": 2}.items():
        with pytest.raises((AttributeError, TypeError)):
            setattr(config, name, value)
    for wrong in ({"replica_num": 0}, {"soft_pin_ttl_ms": 5}, {"group_ids": ["a", "b"]}):
        bad = mooncake.ReplicateConfig(**wrong)
        assert store.put("bad", b"v", bad) == -600 and store.batch_put_session_start(["bad"], [5], bad) == [-600]
        assert store.batch_put_from(["bad"], [1 << 20], [5], bad) == [-600]
    assert store.put_batch(["g1", "g2"], [b"v"] * 2, mooncake.ReplicateConfig(group_ids=["a", "b"])) == 0


def test_enumerations_are_no_numbers():
    complete = mooncake.ReplicaStatus.COMPLETE
    assert (str(complete), repr(complete), int(complete), hash(complete)) == ("ReplicaStatus.COMPLETE", "<ReplicaStatus.COMPLETE: 3>", 3, 3)
    assert complete != 3 and mooncake.ReplicaStatus(3) is mooncake.COMPLETE and mooncake.KVCACHE is mooncake.ObjectDataType.KVCACHE


def test_setup_takes_three_forms():
    assert (bytes_of("16 MB"), bytes_of("1.5GiB"), bytes_of(7), bytes_of("0")) == (16 << 20, 3 << 29, 7, 0)
    for wrong in ("much", -1, 1.5, True, "16 XB"):
        with pytest.raises(ValueError):
            bytes_of(wrong)
    positional = ("host", "meta", 1, 2, "rdma", "mlx5_0,mlx5_1", "h1:1,h2:2")
    expected = "lanner://h1:1,h2:2?transport=auto&rdma=mlx5_0"
    named = arguments_of(positional, {})
    assert url_of(**named) == expected
    assert arguments_of((named,), {}) == arguments_of((), {"config": named}) == arguments_of((), named) == named
    theirs = {"master_server_address": "h1:1,h2:2", "device_name": "mlx5_0,mlx5_1", "unknown": "x"}
    assert arguments_of(({"protocol": "rdma"} | theirs,), {}) == {"protocol": "rdma"} | {name: named[name] for name in ("master_server_addr", "rdma_devices")}
    assert url_of("lanner://h:1?transport=tcp") == "lanner://h:1?transport=tcp"
    assert url_of("h:1", tenant_id="team") == "lanner://h:1?transport=auto&tenant=team"
    wrong = [((1,) * 14, {}), ((), {"colour": 1}), (positional, {"protocol": "tcp"}), ((), {}), (positional[:6], {}), ((*positional[:6], 7), {})]
    for arguments, keywords in wrong:
        with pytest.raises(TypeError):
            arguments_of(arguments, keywords)
    for wrong in ({"tenant_id": "a&token=ta"}, {"protocol": "rdma", "rdma_devices": "a&token=ta"}, {"master_server_addr": "h:1?token=ta"}):
        with pytest.raises(ValueError):
            url_of(**({"master_server_addr": "h:1"} | wrong))
    store = mooncake.MooncakeDistributedStore()
    assert store.setup({"master_server_addr": "etcd://h:1"}) == -600
    assert store.setup({"master_server_addr": "127.0.0.1:1"}) == -900
    assert store.setup({"local_hostname": "x"}) == -600
    assert store.setup("h", "m", "16 XB", 1, "tcp", "", "127.0.0.1:1") == -600


def test_what_has_no_counterpart_names_lanners_way(store):
    for name, hint in HINTS.items():
        with pytest.raises(NotImplementedError) as raised:
            getattr(store, name)("any", arguments=1)
        assert hint in str(raised.value)


def test_the_header_of_a_tensor_is_checked():
    for memory in (bytearray(10), bytearray(HEADER_BYTES + 8), b"x" * HEADER_BYTES):
        pytest.importorskip("torch")
        with pytest.raises(NoTensor):
            tensor_in(memory)


def test_tensors(store):
    torch = pytest.importorskip("torch")
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    w = torch.arange(32, dtype=torch.float32).reshape(8, 4)
    room = np.zeros(4000, np.uint8)
    at = room.ctypes.data
    assert store.put_tensor("t", x) == 0 and store.put_tensor("t", x + 1) == 0
    assert torch.equal(store.get_tensor("t"), x) and store.get_tensor("none") is None
    assert store.upsert_tensor("t", x + 1) == 0 and torch.equal(store.get_tensor("t"), x + 1)
    into = store.get_tensor_into("t", at, 4000)
    assert torch.equal(into, x + 1)
    assert at <= into.data_ptr() < at + 4000
    assert store.get_tensor_into("t", at, 10) is None and store.get_tensor_into("none", at, 4000) is None
    assert store.get_tensor_into("t", at, 4000) is not None
    assert store.put_tensor_from("t2", at, store.get_size("t")) == 0 and torch.equal(store.get_tensor("t2"), x + 1)
    assert store.put_tensor_from("t3", at, 20) == -600
    assert store.batch_put_tensor(["b1", "b2"], [x, w]) == [0, 0]
    first, none, second = store.batch_get_tensor(["b1", "none", "b2"])
    assert torch.equal(first, x) and none is None and torch.equal(second, w)
    first, none = store.batch_get_tensor_into(["b1", "none"], [at, at + 1000], [1000, 1000])
    assert torch.equal(first, x) and none is None
    for tensor in (x.to(torch.bfloat16), w.to(torch.float8_e4m3fn), w.t(), torch.tensor(3.0), torch.zeros(0, 3)):
        assert store.upsert_tensor("any", tensor) == 0
        got = store.get_tensor("any")
        assert got.dtype == tensor.dtype and got.shape == tensor.shape
        assert torch.equal(got.to(torch.float32), tensor.to(torch.float32))
    assert store.put_tensor("np", np.zeros(3)) == -600
    store.put("raw", b"xx")
    assert store.get_tensor("raw") is None and store.batch_get_tensor(["raw"]) == [None]


def test_tensors_for_ranks(store):
    torch = pytest.importorskip("torch")
    w = torch.arange(32, dtype=torch.float32).reshape(8, 4)
    room = np.zeros(4000, np.uint8)
    assert store.put_tensor_with_tp("w", w, 0, 2, 0) == 0
    assert store.batch_is_exist(["w_tp_0", "w_tp_1", "w"]) == [1, 1, 0]
    assert torch.equal(store.get_tensor_with_tp("w", 1, 2), w[4:]) and store.get_tensor_with_tp("w") is None
    assert store.put_tensor_with_tp("w5", w[:7], 1, 3, 0) == -600 and store.is_exist("w5_tp_0") == 0
    assert store.put_tensor_with_tp("w1", w) == 0 and torch.equal(store.get_tensor_with_tp("w1"), w)
    assert store.batch_put_tensor_with_tp(["x1", "x2"], [w, w], 0, 2, 1) == [0, 0]
    assert all(torch.equal(part, w[:, 2:]) for part in store.batch_get_tensor_with_tp(["x1", "x2"], 1, 2))
    assert torch.equal(store.get_tensor_with_tp_into("w", room.ctypes.data, 4000, 0, 2), w[:4])
    assert torch.equal(store.batch_get_tensor_with_tp_into(["w"], [room.ctypes.data], [4000], 1, 2)[0], w[4:])
    assert store.pub_tensor_with_tp("pw", w, mooncake.ReplicateConfig(), 0, 2, 0) == 0 and store.is_exist("pw_tp_1") == 1


def test_engram_tables(store):
    config = mooncake.EngramStoreConfig()
    config.table_vocab_sizes = [10, 20]
    config.embedding_dim = 4
    engram = mooncake.EngramStore(1, config, store)
    assert engram.get_store_keys() == ["engram:l1:h0", "engram:l1:h1"]
    assert (engram.get_num_heads(), engram.get_embedding_dim(), engram.get_table_vocab_sizes()) == (2, 4, [10, 20])
    with pytest.raises(RuntimeError, match="populate"):
        engram.lookup([[[1, 2]]])
    tables = [np.random.default_rng(1).random((rows, 4), np.float32) for rows in (10, 20)]
    engram.populate(tables)
    with pytest.raises(RuntimeError, match="already"):
        engram.populate(tables)
    rows = engram.lookup([[[1, 2]]])
    assert rows.dtype == np.float32 and (rows[0, 0] == [tables[0][1], tables[1][2]]).all()
    for wrong in ([[[100, 2]]], []):
        with pytest.raises(RuntimeError):
            engram.lookup(wrong)
    # Mooncake refuses with -706 while its lease lasts.
    assert engram.remove_from_store() == 2 and engram.remove_from_store(True) == 0
    with pytest.raises(RuntimeError):
        mooncake.EngramStore(1, config).lookup([[[1, 2]]])


def test_the_shim_is_the_same(tmp_path):
    import sys
    from pathlib import Path

    shim = str(Path(__file__).parents[1] / "mooncake-shim")
    sys.path.insert(0, shim)
    try:
        import mooncake.store as shimmed

        assert shimmed.MooncakeDistributedStore is mooncake.MooncakeDistributedStore
        assert {name for name in vars(shimmed) if name[0] != "_"} == set(mooncake.__all__)
    finally:
        sys.path.remove(shim)
        for name in ("mooncake", "mooncake.store"):
            sys.modules.pop(name, None)
