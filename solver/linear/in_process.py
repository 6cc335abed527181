"""A linear model solved in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from .model import (
    MATH_OPT_SOLVERS,
    SMALL,
    LinearModel,
    LinearOptions,
    LinearResult,
)

SHARES = 100.0
"""Number of HiGHS's units in the range of a column between zero and one, if other columns are whole.

On some of the models, HiGHS is three times faster with these units; on the others, it is as fast.
"""


def solve_in_process(model: LinearModel, solver: str, **options: Unpack[LinearOptions]) -> LinearResult:
    """Solve a model in this process, and check the result.

    OR-Tools and PuLP must not be loaded in one process; `solve_linear` ensures this. Entries that solvers
    would drop are left out here, so that the solved model is a relaxation.
    """
    from .verify import verified

    if solver in MATH_OPT_SOLVERS:
        from .math_opt import solve_by_math_opt

        unit = _shares(model) if solver == "highs" and model.integer.any() else np.ones(len(model.cost))
        if (hint := options.get("hint")) is not None:
            options["hint"] = hint * unit
        model = without_small_entries(_in_units(model, unit))
        result = verified(model, solve_by_math_opt(model, solver, **options))
        return result if result.values is None else replace(result, values=result.values / unit)
    model = without_small_entries(model)
    from .pulp import solve_by_pulp

    return verified(model, solve_by_pulp(model, solver, **options))


def _shares(model: LinearModel) -> NDArray[np.float64]:
    """Return, per column, the number of HiGHS's units in one unit of the model."""
    between = ~model.integer & (model.lower == 0) & (model.upper == 1)
    return np.where(between, SHARES, 1.0)


def _in_units(model: LinearModel, unit: NDArray[np.float64]) -> LinearModel:
    """Return the model with columns in other units."""
    return replace(
        model,
        cost=model.cost / unit,
        lower=model.lower * unit,
        upper=model.upper * unit,
        values=model.values / unit[model.columns],
    )


def without_small_entries(model: LinearModel) -> LinearModel:
    """Leave out entries that solvers ignore, and widen their rows by the greatest effect of these entries."""
    small = np.abs(model.values) <= SMALL
    if not small.any():
        return model
    rows, columns, values = model.rows[small], model.columns[small], model.values[small]
    kept = values != 0
    rows, columns, values = rows[kept], columns[kept], values[kept]
    made = np.sort([values * model.lower[columns], values * model.upper[columns]], axis=0)
    least, most = (np.bincount(rows, weights=made[i], minlength=len(model.row_lower)) for i in range(2))
    return replace(
        model,
        rows=model.rows[~small],
        columns=model.columns[~small],
        values=model.values[~small],
        row_lower=model.row_lower - most,
        row_upper=model.row_upper - least,
    )
