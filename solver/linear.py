"""Linear and mixed-integer programs as arrays, and the solvers that take them.

A model is built once, by columns and rows given as arrays; adapters hand it to a solver as it is. OR-Tools
carries HiGHS, SCIP, GLOP and PDLP in process.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..instances.errors import PebblerError

SolverName = Literal["highs", "scip", "glop", "pdlp"]


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Minimise cost x subject to row_lower <= A x <= row_upper and lower <= x <= upper.

    Attributes
    ----------
    cost, lower, upper
        Per column, float.
    integer
        Per column, whether it must be whole.
    rows, columns, values
        Entries of A, each position at most once.
    row_lower, row_upper
        Per row, float; infinite where a side is open.
    """

    cost: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    integer: NDArray[np.bool_]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    row_lower: NDArray[np.float64]
    row_upper: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearResult:
    """What a solver said.

    Attributes
    ----------
    status
        ``optimal``, ``feasible``, ``infeasible``, ``unknown`` (a limit with no solution) or ``error``.
    objective, values
        The best solution; None without one.
    bound
        Lower bound on the objective; minus infinity without one.
    detail
        The solver's own words.
    """

    status: str
    objective: float | None
    values: NDArray[np.float64] | None
    bound: float
    detail: str


class ModelBuilder:
    """Collects columns and rows as arrays."""

    def __init__(self) -> None:
        self._columns: list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], bool]] = []
        self._count = 0
        self._entries: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        self._bounds: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        self._rows = 0

    def columns(
        self,
        count: int,
        *,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        cost: ArrayLike = 0.0,
        integer: bool = False,
    ) -> NDArray[np.int64]:
        """Add columns and return their indices."""
        first, self._count = self._count, self._count + count
        self._columns.append((_spread(cost, count), _spread(lower, count), _spread(upper, count), integer))
        return np.arange(first, self._count)

    def rows(self, count: int, *, lower: ArrayLike = -np.inf, upper: ArrayLike = np.inf) -> NDArray[np.int64]:
        """Add rows without entries and return their indices."""
        first, self._rows = self._rows, self._rows + count
        self._bounds.append((_spread(lower, count), _spread(upper, count)))
        return np.arange(first, self._rows)

    def entries(self, rows: ArrayLike, columns: ArrayLike, values: ArrayLike) -> None:
        """Add entries to rows; entries at the same position add up."""
        where = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        what = np.atleast_1d(np.asarray(columns, dtype=np.int64))
        count = max(len(where), len(what))
        self._entries.append((_spread_int(where, count), _spread_int(what, count), _spread(values, count)))

    def build(self) -> LinearModel:
        """Return the model."""
        rows, columns, values = (
            np.concatenate([entry[i] for entry in self._entries]) if self._entries else np.zeros(0)
            for i in range(3)
        )
        where, inverse = np.unique(rows * self._count + columns, return_inverse=True)
        sums = np.bincount(inverse, weights=values, minlength=len(where))
        return LinearModel(
            cost=np.concatenate([column[0] for column in self._columns]),
            lower=np.concatenate([column[1] for column in self._columns]),
            upper=np.concatenate([column[2] for column in self._columns]),
            integer=np.concatenate([np.full(len(column[0]), column[3]) for column in self._columns]),
            rows=(where // self._count).astype(np.int64),
            columns=(where % self._count).astype(np.int64),
            values=np.asarray(sums, dtype=np.float64),
            row_lower=np.concatenate([bound[0] for bound in self._bounds]),
            row_upper=np.concatenate([bound[1] for bound in self._bounds]),
        )


def solve_linear(
    model: LinearModel,
    *,
    solver: SolverName = "highs",
    time_limit: float | None = None,
    workers: int = 1,
    seed: int = 0,
    log: bool = False,
) -> LinearResult:
    """Solve a model through OR-Tools' MathOpt.

    Parameters
    ----------
    model
        What to solve.
    solver
        HiGHS by default; GLOP and PDLP only for models without whole columns.
    time_limit
        Seconds; None: until done.
    workers, seed
        Threads, where the solver takes them (MathOpt's HiGHS and GLOP run as they like), and seed of the
        solver's random decisions.
    log
        Whether the solver prints its log.

    Raises
    ------
    PebblerError
        For a solver that is not known, or that cannot take whole columns when the model has some.
    """
    from ortools.math_opt import model_pb2
    from ortools.math_opt.python import mathopt

    kinds = {
        "highs": mathopt.SolverType.HIGHS,
        "scip": mathopt.SolverType.GSCIP,
        "glop": mathopt.SolverType.GLOP,
        "pdlp": mathopt.SolverType.PDLP,
    }
    if solver not in kinds:
        raise PebblerError(f"there is no linear solver '{solver}'; there are {', '.join(kinds)}")
    if solver in ("glop", "pdlp") and model.integer.any():
        raise PebblerError(f"solver '{solver}' takes no whole variables; use highs or scip")
    proto = model_pb2.ModelProto()
    count = len(model.cost)
    proto.variables.ids.extend(range(count))
    proto.variables.lower_bounds.extend(model.lower.tolist())
    proto.variables.upper_bounds.extend(model.upper.tolist())
    proto.variables.integers.extend(model.integer.tolist())
    paid = np.flatnonzero(model.cost)
    proto.objective.linear_coefficients.ids.extend(paid.tolist())
    proto.objective.linear_coefficients.values.extend(model.cost[paid].tolist())
    proto.linear_constraints.ids.extend(range(len(model.row_lower)))
    proto.linear_constraints.lower_bounds.extend(model.row_lower.tolist())
    proto.linear_constraints.upper_bounds.extend(model.row_upper.tolist())
    proto.linear_constraint_matrix.row_ids.extend(model.rows.tolist())
    proto.linear_constraint_matrix.column_ids.extend(model.columns.tolist())
    proto.linear_constraint_matrix.coefficients.extend(model.values.tolist())
    limit = None if time_limit is None else datetime.timedelta(seconds=max(time_limit, 0.0))
    parameters = mathopt.SolveParameters(
        time_limit=limit,
        threads=workers if solver in ("scip", "pdlp") else None,
        random_seed=None if solver == "pdlp" else seed,
        enable_output=log,
        relative_gap_tolerance=1e-6 if model.integer.any() else None,
        lp_algorithm=mathopt.LPAlgorithm.BARRIER if solver == "highs" and not model.integer.any() else None,
    )
    found = mathopt.solve(mathopt.Model.from_model_proto(proto), kinds[solver], params=parameters)
    reason = found.termination.reason
    detail = f"{solver}: {reason.name.lower()}"
    if found.has_primal_feasible_solution():
        values = np.array(list(found.variable_values().values()))
        status = "optimal" if reason == mathopt.TerminationReason.OPTIMAL else "feasible"
        return LinearResult(status, found.objective_value(), values, _bound(found), detail)
    status = {
        mathopt.TerminationReason.INFEASIBLE: "infeasible",
        mathopt.TerminationReason.NO_SOLUTION_FOUND: "unknown",
    }.get(reason, "error")
    return LinearResult(status, None, None, _bound(found), detail)


def _bound(found: object) -> float:
    bound = float(found.termination.objective_bounds.dual_bound)  # type: ignore[attr-defined]
    return -math.inf if math.isnan(bound) else bound


def _spread(value: ArrayLike, count: int) -> NDArray[np.float64]:
    return np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), (count,)))


def _spread_int(value: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.array(np.broadcast_to(value, (count,)))
