"""A trial of a schedule: its numbers compared with a run without a budget, its times with the prediction."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...instances.errors import PebblerError
from ...instances.instance import Instance
from ...instances.origin import MappingTimes
from ..schedule import Schedule
from ..simulate import nominal_ns
from .data import Data, initial
from .device import Backend, DeviceError
from .executor import Execution, Executor, Timed, require_no_pages
from .kernel import Kernel
from .mapping import mappings_ns, simulate_issued
from .plan import Plan, plan
from .rebuild import Rebuilt, rebuild
from .unlimited import unlimited

TOLERANCE = 1e-4
"""Greatest difference of gradients, relative to the layer's largest, if kernels are not deterministic."""

_LARGE_WINOGRAD = 2e-2
"""The same where Winograd's algorithm has filters larger than 3 x 3.

Its transforms multiply rounding errors by a factor that grows quickly with the filter (Lavin and Gray 2016;
Barabasz et al. 2020). On an H100, cuDNN's results for 5 x 5 are up to 0.7 % of the largest off, those for 3 x
3 up to 0.001 %.
"""

_AGAIN = 4
"""How many times as far apart as two runs without a budget a run with one may be, where that is more.

In a deep network, what kernels round in another order each time grows from layer to layer.
"""

_AT_ONCE = 1 << 18
"""Values that are compared at once, so that what is between stays in the processor's cache."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Causes:
    """The causes of the difference between measured and predicted time, in nanoseconds of an iteration.

    The four times add up to the difference.

    Attributes
    ----------
    kernels_ns
        The simulated time with measured times of runs and moves, less the prediction.
    copies_ns
        The time that measured copies add to that; among other things, it shows contention with the kernels.
    mapping_ns
        The time that measured mappings add to that; 0 in contiguous memory.
    launches_ns
        The rest: gaps between operations, in which streams wait for the host and for events.
    """

    kernels_ns: int
    copies_ns: int
    mapping_ns: int
    launches_ns: int


@dataclass(frozen=True, slots=True)
class Trial:
    """The results of a trial.

    Attributes
    ----------
    instance, schedule, plan
        The executed schedule, with its instance and its plan.
    backend, device
        The backend and the device of the execution.
    executions
        Timed iterations, by rising time.
    energy_j
        Average energy of a timed execution in joules; None if the device does not count it.
    reference_ns
        Time of an iteration without a budget in nanoseconds; None if there was none.
    loss
        Mean loss over the images.
    identical
        Whether losses, gradients and, in a steady state, what is carried have the same bits in every
        execution, including those without a budget.
    deterministic
        Whether the device promises the same bits.
    max_abs_error
        Largest difference of a gradient, or of what is carried.
    close
        Whether all of these are within the tolerance.
    compared_with
        What a reference is: the same executor without a budget, or eager torch.
    """

    instance: Instance
    schedule: Schedule
    plan: Plan
    backend: str
    device: str
    executions: tuple[Execution, ...]
    energy_j: float | None
    reference_ns: int | None
    loss: float
    identical: bool
    deterministic: bool
    max_abs_error: float
    close: bool
    compared_with: Literal["no budget", "eager torch"] = "no budget"

    @property
    def scheduled_ns(self) -> int:
        """Time of an iteration in the schedule, where the host takes no time and never waits."""
        return self.instance.rounds * self.schedule.makespan_ns

    @property
    def mapping_cost(self) -> MappingTimes | None:
        """Cost of mapping pages; None if it is unknown, and then it counts as 0."""
        return self.instance.made_from.mapping

    @property
    def predicted_ns(self) -> int:
        """Predicted time of an iteration in nanoseconds.

        It is the schedule's time; in paged memory, with the host's waits and mappings; and as a graph, with
        the gaps between its kernels, if they are known (`graph_gap_change_ns`).
        """
        return self.instance.rounds * self.simulated(self._expected_ns, self.mappings_ns)

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """Nodes of every operation if each round was a graph; None if operations were issued one by one."""
        return self.median.nodes

    @property
    def graph_gap_change_ns(self) -> int | None:
        """Difference of the gap before a kernel in a graph and on a stream; None if it is unknown."""
        launches = self.instance.made_from.launches
        if launches is None or launches.graph_gap_ns is None:
            return None
        return launches.graph_gap_ns - launches.gap_ns

    @property
    def _expected_ns(self) -> list[int]:
        """Predicted time of every operation; in a graph, with its gap before each kernel of a run."""
        change = self.graph_gap_change_ns
        if self.nodes is None or change is None:
            return self.nominal_ns
        return [
            max(0, nominal + change * nodes) if operation.kind == "run" else nominal
            for operation, nominal, nodes in zip(
                self.schedule.operations, self.nominal_ns, self.nodes, strict=True
            )
        ]

    @property
    def median(self) -> Execution:
        """The execution with the median time; of two, the shorter one."""
        return self.executions[(len(self.executions) - 1) // 2]

    @property
    def measured_ns(self) -> int:
        """Median time of an iteration in nanoseconds."""
        return self.median.measured_ns

    @property
    def right(self) -> bool:
        """Whether the numbers are right: identical, or close if the device does not promise the same bits."""
        return self.identical or (not self.deterministic and self.close)

    def causes(self) -> Causes | None:
        """Return the causes of the difference between measured and predicted time; None for a graph."""
        if self.nodes is not None:
            return None
        kernels = copies = mapping = 0
        for timed in self.median.rounds:
            measured = [one.end_ns - one.start_ns for one in timed]
            computed = [
                took if operation.stream == "compute" else nominal
                for operation, nominal, took in zip(
                    self.schedule.operations, self.nominal_ns, measured, strict=True
                )
            ]
            kernels += self.simulated(computed, self.mappings_ns)
            copies += self.simulated(measured, self.mappings_ns)
            mapping += self.simulated(measured, [one.mapping_ns for one in timed])
        return Causes(
            kernels - self.predicted_ns, copies - kernels, mapping - copies, self.measured_ns - mapping
        )

    @property
    def nominal_ns(self) -> list[int]:
        """Predicted time of every operation of a round: its own, or the schedule's where copies change it."""
        if self.instance.is_coupled:
            return [operation.end_ns - operation.start_ns for operation in self.schedule.operations]
        return [nominal_ns(self.instance, operation) for operation in self.schedule.operations]

    @property
    def mappings_ns(self) -> list[int]:
        """Predicted time of the host to map pages before each operation of a round after the first."""
        return mappings_ns(self.plan, self.mapping_cost)

    def simulated(self, durations_ns: Sequence[int], mappings_ns: Sequence[int]) -> int:
        """Return the time of a round with these times of operations and mappings."""
        return max(simulate_issued(self.plan, durations_ns, mappings_ns)[1], default=0)

    @property
    def operations(self) -> tuple[Timed, ...]:
        """Times of each operation in the first round of the median execution.

        Raises
        ------
        PebblerError
            When the round was a graph.
        """
        if self.nodes is not None:
            raise PebblerError("a graph has one time for all of its operations; run it without --graph")
        return self.median.rounds[0]

    def measured(self) -> Schedule:
        """Return the schedule with the measured times of the median execution's first round.

        It shows the execution. The simulation of the program has other times, so the checker would reject it.

        Raises
        ------
        PebblerError
            When the round was a graph.
        """
        timed = self.operations
        operations = tuple(
            msgspec.structs.replace(operation, start_ns=max(one.start_ns, 0), end_ns=max(one.end_ns, 0))
            for operation, one in zip(self.schedule.operations, timed, strict=True)
        )
        end = max((operation.end_ns for operation in operations), default=0)
        return msgspec.structs.replace(self.schedule, operations=operations, makespan_ns=end)


