"""The CPU's kernels: the computations of `kernel` in NumPy, one function for each layer kind and pass.

No allocation grows with the batch (see `scratch`). Sums are taken in one order, so that the same numbers give
the same bits wherever they lie. Gradients that are not accumulated begin as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....instances.errors import PebblerError
from ....instances.networks.kinds import LayerKind
from ....instances.networks.taskgraph import Role
from ..kernel import Kernel
from . import elementwise as cpu_elementwise
from . import losses as cpu_losses
from . import norms as cpu_norms
from . import pooling as cpu_windows
from . import products as cpu_products
from .convolution import Convolution
from .convolution_kernels import CONVOLUTION, TRANSPOSED
from .operands import Compute, Operands
from .scratch import Scratch
from .threads import CpuKernel

Passes = Mapping[Role, Compute]
"""What computes each pass of a kind."""


def prepare(kernel: Kernel, scratch: Scratch) -> CpuKernel:
    """Return the code of a kernel.

    Raises
    ------
    PebblerError
        When there is no code, or the workspace is too small for the algorithm.
    """
    compute = _compute(kernel)
    has_relu = kernel.role == "FP" and kernel.layer.relu

    def launch(addresses: Mapping[str, int], first: int) -> None:
        operands = Operands(kernel, addresses, first, scratch)
        compute(operands)
        if has_relu:
            cpu_elementwise.relu(operands)

    return launch


def _compute(kernel: Kernel) -> Compute:
    kind, role = kernel.layer.kind.name, kernel.role
    if role not in _OF_ALL and kind in _CONVOLUTIONS:
        return _CONVOLUTIONS[kind][role](Convolution(kernel))
    found = _OF_ALL.get(role) or KERNELS.get(kind, {}).get(role)
    if found is None or (kernel.on == "device" and kernel.algorithm not in ("kernel", "gemm")):
        raise PebblerError(f"task '{kernel.task}': the CPU has no algorithm '{kernel.algorithm}' for it")
    return found


def algorithms(kernel: Kernel) -> list[tuple[str, int]]:
    """Return the CPU's algorithms for a kernel, each with the workspace that it gets in bytes."""
    if kernel.role in _OF_ALL:
        return [("kernel", 0)]
    if kernel.layer.kind.name in _CONVOLUTIONS:
        return Convolution.algorithms(kernel)
    return [("gemm" if kernel.layer.kind.multiplies else "kernel", 0)]


def kinds() -> frozenset[str]:
    """Return the names of the kinds of layers that there are kernels for."""
    return frozenset((*_CONVOLUTIONS, *KERNELS))


def register_kernels(kind: LayerKind, passes: Passes) -> None:
    """Enter the CPU's kernels for a kind of layers; registering again replaces them, as a notebook does.

    Parameters
    ----------
    kind
        The kind.
    passes
        Per role, ``FP``, ``BP1`` and, where the kind has that task, ``BP2``, a function that takes the
        `Operands` of a launch and writes, or adds to, what the role says (`kernel`); a layer's ReLU follows.

    Raises
    ------
    PebblerError
        When the kind is one of ours that has kernels, or a pass is missing.
    """
    if kind.name in _CONVOLUTIONS or kind.name in _OURS:
        raise PebblerError(f"the CPU has kernels for '{kind}' already; give the kind another name")
    roles: tuple[Role, ...] = ("FP", "BP1", "BP2") if kind.has_weight_task else ("FP", "BP1")
    if missing := [role for role in roles if role not in passes]:
        raise PebblerError(f"the CPU's kernels for '{kind}' have no {missing[0]}; give one")
    KERNELS[kind.name] = passes


_OF_ALL: Passes = {
    "relu": cpu_elementwise.relu_backward,
    "copy": cpu_elementwise.copy,
    "OPT": cpu_elementwise.update,
}
"""What does not depend on the kind."""

_CONVOLUTIONS: dict[str, Mapping[str, Callable[[Convolution], Compute]]] = {
    "conv": CONVOLUTION,
    "deconv": TRANSPOSED,
}
KERNELS: dict[str, Passes] = {
    "fc": {"FP": cpu_products.fc, "BP1": cpu_products.fc_data, "BP2": cpu_products.fc_filter},
    "linear": {
        "FP": cpu_products.linear,
        "BP1": cpu_products.linear_data,
        "BP2": cpu_products.linear_filter,
    },
    "norm": {"FP": cpu_norms.norm, "BP1": cpu_norms.norm_backward},
    "scale": {"FP": cpu_elementwise.scale, "BP1": cpu_elementwise.scale_backward},
    "gelu": {"FP": cpu_elementwise.gelu, "BP1": cpu_elementwise.gelu_backward},
    "sigmoid": {"FP": cpu_elementwise.sigmoid, "BP1": cpu_elementwise.sigmoid_backward},
    "loss": {"FP": cpu_losses.contrast, "BP1": cpu_losses.contrast_backward},
    "maxpool": {"FP": cpu_windows.maxpool, "BP1": cpu_windows.maxpool_backward},
    "avgpool": {"FP": cpu_windows.avgpool, "BP1": cpu_windows.avgpool_backward},
    "lrn": {"FP": cpu_norms.lrn, "BP1": cpu_norms.lrn_backward},
    "bn": {"FP": cpu_norms.bn, "BP1": cpu_norms.bn_backward},
    "add": {"FP": cpu_elementwise.add, "BP1": cpu_elementwise.add_backward},
    "concat": {"FP": cpu_elementwise.concat, "BP1": cpu_elementwise.concat_backward},
    "dropout": {"FP": cpu_elementwise.dropout, "BP1": cpu_elementwise.dropout_backward},
    "resample": {"FP": cpu_elementwise.resample, "BP1": cpu_elementwise.resample_backward},
    "softmax": {"FP": cpu_losses.softmax, "BP1": cpu_losses.softmax_backward},
}
"""The kernels by kind: a kind that is in neither table cannot be run on the CPU."""
_OURS = frozenset(KERNELS)
