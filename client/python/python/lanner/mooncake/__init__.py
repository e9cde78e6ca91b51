"""Mooncake Store's Python interface on Lanner: the same names, arguments and return codes, as Mooncake 0.3.13 has them.

Programs import ``mooncake.store``, which the package in ``client/python/mooncake-shim`` provides. ``docs/mooncake.md`` lists every
call: the same, how it differs, or why it's absent.
"""

from .engram import EngramStore, EngramStoreConfig
from .store import MooncakeDistributedStore, bind_to_numa_node
from .types import (
    BufferHandle,
    Descriptor,
    MemoryDescriptor,
    ObjectDataType,
    ReplicaDescriptor,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
)

#: Mooncake's module has the members of its enumerations as names of its own, too.
globals().update({name: member for name, member in ReplicaStatus.__members__.items() if name != "FAILED"} | ObjectDataType.__members__)

__all__ = [
    "BufferHandle",
    "Descriptor",
    "EngramStore",
    "EngramStoreConfig",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "ObjectDataType",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "bind_to_numa_node",
    *ObjectDataType.__members__,
    *(name for name in ReplicaStatus.__members__ if name != "FAILED"),
]
