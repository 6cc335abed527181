"""What the dimensions of a tensor are made of: the batch, a layer's channels or its positions.

An exporter writes one layer's output as many tensors: heads apart, transposed, queries, keys and values side
by side. Each dimension is a list of factors, the first of which varies slowest; ``C`` stands for channels,
``P`` for positions, ``B`` for the batch, ``R`` for the same values several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Factor = tuple[str, int]
Axes = list[list[Factor]]


def whole(dims: Sequence[int]) -> Axes:
    """Return the axes of a layer's output: an image's channels come second, those of a sequence last."""
    names = {0: "", 1: "B", 2: "BC", 3: "BPC"}.get(len(dims), "BC" + "P" * (len(dims) - 2))
    return [[(name, size)] for name, size in zip(names, dims, strict=True)]


def regrouped(axes: Axes, dims: Sequence[int]) -> Axes | None:
    """Return the axes of the same values in other dimensions; None where a factor would be cut unevenly."""
    rest = [factor for axis in axes for factor in axis if factor[1] > 1]
    found: Axes = []
    for size in dims:
        axis: list[Factor] = []
        while size > 1:
            if not rest:
                return None
            name, count = rest.pop(0)
            if count > size:
                if count % size:
                    return None
                rest.insert(0, (name, count // size))
                count = size
            elif size % count:
                return None
            axis.append((name, count))
            size //= count
        found.append(axis)
    return None if rest else found


def parts(axes: Axes, dims: Sequence[int]) -> Axes:
    """Return the axes where some dimensions are shorter than they were."""
    return [
        axis if prod(count for _, count in axis) == size else [(axis[0][0] if axis else "P", size)]
        for axis, size in zip(axes, dims, strict=True)
    ]


def expanded(axes: Axes, before: Sequence[int], dims: Sequence[int]) -> Axes | None:
    """Return the axes where dimensions of 1 are repeated, new ones in front; None where nothing fits."""
    new = len(dims) - len(before)
    if new < 0 or any(b not in (1, size) for b, size in zip(before, dims[new:], strict=True)):
        return None
    known = [*([] for _ in range(new)), *axes]
    lengths = [*(1 for _ in range(new)), *before]
    return [axis if size == b else [("R", size)] for axis, b, size in zip(known, lengths, dims, strict=True)]


def repeats(axes: Axes) -> int:
    """Return how often each value is there."""
    return prod(count for axis in axes for name, count in axis if name == "R")


def names(axis: list[Factor]) -> set[str]:
    """Return what a dimension is made of, factors of 1 aside."""
    return {name for name, count in axis if count > 1}
