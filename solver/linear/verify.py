"""Checks of a linear solver's result, whichever solver it was."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .model import LinearModel, LinearResult

_TOLERANCE = 1e-5
"""Tolerance of rows and whole columns, relative to the terms of a row, or to one if they are smaller."""

_OBJECTIVE = 1e-6
"""Tolerance of the objective, relative to its terms."""


def verified(model: LinearModel, result: LinearResult) -> LinearResult:
    """Return the result if its point holds, else a result with status ``error``, no point and no bound.

    Bounds of columns, rows, whole columns and the objective are recomputed in floating point. No solution may
    be better than the bound that its solver claims. The bound of a linear program is at most the bound that
    its dual values prove. If the solver gives no dual values, there is a bound only if the program is solved.
    Optimality with whole columns, and infeasibility, cannot be checked in this way.
    """
    wrong = None if result.values is None else _wrong(model, result, result.values)
    if wrong is None and not model.integer.any():
        proven = _proven(model, result)
        if result.objective is not None and result.values is not None:
            over = proven - result.objective - 10 * _room(model, result.values)
            if math.isfinite(proven) and over > 0:
                wrong = f"its dual values prove {proven:.9g}, and its objective is {result.objective:.9g}"
        result = replace(result, bound=min(result.bound, proven))
    if wrong is None:
        return result
    return LinearResult("error", None, None, -math.inf, f"{result.detail}, but {wrong}")


def _proven(model: LinearModel, result: LinearResult) -> float:
    """Return the bound that a linear program's dual values prove, less the rounding error of sums.

    The bound holds for any dual values. Prices of rows with the wrong sign count as zero. Then each column is
    set to the cheaper of its bounds. A column without such a bound is taken to be at most twice the
    objective, and the result is at most that as well: the models' columns without a bound are times within
    the makespan, which is that long or longer.
    """
    if result.duals is None:
        return math.inf if result.status == "optimal" else -math.inf
    if len(result.duals) != len(model.row_lower) or not np.isfinite(result.duals).all():
        return -math.inf
    least = np.where(np.isfinite(model.row_upper), -np.inf, 0.0)
    most = np.where(np.isfinite(model.row_lower), np.inf, 0.0)
    prices = np.clip(result.duals, least, most)
    sides = np.where(prices > 0, model.row_lower, model.row_upper)
    paid = prices * np.where(prices == 0, 0.0, sides)
    count = len(model.cost)
    terms = model.values * prices[model.rows]
    reduced = model.cost - np.bincount(model.columns, weights=terms, minlength=count)
    weight = np.abs(model.cost) + np.bincount(model.columns, weights=np.abs(terms), minlength=count)
    off = np.finfo(float).eps * (np.bincount(model.columns, minlength=count) + 2) * weight
    told = [
        abs(value) for value in (result.objective, result.bound) if value is not None and math.isfinite(value)
    ]
    end = 2 * max(told, default=0.0) + 1
    lower = np.where(np.isfinite(model.lower), model.lower, -end)
    upper = np.where(np.isfinite(model.upper), model.upper, np.maximum(lower, end))
    costs = [price * side for price in (reduced - off, reduced + off) for side in (lower, upper)]
    cheapest = np.min(costs, axis=0)
    rounding = np.finfo(float).eps * float(np.abs(paid).sum() + np.abs(cheapest).sum())
    return min(math.fsum(paid) + math.fsum(cheapest) - rounding, end)


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
    objective, room = float((model.cost * values).sum()), _room(model, values)
    if result.objective is None or not abs(result.objective - objective) <= room:
        return f"its objective is {objective:.9g}, not {result.objective}"
    if result.bound > objective + 10 * room:
        return f"its objective {objective:.9g} is under its bound {result.bound:.9g}"
    return None


def _room(model: LinearModel, values: NDArray[np.float64]) -> float:
    """Return the tolerance of an objective."""
    return _OBJECTIVE * float(np.abs(model.cost * values).sum()) + 1e-12
