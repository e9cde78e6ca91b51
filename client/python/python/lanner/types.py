"""Types that the stubs name. At run time nothing looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Union

#: The name of an object.
Key = Union[str, bytes]
#: Whatever has the buffer protocol, a torch tensor in main memory, or an object with DLPack.
Buffer = Any
#: ``(key index, source offset, length, destination offset)`` each, or an int64 array of shape [n, 4].
Ranges = Union[Sequence[Sequence[int]], Any]
Pin = Literal["none", "soft", "hard"]
