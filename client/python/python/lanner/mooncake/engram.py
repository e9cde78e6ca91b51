"""``mooncake.store.EngramStore``: float32 tables of one layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import errors
from ..engram import EngramStore as _EngramStore

if TYPE_CHECKING:
    from .store import MooncakeDistributedStore


@dataclass
class EngramStoreConfig:
    """Rows of each head's table, and elements of a row."""

    table_vocab_sizes: list[int] = field(default_factory=list)
    embedding_dim: int = 0


class EngramStore:
    """The Engram tables of one layer, in the store of ``store``. What goes wrong raises ``RuntimeError``, as in Mooncake, but says what."""

    def __init__(self, layer_id: int, config: EngramStoreConfig, store: MooncakeDistributedStore | None = None) -> None:
        client = _as_runtime_error(lambda: store.client) if store is not None else None
        self._store = _as_runtime_error(
            _EngramStore, client, layer_id, config.table_vocab_sizes, dtype="float32", embedding_dim=config.embedding_dim
        )

    def populate(self, embedding_buffers: list[Any]) -> None:
        """Stores a float32 array of shape [rows, embedding_dim] for each head; all or none."""
        import numpy

        tables = [numpy.ascontiguousarray(table, numpy.float32) for table in embedding_buffers]
        _as_runtime_error(self._store.populate, tables)

    def lookup(self, row_ids: Any) -> Any:
        """The rows of ids of shape [B, L, H], as float32 of shape [B, L, H, embedding_dim]."""
        import numpy

        ids = numpy.ascontiguousarray(row_ids, numpy.int64)
        if ids.size == 0:
            raise RuntimeError("row_ids must not be empty")
        return _as_runtime_error(self._store.lookup, ids)

    def remove_from_store(self, force: bool = False) -> int:
        """Removes the tables; how many there were."""
        return _as_runtime_error(self._store.remove_from_store, force=force)

    def get_table_vocab_sizes(self) -> list[int]:
        return self._store.table_vocab_sizes

    def get_num_heads(self) -> int:
        return self._store.heads

    def get_embedding_dim(self) -> int:
        return self._store.embedding_dim

    def get_store_keys(self) -> list[str]:
        return self._store.keys


def _as_runtime_error(call: Any, *arguments: Any, **keywords: Any) -> Any:
    try:
        return call(*arguments, **keywords)
    except (errors.LannerError, ValueError) as error:
        raise RuntimeError(str(error)) from error
