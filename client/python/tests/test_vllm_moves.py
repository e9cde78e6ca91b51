"""What moves bytes for vLLM's connector, on a real server, with arrays in place of an engine's cache, and the tier with stand-ins for the few names
that it imports from vLLM. ``scripts/e2e`` runs the connector in vLLM itself."""

from __future__ import annotations

import enum
import importlib
import sys
import threading
import types
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import lanner

LAYERS, BLOCKS, LAYER_BYTES = 3, 40, 64


@dataclass
class _Job:
    job_id: int
    keys: list
    chunk_ids: np.ndarray
    is_promotion: bool = False
    req_context: object = None


@dataclass
class _Result:
    job_id: int
    success: bool
    successful_keys: list | None = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class _Tier:
    def __init__(self, spec, view, tier_type, detector):
        self.tier_type = tier_type


@pytest.fixture(scope="module")
def parts():
    """``lanner.vllm``'s modules that need no engine."""
    package = types.ModuleType("lanner.vllm")
    package.__path__ = [str(Path(lanner.__file__).parent / "vllm")]
    base = types.SimpleNamespace(
        LookupResult=enum.Enum("LookupResult", "HIT MISS"), Medium=enum.Enum("Medium", "STORAGE"), RequestOffloadingContext=object
    )
    tiering = types.SimpleNamespace(JobResult=_Result, SecondaryTierManager=_Tier, TransferJob=_Job)
    fakes = {
        "lanner.vllm": package, "vllm": types.SimpleNamespace(__version__="0"), "vllm.v1.kv_offload.base": base,
        "vllm.v1.kv_offload.tiering.base": tiering,
    }
    fakes |= {name: types.ModuleType(name) for name in ("vllm.v1", "vllm.v1.kv_offload", "vllm.v1.kv_offload.tiering")}
    ours = [f"lanner.vllm.{name}" for name in ("plan", "log", "loads", "saves", "tier")]
    saved = {name: sys.modules.pop(name, None) for name in [*fakes, *ours]}
    sys.modules |= fakes
    yield types.SimpleNamespace(**{name.split(".")[-1]: importlib.import_module(name) for name in ours})
    for name, module in saved.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


def cache_of(seed: int) -> list[np.ndarray]:
    return [np.random.default_rng(seed + layer).integers(0, 255, (BLOCKS, LAYER_BYTES), dtype=np.uint8) for layer in range(LAYERS)]


def chain(count: int) -> list[bytes]:
    return [bytes([number]) * 32 for number in range(count)]


@pytest.fixture(params=[True, False], ids=["overlap", "all at first"])
def loads_for(parts, client, name, request):
    """Loads of this test's name space into a cache."""
    made = []

    def make(cache):
        made.append(parts.loads.Loads(client, name, cache, LAYER_BYTES, parts.plan.Tainted(), overlap=request.param))
        return made[-1]

    yield make
    for each in made:
        each.close()


def stored(parts, client, name, cache, blocks):
    saves = parts.saves.Saves(client, name, cache, LAYER_BYTES, limit_bytes=1 << 20)
    saves.submit(parts.plan.Save(chain(len(blocks)), 0, blocks))
    saves.fence()
    return saves


def test_blocks_come_back_in_other_places(parts, client, name, loads_for):
    before, after = cache_of(1), cache_of(100)
    saves = stored(parts, client, name, before, list(range(10)))
    kept = [layer.copy() for layer in before]
    # After the fence the engine may write to the blocks.
    for layer in before:
        layer[:] = 0
    saves.close()
    untouched = [layer.copy() for layer in after]
    loads = loads_for(after)
    places = [31, 7, 30, 2, 3, 12, 39]
    loads.begin([parts.plan.Load(chain(10), 3, list(places))])
    assert all((one == other).all() for one, other in zip(after, untouched)), "nothing is written before it may be"
    loads.start()
    for layer in range(LAYERS):
        loads.wait(layer)
        assert (after[layer][places] == kept[layer][3:10]).all()
    assert loads.take_failed() == set()
    others = [block for block in range(BLOCKS) if block not in places]
    assert all((one[others] == other[others]).all() for one, other in zip(after, untouched))


