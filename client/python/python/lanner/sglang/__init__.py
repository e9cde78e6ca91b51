"""SGLang's HiCache on Lanner: a storage backend for its ``dynamic`` factory.

    --enable-hierarchical-cache --hicache-mem-layout page_first_direct --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "lanner", "module_path": "lanner.sglang", "class_name": "HiCacheLanner",
                                             "interface_v1": 1, "url": "lanner://127.0.0.1:7411"}'

SGLang calls it from three threads: one asks what is there, one reads, one writes. A page of a pool is one object, or two (K and V) where the
pool has it in two pieces: those are read to and written from the pool itself, the others are put together first. An answer never says more
than is there: a page counts only if all its objects were read, with the lengths they should have. What can't be read or written is a miss.

With ``"hicache_storage_pass_prefix_keys": true`` SGLang says which pages stand before those of a call, so the KV pool's objects are stored as a chain
(docs/chains.md), and one question finds out how many are there. Either way the answer comes with a lease, so the read that follows asks nothing.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from .. import _lanner, errors
from ..limited import Limited
from ..naming import Namespace, distinct
from ..patient import PatientClient
from ..settings import DEFAULT_URL, MAX_CHAIN_BLOCKS
from .pool import Leased, Pool

logger = logging.getLogger("lanner.sglang")


class HiCacheLanner(HiCacheStorage):
    """The backend. ``extra_config``: ``url``, and whatever else distinguishes the model's bytes (``revision``, ``weights_digest``, ``tag``)."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None) -> None:
        if storage_config.should_split_heads:
            raise ValueError("Lanner's backend doesn't split heads (tp_lcm_size): give each tensor-parallel size its own pages")
        self.config = storage_config
        extra = storage_config.extra_config or {}
        self.client = PatientClient(extra.get("url", DEFAULT_URL))
        self._distinct = distinct(extra)
        self._pools: dict[str, Pool] = {}
        self._limited = Limited(logger)
        self._leased = Leased()
        # Without it SGLang hands over pages as flat tensors of its own.
        self._is_zero_copy = bool(extra.get("interface_v1", 0))
        self._flat = self._namespace("flat", {})
        self._times: dict[str, list[float]] = {"prefetch_pgs": [], "backup_pgs": [], "prefetch_bandwidth": [], "backup_bandwidth": []}

    # --- pools ------------------------------------------------------------------------------------------------------------------------

    def _namespace(self, name: str, facts: dict[str, Any]) -> Namespace:
        config = self.config
        # All ranks have the same bytes of an MLA model, and one of them writes; SGLang sees to that.
        rank = [None, None] if config.is_mla_model else [config.tp_rank, config.tp_size]
        return Namespace(
            "sglang",
            {
                "model": config.model_name,
                "pool": name,
                "tp": rank,
                "pp": [config.pp_rank, config.pp_size],
                "cp": [config.attn_cp_rank, config.attn_cp_size],
                "dcp": [config.dcp_rank, config.dcp_size],
                "mla": config.is_mla_model,
                **self._distinct,
                **facts,
            },
        )

    def _register(self, name: str, pool: Any) -> None:
        facts = {
            "class": type(pool).__name__,
            "dtype": str(pool.dtype),
            "layout": pool.layout,
            "page_size": pool.page_size,
            **{fact: getattr(pool, fact, None) for fact in ("layer_num", "head_num", "head_dim", "start_layer", "end_layer")},
        }
        facts["page_bytes"] = Pool(name, pool, self._flat).page_bytes
        if name == str(PoolName.KV) and not self._is_zero_copy:
            self._flat = self._namespace("flat", facts)
            self._flat.announce(self.client, logger)
            return
        self._pools[name] = Pool(name, pool, self._namespace(name, facts))
        self._pools[name].namespace.announce(self.client, logger)

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        if getattr(mem_pool_host, "kv_buffer", None) is not None:
            self._register(str(PoolName.KV), mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != str(PoolName.KV):
            self._register(str(host_pool_name), host_pool)

    # --- pages to and from the pools ----------------------------------------------------------------------------------------------------

    def _are_there(self, pool: Pool, pages: list[str]) -> list[bool]:
        return pool.per_page(self._exist(pool.keys(pages)), bool) if pages else []

    def _exist(self, keys: list[Any]) -> list[bool]:
        """Which objects are there; those of a server that can't be reached aren't."""
        there = self.client.exists_batch(keys, return_exceptions=True)
        self._log_first("asked for", there)
        return [answer is True for answer in there]

    def _lease(self, pool: Pool, pages: list[str], before: list[str] | None) -> int:
        """How many leading pages are there. What is there is leased, and remembered for the read that follows."""
        if not pages:
            return 0
        if before is None:
            snapshot, first = self._prepare(pool.keys(pages)), 0
        else:
            # Of the pages before these, only the names count: they may have left the store, and these not.
            keys = pool.keys([*before, *pages], is_chain=True)
            first = len(before) * len(pool.suffixes)
            snapshot = self.client.match_chain(keys[:MAX_CHAIN_BLOCKS])
            if len(snapshot) < first or len(keys) > MAX_CHAIN_BLOCKS:
                snapshot, first = self._prepare(_lanner.stored_keys(keys)[first:]), 0
        held = (len(snapshot) - first) // len(pool.suffixes) if snapshot is not None else 0
        if held:
            self._leased.put(pool.name, pages[:held], snapshot, first)
        return held

    def _prepare(self, keys: list[Any]) -> _lanner.Snapshot | None:
        """A snapshot of the leading ones of these objects that are there."""
        while keys:
            try:
                return self.client.prepare_snapshot(keys)
            except errors.NotFound as error:
                keys = keys[: error.index]
            except errors.ConnectionFailed:
                # One server that is away makes the whole call fail: without its objects, and what stands behind them, it may not.
                leading = _leading(self._exist(keys))
                if leading == len(keys):
                    raise
                keys = keys[:leading]
        return None

    def _read(self, pool: Pool, pages: list[str], host_indices: torch.Tensor, before: list[str] | None = None) -> list[bool]:
        try:
            addresses, sizes = pool.memory(host_indices)
            started = time.perf_counter()
            if not self._read_leased(pool, pages, addresses, sizes):
                read = self.client.get_into_parts(pool.stored_keys(pages, before), addresses, sizes, return_exceptions=True)
                self._log_first("read", read)
                whole = [got == sum(parts) for got, parts in zip(read, sizes, strict=True)]
            else:
                whole = [True] * len(sizes)
            self._note("prefetch", len(pages), pool.page_bytes, started)
        except errors.LannerError as error:
            self._log("read", error)
            return [False] * len(pages)
        return pool.per_page(whole, bool)

    def _read_leased(self, pool: Pool, pages: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> bool:
        """Reads all of the pages through the lease that was taken when they were asked for, or says that it can't be done so."""
        if pool.buffer is None or (leased := self._leased.take(pool.name, pages)) is None:
            return False
        snapshot, first = leased
        try:
            if any(snapshot.value_bytes(first + index) != sum(parts) for index, parts in enumerate(sizes)):
                return False
            snapshot.read_into(pool.ranges(first, addresses, sizes), pool.buffer)
        except (errors.Stale, errors.ConnectionFailed):
            return False
        return True

    def _write(self, pool: Pool, pages: list[str], host_indices: torch.Tensor, before: list[str] | None = None) -> list[bool]:
        try:
            keys, count = pool.stored_keys(pages, before), len(pool.suffixes)
            there = self.client.exists_batch(keys, return_exceptions=True) if pages else []
            self._log_first("written", there)
            held = pool.per_page(there, lambda answer: answer is True)
            if all(held):
                return held
            addresses, sizes = pool.memory(host_indices)
            started = time.perf_counter()
            if before is None or pool.buffer is None or len(before) * count + len(keys) > MAX_CHAIN_BLOCKS:
                # A server that couldn't be asked isn't given anything, either.
                wanted = [index for index in range(len(keys)) if not held[index // count] and isinstance(there[index], bool)]
                pick = lambda items: [items[index] for index in wanted]
                put = self.client.put_from_parts(pick(keys), pick(addresses), pick(sizes), return_exceptions=True)
            else:
                wanted = range(held.index(False) * count, len(keys))
                chain = pool.keys([*before, *pages], is_chain=True)
                values = pool.values(addresses[wanted.start :], sizes[wanted.start :])
                put = self.client.put_chain(chain, len(chain) - len(values), values, return_exceptions=True)
            self._note("backup", len(pages) - sum(held), pool.page_bytes, started)
        except errors.LannerError as error:
            self._log("written", error)
            return [False] * len(pages)
        self._log_first("written", put)
        stored = [held[index // count] for index in range(len(keys))]
        for index, outcome in zip(wanted, put):
            # `False` says that somebody else has stored the same page since.
            stored[index] = isinstance(outcome, bool)
        return pool.per_page(stored, bool)

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """How many leading pages are there."""
        pool = self._pools.get(str(PoolName.KV))
        try:
            if pool is None:
                return _leading(self._exist(self._flat_keys(keys)))
            return self._lease(pool, keys, _prefix(extra_info))
        except errors.LannerError as error:
            self._log("asked for", error)
            return 0

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._read(self._pools[str(PoolName.KV)], keys, host_indices, _prefix(extra_info))

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._write(self._pools[str(PoolName.KV)], keys, host_indices, _prefix(extra_info))

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        return {each.name: self._read(self._pools[str(each.name)], each.keys or [], each.host_indices) for each in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        return {each.name: self._write(self._pools[str(each.name)], each.keys or [], each.host_indices) for each in transfers}

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """The prefixes that all pools can restore."""
        is_anchor_only = getattr(self.mem_pool_host, "kv_buffer", None) is None
        kv_pages = len(keys) if is_anchor_only else self.batch_exists(keys, extra_info)
        hits: dict[str, int] = {PoolName.KV: kv_pages} if kv_pages else {}
        restorable = set(range(1, kv_pages + 1))
        try:
            for each in pool_transfers or []:
                there = self._are_there(self._pools[str(each.name)], keys[:kv_pages])
                ends = restorable_prefixes(there, each.hit_policy, len(each.keys or []))
                if ends:
                    hits[each.name] = max(ends)
                restorable &= ends
        except errors.LannerError as error:
            self._log("asked for", error)
            return PoolTransferResult.empty()
        return PoolTransferResult(max(restorable, default=0), hits, sorted(restorable, reverse=True))

    # --- single pages as flat tensors: the interface without `interface_v1` ---------------------------------------------------------------

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[torch.Tensor | None]:
        try:
            read = self.client.get_into_batch(self._flat_keys(keys), target_locations, return_exceptions=True)
        except errors.LannerError as error:
            self._log("read", error)
            return [None] * len(keys)
        self._log_first("read", read)
        return [page if got == page.nbytes else None for got, page in zip(read, target_locations)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        try:
            values = [value.contiguous() for value in values]
            put = self.client.put_batch(self._flat_keys(keys), values, return_exceptions=True)
        except errors.LannerError as error:
            self._log("written", error)
            return False
        self._log_first("written", put)
        return all(isinstance(outcome, bool) for outcome in put)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def _flat_keys(self, pages: list[str]) -> list[str]:
        return [self._flat.key(page) for page in pages]

    # --- the rest ---------------------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Removes all pages of this model, as this rank sees it."""
        self._leased.clear()
        for namespace in [self._flat, *(pool.namespace for pool in self._pools.values())]:
            namespace.clear(self.client)
        # Of what was asked for meanwhile.
        self._leased.clear()

    def close(self) -> None:
        self._pools.clear()
        self._leased.clear()

    def _note(self, what: str, pages: int, page_bytes: int, started: float) -> None:
        if self.config.enable_storage_metrics and pages:
            seconds = time.perf_counter() - started
            self._times[f"{what}_pgs"].append(pages)
            self._times[f"{what}_bandwidth"].append(pages * page_bytes / (1 << 30) / seconds)

    def get_stats(self) -> Any:
        """Pages and GiB/s since it was asked last."""
        from sglang.srt.observability.metrics_collector import StorageMetrics

        stats = StorageMetrics()
        for name, times in self._times.items():
            getattr(stats, name).extend(times)
            times.clear()
        return stats

    def _log_first(self, what: str, outcomes: list[Any]) -> None:
        failed = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
        if failed is not None:
            self._log(what, failed)

    def _log(self, what: str, error: Exception) -> None:
        self._limited.warn("pages couldn't be %s, and count as missing: %s", what, error)


def _prefix(extra_info: HiCacheStorageExtraInfo | None) -> list[str] | None:
    """The pages before those of a call, if SGLang says which they are."""
    return None if extra_info is None else extra_info.prefix_keys


def _leading(flags: list[bool]) -> int:
    return flags.index(False) if False in flags else len(flags)


def restorable_prefixes(there: list[bool], policy: PoolHitPolicy, window: int) -> set[int]:
    """The lengths of prefixes at whose ends a pool has what its policy asks for."""
    if policy == PoolHitPolicy.ALL_PAGES:
        return set(range(1, _leading(there) + 1))
    if policy == PoolHitPolicy.TRAILING_PAGES:
        window = max(1, window)
        return {end for end in range(1, len(there) + 1) if all(there[max(0, end - window) : end])}
    raise ValueError(f"Lanner's backend has no hit policy {policy}")
