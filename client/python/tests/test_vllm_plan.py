"""What vLLM's connector decides: which blocks are loaded and saved, step by step, against a model of an engine. ``scripts/e2e`` runs the
connector in vLLM itself."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
from pathlib import Path

import pytest

import lanner

# Without `lanner.vllm`, which imports vLLM.
_spec = importlib.util.spec_from_file_location("lanner.vllm.plan", Path(lanner.__file__).parent / "vllm" / "plan.py")
plan = importlib.util.module_from_spec(_spec)
sys.modules["plan"] = sys.modules["lanner.vllm.plan"] = plan
_spec.loader.exec_module(plan)
del sys.modules["lanner.vllm.plan"]

BLOCK = 4


def hashes_of(tokens: list[int]) -> list[bytes]:
    """Stand-ins for block hashes: all tokens up to the block's end."""
    return [repr(tokens[: end]).encode() for end in range(BLOCK, len(tokens) + 1, BLOCK)]


def planner_for(tokens: list[int], name: str = "r") -> plan.Planner:
    planner = plan.Planner(BLOCK)
    planner.track(name, lambda: hashes_of(tokens))
    return planner


@pytest.mark.parametrize(
    ("tokens", "local", "asked"),
    [(1, 0, 0), (4, 0, 0), (5, 0, 1), (8, 0, 1), (9, 0, 2), (9, 4, 2), (9, 8, 0), (12, 8, 0), (13, 8, 3)],
)
def test_one_token_is_left_to_compute(tokens, local, asked):
    planner = planner_for(list(range(tokens)))
    assert len(planner.wanted("r", tokens, local)) == asked


def test_a_load_begins_behind_what_the_engine_has():
    tokens = list(range(17))
    planner = planner_for(tokens)
    chain = planner.wanted("r", 17, 4)
    assert chain == hashes_of(tokens)[:4]
    assert planner.matched("r", 4, 3, 4) == 8
    planner.allocated("r", [90, 91, 92, 93, 94], 8)
    (load,) = planner.take_loads()
    assert (load.hashes, load.start, load.block_ids) == (chain[:3], 1, [91, 92])
    assert planner.take_loads() == []
    # What the store holds isn't saved again.
    planner.scheduled("r", [90, 91, 92, 93, 94], is_fresh=True)
    save = planner.save("r", 17)
    assert (save.start, save.block_ids, len(save.hashes)) == (3, [90, 91, 92, 93], 4)
    assert planner.save("r", 17) is None


def test_nothing_is_loaded_where_the_engine_has_more_or_half_a_block():
    planner = planner_for(list(range(20)))
    assert planner.matched("r", 4, 1, 8) == 0
    assert planner.matched("r", 4, 3, 6) == 0
    planner.allocated("r", [1, 2], 0)
    assert planner.take_loads() == []


def test_chunks_decode_and_preemption():
    tokens = list(range(10))
    planner = planner_for(tokens)
    planner.scheduled("r", [5, 6], is_fresh=True)
    assert planner.save("r", 6) == plan.Save(hashes_of(tokens)[:1], 0, [5])
    planner.scheduled("r", [7], is_fresh=False)
    assert planner.save("r", 10) == plan.Save(hashes_of(tokens)[:2], 1, [5, 6])
    tokens.extend([10, 11])
    planner.scheduled("r", None, is_fresh=False)
    assert planner.save("r", 12) == plan.Save(hashes_of(tokens)[:3], 2, [5, 6, 7])
    # Preempted and resumed in other blocks: what was saved stays saved.
    tokens.extend(range(12, 16))
    planner.scheduled("r", [1, 2, 3, 4], is_fresh=True)
    assert planner.save("r", 16) == plan.Save(hashes_of(tokens)[:4], 3, [1, 2, 3, 4])
    planner.forget("r")
    assert planner.save("r", 16) is None


def test_what_failed_to_load_is_saved_when_it_was_computed():
    tokens = list(range(17))
    planner = planner_for(tokens)
    planner.matched("r", 4, 4, 0)
    planner.scheduled("r", [1, 2, 3, 4, 5], is_fresh=True)
    assert planner.save("r", 17) is None
    planner.failed({3, 4, 99})
    assert planner.save("r", 17) == plan.Save(hashes_of(tokens)[:4], 2, [1, 2, 3, 4])