def test_what_is_gone_is_reported(parts, client, name, loads_for):
    cache = cache_of(1)
    stored(parts, client, name, cache, list(range(6))).close()
    client.remove(lanner.stored_keys(parts.plan.keys(name, chain(6)))[4])
    loads = loads_for(cache_of(50))
    loads.begin([parts.plan.Load(chain(6), 2, [20, 21, 22, 23]), parts.plan.Load([b"x" * 32], 0, [30])])
    loads.start()
    assert loads.take_failed() == {22, 23, 30}
    assert not loads.tainted.may_store(parts.plan.Save(chain(7), 6, [0, 1, 20, 21, 22, 23, 24]))
    assert loads.take_failed() == set()
    # A block of another size isn't what it should be.
    client.upsert(lanner.stored_keys(parts.plan.keys(name, chain(6)))[4], bytes(LAYERS * LAYER_BYTES + 1))
    loads.begin([parts.plan.Load(chain(6), 2, [20, 21, 22, 23])])
    loads.start()
    assert loads.take_failed() == {22, 23}


def test_a_step_without_loads_waits_for_nothing(loads_for):
    loads = loads_for(cache_of(1))
    loads.begin([])
    loads.start()
    loads.wait(0)
    assert loads.take_failed() == set()


def test_a_step_that_the_engine_gave_up_holds_nothing_up(parts, client, name, loads_for):
    cache = cache_of(9)
    stored(parts, client, name, cache, [0]).close()
    target = cache_of(10)
    untouched = [layer.copy() for layer in target]
    loads = loads_for(target)
    loads.begin([parts.plan.Load(chain(1), 0, [5])])
    loads.close()
    loads._pool.shutdown(wait=True)
    assert all((one == other).all() for one, other in zip(target, untouched))


def test_a_fault_of_ones_own_is_raised_in_the_engine(parts, client, name, loads_for):
    stored(parts, client, name, cache_of(9), [0]).close()
    loads = loads_for(cache_of(10))
    loads.layers = [np.zeros((BLOCKS, LAYER_BYTES), np.uint8)[:, ::2]] * LAYERS
    with pytest.raises(BufferError):
        loads.begin([parts.plan.Load(chain(1), 0, [5])])
        loads.start()
        loads.wait(0)
    loads._step = None


def test_a_store_that_is_gone_costs_saves_only(parts, own_server):
    client = lanner.Client(own_server.url(timeout="200ms"))
    own_server.kill()
    saves = parts.saves.Saves(client, "gone", cache_of(1), LAYER_BYTES, limit_bytes=1 << 20)
    saves.submit(parts.plan.Save(chain(4), 0, [0, 1, 2, 3]))
    saves.fence()
    saves.close()
    assert saves.waiting_bytes == 0


def test_what_waits_is_bounded(parts, client, name):
    saves = parts.saves.Saves(client, name, cache_of(1), LAYER_BYTES, limit_bytes=5 * LAYERS * LAYER_BYTES)
    held = threading.Event()
    saves._writer.submit(held.wait)
    saves.submit(parts.plan.Save(chain(3), 0, [0, 1, 2]))
    saves.submit(parts.plan.Save(chain(6), 3, [0, 1, 2, 3, 4, 5]))
    saves.fence()
    assert saves.not_saved == 3
    held.set()
    saves.close()
    assert len(client.match_chain(parts.plan.keys(name, chain(6)))) == 3


