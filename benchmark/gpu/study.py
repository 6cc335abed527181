"""A study of a GPU: its stages by name, the networks and budgets, and the folder of the results."""

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
    "steps": "checks of torch on the GPU; whole training steps of torch, recorded and measured",
    "plans": "schedules of these steps under shares of eager torch's peak; needs no GPU",
    "trials": "these schedules, executed beside eager torch; and torch's own means at the same budgets",
    "page": "the tables of all that has been measured, between two marks of a page of the documentation",
}
"""Work of each stage, in the order in which they build on each other."""

SMOKE = "smoke"
"""Name of the stage before all others, which tests whether the GPU computes the same as the CPU."""

ON_THE_GPU = frozenset((SMOKE, "profile", "kernels", "streams", "run"))
"""Stages that need PyCUDA and a GPU from the start; torch has its own access to the GPU."""

NETWORKS = (("alexnet", 128), ("vgg16", 128), ("resnet50", 128))
"""Networks of the stages, each with its batch."""

SMOKE_NETWORKS = (("lenet", 8), ("cifar10_quick", 4), ("resnet56:depth=8", 2))
"""Networks of the smoke test, each with its batch."""

STEPS = tuple(
    (f"pebbler.benchmark.gpu.torch_models:{name}", batch)
    for name, batch in (
        ("gpt2", 8),
        ("resnet50", 64),
        ("llama", 4),
        ("vit_b", 64),
        ("unet", 16),
        ("lstm", 64),
    )
)
"""Models of whole training steps, each a function and its batch."""

SHARES = (75, 50)
"""Budgets of these steps, in percent of the peak of eager torch."""

STEP_METHODS = ("flow", "flow-recompute", "modnn")
"""Methods of their schedules: two that need the solvers, and a rule."""

RECOMPUTING = frozenset(("flow-recompute",))
"""Those of them whose instance lets operators run again."""

BUDGETS = ("1.05xMmin", "1.25xMmin", "1.5xMmin", "2xMmin")
"""Budgets of the schedules."""

METHODS = ("vdnn-all-p", "vdnn-dyn", "modnn", "flow")
"""Methods of the schedules."""


@dataclass(frozen=True, slots=True)
class Study:
    """The measurements to make, and the folder of their results.

    Attributes
    ----------
    folder
        Folder with one file for each result.
    networks, smoke_networks
        Specifications of networks, each with the images of a batch, for the stages and for the smoke test.
    budgets, methods
        Budgets and methods of the schedules.
    layers
        Convolution layers for the stage ``streams``; if empty, those of GLP4NN's Table 5.
    device
        Device for which the page predicts the times of these layers.
    providers
        Providers whose convolutions are profiled; if empty, the default.
    repeat
        Number of timed executions of each unit.
    steps, shares
        Models of training steps with their batches, and their budgets in percent of eager torch's peak.
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
    steps: Sequence[tuple[str, int]] = STEPS
    shares: Sequence[int] = SHARES

    def path(self, *words: object) -> Path:
        """Return the file of a result: its words, with characters replaced that a file name cannot have."""
        name = "-".join(str(word) for word in words)
        return self.folder / name.translate(str.maketrans(":=,%/", "-----"))
