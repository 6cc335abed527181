"""Room for what the CPU's kernels hold between reading and writing: as small as a GPU's on-chip memory.

Kernels allocate nothing that grows with the batch. What they need beside their operands and the planned
workspace they take from here, piece by piece, in as many rounds as that makes; what NumPy allocates inside
one call on a piece is no larger than the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCRATCH_BYTES = 4 * 2**20
"""All the memory that the kernels of a backend have besides operands and workspaces (4 MiB)."""

_ALIGNMENT = 64


class Scratch:
    """A fixed buffer, given out from its start again and again."""

    def __init__(self) -> None:
        self._buffer = np.empty(SCRATCH_BYTES, dtype=np.uint8)

    def arrays(self, *wanted: tuple[tuple[int, ...], Any]) -> list[NDArray[Any]]:
        """Return arrays of these shapes and types; those of an earlier call are void.

        Raises
        ------
        MemoryError
            When they do not fit.
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
    """Cut a range of things that need so many bytes each into slices that the scratch buffer has room for."""
    most = max(1, (SCRATCH_BYTES - 16 * _ALIGNMENT) // max(bytes_each, 1))
    for begin in range(0, count, most):
        yield slice(begin, min(begin + most, count))