def tolerance_of(kernels: Iterable[Kernel]) -> float:
    """Return how far apart results of kernels may be, relative to the largest, because they round."""
    large = any("winograd" in kernel.algorithm and kernel.layer.kernel > 3 for kernel in kernels)
    return _LARGE_WINOGRAD if large else TOLERANCE


def attempt(
    instance: Instance,
    schedule: Schedule,
    backend: Callable[[], Backend],
    *,
    repeat: int = 3,
    reference: bool = True,
    seed: int = 0,
    data: Data | None = None,
    graph: bool = False,
) -> Trial:
    """Execute a valid schedule and the same computation without a budget, and compare.

    Where kernels do not give the same bits each time and the two differ by more than the tolerance, the
    computation without a budget is done a second time, to see how far apart two of it are.

    The schedule is executed once in poisoned memory, then `repeat` times to measure it. Without a reference,
    the timed executions are compared with the one in poisoned memory. With graphs, it is executed twice in
    poisoned memory: without graphs, as libraries must be used before a capture, and with graphs.

    In a steady state, each of these is a row of iterations, at least two but for the timed ones. The first
    begins with the initial data. Each is compared with the one of its number in the row without a budget.

    Parameters
    ----------
    instance, schedule
        The schedule, which the caller has checked, and the instance that it is for.
    backend
        Function that opens the device; it is called once for each of the two.
    repeat
        Number of timed executions.
    reference
        Whether to run without a budget first, which needs memory for all data.
    seed, data
        Seed of weights, images and labels, or these data.
    graph
        Whether each round is launched as one graph; the run without a budget never is.

    Raises
    ------
    PebblerError
        When the instance cannot be rebuilt, or the device has no room or no code for it, or fails. For a
        graph, also when the memory is paged, or the device has no graphs.
    """
    if repeat < 1:
        raise PebblerError(f"{repeat} timed executions are too few; give 1 or more")
    rebuilt = rebuild(instance)
    settled = plan(instance, schedule, rebuilt)
    if graph:
        require_no_pages(settled)

    @cache
    def drawn() -> Data:  # after the device has refused what it has no kernels for
        if data is not None:
            return data
        return initial(rebuilt.graph.network, rebuilt.batch, seed, instance.made_from.optimizer)

    length = max(2, repeat) if instance.carried else 1
    right = _unbudgeted(instance, schedule, rebuilt, backend(), drawn, length) if reference else None
    device = backend()
    with Executor(device, settled, instance.rounds, poison=True) as executor:
        name, title = device.name, device.device
        kernels = [step.kernel for step in settled.steps if step.kernel is not None]
        deterministic = all(map(device.is_deterministic, kernels))
        _log.info("%s: in poisoned memory", instance.name)
        rows = [_in_a_row(executor, drawn(), length)]
        if graph:
            rows.append(_in_a_row(executor, drawn(), length, graph=True))
        executor.poison = False
        executor.load(drawn())
        before = device.energy_j()
        executions = []
        for index in range(repeat):
            _log.info("%s: timed execution %d of %d", instance.name, index + 1, repeat)
            executions.append(executor.run(graph=graph))
        after = device.energy_j()
    rows.append(executions)
    compared = rows[0] if right is None else right
    pairs = [pair for row in rows for pair in zip(row, cycle(compared), strict=False)]
    errors = [_error(one, other) for one, other in pairs]
    worst, bound = max(relative for _, relative in errors), tolerance_of(kernels)
    if bound < worst < math.inf and right is not None and not deterministic:
        again = _unbudgeted(instance, schedule, rebuilt, backend(), drawn, length)
        bound = max(bound, _AGAIN * max(_error(*pair)[1] for pair in zip(again, right, strict=True)))
    return Trial(
        instance=instance,
        schedule=schedule,
        plan=settled,
        backend=name,
        device=title,
        executions=tuple(sorted(executions, key=lambda one: one.measured_ns)),
        energy_j=None if before is None or after is None else (after - before) / repeat,
        reference_ns=None if right is None else right[0].measured_ns,
        loss=rows[0][0].loss,
        identical=all(identical(one, other) for one, other in pairs),
        deterministic=deterministic,
        max_abs_error=max(absolute for absolute, _ in errors),
        close=worst <= bound < math.inf,
    )


