"""Linear models through PuLP 3.3 and 4: CBC, and other solvers that PuLP finds on this machine.

PuLP imports highspy, pyscipopt and others if they are installed. Their symbols clash with those of OR-Tools,
so this module runs in a process that never loads OR-Tools.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pulp
from numpy.typing import NDArray

from .model import GAP, LinearModel, LinearResult

_CBC = {"COIN_CMD": "cbc", "PULP_CBC_CMD": "cbc"}
"""Pebbler's name of CBC for each of its names in PuLP."""

_OPTIMAL, _INFEASIBLE, _GAP_LIMIT = 1, -1, -7
"""Statuses of PuLP 3 and 4; only PuLP 4 has the last one, for a gap within the requested tolerance."""


def available() -> dict[str, str]:
    """Return the solvers that PuLP finds here: PuLP's name of each, by pebbler's name."""
    found: dict[str, str] = {}
    for name in pulp.listSolvers(onlyAvailable=True):
        found.setdefault(_CBC.get(name, name.lower()), name)
    return found


def solve_by_pulp(
    model: LinearModel,
    solver: str,
    *,
    time_limit: float | None = None,
    workers: int = 1,
    seed: int = 0,
    log: bool = False,
    hint: NDArray[np.float64] | None = None,
) -> LinearResult:
    """Solve a model by one of the solvers that are `available`; options are those of `LinearOptions`.

    Time limit, threads and hint are passed to the solver if its class in PuLP takes them; only CBC gets the
    seed. There is a bound if the solver says optimal and takes a gap tolerance: the objective less this
    tolerance, which is relative to the objective, or to one if that is larger.
    """
    empty = np.bincount(model.rows, minlength=len(model.row_lower)) == 0
    if (empty & ((model.row_lower > 0) | (model.row_upper < 0))).any():
        return LinearResult("infeasible", None, None, math.inf, f"{solver}: a row without entries")
    problem, columns = _problem(model)
    name = available()[solver]
    wanted: dict[str, Any] = {
        "timeLimit": time_limit,
        "threads": workers,
        "gapRel": GAP,
        "gapAbs": 0.0,
        "warmStart": hint is not None,
    }
    takes = inspect.signature(type(pulp.getSolver(name, msg=False)).__init__).parameters
    options = {key: value for key, value in wanted.items() if key in takes}
    if solver == "cbc":
        if (
            workers == 1
        ):  # "threads 1" starts one beside the main one, and now and then waits ten seconds for it
            del options["threads"]
        options["options"] = [f"randomSeed {seed}", f"randomCbcSeed {seed}", "increment 1e-9"]
    if hint is not None:
        for column, value in zip(columns, hint.tolist(), strict=True):
            if not math.isnan(value):
                column.setInitialValue(value, check=False)
    try:
        answer = problem.solve(pulp.getSolver(name, msg=log, **options))
    except (pulp.PulpError, OSError) as error:  # an OSError: its program cannot be run
        return LinearResult("error", None, None, -math.inf, f"{solver}: {error}")
    if isinstance(answer, int):
        # PuLP 3's status is "Optimal" for what was found within the time limit too
        status, optimal = answer, problem.sol_status == pulp.LpSolutionOptimal
        solved = optimal or problem.sol_status == pulp.LpSolutionIntegerFeasible
    else:
        status, solved = int(answer.status), answer.has_solution
        optimal = solved and status in (_OPTIMAL, _GAP_LIMIT)
    if not solved:
        said = "infeasible" if status == _INFEASIBLE else "unknown"
        bound = math.inf if status == _INFEASIBLE else -math.inf
        return LinearResult(said, None, None, bound, f"{solver}: status {status}, no solution")
    values = np.array([math.nan if (value := column.value()) is None else value for column in columns])
    free = (np.bincount(model.columns, minlength=len(columns)) == 0) & (model.cost == 0)
    values[free] = np.clip(0.0, model.lower[free], model.upper[free])
    objective = float(model.cost @ values)
    bound = objective - GAP * max(abs(objective), 1.0) if optimal and "gapRel" in options else -math.inf
    said = "optimal" if optimal else "feasible"
    return LinearResult(said, objective, values, bound, f"{solver}: status {status}")


def _problem(model: LinearModel) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    """Return the model as PuLP's problem, and its columns."""
    problem = pulp.LpProblem("pebbler", pulp.LpMinimize)
    columns = [
        problem.add_variable(f"x{j}", _finite(low), _finite(high), "Integer" if whole else "Continuous")
        for j, (low, high, whole) in enumerate(
            zip(model.lower.tolist(), model.upper.tolist(), model.integer.tolist(), strict=True)
        )
    ]
    paid = np.flatnonzero(model.cost).tolist()
    problem += pulp.lpSum(float(model.cost[j]) * columns[j] for j in paid)
    terms: list[list[Any]] = [[] for _ in model.row_lower]
    for i, j, value in zip(model.rows.tolist(), model.columns.tolist(), model.values.tolist(), strict=True):
        terms[i].append(value * columns[j])
    for row, low, high in zip(terms, model.row_lower.tolist(), model.row_upper.tolist(), strict=True):
        if not row:
            continue
        total = pulp.lpSum(row)
        if low == high:
            problem += total == low
            continue
        if low > -math.inf:
            problem += total >= low
        if high < math.inf:
            problem += total <= high
    return problem, columns


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None
