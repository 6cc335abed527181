"""Convolutions on the CPU: by lowering to a matrix product, and by FFT or Winograd in the planned workspace.

The algorithms go by the names that `costs` gives cuDNN's, and keep their workspaces:

| names | what holds the intermediate results |
|---|---|
| implicit-gemm, algo-0 | pieces of the lowered matrix in the scratch buffer (Chetlur et al. 2014) |
| implicit-precomp-gemm, algo-1, algo-3 | the same; tables in the workspace say which values exist |
| gemm | the lowered matrix in the workspace, of as many images as fit |
| fft, fft-tiling, winograd-nonfused | transformed filters, then transformed tiles of as many images as fit |

With a stride of 1 the last three compute, for the points p of a transform, ``Y_p = X_p W_p``; the gradient of
the input is a forward pass with flipped filters, that of the filters a sum over images and tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ...instances.costs import FFT_LIMIT, FFT_TILE, WINOGRAD_TILE
from ...instances.errors import PebblerError
from ...instances.taskgraph import Role
from .cpu_scratch import SCRATCH_BYTES, Scratch, pieces
from .kernel import Kernel

Array = NDArray[np.float32]

_LOWERED: dict[str, tuple[str, str]] = {
    "FP": ("implicit-gemm", "implicit-precomp-gemm"),
    "BP1": ("algo-0", "algo-1"),
    "BP2": ("algo-0", "algo-3"),
}
TRANSPOSED: dict[Role, Role] = {"FP": "BP1", "BP1": "FP", "BP2": "BP2"}
"""What the passes of a transposed convolution are to the convolution that it transposes."""
_TRANSFORMED = ("fft", "fft-tiling", "winograd-nonfused")
_HALF = SCRATCH_BYTES // 2 - 1024
_TABLE_BYTES = 16
"""Of an entry of the index tables: first and last row or column of y, the first one of x, and its tap."""


class Convolution:
    """A convolution task with its algorithm; of a transposed convolution, the one that it transposes.

    Raises
    ------
    PebblerError
        When the algorithm is unknown or does not apply, or its workspace is too small.
    """

    def __init__(self, kernel: Kernel) -> None:
        layer, (source,), target = kernel.layer, kernel.sources, kernel.layer.shape
        self.kernel = kernel
        self.role = kernel.role
        if layer.kind == "deconv":
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
        """Algorithms that apply, with their workspaces for all images at once."""
        role = TRANSPOSED[kernel.role] if kernel.layer.kind == "deconv" else kernel.role
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
        """Weights as (groups, outputs, depth) of a group, and biases."""
        count = self.outputs * self.depth
        return values[:count].reshape(self.groups, self.outputs // self.groups, self.depth), values[count:]

    def whole_workspace(self) -> int:
        """Bytes of workspace with which all images are processed at once."""
        if self._tiling is not None:
            return self._tiling.bytes(self.images)
        if self.algorithm == "gemm":
            return 4 * self.inputs * self.taps * self.rows * self.columns * self.images
        return self._needed() or 0

    def _needed(self) -> int | None:
        """Least workspace; None where the algorithm does not apply. Sets up the tiling of a fast one."""
        baseline, indexed = _LOWERED[self.role]
        if self.algorithm == baseline:
            return 0
        if self.algorithm == indexed:
            return 0 if self._table_bytes() > self.kernel.workspace_bytes else self._table_bytes()
        if self.algorithm == "gemm" and self.role == "FP":
            return 4 * self.depth * self.groups * self.columns
        if self.algorithm not in _TRANSFORMED or self.stride != 1 or self.size <= self.pad:
            return None
        self._tiling = _tiling(self)
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
        """Add to dx."""
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
        """Add to dw."""
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
        """Cut a group's lowered matrix into pieces of at most `room` bytes: images, rows, parts of rows."""
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
        """Per tap, rows and columns of the piece for which x has a value, and those of x.

        The algorithms with tables look the bounds up; the others compute them again for every piece.
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
        """First and last row (column) of y for which x has this tap, the row of x at row 0 of y, the tap."""
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
_Table = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the output: images, rows and columns."""

    images: slice
    rows: slice
    columns: slice

    @property
    def count(self) -> int:
        """Number of images."""
        return int(self.images.stop - self.images.start)

    @property
    def plane(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def positions(self) -> int:
        """Positions of an image."""
        return self.plane[0] * self.plane[1]


def _flattened(values: Array, channels: slice, piece: Piece) -> Array:
    """View a piece as (images, channels, positions): whole rows, or a part of one row."""
    if piece.plane[0] == 1:
        return values[piece.images, channels, piece.rows.start, piece.columns]
    width = values.shape[3]
    flat = values.reshape(*values.shape[:2], -1)
    return flat[piece.images, channels, piece.rows.start * width : piece.rows.stop * width]


# --- transforms ---------------------------------------------------------------------------------------


def _tiling(conv: Convolution) -> Tiling | None:
    """Return the transform of a fast algorithm; None where it does not apply (as in `costs`)."""
    height, width = (conv.height, conv.width) if conv.role == "BP1" else (conv.rows, conv.columns)
    if conv.algorithm == "fft":
        padded = conv.height + 2 * conv.pad, conv.width + 2 * conv.pad
        if max(padded) > FFT_LIMIT:
            return None
        rows, columns = (1 << (size - 1).bit_length() for size in padded)
        return Tiling(conv, Fourier(rows, columns), (height, width))
    if conv.algorithm == "fft-tiling":
        if conv.size > FFT_TILE:
            return None
        step = FFT_TILE + 1 - conv.size
        return Tiling(conv, Fourier(FFT_TILE, FFT_TILE), (step, step))
    if conv.size not in (3, 5):
        return None
    step = WINOGRAD_TILE + 1 - conv.size
    return Tiling(conv, Winograd(WINOGRAD_TILE), (step, step))


class Fourier:
    """Real FFTs of tiles: correlations are products with a conjugate (Mathieu et al. 2013).

    NumPy's types know FFTs of double precision only, which is why they are cast.
    """

    dtype = np.dtype(np.complex64)

    def __init__(self, rows: int, columns: int) -> None:
        self.shape = (rows, columns)
        self.half = (rows, columns // 2 + 1)
        self.points = rows * (columns // 2 + 1)

    def data(self, tiles: Array, points: NDArray[np.complex64]) -> None:
        """Transform (n, rows, columns) to (n, points)."""
        spectrum = points.reshape(-1, *self.half)
        np.fft.rfft(tiles, axis=2, out=cast(Any, spectrum))
        np.fft.fft(spectrum, axis=1, out=cast(Any, spectrum))

    def filters(self, taps: Array, tiles: Array, points: NDArray[np.complex64]) -> None:
        """Transform filters (n, k, k), for which `tiles` is room."""
        tiles[...] = 0
        tiles[:, : taps.shape[1], : taps.shape[2]] = taps
        self.data(tiles, points)
        np.conjugate(points, out=points)

    def output(self, points: NDArray[np.complex64], tiles: Array, out_shape: tuple[int, int]) -> Array:
        """Transform products back."""
        spectrum = points.reshape(-1, *self.half)
        np.fft.ifft(spectrum, axis=1, out=cast(Any, spectrum))
        np.fft.irfft(spectrum, n=self.shape[1], axis=2, out=cast(Any, tiles))
        return tiles[:, : out_shape[0], : out_shape[1]]


@lru_cache(maxsize=16)
def winograd_matrices(outputs: int, taps: int) -> tuple[Array, Array, Array]:
    """Matrices A^T, G and B^T of F(outputs, taps) (Lavin and Gray 2016), by Toom and Cook's method.

    The points are 0, 1, -1, 2, -2, ... and infinity.
    ``y = A^T ((G w) * (B^T x))`` is the correlation of x, outputs + taps - 1 values long, with w.
    """
    size = outputs + taps - 1
    at = np.array([0, *(s * k for k in range(1, size) for s in (1, -1))], dtype=np.float64)[: size - 1]
    back = np.zeros((outputs, size))
    filters = np.zeros((size, taps))
    data = np.zeros((size, size))
    for j, a in enumerate(at):
        others = np.delete(at, j)
        back[:, j] = a ** np.arange(outputs)
        filters[j] = a ** np.arange(taps) / np.prod(a - others)
        data[j, : size - 1] = np.polynomial.polynomial.polyfromroots(others)
    back[-1, -1] = filters[-1, -1] = 1
    data[-1] = np.polynomial.polynomial.polyfromroots(at)
    found = tuple(matrix.astype(np.float32) for matrix in (back, filters, data))
    return found[0], found[1], found[2]


class Winograd:
    """Winograd's minimal filtering, nested for two dimensions (Lavin and Gray 2016)."""

    dtype = np.dtype(np.float32)

    def __init__(self, size: int) -> None:
        self.shape = (size, size)
        self.points = size * size

    def data(self, tiles: Array, points: Array) -> None:
        """Transform (n, rows, columns) to (n, points): B^T x B."""
        matrix = winograd_matrices(self.shape[0] - 2, 3)[2]  # B^T is the same for all F of a size
        between = np.matmul(matrix, tiles)
        np.matmul(between, matrix.T, out=points.reshape(-1, *self.shape))

    def filters(self, taps: Array, tiles: Array, points: Array) -> None:  # noqa: ARG002
        """Transform filters (n, k, k): G w G^T."""
        matrix = winograd_matrices(self.shape[0] + 1 - taps.shape[1], taps.shape[1])[1]
        between = np.matmul(matrix, taps)
        np.matmul(between, matrix.T, out=points.reshape(-1, *self.shape))

    def output(self, points: Array, tiles: Array, out_shape: tuple[int, int]) -> Array:
        """Transform products back: A^T m A."""
        count = out_shape[0]
        matrix = winograd_matrices(count, self.shape[0] + 1 - count)[0]
        between = np.matmul(matrix, points.reshape(-1, *self.shape))
        out = tiles[:, :count, :count]
        out[...] = np.matmul(between, matrix.T)
        return out


@dataclass(frozen=True)
class Tiling:
    """A fast convolution: planes in overlapping tiles, each of which gives `step` outputs a side.

    The workspace begins with the filters, as (points, groups, Cin, Cout); tiles of images follow, as (points,
    groups, tiles, channels), of x and then of y. The gradient of the filters takes their place.
    """

    conv: Convolution
    transform: Fourier | Winograd
    step: tuple[int, int]

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Tiles of a plane: of the input's for its gradient, else of the output's."""
        conv = self.conv
        plane = (conv.height, conv.width) if conv.role == "BP1" else (conv.rows, conv.columns)
        return -(-plane[0] // self.step[0]), -(-plane[1] // self.step[1])

    @property
    def tiles(self) -> int:
        """Tiles of an image and channel."""
        return self.grid[0] * self.grid[1]

    def bytes(self, images: int) -> int:
        """Workspace for so many images at a time."""
        conv, value = self.conv, self.transform.dtype.itemsize * self.transform.points
        pairs = conv.inputs * conv.outputs // conv.groups
        return value * (pairs + images * self.tiles * (conv.inputs + conv.outputs))

    def forward(self, x: Array, w: Array, y: Array, workspace: NDArray[np.uint8], scratch: Scratch) -> None:
        """Compute y from x."""
        conv = self.conv
        y[...] = 0
        taps = w.reshape(conv.outputs, -1, conv.size, conv.size)
        self._correlate(x, taps, y, conv.pad, workspace, scratch)

    def data(self, dy: Array, w: Array, dx: Array, workspace: NDArray[np.uint8], scratch: Scratch) -> None:
        """Add to dx: the correlation of dy with flipped filters, channels exchanged."""
        conv = self.conv
        taps = w.reshape(conv.groups, -1, conv.inputs // conv.groups, conv.size, conv.size)
        flipped = taps.swapaxes(1, 2)[..., ::-1, ::-1].reshape(conv.inputs, -1, conv.size, conv.size)
        self._correlate(dy, flipped, dx, conv.size - 1 - conv.pad, workspace, scratch)

    def filter(self, x: Array, dy: Array, dw: Array, workspace: NDArray[np.uint8], scratch: Scratch) -> None:
        """Add to dw: correlations of tiles of x with tiles of dy, summed over images and tiles."""
        conv, groups = self.conv, self.conv.groups
        inputs, outputs = conv.inputs // groups, conv.outputs // groups
        room = _Room(self, workspace)
        product = room.filters(groups, inputs, outputs)
        into = dw.reshape(conv.outputs, inputs, conv.size, conv.size)
        for images in room.chunks(conv.images):
            count = (images.stop - images.start) * self.tiles
            of_x, of_y = room.tiles(count, groups, inputs, outputs)
            self._scatter(x[images], of_x, conv.pad, scratch)
            self._scatter(dy[images], of_y, 0, scratch, filters=True)
            np.matmul(of_x.swapaxes(2, 3), of_y, out=product)
            self._gather_filters(product, into, scratch)

    def _correlate(
        self, x: Array, taps: Array, y: Array, pad: int, workspace: NDArray[np.uint8], scratch: Scratch
    ) -> None:
        """Add the correlation of x, padded, with filters (Cout, Cin / g, k, k) to y."""
        groups = self.conv.groups
        inputs, outputs = x.shape[1] // groups, y.shape[1] // groups
        room = _Room(self, workspace)
        filters = room.filters(groups, inputs, outputs)
        self._put_filters(taps, filters, scratch)
        for images in room.chunks(len(x)):
            count = (images.stop - images.start) * self.tiles
            of_x, of_y = room.tiles(count, groups, inputs, outputs)
            self._scatter(x[images], of_x, pad, scratch)
            np.matmul(of_x, filters, out=of_y)
            self._gather(of_y, y[images], scratch)

    # --- between planes and points --------------------------------------------------------------------

    @property
    def _tile_bytes(self) -> int:
        """Scratch memory for a tile: as it is, transformed, its step, and its share of a padded plane."""
        tile, step = 4 * self.transform.shape[0] * self.transform.shape[1], 4 * self.step[0] * self.step[1]
        return 2 * tile + step + self.transform.dtype.itemsize * self.transform.points

    def _blocks(self, channels: int) -> Iterator[tuple[slice, slice]]:
        """Cut the tiles of an image into rows of tiles and channels that the scratch buffer has room for."""
        width = self.grid[1] * self._tile_bytes
        for rows in pieces(self.grid[0], width):
            for part in pieces(channels, width * (rows.stop - rows.start)):
                yield rows, part

    def _scatter(
        self, x: Array, points: NDArray[Any], pad: int, scratch: Scratch, *, filters: bool = False
    ) -> None:
        """Transform the tiles of x into (points, groups, tiles, channels).

        Tiles are whole ones, which overlap; as `filters` they are a step wide.
        """
        reach = self.step if filters else self.transform.shape
        images, channels, height, width = x.shape
        for n in range(images):
            for rows, part in self._blocks(channels):
                down, across, count = rows.stop - rows.start, self.grid[1], part.stop - part.start
                plane = (down - 1) * self.step[0] + reach[0], (across - 1) * self.step[1] + reach[1]
                padded, taken, spectrum, tiles = scratch.arrays(
                    ((count, *plane), np.float32),
                    ((count, down, across, *reach), np.float32),
                    ((count, down * across, self.transform.points), self.transform.dtype),
                    ((count * down * across, *self.transform.shape) if filters else (0,), np.float32),
                )
                top = rows.start * self.step[0] - pad
                h = slice(max(top, 0), min(top + plane[0], height))
                v = slice(0, min(plane[1] - pad, width))
                padded[...] = 0
                padded[:, h.start - top : h.stop - top, pad : pad + v.stop] = x[n, part, h, v]
                windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(1, 2))
                taken[...] = windows[:, :: self.step[0], :: self.step[1]]
                found = spectrum.reshape(-1, self.transform.points)
                if filters:
                    self.transform.filters(taken.reshape(-1, *reach), tiles, found)
                else:
                    self.transform.data(taken.reshape(-1, *reach), found)
                spots = self._spots(n, rows)
                for g, c, inside in _grouped(part, channels // self.conv.groups):
                    points[:, g, spots, c] = spectrum[inside].transpose(2, 1, 0)

    def _gather(self, points: NDArray[Any], y: Array, scratch: Scratch) -> None:
        """Transform (points, groups, tiles, channels) back and add to y."""
        images, channels, height, width = y.shape
        for n in range(images):
            for rows, part in self._blocks(channels):
                down, across, count = rows.stop - rows.start, self.grid[1], part.stop - part.start
                tiles, spectrum, plane = scratch.arrays(
                    ((count * down * across, *self.transform.shape), np.float32),
                    ((count, down * across, self.transform.points), self.transform.dtype),
                    ((count, down, self.step[0], across, self.step[1]), np.float32),
                )
                spots = self._spots(n, rows)
                for g, c, inside in _grouped(part, channels // self.conv.groups):
                    spectrum[inside] = points[:, g, spots, c].transpose(2, 1, 0)
                found = self.transform.output(spectrum.reshape(-1, self.transform.points), tiles, self.step)
                plane[...] = found.reshape(count, down, across, *self.step).swapaxes(2, 3)
                whole = plane.reshape(count, down * self.step[0], across * self.step[1])
                top = rows.start * self.step[0]
                bottom = min(top + whole.shape[1], height)
                y[n, part, top:bottom] += whole[:, : bottom - top, :width]

    def _spots(self, n: int, rows: slice) -> slice:
        """Places of an image's rows of tiles among all tiles."""
        begin = n * self.tiles
        return slice(begin + rows.start * self.grid[1], begin + rows.stop * self.grid[1])

    def _arrays(self, count: int, scratch: Scratch) -> tuple[Array, NDArray[Any]]:
        """Room for so many tiles and for their points."""
        tiles, points = scratch.arrays(
            ((count, *self.transform.shape), np.float32),
            ((count, self.transform.points), self.transform.dtype),
        )
        return tiles, points

    def _put_filters(self, taps: Array, points: NDArray[Any], scratch: Scratch) -> None:
        """Transform filters (Cout, Cin / g, k, k) into (points, groups, Cin / g, Cout / g)."""
        outputs = len(taps) // self.conv.groups
        for o in range(len(taps)):
            for part in pieces(taps.shape[1], self._tile_bytes):
                tiles, spectrum = self._arrays(part.stop - part.start, scratch)
                self.transform.filters(taps[o, part], tiles, spectrum)
                points[:, o // outputs, part, o % outputs] = spectrum.T

    def _gather_filters(self, points: NDArray[Any], dw: Array, scratch: Scratch) -> None:
        """Transform (points, groups, Cin / g, Cout / g) back and add to dw."""
        outputs = len(dw) // self.conv.groups
        shape = (self.conv.size, self.conv.size)
        for o in range(len(dw)):
            for part in pieces(dw.shape[1], self._tile_bytes):
                tiles, spectrum = self._arrays(part.stop - part.start, scratch)
                spectrum[...] = points[:, o // outputs, part, o % outputs].T
                dw[o, part] += self.transform.output(spectrum, tiles, shape)


class _Room:
    """The workspace of a fast convolution: filters, then tiles of as many images as fit."""

    def __init__(self, tiling: Tiling, workspace: NDArray[np.uint8]) -> None:
        self._points = tiling.transform.points
        value = tiling.transform.dtype.itemsize
        self._values = workspace[: len(workspace) // value * value].view(tiling.transform.dtype)
        self._begin = tiling.bytes(0) // value
        self._images = max(1, (len(workspace) - tiling.bytes(0)) // (tiling.bytes(1) - tiling.bytes(0)))

    def filters(self, groups: int, inputs: int, outputs: int) -> NDArray[Any]:
        """Return room for (points, groups, inputs, outputs)."""
        return self._values[: self._begin].reshape(self._points, groups, inputs, outputs)

    def tiles(self, count: int, groups: int, inputs: int, outputs: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return room for (points, groups, count, inputs) and (points, groups, count, outputs)."""
        begin, between = self._begin, self._begin + self._points * groups * count * inputs
        end = between + self._points * groups * count * outputs
        of_x = self._values[begin:between].reshape(self._points, groups, count, inputs)
        return of_x, self._values[between:end].reshape(self._points, groups, count, outputs)

    def chunks(self, images: int) -> Iterator[slice]:
        """Cut the images into as many as fit at a time."""
        for begin in range(0, images, self._images):
            yield slice(begin, min(begin + self._images, images))


def _grouped(part: slice, size: int) -> Iterator[tuple[int, slice, slice]]:
    """Cut channels into those of each group: the group, the channels in it, their places in the part."""
    begin = part.start
    while begin < part.stop:
        g = begin // size
        end = min((g + 1) * size, part.stop)
        yield g, slice(begin - g * size, end - g * size), slice(begin - part.start, end - part.start)
        begin = end
