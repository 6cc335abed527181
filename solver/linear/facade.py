"""Linear and mixed-integer programs as arrays, and the solvers that take them.

A model is built once, by columns and rows given as arrays; adapters hand it to a solver as it is: OR-Tools'
HiGHS, SCIP, GLOP and PDLP, and through PuLP CBC and what else there is on a machine.
"""

from __future__ import annotations

from typing import Unpack

from .model import (
    LinearModel,
    LinearOptions,
    LinearResult,
)


def solve_linear(
    model: LinearModel, *, solver: str = "highs", **options: Unpack[LinearOptions]
) -> LinearResult:
    """Solve a model in another process, and check what comes back: Ctrl-C and crashes of a solver are safe.

    Parameters
    ----------
    model
        What to solve.
    solver
        One that `list_linear_solvers` knows; GLOP and PDLP only for models without whole columns.
    **options
        See `LinearOptions`.

    Raises
    ------
    PebblerError
        For a solver that is not available here, or that cannot take whole columns when the model has some.
    """
    from .worker import LinearWorker

    with LinearWorker(solver) as worker:
        worker.start(model, **options)
        return worker.result()
