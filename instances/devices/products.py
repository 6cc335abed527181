"""Kernels of cuBLAS's matrix products in single precision: their tiles, and which of them a product gets.

A kernel of cuBLAS computes a product tile by tile, one tile a thread block. There are several kernels, and
cuBLAS does not say how it chooses among them. The rule here is an assumption: a product gets the tile with
which its kernel, alone on the device, takes the least time by the roofline; the largest of equals. Blocks
share nothing that they load, so small tiles cost traffic, and large ones leave multiprocessors idle.
docs/papers-glp4nn.md holds the rule against measured products.

Which kernels there are is read off their names in public profiles:

- Kepler: ``sgemm_sm35_ldg_nn_64x16x64x16x16`` has tiles of 64 x 64, 16 deep, by 16 x 16 threads. GLP4NN's
  authors profiled this one on a K40c (``NVPROF`` in the history of github.com/Hao-Tju/GLP4NN_Caffe): 71
  registers a thread, 8468 bytes a block. The others are those that profiles of Caffe and Theano name.
- Maxwell and later: ``maxwell_sgemm_128x64_nn``, which Pascal has as well, ``volta_sgemm_128x64_nn``,
  ``ampere_sgemm_128x64_nn``, and one of 32 x 32 that is 32 deep (``sgemm_32x32x32_NN``).

Rows come before columns, in cuBLAS's own order: what is contiguous in memory is a column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .device import Device
from .kernels import Kernel, derived_kernel
from .library import Architecture
from .roofline import FLOAT

Layout = Literal["nn", "nt", "tn"]
"""Which of its two operands cuBLAS has to transpose: n for no, t for yes."""

_BASE_REGISTERS = 55
"""Registers of a thread beside one for each value that it computes: 71 on Kepler for 16 values."""


@dataclass(frozen=True, slots=True)
class Tile:
    """What a thread block of a matrix product computes, and what it takes.

    Attributes
    ----------
    rows, columns
        Of the result.
    depth
        Of what is loaded at a time from both operands.
    threads
        Of a block.
    buffers
        How many loads there is shared memory for: 2 where the next one overlaps with the products.
    """

    rows: int
    columns: int
    depth: int
    threads: int
    buffers: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block; Kepler's pads are left out (276 bytes of 8468)."""
        return FLOAT * self.buffers * self.depth * (self.rows + self.columns)

    @property
    def registers(self) -> int:
        """Registers of a thread: an assumption for all kernels but the one that was profiled."""
        return _BASE_REGISTERS + self.rows * self.columns // self.threads

    def blocks(self, rows: int, columns: int) -> int:
        """Blocks of a product with so many rows and columns."""
        return -(-rows // self.rows) * -(-columns // self.columns)


_KEPLER: dict[Layout, tuple[Tile, ...]] = {
    "nn": (Tile(64, 64, 16, 256, 1),),
    "nt": (Tile(128, 64, 16, 256, 1), Tile(64, 64, 16, 256, 1)),
    "tn": (Tile(128, 256, 8, 512, 1), Tile(64, 128, 16, 256, 1), Tile(32, 64, 16, 128, 1)),
}
_LATER = (
    Tile(128, 128, 8, 256, 2),
    Tile(128, 64, 8, 128, 2),
    Tile(64, 64, 8, 64, 2),
    Tile(128, 32, 8, 64, 2),
    Tile(32, 128, 8, 64, 2),
    Tile(32, 32, 32, 64, 2),
)
"""8 x 8 values a thread, as in Gray's maxas; that the smallest has 4 x 4 is an assumption."""


def product_tiles(architecture: Architecture | None, layout: Layout) -> tuple[Tile, ...]:
    """Return the tiles that a library has for an architecture, large ones first."""
    return _KEPLER[layout] if architecture == "kepler" else _LATER


def product_kernel(
    device: Device, name: str, layout: Layout, rows: int, columns: int, depth: int, invocations: int = 1
) -> Kernel:
    """Return the kernel of a matrix product, by the tile with which it takes the least time alone.

    Parameters
    ----------
    device
        A packaged device.
    name
        Of the kernel.
    layout
        Which of the operands cuBLAS has to transpose.
    rows, columns, depth
        Of the result, in cuBLAS's order, and the inner dimension.
    invocations
        Launches a sample.

    Raises
    ------
    PebblerError
        For a device whose multiprocessors are not known.
    """
    kernels = (
        tiled_kernel(device, name, tile, rows, columns, depth, invocations)
        for tile in product_tiles(device.architecture, layout)
    )
    return min(kernels, key=lambda kernel: kernel.duration_ns)


def tiled_kernel(
    device: Device, name: str, tile: Tile, rows: int, columns: int, depth: int, invocations: int = 1
) -> Kernel:
    """Return the kernel of a matrix product by one tile, whose blocks load and compute it whole.

    Parameters and errors are those of `product_kernel`, with the tile in place of the layout.
    """
    blocks = tile.blocks(rows, columns)
    return derived_kernel(
        device,
        name,
        blocks=blocks,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes,
        registers=tile.registers,
        flops=2.0 * tile.rows * tile.columns * depth * blocks,
        traffic=FLOAT * ((tile.rows + tile.columns) * depth * blocks + rows * columns),
        loads=-(-depth // tile.depth),
        invocations=invocations,
    )
