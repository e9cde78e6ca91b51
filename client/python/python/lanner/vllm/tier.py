"""A secondary tier of vLLM's OffloadingConnector: what leaves the engine's offloading memory, or comes back to it, goes to and from Lanner. So it
also serves engines on GPUs, whose blocks the connector copies to main memory itself.

    "kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": N,
        "secondary_tiers": [{"type": "LannerTier", "module_path": "lanner.vllm.tier", "url": "lanner://127.0.0.1:7411"}]}

A chunk is an object. vLLM calls it in its scheduler process and never concurrently; the bytes move in two threads. Its keys cover what vLLM tells a
tier of its configuration, which leaves out the model's weights: ``revision``, ``weights_digest`` and ``tag`` become part of them.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from vllm import __version__ as vllm_version
from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from .. import errors
from ..naming import Namespace, distinct
from ..patient import PatientClient
from ..settings import DEFAULT_URL
from .log import Limited, logger

#: Facts of a tier's configuration that change no byte.
_NO_FACTS = ("rank", "data_parallel_index", "data_parallel_size", "data_parallel_rank_local")


def namespace_of(config: Any, chunk_bytes: int, others: dict[str, Any]) -> Namespace:
    """The name space of an engine's chunks. vLLM gives the whole host's share of a chunk, of all ranks, to one tier."""
    plain = lambda part: {name: value for name, value in dataclasses.asdict(part).items() if name not in _NO_FACTS}
    return Namespace(
        "vllm-tier",
        {
            "vllm": vllm_version,
            "model": plain(config.model),
            "groups": [plain(group) | {"layer_names": list(group.layer_names)} for group in config.groups],
            "cache": plain(config.cache),
            "parallel": plain(config.parallel),
            "chunk_bytes": chunk_bytes,
            "layout": [config.kv_cache_layout, config.replicated_layout, config.canonical_layout],
            "hash_seed": os.environ.get("PYTHONHASHSEED"),
            **others,
        },
    )


class LannerTier(SecondaryTierManager):
    medium = Medium.STORAGE

    def __init__(
        self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None, *,
        url: str = DEFAULT_URL, **extra: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.client = PatientClient(url)
        # A row is a chunk.
        self.rows = np.asarray(primary_kv_view).view(np.uint8)
        self.namespace = namespace_of(offloading_spec.config, self.rows.shape[1], distinct(extra))
        self.namespace.announce(self.client, logger)
        self.log = Limited()
        self._reader, self._writer = ThreadPoolExecutor(1, "lanner-tier-load"), ThreadPoolExecutor(1, "lanner-tier-store")
        self._running: dict[int, Future[None]] = {}
        self._finished: list[JobResult] = []
        self._lock = threading.Lock()

    def _names(self, keys: Iterable[bytes]) -> list[str]:
        return [self.namespace.key(bytes(key).hex()) for key in keys]

    def lookup(self, key: Any, req_context: Any) -> Any:
        """One round trip, which vLLM waits for: about a microsecond over shared memory once the server is awake, 25 over TCP."""
        try:
            (name,) = self._names([key])
            return LookupResult.HIT if self.client.exists(name) else LookupResult.MISS
        except errors.LannerError as error:
            self.log.warn("chunks couldn't be asked for, and count as missing: %s", error)
            return LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(self._writer, self._store, job_metadata)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(self._reader, self._load, job_metadata)

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[[TransferJob], JobResult], job: TransferJob) -> None:
        def run() -> None:
            started = time.monotonic()
            try:
                result = work(job)
            except Exception as error:  # Whatever it was, vLLM has to hear of the job's end.
                if not isinstance(error, errors.LannerError):
                    logger.exception("a job of %d chunks failed", len(job.keys))
                self.log.warn("chunks weren't moved: %s", error)
                result = JobResult(job.job_id, False, successful_keys=[])
            result.transfer_time = time.monotonic() - started
            with self._lock:
                self._finished.append(result)
                self._running.pop(job.job_id, None)

        with self._lock:
            self._running[job.job_id] = pool.submit(run)

    def _store(self, job: TransferJob) -> JobResult:
        rows = [self.rows[chunk] for chunk in job.chunk_ids]
        outcomes = self.client.put_batch(self._names(job.keys), rows, return_exceptions=True)
        failed = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
        if failed is not None:
            self.log.warn("chunks weren't stored: %s", failed)
        return JobResult(job.job_id, failed is None, transfer_bytes=sum(row.nbytes for row, new in zip(rows, outcomes) if new is True))

    def _load(self, job: TransferJob) -> JobResult:
        rows = [self.rows[chunk] for chunk in job.chunk_ids]
        read = self.client.get_into_batch(self._names(job.keys), rows, return_exceptions=True)
        good = [key for key, row, got in zip(job.keys, rows, read) if got == row.nbytes]
        return JobResult(job.job_id, len(good) == len(rows), successful_keys=good, transfer_bytes=len(good) * self.rows.shape[1])

    def get_finished_jobs(self) -> Iterable[JobResult]:
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def has_pending_work(self) -> bool:
        with self._lock:
            return bool(self._running or self._finished)

    def on_new_request(self, req_context: Any) -> Any:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        with self._lock:
            running = list(self._running.values())
        wait(running)

    def shutdown(self) -> None:
        """Jobs under way end; the memory is vLLM's again."""
        self._reader.shutdown()
        self._writer.shutdown()
        self.rows = np.empty((0, 0), np.uint8)
