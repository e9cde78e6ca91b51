"""What of a batch can't be meant, item by item: so that one bad key or address is answered with -600 and leaves the others alone.

Whether memory is really there only the caller knows. What is refused here is what can't be: null, negative, beyond the end of all memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from .codes import INVALID_PARAMS

#: Bytes of the longest key.
MAX_KEY_BYTES = 1024
#: No process has memory from here on.
_END = 1 << 62


def is_key(key: str | bytes) -> bool:
    """Whether an object can have this key."""
    # A character is at most 4 bytes, so most keys needn't be encoded for it.
    return 0 < len(key) and (4 * len(key) <= MAX_KEY_BYTES or len(key.encode() if isinstance(key, str) else key) <= MAX_KEY_BYTES)


def is_memory(address: int, size: int) -> bool:
    """Whether there can be ``size`` bytes at ``address``; none can be anywhere."""
    return 0 <= size < _END and 0 <= address < _END - size and (address > 0 or size == 0)


def are_memory(addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether there can be all the pieces of a value."""
    return len(addresses) == len(sizes) and all(map(is_memory, addresses, sizes))


def good_keys(keys: Sequence[str | bytes]) -> list[bool]:
    """``is_key`` of each."""
    lengths = list(map(len, keys))
    # A batch in which all is well, as mostly, is looked at by builtins: key by key it would take longer than asking the server.
    if lengths and 0 < min(lengths) and 4 * max(lengths) <= MAX_KEY_BYTES:
        return [True] * len(keys)
    return list(map(is_key, keys))


def good_values(addresses: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> list[bool]:
    """``are_memory`` of each value's pieces."""
    starts, lengths = list(chain.from_iterable(addresses)), list(chain.from_iterable(sizes))
    if starts and lengths and min(starts) > 0 and min(lengths) >= 0 and max(starts) + max(lengths) < _END:
        if list(map(len, addresses)) == list(map(len, sizes)):
            return [True] * len(addresses)
    return list(map(are_memory, addresses, sizes))


def for_good(is_good: list[bool], call: Callable[..., list[Any]], *columns: Sequence[Any], bad: Any = INVALID_PARAMS) -> list[Any]:
    """What ``call`` answers to the items that are good, and ``bad`` in the places of the others. ``columns`` have something for each item."""
    if all(is_good):
        return call(*columns) if is_good else []
    answers = [bad] * len(is_good)
    picked = [index for index, good in enumerate(is_good) if good]
    if picked:
        for index, answer in zip(picked, call(*([column[index] for index in picked] for column in columns))):
            answers[index] = answer
    return answers
