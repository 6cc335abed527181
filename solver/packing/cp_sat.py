"""Packing as a model of CP-SAT: rectangles of time and bytes that do not overlap.

The live bytes are a cumulative resource.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from ..cp_sat.interrupts import solve_interruptibly
from .groups import Group

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_log = logging.getLogger(__name__)


def pack_by_cp_sat(
    solver: cp_model.CpSolver, group: Group, least: int, most: int, *, lowest: bool
) -> tuple[int, bool]:
    """Look for a packing of a group that is no higher than `most`, and put it into the group.

    Parameters
    ----------
    solver
        CP-SAT with its limits, threads and seed.
    group
        Buffers with a packing of any height, which is the hint.
    least, most
        Proven lower bound on the height of every packing, and the greatest height that is wanted.
    lowest
        Whether the lowest packing is wanted; else any up to `most` will do.

    Returns
    -------
    tuple of int and bool
        The lower bound that is proven now, and whether Ctrl-C ended the search.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    height = model.new_int_var(least if lowest else most, most, "height")
    places, lifetimes, extents, sizes = [], [], [], []
    for i, size in enumerate(group.size.tolist()):
        step = int(group.alignment[i])
        place = model.new_int_var(0, (most - size) // step, f"place{i}")
        places.append(place * step)
        for begin, end in group.stays[i]:
            lifetimes.append(model.new_fixed_size_interval_var(begin, end - begin, f"life{i} {begin}"))
            extents.append(model.new_fixed_size_interval_var(place * step, size, f"extent{i} {begin}"))
            sizes.append(size)
        model.add(place * step + size <= height)
        model.add_hint(place, min(int(group.placed()[i]), most - size) // step)
    model.add_no_overlap_2d(lifetimes, extents)
    model.add_cumulative(lifetimes, sizes, height)
    if lowest:
        model.minimize(height)
    status, interrupted = solve_interruptibly(solver, model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        group.offsets = np.array([solver.value(place) for place in places], np.int64)
    if status == cp_model.INFEASIBLE:
        least = max(least, most + 1)
    elif lowest and status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        least = max(least, int(solver.best_objective_bound))
    _log.info("CP-SAT: %s, height %d", solver.status_name(status), group.height())
    return least, interrupted
