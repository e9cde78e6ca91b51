"""The connector for LMCache's in-process mode, made by LMCache from its configuration, with its own keys and memory, where LMCache is installed."""

from __future__ import annotations

import asyncio
import types

import pytest

import lanner

pytest.importorskip("lmcache")

import torch  # noqa: E402
from lmcache.utils import CacheEngineKey  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.memory_allocators.ad_hoc_memory_allocator import AdHocMemoryAllocator  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.storage_backend.connector import CreateConnector  # noqa: E402

LAYERS, CHUNK, HEADS, HEAD_DIM = 2, 16, 2, 8


def connector_for(url: str, namespace: str, hashed_by: str = "sha256_cbor"):
    """As LMCache makes it from its configuration."""
    fields = {
        "module_path": "lanner.lmcache_remote", "class_name": "LannerConnectorAdapter", "url": url, "namespace": namespace,
    }
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK, pre_caching_hash_algorithm=hashed_by, remote_storage_plugins=["lanner"],
        extra_config={f"remote_storage_plugin.lanner.{name}": value for name, value in fields.items()} | {"save_chunk_meta": False},
    )
    metadata = LMCacheMetadata(
        model_name="org/model", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0, kv_dtype=torch.float16,
        kv_shape=(LAYERS, 2, CHUNK, HEADS, HEAD_DIM),
    )
    allocator = AdHocMemoryAllocator(device="cpu")
    backend = types.SimpleNamespace(allocate=allocator.allocate, metadata=metadata, config=config, memory_allocator=allocator)
    connector = CreateConnector("plugin://lanner", asyncio.new_event_loop(), backend, config, metadata, "lanner")
    return connector, allocator


def key(number: int) -> CacheEngineKey:
    return CacheEngineKey("org/model", 1, 0, number, torch.float16)


def memory(connector, allocator, number: int):
    ours = connector.getWrappedConnector()
    made = allocator.allocate(ours.meta_shapes, ours.meta_dtypes, ours.meta_fmt)
    made.tensor.view(torch.uint8).fill_(number)
    return made


def test_chunks_come_back(server, name):
    connector, allocator = connector_for(server.url(), name)
    ours = connector.getWrappedConnector()
    objects = [memory(connector, allocator, number) for number in range(3)]

    async def use():
        await ours.put(key(0), objects[0])
        await ours.batched_put([key(1), key(2)], objects[1:])
        assert await ours.exists(key(0)) and ours.exists_sync(key(2)) and not await ours.exists(key(9))
        assert ours.batched_contains([key(0), key(1), key(9), key(2)]) == 2
        assert await ours.batched_async_contains("id", [key(0), key(1), key(2), key(9)]) == 3
        got = await ours.batched_get([key(2), key(9), key(0)])
        assert got[1] is None and [bytes(got[at].byte_array) for at in (0, 2)] == [bytes(objects[at].byte_array) for at in (2, 0)]
        assert (await ours.get(key(1))).byte_array == objects[1].byte_array and await ours.get(key(8)) is None
        leading = await ours.batched_get_non_blocking("id", [key(0), key(9), key(1)])
        assert len(leading) == 1
        assert await ours.ping() == 0 and sorted(await ours.list()) == sorted(key(number).to_string() for number in range(3))
        # What has another length than a whole number of tokens isn't what was stored.
        ours.client.upsert(ours._name(key(5)), b"short")
        assert await ours.get(key(5)) is None
        await ours.close()

    asyncio.run(use())


def test_one_bad_chunk_keeps_no_other_from_being_stored(server, name):
    connector, allocator = connector_for(server.url(), name)
    ours = connector.getWrappedConnector()
    long = CacheEngineKey("m" * 2000, 1, 0, 1, torch.float16)
    objects = [memory(connector, allocator, number) for number in range(2)]
    asyncio.run(ours.batched_put([long, key(1)], objects))
    assert ours.exists_sync(key(1))
    # What can't be put at all is no error of the engine's, either.
    asyncio.run(ours.batched_put([key(2), key(3)], objects[:1]))


def test_a_partial_chunk_has_its_own_shape(server, name):
    connector, allocator = connector_for(server.url(), name)
    ours = connector.getWrappedConnector()
    ours.client.upsert(ours._name(key(0)), bytes(3 * ours.single_token_size))
    got = asyncio.run(ours.get(key(0)))
    assert 3 in got.get_shape() and len(got.byte_array) == 3 * ours.single_token_size


def test_name_spaces_and_a_server_that_is_gone(server, own_server, name):
    one, allocator = connector_for(server.url(), name)
    other, _ = connector_for(server.url(), name + "other")
    first, second = one.getWrappedConnector(), other.getWrappedConnector()
    asyncio.run(first.put(key(0), memory(one, allocator, 1)))
    assert first.exists_sync(key(0)) and not second.exists_sync(key(0))
    lost, _ = connector_for(own_server.url(timeout="300ms"), name)
    gone = lost.getWrappedConnector()
    own_server.kill()
    assert not gone.exists_sync(key(0)) and asyncio.run(gone.get(key(0))) is None and asyncio.run(gone.ping()) != 0
    asyncio.run(gone.put(key(0), memory(one, allocator, 1)))


def test_a_server_that_is_gone_takes_only_its_own_chunks(two_servers, name):
    (one, other), url = two_servers
    connector, allocator = connector_for(f"{url}?timeout=500ms", name)
    ours = connector.getWrappedConnector()
    keys = [key(number) for number in range(16)]
    asyncio.run(ours.batched_put(keys, [memory(connector, allocator, number) for number in range(16)]))
    held = {key for key, _ in lanner.Client(one.url()).list()}
    here = [ours._name(each).encode() in held for each in keys]
    other.kill()
    assert 0 < sum(here) < 16 and ours._are_there(keys) == here
    assert ours.batched_contains([each for each, is_here in zip(keys, here) if is_here]) == sum(here)


def test_keys_that_no_other_process_has_are_refused(server, name, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(ValueError, match="sha256_cbor"):
        connector_for(server.url(), name, "builtin")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    zero, allocator = connector_for(server.url(), name, "builtin")
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    one, _ = connector_for(server.url(), name, "builtin")
    asyncio.run(zero.put(key(0), memory(zero, allocator, 1)))
    assert zero.exists_sync(key(0)) and not one.exists_sync(key(0))
