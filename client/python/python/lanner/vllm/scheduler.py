"""The connector in vLLM's scheduler: asks the store what it has of a prompt, and tells the workers what to load and to save."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from .. import errors
from ..patient import PatientClient
from ..settings import DEFAULT_URL
from .log import Limited
from .names import namespace_of
from .plan import Load, Planner, Save, keys


@dataclass
class LannerMetadata(KVConnectorMetadata):
    """What the scheduler tells the workers of a step."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


class SchedulerSide:
    def __init__(self, config: Any, kv_cache_config: Any) -> None:
        extra = config.kv_transfer_config.kv_connector_extra_config
        self.client = PatientClient(extra.get("url", DEFAULT_URL))
        ranks = range(config.parallel_config.tensor_parallel_size)
        self.prefixes = [namespace_of(config, kv_cache_config, rank).prefix for rank in ranks]
        self.planner = Planner(kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size)
        self.log = Limited()
        self.boots: list[bytes] = []

    def matched(self, request: Any, local_tokens: int) -> int:
        """Tokens of the request that the store has beyond those that vLLM has itself."""
        self.planner.track(request.request_id, lambda: request.block_hashes)
        chain = self.planner.wanted(request.request_id, request.num_tokens, local_tokens)
        if not chain:
            return 0
        try:
            # A block counts if all ranks have it.
            held = min(len(self.client.match_chain(keys(prefix, chain))) for prefix in self.prefixes)
        except errors.LannerError as error:
            self.log.warn("blocks couldn't be asked for, and count as missing: %s", error)
            return 0
        boots = [server["boot_id"] for server in self.client.servers()]
        if boots != self.boots:
            # A server that was restarted has none of what it was given.
            self.boots = boots
            self.planner.known.clear()
        return self.planner.matched(request.request_id, len(chain), held, local_tokens)

    def metadata(self, output: Any) -> LannerMetadata:
        """What a step's workers have to do."""
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
