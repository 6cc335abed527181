"""What a linear solver returns is checked before it is believed, whichever solver it was."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .linear import LinearModel, LinearResult

_TOLERANCE = 1e-5
"""Of rows and whole columns; relative to the terms of a row, or to one where they are smaller."""

_OBJECTIVE = 1e-6
"""Of the objective; relative to its terms."""


def verified(model: LinearModel, result: LinearResult) -> LinearResult:
    """Return the result if its point holds, and otherwise one with status ``error``, no point and no bound.

    Bounds of columns, rows, whole columns and the objective are recomputed in floating point, and no solution
    may be better than what its solver calls a bound. Optimality and infeasibility cannot be checked so.
    """
    if result.values is None:
        return result
    wrong = _wrong(model, result, result.values)
    if wrong is None:
        return result
    return LinearResult("error", None, None, -math.inf, f"{result.detail}, but {wrong}")


def _wrong(model: LinearModel, result: LinearResult, values: NDArray[np.float64]) -> str | None:
    if len(values) != len(model.cost) or not np.isfinite(values).all():
        return "its point is not finite or has the wrong length"
    outside = np.maximum(model.lower - values, values - model.upper)
    worst = int(np.argmax(outside)) if len(outside) else 0
    if len(outside) and outside[worst] > _TOLERANCE * max(1.0, abs(values[worst])):
        return f"column {worst} leaves its bounds by {outside[worst]:.3g}"
    off = np.abs(values - np.round(values)) * model.integer
    if len(off) and off.max() > _TOLERANCE:
        return f"column {int(np.argmax(off))} is {off.max():.3g} from a whole number"
    terms = model.values * values[model.columns]
    count = len(model.row_lower)
    activity = np.bincount(model.rows, weights=terms, minlength=count)
    scale = np.maximum(np.bincount(model.rows, weights=np.abs(terms), minlength=count), 1.0)
    broken = np.maximum(model.row_lower - activity, activity - model.row_upper) / scale
    if count and broken.max() > _TOLERANCE:
        return f"row {int(np.argmax(broken))} is broken by {broken.max():.3g} of its terms"
    paid = model.cost * values
    objective, room = float(paid.sum()), _OBJECTIVE * float(np.abs(paid).sum()) + 1e-12
    if result.objective is None or not abs(result.objective - objective) <= room:
        return f"its objective is {objective:.9g}, not {result.objective}"
    if result.bound > objective + 10 * room:
        return f"its objective {objective:.9g} is under its bound {result.bound:.9g}"
    return None
