"""Memory that a program has registered: what of it RDMA devices have, and which calls go through them.

A put or a read whose memory lies in one such region goes through its ``lanner.Registered``, without a copy. All others, and all where no device is
in play, go the ordinary way, which takes any memory and lets threads use one region at the same time.
"""

from __future__ import annotations

import bisect
import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import errors
from .._lanner import Client, Registered, Snapshot
from .codes import CODED, logger

#: Of each value, something of each piece of memory that it lies in.
Parts = list[list[int]]


@dataclass(frozen=True, eq=False)
class Region:
    """``memory`` is ``None`` where no device has it; otherwise it's good in the process that registered it."""

    start: int
    bytes: int
    memory: Registered | None
    process: int

    @property
    def end(self) -> int:
        return self.start + self.bytes

    def places(self, addresses: Parts, sizes: Parts) -> list[tuple[int, int]]:
        """Where values of one piece each lie in the memory."""
        return [(address - self.start, size) for (address,), (size,) in zip(addresses, sizes)]


class Regions:
    """Regions that don't overlap, in the order of their addresses. The list is replaced, never changed, so threads may look while others register."""

    def __init__(self) -> None:
        self._all: list[Region] = []

    def add(self, client: Client, start: int, size: int) -> None:
        """``ValueError`` for what overlaps another region or is no memory that this process can read."""
        if start <= 0 or size <= 0 or any(start < each.end and each.start < start + size for each in self._all):
            raise ValueError(f"{size} bytes at {start:#x} can't be registered: they overlap others that are, or there are none")
        access = access_to(start, size)
        if "r" not in access:
            raise ValueError(
                f"{size} bytes at {start:#x} aren't main memory of this process, such as a GPU's: Lanner reads and writes main memory only"
            )
        memory = _with_device(client, start, size) if "w" in access else None
        self._all = sorted([*self._all, Region(start, size, memory, os.getpid())], key=lambda each: each.start)

    def remove(self, start: int) -> bool:
        """Ends the registration of the region that begins there, when the call that uses it has returned."""
        found = [each for each in self._all if each.start == start]
        self._all = [each for each in self._all if each.start != start]
        for each in found:
            _close(each)
        return bool(found)

    def clear(self) -> None:
        gone, self._all = self._all, []
        for each in gone:
            _close(each)

    def with_device(self, start: int, size: int) -> Region | None:
        """The region of a device's that holds these bytes."""
        at = bisect.bisect_right(self._all, start, key=lambda each: each.start) - 1
        region = self._all[at] if at >= 0 else None
        if region is None or region.memory is None or start + size > region.end or region.process != os.getpid():
            return None
        return region

    def put(self, client: Client, keys: list[str], addresses: Parts, sizes: Parts, **options: Any) -> list[Any]:
        """What became of each put: whether it's new, or an error."""

        def call(region: Region | None, keys: list[str], addresses: Parts, sizes: Parts) -> list[Any]:
            if region is None or region.memory is None:
                return client.put_from_parts(keys, addresses, sizes, return_exceptions=True, **options)
            return region.memory.put_batch(keys, region.places(addresses, sizes), return_exceptions=True, **options)

        return self._each(call, keys, addresses, sizes)

    def get(self, client: Client, keys: list[str], addresses: Parts, sizes: Parts) -> list[Any]:
        """Bytes read of each value, ``None`` where there is none, or an error."""

        def call(region: Region | None, keys: list[str], addresses: Parts, sizes: Parts) -> list[Any]:
            if region is None or region.memory is None:
                return client.get_into_parts(keys, addresses, sizes, return_exceptions=True)
            return region.memory.get_into_batch(keys, region.places(addresses, sizes), return_exceptions=True)

        return self._each(call, keys, addresses, sizes)

    def read(self, snapshot: Snapshot, source: int, size: int, address: int) -> None:
        """Reads a range of a snapshot's only object to this address."""
        region = self.with_device(address, size)
        if region is None or region.memory is None:
            snapshot.read_into([(0, source, size, 0)], (ctypes.c_ubyte * size).from_address(address))
        else:
            region.memory.read_from_snapshot(snapshot, [(0, source, size, address - region.start)])

    def _each(
        self, call: Callable[[Region | None, list[str], Parts, Parts], list[Any]], keys: list[str], addresses: Parts, sizes: Parts
    ) -> list[Any]:
        """What ``call`` answers for each key: it's made for the keys of each region of a device's, and with ``None`` for the others. Its error is the
        answer for its keys."""
        if not any(each.memory for each in self._all) or not len(keys) == len(addresses) == len(sizes):
            return call(None, keys, addresses, sizes)
        indices: dict[Region | None, list[int]] = {}
        for index, (starts, lengths) in enumerate(zip(addresses, sizes)):
            is_whole = len(starts) == len(lengths) == 1
            indices.setdefault(self.with_device(starts[0], lengths[0]) if is_whole else None, []).append(index)
        answers: list[Any] = [None] * len(keys)
        for region, picked in indices.items():
            try:
                some = call(region, *([whole[index] for index in picked] for whole in (keys, addresses, sizes)))
            except CODED as error:
                some = [error] * len(picked)
            for index, answer in zip(picked, some):
                answers[index] = answer
        return answers


def _with_device(client: Client, start: int, size: int) -> Registered | None:
    """The memory as devices have it, if they do. A refusal is a matter of speed only, so it's logged."""
    try:
        memory = client.register((ctypes.c_ubyte * size).from_address(start))
    except errors.LannerError as error:
        logger.warning("%d bytes at %#x are used by copying: %s", size, start, error)
        return None
    if memory.is_with_device:
        return memory
    memory.close()
    return None


def _close(region: Region) -> None:
    if region.memory is not None:
        region.memory.close()


def access_to(start: int, size: int) -> str:
    """What this process may do with all of these bytes: of ``rw``. Nothing where they aren't mapped."""
    allowed, at = {"r", "w"}, start
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, rights = line.split(maxsplit=2)[:2]
            first, end = (int(address, 16) for address in span.split("-"))
            if end <= at:
                continue
            if first > at:
                return ""
            allowed &= set(rights)
            at = end
            if at >= start + size:
                return "".join(sorted(allowed))
    return ""
