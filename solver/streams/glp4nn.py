"""The number of a layer's kernels to run side by side: GLP4NN's analytical model, in four versions.

The paper (Fu et al., ICPP 2018, section 3.2) chooses #K_i, how often each kernel K_i runs at a time, so that
as many threads as possible are active under the limits of a multiprocessor; the sum of all #K_i is the number
of streams. ``as-printed`` reads eqs. 3 to 9 of the text at hand literally, which is a conversion of the
printed page; ``as-printed-repaired`` reads eqs. 7 and 8 with the symbol that Table 2 defines, #beta_i, the
blocks of a kernel; ``as-implemented`` is what the authors' program computes
(github.com/Hao-Tju/GLP4NN_Caffe), and ``corrected`` keeps the idea and the limits that the hardware has.

All are of one form, `StreamModel`: maximise sum gain_i (#K_i div step) subject to
sum use_ri (#K_i div step) <= capacity_r for every resource r, 1 <= sum #K_i <= concurrency and
0 <= #K_i <= most_i, in whole numbers; step is 1 but for the literal reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal, get_args

from ...instances.devices.kernels import Kernel, LayerKernels, resident_blocks
from ...instances.devices.occupancy import ExecutionLimits
from ...instances.errors import PebblerError
from ..linear.model import LinearModel, ModelBuilder

ModelName = Literal["as-printed", "as-printed-repaired", "as-implemented", "corrected"]
"""Name of a version of the model."""

MODELS: tuple[ModelName, ...] = get_args(ModelName)
"""Names of all versions of the model."""

Order = Literal["none", "most", "fewest"]
"""Rule by which one of several optima is chosen."""


@dataclass(frozen=True, slots=True)
class StreamModel:
    """An integer program that chooses #K_i for every kernel i.

    Attributes
    ----------
    kernels
        Names of the kernels.
    most
        Greatest #K_i of each kernel.
    gain
        Gain of each kernel in the objective; the unit depends on the version.
    use, capacity
        For each resource, the use of each kernel, and the capacity.
    concurrency
        The greatest sum of all #K_i.
    step
        Gain and use count #K_i div step.
    ties
        Choice among several optima: none; the one with the greatest sum, then the lexicographically greatest;
        or the one with the least sum, then the lexicographically least.
    fallback
        Number of streams if the sum is 1; None stands for 1.
    """

    kernels: tuple[str, ...]
    most: tuple[int, ...]
    gain: tuple[int, ...]
    use: dict[str, tuple[int, ...]]
    capacity: dict[str, int]
    concurrency: int
    step: int = 1
    ties: Order = "none"
    fallback: int | None = None

    def streams(self, total: int) -> int:
        """Return C_out for a sum of all #K_i (eq. 9)."""
        return self.fallback if total == 1 and self.fallback is not None else total

    def linear(self) -> LinearModel:
        """Return the model for a linear solver, which minimises; rows are divided by their common divisor."""
        count = len(self.kernels)
        builder = ModelBuilder()
        launches = builder.columns(count, upper=self.most, integer=True, cost=self._cost(self.step == 1))
        counted = launches
        if self.step > 1:  # beta_i = #K_i div step: step beta_i <= #K_i <= step beta_i + step - 1
            counted = builder.columns(
                count,
                upper=[most // self.step for most in self.most],
                integer=True,
                cost=self._cost(True),
            )
            rows = builder.rows(count, lower=0, upper=self.step - 1)
            builder.entries(rows, launches, 1)
            builder.entries(rows, counted, -self.step)
        for resource, uses in self.use.items():
            if any(uses):
                divisor = gcd(*uses)
                row = builder.rows(1, upper=self.capacity[resource] // divisor)
                builder.entries(row, counted, [use // divisor for use in uses])
        builder.entries(builder.rows(1, lower=1, upper=self.concurrency), launches, 1)
        return builder.build()

    def _cost(self, counted: bool) -> list[float]:
        return [-float(gain) if counted else 0.0 for gain in self.gain]

    def gained(self, chosen: Sequence[int]) -> int:
        """Return the objective of a choice."""
        return sum(gain * (n // self.step) for gain, n in zip(self.gain, chosen, strict=True))

    def admits(self, chosen: Sequence[int]) -> bool:
        """Return whether a choice keeps all limits, in exact arithmetic."""
        return (
            1 <= sum(chosen) <= self.concurrency
            and all(0 <= n <= most for n, most in zip(chosen, self.most, strict=True))
            and all(
                sum(use * (n // self.step) for use, n in zip(uses, chosen, strict=True))
                <= self.capacity[resource]
                for resource, uses in self.use.items()
            )
        )


def stream_model(name: ModelName, layer: LayerKernels, limits: ExecutionLimits) -> StreamModel:
    """Return a version of the model for the kernels of a layer.

    Raises
    ------
    PebblerError
        When a block does not fit a multiprocessor, or when the authors' arithmetic breaks down.
    """
    for kernel in layer.kernels:
        resident_blocks(kernel, limits)
    return _VERSIONS[name](layer, limits)


def _as_printed(layer: LayerKernels, limits: ExecutionLimits) -> StreamModel:
    """Return eqs. 3 to 9 with beta_i = #K_i div #SM (eq. 8), also in eq. 7.

    The right-hand side of eq. 7 is then a bound. Its condition, #K_i tau_i beta_i <= tau_max #SM, grows with
    #K_i, so there is a greatest #K_i.
    """
    processors = limits.multiprocessors

    def most(kernel: Kernel) -> int:
        bound = min(_overlap(kernel.duration_ns, layer), limits.concurrent_kernels)
        while bound * (bound // processors) * kernel.threads > limits.threads * processors or (
            bound * (bound // processors) * kernel.shared_bytes > limits.shared_bytes * processors
        ):
            bound -= 1
        return bound

    return StreamModel(
        kernels=_names(layer),
        most=tuple(most(kernel) for kernel in layer.kernels),
        gain=tuple(kernel.threads for kernel in layer.kernels),
        use={
            "threads": tuple(kernel.threads for kernel in layer.kernels),
            "shared": tuple(kernel.shared_bytes for kernel in layer.kernels),
        },
        capacity={"threads": limits.threads, "shared": limits.shared_bytes},
        concurrency=limits.concurrent_kernels,
        step=processors,
    )


def _as_printed_repaired(layer: LayerKernels, limits: ExecutionLimits) -> StreamModel:
    """Return eqs. 3 to 9 with #beta_i, the blocks of K_i, where the text has beta_i (eq. 7) or #K_i (eq. 8).

    Table 2 defines #beta_i, and no equation of the text has it. Then beta_i = #beta_i div #SM, and eq. 7
    compares what all blocks need with what all multiprocessors have. #K_i of each kernel run at a time, so
    that beta_i counts #K_i times in eqs. 3 to 5, as in the authors' program.
    """
    processors = limits.multiprocessors
    beta = [kernel.blocks // processors for kernel in layer.kernels]
    most = []
    for kernel in layer.kernels:
        bounds = [_overlap(kernel.duration_ns, layer), limits.concurrent_kernels]
        bounds.append(limits.threads * processors // (kernel.threads * kernel.blocks))
        if kernel.shared_bytes:
            bounds.append(limits.shared_bytes * processors // (kernel.shared_bytes * kernel.blocks))
        most.append(min(bounds))
    threads = tuple(kernel.threads * b for kernel, b in zip(layer.kernels, beta, strict=True))
    shared = tuple(kernel.shared_bytes * b for kernel, b in zip(layer.kernels, beta, strict=True))
    return StreamModel(
        kernels=_names(layer),
        most=tuple(most),
        gain=threads,
        use={"threads": threads, "shared": shared},
        capacity={"threads": limits.threads, "shared": limits.shared_bytes},
        concurrency=limits.concurrent_kernels,
    )


def _as_implemented(layer: LayerKernels, limits: ExecutionLimits) -> StreamModel:
    """Return the authors' linear program, in whole numbers throughout.

    A wave is the number of a kernel's blocks that the device holds: W = (tau_max div tau_i) #SM, and in the
    same way for shared memory. The rest of a grid in its last wave stands for the grid. The choice of their
    solver among optima is not known; the choice here gives the 3 streams of the paper's Fig. 6.
    """
    processors = limits.multiprocessors
    most, threads, shared = [], [], []
    for kernel in layer.kernels:
        waves = [limits.threads // kernel.threads * processors]
        duration = kernel.duration_ns
        if kernel.shared_bytes:
            waves.append(limits.shared_bytes // kernel.shared_bytes * processors)
            held, asked = -(-min(waves) // processors), -(-kernel.blocks // processors)
            if asked > held:
                duration = duration * (asked % held or held) // asked
        bounds = [-(-wave // _last_wave(kernel, wave)) for wave in waves]
        most.append(min(_overlap(duration, layer), *bounds))
        counted = _last_wave(kernel, min(waves))
        threads.append(kernel.threads * counted // processors)
        shared.append(kernel.shared_bytes * counted // processors)
    return StreamModel(
        kernels=_names(layer),
        most=tuple(most),
        gain=tuple(kernel.blocks * kernel.threads // processors for kernel in layer.kernels),
        use={"threads": tuple(threads), "shared": tuple(shared)},
        capacity={"threads": limits.threads, "shared": limits.shared_bytes},
        concurrency=limits.work_queues,
        ties="most",
        fallback=max(most),
    )


def _corrected(layer: LayerKernels, limits: ExecutionLimits) -> StreamModel:
    """Return the model of the device's active threads, under all limits of its multiprocessors.

    A kernel counts with the blocks that are resident if it runs alone: its grid, or as many as fit. Of equal
    optima, the one with the fewest streams is chosen.
    """
    processors = limits.multiprocessors
    resident = [min(k.blocks, resident_blocks(k, limits) * processors) for k in layer.kernels]

    def of(needs: Callable[[Kernel], int]) -> tuple[int, ...]:
        return tuple(needs(kernel) * count for kernel, count in zip(layer.kernels, resident, strict=True))

    threads = of(lambda kernel: kernel.threads)
    return StreamModel(
        kernels=_names(layer),
        most=tuple(_overlap(kernel.duration_ns, layer) for kernel in layer.kernels),
        gain=threads,
        use={
            "threads": threads,
            "shared": of(lambda kernel: kernel.shared_bytes),
            "blocks": tuple(resident),
            "registers": of(lambda kernel: kernel.block_registers),
        },
        capacity={
            "threads": limits.threads * processors,
            "shared": limits.shared_bytes * processors,
            "blocks": limits.blocks * processors,
            "registers": limits.registers * processors,
        },
        concurrency=min(limits.concurrent_kernels, limits.work_queues),
        ties="fewest",
    )


_VERSIONS: dict[ModelName, Callable[[LayerKernels, ExecutionLimits], StreamModel]] = {
    "as-printed": _as_printed,
    "as-printed-repaired": _as_printed_repaired,
    "as-implemented": _as_implemented,
    "corrected": _corrected,
}
"""The function that builds each version."""


def _names(layer: LayerKernels) -> tuple[str, ...]:
    return tuple(kernel.name for kernel in layer.kernels)


def _overlap(duration_ns: int, layer: LayerKernels) -> int:
    """Return how many launches fit in the time of a kernel (the first term of eq. 7)."""
    return -(-duration_ns // layer.t_launch_ns)


def _last_wave(kernel: Kernel, wave: int) -> int:
    """Return the blocks that the authors' program counts: the grid, or its rest after full waves."""
    left = kernel.blocks if kernel.blocks <= wave else kernel.blocks % wave
    if not left:
        raise PebblerError(
            f"kernel '{kernel.name}': its {kernel.blocks} blocks are whole waves of {wave}, for which the "
            "authors' program divides by zero; take the model 'corrected'"
        )
    return left
