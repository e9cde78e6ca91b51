"""``MooncakeDistributedStore`` on Lanner."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from .. import errors
from .._lanner import Client, Snapshot
from .absent import AbsentCalls
from .checks import contiguous, for_good, good_values, is_memory
from .codes import CODED, INVALID_PARAMS, OBJECT_NOT_FOUND, OK, TRANSFER_FAIL, code_of, code_of_read, log_failures, logger
from .regions import Regions
from .sessions import SessionCalls
from .setup import arguments_of, bytes_of, url_of
from .tensors import TensorCalls
from .types import BufferHandle, Descriptor, ReplicaDescriptor, ReplicateConfig, pin_of

#: How often a value that grows while it's read is asked for again.
_MAX_READS = 4


class MooncakeDistributedStore(SessionCalls, TensorCalls, AbsentCalls):
    """The class that programs written for Mooncake Store make. Calls answer with Mooncake's codes: 0 or more is good.

    Before ``setup`` and after ``close`` every call that needs a server fails with -1 (``health_check``: 1), and reads find nothing; an
    ``EngramStore`` of it raises ``RuntimeError``.
    """

    def __init__(self) -> None:
        self._client: Client | None = None
        self._hostname = ""
        self._regions = Regions()
        self._reads: dict[str, Snapshot] = {}
        self._writes: dict[str, tuple[bytearray, str | None]] = {}

    # --- life -------------------------------------------------------------------------------------------------------------------------

    def setup(self, *arguments: Any, **keywords: Any) -> int:
        """Connects. Takes Mooncake's positional, keyword and dictionary forms; ``master_server_addr`` names the Lanner servers. Sizes are
        checked and otherwise ignored: memory is the servers'."""
        named = arguments_of(arguments, keywords)
        try:
            for size in ("global_segment_size", "local_buffer_size"):
                bytes_of(named.get(size, 0))
            known = {name: str(named[name]) for name in ("protocol", "rdma_devices", "tenant_id") if name in named}
            url = url_of(str(named.get("master_server_addr", "")), **known)
            client = Client(url)
        except CODED as error:
            return code_of(error)
        # They are registered with the former client's connections.
        self._regions.clear()
        self._client = client
        self._hostname = str(named.get("local_hostname", ""))
        logger.info("connected to %s", self._client.url)
        return OK

    @property
    def client(self) -> Client:
        """The client of Lanner behind this. ``RuntimeError`` before ``setup``."""
        if self._client is None:
            raise errors.SystemFailed("the store isn't set up; call setup() first")
        return self._client

    def close(self) -> int:
        self._client = None
        self._regions.clear()
        self._reads.clear()
        self._writes.clear()
        return OK

    def health_check(self) -> int:
        """0 if every server answers, else 1."""
        try:
            self.client.stats()
            return 0
        except CODED:
            return 1

    def get_hostname(self) -> str:
        return self._hostname

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Registers the memory with RDMA devices, if servers are reached over RDMA now: then ``put_from``, ``get_into`` and the like don't copy there.
        They take any other memory, too. -600 for memory that overlaps another that is registered, or that isn't main memory. Until
        ``unregister_buffer`` or ``close`` it must stay where it is, and the servers can read it."""
        try:
            self._regions.add(self.client, buffer_ptr, size)
            return OK
        except CODED as error:
            return code_of(error)

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Waits for the call that uses the memory, if there is one. -600 where no registered memory begins."""
        return OK if self._regions.remove(buffer_ptr) else INVALID_PARAMS

    # --- put --------------------------------------------------------------------------------------------------------------------------

    def _put(self, keys: list[str], values: list[Any], replace: bool, config: ReplicateConfig | None) -> int:
        try:
            views = [contiguous(value) for value in values]
            if len(keys) != len(views) or not all(view.nbytes for view in views):
                return INVALID_PARAMS
            call = self.client.upsert_batch if replace else self.client.put_batch
            outcomes = call(keys, views, pin=pin_of(config, len(keys)), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    return code_of(outcome)
            return OK
        except CODED as error:
            return code_of(error)

    def put(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        return self._put([key], [value], False, config)

    def put_batch(self, keys: list[str], values: list[Any], config: ReplicateConfig | None = None) -> int:
        return self._put(keys, values, False, config)

    def put_parts(self, key: str, *args: Any, config: ReplicateConfig | None = None) -> int:
        return self._put([key], [b"".join(map(contiguous, args))], False, config)

    def upsert(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        return self._put([key], [value], True, config)

    def upsert_batch(self, keys: list[str], values: list[Any], config: ReplicateConfig | None = None) -> int:
        return self._put(keys, values, True, config)

    def upsert_parts(self, key: str, *args: Any, config: ReplicateConfig | None = None) -> int:
        return self._put([key], [b"".join(map(contiguous, args))], True, config)

    def _put_parts(
        self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]], replace: bool, config: ReplicateConfig | None
    ) -> list[int]:
        try:
            if not len(keys) == len(addresses) == len(sizes):
                return [INVALID_PARAMS] * len(keys)
            client, pin = self.client, pin_of(config, len(keys))

            def put(keys: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> list[int]:
                outcomes = self._regions.put(client, keys, addresses, sizes, replace=replace, pin=pin)
                return [OK if isinstance(outcome, bool) else code_of(outcome) for outcome in outcomes]

            is_good = good_values(addresses, sizes)
            if not all(map(any, sizes)):
                is_good = [good and any(parts) for good, parts in zip(is_good, sizes)]
            return for_good(is_good, put, keys, addresses, sizes)
        except CODED as error:
            return [code_of(error)] * len(keys)

    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        return self._put_parts([key], [[buffer_ptr]], [[size]], False, config)[0]

    def batch_put_from(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        return self._put_parts(keys, [[ptr] for ptr in buffer_ptrs], [[size] for size in sizes], False, config)

    def batch_put_from_multi_buffers(
        self, keys: list[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]], config: ReplicateConfig | None = None
    ) -> list[int]:
        return self._put_parts(keys, all_buffer_ptrs, all_sizes, False, config)

    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        return self._put_parts([key], [[buffer_ptr]], [[size]], True, config)[0]

    def batch_upsert_from(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        return self._put_parts(keys, [[ptr] for ptr in buffer_ptrs], [[size] for size in sizes], True, config)

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """Stores the metadata and, behind it, the buffer as one value."""
        return self._put_parts([key], [[metadata_buffer_ptr, buffer_ptr]], [[metadata_size, size]], False, config)[0]

    # --- get --------------------------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes:
        """The value; ``b""`` if there is none or it can't be read, as in Mooncake (``is_exist`` tells which)."""
        return self.get_batch([key])[0]

    def get_batch(self, keys: list[str]) -> list[bytes]:
        try:
            values = self.client.get_batch(keys, return_exceptions=True)
        except CODED as error:
            code_of(error)
            return [b""] * len(keys)
        log_failures(values, "values couldn't be read, and are answered as b''")
        return [value if isinstance(value, bytes) else b"" for value in values]

    def _read(self, key: str) -> BufferHandle | None:
        """The value in memory of its own; ``None`` if there is none."""
        for _ in range(_MAX_READS):
            size = self.client.size(key)
            if size is None:
                return None
            handle = BufferHandle(size)
            try:
                got = self.client.get_into(key, handle)
            except errors.InvalidArgument:
                continue  # replaced by a longer one in between
            if got is not None:
                del handle[got:]
                return handle
        return None

    def get_buffer(self, key: str) -> BufferHandle | None:
        try:
            return self._read(key)
        except CODED as error:
            code_of(error)
            return None

    def batch_get_buffer(self, keys: list[str]) -> list[BufferHandle | None]:
        return [self.get_buffer(key) for key in keys]

    def batch_get_into_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Bytes read of each value, or why it wasn't. -800 for one that doesn't fill its buffers: they don't hold what was meant then."""
        codes = self._get_parts(keys, all_buffer_ptrs, all_sizes)
        if len(codes) != len(all_sizes):
            return codes
        return [TRANSFER_FAIL if 0 <= code < sum(sizes) else code for code, sizes in zip(codes, all_sizes)]

    def _get_parts(self, keys: list[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]]) -> list[int]:
        try:
            if not len(keys) == len(all_buffer_ptrs) == len(all_sizes):
                return [INVALID_PARAMS] * len(keys)
            client = self.client

            def get(keys: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> list[int]:
                return [_read_code(outcome) for outcome in self._regions.get(client, keys, addresses, sizes)]

            return for_good(good_values(all_buffer_ptrs, all_sizes), get, keys, all_buffer_ptrs, all_sizes)
        except CODED as error:
            return [code_of(error)] * len(keys)

    def batch_get_into(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        return self._get_parts(keys, [[address] for address in buffer_ptrs], [[size] for size in sizes])

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def get_into_ranges(
        self,
        buffer_ptrs: list[int],
        all_keys: list[list[str]],
        all_dst_offsets: list[list[list[int]]],
        all_src_offsets: list[list[list[int]]],
        all_sizes: list[list[list[int]]],
    ) -> list[list[list[int]]]:
        """For each buffer, of each of its keys, each range: bytes read, or why it wasn't."""
        columns = (all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        if any(len(column) != len(buffer_ptrs) for column in columns):
            named = zip_longest(all_keys[: len(buffer_ptrs)], all_dst_offsets[: len(buffer_ptrs)], fillvalue=())
            refused = [_refused_ranges(keys, targets) for keys, targets in named]
            return refused + [[[INVALID_PARAMS]]] * (len(buffer_ptrs) - len(refused))
        return [self._ranges_into(*one) for one in zip(buffer_ptrs, *columns)]

    def _ranges_into(
        self, address: int, keys: list[str], targets: list[list[int]], sources: list[list[int]], sizes: list[list[int]]
    ) -> list[list[int]]:
        if not len(keys) == len(targets) == len(sources) == len(sizes):
            return _refused_ranges(keys, targets)
        columns = list(zip(targets, sources, sizes))
        is_even = [len(starts) == len(places) == len(lengths) for starts, places, lengths in columns]
        ranges = [
            (index, source, size, target)
            for index, key_ranges in enumerate(columns)
            if is_even[index]
            for target, source, size in zip(*key_ranges)
        ]
        is_good = [address > 0 <= min(source, target) and is_memory(address + target, size) for _, source, size, target in ranges]
        if all(is_even) and all(is_good):
            try:
                self._read_ranges(keys, ranges, address)
                return sizes
            except CODED as error:
                if not isinstance(error, (errors.NotFound, ValueError)):
                    return [[code_of(error)] * len(key_sizes) for key_sizes in sizes]
        # One of them is missing, out of bounds or nowhere: each by itself says which.
        codes: list[list[int]] = [[] if even else [INVALID_PARAMS] * max(1, len(starts)) for even, starts in zip(is_even, targets)]
        for (index, source, size, target), good in zip(ranges, is_good):
            try:
                if good:
                    self._read_ranges([keys[index]], [(0, source, size, target)], address)
                codes[index].append(size if good else INVALID_PARAMS)
            except CODED as error:
                codes[index].append(code_of_read(error))
        return codes

    def _read_ranges(self, keys: list[str], ranges: list[tuple[int, int, int, int]], address: int) -> None:
        if ranges:
            end = max(target + size for _, _, size, target in ranges)
            self.client.read_ranges(keys, ranges, (ctypes.c_ubyte * end).from_address(address))

    # --- about objects ------------------------------------------------------------------------------------------------------------------

    def is_exist(self, key: str) -> int:
        """1 if there is such an object, 0 if not, less if that can't be found out."""
        return self.batch_is_exist([key])[0]

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        try:
            there = self.client.exists_batch(keys, return_exceptions=True)
        except CODED as error:
            return [code_of(error)] * len(keys)
        return [int(answer) if isinstance(answer, bool) else code_of_read(answer, missing=0) for answer in there]

    def get_size(self, key: str) -> int:
        try:
            size = self.client.size(key)
        except CODED as error:
            return code_of_read(error)
        return OBJECT_NOT_FOUND if size is None else size

    def remove(self, key: str, force: bool = False) -> int:
        return self.batch_remove([key], force)[0]

    def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
        """Removes each. No lease stands in the way, so ``force`` changes nothing."""
        try:
            answers = self.client.remove_batch(keys, return_exceptions=True)
        except CODED as error:
            return [code_of(error)] * len(keys)
        code = {True: OK, False: OBJECT_NOT_FOUND}
        return [code[answer] if isinstance(answer, bool) else code_of_read(answer) for answer in answers]

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes the objects whose key the pattern (of Python's ``re``) is found in; how many."""
        try:
            pattern = re.compile(regex_pattern)
        except re.error as error:
            logger.warning("%r is no regular expression: %s", regex_pattern, error)
            return INVALID_PARAMS
        try:
            keys = [key for key, _ in self.client.list() if pattern.search(key.decode("utf-8", "surrogateescape"))]
            return sum(self.client.remove_batch(keys)) if keys else 0
        except CODED as error:
            return code_of(error)

    def remove_all(self, force: bool = False) -> int:
        """Removes every object of the tenant; how many."""
        return self.remove_by_regex("", force)

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[ReplicaDescriptor]]:
        """One descriptor of each object there is. The endpoint is the server's address if there is only one server."""
        try:
            sizes = self.client.size_batch(keys, return_exceptions=True)
            servers = self.client.servers()
        except CODED as error:
            code_of(error)
            return {}
        log_failures(sizes, "objects couldn't be asked for, and are answered as missing")
        endpoint = servers[0]["address"] if len(servers) == 1 else ""
        return {key: [ReplicaDescriptor(Descriptor(size, endpoint))] for key, size in zip(keys, sizes) if isinstance(size, int)}


def _refused_ranges(keys: Sequence[str], targets: Sequence[list[int]]) -> list[list[int]]:
    """The answer for a buffer whose lists have different lengths: a code for each range, as far as it can be told how many there are."""
    per_key = zip_longest(keys, targets, fillvalue=())
    return [[INVALID_PARAMS] * max(1, len(starts)) for _, starts in per_key] or [[INVALID_PARAMS]]


def _read_code(outcome: Any) -> int:
    if outcome is None:
        return OBJECT_NOT_FOUND
    return outcome if isinstance(outcome, int) else code_of_read(outcome)


def bind_to_numa_node(node: int) -> None:
    """Nothing: a server of Lanner binds its own memory (``--numa-node``); engines bind theirs."""


__all__ = ["MooncakeDistributedStore", "bind_to_numa_node"]
