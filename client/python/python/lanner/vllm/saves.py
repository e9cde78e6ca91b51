"""A worker's saves: blocks copied out of the engine's cache and stored, both by threads of their own, so that no token waits for it.

The engine may write to the blocks again when its next step begins: ``fence``, called then, waits for the copies that are under way, and for nothing
else. Knows neither vLLM nor torch: layers are numpy arrays of shape [blocks, layer_bytes].
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from .. import _lanner, errors
from .log import Limited, logger
from .plan import Save, keys

#: How long the end of a worker waits for what is still to be stored.
_DRAIN_SECONDS = 10.0
#: Memory for copies is kept up to so many bytes: the first touch of fresh pages takes longer than the copy.
_KEPT_BYTES = 64 << 20
#: How long a copy lets the engine's thread go first, which has a token to hand out; the next step's beginning ends that.
_PATIENCE_SECONDS = 0.002


class Saves:
    def __init__(self, client: _lanner.Client, prefix: str, layers: Sequence[np.ndarray], layer_bytes: int, *, limit_bytes: int) -> None:
        """At most ``limit_bytes`` wait to be stored; what comes beyond isn't stored."""
        self.client, self.prefix = client, prefix
        self.layers, self.block_bytes = layers, layer_bytes * len(layers)
        self.limit_bytes, self.waiting_bytes, self.not_saved = limit_bytes, 0, 0
        self.log = Limited()
        self._copier, self._writer = ThreadPoolExecutor(1, "lanner-copy"), ThreadPoolExecutor(1, "lanner-save")
        self._copies: list[Future[None]] = []
        self._lock = threading.Lock()
        self._is_urgent = threading.Event()
        self._kept: list[np.ndarray] = []

    def submit(self, save: Save) -> None:
        """Begins to save the blocks; they mustn't change before ``fence`` has returned."""
        block_ids = save.block_ids[save.start :]
        size = len(block_ids) * self.block_bytes
        with self._lock:
            if self.waiting_bytes + size > self.limit_bytes:
                self.not_saved += len(block_ids)
                return
            self.waiting_bytes += size
        self._copies.append(self._copier.submit(self._copy, save, block_ids, size))

    def fence(self) -> None:
        """Returns when no block is needed any more."""
        if self._copies:
            self._is_urgent.set()
            for copy in self._copies:
                copy.result()
            self._copies.clear()
            self._is_urgent.clear()

    def close(self) -> None:
        """Stores what waits, for a while."""
        self.fence()
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self.waiting_bytes and time.monotonic() < deadline:
            time.sleep(0.002)
        self._copier.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(wait=False, cancel_futures=True)
        if self.not_saved:
            logger.warning("%d blocks weren't stored, because too much was waiting (save_bytes)", self.not_saved)

    # --- in the threads -------------------------------------------------------------------------------------------------------------------

    def _copy(self, save: Save, block_ids: list[int], size: int) -> None:
        self._is_urgent.wait(_PATIENCE_SECONDS)
        memory = self._memory(size)
        values = memory[:size].reshape(len(block_ids), len(self.layers), -1)
        for index, layer in enumerate(self.layers):
            # Block by block: `take` would go through memory of its own, because a layer's share of all values doesn't lie in one piece.
            for place, block in enumerate(block_ids):
                values[place, index] = layer[block]
        self._writer.submit(self._store, save, memory, size)

    def _store(self, save: Save, memory: np.ndarray, size: int) -> None:
        values = memory[:size].reshape(-1, self.block_bytes)
        try:
            self.client.put_chain(keys(self.prefix, save.hashes), save.start, list(values))
        except errors.LannerError as error:
            self.log.warn("blocks weren't stored: %s", error)
        finally:
            with self._lock:
                self.waiting_bytes -= size
                if sum(map(len, self._kept)) + len(memory) <= _KEPT_BYTES:
                    self._kept.append(memory)

    def _memory(self, size: int) -> np.ndarray:
        """Memory of at least so many bytes, the smallest of what is kept if that will do."""
        with self._lock:
            fitting = [index for index, memory in enumerate(self._kept) if len(memory) >= size]
            if fitting:
                return self._kept.pop(min(fitting, key=lambda index: len(self._kept[index])))
        return np.empty(size, np.uint8)
