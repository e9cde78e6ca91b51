"""SGLang's own HiCacheController, with its storage threads, on CPU tensors: pages written, dropped and prefetched through a storage backend.

    python hicache.py lanner --url lanner://127.0.0.1:7411 [--rounds 5] [--tokens 2048] [--cpus "[0]"]
    python hicache.py file

Compares every byte that comes back and prints a line of JSON: milliseconds for write and prefetch of so many tokens. Exit status 1 if a byte
was wrong or a page missing. What the engine adds (GPU kernels, the radix tree) is not here.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import sys
import tempfile
import threading
import time
import types

import torch

PAGE, LAYERS, HEADS, HEAD_DIM = 32, 4, 4, 64


def controller(backend: str, url: str, layout: str, size_tokens: int, extra: dict | None = None):
    """A controller of one rank, and its host pool."""
    import torch.distributed as dist
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache import memory_pool
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    if not dist.is_initialized():
        rendezvous = tempfile.mktemp(prefix="hicache-")
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    ranks = dict(tp=0, pp=0, attn_tp=0, attn_dp=0, attn_cp=0, attn_dcp=0, dp=0)
    parallel = types.SimpleNamespace(
        **{f"{name}_rank": rank for name, rank in ranks.items()}, **{f"{name}_size": 1 for name in ranks}
    )
    cache_controller.get_parallel = lambda: parallel
    cache_controller.is_dp_attention_enabled = lambda: False
    device = memory_pool.MHATokenToKVPool(
        size=size_tokens, page_size=PAGE, dtype=torch.float16, head_num=HEADS, head_dim=HEAD_DIM, layer_num=LAYERS,
        device="cpu", enable_memory_saver=False,
    )
    host = make_host_pool(MHATokenToKVPoolHost, device, layout)
    allocator = TokenToKVPoolAllocator(size_tokens, torch.float16, "cpu", device, need_sort=False)
    config = dict(extra or {})
    name = "dynamic" if backend == "lanner" else backend
    if backend == "lanner":
        config |= dict(backend_name="lanner", module_path="lanner.sglang", class_name="HiCacheLanner", url=url)
        config.setdefault("interface_v1", 1)
    made = cache_controller.HiCacheController(
        allocator, host, PAGE, dist.group.WORLD, threading.Event(), io_backend="direct", storage_backend=name,
        model_name="tiny-random", storage_backend_extra_config=config, prefetch_threshold=PAGE,
    )
    return made, host


def make_host_pool(kind, device, layout):
    """The host pool for a device pool, with room for twice as many tokens."""
    from sglang.srt.mem_cache.pool_host import mha

    return kind(
        device._mha_buffer_info(), 2.0, 0, PAGE, layout, pin_memory=False, device="cpu",
        device_capacity_tokens=device.size, start_layer=0, end_layer=LAYERS,
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


def one_round(made, host, tokens: list[int], number: int):
    """Writes the tokens' pages, wipes the pool, prefetches them. Returns seconds of both, and whether all came back as it was."""
    from sglang.srt.mem_cache.utils import get_hash_str

    hashes = get_hash_str(tokens, None, page_size=PAGE)
    indices = host.alloc(len(tokens))
    host.kv_buffer.copy_(torch.randn(host.kv_buffer.shape, generator=torch.Generator().manual_seed(number)))
    pages = [host.get_data_page(indices[at]).clone() for at in range(0, len(tokens), PAGE)]
    started = time.perf_counter()
    made.write_storage(indices, tokens, hash_value=hashes)
    operation = wait(made.ack_backup_queue, lambda ack: True)
    write = time.perf_counter() - started
    written = operation.completed_tokens
    host.free(indices)
    host.kv_buffer.zero_()

    started = time.perf_counter()
    made.prefetch(f"request-{number}", tokens, None)
    operation = wait(made.prefetch_hit_queue, lambda ack: True)
    held = operation.storage_hit_count
    correct, fetched = written == len(tokens) == held, 0.0
    if held:
        indices = host.alloc(held)
        operation.host_indices = indices
        made.prefetch_buffer.put(operation)
        wait(made.ack_prefetch_queue, lambda ack: ack.completed_req)
        fetched = time.perf_counter() - started
        back = [host.get_data_page(indices[at]) for at in range(0, held, PAGE)]
        correct = correct and all(torch.equal(one, other) for one, other in zip(pages, back))
        host.free(indices)
    return write, fetched, correct


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("backend", choices=["lanner", "file", "mooncake"])
    parser.add_argument("--url", default="lanner://127.0.0.1:7411")
    parser.add_argument("--layout", default="page_first_direct")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpus", type=json.loads, help="CPUs to run on, as a JSON list")
    parser.add_argument("--extra", type=json.loads, default={}, help="more of storage_backend_extra_config, as JSON")
    options = parser.parse_args()
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    made, host = controller(options.backend, options.url, options.layout, 2 * options.tokens, options.extra)
    rounds = []
    salt = int(time.time() * 1000) % (1 << 30)
    for number in range(options.rounds):
        tokens = [(salt + number * 7919 + at) % (1 << 30) for at in range(options.tokens)]
        rounds.append(one_round(made, host, tokens, number))
    correct = all(ok for _, _, ok in rounds)
    result = {
        "backend": options.backend, "layout": options.layout, "tokens": options.tokens, "rounds": len(rounds), "correct": correct,
        "bytes": options.tokens * 2 * LAYERS * HEADS * HEAD_DIM * 2,
        "write_ms": round(1e3 * statistics.median(write for write, _, _ in rounds), 2),
        "prefetch_ms": round(1e3 * statistics.median(fetch for _, fetch, _ in rounds), 2),
    }
    print(json.dumps(result), flush=True)
    # Its threads wait for their queues a second each, and nothing is to be saved.
    os._exit(0 if correct else 1)


if __name__ == "__main__":
    sys.exit(main())
