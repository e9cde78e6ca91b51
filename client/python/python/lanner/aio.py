"""The calls that wait, for asyncio.

A call runs in one of a few threads of the client's own, whose connections stay open, so the event loop goes on meanwhile. Awaiting it costs
two changes of threads, some tens of microseconds: for reads from shared memory the plain ``lanner.Client`` is quicker than the detour.
A task that is cancelled stops waiting, but its call goes on until it has ended; its buffers are held as long.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import _lanner

#: Calls of ``lanner.Client`` that wait for a server.
WAITING = (
    "put upsert put_batch upsert_batch get get_batch get_into get_into_batch exists exists_batch remove remove_batch size size_batch"
    " read_ranges list longest_prefix put_chain get_into_addresses put_from_addresses get_into_parts"
    " put_from_parts stats"
).split()


class Client:
    """As ``lanner.Client``, with coroutines in place of the calls that wait. Close it, or use it in ``async with``."""

    def __init__(self, client: _lanner.Client, threads: int = 4) -> None:
        self.client = client
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lanner")

    @classmethod
    async def connect(cls, url: str = "lanner://127.0.0.1:7411", threads: int = 4) -> Client:
        """Connects without holding the event loop up. At most ``threads`` calls wait at the same time, the others queue."""
        return cls(await asyncio.to_thread(_lanner.Client, url), threads)

    async def prepare_snapshot(self, keys: Any) -> Snapshot:
        return Snapshot(await self.run(self.client.prepare_snapshot, keys), self)

    async def match_chain(self, keys: Any) -> Snapshot:
        return Snapshot(await self.run(self.client.match_chain, keys), self)

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

    async def read_into(self, ranges: Any, buffer: Any, *, checked: bool = False, refresh: bool = False) -> None:
        await self._client.run(self.snapshot.read_into, ranges, buffer, checked=checked, refresh=refresh)

    async def refresh(self) -> None:
        await self._client.run(self.snapshot.refresh)

    def __len__(self) -> int:
        return len(self.snapshot)


def _coroutine(name: str) -> Callable[..., Any]:
    async def call(self: Client, *arguments: Any, **keywords: Any) -> Any:
        return await self.run(getattr(self.client, name), *arguments, **keywords)

    call.__name__, call.__qualname__ = name, f"Client.{name}"
    call.__doc__ = f"``lanner.Client.{name}``."
    return call


for _name in WAITING:
    assert inspect.ismethoddescriptor(getattr(_lanner.Client, _name))
    setattr(Client, _name, _coroutine(_name))
