"""Fast convolutions on the CPU: tiles are transformed, multiplied point by point, and transformed back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ....instances.devices.roofline import FFT_LIMIT, FFT_TILE, FUSED_TILE, WINOGRAD_TILE
from ....instances.networks.taskgraph import Role
from .scratch import Scratch, pieces

Array = NDArray[np.float32]
"""Array of single-precision numbers."""


class Geometry(Protocol):
    """The sizes of a convolution that a transform needs."""

    role: Role
    algorithm: str
    images: int
    groups: int
    inputs: int
    height: int
    width: int
    outputs: int
    rows: int
    columns: int
    size: int
    pad: int


def tiling_of(conv: Geometry) -> Tiling | None:
    """Return the transform of a fast algorithm; None if it does not apply (as in the cost model)."""
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
    if conv.algorithm == "winograd":
        if conv.size != 3 or conv.role == "BP2":
            return None
        return Tiling(conv, Winograd(FUSED_TILE), (FUSED_TILE - 2, FUSED_TILE - 2))
    if conv.size not in (3, 5):
        return None
    step = WINOGRAD_TILE + 1 - conv.size
    return Tiling(conv, Winograd(WINOGRAD_TILE), (step, step))


class Fourier:
    """Real FFTs of tiles: correlations are products with a conjugate (Mathieu et al. 2013).

    According to NumPy's types, FFTs have double precision only; hence the casts.
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
    """Return the matrices A^T, G and B^T of F(outputs, taps) by Toom and Cook's method.

    The method is due to Lavin and Gray (2016). The points are 0, 1, -1, 2, -2, ... and infinity.
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
    """A fast convolution: planes in overlapping tiles, each of which gives `step` outputs on each side.

    The workspace begins with the filters, as (points, groups, Cin, Cout); tiles of images follow, as (points,
    groups, tiles, channels), of x and then of y. The gradient of the filters is stored in place of the
    filters.
    """

    conv: Geometry
    transform: Fourier | Winograd
    step: tuple[int, int]

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Return the tiles of a plane: of the input's for its gradient, else of the output's."""
        conv = self.conv
        plane = (conv.height, conv.width) if conv.role == "BP1" else (conv.rows, conv.columns)
        return -(-plane[0] // self.step[0]), -(-plane[1] // self.step[1])

    @property
    def tiles(self) -> int:
        """Return the number of tiles of an image and channel."""
        return self.grid[0] * self.grid[1]

    def bytes(self, images: int) -> int:
        """Return the workspace for so many images at a time, in bytes."""
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
        """Return a tile's scratch memory: tile, transform, step, and its share of a padded plane."""
        tile, step = 4 * self.transform.shape[0] * self.transform.shape[1], 4 * self.step[0] * self.step[1]
        return 2 * tile + step + self.transform.dtype.itemsize * self.transform.points

    def _blocks(self, channels: int) -> Iterator[tuple[slice, slice]]:
        """Cut the tiles of an image into rows of tiles and channels that fit the scratch buffer."""
        width = self.grid[1] * self._tile_bytes
        for rows in pieces(self.grid[0], width):
            for part in pieces(channels, width * (rows.stop - rows.start)):
                yield rows, part

    def _scatter(
        self, x: Array, points: NDArray[Any], pad: int, scratch: Scratch, *, filters: bool = False
    ) -> None:
        """Transform the tiles of x into (points, groups, tiles, channels).

        Tiles are whole and overlap; as `filters`, they are one step wide.
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
        """Return the positions of an image's rows of tiles among all tiles."""
        begin = n * self.tiles
        return slice(begin + rows.start * self.grid[1], begin + rows.stop * self.grid[1])

    def _arrays(self, count: int, scratch: Scratch) -> tuple[Array, NDArray[Any]]:
        """Return arrays for so many tiles and for their points."""
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
        """Return an array for (points, groups, inputs, outputs)."""
        return self._values[: self._begin].reshape(self._points, groups, inputs, outputs)

    def tiles(self, count: int, groups: int, inputs: int, outputs: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return arrays for (points, groups, count, inputs) and (points, groups, count, outputs)."""
        begin, between = self._begin, self._begin + self._points * groups * count * inputs
        end = between + self._points * groups * count * outputs
        of_x = self._values[begin:between].reshape(self._points, groups, count, inputs)
        return of_x, self._values[between:end].reshape(self._points, groups, count, outputs)

    def chunks(self, images: int) -> Iterator[slice]:
        """Cut the images into as many as fit at a time."""
        for begin in range(0, images, self._images):
            yield slice(begin, min(begin + self._images, images))


def _grouped(part: slice, size: int) -> Iterator[tuple[int, slice, slice]]:
    """Cut channels by group; return the group, the channels in it, and their positions in the part."""
    begin = part.start
    while begin < part.stop:
        g = begin // size
        end = min((g + 1) * size, part.stop)
        yield g, slice(begin - g * size, end - g * size), slice(begin - part.start, end - part.start)
        begin = end
