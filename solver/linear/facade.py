"""Linear and mixed-integer programs as arrays, and the solvers that take them.

A model is built once, by columns and rows given as arrays. Adapters pass it unchanged to a solver: OR-Tools'
HiGHS, SCIP, GLOP and PDLP, or, through PuLP, CBC and other solvers on the machine.
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
    """Solve a model in another process, and check the result.

    Ctrl-C and crashes of a solver do not harm this process.

    Parameters
    ----------
    model
        The model to solve.
    solver
        A name that `list_linear_solvers` returns; GLOP and PDLP only for models without whole columns.
    **options
        See `LinearOptions`.

    Returns
    -------
    LinearResult
        The checked result.

    Raises
    ------
    PebblerError
        For a solver that is not available here, or that cannot take whole columns when the model has some.
    """
    from .worker import LinearWorker

    with LinearWorker(solver) as worker:
        worker.start(model, **options)
        return worker.result()
