"""Convolutions on the CPU: by lowering to a matrix product, and by FFT or Winograd in the planned workspace.

The algorithms go by the names that `costs` gives cuDNN's, and keep their workspaces:

| names | what holds the intermediate results |
|---|---|
| implicit-gemm, algo-0 | pieces of the lowered matrix in the scratch buffer (Chetlur et al. 2014) |
| implicit-precomp-gemm, algo-1, algo-3 | the same; tables in the workspace say which values exist |
| gemm | the lowered matrix in the workspace, of as many images as fit |
| fft, fft-tiling, winograd, winograd-nonfused | transformed filters, then tiles of as many images as fit |

With a stride of 1 the last four compute, for the points p of a transform, ``Y_p = X_p W_p``; the gradient of
the input is a forward pass with flipped filters, that of the filters a sum over images and tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....instances.errors import PebblerError
from ....instances.networks.taskgraph import Role
from ..kernel import Kernel
from .scratch import SCRATCH_BYTES, Scratch
from .transforms import Tiling, tiling_of

Array = NDArray[np.float32]
"""Array of single-precision numbers."""

_LOWERED: dict[str, tuple[str, str]] = {
    "FP": ("implicit-gemm", "implicit-precomp-gemm"),
    "BP1": ("algo-0", "algo-1"),
    "BP2": ("algo-0", "algo-3"),
}
"""Names of the algorithms that lower to a matrix product, without and with tables, by role."""

TRANSPOSED: dict[Role, Role] = {"FP": "BP1", "BP1": "FP", "BP2": "BP2"}
"""For each pass of a transposed convolution, the pass of the convolution that it transposes."""

_TRANSFORMED = ("fft", "fft-tiling", "winograd", "winograd-nonfused")
"""Names of the algorithms by transforms."""

_HALF = SCRATCH_BYTES // 2 - 1024
"""Bytes of half the scratch buffer, less a margin."""

_TABLE_BYTES = 16
"""Bytes of an entry of the index tables.

