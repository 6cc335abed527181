"""Storages of torch as bytes: views of them, copies and comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .record import Reference

ALIGNMENT = 64
"""Bytes; that of torch's own allocator on the CPU. Where data begins changes which bits some kernels give."""


@dataclass(slots=True)
class Allocations:
    """What torch's allocator gave out while something ran.

    Attributes
    ----------
    peak_bytes
        Most that was in use at once, of what was not there before.
    kept_bytes
        What was in use in the end, of what was not there before.
    """

    peak_bytes: int = 0
    kept_bytes: int = 0


def key_of(tensor: Any) -> int:
    """Return a number that tensors have in common just if they share a storage that is alive."""
    return int(tensor.untyped_storage()._cdata)


def bytes_of(storage: Any) -> Any:
    """Return the bytes of a storage as a tensor in the same memory."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))


def fresh(size: int, device: str = "cpu") -> Any:
    """Return a storage of `size` bytes, each of them 0xFF: NaN in every floating-point type."""
    return torch.full((size,), 0xFF, dtype=torch.uint8, device=device).untyped_storage()


def reference_to(tensor: Any, storage: int) -> Reference:
    """Return the reference to a tensor in the storage of that index."""
    return Reference(
        storage, tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset()
    )


def tensor_at(reference: Reference, storage: Any, begin: int = 0) -> Any:
    """Return the tensor of a reference, in a storage from byte `begin` on, a multiple of the type's size."""
    offset = begin // reference.dtype.itemsize + reference.offset
    empty = torch.empty(0, dtype=reference.dtype, device=storage.device)
    return empty.set_(storage, offset, reference.size, reference.stride)


class Copies:
    """Copies of bytes, in memory that is used again for the next ones, so that none is allocated anew."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Any] = {}

    def of(self, data: dict[int, Any]) -> dict[int, Any]:
        """Return copies of the bytes of several storages, on their devices, until the next call."""
        copies: dict[int, Any] = {}
        for device in {one.device for one in data.values()}:
            here = {key: one for key, one in data.items() if one.device == device}
            copies |= self._of(device, here)
        return copies

    def _of(self, device: Any, data: dict[int, Any]) -> dict[int, Any]:
        size = sum(aligned(len(one)) for one in data.values())
        if device not in self._buffers or size > len(self._buffers[device]):
            self._buffers[device] = torch.empty(size, dtype=torch.uint8, device=device)
        copies, begin = {}, 0
        for key, one in data.items():
            copies[key] = self._buffers[device][begin : begin + len(one)].copy_(one)
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


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """Return the least multiple of the alignment that is no less than `size`."""
    return -(-size // alignment) * alignment
