"""Solutions of GLP4NN's models: by a linear solver through PuLP, by CP-SAT, and by counting all solutions.

The number of optima and the range of streams come from the count alone. The solver's optimum must agree with
it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...instances.devices.device import Device
from ...instances.devices.kernels import LayerKernels
from ...instances.devices.occupancy import execution_limits
from ...instances.errors import PebblerError
from ..cp_sat.interrupts import solve_interruptibly
from ..linear.available import list_linear_solvers
from ..linear.facade import solve_linear
from ..linear.model import GAP
from .glp4nn import ModelName, StreamModel, stream_model

CP_SAT = "cp-sat"
"""Name of CP-SAT as a solver."""

_MOST_STEPS = 3_000_000
"""Greatest number of steps of the count, which takes a few seconds; layers take thousands of steps."""

_TIME_LIMIT = 60.0
"""Time limit of a solver in seconds; models of a few kernels take milliseconds."""


@dataclass(frozen=True, slots=True)
class Optima:
    """All optima of a model.

    Attributes
    ----------
    objective
        Their objective.
    count
        Number of optima.
    least, greatest
        Least and greatest number of streams of an optimum.
    chosen
        The optimum that the model's rule chooses, as a number for each kernel; without a rule, None if there
        are several.
    """

    objective: int
    count: int
    least: int
    greatest: int
    chosen: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class StreamCount:
    """The answer of a model.

    Attributes
    ----------
    model
        Name of the model.
    streams
        Number of streams C_out; None if the model leaves it open.
    per_kernel
        #K_i by the kernel's name; None if the model leaves it open.
    optima, streams_range
        Number of optima, and the fewest and the most streams among them.
    solver
        Name of the solver.
    """

    model: ModelName
    streams: int | None
    per_kernel: dict[str, int] | None
    optima: int
    streams_range: tuple[int, int]
    solver: str


def count_streams(
    layer: LayerKernels, device: Device, name: ModelName, *, solver: str | None = None
) -> StreamCount:
    """Return how many streams a model wants for a layer.

    Parameters
    ----------
    layer
        The layer's kernels for one sample.
    device
        A packaged device.
    name
        Name of the model's version.
    solver
        A linear solver that takes whole columns, or ``cp-sat``; by default CBC where PuLP finds it, else
        HiGHS.

    Raises
    ------
    PebblerError
        When the model does not apply to the layer, or has no solution.
    AssertionError
        When the solver and the count disagree, which is a defect of one of them.
    """
    model = stream_model(name, layer, execution_limits(device))
    solver = default_solver() if solver is None else solver
    found = all_optima(model)
    best = best_by_cp_sat(model) if solver == CP_SAT else best_by_linear(model, solver)
    tolerance = 0 if solver == CP_SAT else GAP * found.objective
    if not found.objective - tolerance <= best <= found.objective:
        raise AssertionError(f"{name}: {solver} says {best}, the count of all solutions {found.objective}")
    chosen = found.chosen
    return StreamCount(
        model=name,
        streams=None if chosen is None else model.streams(sum(chosen)),
        per_kernel=None if chosen is None else dict(zip(model.kernels, chosen, strict=True)),
        optima=found.count,
        streams_range=(found.least, found.greatest),
        solver=solver,
    )


def default_solver() -> str:
    """Return CBC if PuLP finds it (PuLP 4 comes without it), else HiGHS."""
    return "cbc" if "cbc" in list_linear_solvers() else "highs"


def best_by_linear(model: StreamModel, solver: str) -> int:
    """Return the optimum according to a linear solver, whose point is checked in exact arithmetic.

    Raises
    ------
    PebblerError
        When the optimum is not proven, there is no solution, or the solver's point breaks a limit.
    """
    result = solve_linear(model.linear(), solver=solver, time_limit=_TIME_LIMIT)
    if result.status != "optimal" or result.values is None:
        raise PebblerError(f"{solver} has no optimum of the stream model: {result.status} ({result.detail})")
    chosen = [round(value) for value in result.values[: len(model.kernels)].tolist()]
    if not model.admits(chosen):
        raise PebblerError(f"{solver} has an optimum within its tolerances only; take --solver {CP_SAT}")
    return model.gained(chosen)


def best_by_cp_sat(model: StreamModel) -> int:
    """Return the optimum according to CP-SAT.

    Raises
    ------
    PebblerError
        When the optimum is not proven, or there is no solution.
    """
    from ortools.sat.python import cp_model

    program = cp_model.CpModel()
    launches = [
        program.new_int_var(0, most, name) for name, most in zip(model.kernels, model.most, strict=True)
    ]
    counted = launches
    if model.step > 1:
        counted = []
        for launch, most in zip(launches, model.most, strict=True):
            counted.append(program.new_int_var(0, most // model.step, "beta"))
            program.add_division_equality(counted[-1], launch, model.step)
    for resource, uses in model.use.items():
        program.add(cp_model.LinearExpr.weighted_sum(counted, uses) <= model.capacity[resource])
    program.add_linear_constraint(sum(launches), 1, model.concurrency)
    program.maximize(cp_model.LinearExpr.weighted_sum(counted, model.gain))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = _TIME_LIMIT
    status, interrupted = solve_interruptibly(solver, program)
    if interrupted:
        raise KeyboardInterrupt
    if status != cp_model.OPTIMAL:
        raise PebblerError(f"CP-SAT has no optimum of the stream model: {solver.status_name(status)}")
    return model.gained([solver.value(launch) for launch in launches])


def all_optima(model: StreamModel) -> Optima:
    """Count all solutions, kernel by kernel; partial solutions with equal use and gain are counted together.

    Raises
    ------
    PebblerError
        When there is no solution, or there are too many to count.
    """
    resources = list(model.use)
    limits = tuple(model.capacity[resource] for resource in resources)
    sign = -1 if model.ties == "most" else 1
    # (what is taken of each resource..., launches, gain): how many, and the first of them by the rule
    states: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {(*[0] * len(limits), 0, 0): (1, ())}
    steps = 0
    for i, most in enumerate(model.most):
        steps += len(states) * (min(most, model.concurrency) + 1)
        if steps > _MOST_STEPS:
            raise PebblerError(
                f"the layer's {len(model.most)} kernels fit side by side in too many ways to count; give "
                "fewer kernels"
            )
        following: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {}
        uses = [model.use[resource][i] for resource in resources]
        for (*taken, launched, gained), (count, prefix) in states.items():
            for n in range(min(most, model.concurrency - launched) + 1):
                counted = n // model.step
                now = [t + use * counted for t, use in zip(taken, uses, strict=True)]
                if any(t > limit for t, limit in zip(now, limits, strict=True)):
                    break
                state = (*now, launched + n, gained + model.gain[i] * counted)
                others, first = following.get(state, (0, None))
                chosen = (*prefix, sign * n)
                following[state] = (others + count, chosen if first is None else min(first, chosen))
        states = following
    solutions = [
        (state[-1], state[-2], count, first) for state, (count, first) in states.items() if state[-2]
    ]
    if not solutions:
        raise PebblerError(
            "no kernel of the layer fits the limits of the model even once; take another model"
        )
    objective = max(gain for gain, *_ in solutions)
    best = [(launched, count, first) for gain, launched, count, first in solutions if gain == objective]
    total = sum(count for _, count, _ in best)
    streams = [model.streams(launched) for launched, _, _ in best]
    _, chosen = min((sign * launched, first) for launched, _, first in best)
    return Optima(
        objective=objective,
        count=total,
        least=min(streams),
        greatest=max(streams),
        chosen=tuple(sign * n for n in chosen) if model.ties != "none" or total == 1 else None,
    )
