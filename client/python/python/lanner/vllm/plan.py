"""What the connector decides, without vLLM, torch or a server: which blocks a step loads and which it saves.

A request's blocks are numbered from 0; block *i* holds the KV cache of tokens ``i * block_size`` to ``(i + 1) * block_size``, and its hash names
all tokens up to its end. Blocks count as saved once they were found in the store or handed over to be put there; what becomes of the
put is a cache's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..settings import MAX_CHAIN_BLOCKS


@dataclass
class Load:
    """Blocks ``start`` to the end of ``hashes`` are to be read into the engine's blocks ``block_ids``."""

    hashes: list[bytes]
    start: int
    block_ids: list[int]


@dataclass
class Save:
    """Blocks ``start`` to the end of ``hashes`` are to be stored after the step's forward pass. ``block_ids`` are the engine's blocks of the
    whole chain: what is stored was computed with all that stands before it."""

    hashes: list[bytes]
    start: int
    block_ids: list[int]


@dataclass
class _Request:
    hashes: Callable[[], Sequence[bytes]]
    block_ids: list[int] = field(default_factory=list)
    saved: int = 0
    local_tokens: int = 0


class Known:
    """Blocks that the store was seen to have or was given, the latest so many. A block that it has lost since may still be here, but isn't for long:
    whoever asks the store for its chain says so."""

    def __init__(self, limit: int = 1 << 16) -> None:
        self._limit = limit
        self._hashes: dict[bytes, None] = {}

    def add(self, hashes: Iterable[bytes]) -> None:
        for each in hashes:
            self._hashes.pop(each, None)
            self._hashes[each] = None
        while len(self._hashes) > self._limit:
            del self._hashes[next(iter(self._hashes))]

    def discard(self, hashes: Iterable[bytes]) -> None:
        for each in hashes:
            self._hashes.pop(each, None)

    def leading(self, hashes: Sequence[bytes]) -> int:
        """How many of a chain's blocks are known before the first that isn't."""
        return next((index for index, each in enumerate(hashes) if each not in self._hashes), len(hashes))

    def clear(self) -> None:
        self._hashes.clear()


class Planner:
    """The scheduler's side."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.known = Known()
        self._requests: dict[str, _Request] = {}
        self._loads: dict[str, Load] = {}

    def track(self, request_id: str, hashes: Callable[[], Sequence[bytes]]) -> None:
        """From now on the request is known. ``hashes`` gives those of its full blocks, which grow as it generates."""
        self._requests.setdefault(request_id, _Request(hashes))

    def forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._loads.pop(request_id, None)

    def wanted(self, request_id: str, tokens: int, local_tokens: int) -> list[bytes]:
        """The chain to ask the store for, if it can be of use to a request that has ``local_tokens`` in the engine already. One token is left
        to be computed, because the engine needs its logits. Blocks that the store is known to have aren't saved again."""
        request = self._requests[request_id]
        hashes = request.hashes()
        end = min((tokens - 1) // self.block_size, len(hashes), MAX_CHAIN_BLOCKS)
        local = local_tokens // self.block_size
        request.saved = max(request.saved, self.known.leading(hashes))
        return list(hashes[:end]) if end > local else []

    def matched(self, request_id: str, asked: int, held: int, local_tokens: int) -> int:
        """Tokens that the store has beyond the engine's, if it was asked for the first ``asked`` blocks and holds the first ``held``."""
        request = self._requests[request_id]
        hashes = request.hashes()
        self.known.add(hashes[:held])
        self.known.discard(hashes[held:asked])
        request.saved, request.local_tokens = held, local_tokens
        if local_tokens % self.block_size:
            return 0
        return max(0, held * self.block_size - local_tokens)

    def allocated(self, request_id: str, block_ids: Sequence[int], external_tokens: int) -> None:
        """The engine has taken blocks for the request and will have ``external_tokens`` of them loaded, as ``matched`` said."""
        if external_tokens == 0:
            return
        request = self._requests[request_id]
        start = request.local_tokens // self.block_size
        end = start + external_tokens // self.block_size
        hashes = list(request.hashes()[:end])
        self._loads[request_id] = Load(hashes, start, list(block_ids[start:end]))

    def take_loads(self) -> list[Load]:
        loads = list(self._loads.values())
        self._loads.clear()
        return loads

    def scheduled(self, request_id: str, new_block_ids: Sequence[int] | None, is_fresh: bool) -> None:
        """The request is part of the step; its blocks are the new ones, after those that it had unless it ``is_fresh`` or resumed."""
        request = self._requests.get(request_id)
        if request is None:
            return
        if is_fresh:
            request.block_ids = list(new_block_ids or [])
        else:
            request.block_ids.extend(new_block_ids or [])

    def save(self, request_id: str, computed_tokens: int) -> Save | None:
        """What is to be stored after a step at whose end ``computed_tokens`` of the request are computed."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        hashes = request.hashes()
        end = min(computed_tokens // self.block_size, len(hashes), len(request.block_ids), MAX_CHAIN_BLOCKS)
        if end <= request.saved:
            return None
        start, request.saved = request.saved, end
        self.known.add(hashes[start:end])
        return Save(list(hashes[:end]), start, request.block_ids[:end])

    def failed(self, block_ids: Iterable[int]) -> None:
        """These blocks weren't loaded: they will be computed again, and are to be saved then, with those behind them."""
        bad = set(block_ids)
        for request in self._requests.values():
            first = next((index for index, block in enumerate(request.block_ids) if block in bad), None)
            if first is not None:
                request.saved = min(request.saved, first)
                self.known.discard(request.hashes()[first:])


class Tainted:
    """A worker's blocks whose load failed. vLLM computes them again, but what the same step computed behind them, and later ones until vLLM has
    heard of it, is wrong and mustn't be stored under a good name."""

    def __init__(self) -> None:
        self._block_ids: set[int] = set()

    def failed(self, block_ids: Iterable[int]) -> None:
        self._block_ids.update(block_ids)

    def loaded(self, block_ids: Iterable[int]) -> None:
        self._block_ids.difference_update(block_ids)

    def may_store(self, save: Save) -> bool:
        """Whether all that the save's blocks were computed with is good. The blocks that it stores were computed anew."""
        self._block_ids.difference_update(save.block_ids[save.start :])
        return self._block_ids.isdisjoint(save.block_ids[: save.start])


def keys(prefix: str, hashes: Iterable[bytes]) -> list[str]:
    """The keys of a chain's blocks in a name space."""
    return [f"{prefix}/{digest.hex()}" for digest in hashes]


def block_ranges(start: int, block_ids: Sequence[int], layer: int, layer_bytes: int) -> list[tuple[int, int, int, int]]:
    """The ranges of a layer's share of blocks ``start``… of a snapshot, to where the engine's blocks lie in its tensor."""
    return [
        (start + index, layer * layer_bytes, layer_bytes, block * layer_bytes) for index, block in enumerate(block_ids)
    ]
