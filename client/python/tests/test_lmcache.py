"""The L2 adapter with LMCache's own types, where LMCache is installed."""

from __future__ import annotations

import os
import select
import types

import pytest

import lanner

pytest.importorskip("lmcache")

from lmcache.v1.distributed.api import ObjectKey  # noqa: E402

from lanner.lmcache import LannerL2Adapter  # noqa: E402


@pytest.fixture
def adapter(server, name):
    """Made as LMCache makes it from ``--l2-adapter``."""
    from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig, _create_plugin_adapter

    params = {"url": server.url(), "namespace": name}
    config = {"module_path": "lanner.lmcache", "class_name": "LannerL2Adapter", "adapter_params": params}
    adapter = _create_plugin_adapter(PluginL2AdapterConfig.from_dict(config))
    adapter.set_backend_identity("lanner")
    yield adapter
    adapter.close()


def key(number: int, **more) -> ObjectKey:
    return ObjectKey(chunk_hash=number.to_bytes(32, "big"), **{"model_name": "org/model", "kv_rank": 1, **more})


def memory(data: bytes):
    return types.SimpleNamespace(byte_array=memoryview(bytearray(data)))


def wait(descriptor: int) -> None:
    assert select.select([descriptor], [], [], 5)[0], "the event never came"
    os.read(descriptor, 8)


def store(adapter, keys, objects):
    task = adapter.submit_store_task(keys, objects)
    wait(adapter.get_store_event_fd())
    return adapter.pop_completed_store_tasks()[task]


def bits(bitmap, count):
    return [bitmap.test(index) for index in range(count)]


def test_objects_come_back(adapter):
    keys = [key(number) for number in range(4)]
    result = store(adapter, keys[:3], [memory(bytes([number]) * 100) for number in range(3)])
    assert result.is_successful() and result.bytes_transferred() == 300
    again = store(adapter, keys[2:3], [memory(b"x" * 100)])
    assert again.is_successful() and again.bytes_transferred() == 0
    task = adapter.submit_lookup_and_lock_task(keys, {})
    wait(adapter.get_lookup_and_lock_event_fd())
    assert bits(adapter.query_lookup_and_lock_result(task), 4) == [True, True, True, False]
    assert adapter.query_lookup_and_lock_result(task) is None
    # One of them has another length than its place: a miss.
    targets = [memory(bytes(100)), memory(bytes(101)), memory(bytes(100)), memory(bytes(100))]
    task = adapter.submit_load_task(keys, targets)
    wait(adapter.get_load_event_fd())
    assert bits(adapter.query_load_result(task), 4) == [True, False, True, False]
    assert bytes(targets[2].byte_array) == b"\2" * 100
    adapter.submit_unlock(keys)
    assert adapter.get_usage().total_bytes_used == 300
    adapter.delete(keys)
    assert adapter.get_usage().total_bytes_used == 0
    assert adapter.report_status()["is_healthy"]


def test_one_bad_object_keeps_no_other_from_being_stored(adapter):
    keys = [key(1), key(2, model_name="m" * 2000), key(3)]
    assert not store(adapter, keys, [memory(b"x" * 10)] * 3).is_successful()
    assert adapter.get_usage().total_bytes_used == 20
    task = adapter.submit_lookup_and_lock_task(keys, {})
    wait(adapter.get_lookup_and_lock_event_fd())
    assert bits(adapter.query_lookup_and_lock_result(task), 3) == [True, False, True]


def test_names_differ_in_everything_that_keys_differ_in(adapter, server):
    keys = [
        key(1), key(2), key(1, model_name="org/model1"), key(1, kv_rank=2), key(1, object_group_id=1), key(1, cache_salt="a"),
        key(1, model_name="org/model1:0:", cache_salt=""), key(1, model_name="org/mode", cache_salt="l"),
    ]
    names = {adapter.name_of(each) for each in keys}
    assert len(names) == len(keys) and all(len(name) <= 1024 for name in names)
    other = LannerL2Adapter({"url": server.url(), "namespace": "another"})
    assert other.name_of(key(1)) not in names
    other.close()


def test_a_store_that_is_gone_stores_nothing_and_finds_nothing(own_server):
    adapter = LannerL2Adapter({"url": own_server.url(timeout="500ms")})
    own_server.kill()
    assert not store(adapter, [key(1)], [memory(b"x")]).is_successful()
    task = adapter.submit_lookup_and_lock_task([key(1)], {})
    wait(adapter.get_lookup_and_lock_event_fd())
    assert bits(adapter.query_lookup_and_lock_result(task), 1) == [False]
    assert not adapter.report_status()["is_healthy"]
    adapter.close()


def test_a_server_that_is_gone_takes_only_its_own_objects(two_servers):
    (one, other), url = two_servers
    adapter = LannerL2Adapter({"url": f"{url}?timeout=500ms"})
    keys = [key(number) for number in range(20)]
    assert store(adapter, keys, [memory(b"x" * 10)] * 20).is_successful()
    held = {key for key, _ in lanner.Client(one.url()).list()}
    here = [adapter.name_of(each).encode() in held for each in keys]
    other.kill()
    task = adapter.submit_lookup_and_lock_task(keys, {})
    wait(adapter.get_lookup_and_lock_event_fd())
    assert 0 < sum(here) < 20 and bits(adapter.query_lookup_and_lock_result(task), 20) == here
    adapter.delete(keys)
    assert not any(name in held for name, _ in lanner.Client(one.url()).list(adapter.namespace.prefix))
    adapter.close()
