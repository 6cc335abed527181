"""The CPU's kernels: what `kernel` describes, in NumPy, one function for each kind of layer and pass.

Nothing is allocated that grows with the batch (see `cpu_scratch`); sums are taken in one order, so that the
same numbers give the same bits wherever they lie. Gradients that are not added to begin as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....instances.errors import PebblerError
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

CpuKernel = Callable[[Mapping[str, int], int], None]
"""Takes the addresses of the operands and the index of the first image."""


def prepare(kernel: Kernel, scratch: Scratch) -> CpuKernel:
    """Return the code of a kernel.

    Raises
    ------
    PebblerError
        When there is none, or its workspace is too small for the algorithm.
    """
    layer, role = kernel.layer, kernel.role
    compute: Compute
    if layer.kind in ("conv", "deconv") and role not in ("relu", "copy"):
        passes = CONVOLUTION if layer.kind == "conv" else TRANSPOSED
        compute = passes[role](Convolution(kernel))
    else:
        found = _KERNELS.get((role, "") if role in ("relu", "copy") else (role, layer.kind))
        if found is None or kernel.algorithm not in ("kernel", "gemm"):
            raise PebblerError(f"task '{kernel.task}': the CPU has no algorithm '{kernel.algorithm}' for it")
        compute = found

    def launch(addresses: Mapping[str, int], first: int) -> None:
        operands = Operands(kernel, addresses, first, scratch)
        compute(operands)
        if role == "FP" and layer.relu:
            cpu_elementwise.relu(operands)

    return launch


def algorithms(kernel: Kernel) -> list[tuple[str, int]]:
    """Algorithms that the CPU has for a kernel, each with the workspace that it is given."""
    if kernel.role in ("relu", "copy"):
        return [("kernel", 0)]
    if kernel.layer.kind in ("conv", "deconv"):
        return Convolution.algorithms(kernel)
    return [("gemm" if kernel.layer.kind in ("fc", "linear") else "kernel", 0)]


_KERNELS: dict[tuple[str, str], Compute] = {
    ("relu", ""): cpu_elementwise.relu_backward,
    ("copy", ""): cpu_elementwise.copy,
    ("FP", "fc"): cpu_products.fc,
    ("BP1", "fc"): cpu_products.fc_data,
    ("BP2", "fc"): cpu_products.fc_filter,
    ("FP", "linear"): cpu_products.linear,
    ("BP1", "linear"): cpu_products.linear_data,
    ("BP2", "linear"): cpu_products.linear_filter,
    ("FP", "norm"): cpu_norms.norm,
    ("BP1", "norm"): cpu_norms.norm_backward,
    ("FP", "scale"): cpu_elementwise.scale,
    ("BP1", "scale"): cpu_elementwise.scale_backward,
    ("FP", "gelu"): cpu_elementwise.gelu,
    ("BP1", "gelu"): cpu_elementwise.gelu_backward,
    ("FP", "loss"): cpu_losses.contrast,
    ("BP1", "loss"): cpu_losses.contrast_backward,
    ("FP", "maxpool"): cpu_windows.maxpool,
    ("BP1", "maxpool"): cpu_windows.maxpool_backward,
    ("FP", "avgpool"): cpu_windows.avgpool,
    ("BP1", "avgpool"): cpu_windows.avgpool_backward,
    ("FP", "lrn"): cpu_norms.lrn,
    ("BP1", "lrn"): cpu_norms.lrn_backward,
    ("FP", "bn"): cpu_norms.bn,
    ("BP1", "bn"): cpu_norms.bn_backward,
    ("FP", "add"): cpu_elementwise.add,
    ("BP1", "add"): cpu_elementwise.add_backward,
    ("FP", "concat"): cpu_elementwise.concat,
    ("BP1", "concat"): cpu_elementwise.concat_backward,
    ("FP", "dropout"): cpu_elementwise.dropout,
    ("BP1", "dropout"): cpu_elementwise.dropout_backward,
    ("FP", "resample"): cpu_elementwise.resample,
    ("BP1", "resample"): cpu_elementwise.resample_backward,
    ("FP", "softmax"): cpu_losses.softmax,
    ("BP1", "softmax"): cpu_losses.softmax_backward,
}