def test_local_blocks_are_saved_once_while_the_store_is_known_to_have_them(parts):
    hashes = chain(5)
    planner = parts.plan.Planner(4)

    def request(name):
        planner.track(name, lambda: hashes)
        assert planner.wanted(name, 20, 16) == []
        planner.scheduled(name, [1, 2, 3, 4, 5], is_fresh=True)
        save = planner.save(name, 20)
        planner.forget(name)
        return save and save.start

    assert [request("a"), request("b"), request("c")] == [0, None, None]
    # The server was restarted; or it said that it has but two.
    planner.known.clear()
    assert [request("d"), request("e")] == [0, None]
    planner.track("f", lambda: hashes)
    planner.wanted("f", 21, 0)
    planner.matched("f", 5, 2, 0)
    planner.forget("f")
    assert [request("g"), request("h")] == [2, None]
    known = parts.plan.Known(limit=3)
    known.add(hashes)
    assert known.leading(hashes) == 0 and known.leading(hashes[2:]) == 3


@dataclass(frozen=True)
class _Facts:
    name: str = "m"
    rank: int = 0
    layer_names: tuple = ("a", "b")


@dataclass(frozen=True)
class _Config:
    model: _Facts = field(default_factory=_Facts)
    groups: tuple = (_Facts(),)
    cache: _Facts = field(default_factory=_Facts)
    parallel: _Facts = field(default_factory=_Facts)
    kv_cache_layout: str | None = None
    replicated_layout: bool = False
    canonical_layout: bool = False


def tier_for(parts, url, memory, **more):
    spec = types.SimpleNamespace(config=_Config())
    return parts.tier.LannerTier(spec, memoryview(memory), "LannerTier", url=url, **more)


def finish(tier):
    tier.drain_jobs()
    assert not tier._running
    return {result.job_id: result for result in tier.get_finished_jobs()}


def test_a_tier(parts, server, name):
    hit, miss = parts.tier.LookupResult.HIT, parts.tier.LookupResult.MISS
    memory = np.random.default_rng(1).integers(-128, 127, (8, 4096), dtype=np.int8)
    before = memory.copy()
    tier = tier_for(parts, server.url(), memory, tag=name)
    keys = [bytes([number]) * 36 for number in range(4)]
    assert tier.lookup(keys[0], None) == miss
    tier.submit_store(_Job(1, keys[:3], np.array([5, 6, 7])))
    result = finish(tier)[1]
    assert result.success and result.transfer_bytes == 3 * 4096 and not tier.has_pending_work()
    assert [tier.lookup(key, None) for key in keys] == [hit, hit, hit, miss]
    memory[:] = 0
    tier.submit_load(_Job(2, [keys[2], keys[0]], np.array([1, 2]), True))
    tier.submit_load(_Job(3, [keys[1], keys[3]], np.array([3, 4]), True))
    done = finish(tier)
    assert done[2].success and not done[3].success and done[3].successful_keys == [keys[1]]
    assert (memory[[1, 2, 3]] == before[[7, 5, 6]]).all() and not memory[4:].any()
    other = tier_for(parts, server.url(), memory, tag=name, weights_digest="other")
    assert other.lookup(keys[0], None) == miss
    for each in (tier, other):
        each.shutdown()


def test_a_tier_without_its_store(parts, own_server):
    memory = np.zeros((2, 64), np.int8)
    tier = tier_for(parts, own_server.url(timeout="200ms"), memory)
    own_server.kill()
    tier.submit_store(_Job(1, [b"k"], np.array([0])))
    tier.submit_load(_Job(2, [b"k"], np.array([1])))
    assert tier.lookup(b"k", None) == parts.tier.LookupResult.MISS
    assert {job: result.success for job, result in finish(tier).items()} == {1: False, 2: False}
    tier.shutdown()


def test_what_is_logged_is_what_vllm_shows(parts, client, name, caplog):
    """vLLM shows what is logged below ``vllm``. The name space was logged elsewhere, so nobody saw it; a failure a step is one line in ten seconds."""
    import logging

    from lanner.naming import Namespace

    log = sys.modules["lanner.vllm.log"]
    with caplog.at_level(logging.INFO, "vllm"):
        Namespace("vllm", {"test": name}).announce(client, log.logger)
        limited = log.Limited()
        for number in range(100):
            limited.warn("failed: %s", number)
    assert [(record.name.split(".")[0], record.getMessage()[:10]) for record in caplog.records] == [("vllm", "name space"), ("vllm", "failed: 0")]
