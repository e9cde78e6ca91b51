"""Engram tables: ``EngramStore`` with a look-up that makes its own result."""

from __future__ import annotations

from typing import Any

from . import _lanner


class EngramStore(_lanner.EngramStore):
    __doc__ = _lanner.EngramStore.__doc__

    def lookup(self, row_ids: Any, *, checked: bool = False) -> Any:
        """The rows of ``row_ids`` of shape [B, L, H] in a new numpy array of shape [B, L, H, embedding_dim].

        Elements of types that numpy lacks (bfloat16, float8) come as the unsigned integers of their size: ``.view`` them.
        """
        try:
            import numpy
        except ImportError:
            raise ImportError("lookup() makes a numpy array, and numpy isn't installed: pip install numpy (or lanner[numpy]), or use lookup_into()") from None

        shape = numpy.shape(row_ids)
        rows = numpy.empty((*shape, self.embedding_dim), _numpy_type(self.dtype))
        self.lookup_into(row_ids, rows, checked=checked)
        return rows


def _numpy_type(dtype: str) -> str:
    if dtype == "bfloat16":
        return "uint16"
    return "uint8" if dtype.startswith("float8") else dtype
