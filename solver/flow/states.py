"""Where carried blocks are at both ends of a round, and what runs on the host, as a solution of FLOW has it.

Rules that choose these places look at uses and sizes. FLOW weighs what each place costs: the copies of a
block that lives on the host, and the memory of one that is on the device at both ends.

An LP has many solutions of the same length, which say different places. So several LPs are asked.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...heuristics.methods import Limits
from ...instances.instance import Instance
from ...instances.transforms import in_pages
from ..bounds import Bound
from ..linear.model import LinearModel, LinearResult
from ..linear.worker import LinearWorker
from .checkpoints import Checkpoints
from .model import FlowModel, bound_name, flow_model, proven

_COUNTS = (8, 12, 16, 24, 32)
"""Numbers of checkpoints of the LPs that are asked for places."""

_LONGER = 2
"""How much longer the next two LPs take, about."""

_LEAST = 0.05
"""Least share of a task on the host with which the task may run there."""

_MOST = 0.5
"""Share of a block whose absence puts it on the host, and of a task's time that makes it run there."""


class Offers(NamedTuple):
    """Choices that LPs offer, and what these LPs prove for any choice."""

    choices: list[frozenset[int]]
    bounds: list[Bound]


def places_offered(instance: Instance, limits: Limits, seconds: float) -> Offers:
    """Offer choices of the carried blocks that live on the host, by LPs that are solved in some seconds.

    LPs have more and more checkpoints. With each number, two are solved. In the first one, what is on the
    device at both ends stays there throughout, so that it proves nothing. In the second one, it may leave.

    Parameters
    ----------
    instance, limits, seconds
        The instance, the limits of the method, and the time limit of all LPs together.
    """
    offers, solving = Offers([], []), _Solving(instance, limits, seconds)
    with LinearWorker(limits.solver) as worker:
        for count in _COUNTS:
            began = time.monotonic()
            model = solving.model(count)
            staying = solving.solved(worker, _staying(model))
            free = solving.solved(worker, model.linear)
            offers.bounds.extend(solving.proven(model, free))
            for result in (staying, free):
                if result.values is not None:
                    found = (hosted_of(model, result.values, stays=stays) for stays in (False, True))
                    offers.choices.extend(choice for choice in found if choice not in offers.choices)
            took = time.monotonic() - began
            if _LONGER * took > solving.left() or count >= len(instance.tasks):
                break
    return offers


def sides_offered(instance: Instance, limits: Limits, seconds: float, count: int) -> Offers:
    """Offer tasks that run on the host, by an LP with some checkpoints that is solved in some seconds."""
    solving = _Solving(instance, limits, seconds)
    model = solving.model(count)
    with LinearWorker(limits.solver) as worker:
        result = solving.solved(worker, model.linear)
    choices = [] if result.values is None else [run_on_host(instance, model, result.values)]
    return Offers(choices, solving.proven(model, result))


class _Solving:
    """LPs of one instance, under one time limit."""

    def __init__(self, instance: Instance, limits: Limits, seconds: float) -> None:
        self._instance = in_pages(instance) if limits.memory == "paged" else instance
        self._limits, self._deadline = limits, time.monotonic() + seconds
        self._checkpoints = Checkpoints(self._instance)

    def model(self, count: int) -> FlowModel:
        """Return FLOW on a number of checkpoints."""
        return flow_model(self._instance, self._checkpoints.choose(count), "none")

    def solved(self, worker: LinearWorker, linear: LinearModel) -> LinearResult:
        """Solve an LP in the time that is left."""
        limits = self._limits
        worker.start(linear, time_limit=self.left(), workers=limits.workers, seed=limits.seed, log=limits.log)
        return worker.result()

    def proven(self, model: FlowModel, result: LinearResult) -> list[Bound]:
        """Return the bound that the result of a model proves, if it does."""
        found = proven(self._instance, result, model, bound_name("none", self._limits.solver))
        return [] if found is None else [found]

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(self._deadline - time.monotonic(), 0.0)


def _staying(model: FlowModel) -> LinearModel:
    """Return FLOW as an LP in which what is on the device at both ends stays there throughout.

    No more of a carried block is absent at any instant than at both ends.
    """
    linear = model.linear
    ends = {
        d: columns.absent[0] for gaps, columns in model.gaps.items() if columns.first < 0 for d, _ in gaps
    }
    pairs = {
        (int(column), int(ends[d]))
        for gaps, columns in model.gaps.items()
        for d, _ in gaps
        if d in ends
        for column in columns.absent
        if column != ends[d]
    }
    inside, at_ends = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    rows = np.arange(len(linear.row_lower), len(linear.row_lower) + len(inside))
    return replace(
        linear,
        rows=np.concatenate((linear.rows, np.repeat(rows, 2))),
        columns=np.concatenate((linear.columns, np.sort((inside, at_ends), axis=0).T.ravel())),
        values=np.concatenate(
            (linear.values, np.where(inside < at_ends, [[1.0], [-1.0]], [[-1.0], [1.0]]).T.ravel())
        ),
        row_lower=np.concatenate((linear.row_lower, np.full(len(rows), -np.inf))),
        row_upper=np.concatenate((linear.row_upper, np.zeros(len(rows)))),
    )


def hosted_of(model: FlowModel, values: NDArray[np.float64], *, stays: bool) -> frozenset[int]:
    """Return the carried blocks that live on the host: they are absent at both ends of a solution.

    A column may stand for several blocks; then the last ones are absent.

    Parameters
    ----------
    model, values
        FLOW on the instance with its carried blocks, and a solution of it.
    stays
        Whether what is on the device at both ends stays there. If so, what is absent at any instant lives on
        the host, too.
    """
    hosted: set[int] = set()
    ends = {d for gaps, columns in model.gaps.items() if columns.first < 0 for d, _ in gaps}
    for gaps, columns in model.gaps.items():
        blocks = [d for d, _ in gaps]
        if not ends.issuperset(blocks) or (columns.first >= 0 and not stays):
            continue
        absent = values[columns.absent[: None if stays else 1]]
        count = int(float(absent.max(initial=0.0)) * len(blocks) + _MOST)
        hosted.update(blocks[len(blocks) - count :])
    return frozenset(hosted)


def run_on_host(instance: Instance, model: FlowModel, values: NDArray[np.float64]) -> frozenset[int]:
    """Return tasks that run on the host, for about as much of its time as in a solution of FLOW.

    In the solution a part of a task may run there, and a column may stand for several tasks. In their order,
    of those of which a part does, a task runs there once the parts of it and of those before it that are left
    over take at least half of its time. What can run nowhere else does so in any case: if it takes no time,
    the solution need not say so.
    """
    hosted = {k for k, task in enumerate(instance.tasks) if not task.device_algorithms}
    owed = 0.0
    for k, column in sorted(model.on_host.items()):
        if k in hosted:
            continue
        time = min(a.duration_ns for a in instance.tasks[k].algorithms if a.on == "host")
        share = float(values[column])
        owed += share * time
        if share >= _LEAST and owed >= _MOST * time:
            hosted.add(k)
            owed -= time
    return frozenset(hosted)
