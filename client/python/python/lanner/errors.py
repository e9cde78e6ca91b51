"""What goes wrong, as a small tree of exceptions.

    LannerError
    |-- NotFound (LookupError)            MissingTables, MissingParts
    |-- AlreadyExists
    |-- InvalidArgument (ValueError)      EngramError, TensorError
    |-- Stale                             nothing was read: refresh the snapshot and read again
    |-- Busy                              the server can't now: try again later
    |-- ConnectionFailed (ConnectionError)
    |   |-- Timeout (TimeoutError)        a change may or may not have taken place, or takes place yet
    |   `-- OutcomeUnknown                the change may or may not have taken place
    `-- SystemFailed (OSError)

``code`` is the stable number of ``lanner_shared::Error``, the same in every client, in metrics and in frames; 0 for what only this
library knows. A miss is no error in calls that read: they answer ``None``, which an empty value isn't.
"""

from __future__ import annotations


class LannerError(Exception):
    """Base of all that Lanner raises."""

    #: Stable number of the error; see above.
    code: int = 0
    #: Place of the key or range in the call, from 0; ``None`` where the error is about the call as a whole.
    index: int | None = None


class NotFound(LannerError, LookupError):
    """No object has this key."""


class AlreadyExists(LannerError):
    """``put`` found an object under the key; ``upsert`` replaces it."""


class InvalidArgument(LannerError, ValueError):
    """The call was made with arguments that can't be meant. Nothing was read or stored."""

    #: Bytes that a buffer would have to have, if it was too small.
    needed: int | None = None


class Stale(LannerError):
    """A lease has ended (code 3) or the content has changed (code 4), and nothing was read; refresh the snapshot and read again."""


class Busy(LannerError):
    """The server can't now: full (10), at a limit (11), shutting down (20), or it gave a put up (23)."""

    #: If the store is full: milliseconds until the next lease ends; 0 if only pins stand in the way.
    retry_ms: int | None = None


class ConnectionFailed(LannerError, ConnectionError):
    """No connection (13; over RDMA alone: 24, 25), or one that ended (14), or a peer that can't be understood (16, 17, 18, 19)."""


class Timeout(ConnectionFailed, TimeoutError):
    """No answer in time. A change that was under way may have taken place, or take place yet: what the server has got by then, it does."""


class OutcomeUnknown(ConnectionFailed):
    """The connection ended before the answer: the change may or may not have taken place. Read the key to find out."""


class SystemFailed(LannerError, OSError):
    """The system refused something on this side."""


class EngramError(InvalidArgument):
    """Tables or row ids that don't fit."""


class MissingTables(NotFound):
    """Engram tables that aren't in the store."""


class TensorError(InvalidArgument):
    """A tensor, part or slice that doesn't fit."""


class MissingParts(NotFound):
    """A sharded tensor, or parts of it, that aren't in the store."""


_OF_CODE: dict[int, type[LannerError]] = {
    1: NotFound,
    2: AlreadyExists,
    3: Stale,
    4: Stale,
    5: InvalidArgument,
    6: InvalidArgument,
    7: InvalidArgument,
    8: InvalidArgument,
    9: InvalidArgument,
    10: Busy,
    11: Busy,
    12: Timeout,
    13: ConnectionFailed,
    24: ConnectionFailed,
    14: ConnectionFailed,
    15: OutcomeUnknown,
    16: ConnectionFailed,
    17: ConnectionFailed,
    18: ConnectionFailed,
    19: ConnectionFailed,
    20: Busy,
    21: InvalidArgument,
    22: SystemFailed,
    23: Busy,
    25: ConnectionFailed,
}


def of_code(code: int, text: str, **fields: int) -> LannerError:
    """The exception for an error of the client with this code. Called by ``_lanner``."""
    error = _OF_CODE.get(code, LannerError)(text)
    error.code = code
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def of_name(name: str, text: str) -> LannerError:
    """The exception of this class. Called by ``_lanner``."""
    return globals()[name](text)
