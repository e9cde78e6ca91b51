"""What of a batch can't be meant, item by item: so that one bad address is answered with -600 and leaves the others alone.

Whether memory is really there only the caller knows. What is refused here is what can't be: null, negative, beyond the end of all memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from .codes import INVALID_PARAMS

#: No process has memory from here on.
_END = 1 << 62


def contiguous(value: Any) -> memoryview:
    """The bytes of a value as they are to be stored: those of its memory, whatever the order of its axes; elements that lie apart are put
    together, in row-major order."""
    view = memoryview(value)
    if view.c_contiguous and "O" not in view.format:
        return view
    # Every other section of a format is the name of a field.
    if any("O" in types for types in view.format.split(":")[::2]):
        raise TypeError("the value holds Python's objects, which mean nothing outside this process: give their contents")
    return view if view.c_contiguous else memoryview(view.tobytes("A"))


def is_memory(address: int, size: int) -> bool:
    """Whether there can be ``size`` bytes at ``address``; none can be anywhere."""
    return 0 <= size < _END and 0 <= address < _END - size and (address > 0 or size == 0)


def are_memory(addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether there can be all the pieces of a value."""
    return len(addresses) == len(sizes) and all(map(is_memory, addresses, sizes))


def good_values(addresses: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> list[bool]:
    """``are_memory`` of each value's pieces."""
    starts, lengths = list(chain.from_iterable(addresses)), list(chain.from_iterable(sizes))
    # A batch in which all is well, as mostly, is looked at by builtins: item by item it would take longer than asking the server.
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
