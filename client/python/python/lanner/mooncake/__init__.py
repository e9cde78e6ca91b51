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
]
