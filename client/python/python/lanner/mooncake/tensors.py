"""The tensor calls. A stored tensor is a header of 192 bytes, which says its type and shape, and its elements in row-major order.

    0    8    magic, "LNRTENS1"
    8   16    dtype as torch names it, padded with zeros
    24   4    dimensions, little-endian
    28   4    zero
    32 160    lengths of at most 20 dimensions, 8 bytes each, little-endian; zero beyond
"""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

from .checks import for_good, is_memory
from .codes import CODED, INVALID_PARAMS, OK, code_of
from .types import ReplicateConfig, pin_of

_HEADER = struct.Struct("<8s16sI4x20Q")
_MAGIC = b"LNRTENS1"
HEADER_BYTES = _HEADER.size
#: Types whose elements are nothing but their bytes. Others (quantized, of less than a byte) have more to them, and torch ends the process
#: where they are made of bytes alone.
_DTYPES = frozenset(
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64 complex128"
    " float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu".split()
)


class NoTensor(ValueError):
    """What is stored, or was given, is no tensor."""


def header_of(tensor: Any) -> bytes:
    """The header of a tensor of torch."""
    import torch

    if not isinstance(tensor, torch.Tensor) or not tensor.is_cpu or tensor.dim() > 20:
        raise NoTensor("give a torch tensor in main memory of at most 20 dimensions")
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES or tensor.layout != torch.strided:
        raise NoTensor(f"a tensor of {tensor.dtype} and layout {tensor.layout} isn't stored: convert it, such as with dequantize() or to_dense()")
    lengths = [*tensor.shape, *[0] * (20 - tensor.dim())]
    return _HEADER.pack(_MAGIC, name.encode(), tensor.dim(), *lengths)


