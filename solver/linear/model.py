"""Linear and integer programs: columns, rows, and the result of a solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

MATH_OPT_SOLVERS = ("highs", "scip", "glop", "pdlp")
"""Solvers that come with OR-Tools."""


GAP = 5e-7
"""Relative gap at which a solver may call a solution with whole columns optimal."""


SMALL = 1e-9
"""Greatest absolute value of an entry that HiGHS and SCIP treat as zero."""


@dataclass(frozen=True, slots=True)
class LinearModel:
    """The program: minimise cost x subject to row_lower <= A x <= row_upper and lower <= x <= upper.

    Solvers have absolute tolerances: columns, rows and costs should be of the order of one or more.

    Attributes
    ----------
    cost, lower, upper
        Cost and bounds of each column, as floats.
    integer
        Whether each column must be whole.
    rows, columns, values
        Entries of A, each position at most once.
    row_lower, row_upper
        Bounds of each row, as floats; infinite on an open side.
    simplex
        Whether HiGHS solves the relaxation by the dual simplex method, and not by an interior-point method.
    """

    cost: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    integer: NDArray[np.bool_]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    row_lower: NDArray[np.float64]
    row_upper: NDArray[np.float64]
    simplex: bool = False


@dataclass(frozen=True, slots=True)
class LinearResult:
    """The result of a solver.

    Attributes
    ----------
    status
        ``optimal``, ``feasible``, ``infeasible``, ``unknown`` (a limit with no solution) or ``error``.
    objective, values
        Objective and columns of the best solution; None if there is none.
    bound
        Lower bound on the objective; minus infinity if there is none.
    detail
        The solver's own message.
    duals
        Dual value of each row: the change of the objective per unit more on the row's active side. None if
        the model has whole columns or the solver gives no dual values.
    """

    status: str
    objective: float | None
    values: NDArray[np.float64] | None
    bound: float
    detail: str
    duals: NDArray[np.float64] | None = None


class LinearOptions(TypedDict, total=False):
    """Options for solving a model.

    Attributes
    ----------
    time_limit
        Time limit in seconds; None, the default, means until done.
    workers
        Number of threads, if the solver takes it; 1 by default. OR-Tools' HiGHS and GLOP choose their own.
    seed
        Seed of the solver's random decisions, if it takes one; 0 by default.
    log
        Whether the solver's log goes to standard error.
    hint
        Value of each column in a solution to start from; NaN if it is not known. HiGHS, SCIP and CBC use it
        for models with whole columns.
    """

    time_limit: float | None
    workers: int
    seed: int
    log: bool
    hint: NDArray[np.float64] | None


class RowFamilies(Mapping[str, NDArray[np.int64]]):
    """The rows of a model by the name of their family, for tests and debugging; it takes two bytes per row.

    Parameters
    ----------
    names, counts
        Names and numbers of rows that follow each other, in the order of rows.
    """

    def __init__(self, names: Sequence[str], counts: Sequence[int]) -> None:
        self._numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._family = np.repeat(np.array([self._numbers[name] for name in names], dtype=np.int16), counts)

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        """Return the indices of the rows of a family."""
        return np.flatnonzero(self._family == self._numbers[name])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of families, in the order of their first rows."""
        return iter(self._numbers)

    def __len__(self) -> int:
        """Return the number of families."""
        return len(self._numbers)

    def and_then(self, names: Sequence[str]) -> RowFamilies:
        """Return these rows and further rows after them, each with its own name."""
        known = list(self._numbers)
        both = RowFamilies([*known, *names], [0] * len(known) + [1] * len(names))
        both._family = np.concatenate([self._family, both._family])
        return both


class ModelBuilder:
    """A builder of a model, to which columns and rows are added as arrays."""

    def __init__(self) -> None:
        self._columns: list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], bool]] = []
        self._count = 0
        self._entries: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        self._bounds: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        self._rows = 0
        self._families: list[str] = []

    @property
    def families(self) -> RowFamilies:
        """The rows so far by family."""
        return RowFamilies(self._families, [len(lower) for lower, _ in self._bounds])

    @property
    def row_count(self) -> int:
        """Number of rows so far."""
        return self._rows

    def columns(
        self,
        count: int,
        *,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        cost: ArrayLike = 0.0,
        integer: bool = False,
    ) -> NDArray[np.int64]:
        """Add columns and return their indices."""
        first, self._count = self._count, self._count + count
        self._columns.append((_spread(cost, count), _spread(lower, count), _spread(upper, count), integer))
        return np.arange(first, self._count)

    def rows(
        self, count: int, *, lower: ArrayLike = -np.inf, upper: ArrayLike = np.inf, family: str = ""
    ) -> NDArray[np.int64]:
        """Add rows of a family without entries and return their indices."""
        first, self._rows = self._rows, self._rows + count
        self._families.append(family)
        self._bounds.append((_spread(lower, count), _spread(upper, count)))
        return np.arange(first, self._rows)

    def entries(self, rows: ArrayLike, columns: ArrayLike, values: ArrayLike) -> None:
        """Add entries to rows; entries at the same position add up."""
        where = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        what = np.atleast_1d(np.asarray(columns, dtype=np.int64))
        count = max(len(where), len(what))
        self._entries.append((_spread_int(where, count), _spread_int(what, count), _spread(values, count)))

    def build(self) -> LinearModel:
        """Return the model."""
        rows, columns, values = (
            np.concatenate([entry[i] for entry in self._entries]) if self._entries else np.zeros(0)
            for i in range(3)
        )
        where, inverse = np.unique(rows * self._count + columns, return_inverse=True)
        sums = np.bincount(inverse, weights=values, minlength=len(where))
        return LinearModel(
            cost=np.concatenate([column[0] for column in self._columns]),
            lower=np.concatenate([column[1] for column in self._columns]),
            upper=np.concatenate([column[2] for column in self._columns]),
            integer=np.concatenate([np.full(len(column[0]), column[3]) for column in self._columns]),
            rows=(where // self._count).astype(np.int64),
            columns=(where % self._count).astype(np.int64),
            values=np.asarray(sums, dtype=np.float64),
            row_lower=np.concatenate([bound[0] for bound in self._bounds]),
            row_upper=np.concatenate([bound[1] for bound in self._bounds]),
        )


def takes_whole_columns(solver: str) -> bool:
    """Return whether a solver takes columns that must be whole."""
    return solver not in ("glop", "pdlp")


def _spread(value: ArrayLike, count: int) -> NDArray[np.float64]:
    spread = np.empty(count)
    spread[:] = value  # np.broadcast_to takes ten times as long for few values
    return spread


def _spread_int(value: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    spread = np.empty(count, dtype=np.int64)
    spread[:] = value
    return spread
