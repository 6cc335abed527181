from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pebbler.instances.errors import PebblerError
from pebbler.instances.networks.builder import NetworkBuilder
from pebbler.instances.networks.taskgraph import task_graph
from pebbler.validate.execution.cpu.convolution import Convolution
from pebbler.validate.execution.cpu.scratch import Scratch
from pebbler.validate.execution.cpu.transforms import winograd_matrices
from pebbler.validate.execution.kernel import Kernel, kernels_of

# channels, height, width, outputs, kernel, stride, padding, groups, images
CASES = [
    (3, 12, 12, 8, 3, 1, 1, 1, 5),
    (4, 13, 11, 6, 5, 1, 2, 2, 3),
    (1, 28, 28, 20, 5, 1, 0, 1, 4),
    (8, 9, 9, 4, 1, 1, 0, 1, 3),
    (8, 9, 9, 4, 1, 2, 0, 1, 3),
    (6, 32, 32, 8, 3, 2, 1, 1, 2),
    (3, 70, 40, 4, 3, 1, 1, 1, 2),
    (4, 32, 32, 4, 3, 1, 0, 1, 2),
    (3, 23, 23, 4, 11, 4, 2, 1, 2),
    (8, 10, 10, 8, 7, 1, 3, 8, 2),
    (64, 3, 340, 2, 5, 1, 2, 1, 1),
]


def kernels(case: tuple[int, ...]) -> dict[str, Kernel]:
    """The tasks of a convolution between others, by role."""
    channels, height, width, outputs, size, stride, pad, groups, images = case
    net = NetworkBuilder("one")
    below = net.conv("below", net.input(channels, height, width), channels, 1)
    above = net.conv("conv", below, outputs, size, stride=stride, pad=pad, groups=groups)
    net.softmax("loss", above)
    graph = task_graph(net.finish(batch=1, source="tests"), images)
    return {one.role: one for one in kernels_of(graph, images) if one.layer.name == "conv"}


def correlation(x: NDArray[Any], w: NDArray[Any], stride: int, pad: int, groups: int) -> NDArray[np.float64]:
    """The definition, in double precision."""
    outputs, depth, size, _ = w.shape
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride]
    windows = windows.reshape(len(x), groups, depth, *windows.shape[2:])
    filters = w.reshape(groups, outputs // groups, depth, size, size).astype(np.float64)
    found = np.einsum("ngchwij,gocij->ngohw", windows, filters, optimize=True)
    return found.reshape(len(x), outputs, *found.shape[3:])


class Study:
    """A case with numbers, and what each pass must give.

    Backward passes are the transposes of the forward one: <dx, z> = <dy, forward of z>, for random z.
    """

    def __init__(self, case: tuple[int, ...]) -> None:
        channels, height, width, outputs, size, stride, pad, groups, images = case
        rng = np.random.default_rng(1)
        self.settings = stride, pad, groups
        self.x = rng.standard_normal((images, channels, height, width), dtype=np.float32)
        self.w = rng.standard_normal((outputs, channels // groups, size, size), dtype=np.float32)
        self.y = correlation(self.x, self.w, *self.settings)
        self.dy = rng.standard_normal(self.y.shape, dtype=np.float32)
        self.other_x = rng.standard_normal(self.x.shape, dtype=np.float32)
        self.other_w = rng.standard_normal(self.w.shape, dtype=np.float32)
        self.flat = self.w.reshape(groups, outputs // groups, -1)

    def error(self, kernel: Kernel, scratch: Scratch) -> float:
        """Relative error of a pass; the workspace holds NaN at first."""
        one = Convolution(kernel)
        workspace = np.full(kernel.workspace_bytes, 0xFF, dtype=np.uint8)
        if kernel.role == "FP":
            y = np.full(self.y.shape, np.nan, dtype=np.float32)
            one.forward(self.x, self.flat, y, workspace, scratch)
            return float(np.abs(y - self.y).max() / np.abs(self.y).max())
        if kernel.role == "BP1":
            dx = np.zeros_like(self.x)
            one.data(self.dy, self.flat, dx, workspace, scratch)
            return self.apart(dx, self.other_x, correlation(self.other_x, self.w, *self.settings))
        dw = np.zeros_like(self.flat)
        one.filter(self.x, self.dy, dw, workspace, scratch)
        return self.apart(dw, self.other_w, correlation(self.x, self.other_w, *self.settings))

    def apart(self, found: NDArray[Any], other: NDArray[Any], forward: NDArray[Any]) -> float:
        found, other = found.astype(np.float64).reshape(-1), other.astype(np.float64).reshape(-1)
        gap = found @ other - np.sum(forward * self.dy)
        return float(abs(gap) / (np.linalg.norm(found) * np.linalg.norm(other)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_algorithm_computes_the_convolution_in_any_workspace_that_it_accepts(
    case: tuple[int, ...],
) -> None:
    study, scratch = Study(case), Scratch()
    for role, kernel in kernels(case).items():
        found = Convolution.algorithms(kernel)
        assert found[0][1] == 0
        for name, workspace in found:
            one = replace(kernel, algorithm=name, workspace_bytes=workspace)
            sizes = {workspace, least(one)}
            for size in sizes:
                assert study.error(replace(one, workspace_bytes=size), scratch) < 2e-5, (role, name, size)


def least(kernel: Kernel) -> int:
    """The least workspace that an algorithm accepts."""
    low, high = -1, kernel.workspace_bytes
    while high - low > 1:
        middle = (low + high) // 2
        try:
            Convolution(replace(kernel, workspace_bytes=middle))
            high = middle
        except PebblerError:
            low = middle
    return high


def test_a_workspace_that_is_too_small_is_refused() -> None:
    kernel = replace(kernels(CASES[0])["FP"], algorithm="winograd-nonfused", workspace_bytes=100)
    with pytest.raises(PebblerError, match=r"'FP\(conv\)'.*needs a workspace of \d+ bytes"):
        Convolution(kernel)


@pytest.mark.parametrize(
    ("case", "algorithm"), [(CASES[0], "no-such"), (CASES[4], "fft"), (CASES[9], "winograd-nonfused")]
)
def test_an_algorithm_that_does_not_apply_is_refused(case: tuple[int, ...], algorithm: str) -> None:
    kernel = replace(kernels(case)["FP"], algorithm=algorithm, workspace_bytes=10**9)
    with pytest.raises(PebblerError, match=f"no algorithm '{algorithm}'"):
        Convolution(kernel)


@pytest.mark.parametrize(("outputs", "taps"), [(4, 3), (2, 5), (3, 4), (5, 2)])
def test_winograds_matrices_compute_a_correlation(outputs: int, taps: int) -> None:
    back, filters, data = winograd_matrices(outputs, taps)
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal(outputs + taps - 1), rng.standard_normal(taps)
    assert back @ ((filters @ w) * (data @ x)) == pytest.approx(np.correlate(x, w, "valid"), abs=1e-5)
