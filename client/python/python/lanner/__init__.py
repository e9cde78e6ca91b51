"""Client of Lanner, the key-value store for LLM inference state.

>>> import lanner
>>> client = lanner.Client("lanner://127.0.0.1:7411")
>>> client.put("greeting", b"hello")
>>> client.get("greeting")
b'hello'
>>> client.get("nothing") is None
True

What each call does, blocks on and raises says ``help(lanner.Client)``; the coroutines are in ``lanner.aio``, which is imported by name. ``docs/python.md`` of the
repository is the introduction.
"""

from . import errors
from ._lanner import Client, EngramSet, Registered, ShardedTensor, Snapshot, TensorSlice, __version__, stored_keys
from .engram import EngramStore
from .errors import (
    AlreadyExists,
    Busy,
    ConnectionFailed,
    InvalidArgument,
    LannerError,
    NotFound,
    Stale,
    Timeout,
)

__all__ = [
    "AlreadyExists",
    "Busy",
    "Client",
    "ConnectionFailed",
    "EngramSet",
    "EngramStore",
    "InvalidArgument",
    "LannerError",
    "NotFound",
    "Registered",
    "ShardedTensor",
    "Snapshot",
    "Stale",
    "TensorSlice",
    "Timeout",
    "__version__",
    "errors",
    "stored_keys",
]
