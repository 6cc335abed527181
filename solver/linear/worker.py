"""Linear models solved in another process: a solver that crashes or hangs costs only its own result."""

from __future__ import annotations

import atexit
import math
from importlib import import_module
from typing import Unpack

from ...heuristics.methods import Limits
from ...instances.processes.child import Child, ChildEnded
from .available import _hidden, require_linear_solver
from .in_process import solve_in_process
from .model import MATH_OPT_SOLVERS, LinearModel, LinearOptions, LinearResult


class LinearWorker:
    """A process that solves one model at a time.

    Use it in a ``with`` block. The worker takes over an idle process of an earlier worker if there is one,
    and leaves its process to the next worker. A busy process is ended instead.

    Parameters
    ----------
    solver
        A name that `list_linear_solvers` returns.
    grace
        Seconds after its time limit at which a solver is killed.

    Raises
    ------
    PebblerError
        For a solver that is not available here.
    """

    def __init__(self, solver: str = "highs", *, grace: float = 1.5) -> None:
        require_linear_solver(solver)
        self._solver, self._grace = solver, grace
        self._idle = _idle.setdefault(_hidden(solver), [])
        self._child = self._idle.pop() if self._idle else _begun(solver)
        self._wait()

    def __enter__(self) -> LinearWorker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.done():
            self._idle.append(self._child)
        else:
            self._child.stop()

    def start(self, model: LinearModel, **options: Unpack[LinearOptions]) -> None:
        """Begin to solve a model.

        Raises
        ------
        RuntimeError
            When the model before is not done.
        """
        if options.get("log"):  # a new process writes to what is standard error now
            self._child.stop()
            self._child = _begun(self._solver)
            self._wait()
        limit = options.get("time_limit")
        wall_limit = None if limit is None else max(limit, 0.0) + self._grace
        self._child.start(_solve, model, self._solver, options, wall_limit=wall_limit)

    def done(self) -> bool:
        """Return whether there is a result."""
        return self._child.done()

    def result(self, timeout: float | None = None) -> LinearResult:
        """Wait for the result.

        If the process ended unexpectedly, the status is ``error``, with the cause. A solver that was stopped
        or killed gives ``unknown``.

        Raises
        ------
        TimeoutError
            When there is no result after so many seconds; the solver goes on.
        PebblerError
            When the solver cannot take the model.
        """
        try:
            found = self._child.result(timeout)
        except ChildEnded as ended:
            status = "unknown" if ended.wanted else "error"
            return LinearResult(status, None, None, -math.inf, f"{self._solver}: {ended}")
        except MemoryError:
            return LinearResult("error", None, None, -math.inf, f"{self._solver}: out of memory")
        assert isinstance(found, LinearResult)
        return found

    def stop(self) -> None:
        """Stop solving the current model at once."""
        self._child.stop()

    def _wait(self) -> None:
        """Wait until the process has loaded the solver, which is not part of any time limit."""
        if self._child.done():
            return
        try:
            self._child.result()
        except ChildEnded:
            pass  # the first model's result will say so
        except BaseException:
            self._child.stop()
            raise


def begin_solver(limits: Limits) -> None:
    """Start a process that loads the solver, while this process loads other code."""
    idle = _idle.setdefault(_hidden(limits.solver), [])
    if not idle:
        idle.append(_begun(limits.solver))


def load_solver(limits: Limits) -> None:
    """Start a process for the solver of a method's linear models, and wait until it is ready."""
    with LinearWorker(limits.solver):
        pass


def _begun(solver: str) -> Child:
    """Return a process that loads a solver."""
    child = Child(_hidden(solver))
    child.start(_load, solver)
    return child


_idle: dict[tuple[str, ...], list[Child]] = {}
"""Idle processes that wait for a worker, by the modules that are hidden from them."""


@atexit.register
def _end_idle() -> None:
    for children in _idle.values():
        while children:
            children.pop().stop()


def _load(solver: str) -> None:
    import_module("ortools.math_opt.python.mathopt" if solver in MATH_OPT_SOLVERS else "pulp")


def _solve(model: LinearModel, solver: str, options: LinearOptions) -> LinearResult:
    return solve_in_process(model, solver, **options)