An entry has the first and last row or column of y, the first one of x, and its tap.
"""


class Convolution:
    """A convolution task with its algorithm; for a transposed convolution, the one that it transposes.

    Raises
    ------
    PebblerError
        When the algorithm is unknown or does not apply, or its workspace is too small.
    """

    def __init__(self, kernel: Kernel) -> None:
        layer, (source,), target = kernel.layer, kernel.sources, kernel.layer.shape
        self.kernel = kernel
        self.role = kernel.role
        if layer.kind.operation == "transposed-convolution":
            source, target = target, source
            self.role = TRANSPOSED[kernel.role]
        self.algorithm = kernel.algorithm
        self.images = kernel.images
        self.groups = layer.groups
        self.inputs, self.height, self.width = source
        self.outputs, self.rows, self.columns = target
        self.size, self.stride, self.pad = layer.kernel, layer.stride, layer.pad
        self.taps = self.size**2
        self.depth = self.inputs // self.groups * self.taps
        self._tiling: Tiling | None = None
        needed = self._needed()
        if needed is None:
            raise PebblerError(
                f"task '{kernel.task}': the CPU has no algorithm '{self.algorithm}' for this convolution"
            )
        if kernel.workspace_bytes < needed:
            raise PebblerError(
                f"task '{kernel.task}': '{self.algorithm}' needs a workspace of {needed} bytes on the CPU, "
                f"and the instance gives it {kernel.workspace_bytes}"
            )

    @staticmethod
    def algorithms(kernel: Kernel) -> list[tuple[str, int]]:
        """Return the algorithms that apply, with their workspaces for all images at once."""
        transposed = kernel.layer.kind.operation == "transposed-convolution"
        role = TRANSPOSED[kernel.role] if transposed else kernel.role
        names = [*_LOWERED[role], *(("gemm",) if role == "FP" else ()), *_TRANSFORMED]
        found = []
        for name in names:
            try:
                one = Convolution(replace(kernel, algorithm=name, workspace_bytes=2**62))
            except PebblerError:
                continue
            found.append((name, one.whole_workspace()))
        return found

    def split(self, values: Array) -> tuple[Array, Array]:
        """Return weights as (groups, outputs, depth) of a group, and biases."""
        count = self.outputs * self.depth
        return values[:count].reshape(self.groups, self.outputs // self.groups, self.depth), values[count:]

    def whole_workspace(self) -> int:
        """Return the bytes of workspace with which all images are processed at once."""
        if self._tiling is not None:
            return self._tiling.bytes(self.images)
        if self.algorithm == "gemm":
            return 4 * self.inputs * self.taps * self.rows * self.columns * self.images
        return self._needed() or 0

    def _needed(self) -> int | None:
        """Return the least workspace, or None if the algorithm does not apply; set up a fast one's tiling."""
        baseline, indexed = _LOWERED[self.role]
        if self.algorithm == baseline:
            return 0
        if self.algorithm == indexed:
            return 0 if self._table_bytes() > self.kernel.workspace_bytes else self._table_bytes()
        if self.algorithm == "gemm" and self.role == "FP":
            return 4 * self.depth * self.groups * self.columns
        if self.algorithm not in _TRANSFORMED or self.stride != 1 or self.size <= self.pad:
            return None
        self._tiling = tiling_of(self)
        return None if self._tiling is None else self._tiling.bytes(1)

    # --- lowering ---------------------------------------------------------------------------------

    def forward(self, x: Array, w: Array, y: Array, workspace: NDArray[np.uint8], scratch: Scratch) -> None:
        """Compute y from x."""
        if self._tiling is not None:
            self._tiling.forward(x, w, y, workspace, scratch)
            return
        explicit = self.algorithm == "gemm"
        room = workspace[: len(workspace) // 4 * 4].view(np.float32) if explicit else None
        for piece in self._pieces(len(room) * 4 if room is not None else _HALF):
            for g in range(self.groups):
                lowered = self._lower(x, g, piece, room, scratch, workspace)
                np.matmul(w[g], lowered, out=_flattened(y, self._outputs(g), piece))

    def data(self, dy: Array, w: Array, dx: Array, workspace: NDArray[np.uint8], scratch: Scratch) -> None:
        """Add the gradient of the input to dx."""
        if self._tiling is not None:
            self._tiling.data(dy, w, dx, workspace, scratch)
            return
        for piece in self._pieces(_HALF):
            for g in range(self.groups):
                shape = (piece.count, self.depth, piece.positions)
                (lowered,) = scratch.arrays((shape, np.float32))
                given = _flattened(dy, self._outputs(g), piece)
                np.matmul(w[g].T, given, out=lowered)
                values = lowered.reshape(piece.count, -1, self.size, self.size, *piece.plane)
                for i, j, (to, of), (right, along) in self._spans(piece, workspace):
                    dx[piece.images, self._inputs(g), of, along] += values[:, :, i, j, to, right]

    def filter(self, x: Array, dy: Array, dw: Array, workspace: NDArray[np.uint8], scratch: Scratch) -> None:
        """Add the gradient of the weights to dw."""
        if self._tiling is not None:
            self._tiling.filter(x, dy, dw, workspace, scratch)
            return
        count = self.outputs // self.groups
        for piece in self._pieces(_HALF):
            for g in range(self.groups):
                lowered = self._lower(x, g, piece, None, scratch, workspace)
                given = _flattened(dy, self._outputs(g), piece)
                most = max(1, _HALF // (4 * self.depth))
                for begin in range(0, count, most):
                    part = slice(begin, min(begin + most, count))
                    shape = (part.stop - part.start, self.depth)
                    _, share = scratch.arrays((lowered.shape, np.float32), (shape, np.float32))
                    for n in range(piece.count):
                        np.matmul(given[n, part], lowered[n].T, out=share)
                        dw[g, part] += share

    def _inputs(self, g: int) -> slice:
        count = self.inputs // self.groups
        return slice(g * count, (g + 1) * count)

    def _outputs(self, g: int) -> slice:
        count = self.outputs // self.groups
        return slice(g * count, (g + 1) * count)

    def _pieces(self, room: int) -> Iterator[Piece]:
        """Cut a group's lowered matrix into pieces of at most `room` bytes: images, rows or parts of rows."""
        column = 4 * self.depth
        row = column * self.columns
        image = row * self.rows
        if image <= room:
            most = room // image
            for begin in range(0, self.images, most):
                images = slice(begin, min(begin + most, self.images))
                yield Piece(images, slice(0, self.rows), slice(0, self.columns))
            return
        if column > room:
            raise PebblerError(f"task '{self.kernel.task}': a window of {self.depth} values has no room")
        for n in range(self.images):
            if row <= room:
                for begin in range(0, self.rows, room // row):
                    rows = slice(begin, min(begin + room // row, self.rows))
                    yield Piece(slice(n, n + 1), rows, slice(0, self.columns))
            else:
                for h in range(self.rows):
                    for begin in range(0, self.columns, room // column):
                        columns = slice(begin, min(begin + room // column, self.columns))
                        yield Piece(slice(n, n + 1), slice(h, h + 1), columns)

    def _lower(
        self,
        x: Array,
        g: int,
        piece: Piece,
        room: Array | None,
        scratch: Scratch,
        workspace: NDArray[np.uint8],
    ) -> Array:
        """Write the windows of a piece as columns: (images, depth, positions)."""
        shape = (piece.count, self.depth, piece.positions)
        if room is None:
            (lowered,) = scratch.arrays((shape, np.float32))
        else:
            lowered = room[: piece.count * self.depth * piece.positions].reshape(shape)
        values = lowered.reshape(piece.count, -1, self.size, self.size, *piece.plane)
        if self.pad:
            lowered[...] = 0
        for i, j, (to, of), (right, along) in self._spans(piece, workspace):
            values[:, :, i, j, to, right] = x[piece.images, self._inputs(g), of, along]
        return lowered

    # --- which values exist -------------------------------------------------------------------------

    def _table_bytes(self) -> int:
        return 2 * self.size * _TABLE_BYTES

    def _spans(self, piece: Piece, workspace: NDArray[np.uint8]) -> Iterator[tuple[int, int, _Pair, _Pair]]:
        """Return, per tap, the rows and columns of the piece for which x has a value, and those of x.

        The algorithms with tables look the bounds up. The others compute them again for every piece.
        """
        down, across = self._bounds(workspace)
        for i in range(self.size):
            rows = self._pair(down[i], piece.rows)
            for j in range(self.size):
                yield i, j, rows, self._pair(across[j], piece.columns)

    def _bounds(self, workspace: NDArray[np.uint8]) -> tuple[_Table, _Table]:
        sides = ((self.height, self.rows), (self.width, self.columns))
        computed = tuple(
            np.array([self._reach(tap, size, count) for tap in range(self.size)], dtype=np.int32)
            for size, count in sides
        )
        indexed = self.algorithm == _LOWERED[self.role][1]
        if not indexed or self._table_bytes() > len(workspace):
            return computed[0], computed[1]
        table = workspace[: self._table_bytes()].view(np.int32).reshape(2, self.size, -1)
        table[0], table[1] = computed
        return table[0], table[1]

    def _reach(self, tap: int, size: int, count: int) -> tuple[int, int, int, int]:
        """Return the first and last row (column) of y with this tap, x's row at row 0 of y, and the tap."""
        begin = tap - self.pad
        return max(0, -(begin // self.stride)), min(count - 1, (size - 1 - begin) // self.stride), begin, tap

    def _pair(self, reach: NDArray[np.int32], part: slice) -> _Pair:
        first, last = max(int(reach[0]), part.start), min(int(reach[1]), part.stop - 1)
        if last < first:
            return slice(0, 0), slice(0, 0)
        start = first * self.stride + int(reach[2])
        stop = last * self.stride + int(reach[2]) + 1
        return slice(first - part.start, last + 1 - part.start), slice(start, stop, self.stride)


_Pair = tuple[slice, slice]
"""Rows and columns."""

_Table = NDArray[np.int32]
"""Table of indices."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the output: images, rows and columns."""

    images: slice
    rows: slice
    columns: slice

    @property
    def count(self) -> int:
        """Number of images of the piece."""
        return int(self.images.stop - self.images.start)

    @property
    def plane(self) -> tuple[int, int]:
        """Rows and columns of the piece."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def positions(self) -> int:
        """Number of positions of an image."""
        return self.plane[0] * self.plane[1]


def _flattened(values: Array, channels: slice, piece: Piece) -> Array:
    """View a piece as (images, channels, positions): whole rows, or a part of one row."""
    if piece.plane[0] == 1:
        return values[piece.images, channels, piece.rows.start, piece.columns]
    width = values.shape[3]
    flat = values.reshape(*values.shape[:2], -1)
    return flat[piece.images, channels, piece.rows.start * width : piece.rows.stop * width]
