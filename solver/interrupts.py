"""Ctrl-C and other signals where they need care: while CP-SAT searches, and while processes start and end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import TYPE_CHECKING

from ..heuristics.methods import Limits

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_ENDING = (signal.SIGTERM, signal.SIGALRM, signal.SIGINT)
"""What may end the program; the alarm is that of a signal that waits."""


def load_cp_sat(_: Limits) -> None:
    """Import CP-SAT, for a method that solves with it: that takes half a second."""
    from ortools.sat.python import cp_model  # noqa: F401


def solve_interruptibly(
    solver: cp_model.CpSolver, model: cp_model.CpModel
) -> tuple[cp_model.CpSolverStatus, bool]:
    """Solve a model in another thread, and return its status and whether Ctrl-C ended the search.

    CP-SAT's own handling of the signal is switched off: it can deadlock when the signal comes early, and
    leaves a handler behind with which the next Ctrl-C ends the program.
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


@contextmanager
def held() -> Iterator[None]:
    """Let signals that end the program wait for the end of this block: what it begins, it completes.

    Only the main thread gets signals; in others this does nothing.
    """
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    found = {number: signal.getsignal(number) for number in _ENDING}
    handlers = {number: handler for number, handler in found.items() if handler is not None}  # not Python's
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for waiting in came:
            signal.raise_signal(waiting)
