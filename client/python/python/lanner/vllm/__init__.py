"""vLLM on Lanner: an out-of-tree KV connector.

    KVTransferConfig(kv_connector="LannerConnector", kv_connector_module_path="lanner.vllm", kv_role="kv_both",
                     kv_load_failure_policy="recompute", kv_connector_extra_config={"url": "lanner://127.0.0.1:7411"})

A block of the engine is an object: its layers one after the other, each layer's share as it lies in the engine's tensor. A prompt's blocks are a
chain (docs/chains.md), so one round trip says how many are there. Loads run beside the forward pass, layer by layer; a block that can't be
loaded is reported as invalid, so that vLLM computes it. Saves are copied out of the cache after the forward pass and stored by a thread.

What decides is in ``plan.py``; here is what acts. Other parts of ``extra_config``: ``revision``, ``weights_digest`` and ``tag`` become part of the
names; ``save_bytes`` is how much may wait to be stored (256 MiB): what comes beyond isn't stored.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole

from .. import _lanner, errors
from ..naming import Namespace, digest_of_config
from .plan import Load, Planner, Save, Tainted, block_ranges

logger = logging.getLogger("lanner.vllm")

#: How long the end of a worker waits for what is still to be stored.
_DRAIN_SECONDS = 10.0
#: Failures are logged at most this often.
_LOG_EVERY_SECONDS = 10.0


@dataclass
class LannerMetadata(KVConnectorMetadata):
    """What the scheduler tells the workers of a step."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


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
            "revision": extra.get("revision", model.revision),
            "weights_digest": extra.get("weights_digest"),
            "tag": extra.get("tag"),
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


class _Limited:
    """A log that doesn't repeat itself."""

    def __init__(self) -> None:
        self._last = -_LOG_EVERY_SECONDS

    def warn(self, text: str, error: Exception) -> None:
        now = time.monotonic()
        if now - self._last >= _LOG_EVERY_SECONDS:
            self._last = now
            logger.warning(text, error)


class _SchedulerSide:
    def __init__(self, config: Any, kv_cache_config: Any) -> None:
        extra = config.kv_transfer_config.kv_connector_extra_config
        self.client = _lanner.Client(extra.get("url", "lanner://127.0.0.1:7411"))
        ranks = range(config.parallel_config.tensor_parallel_size)
        self.prefixes = [namespace_of(config, kv_cache_config, rank).prefix for rank in ranks]
        self.planner = Planner(kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size)
        self.log = _Limited()

    def matched(self, request: Any, local_tokens: int) -> int:
        self.planner.track(request.request_id, lambda: request.block_hashes)
        chain = self.planner.wanted(request.request_id, request.num_tokens, local_tokens)
        if not chain:
            return 0
        try:
            # A block counts if all ranks have it.
            held = min(len(self.client.match_chain(_keys(prefix, chain))) for prefix in self.prefixes)
        except errors.LannerError as error:
            self.log.warn("blocks couldn't be asked for, and count as missing: %s", error)
            return 0
        return self.planner.matched(request.request_id, held, local_tokens)

    def metadata(self, output: Any) -> LannerMetadata:
        for new in output.scheduled_new_reqs:
            self.planner.scheduled(new.req_id, new.block_ids[0], is_fresh=True)
        cached = output.scheduled_cached_reqs
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for request_id, blocks, tokens in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
            self.planner.scheduled(request_id, blocks[0] if blocks else None, request_id in cached.resumed_req_ids)
            computed[request_id] = tokens
        metadata = LannerMetadata(loads=self.planner.take_loads())
        for request_id, scheduled in output.num_scheduled_tokens.items():
            if save := self.planner.save(request_id, computed[request_id] + scheduled):
                metadata.saves.append(save)
        return metadata


