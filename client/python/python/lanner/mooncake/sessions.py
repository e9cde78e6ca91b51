"""Sessions: several reads or writes of one object. A reading one is a snapshot of it; what a writing one gets is put together on this side."""

from __future__ import annotations

import ctypes
from .._lanner import Client, Snapshot
from .checks import are_memory
from .codes import CODED, INVALID_PARAMS, NO_AVAILABLE_HANDLE, OBJECT_ALREADY_EXISTS, OK, code_of, code_of_read, logger
from .regions import Regions
from .types import ReplicateConfig, pin_of


class SessionCalls:
    """Needs ``client`` and the three fields of the class it's mixed into."""

    client: Client
    _regions: Regions
    _reads: dict[str, Snapshot]
    _writes: dict[str, tuple[bytearray, str | None]]

    def batch_get_session_start(self, keys: list[str]) -> list[int]:
        """Leases each object. A session lasts as long as the lease; reads after that answer -707, and it's started anew."""
        codes = []
        for key in keys:
            try:
                self._reads[key] = self.client.prepare_snapshot([key])
                codes.append(OK)
            except CODED as error:
                codes.append(code_of_read(error))
        return codes

    def batch_get_into_multi_buffer_ranges(
        self, keys: list[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]], all_src_offsets: list[list[int]]
    ) -> list[int]:
        """Bytes read of each session's object, or why nothing was."""
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_src_offsets):
            return [INVALID_PARAMS] * len(keys)
        codes = []
        for key, addresses, sizes, sources in zip(keys, all_buffer_ptrs, all_sizes, all_src_offsets):
            is_good = are_memory(addresses, sizes) and len(sizes) == len(sources) and min(sources, default=0) >= 0
            if key not in self._reads or not is_good:
                codes.append(INVALID_PARAMS)
                continue
            try:
                for address, size, source in zip(addresses, sizes, sources):
                    self._regions.read(self._reads[key], source, size, address)
                codes.append(sum(sizes))
            except CODED as error:
                codes.append(code_of(error))
        return codes

    def batch_get_session_end(self, keys: list[str]) -> int:
        for key in keys:
            self._reads.pop(key, None)
        return OK

    def batch_put_session_start(self, keys: list[str], sizes: list[int], config: ReplicateConfig | None = None) -> list[int]:
        """Takes memory for each value on this side; it's stored when the session ends. -705 for an object that there is."""
        if len(keys) != len(sizes):
            return [INVALID_PARAMS] * len(keys)
        try:
            pin = pin_of(config, len(keys))
            most = max(server["max_value_bytes"] for server in self.client.servers())
            there = self.client.exists_batch(keys, return_exceptions=True)
        except CODED as error:
            return [code_of(error)] * len(keys)
        return [self._start_write(key, size if size <= most else 0, is_there, pin) for key, size, is_there in zip(keys, sizes, there)]

    def _start_write(self, key: str, size: int, is_there: bool | Exception, pin: str | None) -> int:
        if isinstance(is_there, Exception):
            return code_of(is_there)
        if size <= 0 or key in self._writes:
            return INVALID_PARAMS
        if is_there:
            return OBJECT_ALREADY_EXISTS
        try:
            self._writes[key] = (bytearray(size), pin)
        except MemoryError:
            logger.warning("there is no memory for a value of %d bytes (answered as %d)", size, NO_AVAILABLE_HANDLE)
            return NO_AVAILABLE_HANDLE
        return OK

    def batch_put_from_multi_buffer_ranges(
        self, keys: list[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]], all_dst_offsets: list[list[int]]
    ) -> list[int]:
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_dst_offsets):
            return [INVALID_PARAMS] * len(keys)
        codes = []
        for key, addresses, sizes, targets in zip(keys, all_buffer_ptrs, all_sizes, all_dst_offsets):
            value, _ = self._writes.get(key, (None, None))
            is_inside = value is not None and all(0 <= target and target + size <= len(value) for target, size in zip(targets, sizes))
            if value is None or not is_inside or not are_memory(addresses, sizes) or len(sizes) != len(targets):
                codes.append(INVALID_PARAMS)
                continue
            for address, size, target in zip(addresses, sizes, targets):
                value[target : target + size] = ctypes.string_at(address, size)
            codes.append(sum(sizes))
        return codes

    def batch_put_session_end(self, keys: list[str]) -> list[int]:
        return [self._end_write(key) for key in keys]

    def _end_write(self, key: str) -> int:
        if key not in self._writes:
            return INVALID_PARAMS
        value, pin = self._writes.pop(key)
        try:
            self.client.put_batch([key], [value], pin=pin)
            return OK
        except CODED as error:
            return code_of(error)

    def batch_put_session_revoke(self, keys: list[str]) -> list[int]:
        return [OK if self._writes.pop(key, None) is not None else INVALID_PARAMS for key in keys]
