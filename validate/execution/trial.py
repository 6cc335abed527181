"""A trial of a schedule: its numbers against a run without budget, its times against the prediction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np

from ...instances.errors import PebblerError
from ...instances.instance import Instance
from ...instances.origin import MappingTimes
from ..schedule import Schedule
from ..simulate import nominal_ns
from .data import Data, initial
from .device import Backend, DeviceError
from .executor import Execution, Executor, Timed, require_no_pages
from .mapping import mapping_ns, simulate_issued
from .plan import Plan, plan
from .rebuild import Rebuilt, rebuild
from .unlimited import unlimited

TOLERANCE = 1e-4
"""How far gradients may be apart, relative to the largest of a layer, where kernels are not deterministic."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Causes:
    """Where the measured time differs from the predicted one, in nanoseconds of an iteration; they add up.

    Attributes
    ----------
    kernels_ns
        Simulated with the measured times of runs and moves, less the prediction.
    copies_ns
        What the measured times of copies add to that: among other things, contention with the kernels.
    mapping_ns
        What the measured times of mappings add to that; 0 in contiguous memory.
    launches_ns
        The rest: gaps between operations, in which streams wait for the host and for events.
    """

    kernels_ns: int
    copies_ns: int
    mapping_ns: int
    launches_ns: int


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it.

    Attributes
    ----------
    instance, schedule, plan
        What was executed.
    backend, device
        On what.
    executions
        Timed iterations, by rising time.
    energy_j
        Of a timed execution, on average; None where the device does not count it.
    reference_ns
        An iteration without budget; None when there was none.
    loss
        Mean over the images.
    identical
        Whether losses and gradients have the same bits in every execution, that without budget included.
    deterministic
        Whether the device promises that they have.
    max_abs_error
        Largest difference of a gradient.
    close
        Whether every gradient is within the tolerance.
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

    @property
    def scheduled_ns(self) -> int:
        """An iteration, as the schedule has it: the host takes no time, and never waits."""
        return self.instance.rounds * self.schedule.makespan_ns

    @property
    def mapping_cost(self) -> MappingTimes | None:
        """What mapping pages costs; None where that is unknown, and counts as 0."""
        return self.instance.made_from.mapping

    @property
    def predicted_ns(self) -> int:
        """An iteration: as the schedule has it, in paged memory with the waits and mappings of the host.

        As a graph with its gaps between kernels, where they are known (`graph_gap_change_ns`).
        """
        return self.instance.rounds * self.simulated(self._expected_ns, self.mappings_ns)

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """Nodes of every operation, where each round was a graph; None where operations were issued."""
        return self.median.nodes

    @property
    def graph_gap_change_ns(self) -> int | None:
        """How much longer the gap before a kernel is in a graph than on a stream; None where unknown."""
        launches = self.instance.made_from.launches
        if launches is None or launches.graph_gap_ns is None:
            return None
        return launches.graph_gap_ns - launches.gap_ns

    @property
    def _expected_ns(self) -> list[int]:
        """Predicted time of every operation; in a graph with another gap before each kernel of a run."""
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
        """The execution whose time is the median, the lower one of two."""
        return self.executions[(len(self.executions) - 1) // 2]

    @property
    def measured_ns(self) -> int:
        """An iteration: the median."""
        return self.median.measured_ns

    @property
    def right(self) -> bool:
        """Whether the numbers are what they must be: identical, or close where nothing more is promised."""
        return self.identical or (not self.deterministic and self.close)

    def causes(self) -> Causes | None:
        """Say where the measured time differs from the predicted one; None of a graph."""
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
        """Predicted time of every operation of a round."""
        return [nominal_ns(self.instance, operation) for operation in self.schedule.operations]

    @property
    def mappings_ns(self) -> list[int]:
        """Predicted time of the host to map pages before each operation of a round."""
        cost = self.mapping_cost
        return [mapping_ns(step, cost) for step in self.plan.steps]

    def simulated(self, durations_ns: Sequence[int], mappings_ns: Sequence[int]) -> int:
        """Time of a round with these times of operations and mappings."""
        return max(simulate_issued(self.plan, durations_ns, mappings_ns)[1], default=0)

    @property
    def operations(self) -> tuple[Timed, ...]:
        """What happened to each operation in the first round of the median execution.

        Raises
        ------
        PebblerError
            When the round was a graph.
        """
        if self.nodes is not None:
            raise PebblerError("a graph has one time for all of its operations; run it without --graph")
        return self.median.rounds[0]

    def measured(self) -> Schedule:
        """Return the schedule with the times of the median execution's first round in place of the simulated.

        It shows what happened; the simulation of the program differs, so the checker would refuse it.

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

    The schedule is executed once in poisoned memory, then `repeat` times for its times. Without a reference
    the timed executions are compared with that in poisoned memory. With graphs it is executed twice in
    poisoned memory: without them, which libraries need before they can be captured, and with them.

    Parameters
    ----------
    instance, schedule
        The schedule, which the caller has checked, and what it is for.
    backend
        Opens the device; called once for each of the two.
    repeat
        Timed executions.
    reference
        Whether to run without a budget first, which takes the memory for it.
    seed, data
        What weights, images and labels are drawn from, or these themselves.
    graph
        Whether each round is launched as one graph; the run without a budget never is.

    Raises
    ------
    PebblerError
        When the instance cannot be rebuilt, or the device has no room or no code for it, or fails; for a
        graph, when it is in paged memory, or the device has no graphs.
    """
    if repeat < 1:
        raise PebblerError(f"{repeat} timed executions are too few; give 1 or more")
    rebuilt = rebuild(instance)
    settled = plan(instance, schedule, rebuilt)
    if graph:
        require_no_pages(settled)

    @cache
    def drawn() -> Data:  # after the device has refused what it has no kernels for
        return initial(rebuilt.graph.network, rebuilt.batch, seed) if data is None else data

    right = _unbudgeted(instance, schedule, rebuilt, backend(), drawn) if reference else None
    device = backend()
    with Executor(device, settled, instance.rounds, poison=True) as executor:
        executor.load(drawn())
        name, title = device.name, device.device
        deterministic = all(
            device.is_deterministic(step.kernel) for step in settled.steps if step.kernel is not None
        )
        _log.info("%s: in poisoned memory", instance.name)
        executions = [executor.run()]
        if graph:
            executions.append(executor.run(graph=True))
        executor.poison = False
        before = device.energy_j()
        for index in range(repeat):
            _log.info("%s: timed execution %d of %d", instance.name, index + 1, repeat)
            executions.append(executor.run(graph=graph))
        after = device.energy_j()
    compared = executions[0] if right is None else right
    errors = [_error(one, compared) for one in executions]
    return Trial(
        instance=instance,
        schedule=schedule,
        plan=settled,
        backend=name,
        device=title,
        executions=tuple(sorted(executions[-repeat:], key=lambda one: one.measured_ns)),
        energy_j=None if before is None or after is None else (after - before) / repeat,
        reference_ns=None if right is None else right.measured_ns,
        loss=executions[0].loss,
        identical=all(identical(one, compared) for one in executions),
        deterministic=deterministic,
        max_abs_error=max(absolute for absolute, _ in errors),
        close=all(relative <= TOLERANCE for _, relative in errors),
    )


def _unbudgeted(
    instance: Instance,
    schedule: Schedule,
    rebuilt: Rebuilt,
    backend: Backend,
    drawn: Callable[[], Data],
) -> Execution:
    roomy, program = unlimited(instance, schedule)
    _log.info("%s: without a budget, in %d bytes", instance.name, roomy.budget_bytes)
    try:
        executor = Executor(backend, plan(roomy, program, rebuilt), instance.rounds)
    except DeviceError as error:
        raise DeviceError(
            f"the run without a budget has no room, leave it out with --no-reference: {error}"
        ) from None
    with executor:
        executor.load(drawn())
        return executor.run()


def identical(one: Execution, other: Execution) -> bool:
    """Whether losses and gradients have the same bits."""
    return one.losses.tobytes() == other.losses.tobytes() and all(
        one.gradients[name].tobytes() == values.tobytes() for name, values in other.gradients.items()
    )


def _error(one: Execution, other: Execution) -> tuple[float, float]:
    """Largest difference of a gradient: as it is, and relative to the largest gradient of its layer."""
    absolute = relative = 0.0
    for name, values in other.gradients.items():
        difference = float(np.max(np.abs(one.gradients[name] - values), initial=0.0))
        if np.isnan(difference):
            return float("inf"), float("inf")
        largest = float(np.max(np.abs(values), initial=0.0))
        absolute = max(absolute, difference)
        relative = max(relative, difference / largest if largest else difference)
    return absolute, relative


def times(trial: Trial) -> list[tuple[str, int, Timed]]:
    """Return name, predicted time and what was measured of each operation of the first round.

    Raises
    ------
    PebblerError
        When the round was a graph.
    """
    names = [step.name for step in trial.plan.steps]
    return list(zip(names, trial.nominal_ns, trial.operations, strict=True))
