"""The logic of the HiCache backend against a server, with a pool of pages in numpy and stand-ins for the few names it imports from SGLang.
``scripts/e2e`` runs it in SGLang's own controller."""

from __future__ import annotations

import enum
import importlib
import logging
import socket
import sys
import time
import types
from dataclasses import dataclass, field

import numpy as np
import pytest

import lanner
from conftest import Server

PAGE = 4


class _Tensor(np.ndarray):
    """What the backend uses of a tensor."""

    is_cpu = True

    def is_contiguous(self):
        return self.flags.c_contiguous

    def detach(self):
        return self

    def numpy(self):
        return np.asarray(self)


class _Storage:
    def register_mem_pool_host(self, pool):
        self.mem_pool_host = pool

    def register_mem_host_pool_v2(self, pool, name):
        pass


class _Policy(enum.Enum):
    ALL_PAGES = 1
    TRAILING_PAGES = 2


class _Name(str, enum.Enum):
    KV = "kv"
    SIDE = "side"

    def __str__(self):
        return self.value


@dataclass
class _Transfer:
    name: _Name
    host_indices: object = None
    keys: list | None = None
    hit_policy: _Policy = _Policy.ALL_PAGES


@dataclass
class _Result:
    kv_hit_pages: int
    extra_pool_hit_pages: dict
    restorable_prefix_pages: list = field(default_factory=list)

    @classmethod
    def empty(cls):
        return cls(0, {})


@pytest.fixture(scope="module")
def sglang():
    """``lanner.sglang`` on stand-ins."""
    torch = types.SimpleNamespace(Tensor=_Tensor, arange=np.arange, uint8=np.uint8)
    storage = types.SimpleNamespace(
        HiCacheStorage=_Storage, HiCacheStorageConfig=object, HiCacheStorageExtraInfo=object,
        PoolHitPolicy=_Policy, PoolName=_Name, PoolTransfer=_Transfer, PoolTransferResult=_Result,
    )
    names = ["sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.hicache_storage", "torch", "lanner.sglang", "lanner.sglang.pool"]
    saved = {name: sys.modules.pop(name, None) for name in names}
    sys.modules |= dict(zip(names, [types.ModuleType(name) for name in names[:3]] + [storage, torch]))
    yield importlib.import_module("lanner.sglang")
    for name, module in saved.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


