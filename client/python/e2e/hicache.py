"""SGLang's own HiCacheController, with its storage threads, on CPU tensors: pages written, dropped and prefetched through a storage backend.

    python hicache.py lanner --url lanner://127.0.0.1:7411 [--rounds 5] [--tokens 2048] [--cpus "[0]"]
    python hicache.py file
    python hicache.py lanner --ranks 2 [--mla]

Compares every byte that comes back and prints a line of JSON: milliseconds for write and prefetch of so many tokens. Exit status 1 if a byte
was wrong or a page missing. What the engine adds (GPU kernels, the radix tree) is not here.

With ``--ranks`` there are as many processes with a gloo group, each with other bytes (with ``--mla`` the same, which one of them writes). One of them loses a
page before it's asked for, then one between being asked for and being read: all ranks must say the same each time, and have the right bytes up to there.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types

import torch

PAGE, LAYERS, HEADS, HEAD_DIM = 32, 4, 4, 64
LATENT, ROPE = 448, 64
#: The page that a rank loses.
LOST = 10


def controller(options: argparse.Namespace):
    """A controller of one rank, and its host pool."""
    import torch.distributed as dist
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache import memory_pool
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

    if not dist.is_initialized():
        rendezvous = options.rendezvous or tempfile.mktemp(prefix="hicache-")
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=options.rank, world_size=options.ranks)
    names = ["tp", "pp", "attn_tp", "attn_dp", "attn_cp", "attn_dcp", "dp"]
    parallel = types.SimpleNamespace(**{f"{name}_rank": 0 for name in names}, **{f"{name}_size": 1 for name in names})
    parallel.tp_rank = parallel.attn_tp_rank = options.rank
    parallel.tp_size = parallel.attn_tp_size = options.ranks
    cache_controller.get_parallel = lambda: parallel
    cache_controller.is_dp_attention_enabled = lambda: False
    size = 2 * options.tokens
    device, host = (mla_pools if options.mla else mha_pools)(memory_pool, size, options.layout)
    allocator = TokenToKVPoolAllocator(size, torch.float16, "cpu", device, need_sort=False)
    config = dict(options.extra)
    if options.backend == "lanner":
        config |= dict(backend_name="lanner", module_path="lanner.sglang", class_name="HiCacheLanner", url=options.url)
        config.setdefault("interface_v1", 1)
    made = cache_controller.HiCacheController(
        allocator, host, PAGE, dist.group.WORLD, threading.Event(), io_backend="direct",
        storage_backend="dynamic" if options.backend == "lanner" else options.backend,
        model_name="tiny-random", storage_backend_extra_config=config, prefetch_threshold=PAGE,
    )
    return made, host


def mha_pools(memory_pool, size: int, layout: str):
    """A device pool for keys and values, and a host pool with room for twice as many tokens."""
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    device = memory_pool.MHATokenToKVPool(
        size=size, page_size=PAGE, dtype=torch.float16, head_num=HEADS, head_dim=HEAD_DIM, layer_num=LAYERS, device="cpu",
        enable_memory_saver=False,
    )
    return device, MHATokenToKVPoolHost(
        device._mha_buffer_info(), 2.0, 0, PAGE, layout, pin_memory=False, device="cpu", device_capacity_tokens=size, start_layer=0,
        end_layer=LAYERS,
    )


def mla_pools(memory_pool, size: int, layout: str):
    """The same for a model with multi-head latent attention, whose ranks all have the same."""
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    device = memory_pool.MLATokenToKVPool(
        size=size, page_size=PAGE, dtype=torch.float16, kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, layer_num=LAYERS, device="cpu",
        enable_memory_saver=False,
    )
    return device, MLATokenToKVPoolHost(
        device._mla_buffer_info(), 2.0, 0, PAGE, layout, pin_memory=False, device="cpu", device_capacity_tokens=size, start_layer=0,
        end_layer=LAYERS, target_layer_num=LAYERS,
    )


def wait(acknowledged: queue.Queue, done, seconds: float = 30):
    """The first acknowledgement that is `done`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            ack = acknowledged.get(timeout=0.0005)
        except queue.Empty:
            continue
        if done(ack):
            return ack
    raise SystemExit("no acknowledgement in time")


def one_round(made, host, tokens: list[int], number: int, options: argparse.Namespace, lose: str = ""):
    """Writes the tokens' pages, wipes the pool, prefetches them. Returns the seconds of both, how many pages were found and how many came, and
    whether those are as they were. ``lose``: the page is lost ``before`` it's asked for, or then, before it's ``read``."""
    from sglang.srt.mem_cache.utils import get_hash_str

    prefix = [] if options.chain else None
    hashes = get_hash_str(tokens, None, page_size=PAGE)
    indices = host.alloc(len(tokens))
    seed = number if options.mla else number * options.ranks + options.rank
    host.kv_buffer.copy_(torch.randn(host.kv_buffer.shape, generator=torch.Generator().manual_seed(seed)))
    pages = [host.get_data_page(indices[at]).clone() for at in range(0, len(tokens), PAGE)]
    together(options)
    started = time.perf_counter()
    made.write_storage(indices, tokens, hash_value=hashes, prefix_keys=prefix)
    operation = wait(made.ack_backup_queue, lambda ack: True)
    write = time.perf_counter() - started
    is_written = made.backup_skip or operation.completed_tokens == len(tokens)
    host.free(indices)
    host.kv_buffer.zero_()
    together(options)
    if lose == "before":
        forget(made, hashes, prefix, options)

    started = time.perf_counter()
    made.prefetch(f"request-{number}", tokens, None, prefix_keys=prefix)
    operation = wait(made.prefetch_hit_queue, lambda ack: True)
    held = operation.storage_hit_count
    asked = time.perf_counter() - started
    if lose == "read":
        made.storage_backend._leased.clear()
        forget(made, hashes, prefix, options)
    came, is_same, fetched = 0, True, asked
    if held:
        started = time.perf_counter()
        indices = host.alloc(held)
        operation.host_indices = indices
        made.prefetch_buffer.put(operation)
        while not (ack := wait(made.ack_prefetch_queue, lambda ack: True)).completed_req:
            came = ack.completed_tokens
        fetched += time.perf_counter() - started
        back = [host.get_data_page(indices[at]) for at in range(0, came, PAGE)]
        is_same = all(torch.equal(one, other) for one, other in zip(pages, back))
        host.free(indices)
    return write, fetched, held // PAGE, came // PAGE, is_same and is_written


