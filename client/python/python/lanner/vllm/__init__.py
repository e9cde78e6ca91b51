"""vLLM on Lanner: an out-of-tree KV connector.

    KVTransferConfig(kv_connector="LannerConnector", kv_connector_module_path="lanner.vllm", kv_role="kv_both",
                     kv_load_failure_policy="recompute", kv_connector_extra_config={"url": "lanner://127.0.0.1:7411"})

A block of the engine is an object: its layers one after the other, each layer's share as it lies in the engine's tensor. A prompt's blocks are a
chain (docs/chains.md), so one round trip says how many are there. A block that can't be loaded is reported as invalid, so that vLLM computes it.

What decides is in ``plan.py``; ``scheduler.py`` and ``worker.py`` are the connector's two halves, ``loads.py`` and ``saves.py`` what moves bytes. The
fields of ``extra_config`` are in docs/deploy-vllm.md.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole

from .scheduler import LannerMetadata, SchedulerSide
from .worker import WorkerSide

__all__ = ["LannerConnector", "LannerMetadata"]


class LannerConnector(KVConnectorBase_V1):
    """The connector; vLLM makes one in its scheduler and one in each worker."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        is_scheduler = role == KVConnectorRole.SCHEDULER
        self._scheduler = SchedulerSide(vllm_config, kv_cache_config) if is_scheduler else None
        self._worker = None if is_scheduler else WorkerSide(vllm_config, kv_cache_config)

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

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """The first call of a step."""
        self._worker.enter(kv_connector_metadata, kv_connector_metadata.loads)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._worker.enter(connector_metadata, connector_metadata.loads)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker.loads.start()

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing yet: a block is one object, so it's stored when all its layers are there."""

    def wait_for_save(self) -> None:
        self._worker.save(self._get_connector_metadata().saves)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.loads.take_failed()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
