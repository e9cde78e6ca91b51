"""The connector in a worker of vLLM's: reads blocks into the engine's cache and stores those that it computed."""

from __future__ import annotations

import os
from typing import Any

import torch

from ..patient import PatientClient
from ..settings import DEFAULT_URL
from .loads import Loads
from .log import logger
from .names import namespace_of
from .plan import Load, Save, Tainted
from .saves import Saves


class WorkerSide:
    def __init__(self, config: Any, kv_cache_config: Any) -> None:
        from vllm.distributed import get_tensor_model_parallel_rank

        self.extra = config.kv_transfer_config.kv_connector_extra_config
        self.client = PatientClient(self.extra.get("url", DEFAULT_URL))
        self.namespace = namespace_of(config, kv_cache_config, get_tensor_model_parallel_rank())
        self.namespace.announce(self.client, logger)
        self.blocks = kv_cache_config.num_blocks
        self.tainted = Tainted()
        self.index_of: dict[str, int] = {}
        self.loads: Loads | None = None
        self.saves: Saves | None = None
        self.step: Any = None

    def register(self, caches: dict[str, torch.Tensor]) -> None:
        """Takes the engine's cache of each layer. ``ValueError`` if it isn't such as can be read into."""
        for name, cache in caches.items():
            if not cache.is_cpu or not cache.is_contiguous() or cache.shape[0] % self.blocks:
                raise ValueError(
                    f"the KV cache of {name} is on {cache.device} with shape {list(cache.shape)} for {self.blocks} blocks; "
                    "Lanner's connector needs contiguous tensors in main memory whose first dimension is the block. On GPUs use "
                    "OffloadingConnector or LMCache, and Lanner behind it"
                )
        layers = [cache.view(torch.uint8).view(self.blocks, -1).numpy() for cache in caches.values()]
        sizes = {layer.shape[1] for layer in layers}
        if len(sizes) != 1:
            raise ValueError(f"layers have blocks of {sorted(sizes)} bytes; Lanner's connector needs them to be equal")
        (layer_bytes,) = sizes
        self.index_of = {name: index for index, name in enumerate(caches)}
        spare = len(os.sched_getaffinity(0)) - torch.get_num_threads()
        overlap = bool(self.extra.get("overlap", spare > 0))
        logger.info("%d layers of %d blocks of %d bytes; loads overlap with computing: %s", len(layers), self.blocks, layer_bytes, overlap)
        prefix = self.namespace.prefix
        self.loads = Loads(
            self.client, prefix, layers, layer_bytes, self.tainted, overlap=overlap, threads=int(self.extra.get("load_threads", 1))
        )
        self.saves = Saves(self.client, prefix, layers, layer_bytes, limit_bytes=int(self.extra.get("save_bytes", 256 << 20)))

    def enter(self, step: Any, loads: list[Load]) -> None:
        """A step of the engine begins: before it writes to a block, blocks that are being copied are waited for."""
        if step is not self.step:
            self.step = step
            self.saves.fence()
            self.loads.begin(loads)

    def wait_for_layer(self, name: str) -> None:
        self.loads.wait(self.index_of[name])

    def save(self, saves: list[Save]) -> None:
        """What the step computed is there."""
        self.loads.finish()
        for save in saves:
            if self.tainted.may_store(save):
                self.saves.submit(save)

    def close(self) -> None:
        """Stores what waits, for a while."""
        if self.loads is not None:
            self.loads.close()
            self.saves.close()
