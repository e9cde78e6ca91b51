"""The small types of Mooncake Store: configuration of replicas, descriptors, buffers."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class _Enum(enum.Enum):
    """As Mooncake's: a number for ``int()`` and for C, but equal to none."""

    def __int__(self) -> int:
        return self.value

    def __index__(self) -> int:
        return self.value

    def __hash__(self) -> int:
        return self.value


class ObjectDataType(_Enum):
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


class SoftPinAction(_Enum):
    """Whether a put pins softly. ``PRESERVE`` is no pin for a new object."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ReplicaStatus(_Enum):
    """State of a replica; what Lanner answers for is ``COMPLETE`` always."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


def _is_flag(value: Any) -> bool:
    return isinstance(value, int)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


@dataclass(slots=True)
class ReplicateConfig:
    """How an object is to be kept. Of these, Lanner heeds the pins; it keeps one copy, on the server that the key's hash says. A field there isn't
    raises ``AttributeError``, a value of a wrong type ``TypeError``."""

    replica_num: int = 1
    #: Of Mooncake before 0.3.13, in place of ``soft_pin_action``.
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

    def __setattr__(self, name: str, value: Any) -> None:
        is_right = _RIGHT.get(name)
        if is_right is not None and not is_right(value):
            raise TypeError(f"ReplicateConfig.{name} can't be {value!r}")
        object.__setattr__(self, name, value)

    @property
    def pin(self) -> str | None:
        """Lanner's pin: a hard one must end with its object, which Mooncake's doesn't, so both become soft: evicted last."""
        is_pinned = self.with_soft_pin or self.with_hard_pin or self.soft_pin_action is SoftPinAction.ENABLE
        return "soft" if is_pinned else None

    def check(self, objects: int) -> None:
        """``ValueError`` for what Mooncake refuses for so many objects, too."""
        if self.replica_num == 0:
            raise ValueError("replica_num is 0: nothing would be stored")
        if self.soft_pin_ttl_ms is not None and self.soft_pin_action is not SoftPinAction.ENABLE:
            raise ValueError("soft_pin_ttl_ms is for soft_pin_action = SoftPinAction.ENABLE")
        if self.group_ids is not None and len(self.group_ids) != objects:
            raise ValueError(f"{len(self.group_ids)} group_ids for {objects} objects; give each one")


_RIGHT: dict[str, Callable[[Any], bool]] = {
    "replica_num": _is_count,
    "with_soft_pin": _is_flag,
    "with_hard_pin": _is_flag,
    "soft_pin_action": lambda value: isinstance(value, SoftPinAction),
    "soft_pin_ttl_ms": lambda value: value is None or _is_count(value),
    "preferred_segment": _is_text,
    "preferred_segments": _are_texts,
    "prefer_alloc_in_same_node": _is_flag,
    "data_type": lambda value: isinstance(value, ObjectDataType),
    "group_ids": lambda value: value is None or _are_texts(value),
    "nof_replica_num": _is_count,
    "dfs_replica_num": _is_count,
    "preferred_nof_segments": _are_texts,
}


def pin_of(config: ReplicateConfig | None, objects: int) -> str | None:
    """Lanner's pin for so many objects; ``ValueError`` for a configuration that can't be meant."""
    if config is None:
        return None
    config.check(objects)
    return config.pin


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
