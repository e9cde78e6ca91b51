"""The small types of Mooncake Store: configuration of replicas, descriptors, buffers."""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass, field


class ObjectDataType(enum.IntEnum):
    """What an object holds. Kept for programs that say so; Lanner treats all alike."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(enum.IntEnum):
    """Whether a put pins softly. ``PRESERVE`` is no pin for a new object."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ReplicaStatus(enum.IntEnum):
    """State of a replica; what Lanner answers for is ``COMPLETE`` always."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


@dataclass
class ReplicateConfig:
    """How an object is to be kept. Of these, Lanner heeds the pins; it keeps one copy, on the server that the key's hash says."""

    replica_num: int = 1
    with_soft_pin: bool = False
    with_hard_pin: bool = False
    soft_pin_action: SoftPinAction = SoftPinAction.PRESERVE
    soft_pin_ttl_ms: int | None = None
    preferred_segment: str = ""
    preferred_segments: list[str] = field(default_factory=list)
    prefer_alloc_in_same_node: bool = False
    data_type: ObjectDataType = ObjectDataType.UNKNOWN
    group_ids: list[str] | None = None
    nof_replica_num: int = 0
    dfs_replica_num: int = 0
    preferred_nof_segments: list[str] = field(default_factory=list)

    @property
    def pin(self) -> str | None:
        """Lanner's pin: a hard one must end with its object, which Mooncake's doesn't, so both become soft: evicted last."""
        is_pinned = self.with_soft_pin or self.with_hard_pin or self.soft_pin_action == SoftPinAction.ENABLE
        return "soft" if is_pinned else None


class BufferHandle(bytearray):
    """A value in memory of its own. Has the buffer protocol: ``memoryview(handle)``, ``numpy.frombuffer(handle)``."""

    def ptr(self) -> int:
        """Address of the first byte; good as long as the handle lives."""
        return ctypes.addressof((ctypes.c_ubyte * len(self)).from_buffer(self)) if self else 0

    def size(self) -> int:
        """Length in bytes."""
        return len(self)


@dataclass(frozen=True)
class Descriptor:
    """Where a value lies. The address is the server's affair, so it's 0."""

    size: int
    transport_endpoint: str
    buffer_address: int = 0


@dataclass(frozen=True)
class MemoryDescriptor:
    """A replica in a server's memory."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True)
class ReplicaDescriptor:
    """A copy of an object. Lanner has one of each, in memory."""

    descriptor: Descriptor
    status: ReplicaStatus = ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        return True

    def is_disk_replica(self) -> bool:
        return False

    def is_local_disk_replica(self) -> bool:
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        return MemoryDescriptor(self.descriptor)

    def get_disk_descriptor(self) -> None:
        raise NotImplementedError("Lanner has no replica on disk; get_memory_descriptor() describes the one there is")
