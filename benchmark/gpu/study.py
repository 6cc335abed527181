"""What is measured on a GPU: its stages by name, the networks and budgets, and the folder of the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STAGES = {
    "profile": "all algorithms of all tasks of the networks, copies and mappings of pages",
    "kernels": "grid, block, shared memory, registers and time of every kernel, by CUPTI; a launch's time",
    "streams": "convolution layers sample by sample on 1 to 32 streams",
    "solve": "schedules of all methods under all budgets, from the profiles; needs the solvers and no GPU",
    "run": "these schedules, executed: predicted against measured, numbers against a run without a budget",
    "torch": "torch under the same budgets, with and without TF32: as it is, save_on_cpu, checkpoints",
    "page": "the tables of all that has been measured, between two marks of a page of the documentation",
}
"""What each stage does, in the order in which they build on each other."""

SMOKE = "smoke"
"""The stage of its own that comes before all others: does the GPU compute what the CPU computes?"""

ON_THE_GPU = frozenset((SMOKE, "profile", "kernels", "streams", "run"))
"""Stages that need PyCUDA and a GPU from the start; torch brings its own way to the GPU."""

NETWORKS = (("alexnet", 128), ("vgg16", 128), ("resnet50", 128))
SMOKE_NETWORKS = (("lenet", 8), ("cifar10_quick", 4), ("resnet56:depth=8", 2))
BUDGETS = ("1.05xMmin", "1.25xMmin", "1.5xMmin", "2xMmin")
METHODS = ("vdnn-all-p", "vdnn-dyn", "modnn", "flow")


@dataclass(frozen=True, slots=True)
class Study:
    """What to measure, and the folder that the results are in.

    Attributes
    ----------
    folder
        Every result is a file of its own there.
    networks, smoke_networks
        Specifications, each with the images of a batch: of the stages, and of the smoke test.
    budgets, methods
        What schedules are made under, and by what.
    layers
        Convolution layers for the stage ``streams``; none: GLP4NN's Table 5.
    device
        What the times of these layers are predicted for.
    providers
        Whose convolutions are profiled; none: the default.
    repeat
        Timed executions of everything.
    """

    folder: Path
    networks: Sequence[tuple[str, int]] = NETWORKS
    smoke_networks: Sequence[tuple[str, int]] = SMOKE_NETWORKS
    budgets: Sequence[str] = BUDGETS
    methods: Sequence[str] = METHODS
    layers: Sequence[str] = ()
    device: str = "h200"
    providers: Sequence[str] = ()
    repeat: int = 5

    def path(self, *words: object) -> Path:
        """Return the file of a result: its words, with what a file name cannot have replaced."""
        name = "-".join(str(word) for word in words)
        return self.folder / name.translate(str.maketrans(":=,%/", "-----"))
