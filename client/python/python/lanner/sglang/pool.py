"""A pool of pages of SGLang's host cache: where its pages' objects are in the store and in memory."""

from __future__ import annotations

import threading
from typing import Any

import torch

from .. import _lanner
from ..naming import Namespace

#: Pools with up to so many pieces a page have an object for each. It divides the length of a chain's group, so a page's objects are in one group.
_MAX_PIECES = 2
#: Questions whose answers may wait for their reads at the same time.
_MAX_LEASED = 64


class Pool:
    def __init__(self, name: str, pool: Any, namespace: Namespace) -> None:
        self.name, self.pool, self.namespace = name, pool, namespace
        self.page_size = pool.page_size
        _, sizes = pool.get_page_buffer_meta(torch.arange(self.page_size))
        self.pieces_per_page = len(sizes)
        self.page_bytes = sum(sizes)
        self.is_split = self.pieces_per_page <= _MAX_PIECES
        self.suffixes = [f":{piece}" for piece in range(self.pieces_per_page)] if self.is_split else [""]
        self.buffer, self.address, self.size = _whole(getattr(pool, "kv_buffer", None))

    def keys(self, pages: list[str], is_chain: bool = False) -> list[str]:
        """The keys of all objects of the pages, page by page. Those of a chain's blocks have no placement tag of their own."""
        if is_chain:
            return [f"{self.namespace.prefix}/chain/{page}{suffix}" for page in pages for suffix in self.suffixes]
        return [self.namespace.key(page, suffix) for page in pages for suffix in self.suffixes]

    def stored_keys(self, pages: list[str], before: list[str] | None) -> list[Any]:
        """The keys that the objects are stored under; ``before`` are the pages before these, if they are a chain."""
        if before is None:
            return self.keys(pages)
        return _lanner.stored_keys(self.keys([*before, *pages], is_chain=True))[len(before) * len(self.suffixes) :]

    def per_page(self, outcomes: list[Any], good: Any) -> list[bool]:
        """For each page whether all of its objects' outcomes are good."""
        count = len(self.suffixes)
        return [all(map(good, outcomes[at : at + count])) for at in range(0, len(outcomes), count)]

    def memory(self, host_indices: torch.Tensor) -> tuple[list[list[int]], list[list[int]]]:
        """Addresses and sizes of the pieces of each object of the pages."""
        addresses, sizes = self.pool.get_page_buffer_meta(host_indices)
        step = 1 if self.is_split else self.pieces_per_page
        cut = lambda flat: [list(flat[at : at + step]) for at in range(0, len(flat), step)]
        return cut(addresses), cut(sizes)

    def ranges(self, first: int, addresses: list[list[int]], sizes: list[list[int]]) -> list[tuple[int, int, int, int]]:
        """Ranges that read objects ``first``… of a snapshot to these places of ``buffer``. ``ValueError`` for places outside it."""
        ranges = []
        for number, (places, lengths) in enumerate(zip(addresses, sizes, strict=True), first):
            offset = 0
            for address, length in zip(places, lengths, strict=True):
                ranges.append((number, offset, length, self._place(address, length)))
                offset += length
        return ranges

    def values(self, addresses: list[list[int]], sizes: list[list[int]]) -> list[Any]:
        """The objects that lie at these places of ``buffer``, put together unless they lie in one piece."""
        values = []
        for places, lengths in zip(addresses, sizes, strict=True):
            starts = [self._place(address, length) for address, length in zip(places, lengths, strict=True)]
            pieces = [self.buffer[start : start + length] for start, length in zip(starts, lengths)]
            values.append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return values

    def _place(self, address: int, length: int) -> int:
        place = address - self.address
        if not 0 <= place <= self.size - length:
            raise ValueError(f"a page of pool {self.name} lies outside the pool's memory")
        return place


def _whole(buffer: Any) -> tuple[Any, int, int]:
    """A pool's memory as an array of bytes, its address and its size; nothing if it isn't one piece of main memory."""
    if isinstance(buffer, torch.Tensor) and buffer.is_cpu and buffer.is_contiguous():
        flat = buffer.detach().reshape(-1).view(torch.uint8).numpy()
        return flat, flat.ctypes.data, flat.nbytes
    return None, 0, 0


class Leased:
    """What was found and is leased, until it's read: by the first page of the question. Threads may share it."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], tuple[list[str], _lanner.Snapshot, int]] = {}
        self._lock = threading.Lock()

    def put(self, pool: str, pages: list[str], snapshot: _lanner.Snapshot, first: int) -> None:
        """Object ``first`` of the snapshot is the first of the first page."""
        with self._lock:
            self._answers.pop((pool, pages[0]), None)
            self._answers[pool, pages[0]] = (pages, snapshot, first)
            if len(self._answers) > _MAX_LEASED:
                del self._answers[next(iter(self._answers))]

    def take(self, pool: str, pages: list[str]) -> tuple[_lanner.Snapshot, int] | None:
        """A snapshot in which all of these pages are, if there is one."""
        with self._lock:
            held, snapshot, first = self._answers.pop((pool, pages[0]) if pages else (pool, ""), ([], None, 0))
        return (snapshot, first) if pages and held[: len(pages)] == pages else None

    def clear(self) -> None:
        with self._lock:
            self._answers.clear()