def _unbudgeted(
    instance: Instance,
    schedule: Schedule,
    rebuilt: Rebuilt,
    backend: Backend,
    drawn: Callable[[], Data],
    length: int,
) -> list[Execution]:
    roomy, program = unlimited(instance, schedule)
    _log.info("%s: without a budget, in %d bytes", instance.name, roomy.budget_bytes)
    try:
        executor = Executor(backend, plan(roomy, program, rebuilt), instance.rounds)
    except DeviceError as error:
        raise DeviceError(
            f"the run without a budget has no room, leave it out with --no-reference: {error}"
        ) from None
    with executor:
        return _in_a_row(executor, drawn(), length)


def _in_a_row(executor: Executor, data: Data, count: int, *, graph: bool = False) -> list[Execution]:
    """Execute iterations one after the other, the first with this data."""
    executor.load(data)
    return [executor.run(graph=graph) for _ in range(count)]


def identical(one: Execution, other: Execution) -> bool:
    """Return whether losses, gradients and what is carried have the same bits."""
    return same_bits(one.losses, other.losses) and all(
        same_bits(values, others) for values, others in _compared(one, other)
    )


def _compared(one: Execution, other: Execution) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yield the gradients and what is carried, of the one and of the other."""
    for found, wanted in ((one.gradients, other.gradients), (one.carried, other.carried)):
        for name, values in wanted.items():
            yield found[name], values


def _error(one: Execution, other: Execution) -> tuple[float, float]:
    """Return the largest difference of a gradient or of what is carried: absolute, and relative."""
    absolute = relative = 0.0
    for found, values in _compared(one, other):
        apart, largest = distance(found, values)
        if math.isinf(apart):
            return math.inf, math.inf
        absolute = max(absolute, apart)
        relative = max(relative, apart / largest if largest else apart)
    return absolute, relative


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two contiguous arrays have the same bytes; NaN is equal to NaN of the same bits."""
    mine, others = (values.reshape(-1).view(np.uint8) for values in (one, other))
    return mine.size == others.size and all(np.array_equal(*parts) for parts in _parts(mine, others))


