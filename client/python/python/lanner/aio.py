"""The calls that wait, for asyncio.

A call runs in one of a few threads of the client's own, whose connections stay open, so the event loop goes on meanwhile. Awaiting it costs
two changes of threads, some tens of microseconds: for reads from shared memory the plain ``lanner.Client`` is quicker than the detour.
A task that is cancelled stops waiting, but its call goes on until it has ended; its buffers are held as long.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import _lanner
from .settings import DEFAULT_URL
from .types import Buffer, Key, Pin, Ranges


class Client:
    """As ``lanner.Client``, with coroutines in place of the calls that wait. Close it, or use it in ``async with``."""

    def __init__(self, client: _lanner.Client, threads: int = 4) -> None:
        if not isinstance(client, _lanner.Client):
            raise TypeError(f"a lanner.Client, not {type(client).__name__}; of a URL: await lanner.aio.Client.connect(url)")
        self.client = client
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lanner")

    @classmethod
    async def connect(cls, url: str = DEFAULT_URL, threads: int = 4) -> Client:
        """Connects without holding the event loop up. At most ``threads`` calls wait at the same time, the others queue."""
        return cls(await asyncio.to_thread(_lanner.Client, url), threads)

    @property
    def url(self) -> str:
        """``lanner.Client.url``."""
        return self.client.url

    def servers(self) -> builtins.list[dict[str, Any]]:
        """``lanner.Client.servers``, which asks nothing."""
        return self.client.servers()

    def rdma_failures(self) -> builtins.list[tuple[str, int, str]]:
        """``lanner.Client.rdma_failures``, which asks nothing."""
        return self.client.rdma_failures()

    async def prepare_snapshot(self, keys: Sequence[Key]) -> Snapshot:
        """``lanner.Client.prepare_snapshot``."""
        return Snapshot(await self.run(self.client.prepare_snapshot, keys), self)

    async def match_chain(self, keys: Sequence[Key]) -> Snapshot:
        """``lanner.Client.match_chain``."""
        return Snapshot(await self.run(self.client.match_chain, keys), self)

    async def put(self, key: Key, value: Buffer, *, ttl: float | None = None, pin: Pin | None = None, group: Key | None = None) -> None:
        """``lanner.Client.put``."""
        await self.run(self.client.put, key, value, ttl=ttl, pin=pin, group=group)

    async def upsert(self, key: Key, value: Buffer, *, ttl: float | None = None, pin: Pin | None = None, group: Key | None = None) -> None:
        """``lanner.Client.upsert``."""
        await self.run(self.client.upsert, key, value, ttl=ttl, pin=pin, group=group)

    async def put_batch(
        self,
        keys: Sequence[Key],
        values: Sequence[Buffer],
        *,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> builtins.list[bool]:
        """``lanner.Client.put_batch``."""
        return await self.run(self.client.put_batch, keys, values, ttl=ttl, pin=pin, group=group, return_exceptions=return_exceptions)

    async def upsert_batch(
        self,
        keys: Sequence[Key],
        values: Sequence[Buffer],
        *,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> builtins.list[bool]:
        """``lanner.Client.upsert_batch``."""
        return await self.run(self.client.upsert_batch, keys, values, ttl=ttl, pin=pin, group=group, return_exceptions=return_exceptions)

    async def get(self, key: Key) -> bytes | None:
        """``lanner.Client.get``."""
        return await self.run(self.client.get, key)

    async def get_batch(self, keys: Sequence[Key], *, return_exceptions: bool = False) -> builtins.list[bytes | None]:
        """``lanner.Client.get_batch``."""
        return await self.run(self.client.get_batch, keys, return_exceptions=return_exceptions)

    async def get_into(self, key: Key, buffer: Buffer) -> int | None:
        """``lanner.Client.get_into``."""
        return await self.run(self.client.get_into, key, buffer)

    async def get_into_batch(
        self, keys: Sequence[Key], buffers: Sequence[Buffer], *, return_exceptions: bool = False
    ) -> builtins.list[int | None]:
        """``lanner.Client.get_into_batch``."""
        return await self.run(self.client.get_into_batch, keys, buffers, return_exceptions=return_exceptions)

    async def exists(self, key: Key) -> bool:
        """``lanner.Client.exists``."""
        return await self.run(self.client.exists, key)

    async def exists_batch(self, keys: Sequence[Key], *, return_exceptions: bool = False) -> builtins.list[bool]:
        """``lanner.Client.exists_batch``."""
        return await self.run(self.client.exists_batch, keys, return_exceptions=return_exceptions)

    async def remove(self, key: Key) -> bool:
        """``lanner.Client.remove``."""
        return await self.run(self.client.remove, key)

    async def remove_batch(self, keys: Sequence[Key], *, return_exceptions: bool = False) -> builtins.list[bool]:
        """``lanner.Client.remove_batch``."""
        return await self.run(self.client.remove_batch, keys, return_exceptions=return_exceptions)

    async def size(self, key: Key) -> int | None:
        """``lanner.Client.size``."""
        return await self.run(self.client.size, key)

    async def size_batch(self, keys: Sequence[Key], *, return_exceptions: bool = False) -> builtins.list[int | None]:
        """``lanner.Client.size_batch``."""
        return await self.run(self.client.size_batch, keys, return_exceptions=return_exceptions)

    async def read_ranges(self, keys: Sequence[Key], ranges: Ranges, buffer: Buffer) -> None:
        """``lanner.Client.read_ranges``."""
        await self.run(self.client.read_ranges, keys, ranges, buffer)

    async def list(self, prefix: Key = b'', *, limit: int | None = None) -> builtins.list[tuple[bytes, int]]:
        """``lanner.Client.list``."""
        return await self.run(self.client.list, prefix, limit=limit)

    async def longest_prefix(self, key: Key) -> bytes | None:
        """``lanner.Client.longest_prefix``."""
        return await self.run(self.client.longest_prefix, key)

    async def register(self, buffer: Buffer) -> _lanner.Registered:
        """``lanner.Client.register``."""
        return await self.run(self.client.register, buffer)

    async def put_chain(
        self,
        keys: Sequence[Key],
        start: int,
        values: Sequence[Buffer],
        *,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> builtins.list[bool]:
        """``lanner.Client.put_chain``."""
        return await self.run(
            self.client.put_chain, keys, start, values, ttl=ttl, pin=pin, group=group, return_exceptions=return_exceptions
        )

    async def get_into_addresses(
        self, keys: Sequence[Key], addresses: Sequence[int], sizes: Sequence[int], *, return_exceptions: bool = False
    ) -> builtins.list[int | None]:
        """``lanner.Client.get_into_addresses``."""
        return await self.run(self.client.get_into_addresses, keys, addresses, sizes, return_exceptions=return_exceptions)

    async def put_from_addresses(
        self,
        keys: Sequence[Key],
        addresses: Sequence[int],
        sizes: Sequence[int],
        *,
        replace: bool = False,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> builtins.list[bool]:
        """``lanner.Client.put_from_addresses``."""
        return await self.run(
            self.client.put_from_addresses, keys, addresses, sizes, replace=replace, ttl=ttl, pin=pin, group=group, return_exceptions=return_exceptions
        )

    async def get_into_parts(
        self, keys: Sequence[Key], addresses: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]], *, return_exceptions: bool = False
    ) -> builtins.list[int | None]:
        """``lanner.Client.get_into_parts``."""
        return await self.run(self.client.get_into_parts, keys, addresses, sizes, return_exceptions=return_exceptions)

    async def put_from_parts(
        self,
        keys: Sequence[Key],
        addresses: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        *,
        replace: bool = False,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> builtins.list[bool]:
        """``lanner.Client.put_from_parts``."""
        return await self.run(
            self.client.put_from_parts, keys, addresses, sizes, replace=replace, ttl=ttl, pin=pin, group=group, return_exceptions=return_exceptions
        )

    async def stats(self) -> builtins.list[tuple[str, str]]:
        """``lanner.Client.stats``."""
        return await self.run(self.client.stats)

    async def transport_for(self, key: Key) -> str:
        """``lanner.Client.transport_for``."""
        return await self.run(self.client.transport_for, key)

    async def run(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Any other call that waits, in one of the client's threads: ``await client.run(store.lookup_into, row_ids, out)``."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(call, *arguments, **keywords))

    async def close(self) -> None:
        """Ends the threads once the calls under way have ended."""
        await asyncio.to_thread(self._pool.shutdown)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


class Snapshot:
    """As ``lanner.Snapshot``."""

    def __init__(self, snapshot: _lanner.Snapshot, client: Client) -> None:
        self.snapshot = snapshot
        self._client = client

    async def read_into(self, ranges: Ranges, buffer: Buffer, *, checked: bool = False, refresh: bool = False) -> None:
        """``lanner.Snapshot.read_into``."""
        await self._client.run(self.snapshot.read_into, ranges, buffer, checked=checked, refresh=refresh)

    async def refresh(self) -> None:
        """``lanner.Snapshot.refresh``."""
        await self._client.run(self.snapshot.refresh)

    @property
    def needs_refresh(self) -> bool:
        """``lanner.Snapshot.needs_refresh``."""
        return self.snapshot.needs_refresh

    @property
    def remaining(self) -> float:
        """``lanner.Snapshot.remaining``."""
        return self.snapshot.remaining

    def value_bytes(self, index: int) -> int:
        """``lanner.Snapshot.value_bytes``."""
        return self.snapshot.value_bytes(index)

    def __len__(self) -> int:
        return len(self.snapshot)
