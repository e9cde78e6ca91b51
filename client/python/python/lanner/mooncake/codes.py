"""Return codes of Mooncake Store, and which of them an error of Lanner becomes."""

from __future__ import annotations

import logging
from typing import Any

from .. import errors

logger = logging.getLogger("lanner.mooncake")

OK = 0
INTERNAL_ERROR = -1
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
OBJECT_NOT_FOUND = -704
OBJECT_ALREADY_EXISTS = -705
LEASE_EXPIRED = -707
TRANSFER_FAIL = -800
RPC_FAIL = -900

#: The code of Lanner's error for a key that no object can have (``lanner_shared::Error::InvalidKey``).
_NO_KEY = 5

_OF_CLASS: tuple[tuple[type[BaseException], int], ...] = (
    (errors.NotFound, OBJECT_NOT_FOUND),
    # Mooncake, too, calls a put done whose key is there already.
    (errors.AlreadyExists, OK),
    (errors.Stale, LEASE_EXPIRED),
    (errors.Busy, NO_AVAILABLE_HANDLE),
    (errors.ConnectionFailed, RPC_FAIL),
    (ValueError, INVALID_PARAMS),
)


def code_of(error: BaseException) -> int:
    """The code for an error. What the caller can't expect is logged: a program that looks at codes only would never see its text."""
    for kind, code in _OF_CLASS:
        if isinstance(error, kind):
            if code not in (OK, OBJECT_NOT_FOUND):
                logger.warning("%s (answered as %d)", error, code)
            return code
    logger.error("%s (answered as %d)", error, INTERNAL_ERROR)
    return INTERNAL_ERROR


def code_of_read(error: BaseException, missing: int = OBJECT_NOT_FOUND) -> int:
    """``code_of`` for calls that change nothing: under a key that no object can have there is none, so they answer as to a miss."""
    if isinstance(error, errors.InvalidArgument) and error.code == _NO_KEY:
        logger.warning("%s (answered as %d)", error, missing)
        return missing
    return code_of(error)


def log_failures(answers: list[Any], what: str) -> None:
    """Logs the first of a batch's errors, for calls that answer without a code."""
    failed = [answer for answer in answers if isinstance(answer, Exception)]
    if failed:
        logger.warning("%d of %d %s: %s", len(failed), len(answers), what, failed[0])


#: What a call answers with a code, not an exception. Arguments of the wrong type raise, as they do in Mooncake.
CODED = (errors.LannerError, ValueError, OSError)
