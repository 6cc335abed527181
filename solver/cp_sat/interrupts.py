"""Ctrl-C while CP-SAT searches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ...heuristics.methods import Limits

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def load_cp_sat(_: Limits) -> None:
    """Import CP-SAT for a method that solves with it, which takes half a second."""
    from ortools.sat.python import cp_model  # noqa: F401


def solve_interruptibly(
    solver: cp_model.CpSolver, model: cp_model.CpModel
) -> tuple[cp_model.CpSolverStatus, bool]:
    """Solve a model in another thread, and return its status and whether Ctrl-C ended the search.

    CP-SAT's own signal handler is off. It can deadlock when the signal comes early, and it leaves a handler
    behind with which the next Ctrl-C ends the program.
    """
    solver.parameters.catch_sigint_signal = False
    interrupted = False
    with ThreadPoolExecutor(max_workers=1) as pool:
        search = pool.submit(solver.solve, model)
        while True:
            try:
                return search.result(timeout=0.05 if interrupted else None), interrupted
            except KeyboardInterrupt:
                interrupted = True
            except TimeoutError:
                pass
            solver.stop_search()  # again and again: it does nothing until the search has begun
