"""A buffer for intermediate results of the CPU's kernels, as small as a GPU's on-chip memory.

No allocation of a kernel grows with the batch. Beside its operands and its planned workspace, a kernel uses
only this buffer, piece by piece, in as many rounds as necessary. Allocations of NumPy inside one call on a
piece are no larger than the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCRATCH_BYTES = 4 * 2**20
"""Bytes of all the memory that the kernels of a backend have beside operands and workspaces (4 MiB)."""

_ALIGNMENT = 64
"""Bytes that arrays in the buffer are aligned to."""


class Scratch:
    """A fixed buffer, whose memory is used again from its start in every call."""

    def __init__(self) -> None:
        self._buffer = np.empty(SCRATCH_BYTES, dtype=np.uint8)

    def arrays(self, *wanted: tuple[tuple[int, ...], Any]) -> list[NDArray[Any]]:
        """Return arrays of these shapes and types; arrays of an earlier call must not be used any more.

        Raises
        ------
        MemoryError
            When the arrays do not fit.
        """
        found = []
        end = 0
        for shape, dtype in wanted:
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            if end + size > SCRATCH_BYTES:
                raise MemoryError(f"a kernel needs {end + size} bytes of scratch memory, of {SCRATCH_BYTES}")
            found.append(self._buffer[end : end + size].view(dtype).reshape(shape))
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return found


def pieces(count: int, bytes_each: int) -> Iterator[slice]:
    """Cut a range of elements with so many bytes each into slices that fit the scratch buffer."""
    most = max(1, (SCRATCH_BYTES - 16 * _ALIGNMENT) // max(bytes_each, 1))
    for begin in range(0, count, most):
        yield slice(begin, min(begin + most, count))