def together(options: argparse.Namespace) -> None:
    """Waits for the other ranks."""
    if options.ranks > 1:
        torch.distributed.barrier()


def forget(made, hashes: list[str], prefix: list[str] | None, options: argparse.Namespace) -> None:
    """The last rank loses an object of a page."""
    if options.rank == options.ranks - 1:
        pool = made.storage_backend._pools["kv"]
        keys = pool.stored_keys(hashes, prefix)
        assert made.storage_backend.client.remove(keys[LOST * len(pool.suffixes)])
    together(options)


def work_as_rank(options: argparse.Namespace) -> int:
    """What each of several ranks does."""
    made, host = controller(options)
    pages, outcomes = options.tokens // PAGE, []
    for number, lose in enumerate(["", "before", "read"]):
        tokens = [options.salt + number * 7919 + at for at in range(options.tokens)]
        _, _, held, came, correct = one_round(made, host, tokens, number, options, lose)
        outcomes.append([held, came, correct])
    expected = [[pages, pages, True], [LOST, LOST, True], [pages, LOST, True]]
    pool = made.storage_backend._pools["kv"]
    result = {
        "rank": options.rank, "is_as_expected": outcomes == expected, "outcomes": outcomes, "writes": not made.backup_skip,
        "name_space": pool.namespace.prefix,
    }
    print(json.dumps(result), flush=True)
    together(options)
    os._exit(0 if outcomes == expected else 1)


def ranks(options: argparse.Namespace) -> int:
    """Starts the ranks and gathers what they say."""
    rendezvous, salt = tempfile.mktemp(prefix="hicache-"), str(int(time.time() * 1000) % (1 << 30))
    command = [sys.executable, __file__, *sys.argv[1:], "--rendezvous", rendezvous, "--salt", salt, "--rank"]
    started = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(options.ranks)]
    said = [process.communicate(timeout=200)[0] for process in started]
    results = [json.loads(line) for text in said for line in text.split("\n") if line.startswith("{")]
    spaces, writers = {each["name_space"] for each in results}, sum(each["writes"] for each in results)
    correct = len(results) == options.ranks and all(each["is_as_expected"] for each in results)
    # All ranks of an MLA model share their pages, and one writes them; of others each has its own.
    correct = correct and (len(spaces), writers) == ((1, 1) if options.mla else (options.ranks, options.ranks))
    print(json.dumps({"ranks": options.ranks, "mla": options.mla, "correct": correct, "writers": writers, "each": results}), flush=True)
    return 0 if correct else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("backend", choices=["lanner", "file", "mooncake"])
    parser.add_argument("--url", default="lanner://127.0.0.1:7411")
    parser.add_argument("--layout", default="page_first_direct")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--chain", action="store_true", help="with prefix keys, as with hicache_storage_pass_prefix_keys")
    parser.add_argument("--cpus", type=json.loads, help="CPUs to run on, as a JSON list")
    parser.add_argument("--extra", type=json.loads, default={}, help="more of storage_backend_extra_config, as JSON")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--mla", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    parser.add_argument("--salt", type=int, default=int(time.time() * 1000) % (1 << 30), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    if options.ranks > 1:
        return ranks(options) if options.rank is None else work_as_rank(options)
    options.rank = 0
    made, host = controller(options)
    rounds = []
    for number in range(options.rounds):
        tokens = [(options.salt + number * 7919 + at) % (1 << 30) for at in range(options.tokens)]
        rounds.append(one_round(made, host, tokens, number, options))
    pages = options.tokens // PAGE
    correct = all(each[2:] == (pages, pages, True) for each in rounds)
    milliseconds = lambda place: round(1e3 * statistics.median(each[place] for each in rounds), 2)
    result = {
        "backend": options.backend, "layout": options.layout, "chain": options.chain, "tokens": options.tokens, "rounds": len(rounds),
        "correct": correct, "bytes": host.kv_buffer.nbytes * options.tokens // host.size, "write_ms": milliseconds(0),
        "prefetch_ms": milliseconds(1),
    }
    print(json.dumps(result), flush=True)
    # Its threads wait for their queues a second each, and nothing is to be saved.
    os._exit(0 if correct else 1)


if __name__ == "__main__":
    sys.exit(main())
