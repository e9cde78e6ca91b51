"""One engine process of vLLM on the CPU: generates greedily for prompts from standard input, and says what each took.

    python vllm_engine.py MODEL [--url lanner://…] [--no-prefix-cache] < prompts.json > answers.json

Prompts are a list of lists of token ids; the answers a list of {"tokens", "ttft_ms", "cached"}. Without ``--url`` there is no store.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time

import lanner


def lose_loads(share: float) -> None:
    """Lets blocks vanish between their being found by the scheduler and being read by the worker, as an eviction would."""
    from lanner import vllm

    rng, find = random.Random(1), vllm._WorkerSide._find

    def lossy(self, load):
        if rng.random() < share:
            lost = load.hashes[load.start + rng.randrange(len(load.block_ids)) :]
            stored = lanner.stored_keys(vllm._keys(self.prefix, load.hashes))[-len(lost) :]
            self.client.remove_batch(stored)
        return find(self, load)

    vllm._WorkerSide._find = lossy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--url")
    parser.add_argument("--no-prefix-cache", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--batched-tokens", type=int, default=4096)
    parser.add_argument("--kv-bytes", type=int, default=512 << 20)
    parser.add_argument("--together", action="store_true", help="all prompts at the same time")
    parser.add_argument("--lose", type=float, default=0, help="share of loads of which all but some blocks are lost on the way")
    parser.add_argument("--kill", type=int, help="a process to be killed")
    parser.add_argument("--kill-after", type=int, default=0, help="after so many requests")
    parser.add_argument("--extra", type=json.loads, default={})
    options = parser.parse_args()
    requests = json.load(sys.stdin)
    # What the engine prints is not the answer.
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    transfer = options.url and KVTransferConfig(
        kv_connector="LannerConnector", kv_connector_module_path="lanner.vllm", kv_role="kv_both",
        kv_load_failure_policy="recompute", kv_connector_extra_config={"url": options.url, **options.extra},
    )
    engine = LLM(
        options.model, dtype="float32", enforce_eager=True, block_size=32, max_num_seqs=4, max_model_len=4096,
        kv_cache_memory_bytes=options.kv_bytes, enable_prefix_caching=not options.no_prefix_cache,
        max_num_batched_tokens=options.batched_tokens, kv_transfer_config=transfer or None, disable_log_stats=False,
    )
    if options.lose:
        lose_loads(options.lose)
    greedy = SamplingParams(temperature=0, max_tokens=options.max_tokens, ignore_eos=True)
    first = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    # The first request pays for what is set up lazily.
    engine.generate([{"prompt_token_ids": list(range(3, 40))}], first, use_tqdm=False)
    answers = []
    print(json.dumps({"ready": True}), file=answers_to, flush=True)
    batches = [requests] if options.together else [[request] for request in requests]
    for batch in batches:
        if options.kill and len(answers) == options.kill_after:
            os.kill(options.kill, signal.SIGKILL)
        started = time.perf_counter()
        outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in batch], greedy, use_tqdm=False)
        seconds = time.perf_counter() - started
        for output in outputs:
            metrics = output.metrics
            ttft = metrics.first_token_latency if metrics and getattr(metrics, "first_token_latency", 0) else seconds
            answers.append(
                {
                    "tokens": list(output.outputs[0].token_ids), "ttft_ms": round(1e3 * ttft, 2), "total_ms": round(1e3 * seconds, 2),
                    "cached": output.num_cached_tokens,
                }
            )
    json.dump(answers, answers_to)
    answers_to.write("\n")
    answers_to.flush()
    engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
