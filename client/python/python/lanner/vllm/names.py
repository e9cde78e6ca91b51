"""The name spaces of vLLM's blocks: all that changes their bytes."""

from __future__ import annotations

import os
from typing import Any

from vllm import __version__ as vllm_version

from ..naming import Namespace, digest_of_config, distinct


def namespace_of(config: Any, kv_cache_config: Any, rank: int) -> Namespace:
    """The name space of a rank's blocks. ``ValueError`` for set-ups whose blocks other processes couldn't name or read."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    extra = config.kv_transfer_config.kv_connector_extra_config
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ValueError(f"the model has {len(groups)} kinds of KV cache, Lanner's connector handles one")
    if parallel.pipeline_parallel_size > 1:
        raise ValueError("Lanner's connector doesn't handle pipeline parallelism")
    seed = os.environ.get("PYTHONHASHSEED")
    if not cache.prefix_caching_hash_algo.startswith("sha256") and seed is None:
        raise ValueError(
            f"block hashes of {cache.prefix_caching_hash_algo} differ from process to process: "
            "set PYTHONHASHSEED to the same number everywhere, or --prefix-caching-hash-algo sha256"
        )
    if kv_cache_config.hash_block_size not in (None, groups[0].kv_cache_spec.block_size):
        raise ValueError(
            f"blocks are hashed by {kv_cache_config.hash_block_size} tokens and kept by {groups[0].kv_cache_spec.block_size}; "
            "Lanner's connector needs the two to be equal"
        )
    is_random = config.load_config.load_format == "dummy"
    return Namespace(
        "vllm",
        {
            "vllm": vllm_version,
            "model": model.model,
            **distinct({"revision": model.revision, **extra}),
            "random_weights": [model.seed] if is_random else None,
            "config": digest_of_config(model.hf_config),
            "dtype": str(model.dtype),
            "quantization": model.quantization and str(model.quantization),
            "cache_dtype": str(cache.cache_dtype),
            "hash": [str(cache.prefix_caching_hash_algo), seed],
            "layers": list(groups[0].layer_names),
            "spec": repr(groups[0].kv_cache_spec),
            "layout": kv_cache_config.kv_cache_layout and str(kv_cache_config.kv_cache_layout),
            "device": config.device_config.device_type,
            "tp": [rank, parallel.tensor_parallel_size],
            "dcp": parallel.decode_context_parallel_size,
        },
    )
