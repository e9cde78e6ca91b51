"""What each call does, takes, blocks on and raises.

Common to all: a *key* is ``str`` (its UTF-8) or ``bytes``, 1 to 1024 bytes. A *buffer* is whatever has the buffer protocol (numpy arrays,
``bytearray``, ``memoryview``), a torch tensor in main memory, or an object with DLPack; it must be contiguous, and is read or written
where it is, without a copy. It is held until the call has returned, so it isn't freed meanwhile, and resizing it raises (a torch tensor's from its
first call on; numpy's ``resize(refcheck=False)`` doesn't look, and mustn't be called); what else writes to it meanwhile is mixed with what is read. Every call that may wait releases the GIL and ends within the client's time-out (``?timeout=``, 5 s
unless given); a ``KeyboardInterrupt`` comes up when it has ended. After an exception the contents of a buffer mean nothing.

In batches each item has its outcome in its place, and a miss is ``None`` (of puts: ``False``, there was an object already). Whatever else
went wrong with an item is raised; with ``return_exceptions=True`` it stands in the item's place instead, also that its key is empty or too
long, or that its server can't be reached. What is wrong with the call as a whole is raised in any case: arguments of a wrong type, lists of
different lengths, memory that overlaps or can't be, a chain with a bad key.

Objects may be used by several threads, each of which has connections of its own. The child of a fork makes its connections anew when it
first needs them.
"""

import builtins
from collections.abc import Sequence
from typing import Any, final, overload

from typing_extensions import Self

from .types import Buffer, Key, Pin, Ranges

__all__ = [
    "Client", "EngramSet", "EngramStore", "Registered", "ShardedTensor", "Snapshot", "TensorSlice", "__version__", "stored_keys",
]
__version__: str

def stored_keys(keys: Sequence[Key]) -> list[bytes]:
    """The keys under which the blocks of a chain are stored (docs/chains.md)."""

