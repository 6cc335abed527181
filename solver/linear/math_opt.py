"""Linear models through OR-Tools' MathOpt: HiGHS, SCIP, GLOP and PDLP in this process."""

from __future__ import annotations

import datetime
import math
import sys
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...instances.errors import PebblerError
from .model import GAP, LinearModel, LinearResult, takes_whole_columns

if TYPE_CHECKING:
    from ortools.math_opt.python import mathopt

_KINDS = {"highs": "HIGHS", "scip": "GSCIP", "glop": "GLOP", "pdlp": "PDLP"}
"""MathOpt's kind of each solver."""


_LARGE = 8000
"""Number of columns above which HiGHS solves the relaxations of whole models by an interior-point method."""

_WORDS = 300
"""Number of characters of a solver's error message that are passed on."""


def solve_by_math_opt(
    model: LinearModel,
    solver: str,
    *,
    time_limit: float | None = None,
    workers: int = 1,
    seed: int = 0,
    log: bool = False,
    hint: NDArray[np.float64] | None = None,
) -> LinearResult:
    """Solve a model; options are those of `LinearOptions`.

    SCIP and PDLP use the number of threads. All but PDLP use the seed. HiGHS and SCIP use the hint.

    Raises
    ------
    PebblerError
        For a solver that cannot take whole columns when the model has some.
    """
    from ortools.math_opt.python import mathopt

    whole = bool(model.integer.any())
    algorithm = mathopt.LPAlgorithm.DUAL_SIMPLEX if model.simplex else mathopt.LPAlgorithm.BARRIER
    if whole and not takes_whole_columns(solver):
        raise PebblerError(f"solver '{solver}' takes no whole variables; use highs or scip")
    parameters = mathopt.SolveParameters(
        time_limit=None if time_limit is None else datetime.timedelta(seconds=max(time_limit, 0.0)),
        threads=workers if solver in ("scip", "pdlp") else None,
        random_seed=None if solver == "pdlp" else seed,
        relative_gap_tolerance=GAP if whole else None,
        lp_algorithm=algorithm if solver == "highs" and not whole else None,
    )
    if solver == "highs" and whole and len(model.cost) > _LARGE and not model.simplex:
        # the relaxation of a large FLOW takes the simplex method minutes, the interior-point method seconds
        parameters.highs.string_options["mip_lp_solver"] = "ipm"
    if solver == "glop":
        # its own test of precision is of unscaled errors beside large terms; `verified` looks at them again
        parameters.glop.change_status_to_imprecise = False
    try:
        problem = _problem(model)
        hints = []
        if hint is not None and whole:
            columns = list(problem.variables())
            given = np.flatnonzero(~np.isnan(hint))
            values = {columns[j]: float(hint[j]) for j in given}
            hints.append(mathopt.SolutionHint(variable_values=values))
        found = mathopt.solve(
            problem,
            mathopt.SolverType[_KINDS[solver]],
            params=parameters,
            model_params=mathopt.ModelSolveParameters(solution_hints=hints),
            msg_cb=_print if log else None,
        )
    except (ValueError, AssertionError, RuntimeError, AttributeError) as error:
        # a status that is not OK; OR-Tools 9.15 stumbles over some of its own, hence the last
        said = " ".join(str(error).split())[:_WORDS]
        return LinearResult("error", None, None, -math.inf, f"{solver}: {said or type(error).__name__}")
    reason = found.termination.reason
    detail = f"{solver}: {reason.name.lower()}"
    duals = np.array(list(found.dual_values().values())) if found.has_dual_feasible_solution() else None
    if found.has_primal_feasible_solution():
        point = np.array(list(found.variable_values().values()))
        status = "optimal" if reason == mathopt.TerminationReason.OPTIMAL else "feasible"
        return LinearResult(status, found.objective_value(), point, _bound(found), detail, duals)
    status = {
        mathopt.TerminationReason.INFEASIBLE: "infeasible",
        mathopt.TerminationReason.NO_SOLUTION_FOUND: "unknown",
    }.get(reason, "error")
    return LinearResult(status, None, None, _bound(found), detail, duals)


def _problem(model: LinearModel) -> mathopt.Model:
    from ortools.math_opt import model_pb2
    from ortools.math_opt.python import mathopt

    proto = model_pb2.ModelProto()
    proto.variables.ids.extend(range(len(model.cost)))
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
    return mathopt.Model.from_model_proto(proto)


def _print(lines: list[str]) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def _bound(found: mathopt.SolveResult) -> float:
    bound = float(found.termination.objective_bounds.dual_bound)
    return -math.inf if math.isnan(bound) else bound
