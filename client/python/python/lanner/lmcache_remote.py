"""LMCache on Lanner: a remote connector for its in-process mode, in which each engine's worker has a cache of its own.

    remote_storage_plugins: ["lanner"]
    local_cpu: true
    pre_caching_hash_algorithm: sha256_cbor                           # or PYTHONHASHSEED for the default, `builtin`, in every process
    extra_config:
      remote_storage_plugin.lanner.module_path: lanner.lmcache_remote
      remote_storage_plugin.lanner.class_name: LannerConnectorAdapter
      remote_storage_plugin.lanner.url: lanner://127.0.0.1:7411
      remote_storage_plugin.lanner.namespace: …                       # what else tells one set-up from another, such as a revision

LMCache's keys name the model, the ranks, the dtype and the tokens; shapes, chunk size and the way that tokens are hashed are added here. Calls that wait
run in threads of the connector's own, so LMCache's event loop goes on.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lmcache.logging import init_logger
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from . import errors
from .naming import Namespace
from .patient import PatientClient
from .settings import DEFAULT_URL

logger = init_logger("lanner.lmcache")

_FIELDS = "remote_storage_plugin.lanner."


class LannerConnectorAdapter(ConnectorAdapter):
    """What LMCache makes by name. It makes the connector, which needs the metadata that LMCache gives to adapters only."""

    def __init__(self) -> None:
        super().__init__("plugin://lanner")

    def create_connector(self, context: ConnectorContext) -> RemoteConnector:
        return LannerRemoteConnector(context)


def _hashed_by(config: Any) -> str:
    """How tokens become keys. ``ValueError`` if each process begins with a random number, so that none finds what another one stored.

    Then LMCache logs the text as a warning, and goes on without Lanner.
    """
    algorithm = config.pre_caching_hash_algorithm
    if algorithm.startswith("sha256"):
        return algorithm
    seed = os.environ.get("PYTHONHASHSEED", "random")
    if seed == "random":
        text = (
            f"LMCache's hash of tokens ({algorithm}) differs from process to process, so nothing stored would be found again: set "
            "pre_caching_hash_algorithm to sha256_cbor in its configuration, or PYTHONHASHSEED to the same number for every process"
        )
        logger.error(text)
        raise ValueError(text)
    return f"{algorithm}, seed {seed}"


class LannerRemoteConnector(RemoteConnector):
    def __init__(self, context: ConnectorContext) -> None:
        super().__init__(context.config, context.metadata)
        hashed_by = _hashed_by(context.config)
        extra = context.config.extra_config or {}
        self.local_cpu_backend = context.local_cpu_backend
        self.client = PatientClient(extra.get(_FIELDS + "url", DEFAULT_URL))
        self.namespace = Namespace(
            "lmcache-remote",
            {
                "namespace": extra.get(_FIELDS + "namespace"),
                "shapes": [list(shape) for shape in self.meta_shapes],
                "dtypes": [str(dtype) for dtype in self.meta_dtypes],
                "format": str(self.meta_fmt),
                "chunk_size": context.metadata.chunk_size,
                "hash": hashed_by,
            },
        )
        self.namespace.announce(self.client, logger)
        self._pool = ThreadPoolExecutor(4, "lanner-lmcache")

    def _name(self, key: Any) -> str:
        return f"{self.namespace.prefix}/{key.to_string()}"

    async def _run(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(call, *arguments, **keywords))

    # --- is it there --------------------------------------------------------------------------------------------------------------------

    def exists_sync(self, key: Any) -> bool:
        return self._are_there([key])[0]

    async def exists(self, key: Any) -> bool:
        return (await self._run(self._are_there, [key]))[0]

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: list[Any]) -> int:
        """How many leading keys are there."""
        there = self._are_there(keys)
        return there.index(False) if False in there else len(there)

    async def batched_async_contains(self, lookup_id: str, keys: list[Any], pin: bool = False) -> int:
        return await self._run(self.batched_contains, keys)

    def _are_there(self, keys: list[Any]) -> list[bool]:
        try:
            there = self.client.exists_batch([self._name(key) for key in keys], return_exceptions=True)
        except errors.LannerError as error:
            there = [error] * len(keys)
        failed = [answer for answer in there if isinstance(answer, Exception)]
        if failed:
            logger.warning("%d of %d chunks couldn't be asked for, and count as missing: %s", len(failed), len(keys), failed[0])
        return [answer is True for answer in there]

    # --- to and fro ---------------------------------------------------------------------------------------------------------------------

    async def get(self, key: Any) -> Any:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: list[Any]) -> list[Any]:
        """The memory objects that the keys' chunks were read into; ``None`` for what isn't there, or doesn't fit."""
        return await self._run(self._get_all, keys)

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[Any]) -> list[Any]:
        """The leading ones that are there."""
        objects = await self.batched_get(keys)
        held = objects.index(None) if None in objects else len(objects)
        for late in objects[held:]:
            if late is not None:
                late.ref_count_down()
        return objects[:held]

    def _get_all(self, keys: list[Any]) -> list[Any]:
        objects = [self.local_cpu_backend.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt) for _ in keys]
        wanted = [index for index, each in enumerate(objects) if each is not None]
        try:
            names = [self._name(keys[index]) for index in wanted]
            read = self.client.get_into_batch(names, [objects[index].byte_array for index in wanted], return_exceptions=True)
        except (errors.LannerError, ValueError) as error:
            logger.warning("%d chunks couldn't be read, and count as missing: %s", len(keys), error)
            read = [None] * len(wanted)
        for index, got in zip(wanted, read):
            objects[index] = self._fitted(objects[index], got)
        return objects

    def _fitted(self, memory: Any, got: Any) -> Any:
        """The object with the length of what was read to it, or nothing; then its memory is given back."""
        try:
            if isinstance(got, int):
                return self.reshape_partial_chunk(memory, got)
        except ValueError as error:
            logger.warning("a chunk counts as missing: %s", error)
        memory.ref_count_down()
        return None

    async def put(self, key: Any, memory_obj: Any) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: list[Any], memory_objs: list[Any]) -> None:
        """Stores what isn't there yet. LMCache holds the memory until this returns."""
        try:
            names, values = [self._name(key) for key in keys], [each.byte_array for each in memory_objs]
            put = await self._run(self.client.put_batch, names, values, return_exceptions=True)
            failed = [outcome for outcome in put if isinstance(outcome, Exception)]
        except (errors.LannerError, ValueError) as error:
            failed = [error] * len(keys)
        if failed:
            logger.warning("%d of %d chunks weren't stored: %s", len(failed), len(keys), failed[0])

    # --- the rest -----------------------------------------------------------------------------------------------------------------------

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        """0 if every server answers, else the error's code."""
        try:
            await self._run(self.client.stats)
        except errors.LannerError as error:
            return error.code or 1
        return 0

    async def list(self) -> list[str]:
        start = self.namespace.prefix + "/"
        return [key.decode()[len(start) :] for key, _ in await self._run(self.client.list, start)]

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)