class Pool:
    """Pages of ``pieces`` pieces each, piece by piece as layer-first layouts have them."""

    def __init__(self, pieces: int, pages: int = 16, dtype: str = "float16"):
        self.page_size, self.pieces, self.dtype, self.layout = PAGE, pieces, dtype, "test"
        self.kv_buffer = np.zeros((pieces, pages, 32), np.uint8).view(_Tensor)

    def get_page_buffer_meta(self, indices):
        pages = [int(index) // PAGE for index in indices[::PAGE]]
        addresses = [self.kv_buffer[piece, page].ctypes.data for page in pages for piece in range(self.pieces)]
        return addresses, [32] * len(addresses)

    def indices(self, *pages):
        return np.concatenate([np.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def config(url: str, **more):
    facts = dict(
        model_name="m", tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, dcp_rank=0, dcp_size=1,
        is_mla_model=False, should_split_heads=False, enable_storage_metrics=False, extra_config={"url": url, "interface_v1": 1},
    )
    return types.SimpleNamespace(**facts | more)


@pytest.fixture
def make(sglang, server):
    def make(pool, **more):
        backend = sglang.HiCacheLanner(config(server.url(), **more), {})
        backend.register_mem_pool_host(pool)
        return backend

    return make


@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_pages_come_back(make, pieces):
    pool = Pool(pieces)
    backend = make(pool, model_name=f"m{pieces}")
    backend.clear()
    pool.kv_buffer[:] = np.random.default_rng(pieces).integers(0, 255, pool.kv_buffer.shape)
    before = pool.kv_buffer.copy()
    keys = [f"{page:064x}" for page in range(6)]
    assert backend.batch_exists(keys) == 0
    assert backend.batch_set_v1(keys[:4], pool.indices(0, 1, 2, 3)) == [True] * 4
    assert backend.batch_exists(keys) == 4
    assert backend.batch_set_v1(keys[3:5], pool.indices(3, 4)) == [True] * 2
    pool.kv_buffer[:] = 0
    assert backend.batch_get_v1(keys, pool.indices(10, 11, 12, 13, 14, 15)) == [True] * 5 + [False]
    assert (pool.kv_buffer[:, 10:15] == before[:, :5]).all() and not pool.kv_buffer[:, 15].any()
    backend.client.remove(backend._pools["kv"].keys(keys[2:3])[-1])
    assert backend.batch_exists(keys) == 2
    assert backend.batch_get_v1(keys[:4], pool.indices(0, 1, 2, 3)) == [True, True, False, True]
    backend.clear()
    assert backend.batch_exists(keys) == 0


@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_chains(make, pieces):
    """With the pages before those of a call, objects are a chain: found and leased in one question, and read through the lease."""
    pool = Pool(pieces, pages=64)
    backend = make(pool, model_name=f"chain{pieces}")
    backend.clear()
    pool.kv_buffer[:] = np.random.default_rng(pieces).integers(0, 255, pool.kv_buffer.shape)
    before = pool.kv_buffer.copy()
    pages = [f"{page:064x}" for page in range(50)]
    after = lambda *prefix: types.SimpleNamespace(prefix_keys=[page for part in prefix for page in part])
    assert backend.batch_set_v1(pages[:20], pool.indices(*range(20)), after()) == [True] * 20
    assert backend.batch_set_v1(pages[15:40], pool.indices(*range(15, 40)), after(pages[:15])) == [True] * 25
    assert backend.batch_exists(pages, after()) == 40 and backend.batch_exists(pages[30:], after(pages[:30])) == 10
    # Without their prefix they are other objects.
    assert backend.batch_exists(pages) == 0 == backend.batch_exists(pages[30:], after())
    pool.kv_buffer[:] = 0
    assert backend.batch_get_v1(pages[30:40], pool.indices(*range(10)), after(pages[:30])) == [True] * 10
    assert (pool.kv_buffer[:, :10] == before[:, 30:40]).all() and not pool.kv_buffer[:, 10:].any()
    # Leased by the question: what is removed before the read is read all the same, and afterwards it's a miss.
    assert backend.batch_exists(pages[:5], after()) == 5
    backend.client.remove_batch(backend._pools["kv"].stored_keys(pages[:1], []))
    assert backend.batch_get_v1(pages[:5], pool.indices(*range(20, 25)), after()) == [True] * 5
    assert (pool.kv_buffer[:, 20:25] == before[:, :5]).all()
    assert backend.batch_get_v1(pages[:2], pool.indices(30, 31), after()) == [False, True]
    # What stands before may have left the store.
    assert backend.batch_exists(pages, after()) == 0 and backend.batch_exists(pages[1:], after(pages[:1])) == 39
    assert backend.batch_set_v1(pages[:2], pool.indices(40, 41), after()) == [True] * 2
    assert backend.batch_exists(pages, after()) == 40


def test_an_engine_may_start_before_its_store(sglang):
    """It used to end with ConnectionFailed; now its cache is empty until the server is there."""
    from lanner.naming import DESCRIPTIONS

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    backend = sglang.HiCacheLanner(config(f"lanner://127.0.0.1:{port}?timeout=500ms"))
    now = [0.0]
    backend.client._clock, backend.client._not_before = (lambda: now[0]), 1.0
    pool = Pool(1)
    pool.kv_buffer[:] = 7
    backend.register_mem_pool_host(pool)
    key = "0" * 64
    assert backend.batch_exists([key]) == 0 and backend.batch_set_v1([key], pool.indices(1)) == [False]
    assert backend.batch_get_v1([key], pool.indices(1)) == [False]
    server = Server("--memory", "64MiB", port=port)
    try:
        # Not yet time to try again.
        assert backend.batch_set_v1([key], pool.indices(1)) == [False]
        now[0] = 1.5
        assert backend.batch_set_v1([key], pool.indices(1)) == [True] and backend.batch_exists([key]) == 1
        described = [name for name, _ in lanner.Client(server.url()).list(DESCRIPTIONS)]
        assert (DESCRIPTIONS + backend._pools["kv"].namespace.prefix).encode() in described
    finally:
        server.kill()
    with pytest.raises(ValueError):
        sglang.HiCacheLanner(config("http://127.0.0.1:1"))


def test_a_lease_that_ended_is_asked_for_again(sglang, own_server):
    pool = Pool(2)
    backend = sglang.HiCacheLanner(config(own_server.url()))
    backend.register_mem_pool_host(pool)
    pool.kv_buffer[:] = 7
    pages = ["a" * 64, "b" * 64]
    backend.batch_set_v1(pages, pool.indices(0, 1))
    assert backend.batch_exists(pages) == 2
    backend.client.remove_batch(backend._pools["kv"].keys(pages[1:]))
    time.sleep(1.2)
    assert backend.batch_get_v1(pages, pool.indices(2, 3)) == [True, False]


def test_what_changes_the_bytes_changes_the_keys(make, sglang, server):
    pool = Pool(2)
    page = ["a" * 64]
    backend = make(pool)
    backend.batch_set_v1(page, pool.indices(0))
    assert make(Pool(2)).batch_exists(page) == 1
    extra = lambda **more: {"url": server.url(), "interface_v1": 1, **more}
    others = [
        make(pool, model_name="other"), make(pool, tp_rank=1, tp_size=2), make(pool, pp_rank=1, pp_size=2), make(Pool(2, dtype="bfloat16")),
        make(Pool(1)), make(pool, is_mla_model=True), make(pool, extra_config=extra(revision="2")),
        make(pool, extra_config=extra(weights_digest="x")), make(pool, attn_cp_rank=1),
    ]
    assert [other.batch_exists(page) for other in others] == [0] * len(others)
    prefixes = {other._pools["kv"].namespace.prefix for other in [backend, *others]}
    assert len(prefixes) == len(others) + 1
    # All ranks of an MLA model have the same pages.
    assert len({make(pool, is_mla_model=True, tp_rank=rank, tp_size=2)._pools["kv"].namespace.prefix for rank in (0, 1)}) == 1
    with pytest.raises(ValueError, match="split heads"):
        sglang.HiCacheLanner(config(server.url(), should_split_heads=True))


def test_side_pools(make):
    pool, side = Pool(2), Pool(3)
    backend = make(pool, model_name="side")
    backend.register_mem_host_pool_v2(side, _Name.SIDE)
    backend.clear()
    keys = [f"{page:064x}" for page in range(5)]
    backend.batch_set_v1(keys, pool.indices(*range(5)))
    written = backend.batch_set_v2([_Transfer(_Name.SIDE, side.indices(1, 3, 4), [keys[index] for index in (1, 3, 4)])])
    assert written == {_Name.SIDE: [True] * 3}
    ask = lambda policy, count: backend.batch_exists_v2(keys, [_Transfer(_Name.SIDE, keys=keys[:count], hit_policy=policy)])
    everywhere = ask(_Policy.ALL_PAGES, 5)
    assert (everywhere.kv_hit_pages, everywhere.extra_pool_hit_pages) == (0, {_Name.KV: 5})
    trailing = ask(_Policy.TRAILING_PAGES, 1)
    assert (trailing.kv_hit_pages, trailing.restorable_prefix_pages) == (5, [5, 4, 2])
    assert ask(_Policy.TRAILING_PAGES, 2).restorable_prefix_pages == [5]
    assert backend.batch_get_v2([_Transfer(_Name.SIDE, side.indices(1, 2), keys[1:3])]) == {_Name.SIDE: [True, False]}


def test_flat_pages(make, server):
    backend = make(Pool(2), extra_config={"url": server.url(), "tag": "flat"})
    backend.clear()
    pages = [np.full(64, number, np.uint8) for number in range(3)]
    assert backend.batch_set(["a", "b", "c"], [types.SimpleNamespace(contiguous=lambda page=page: page) for page in pages])
    targets = [np.zeros(64, np.uint8) for _ in range(3)]
    first, none, short = backend.batch_get(["b", "none", "c"], [targets[0], targets[1], np.zeros(65, np.uint8)])
    assert (first == 1).all() and none is None and short is None
    assert backend.batch_exists(["a", "c", "none", "b"]) == 2 and backend.exists("a") and not backend.exists("none")


def test_a_store_that_is_gone_is_a_store_without_pages(sglang):
    server = Server("--memory", "64MiB")
    pool = Pool(2)
    backend = sglang.HiCacheLanner(config(server.url(timeout="500ms")))
    backend.register_mem_pool_host(pool)
    backend.batch_set_v1(["a" * 64], pool.indices(0))
    server.kill()
    assert backend.batch_exists(["a" * 64]) == 0
    assert backend.batch_get_v1(["a" * 64], pool.indices(0)) == [False]
    assert backend.batch_set_v1(["b" * 64], pool.indices(0)) == [False]
    assert backend.batch_exists_v2(["a" * 64]).kv_hit_pages == 0
    again = Server("--memory", "64MiB", port=server.port)
    try:
        for _ in range(200):
            if backend.batch_set_v1(["a" * 64], pool.indices(0)) == [True]:
                break
            time.sleep(0.02)
        assert backend.batch_exists(["a" * 64]) == 1
    finally:
        again.kill()


@pytest.mark.parametrize("with_prefix, is_hung", [(False, False), (True, False), (False, True)])
def test_a_server_that_is_away_takes_only_its_own_pages(sglang, two_servers, with_prefix, is_hung):
    """Nothing was found, and nothing stored, wherever a question touched the server that was gone."""
    (one, other), url = two_servers
    pool, count = Pool(2, pages=800), 400  # enough for each server to have some groups of a chain
    backend = sglang.HiCacheLanner(config(f"{url}?transport=tcp&timeout=500ms"))
    backend.register_mem_pool_host(pool)
    pages, more = ([f"{start + page:064x}" for page in range(count)] for start in (0, 1000))
    info = types.SimpleNamespace(prefix_keys=[]) if with_prefix else None
    assert backend.batch_set_v1(pages, pool.indices(*range(count)), info) == [True] * count
    assert backend.batch_exists(pages, info) == count
    held = {key for key, _ in lanner.Client(one.url()).list()}
    before = [] if with_prefix else None
    here = backend._pools["kv"].per_page(backend._pools["kv"].stored_keys(pages, before), lambda key: (key if isinstance(key, bytes) else key.encode()) in held)
    if not here[0]:
        one, other, here = other, one, [not is_here for is_here in here]
    assert 0 < sum(here) < count
    other.pause() if is_hung else other.kill()
    # Also of what is leased by now.
    assert backend.batch_get_v1(pages, pool.indices(*range(count, 2 * count)), info) == here
    assert backend.batch_exists(pages, info) == here.index(False)
    assert backend.batch_get_v1(pages, pool.indices(*range(count, 2 * count)), info) == here
    assert backend.batch_set_v1(pages, pool.indices(*range(count)), info) == here
    stored = backend.batch_set_v1(more, pool.indices(*range(count)), info)
    assert 0 < sum(stored) < count and backend.batch_exists(more, info) == stored.index(False)


def test_nothing_that_was_cleared_is_read_through_a_lease(make):
    pool = Pool(2)
    backend = make(pool, model_name="cleared")
    pages = ["a" * 64, "b" * 64]
    backend.batch_set_v1(pages, pool.indices(0, 1))
    assert backend.batch_exists(pages) == 2
    backend.clear()
    assert backend.batch_get_v1(pages, pool.indices(0, 1)) == [False, False]


def test_names():
    from lanner.naming import Namespace, digest_of_config

    one = Namespace("engine", {"b": 1, "a": [None, True]})
    assert one.prefix == Namespace("engine", {"a": [None, True], "b": 1}).prefix != Namespace("engine", {"a": [None, 1], "b": 1}).prefix
    assert one.description == '{"a":[null,true],"b":1,"engine":"engine","format":1}'
    assert one.key("page", ":0") == one.prefix + "/{page}:0"
    for wrong in ("", "a}b", "{a"):
        with pytest.raises(ValueError):
            one.key(wrong)
    assert digest_of_config({"a": 1, "b": object}) == digest_of_config({"b": object, "a": 1}) != digest_of_config({"a": 2, "b": object})


def test_a_name_space_describes_itself_and_can_be_cleared(client):
    from lanner.naming import DESCRIPTIONS, Namespace

    space = Namespace("test", {"transport": client.url})
    space.announce(client, logging.getLogger("lanner.sglang"))
    assert client.get(DESCRIPTIONS + space.prefix) == space.description.encode()
    for start in (0, 2500):
        keys = [space.key(str(page)) for page in range(start, start + 2500)]
        client.upsert_batch(keys, [b"x"] * 2500)
    client.upsert("beside", b"x")
    client.put_chain([f"{space.prefix}/chain/{page}" for page in range(40)], 0, [b"x"] * 40)
    client.put_chain(["beside/chain"], 0, [b"x"])
    assert space.clear(client) == 5040 and client.exists("beside") and len(client.match_chain(["beside/chain"])) == 1