def test_what_was_computed_behind_a_failed_load_is_not_stored():
    """A load fails; the step's own blocks, and those of another request that shares the failed ones, were computed with rubbish."""
    tainted = plan.Tainted()
    chain = [b"0", b"1", b"2", b"3"]
    tainted.failed([11, 12])
    assert not tainted.may_store(plan.Save(chain, 3, [10, 11, 12, 13]))
    assert not tainted.may_store(plan.Save(chain[:3], 2, [10, 11, 20]))
    assert tainted.may_store(plan.Save(chain, 1, [10, 31, 32, 33]))
    # The next step, before vLLM has heard of it.
    assert not tainted.may_store(plan.Save([*chain, b"4"], 4, [10, 11, 12, 13, 14]))
    # Computed anew, in two chunks.
    assert tainted.may_store(plan.Save(chain[:2], 1, [10, 11]))
    assert not tainted.may_store(plan.Save([*chain, b"4"], 4, [10, 11, 12, 13, 14]))
    assert tainted.may_store(plan.Save(chain, 2, [10, 11, 12, 13]))
    assert tainted.may_store(plan.Save([*chain, b"4"], 4, [10, 11, 12, 13, 14]))
    # Or loaded after all.
    tainted.failed([11])
    tainted.loaded([11])
    assert tainted.may_store(plan.Save(chain, 2, [10, 11, 12, 13]))


def test_ranges_of_a_layer():
    assert plan.block_ranges(2, [7, 5], 3, 100) == [(2, 300, 100, 700), (3, 300, 100, 500)]


@pytest.mark.parametrize("seed", range(30))
def test_every_block_that_is_read_is_what_was_computed(seed, server):
    """An engine that computes by hashing, with chunks, preemption, evictions from the store and failing loads, on a real store."""
    rng = random.Random(seed)
    client = lanner.Client(server.url())
    layers, layer_bytes, blocks = 3, 8, 64
    cache = [bytearray(blocks * layer_bytes) for _ in range(layers)]
    computed = lambda digest, layer: hashlib.sha256(digest).digest()[:7] + bytes([layer])
    keys = lambda chain: [f"plan{seed}/{digest.hex()[-900:]}" for digest in chain]
    conversations = [[rng.randrange(9) for _ in range(50)] for _ in range(2)]
    planner, free, held_in_store = plan.Planner(BLOCK), list(range(blocks)), 0
    for number in range(12):
        shared = rng.choice(conversations)
        tokens = shared[: rng.randrange(len(shared))] + [rng.randrange(9) for _ in range(rng.randrange(1, 9))]
        name = f"r{number}"
        hashes = hashes_of(tokens)
        planner.track(name, lambda hashes=hashes: hashes)
        rng.shuffle(free)
        taken = free[: len(tokens) // BLOCK + 1]
        local = 0
        chain = planner.wanted(name, len(tokens), local)
        held = len(client.match_chain(keys(chain))) if chain else 0
        external = planner.matched(name, len(chain), held, local)
        planner.allocated(name, taken, external)
        at = external
        for load in planner.take_loads():
            if rng.random() < 0.3:
                client.remove(lanner.stored_keys(keys(load.hashes))[-1])
            snapshot = client.match_chain(keys(load.hashes))
            count = min(len(snapshot), len(load.hashes)) - load.start
            for layer, memory in enumerate(cache):
                if count > 0:
                    snapshot.read_into(plan.block_ranges(load.start, load.block_ids[:count], layer, layer_bytes), memory)
            bad = load.block_ids[max(count, 0) :]
            at = (load.start + max(count, 0)) * BLOCK
            held_in_store += max(count, 0)
            planner.scheduled(name, taken, is_fresh=True)
            planner.failed(bad)
        planner.scheduled(name, taken, is_fresh=True)
        for index in range(at // BLOCK, len(hashes)):
            for layer, memory in enumerate(cache):
                memory[taken[index] * layer_bytes : (taken[index] + 1) * layer_bytes] = computed(hashes[index], layer)
        for end in sorted({rng.randrange(at, len(tokens) + 1), len(tokens)}):
            if (save := planner.save(name, end)) is not None:
                values = [
                    b"".join(memory[block * layer_bytes : (block + 1) * layer_bytes] for memory in cache) for block in save.block_ids[save.start :]
                ]
                client.put_chain(keys(save.hashes), save.start, values)
        for index, digest in enumerate(hashes):
            for layer, memory in enumerate(cache):
                there = memory[taken[index] * layer_bytes : (taken[index] + 1) * layer_bytes]
                assert there == computed(digest, layer), f"block {index} of {name}"
        planner.forget(name)
    assert held_in_store > 0
