"""One engine process of vLLM on the CPU: generates greedily for prompts from standard input, and says what each took.

    python vllm_engine.py MODEL [--store lanner --url lanner://…] [--no-prefix-cache]

A line of standard input is a list of prompts, each a list of token ids; they are generated one after the other, or with ``--together`` at the
same time. A line {"prompts": […], "unplugged": true} has them generated as if the engine had no connector. Its answer is a line of standard output:
a list of {"tokens", "ttft_ms", "total_ms", "cached", "preemptions"}, in the order of the prompts; the last is how many the engine has had. The first line of all says {"ready": true}. ``--store`` names the connector: none, ``lanner``, ``tier`` (Lanner behind vLLM's OffloadingConnector), or for comparison
``lmcache`` or ``mooncake``, whose addresses are in ``--extra`` and in MOONCAKE_CONFIG_PATH, or ``lmcache-in-process``, which LMCACHE_CONFIG_FILE configures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import time

CONNECTORS = {
    "lanner": ("LannerConnector", "lanner.vllm"),
    "tier": ("OffloadingConnector", None),
    "lmcache": ("LMCacheMPConnector", None),
    "lmcache-in-process": ("LMCacheConnectorV1", None),
    "mooncake": ("MooncakeStoreConnector", None),
}


def lose_loads(share: float) -> None:
    """Lets blocks vanish between their being found by the scheduler and being read by the worker, as an eviction would."""
    import lanner
    from lanner.vllm import loads, plan

    rng, find = random.Random(1), loads.Loads.find

    def lossy(self, load):
        if rng.random() < share:
            lost = load.hashes[load.start + rng.randrange(len(load.block_ids)) :]
            stored = lanner.stored_keys(plan.keys(self.prefix, load.hashes))[-len(lost) :]
            self.client.remove_batch(stored)
        return find(self, load)

    loads.Loads.find = lossy


@contextlib.contextmanager
def unplugged(engine):
    """In the meantime neither the scheduler nor the worker has a connector, so vLLM takes the ways that it takes without one. Nothing that the connector
    saves may be under way: a connected request before this one waits for that."""
    from vllm.distributed.kv_transfer import kv_transfer_state

    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    connector, group = scheduler.connector, kv_transfer_state._KV_CONNECTOR_AGENT
    assert connector is not None and group is not None
    scheduler.connector = kv_transfer_state._KV_CONNECTOR_AGENT = None
    try:
        yield
    finally:
        scheduler.connector, kv_transfer_state._KV_CONNECTOR_AGENT = connector, group


def make_room_for_others() -> None:
    """What the other stores' connectors need on a machine without a GPU."""
    import torch
    from vllm.triton_utils import dispatcher

    # vLLM scans modules for kernels with `vars()`, and some objects of lmcache have something else where others have their dictionary.
    dispatcher.vars = lambda thing: found if hasattr(found := getattr(thing, "__dict__", None), "get") else {}

    class NoEvent:
        """The CPU's kernels have ended when their calls return."""

        def __init__(self, *_, **__):
            pass

        def record(self, *_):
            pass

        def synchronize(self):
            pass

    torch.cuda.Event = NoEvent


