"""FLOW for several GPUs: gradients on the engines, and a bus that all GPUs share.

FLOW bounds each GPU of a cluster separately; this module extends it by the gradients and the bus. Let all
GPUs wait for the last, so that the intervals of each add up to the iteration. FLOW as a linear program is
convex. So the mean of all GPUs' points satisfies it, whether they do the same or not. The mean also satisfies
two further conditions:

- Gradients move on the engines after the tasks that complete them, and weights after their last use. The
  gradients that are sent last still have the rest of their way to go.
- When the last GPU reaches an instant, all GPUs have moved the bytes that they move before it. From then on,
  that GPU needs at least its least time for the rest. So the bytes of all GPUs before an instant pass the bus
  in the iteration less that time. In the same way, the bytes after an instant pass it in the iteration less
  the least time before the instant; and so do weights that cannot return any sooner, as the gradients of all
  GPUs have to be added up first.

With whole columns, the mean is no solution. But a row of the bus is about the sum over all GPUs, and so about
the mean, whatever the columns. Give these rows prices that are at most one in all. Then the iteration is no
less than the mean over all GPUs of this: the lengths of its intervals and the left sides of the rows, each in
its share. So it is no less than the least of it that a GPU can have, whose columns are whole. The prices are
those of the linear program.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from time import monotonic
from typing import Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...instances.gpus.cluster import SECOND, Cluster, Gradient
from ...instances.instance import Instance
from ...validate.bounds.arguments import least_times
from ...validate.gpus.program import cluster_of, one_gpu
from ..bounds import Bound
from ..gradient_bounds import added_ns, own_passing_ns
from ..linear.facade import solve_linear
from ..linear.model import LinearModel, LinearOptions, LinearResult
from .model import FlowModel, Integrality, bound_name, flow_model, proven

_INSTANTS = 24
"""Number of instants before and after which the bytes on the bus are limited."""


def cluster_flow_bound(
    instance: Instance,
    checkpoints: Sequence[int],
    *,
    integrality: Integrality = "none",
    solver: str = "highs",
    **options: Unpack[LinearOptions],
) -> Bound | None:
    """Bound the makespan of all GPUs by FLOW on some checkpoints.

    Parameters and errors are those of `flow_bound`. Before a model with whole columns, the linear program is
    solved for prices of the bus; from a solver that has none, that model comes without the bus.
    """
    began = monotonic()
    linear = cluster_flow_model(instance, checkpoints, "none")
    result = solve_linear(linear.linear, solver=solver, **options)
    found = _proven(instance, result, linear, "none", solver)
    if integrality == "none":
        return found
    limit = options.get("time_limit")
    if limit is not None:
        left = limit - (monotonic() - began)
        if left <= 0.0:
            return found
        options["time_limit"] = left
    prices = None
    if result.duals is not None and np.isfinite(result.duals).all():
        bus = linear.rows.get("bus", np.zeros(0, dtype=np.int64))  # none where the bus passes all at once
        prices = np.maximum(-result.duals[bus], 0.0)
    model = cluster_flow_model(instance, checkpoints, integrality, prices)
    result = solve_linear(model.linear, solver=solver, **options)
    whole = _proven(instance, result, model, integrality, solver)
    return whole if found is None else found if whole is None else found.raised(whole)


def _proven(
    instance: Instance, result: LinearResult, model: FlowModel, integrality: Integrality, solver: str
) -> Bound | None:
    """Return a bound; there is no certificate, as prices of the extended model are none of one GPU's."""
    return proven(instance, replace(result, duals=None), model, bound_name(integrality, f"gpus-{solver}"))


def cluster_flow_model(
    instance: Instance,
    checkpoints: Sequence[int],
    integrality: Integrality,
    prices: NDArray[np.float64] | None = None,
) -> FlowModel:
    """Build FLOW for several GPUs on some checkpoints; errors as for `flow_model`.

    Parameters
    ----------
    instance, checkpoints, integrality
        As for `flow_model`. A linear program has rows of the bus.
    prices
        Of these rows, for a model with whole columns: not negative, and at most one in all but for rounding.
    """
    alone = _on_bus_alone(instance)
    model = flow_model(one_gpu(alone), checkpoints, integrality)
    extension = _Extension(alone, cluster_of(alone), model)
    extension.pass_gradients()
    if integrality == "none":
        extension.share_bus()
    linear, unit = extension.linear(), model.nanoseconds
    if prices is not None:
        linear, scale = extension.priced(linear, prices)
        unit *= scale
    return replace(model, linear=linear, nanoseconds=unit, rows=model.rows.and_then(extension.families))


def _on_bus_alone(instance: Instance) -> Instance:
    """Return the instance with copies that take at least as long as with the bus to themselves."""
    cluster = cluster_of(instance)

    def at_least(size: int, time: int) -> int:
        return max(time, cluster.passing_ns(size, time) - 1) if time else 0

    blocks = tuple(
        msgspec.structs.replace(
            b,
            offload_ns=None if b.offload_ns is None else at_least(b.bytes, b.offload_ns),
            prefetch_ns=None if b.prefetch_ns is None else at_least(b.bytes, b.prefetch_ns),
        )
        for b in instance.blocks
    )
    gradients = tuple(
        msgspec.structs.replace(
            g, offload_ns=at_least(g.bytes, g.offload_ns), prefetch_ns=at_least(g.bytes, g.prefetch_ns)
        )
        for g in cluster.gradients
    )
    return msgspec.structs.replace(
        instance, blocks=blocks, cluster=msgspec.structs.replace(cluster, gradients=gradients)
    )