class _WorkerSide:
    def __init__(self, config: Any, kv_cache_config: Any) -> None:
        from vllm.distributed import get_tensor_model_parallel_rank

        extra = config.kv_transfer_config.kv_connector_extra_config
        self.client = _lanner.Client(extra.get("url", "lanner://127.0.0.1:7411"))
        self.namespace = namespace_of(config, kv_cache_config, get_tensor_model_parallel_rank())
        self.namespace.announce(self.client)
        self.prefix = self.namespace.prefix
        self.blocks = kv_cache_config.num_blocks
        self.layers: dict[str, torch.Tensor] = {}
        self.layer_bytes = 0
        self.loading: dict[str, Future[None]] = {}
        self.failed: set[int] = set()
        self.tainted = Tainted()
        self.reader = ThreadPoolExecutor(1, "lanner-load")
        self.writer = ThreadPoolExecutor(1, "lanner-save")
        self.waiting_bytes, self.waiting_limit = 0, int(extra.get("save_bytes", 256 << 20))
        self.lock = threading.Lock()
        self.log = _Limited()
        self.not_saved = 0

    def register(self, caches: dict[str, torch.Tensor]) -> None:
        for name, cache in caches.items():
            if not cache.is_cpu or not cache.is_contiguous() or cache.shape[0] % self.blocks:
                raise ValueError(
                    f"the KV cache of {name} is on {cache.device} with shape {list(cache.shape)} for {self.blocks} blocks; "
                    "Lanner's connector needs contiguous tensors in main memory whose first dimension is the block. On GPUs use "
                    "OffloadingConnector or LMCache, and Lanner behind it"
                )
            self.layers[name] = cache.view(torch.uint8).view(self.blocks, -1)
        sizes = {cache.shape[1] for cache in self.layers.values()}
        if len(sizes) != 1:
            raise ValueError(f"layers have blocks of {sorted(sizes)} bytes; Lanner's connector needs them to be equal")
        self.layer_bytes = sizes.pop()

    # --- loads ------------------------------------------------------------------------------------------------------------------------

    def start_loads(self, loads: list[Load]) -> None:
        """Finds the blocks, and begins to read their first layer, then the next, and so on."""
        ready = [(load, snapshot) for load in loads if (snapshot := self._find(load)) is not None]
        if not ready:
            return
        for index, (name, cache) in enumerate(self.layers.items()):
            self.loading[name] = self.reader.submit(self._read_layer, index, cache, ready)

    def _find(self, load: Load) -> _lanner.Snapshot | None:
        """The load's blocks, leased; those that are gone by now or aren't what they should be are left out and reported."""
        try:
            snapshot = self.client.match_chain(_keys(self.prefix, load.hashes))
            block_bytes = self.layer_bytes * len(self.layers)
            held = load.start
            while held < len(snapshot) and snapshot.value_bytes(held) == block_bytes:
                held += 1
        except errors.LannerError as error:
            self.log.warn("blocks couldn't be loaded, and are computed: %s", error)
            snapshot, held = None, load.start
        count = held - load.start
        self._give_up(load.block_ids[count:])
        del load.block_ids[count:]
        self.tainted.loaded(load.block_ids)
        return snapshot if count else None

    def _read_layer(self, index: int, cache: torch.Tensor, ready: list[tuple[Load, _lanner.Snapshot]]) -> None:
        for load, snapshot in ready:
            try:
                snapshot.read_into(block_ranges(load.start, load.block_ids, index, self.layer_bytes), cache)
            except errors.LannerError as error:
                self._give_up(load.block_ids)
                self.log.warn("blocks couldn't be loaded, and are computed: %s", error)

    def _give_up(self, block_ids: list[int]) -> None:
        self.failed.update(block_ids)
        self.tainted.failed(block_ids)

    def wait_for_layer(self, name: str) -> None:
        if (future := self.loading.pop(name, None)) is not None:
            future.result()

    def wait_for_all(self) -> None:
        for name in list(self.loading):
            self.wait_for_layer(name)

    def take_failed(self) -> set[int]:
        self.wait_for_all()
        failed, self.failed = self.failed, set()
        return failed

    # --- saves ------------------------------------------------------------------------------------------------------------------------

    def save(self, saves: list[Save]) -> None:
        """Copies the blocks out of the cache, which may change when this returns, and hands them over to be stored."""
        for save in saves:
            if not self.tainted.may_store(save):
                continue
            block_ids = save.block_ids[save.start :]
            size = len(block_ids) * self.layer_bytes * len(self.layers)
            with self.lock:
                if self.waiting_bytes + size > self.waiting_limit:
                    self.not_saved += len(block_ids)
                    continue
                self.waiting_bytes += size
            index = torch.tensor(block_ids)
            values = torch.empty((len(block_ids), len(self.layers), self.layer_bytes), dtype=torch.uint8)
            for layer, cache in enumerate(self.layers.values()):
                values[:, layer] = cache.index_select(0, index)
            self.writer.submit(self._store, save, values.view(len(block_ids), -1).numpy(), size)

    def _store(self, save: Save, values: Any, size: int) -> None:
        try:
            self.client.put_chain(_keys(self.prefix, save.hashes), save.start, list(values))
        except errors.LannerError as error:
            self.log.warn("blocks weren't stored: %s", error)
        finally:
            with self.lock:
                self.waiting_bytes -= size

    def close(self) -> None:
        """Stores what waits, for a while."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self.waiting_bytes and time.monotonic() < deadline:
            time.sleep(0.002)
        self.writer.shutdown(wait=False, cancel_futures=True)
        self.reader.shutdown(wait=False, cancel_futures=True)
        if self.not_saved:
            logger.warning("%d blocks weren't stored, because too much was waiting (save_bytes)", self.not_saved)


def _keys(prefix: str, hashes: list[bytes]) -> list[str]:
    return [f"{prefix}/{digest.hex()}" for digest in hashes]


class LannerConnector(KVConnectorBase_V1):
    """The connector; vLLM makes one in its scheduler and one in each worker."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        is_scheduler = role == KVConnectorRole.SCHEDULER
        self._scheduler = _SchedulerSide(vllm_config, kv_cache_config) if is_scheduler else None
        self._worker = None if is_scheduler else _WorkerSide(vllm_config, kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that is dropped is a later miss."""
        return False

    # --- in the scheduler -------------------------------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.matched(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.planner.allocated(request.request_id, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return self._scheduler.metadata(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        if connector_output.invalid_block_ids:
            self._scheduler.planner.failed(connector_output.invalid_block_ids)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.planner.forget(request.request_id)
        return False, None

    # --- in a worker ------------------------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._worker.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker.start_loads(self._get_connector_metadata().loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing yet: a block is one object, so it's stored when all its layers are there."""

    def wait_for_save(self) -> None:
        self._worker.wait_for_all()
        self._worker.save(self._get_connector_metadata().saves)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_failed()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
