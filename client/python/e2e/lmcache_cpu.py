"""LMCache's in-process mode on a CPU, to run Lanner's remote connector in it: upstream's code, but for the copies between the engine's cache and LMCache's
memory, which upstream has for GPUs only (`CreateGPUConnector` ends with "No supported cpu connector found"). For tests."""

from __future__ import annotations

import time

import torch
from lmcache.integration.vllm.utils import ENGINE_NAME
from lmcache.v1 import gpu_connector
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface


class CpuCopies(GPUConnectorInterface):
    """Copies when it's asked to. A layer of vLLM's cache is (blocks, heads, tokens of a block, K and V of a head), a chunk of LMCache's is
    (K or V, layers, tokens, heads and what is in a head)."""

    def __init__(self, metadata) -> None:
        self.layers, self.parts, _, heads, head = metadata.kv_shape
        assert self.parts == 2, "K and V, no MLA"
        self.heads, self.head = heads, head
        self.kvcaches = None

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size([self.parts, self.layers, num_tokens, self.heads * self.head])

    def initialize_kvcaches_ptr(self, **kwargs) -> None:
        self.kvcaches = kwargs.get("kvcaches", self.kvcaches)

    def _places(self, start: int, end: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The block of each token, and its number in it."""
        shape = self.kvcaches[0].shape
        assert shape[1] == self.heads and shape[3] == 2 * self.head, f"another layout: {tuple(shape)}"
        return slots[start:end] // shape[2], slots[start:end] % shape[2]

    def from_gpu(self, memory_obj, start: int, end: int, **kwargs) -> None:
        self.initialize_kvcaches_ptr(**kwargs)
        blocks, offsets = self._places(start, end, kwargs["slot_mapping"])
        for layer, cache in enumerate(self.kvcaches):
            tokens = cache[blocks, :, offsets]
            for part in range(2):
                memory_obj.tensor[part, layer] = tokens[..., part * self.head : (part + 1) * self.head].flatten(1)

    def to_gpu(self, memory_obj, start: int, end: int, **kwargs) -> None:
        self.initialize_kvcaches_ptr(**kwargs)
        # What vLLM has itself may be in use.
        known = min(end - start, max(0, kwargs.get("vllm_cached_tokens", 0) - start))
        blocks, offsets = self._places(start + known, end, kwargs["slot_mapping"])
        for layer, cache in enumerate(self.kvcaches):
            halves = [memory_obj.tensor[part, layer, known:].unflatten(1, (self.heads, self.head)) for part in range(2)]
            cache[blocks, :, offsets] = torch.cat(halves, -1)

    def batched_from_gpu(self, memory_objs, starts, ends, **kwargs) -> None:
        for memory, start, end in zip(memory_objs, starts, ends):
            self.from_gpu(memory, start, end, **kwargs)

    def batched_to_gpu(self, memory_objs=None, starts=None, ends=None, **kwargs) -> None:
        for memory, start, end in zip(memory_objs, starts, ends):
            self.to_gpu(memory, start, end, **kwargs)


def install() -> None:
    """Makes LMCache take these copies. Before the engine is made."""
    gpu_connector.CreateGPUConnector = lambda config, metadata, engine, layout_hints=None: CpuCopies(metadata)


def close() -> None:
    """Lets LMCache end when what it has to store is stored. vLLM doesn't tell it (its connector has no `shutdown`), and a thread of its storage manager
    would keep the process."""
    backends = LMCacheEngineBuilder.get(ENGINE_NAME).storage_manager.storage_backends.values()
    deadline = time.monotonic() + 20
    while any(getattr(backend, "put_tasks", None) for backend in backends) and time.monotonic() < deadline:
        time.sleep(0.01)
    LMCacheEngineBuilder.destroy(ENGINE_NAME)
