"""What ``setup`` is told, as a URL of Lanner."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)


def bytes_of(size: Any) -> int:
    """``16777216``, ``"16 MB"``, ``"1.5GB"`` in bytes (units are powers of 1024). ``ValueError`` for what is no size."""
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if not match:
            raise ValueError(f"'{size}' is no size; write it as 16777216 or \"16 MB\"")
        return int(float(match[1]) * _UNITS[match[2].upper()])
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"{size!r} is no size; write it as 16777216 or \"16 MB\"")
    return size


def url_of(
    master_server_addr: str, *, protocol: str = "tcp", rdma_devices: str = "", tenant_id: str = "default", **_: Any
) -> str:
    """The URL of the servers: the master's address is theirs (several, divided by commas), or a ``lanner://`` URL as it is.

    ``tcp`` means whatever needs no device: shared memory with servers on this host, else TCP. ``ValueError`` for an address with another
    scheme, or a protocol that isn't tcp or rdma.
    """
    if master_server_addr.startswith("lanner://"):
        return master_server_addr
    if not master_server_addr or set("/?&#") & set(master_server_addr):
        raise ValueError(
            f"'{master_server_addr}' is no address of a Lanner server; give HOST:PORT[,HOST:PORT...] as master_server_addr"
        )
    if protocol not in ("tcp", "rdma"):
        raise ValueError(f"protocol '{protocol}' is none of tcp, rdma")
    for name, value in (("rdma_devices", rdma_devices), ("tenant_id", tenant_id)):
        if set("?&#") & set(value):
            raise ValueError(f"{name} '{value}' has a character that a URL gives another meaning; it has letters, digits, - and _")
    query = ["transport=auto"]
    if protocol == "rdma" and rdma_devices:
        query.append(f"rdma={rdma_devices.split(',')[0]}")
    if tenant_id not in ("", "default"):
        query.append(f"tenant={tenant_id}")
    return f"lanner://{master_server_addr}?{'&'.join(query)}"


#: Names of the positional form, in order.
POSITIONAL = (
    "local_hostname metadata_server global_segment_size local_buffer_size protocol rdma_devices master_server_addr"
    " engine enable_ssd_offload ssd_offload_path tenant_id enable_client_http_server client_http_port"
).split()

#: How many of them the positional and the keyword form must have.
_REQUIRED = 7
#: Which of them are text.
_TEXTS = ("local_hostname", "metadata_server", "protocol", "rdma_devices", "master_server_addr", "ssd_offload_path", "tenant_id")

#: Names that dictionaries have for these, too: LMCache's `mooncakestore` backend says them.
_ALSO_NAMED = {"master_server_address": "master_server_addr", "device_name": "rdma_devices"}


def arguments_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments of any of the three forms, by name. ``TypeError`` for names there aren't, for one that is missing and for what isn't text, as a call
    of Python raises it; dictionaries may leave out what has a default."""
    if len(arguments) == 1 and isinstance(arguments[0], dict) and not keywords:
        given = {_ALSO_NAMED.get(name, name): value for name, value in arguments[0].items()} | arguments[0]
        return {name: value for name, value in given.items() if name in POSITIONAL}
    if len(arguments) == 0 and set(keywords) == {"config"}:
        return arguments_of((keywords["config"],), {})
    if len(arguments) > len(POSITIONAL):
        raise TypeError(f"setup() takes at most {len(POSITIONAL)} arguments, {len(arguments)} were given")
    named = dict(zip(POSITIONAL, arguments))
    for name, value in keywords.items():
        if name not in POSITIONAL:
            raise TypeError(f"setup() has no argument '{name}'")
        if name in named:
            raise TypeError(f"setup() got two values for '{name}'")
        named[name] = value
    missing = [name for name in POSITIONAL[:_REQUIRED] if name not in named]
    if missing:
        raise TypeError(f"setup() misses {', '.join(missing)}")
    for name in _TEXTS:
        if not isinstance(named.get(name, ""), str):
            raise TypeError(f"setup() takes {name} as text, not {named[name]!r}")
    return named
