"""A log that doesn't repeat itself: a store that is down fails hundreds of times a second."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger("lanner.vllm")

_EVERY_SECONDS = 10.0


class Limited:
    """Warnings of one kind, at most one in ten seconds."""

    def __init__(self) -> None:
        self._last = -_EVERY_SECONDS

    def warn(self, text: str, error: Exception) -> None:
        now = time.monotonic()
        if now - self._last >= _EVERY_SECONDS:
            self._last = now
            logger.warning(text, error)
