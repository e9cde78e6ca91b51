"""A worker's loads: blocks found, leased, and read layer by layer into the engine's cache, by a thread of its own and, if the engine leaves no
CPU for that, by the engine's thread while it would wait.

A step's life: ``begin`` (blocks are looked for), ``start`` (the cache may be written), ``wait`` for each layer, ``take_failed``. All are called by the
engine's thread. Knows neither vLLM nor torch: layers are writable buffers of ``blocks * layer_bytes`` bytes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .. import _lanner, errors
from .log import Limited
from .plan import Load, Tainted, block_ranges, keys


class _Step:
    """The loads of one step of the engine."""

    def __init__(self, loads: list[Load], layers: int) -> None:
        self.loads = loads
        self.found: list[tuple[Load, _lanner.Snapshot]] = []
        self.may_write = threading.Event()
        self.read = [threading.Event() for _ in range(layers)]
        self.turn = itertools.count()
        self.error: BaseException | None = None
        self.finding: Future[None] | None = None


class Loads:
    def __init__(
        self, client: _lanner.Client, prefix: str, layers: Sequence[Any], layer_bytes: int, tainted: Tainted, *, overlap: bool, threads: int = 1
    ) -> None:
        """``overlap``: layers are read while earlier ones are computed with. Otherwise all are read before the first:
        where computing takes all CPUs, a thread beside it has to take turns with it, and each of its steps waits for the slowest of its threads."""
        self.client, self.prefix = client, prefix
        self.layers, self.layer_bytes = layers, layer_bytes
        self.tainted, self.overlap = tainted, overlap
        self.failed: set[int] = set()
        self.log = Limited()
        self._lock = threading.Lock()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "lanner-load")
        self._step: _Step | None = None

    def begin(self, loads: list[Load]) -> None:
        """Looks for the blocks, and doesn't wait for the answer. Nothing is written to the cache yet."""
        if loads:
            step = self._step = _Step(loads, len(self.layers))
            step.finding = self._pool.submit(self._find_all, step)
            for _ in range(self._threads):
                self._pool.submit(self._read_all, step, True)

    def start(self) -> None:
        """From now on the blocks of the step's loads may be written. Unless loads overlap with computing, they're done when this returns."""
        if (step := self._step) is not None:
            step.may_write.set()
            if not self.overlap:
                self._read_all(step, False)
                self.finish()

    def wait(self, index: int) -> None:
        """Returns when the layer is there, as far as it could be loaded."""
        if (step := self._step) is None:
            return
        step.read[index].wait()
        if step.error is not None:
            raise step.error

    def finish(self) -> None:
        """Waits for all layers; the step has ended."""
        for index in range(len(self.layers) if self._step is not None else 0):
            self.wait(index)
        self._step = None

    def take_failed(self) -> set[int]:
        """The blocks that couldn't be loaded, once the step has ended."""
        self.finish()
        failed, self.failed = self.failed, set()
        return failed

    def close(self) -> None:
        """Ends the threads; of a step that the engine gave up in its midst, nothing more is read."""
        if (step := self._step) is not None:
            step.turn = itertools.count(len(self.layers))
            step.may_write.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- in the threads -------------------------------------------------------------------------------------------------------------------

    def _find_all(self, step: _Step) -> None:
        step.found = [(load, snapshot) for load in step.loads if (snapshot := self.find(load)) is not None]

    def find(self, load: Load) -> _lanner.Snapshot | None:
        """The load's blocks, leased; those that are gone by now or aren't what they should be are left out and reported."""
        try:
            snapshot = self.client.match_chain(keys(self.prefix, load.hashes))
            block_bytes = self.layer_bytes * len(self.layers)
            held = load.start
            while held < len(snapshot) and snapshot.value_bytes(held) == block_bytes:
                held += 1
        except errors.LannerError as error:
            self.log.warn("blocks couldn't be loaded, and are computed: %s", error)
            snapshot, held = None, load.start
        count = held - load.start
        self._give_up(load.block_ids[count:])
        del load.block_ids[count:]
        self.tainted.loaded(load.block_ids)
        return snapshot if count else None

    def _read_all(self, step: _Step, is_reader: bool) -> None:
        """Reads layers that nobody has begun to read, in their order, until there are none."""
        try:
            step.finding.result()
            step.may_write.wait()
        except BaseException as error:
            self._broken(step, error, step.read)
            return
        for index in step.turn:
            if index >= len(self.layers):
                return
            try:
                self._read_layer(step, index)
            except BaseException as error:
                self._broken(step, error, [])
                if not is_reader:
                    raise
            finally:
                step.read[index].set()

    def _broken(self, step: _Step, error: BaseException, waited_for: Iterable[threading.Event]) -> None:
        """A fault of this program's, not of the store's: the engine's thread raises it."""
        step.error = error
        for event in waited_for:
            event.set()

    def _read_layer(self, step: _Step, index: int) -> None:
        for load, snapshot in step.found:
            try:
                snapshot.read_into(block_ranges(load.start, load.block_ids, index, self.layer_bytes), self.layers[index])
            except errors.LannerError as error:
                self._give_up(load.block_ids)
                self.log.warn("blocks couldn't be loaded, and are computed: %s", error)

    def _give_up(self, block_ids: list[int]) -> None:
        with self._lock:
            self.failed.update(block_ids)
            self.tainted.failed(block_ids)