def transfer_config(options: argparse.Namespace):
    """vLLM's configuration of the store, or none."""
    from vllm.config import KVTransferConfig

    if options.store is None:
        return None
    name, module = CONNECTORS[options.store]
    extra = options.extra
    if options.store == "lanner":
        extra = {"url": options.url, **extra}
    if options.store == "tier":
        tier = {"type": "LannerTier", "module_path": "lanner.vllm.tier", "url": options.url}
        extra = {"spec_name": "CpuTieringSpec", "spec_module_path": "cpu_offload", "cpu_bytes_to_use": 128 << 20, "secondary_tiers": [tier], **extra}
    # With the default, `fail`, one block that can't be loaded ends its request.
    return KVTransferConfig(
        kv_connector=name, kv_connector_module_path=module, kv_role="kv_both", kv_load_failure_policy="recompute",
        kv_connector_extra_config=extra,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--store", choices=list(CONNECTORS))
    parser.add_argument("--url", default="lanner://127.0.0.1:7411")
    parser.add_argument("--no-prefix-cache", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--batched-tokens", type=int, default=4096)
    parser.add_argument("--kv-bytes", type=int, default=512 << 20)
    parser.add_argument("--sequences", type=int, default=4, help="requests that run at the same time")
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel size")
    parser.add_argument("--cpus", type=json.loads, help="CPUs to run on, as a JSON list")
    parser.add_argument("--together", action="store_true", help="all prompts of a line at the same time")
    parser.add_argument("--lose", type=float, default=0, help="share of loads of which all but some blocks are lost on the way")
    parser.add_argument("--kill", type=int, help="a process to be killed")
    parser.add_argument("--kill-after", type=int, default=0, help="after so many requests")
    parser.add_argument("--extra", type=json.loads, default={}, help="more of kv_connector_extra_config, as JSON")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.cpus:
        # Before torch is imported, which counts them.
        os.sched_setaffinity(0, options.cpus)
    # What the engine prints is not the answer.
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # One process, unless there are several ranks: what else runs on the machine's few cores would be measured, too.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if options.ranks > 1:
        # Left alone, vLLM gives each rank a NUMA node of its own.
        cpus = sorted(os.sched_getaffinity(0))
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(cpus[rank % len(cpus)]) for rank in range(options.ranks))
    if options.store in ("lmcache", "lmcache-in-process", "mooncake"):
        make_room_for_others()
    if options.store == "lmcache-in-process":
        import lmcache_cpu

        lmcache_cpu.install()
    from vllm import LLM, SamplingParams

    engine = LLM(
        options.model, dtype="float32", enforce_eager=True, block_size=32, max_num_seqs=options.sequences, max_model_len=4096,
        kv_cache_memory_bytes=options.kv_bytes, enable_prefix_caching=not options.no_prefix_cache,
        max_num_batched_tokens=options.batched_tokens, kv_transfer_config=transfer_config(options), disable_log_stats=False,
        tensor_parallel_size=options.ranks,
    )
    if options.lose:
        lose_loads(options.lose)
    greedy = SamplingParams(temperature=0, max_tokens=options.max_tokens, ignore_eos=True)
    first = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    # The first request pays for what is set up lazily.
    engine.generate([{"prompt_token_ids": list(range(3, 40))}], first, use_tqdm=False)
    print(json.dumps({"ready": True}), file=answers_to, flush=True)
    answered = 0
    for line in sys.stdin:
        asked = json.loads(line)
        alone = isinstance(asked, dict) and asked["unplugged"]
        answers, requests = [], asked["prompts"] if isinstance(asked, dict) else asked
        for batch in [requests] if options.together else [[request] for request in requests]:
            if options.kill and answered + len(answers) == options.kill_after:
                os.kill(options.kill, signal.SIGKILL)
            with unplugged(engine) if alone else contextlib.nullcontext():
                started = time.perf_counter()
                outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in batch], greedy, use_tqdm=False)
                seconds = time.perf_counter() - started
            preemptions = sum(metric.value for metric in engine.get_metrics() if metric.name == "vllm:num_preemptions")
            answers += [answer(output, seconds) | {"preemptions": preemptions} for output in outputs]
        answered += len(answers)
        print(json.dumps(answers), file=answers_to, flush=True)
    engine.llm_engine.engine_core.shutdown()
    if options.store == "lmcache-in-process":
        lmcache_cpu.close()


def answer(output, seconds: float) -> dict:
    return {
        "tokens": list(output.outputs[0].token_ids), "ttft_ms": round(1e3 * output.metrics.first_token_latency, 3),
        "total_ms": round(1e3 * seconds, 3), "cached": output.num_cached_tokens,
    }


if __name__ == "__main__":
    main()
