"""Calls that have no counterpart: each raises ``NotImplementedError`` and names Lanner's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SERVERS = "memory belongs to lanner-server (--memory), not to clients, so there is nothing to mount"
_PARALLEL = "use put_tensor_with_tp and get_tensor_with_tp, or lanner.ShardedTensor, which reads any partition of what other ranks wrote"
_DEVICE = "read into a tensor in main memory (get_tensor_into) and copy it to the device"
_COPIES = "Lanner keeps one copy of an object, where its key's hash says; nothing is copied or moved by hand"

#: Name of each call, and what to do instead.
HINTS = {
    "alloc_from_mem_pool": "allocate with numpy or torch; memory needs no pool",
    "allocate_and_mount_segment": _SERVERS,
    "mount_segment": _SERVERS,
    "unmount_segment": _SERVERS,
    "unmount_and_free_segment": _SERVERS,
    "unmount_local_disk_segment": _SERVERS,
    "init_all": "use setup()",
    "setup_dummy": "use setup(); lanner-server is the process that stays when engines come and go",
    "get_tensor_into_cuda": _DEVICE,
    "batch_get_tensor_into_cuda": _DEVICE,
    "load_tensor_from_safetensor": "use safetensors.torch.load_file and put_tensor",
    "save_tensor_to_safetensor": "use get_tensor and safetensors.torch.save_file",
    "create_copy_task": _COPIES,
    "create_move_task": _COPIES,
    "query_task": _COPIES,
    "batch_replica_clear": "use batch_remove; there is one copy of each object",
    "get_offload_rpc_read_count": "look at the server's metrics (docs/metrics.md)",
    **{
        f"{batch}{verb}_tensor_with_parallelism{suffix}": _PARALLEL
        for batch in ("", "batch_")
        for verb, suffix in [
            ("get", ""), ("get", "_into"), ("put", ""), ("put", "_from"), ("upsert", ""), ("upsert", "_from"),
        ]
    },
}


def _absent(name: str, hint: str) -> Callable[..., Any]:
    def call(self: Any, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name}: {hint}")

    call.__name__, call.__doc__ = name, f"Not implemented: {hint}."
    return call


class AbsentCalls:
    """Each of them."""


for _name, _hint in HINTS.items():
    setattr(AbsentCalls, _name, _absent(_name, _hint))