@dataclass(slots=True)
class _Extension:
    """The columns and rows beyond those of a FLOW model; times are in its units.

    The first columns of that model are the lengths of its intervals. The `returns` of weights are given by
    the nanoseconds before which none begins on any GPU, and by their first column and the one after the last.
    """

    instance: Instance
    cluster: Cluster
    model: FlowModel
    columns: int = field(init=False)
    entries: list[tuple[int, int, float]] = field(default_factory=list)
    bounds: list[tuple[float, float]] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    returns: list[tuple[int, int, int]] = field(default_factory=list)
    heads: list[int] = field(init=False)
    gradients: dict[int, list[Gradient]] = field(init=False)

    def __post_init__(self) -> None:
        self.columns = len(self.model.linear.cost)
        self.heads = [0, *accumulate(least_times(self.instance))]
        passed_on = self.cluster.gradients if self.cluster.gpus > 1 else ()
        self.gradients = {}
        for gradient in sorted(passed_on, key=lambda gradient: gradient.produced_by):
            self.gradients.setdefault(gradient.produced_by, []).append(gradient)

    @property
    def intervals(self) -> int:
        """Number of the model's intervals."""
        return len(self.model.engine_rows[0])

    def row(
        self, entries: Sequence[tuple[int, float]], lower: float, upper: float = np.inf, *, family: str
    ) -> None:
        """Add a row of a family, from columns and their values."""
        row = len(self.model.linear.row_lower) + len(self.bounds)
        self.entries += ((row, column, value) for column, value in entries)
        self.bounds.append((lower, upper))
        self.families.append(family)

    def from_interval(self, task: int) -> int:
        """Return the first interval in which something can happen after a task has ended."""
        checkpoints = self.model.checkpoints
        i = bisect_left(checkpoints, task)
        return 2 * i + 2 if i < len(checkpoints) and checkpoints[i] == task else 2 * i

    # --- gradients --------------------------------------------------------------------------------

    def pass_gradients(self) -> None:
        """Add the gradients: their time on the engines, and the rest of the way of the last ones."""
        out, back = self.model.engine_rows[0], self.model.engine_rows[-1]
        later: list[Gradient] = []
        for task, together in reversed(self.gradients.items()):
            later += together
            first = self.from_interval(task)
            self._leave_time_for_the_way(first, own_passing_ns(self.cluster, later))
            if self.cluster.joins_on_host:
                self._move(out, first, sum(gradient.offload_ns for gradient in together))
        last_uses: dict[int, list[Gradient]] = {}
        for gradient in self.cluster.gradients if self.cluster.joins_on_host and self.gradients else ():
            last_uses.setdefault(max((gradient.produced_by, *gradient.used_by)), []).append(gradient)
        for task, together in last_uses.items():
            added = min(self.heads[g.produced_by + 1] + added_ns(self.cluster, g) for g in together)
            begun = self.columns
            self._move(back, self.from_interval(task), sum(gradient.prefetch_ns for gradient in together))
            self.returns.append((max(added, self.heads[task + 1]), begun, self.columns))

    def _leave_time_for_the_way(self, first: int, rest: int) -> None:
        """(27): The intervals from the possible end of a task on leave time for its and later gradients."""
        row = [(j, 1.0) for j in range(first, self.intervals)]
        self.row(row, rest / self.model.nanoseconds, family="way")

    def _move(self, engine: NDArray[np.int64], first: int, time: int) -> None:
        """(28): A gradient or its weights move on an engine, in any intervals from the first on.

        The time in an interval is a term in the engine's row, (5) or (6).
        """
        count = self.intervals - first
        added = [(self.columns + j, 1.0) for j in range(count)]
        self.entries += ((int(engine[first + j]), column, value) for j, (column, value) in enumerate(added))
        self.columns += count
        self.row(added, time / self.model.nanoseconds, family="gradients")

    # --- the bus ----------------------------------------------------------------------------------

    def share_bus(self) -> None:
        """(29): The bytes of all GPUs of a node on one side of an instant pass the bus.

        They do so beside the tasks on the other side. With the bytes after it pass all weights that return no
        sooner than any GPU can reach the instant.
        """
        for moved, spare in self._bus_rows():
            found = [(int(c), float(moved[c])) for c in np.flatnonzero(moved)]
            whole = [(j, -1.0) for j in range(self.intervals)]
            self.row([*found, *whole], -np.inf, -spare, family="bus")

    def priced(self, linear: LinearModel, prices: NDArray[np.float64]) -> tuple[LinearModel, float]:
        """Return the model with (29) in the objective, and the number by which this is divided.

        So no cost is above one, as the tolerances of solvers assume.
        """
        prices = prices / max(1.0, float(prices.sum()))
        cost = (1.0 - float(prices.sum())) * linear.cost
        constant = 0.0
        for price, (moved, spare) in zip(prices, self._bus_rows(), strict=True):
            cost[: len(moved)] += price * moved
            constant += price * spare
        scale = max(1.0, float(cost.max()))
        return (
            replace(
                linear,
                cost=np.append(cost, constant) / scale,
                lower=np.append(linear.lower, 1.0),
                upper=np.append(linear.upper, 1.0),
                integer=np.append(linear.integer, False),
            ),
            scale,
        )

    def _bus_rows(self) -> Iterator[tuple[NDArray[np.float64], float]]:
        """Yield the time that all GPUs' bytes on one side of an instant keep the bus busy, by column.

        With it comes the least time on the other side.
        """
        rows, columns, values = self._entries()
        directions = zip(self.model.engine_rows, self._slowest_links(), strict=True)
        chosen = np.unique(np.linspace(0, self.intervals - 1, _INSTANTS).astype(int)).tolist()
        for engine, slowest in directions:
            load = float(slowest * SECOND * self.cluster.node_gpus / self.cluster.bus_bytes_per_second)
            if load <= 1.0:
                continue  # the engines pass no more than the bus
            interval = np.full(int(rows.max()) + 1, -1)
            interval[engine] = np.arange(self.intervals)
            at = interval[rows]
            moves = (at >= 0) & (columns >= self.intervals)
            for j in chosen:
                before = self._least_before(j)
                after = (at > j) | self._late(columns, before)
                for part, spare in ((at <= j, self._least_after(j)), (after, before)):
                    mine = moves & part
                    moved = np.bincount(columns[mine], weights=values[mine], minlength=self.columns)
                    yield load * np.asarray(moved, dtype=np.float64), spare / self.model.nanoseconds

    def _late(self, columns: NDArray[np.int64], instant: int) -> NDArray[np.bool_]:
        """Return which entries, by their columns, are of weights that never return before a time."""
        late = np.zeros(self.columns, dtype=bool)
        for least, first, end in self.returns:
            late[first:end] = least >= instant
        return late[columns]

    def _slowest_links(self) -> list[Fraction]:
        """Return, per engine, the fewest bytes that are copied in a nanosecond."""
        blocks = self.instance.blocks
        gradients = [gradient for together in self.gradients.values() for gradient in together]
        out = [(b.bytes, b.offload_ns) for b in blocks] + [(g.bytes, g.offload_ns) for g in gradients]
        back = [(b.bytes, b.prefetch_ns) for b in blocks] + [(g.bytes, g.prefetch_ns) for g in gradients]
        engines = [out + back] if self.instance.engines == "single" else [out, back]
        return [
            min((self.cluster.load(size, time) / time for size, time in copies if time), default=Fraction(0))
            for copies in engines
        ]

    def _least_before(self, instant: int) -> int:
        """Return the least nanoseconds before an instant on any GPU; the last instant is the end."""
        if instant == self.intervals - 1:
            return self.heads[-1]
        return self.heads[self.model.checkpoints[instant // 2] + instant % 2]

    def _least_after(self, instant: int) -> int:
        """Return the least nanoseconds after an instant on any GPU, for the remaining tasks or gradients.

        Only tasks from the instant's checkpoint on are known not to have ended before the instant. An earlier
        task may have ended at any time, and its gradient may have passed. So short times of tasks prove
        nothing about it.
        """
        if instant == self.intervals - 1:
            return 0
        here, checkpoint = self._least_before(instant), self.model.checkpoints[instant // 2]
        rests = [self.heads[-1] - here]
        later: list[Gradient] = []
        for task, together in reversed(self.gradients.items()):
            later += together
            if task >= checkpoint:
                rests.append(self.heads[task + 1] - here + own_passing_ns(self.cluster, later))
        return max(rests)

    def linear(self) -> LinearModel:
        """Return the extended model."""
        old = self.model.linear
        new = self.columns - len(old.cost)
        rows, columns, values = self._entries()
        order = np.lexsort((columns, rows))
        return LinearModel(
            cost=np.concatenate([old.cost, np.zeros(new)]),
            lower=np.concatenate([old.lower, np.zeros(new)]),
            upper=np.concatenate([old.upper, np.full(new, np.inf)]),
            integer=np.concatenate([old.integer, np.zeros(new, dtype=bool)]),
            rows=rows[order],
            columns=columns[order],
            values=values[order],
            row_lower=np.concatenate([old.row_lower, [lower for lower, _ in self.bounds]]),
            row_upper=np.concatenate([old.row_upper, [upper for _, upper in self.bounds]]),
        )

    def _entries(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return rows, columns and values of all entries so far."""
        old = self.model.linear
        return (
            np.concatenate([old.rows, np.array([row for row, _, _ in self.entries], dtype=np.int64)]),
            np.concatenate([old.columns, np.array([c for _, c, _ in self.entries], dtype=np.int64)]),
            np.concatenate([old.values, np.array([v for _, _, v in self.entries], dtype=np.float64)]),
        )
