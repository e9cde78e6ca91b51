"""A client whose servers may not be there yet, for connectors: an engine that starts before its store has an empty cache until the store comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from . import _lanner, errors

#: How long after a failure nobody tries again, and how many times as long as the failure took: trying costs calls a tenth of the time at most.
_PAUSE_SECONDS, _PAUSE_TIMES = 1.0, 9.0


class PatientClient:
    """As ``lanner.Client``, made whether its servers are there or not. Until all of them have answered once, each call raises ``ConnectionFailed``, as
    it does of servers that go away later; now and then one of them tries to connect, which blocks it as long as ``lanner.Client()`` does.
    Threads may share it. A URL that is none raises ``InvalidArgument`` at once."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._configured_url, self._clock = url, clock
        self._client: _lanner.Client | None = None
        self._wanted: list[Callable[[_lanner.Client], Any]] = []
        self._failure = errors.ConnectionFailed("another thread is connecting for the first time")
        self._not_before = clock()
        self._connecting, self._state = threading.Lock(), threading.Lock()
        try:
            self._connected()
        except errors.ConnectionFailed:
            pass  # The calls say it.

    @property
    def url(self) -> str:
        """The servers and the transport, without tenant and token."""
        return self._configured_url.partition("?")[0] if self._client is None else self._client.url

    @property
    def is_connected(self) -> bool:
        """Whether all servers have answered once."""
        return self._client is not None

    def when_connected(self, call: Callable[[_lanner.Client], Any]) -> None:
        """Has ``call`` made with the client now, or as soon as there is one, by the thread that connects."""
        with self._state:
            if self._client is None:
                self._wanted.append(call)
                return
        call(self._client)

    def __getattr__(self, name: str) -> Any:
        # An object that is being copied has no fields yet, and is asked for methods that there needn't be.
        if name.startswith("_"):
            raise AttributeError(name)
        if self._client is not None:
            return getattr(self._client, name)
        if not hasattr(_lanner.Client, name):
            raise AttributeError(name)
        # To connect is the call's affair: it may be made by another thread than this, which mustn't wait.
        return lambda *arguments, **keywords: getattr(self._connected(), name)(*arguments, **keywords)

    def _connected(self) -> _lanner.Client:
        if self._client is not None:
            return self._client
        started = self._clock()
        # Nobody waits for a thread that tries: it may take a time-out.
        if started < self._not_before or not self._connecting.acquire(blocking=False):
            raise errors.ConnectionFailed(str(self._failure)) from self._failure
        try:
            client = self._client or _lanner.Client(self._configured_url)
            with self._state:
                self._client = client
                wanted, self._wanted = self._wanted, []
            for call in wanted:
                call(client)
        except errors.ConnectionFailed as error:
            self._failure, ended = error, self._clock()
            self._not_before = ended + max(_PAUSE_SECONDS, _PAUSE_TIMES * (ended - started))
            raise
        finally:
            self._connecting.release()
        return client
