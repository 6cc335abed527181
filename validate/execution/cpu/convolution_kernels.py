"""Kernels of the CPU for convolutions and transposed ones, which bring the operands to `convolution`."""

from __future__ import annotations

from ....instances.errors import PebblerError
from .convolution import Convolution
from .operands import Compute, Operands, per_channel


def _conv_forward(convolution: Convolution) -> Compute:
    def compute(at: Operands) -> None:
        y = at.target("y")
        w, b = convolution.split(at.weights("w"))
        convolution.forward(at.source("x", 0), w, y, at.workspace(), at.scratch)
        if b.size:
            y += per_channel(b)

    return compute


def _conv_data(convolution: Convolution) -> Compute:
    def compute(at: Operands) -> None:
        w, _ = convolution.split(at.weights("w"))
        convolution.data(at.target("dy"), w, at.gradient(0), at.workspace(), at.scratch)

    return compute


def _conv_filter(convolution: Convolution) -> Compute:
    def compute(at: Operands) -> None:
        dy = at.target("dy")
        dw, db = convolution.split(at.weights("dw"))
        convolution.filter(at.source("x", 0), dy, dw, at.workspace(), at.scratch)
        if db.size:
            db += dy.sum(axis=(0, 2, 3))

    return compute


def _deconv_forward(convolution: Convolution) -> Compute:
    def compute(at: Operands) -> None:
        y = at.target("y")
        y[...] = 0
        w, b = convolution.split(at.weights("w"))
        convolution.data(at.source("x", 0), w, y, at.workspace(), at.scratch)
        if b.size:
            y += per_channel(b)

    return compute


def _deconv_data(convolution: Convolution) -> Compute:
    kernel = convolution.kernel
    if "dx0" in kernel.adds:
        raise PebblerError(f"task '{kernel.task}': the CPU has no kernel that adds to this gradient")

    def compute(at: Operands) -> None:
        w, _ = convolution.split(at.weights("w"))
        convolution.forward(at.target("dy"), w, at.source("dx", 0), at.workspace(), at.scratch)

    return compute


def _deconv_filter(convolution: Convolution) -> Compute:
    def compute(at: Operands) -> None:
        dy = at.target("dy")
        dw, db = convolution.split(at.weights("dw"))
        convolution.filter(dy, at.source("x", 0), dw, at.workspace(), at.scratch)
        if db.size:
            db += dy.sum(axis=(0, 2, 3))

    return compute


CONVOLUTION = {"FP": _conv_forward, "BP1": _conv_data, "BP2": _conv_filter}
"""Kernels of a convolution by role."""

TRANSPOSED = {"FP": _deconv_forward, "BP1": _deconv_data, "BP2": _deconv_filter}
"""Kernels of a transposed convolution by role."""
