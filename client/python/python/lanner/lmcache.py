"""LMCache on Lanner: an L2 adapter for its server mode.

    lmcache server … --l2-adapter '{"type": "plugin", "module_path": "lanner.lmcache", "class_name": "LannerL2Adapter",
                                    "adapter_params": {"url": "lanner://127.0.0.1:7411", "namespace": "…"}}'

LMCache's keys name the model, the rank and the tokens, but neither dtype nor layout nor chunk size: ``namespace`` is whatever else tells one set-up
from another (a revision, ``"float16-chunk256"``). An object whose length isn't that of its place counts as missing.

What LMCache asks to be locked is only marked as used: it stays in the store unless the store is short of room, and a load that comes too late is a
miss, which LMCache expects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from . import errors
from .naming import Namespace
from .patient import PatientClient
from .settings import DEFAULT_URL

logger = init_logger("lanner.lmcache")


class LannerL2Adapter(L2AdapterInterface):
    """Stores in one thread and looks up and loads in another, so that neither waits for the other."""

    def __init__(self, adapter_params: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()
        self.client = PatientClient(adapter_params.get("url", DEFAULT_URL))
        self.namespace = Namespace("lmcache", {"namespace": adapter_params.get("namespace")})
        self.namespace.announce(self.client, logger)
        self._stored, self._found, self._loaded = (create_event_notifier() for _ in range(3))
        self._writer = ThreadPoolExecutor(1, "lanner-l2-store")
        self._reader = ThreadPoolExecutor(1, "lanner-l2-load")
        self._lock = threading.Lock()
        self._next_task = 0
        self._stores: dict[int, L2StoreResult] = {}
        self._bitmaps: dict[int, Bitmap] = {}

    def get_store_event_fd(self) -> int:
        return self._stored.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._found.fileno()

    def get_load_event_fd(self) -> int:
        return self._loaded.fileno()

    def _names(self, keys: list[Any]) -> list[str]:
        return [self.name_of(key) for key in keys]

    def name_of(self, key: Any) -> str:
        """The name of an object. Each part that may hold anything is written with its length, so that no two keys have one name."""
        texts = "".join(f"{len(text)}:{text}" for text in (key.model_name, key.cache_salt))
        return self.namespace.key(key.chunk_hash.hex(), f"{key.kv_rank:x}:{key.object_group_id}:{texts}")

    def _start(self, pool: ThreadPoolExecutor, work: Callable[[int], None]) -> int:
        with self._lock:
            task, self._next_task = self._next_task, self._next_task + 1
        pool.submit(work, task)
        return task

    def _finish(self, results: dict[int, Any], task: int, result: Any, notifier: Any) -> None:
        with self._lock:
            results[task] = result
        notifier.notify()

    # --- store ------------------------------------------------------------------------------------------------------------------------

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._start(self._writer, lambda task: self._store(task, keys, objects))

    def _store(self, task: int, keys: list[Any], objects: list[Any]) -> None:
        result = L2StoreResult(False, 0)
        try:
            values = [each.byte_array for each in objects]
            put = self.client.put_batch(self._names(keys), values, return_exceptions=True)
            sizes = [memoryview(value).nbytes for value in values]
            new = [index for index, was_new in enumerate(put) if was_new is True]
            if new:
                self._notify_keys_stored([keys[index] for index in new], [sizes[index] for index in new])
            failed = [outcome for outcome in put if isinstance(outcome, Exception)]
            if failed:
                logger.warning("%d of %d objects weren't stored: %s", len(failed), len(keys), failed[0])
            result = L2StoreResult(not failed, sum(sizes[index] for index in new))
        except (errors.LannerError, ValueError) as error:
            logger.warning("%d objects weren't stored: %s", len(keys), error)
        finally:
            self._finish(self._stores, task, result, self._stored)

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._lock:
            done, self._stores = self._stores, {}
        return done

    # --- look up and load -------------------------------------------------------------------------------------------------------------

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        return self._start(self._reader, lambda task: self._look_up(task, keys))

    def _look_up(self, task: int, keys: list[Any]) -> None:
        bitmap = Bitmap(len(keys))
        try:
            sizes = self.client.size_batch(self._names(keys), return_exceptions=True)
            for index, size in enumerate(sizes):
                if isinstance(size, int):
                    bitmap.set(index)
            failed = [size for size in sizes if isinstance(size, Exception)]
            if failed:
                logger.warning("%d of %d objects couldn't be looked up: %s", len(failed), len(keys), failed[0])
        except (errors.LannerError, ValueError) as error:
            logger.warning("%d objects couldn't be looked up: %s", len(keys), error)
            bitmap = Bitmap(len(keys))
        finally:
            self._finish(self._bitmaps, task, bitmap, self._found)

    def _take(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._bitmaps.pop(task_id, None)

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        return self._take(task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Nothing was locked."""

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._start(self._reader, lambda task: self._load(task, keys, objects))

    def _load(self, task: int, keys: list[Any], objects: list[Any]) -> None:
        bitmap = Bitmap(len(keys))
        try:
            targets = [each.byte_array for each in objects]
            read = self.client.get_into_batch(self._names(keys), targets, return_exceptions=True)
            loaded = [index for index, got in enumerate(read) if got == memoryview(targets[index]).nbytes]
            for index in loaded:
                bitmap.set(index)
            if loaded:
                self._notify_keys_accessed([keys[index] for index in loaded])
        except (errors.LannerError, ValueError) as error:
            logger.warning("%d objects couldn't be loaded: %s", len(keys), error)
            bitmap = Bitmap(len(keys))
        finally:
            self._finish(self._bitmaps, task, bitmap, self._loaded)

    def query_load_result(self, task_id: int) -> Bitmap | None:
        return self._take(task_id)

    # --- the rest ---------------------------------------------------------------------------------------------------------------------

    def delete(self, keys: list[Any]) -> None:
        try:
            names = self._names(keys)
            sizes = self.client.size_batch(names, return_exceptions=True)
            were_there = self.client.remove_batch(names, return_exceptions=True)
        except errors.LannerError as error:
            logger.warning("%d objects couldn't be deleted: %s", len(keys), error)
            return
        failed = [answer for answer in were_there if isinstance(answer, Exception)]
        if failed:
            logger.warning("%d of %d objects couldn't be deleted: %s", len(failed), len(keys), failed[0])
        removed = [index for index, size in enumerate(sizes) if were_there[index] is True and isinstance(size, int)]
        if removed:
            self._notify_keys_deleted([keys[index] for index in removed], [sizes[index] for index in removed])

    def report_status(self) -> dict[str, Any]:
        try:
            self.client.stats()
            is_healthy = True
        except errors.LannerError:
            is_healthy = False
        return {"is_healthy": is_healthy, "type": type(self).__name__, "url": self.client.url, "namespace": self.namespace.prefix}

    def close(self) -> None:
        self._writer.shutdown()
        self._reader.shutdown()
        for notifier in (self._stored, self._found, self._loaded):
            notifier.close()
