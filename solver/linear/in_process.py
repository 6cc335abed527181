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
"""HiGHS is given columns between zero and one in hundredths, where others are whole: on some of the models it
is three times faster then, on others as fast."""


def solve_in_process(model: LinearModel, solver: str, **options: Unpack[LinearOptions]) -> LinearResult:
    """Solve a model in this process, and check what comes back.

    OR-Tools and PuLP must not meet in one process: `solve_linear` sees to that. Entries that solvers would
    drop are left out here, so that it is a relaxation that is solved.
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
    """Per column, how many units of HiGHS's one of the model's is."""
    between = ~model.integer & (model.lower == 0) & (model.upper == 1)
    return np.where(between, SHARES, 1.0)


def _in_units(model: LinearModel, unit: NDArray[np.float64]) -> LinearModel:
    """Count columns in other units."""
    return replace(
        model,
        cost=model.cost / unit,
        lower=model.lower * unit,
        upper=model.upper * unit,
        values=model.values / unit[model.columns],
    )


def without_small_entries(model: LinearModel) -> LinearModel:
    """Leave out entries that are nothing to solvers; their rows become wider by all that these can make."""
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