def distance(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> tuple[float, float]:
    """Return how far two arrays are from each other.

    Parameters
    ----------
    found, wanted
        Arrays of one size.

    Returns
    -------
    tuple
        The largest difference, infinite where one of the two is NaN or infinite, and the largest magnitude
        of a value that is wanted.
    """
    apart = largest = 0.0
    room = np.empty(min(_AT_ONCE, found.size), dtype=np.float32)
    for mine, others in _parts(found.reshape(-1), wanted.reshape(-1)):
        with np.errstate(invalid="ignore"):
            difference = np.subtract(mine, others, out=room[: mine.size])
        here = _magnitude(difference)
        if math.isnan(here):
            return math.inf, math.inf
        apart, largest = max(apart, here), max(largest, _magnitude(others))
    return apart, largest


def _magnitude(values: NDArray[np.float32]) -> float:
    """Return the largest magnitude of some values, NaN if there is one."""
    return max(float(values.max()), -float(values.min()))


def _parts(one: NDArray[Any], other: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    for begin in range(0, one.size, _AT_ONCE):
        yield one[begin : begin + _AT_ONCE], other[begin : begin + _AT_ONCE]


def times(trial: Trial) -> list[tuple[str, int, Timed]]:
    """Return name, predicted time and measured times of each operation of the first round.

    Raises
    ------
    PebblerError
        When the round was a graph.
    """
    names = [step.name for step in trial.plan.steps]
    return list(zip(names, trial.nominal_ns, trial.operations, strict=True))
