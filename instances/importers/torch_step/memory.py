"""Storages of torch as bytes: views of them, copies and comparisons."""

from __future__ import annotations

from typing import Any

import torch

from .record import Reference

ALIGNMENT = 64
"""Bytes; that of torch's own allocator on the CPU. Where data begins changes which bits some kernels give."""


def key_of(tensor: Any) -> int:
    """Return a number that tensors have in common just if they share a storage that is alive."""
    return int(tensor.untyped_storage()._cdata)


def bytes_of(storage: Any) -> Any:
    """Return the bytes of a storage as a tensor in the same memory."""
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


def fresh(size: int) -> Any:
    """Return a storage of `size` bytes, each of them 0xFF: NaN in every floating-point type."""
    return torch.full((size,), 0xFF, dtype=torch.uint8).untyped_storage()


def reference_to(tensor: Any, storage: int) -> Reference:
    """Return the reference to a tensor in the storage of that index."""
    return Reference(
        storage, tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset()
    )


def tensor_at(reference: Reference, storage: Any, begin: int = 0) -> Any:
    """Return the tensor of a reference, in a storage from byte `begin` on, a multiple of the type's size."""
    offset = begin // reference.dtype.itemsize + reference.offset
    return torch.empty(0, dtype=reference.dtype).set_(storage, offset, reference.size, reference.stride)


class Copies:
    """Copies of bytes, in memory that is used again for the next ones, so that none is allocated anew."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def of(self, data: dict[int, Any]) -> dict[int, Any]:
        """Return copies of the bytes of several storages, which hold until the next call."""
        size = sum(aligned(len(one)) for one in data.values())
        if size > len(self._buffer):
            self._buffer = torch.empty(size, dtype=torch.uint8)
        copies, begin = {}, 0
        for key, one in data.items():
            copies[key] = self._buffer[begin : begin + len(one)].copy_(one)
            begin += aligned(len(one))
        return copies


def are_equal(left: Any, right: Any) -> bool:
    """Whether two tensors of bytes, of one length, are equal; eight bytes at a time where that goes."""
    words = torch.int64 if len(left) % 8 == 0 else torch.uint8
    return bool(torch.equal(left.view(words), right.view(words)))


def have_same_bits(left: Any, right: Any) -> bool:
    """Whether two tensors of one type and shape have the same bits, NaN among them."""
    flat = [tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in (left, right)]
    return are_equal(*flat)


def aligned(size: int) -> int:
    """Return the least multiple of the alignment that is no less than `size`."""
    return -(-size // ALIGNMENT) * ALIGNMENT