@final
class Client:
    """A handle on one or more servers."""

    def __new__(cls, url: str = "lanner://127.0.0.1:7411") -> Self:
        """Connects to ``lanner://HOST:PORT[,HOST:PORT...][?transport=auto|tcp|shm|rdma&tenant=...&token=...&timeout=5s]``; blocks until
        each server has answered, so all of them must be there now; later each may go and come back. Raises ``ConnectionFailed``, ``InvalidArgument``."""

    @property
    def url(self) -> str:
        """The servers and the transport, without tenant and token."""

    def put(self, key: Key, value: Buffer, *, ttl: float | None = None, pin: Pin | None = None, group: Key | None = None) -> None:
        """Stores ``value`` (copied before the call returns); ``AlreadyExists`` if there is an object. ``ttl`` in seconds, more than 0, rounded up to
        whole ones. ``pin``: ``"soft"`` is evicted last, ``"hard"`` not before its ``ttl``, which it must have. ``group``: the epoch group
        that a change of this object is announced to. Raises ``Busy`` if the store is full."""

    def upsert(self, key: Key, value: Buffer, *, ttl: float | None = None, pin: Pin | None = None, group: Key | None = None) -> None:
        """As ``put``, in place of the object that may be there. Readers that hold a lease go on reading that one."""

    def put_batch(
        self,
        keys: Sequence[Key],
        values: Sequence[Buffer],
        *,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> builtins.list[bool]:
        """``put`` of each; ``False`` where there was an object already. Items don't depend on each other."""

    def upsert_batch(
        self,
        keys: Sequence[Key],
        values: Sequence[Buffer],
        *,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> builtins.list[bool]:
        """``upsert`` of each; ``True`` for each that was stored."""

    def get(self, key: Key) -> bytes | None:
        """The value, or ``None`` if there is no object, which is not the same as ``b""``. Copies twice; see ``get_into``."""

    def get_batch(self, keys: Sequence[Key], *, return_exceptions: bool = False) -> builtins.list[bytes | None]:
        """``get`` of each key, in their order."""

    def get_into(self, key: Key, buffer: Buffer) -> int | None:
        """Reads the value to the start of ``buffer`` and returns its length in bytes; ``None`` if there is no object.
        ``InvalidArgument`` with ``needed`` if the buffer is too small."""

    def get_into_batch(
        self, keys: Sequence[Key], buffers: Sequence[Buffer], *, return_exceptions: bool = False
    ) -> builtins.list[int | None]:
        """``get_into`` of each key and its buffer. ``ValueError`` if two buffers overlap."""

    def exists(self, key: Key) -> bool:
        """Whether there is an object. Extends no lease and counts as no access."""

    def exists_batch(self, keys: Sequence[Key], *, return_exceptions: bool = False) -> builtins.list[bool]:
        """``exists`` of each key."""

    def remove(self, key: Key) -> bool:
        """Removes the object; whether there was one. Readers that hold a lease on it go on reading."""

    def remove_batch(self, keys: Sequence[Key], *, return_exceptions: bool = False) -> builtins.list[bool]:
        """``remove`` of each key."""

    def size(self, key: Key) -> int | None:
        """Length of the value in bytes, or ``None``. Counts as an access."""

    def size_batch(self, keys: Sequence[Key], *, return_exceptions: bool = False) -> builtins.list[int | None]:
        """``size`` of each key."""

    def read_ranges(self, keys: Sequence[Key], ranges: Ranges, buffer: Buffer) -> None:
        """Reads ranges of the objects as they are now. ``NotFound`` with the ``index`` of the key that is missing; ``InvalidArgument`` with
        that of a range that is out of bounds, before anything is read."""

    def list(self, prefix: Key = ..., *, limit: int | None = None) -> builtins.list[tuple[bytes, int]]:
        """Keys that begin with ``prefix`` and the lengths of their values, in the order of keys."""

    def longest_prefix(self, key: Key) -> bytes | None:
        """The longest stored key that ``key`` begins with."""

    def register(self, buffer: Buffer) -> Registered:
        """Registers memory with the RDMA devices that lead to the servers, once, for memory that is used again and again: some 100 us a mebibyte.
        Where no server is reached over RDMA, its calls copy as those to any memory do. ``SystemFailed`` if a device refuses: mostly the limit on
        locked memory (``ulimit -l``)."""

    def prepare_snapshot(self, keys: Sequence[Key]) -> Snapshot:
        """Leases the objects, to be read many times without asking a server. ``NotFound`` with the ``index`` of the first that is missing."""

    def match_chain(self, keys: Sequence[Key]) -> Snapshot:
        """How many leading blocks of a chain are there, as a snapshot of exactly those (docs/chains.md). One round trip."""

    def put_chain(
        self,
        keys: Sequence[Key],
        start: int,
        values: Sequence[Buffer],
        *,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> builtins.list[bool]:
        """Stores the blocks of the chain ``keys`` from block ``start`` on; ``False`` for those that are there already."""

    def get_into_addresses(
        self, keys: Sequence[Key], addresses: Sequence[int], sizes: Sequence[int], *, return_exceptions: bool = False
    ) -> builtins.list[int | None]:
        """``get_into_batch`` to memory named by its address. The caller answers for it: it must be there, and used by nobody else, until
        the call has returned; else the process ends in a crash or in wrong bytes."""

    def put_from_addresses(
        self,
        keys: Sequence[Key],
        addresses: Sequence[int],
        sizes: Sequence[int],
        *,
        replace: bool = False,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> builtins.list[bool]:
        """``put_batch`` (with ``replace``: ``upsert_batch``) from memory named by its address, for which the caller answers."""

    def get_into_parts(
        self,
        keys: Sequence[Key],
        addresses: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        *,
        return_exceptions: bool = False,
    ) -> builtins.list[int | None]:
        """As ``get_into_addresses``, each value spread over several pieces of memory in order. Values of more than one piece are copied
        once more; where that matters, read ranges of a snapshot."""

    def put_from_parts(
        self,
        keys: Sequence[Key],
        addresses: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        *,
        replace: bool = False,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> builtins.list[bool]:
        """As ``put_from_addresses``, each value put together from several pieces of memory."""

    def servers(self) -> builtins.list[dict[str, Any]]:
        """Each server: ``address``, ``boot_id``, ``shards``, ``capacity_bytes``, ``max_value_bytes``, ``lease_ms``. Asks nothing."""

    def stats(self) -> builtins.list[tuple[str, str]]:
        """What each shard says of itself: the server's address, and a JSON object."""

    def rdma_failures(self) -> builtins.list[tuple[str, int, str]]:
        """Where RDMA was tried and has failed, so that calls go over TCP: the server's address, how often, and why the last time."""

    def transport_for(self, key: Key) -> str:
        """``"shm"``, ``"rdma"`` or ``"tcp"``: what this thread's connection for ``key`` uses. Connects if need be."""

@final
class Snapshot:
    """Leased descriptors of a set of objects. Made by ``Client.prepare_snapshot`` and ``Client.match_chain``."""

    def read_into(self, ranges: Ranges, buffer: Buffer, *, checked: bool = False, refresh: bool = False) -> None:
        """Reads ranges through the snapshot and nothing else. ``Stale`` if its lease ended before the read was done, or, with ``checked``,
        if an object has been replaced: then nothing counts as read. With ``refresh`` it asks the servers again when that is due, and once
        more after ``Stale``."""

    def refresh(self) -> None:
        """Asks again for all keys: new versions, new leases. If that fails the snapshot stays as it was."""

    @property
    def needs_refresh(self) -> bool:
        """From the middle of the lease window that remained when it was made."""

    @property
    def remaining(self) -> float:
        """Seconds until the earliest lease ends."""

    def value_bytes(self, index: int) -> int:
        """Length of the value of the key at ``index``."""

    def __len__(self) -> int:
        """Number of objects."""

@final
class Registered:
    """Memory that devices read to and put from directly, made by ``Client.register``. The memory can't be resized meanwhile, and servers of the
    client can read it. Places are ``(start, length)`` in bytes. Threads may share it, but one call waits for the other. After a fork the child
    registers anew (``RuntimeError``)."""

    def get_into(self, key: Key, start: int, length: int) -> int | None:
        """``Client.get_into`` to this place."""

    def get_into_batch(
        self, keys: Sequence[Key], places: Sequence[tuple[int, int]], *, return_exceptions: bool = False
    ) -> list[int | None]:
        """``Client.get_into_batch`` to places that don't overlap."""

    def put_batch(
        self,
        keys: Sequence[Key],
        places: Sequence[tuple[int, int]],
        *,
        replace: bool = False,
        ttl: float | None = None,
        pin: Pin | None = None,
        group: Key | None = None,
        return_exceptions: bool = False,
    ) -> list[bool]:
        """``Client.put_batch`` (with ``replace``: ``upsert_batch``) of the bytes at each place."""

    def read_from_snapshot(self, snapshot: Snapshot, ranges: Ranges, *, checked: bool = False) -> None:
        """``Snapshot.read_into`` this memory."""

    def close(self) -> None:
        """Ends the registration. It ends by itself when nobody refers to this any more."""

    @property
    def is_with_device(self) -> bool:
        """Whether a device has the memory."""

    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...

class EngramStore:
    """The Engram tables of one layer, one for each head. Look-ups read through a cached snapshot and ask no server."""

    @overload
    def __new__(
        cls, client: Client | None, layer: int, table_vocab_sizes: Sequence[int], *, row_bytes: int, dtype: None = None, embedding_dim: None = None
    ) -> Self: ...
    @overload
    def __new__(
        cls, client: Client | None, layer: int, table_vocab_sizes: Sequence[int], *, row_bytes: None = None, dtype: str, embedding_dim: int
    ) -> Self:
        """``table_vocab_sizes``: rows of each head's table. ``dtype`` as torch names it. Without a client: metadata only."""

    def populate(self, tables: Sequence[Buffer]) -> None:
        """Stores all tables, or none. ``AlreadyExists`` if one is there."""

    def lookup_into(self, row_ids: Any, out: Buffer, *, checked: bool = False) -> None:
        """Reads the rows of ``row_ids``, an int64 array or nested lists of shape [B, L, H], to ``out`` of shape [B, L, H, row]. At most one
        lease old; with ``checked`` as it is now. ``EngramError`` names the id that is out of range; ``MissingTables``."""

    def remove_from_store(self, *, force: bool = False) -> int:
        """Removes the tables and returns how many there were. Without ``force`` not if one has another size than is configured."""

    @property
    def layer(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def table_vocab_sizes(self) -> list[int]: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def embedding_dim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def keys(self) -> list[str]: ...

@final
class EngramSet:
    """The Engram tables of several layers, looked up in one batch."""

    def __new__(cls, client: Client, stores: Sequence[EngramStore]) -> Self: ...
    def lookup_into(self, row_ids: Sequence[Any], out: Buffer, *, checked: bool = False) -> None:
        """``row_ids`` has ids for each layer; ``out`` gets the rows of the first layer, then those of the second, and so on."""

    @property
    def layers(self) -> list[int]: ...

@final
class ShardedTensor:
    """A tensor in the store, cut along one axis into parts that different ranks write and of which any rank reads any partition."""

    @staticmethod
    def create(
        client: Client, name: str, dtype: str, shape: Sequence[int], *, split_axis: int = 0, parts: int | Sequence[int]
    ) -> ShardedTensor:
        """Announces a tensor; every rank may do it. ``parts``: how many of equal length, or the length of each. ``TensorError`` if the name
        stands for another tensor."""

    @staticmethod
    def open(client: Client, name: str) -> ShardedTensor:
        """The tensor of this name; ``MissingParts`` if there is none."""

    def write_part(self, part: int, data: Buffer) -> None:
        """Stores a part, row-major, in place of the one that may be there."""

    def whole(self) -> TensorSlice: ...
    def slice(self, axis: int, start: int, end: int) -> TensorSlice:
        """The indices ``start`` to ``end`` (without it) along ``axis``. Reads nothing yet."""

    def partition(self, axis: int, count: int, index: int) -> TensorSlice:
        """Part ``index`` of the tensor cut evenly into ``count`` along ``axis``, whoever wrote it."""

    def remove(self) -> bool:
        """Removes the tensor and its parts; whether there was one."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def split_axis(self) -> int: ...
    @property
    def part_lengths(self) -> list[int]: ...

@final
class TensorSlice:
    """A slice of a tensor, to be read again and again. What is read may be one lease old, each part for itself: parts that were written again since, or
    removed, are seen when the lease has ended; a slice made now reads what is there now. One read at a time: threads take a slice each
    (``RuntimeError`` otherwise)."""

    def read_into(self, buffer: Buffer) -> None:
        """Reads the slice, row-major, to ``buffer``, which is exactly as large. ``MissingParts``, ``TensorError``."""

    @property
    def nbytes(self) -> int: ...
    @property
    def shape(self) -> list[int]: ...
