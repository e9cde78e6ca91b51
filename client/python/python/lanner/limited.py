"""A log that doesn't repeat itself: a store that is down fails hundreds of times a second."""

from __future__ import annotations

import logging
import time

_EVERY_SECONDS = 10.0


class Limited:
    """Warnings of one kind, at most one in ten seconds."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last = -_EVERY_SECONDS

    def warn(self, text: str, *arguments: object) -> None:
        now = time.monotonic()
        if now - self._last >= _EVERY_SECONDS:
            self._last = now
            self._logger.warning(text, *arguments)