def _elements_of(tensor: Any) -> Any:
    """The tensor with its elements in its memory, in row-major order: not those of which they are conjugates, negatives or transposed."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def tensor_in(memory: Any) -> Any:
    """The tensor that ``memory`` (writable, with a header) holds; it shares the memory and keeps it alive."""
    import torch

    view = memoryview(memory).cast("B")
    if len(view) < HEADER_BYTES:
        raise NoTensor(f"{len(view)} bytes are no tensor")
    magic, name, dimensions, *lengths = _HEADER.unpack_from(view)
    text = name.rstrip(b"\0").decode("ascii", "replace")
    dtype = getattr(torch, text, None) if text in _DTYPES else None
    if magic != _MAGIC or not isinstance(dtype, torch.dtype) or dimensions > 20:
        raise NoTensor("the value is no tensor: its header is not one that put_tensor writes")
    shape = lengths[:dimensions]
    count = math.prod(shape)
    # A length of 0 makes the others no shorter, and torch computes strides of all of them.
    if math.prod(max(length, 1) for length in shape) * dtype.itemsize >= 1 << 63:
        raise NoTensor(f"no tensor has the shape {shape}")
    if HEADER_BYTES + count * dtype.itemsize > len(view):
        raise NoTensor(f"a tensor of {dtype} and shape {shape} has more than the {len(view)} bytes of its value")
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=HEADER_BYTES).reshape(shape)


def _part_key(key: str, rank: int, size: int) -> str:
    return f"{key}_tp_{rank}" if size > 1 else key


def _parts(key: str, tensor: Any, size: int, axis: int) -> list[tuple[str, Any]]:
    """The parts of a tensor for ``size`` ranks, by key."""
    header_of(tensor)
    if size < 1 or not -tensor.dim() <= axis < max(tensor.dim(), 1):
        raise NoTensor(f"a tensor of shape {list(tensor.shape)} can't be split into {size} along axis {axis}")
    if size == 1:
        return [(key, tensor)]
    if tensor.shape[axis] % size:
        raise NoTensor(f"axis {axis} of shape {list(tensor.shape)} isn't divisible by {size}")
    return [(_part_key(key, rank, size), part) for rank, part in enumerate(tensor.chunk(size, axis))]


def _is_tensor_at(address: int, size: int) -> bool:
    """Whether memory of the caller's holds a tensor as it's stored."""
    if not is_memory(address, size):
        return False
    try:
        tensor_in((ctypes.c_ubyte * size).from_address(address))
    except NoTensor as error:
        code_of(error)
        return False
    return True


class TensorCalls:
    """Needs ``client`` and ``_read`` of the class it's mixed into."""

    client: Any

    def _read(self, key: str) -> bytearray | None:
        raise NotImplementedError

    def _store_tensors(self, items: list[tuple[str, Any]], *, replace: bool, pin: str | None) -> list[int]:
        codes: list[int] = []
        for key, tensor in items:
            try:
                header = bytearray(header_of(tensor))
                data = _elements_of(tensor)
                addresses = [ctypes.addressof((ctypes.c_ubyte * len(header)).from_buffer(header)), data.data_ptr()]
                sizes = [len(header), data.numel() * data.element_size()]
                self.client.put_from_parts([key], [addresses], [sizes], replace=replace, pin=pin)
                codes.append(OK)
            except CODED as error:
                codes.append(code_of(error))
        return codes

    def _store_parts(
        self, keys: list[str], tensors: list[Any], size: int, axis: int, *, replace: bool, config: ReplicateConfig | None = None
    ) -> list[int]:
        if len(keys) != len(tensors):
            return [INVALID_PARAMS] * len(keys)
        try:
            pin = pin_of(config, len(keys))
        except CODED as error:
            return [code_of(error)] * len(keys)
        codes = []
        for key, tensor in zip(keys, tensors):
            try:
                outcomes = self._store_tensors(_parts(key, tensor, size, axis), replace=replace, pin=pin)
                codes.append(min(outcomes))
            except CODED as error:
                codes.append(code_of(error))
        return codes

    def _tensor(self, key: str) -> Any:
        try:
            value = self._read(key)
            return None if value is None else tensor_in(value)
        except CODED as error:
            code_of(error)
            return None

    def _tensors_at(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[Any]:
        """Reads tensors to memory of the caller's; the tensors are views of it."""
        if not len(keys) == len(addresses) == len(sizes):
            return [None] * len(keys)
        tensors = []
        for code, address in zip(self.batch_get_into(keys, addresses, sizes), addresses):
            try:
                tensors.append(tensor_in((ctypes.c_ubyte * code).from_address(address)) if code >= 0 else None)
            except NoTensor as error:
                code_of(error)
                tensors.append(None)
        return tensors

    def _put_tensors_at(self, keys: list[str], addresses: list[int], sizes: list[int], *, replace: bool) -> list[int]:
        """Stores tensors that lie in memory as they are stored, header first."""
        if not len(keys) == len(addresses) == len(sizes):
            return [INVALID_PARAMS] * len(keys)
        store = self.batch_upsert_from if replace else self.batch_put_from
        return for_good([_is_tensor_at(*place) for place in zip(addresses, sizes)], store, keys, addresses, sizes)

    # --- one tensor -------------------------------------------------------------------------------------------------------------------

    def put_tensor(self, key: str, tensor: Any) -> int:
        return self._store_parts([key], [tensor], 1, 0, replace=False)[0]

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        return self._store_parts([key], [tensor], 1, 0, replace=True)[0]

    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
        return self._store_parts([key], [tensor], 1, 0, replace=False, config=config)[0]

    def upsert_pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
        return self._store_parts([key], [tensor], 1, 0, replace=True, config=config)[0]

    def get_tensor(self, key: str) -> Any:
        return self._tensor(key)

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        return self._tensors_at([key], [buffer_ptr], [size])[0]

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        return self._put_tensors_at([key], [buffer_ptr], [size], replace=False)[0]

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        return self._put_tensors_at([key], [buffer_ptr], [size], replace=True)[0]

    # --- batches ----------------------------------------------------------------------------------------------------------------------

    def batch_put_tensor(self, keys: list[str], tensors_list: list[Any]) -> list[int]:
        return self._store_parts(keys, tensors_list, 1, 0, replace=False)

    def batch_upsert_tensor(self, keys: list[str], tensors_list: list[Any]) -> list[int]:
        return self._store_parts(keys, tensors_list, 1, 0, replace=True)

    def batch_pub_tensor(self, keys: list[str], tensors_list: list[Any], config: ReplicateConfig | None = None) -> list[int]:
        return self._store_parts(keys, tensors_list, 1, 0, replace=False, config=config)

    def batch_upsert_pub_tensor(self, keys: list[str], tensors_list: list[Any], config: ReplicateConfig | None = None) -> list[int]:
        return self._store_parts(keys, tensors_list, 1, 0, replace=True, config=config)

    def batch_get_tensor(self, keys: list[str]) -> list[Any]:
        return [self._tensor(key) for key in keys]

    def batch_get_tensor_into(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[Any]:
        return self._tensors_at(keys, buffer_ptrs, sizes)

    def batch_put_tensor_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        return self._put_tensors_at(keys, buffer_ptrs, sizes, replace=False)

    def batch_upsert_tensor_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        return self._put_tensors_at(keys, buffer_ptrs, sizes, replace=True)

    # --- parts for tensor parallelism -------------------------------------------------------------------------------------------------

    def put_tensor_with_tp(self, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
        return self._store_parts([key], [tensor], tp_size, split_dim, replace=False)[0]

    def batch_put_tensor_with_tp(
        self, base_keys: list[str], tensors_list: list[Any], tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> list[int]:
        return self._store_parts(base_keys, tensors_list, tp_size, split_dim, replace=False)

    def pub_tensor_with_tp(
        self, key: str, tensor: Any, config: ReplicateConfig | None = None, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        return self._store_parts([key], [tensor], tp_size, split_dim, replace=False, config=config)[0]

    def batch_pub_tensor_with_tp(
        self,
        base_keys: list[str],
        tensors_list: list[Any],
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        return self._store_parts(base_keys, tensors_list, tp_size, split_dim, replace=False, config=config)

    def get_tensor_with_tp(self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        return self._tensor(_part_key(key, tp_rank, tp_size))

    def batch_get_tensor_with_tp(self, base_keys: list[str], tp_rank: int = 0, tp_size: int = 1) -> list[Any]:
        return [self._tensor(_part_key(key, tp_rank, tp_size)) for key in base_keys]

    def get_tensor_with_tp_into(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any:
        return self._tensors_at([_part_key(key, tp_rank, tp_size)], [buffer_ptr], [size])[0]

    def batch_get_tensor_with_tp_into(
        self, base_keys: list[str], buffer_ptrs: list[int], sizes: list[int], tp_rank: int = 0, tp_size: int = 1
    ) -> list[Any]:
        return self._tensors_at([_part_key(key, tp_rank, tp_size) for key in base_keys], buffer_ptrs, sizes)

    def put_tensor_with_tp_from(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        return self._put_tensors_at([_part_key(key, tp_rank, tp_size)], [buffer_ptr], [size], replace=False)[0]

    def batch_put_tensor_with_tp_from(
        self, base_keys: list[str], buffer_ptrs: list[int], sizes: list[int], tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> list[int]:
        return self._put_tensors_at([_part_key(key, tp_rank, tp_size) for key in base_keys], buffer_ptrs, sizes, replace=False)
