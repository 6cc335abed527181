"""Storages of torch as bytes: views of them, copies and comparisons."""

from __future__ import annotations

from collections.abc import Callable
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


def have_same_bits(left: Any, right: Any) -> bool:
    """Whether two tensors of one type and shape have the same bits, NaN among them."""
    flat: Callable[[Any], Any] = lambda tensor: tensor.detach().reshape(-1).contiguous().view(torch.uint8)  # noqa: E731
    return bool(torch.equal(flat(left), flat(right)))


def aligned(size: int) -> int:
    """Return the least multiple of the alignment that is no less than `size`."""
    return -(-size // ALIGNMENT) * ALIGNMENT
