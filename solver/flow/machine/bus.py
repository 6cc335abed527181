"""Several GPUs in FLOW: gradients on the engines, and a bus that all GPUs of a node share.

`pebbler.solver.flow.gpus` says why the rows hold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ....instances.gpus.cluster import SECOND, Cluster, Gradient
from ....instances.instance import Instance
from ....validate.bounds.arguments import least_times
from ....validate.gpus.program import cluster_of, one_gpu
from ...gradient_bounds import added_ns, own_passing_ns
from ...linear.model import LinearModel, ModelBuilder
from ..model import FlowModel, Integrality, flow_model

_INSTANTS = 24
"""Number of instants before and after which the bytes on the bus are limited."""

_VIOLATED = 1e-4
"""Share of the iteration by which (60) is violated where a program with it is worth its time."""

_Floats = NDArray[np.float64]
"""Array of floats."""

Program = tuple[LinearModel, float]
"""A program, and the nanoseconds of its unit of time."""


class Reach(NamedTuple):
    """The GPU of a node that is the last to reach an instant, or the first.

    Attributes
    ----------
    engine
        The engine whose copies pass the bus: before the instant for the last GPU, after it for the first.
    instant
        The instant, which is the end of the interval of this number.
    last
        Whether it is the last GPU.
    """

    engine: int
    instant: int
    last: bool


def extended(instance: Instance, checkpoints: Sequence[int], integrality: Integrality) -> Extension:
    """Return FLOW of one GPU with the gradients; errors as for `flow_model`."""
    alone = _on_bus_alone(instance)
    extension = Extension(alone, cluster_of(alone), flow_model(one_gpu(alone), checkpoints, integrality))
    extension.pass_gradients()
    return extension


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


@dataclass(frozen=True, slots=True)
class Shared:
    """Rows about one GPU of a node and the mean of the others, none of which is more than the iteration.

    The first row is the mean's intervals. If there is one GPU apart, its intervals are the second row, and
    what it reaches is the last. All others are the bus.

    Attributes
    ----------
    share
        The share of the one among all GPUs; 0 if there is only the mean of all.
    moved
        Per row and column, the time that all GPUs' copies keep the bus busy if all do the same.
    one, others
        Per row and column, which intervals of the one, and of the mean of the others, come beside that.
    spare
        Per row, a time beside that.
    """

    share: float
    moved: _Floats
    one: _Floats
    others: _Floats
    spare: _Floats

    def parts(self) -> tuple[_Floats, ...]:
        """Return, per row and column, what counts for the one GPU, and for the mean of the others."""
        others = (1.0 - self.share) * self.moved + self.others
        return (self.share * self.moved + self.one, others) if self.share else (others,)

    def sums(self, points: Sequence[_Floats]) -> _Floats:
        """Return what the rows come to at points of the one GPU and of the others, or of all."""
        columns = self.moved.shape[1]
        return self.spare + sum(
            part @ point[:columns] for part, point in zip(self.parts(), points, strict=True)
        )


@dataclass(slots=True)
class Extension:
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

    def violated(self, point: _Floats, but: Collection[Reach] = ()) -> Reach | None:
        """Return the GPU whose row (60) the mean of all GPUs violates most; None if it violates none by much.

        Parameters
        ----------
        point
            The mean of all GPUs' points, in the columns of FLOW and of the gradients.
        but
            Instants that are not looked at, and neither are those less than two checkpoints from them.
        """
        lengths = point[: self.intervals]
        most, found = _VIOLATED * float(lengths.sum()), None
        for engine, load, at, columns, values in self._copies():
            over = load * np.bincount(at, values * point[columns], self.intervals) - lengths
            before = np.cumsum(over)
            for last, excess in ((True, before), (False, before[-1] - before)):
                excess = excess.copy()
                for one in but:
                    if (one.engine, one.last) == (engine, last):
                        excess[max(one.instant - 3, 0) : one.instant + 4] = 0.0
                instant = int(np.argmax(excess))
                if excess[instant] > most:
                    most, found = float(excess[instant]), Reach(engine, instant, last)
        return found

    def pair(self, at: Reach, kept: Collection[int] | None = None) -> FlowModel:
        """Return the program of one GPU and of the mean of the others, with the rows that they share.

        Parameters are those of `shared`.
        """
        alone, shared, builder = self.linear(), self.shared(at, kept), ModelBuilder()
        points = []
        for _ in range(2):
            point = builder.columns(len(alone.cost), lower=alone.lower, upper=alone.upper)
            rows = builder.rows(len(alone.row_lower), lower=alone.row_lower, upper=alone.row_upper)
            builder.entries(rows[alone.rows], point[alone.columns], alone.values)
            points.append(point)
        iteration = builder.columns(1, cost=1.0)
        rows = np.concatenate(
            [
                builder.rows(2, upper=-shared.spare[:2], family="together"),
                builder.rows(len(shared.spare) - 3, upper=-shared.spare[2:-1], family="bus"),
                builder.rows(1, upper=-shared.spare[-1:], family="reach"),
            ]
        )
        for point, part in zip(points, shared.parts(), strict=True):
            row, column = np.nonzero(part)
            builder.entries(rows[row], point[column], part[row, column])
        builder.entries(rows, iteration, -1.0)
        once, added = self.model.rows.and_then(self.families), builder.families
        family = {int(row): name for name, found in once.items() for row in found}
        again = [family[row] for row in range(len(alone.row_lower))]
        names = [name for name in ("together", "bus", "reach") for _ in added[name]]
        return replace(self.model, linear=builder.build(), rows=once.and_then([*again, *names]))

    def shared(self, at: Reach | None, kept: Collection[int] | None = None) -> Shared:
        """(60): Return the rows that are about all GPUs: their intervals, the bus, and what `at` says.

        The last GPU to reach an instant does so when all have moved what they move before it. The first one
        does so before any moves what it moves after it. So these bytes pass the bus beside the GPU's own
        intervals on the other side of the instant.

        Parameters
        ----------
        at
            The GPU; None if there is only the mean of all.
        kept
            Which of the rows of the bus there are, by their numbers; None for all.
        """
        bus = [row for i, row in enumerate(self._bus_rows()) if kept is None or i in kept]
        count = len(bus) + (1 if at is None else 3)
        moved, one, others = (np.zeros((count, self.columns)) for _ in range(3))
        spare = np.zeros(count)
        others[0, : self.intervals] = 1.0
        for row, (found, rest) in enumerate(bus, start=1 if at is None else 2):
            moved[row], spare[row] = found, rest
        if at is not None:
            one[1, : self.intervals] = 1.0
            _, load, where, columns, values = next(found for found in self._copies() if found[0] == at.engine)
            moved[-1] = self._moved(load, columns, values, (where <= at.instant) == at.last)
            one[-1, slice(at.instant + 1, self.intervals) if at.last else slice(at.instant + 1)] = 1.0
        share = 0.0 if at is None else 1.0 / self.cluster.node_gpus
        return Shared(share, moved, one, others, spare)

    def programs(self, shared: Shared, prices: _Floats) -> list[Program]:
        """Return programs of single GPUs the sum of whose least is that of the priced rows."""
        linear = self.linear()
        parts = [prices @ part for part in shared.parts()]
        constants = [float(prices @ shared.spare), *[0.0] * (len(parts) - 1)]
        return [self._priced(linear, *priced) for priced in zip(parts, constants, strict=True)]

    def _priced(self, linear: LinearModel, cost: _Floats, constant: float) -> Program:
        """Return a program with other costs, none of them above one, as the tolerances of solvers assume."""
        scale = max(1.0, float(cost.max()))
        program = replace(
            linear,
            cost=np.append(cost, constant) / scale,
            lower=np.append(linear.lower, 1.0),
            upper=np.append(linear.upper, 1.0),
            integer=np.append(linear.integer, False),
        )
        return program, self.model.nanoseconds * scale

    def _bus_rows(self) -> Iterator[tuple[_Floats, float]]:
        """Yield the time that all GPUs' bytes on one side of an instant keep the bus busy, by column.

        With it comes the least time on the other side.
        """
        chosen = np.unique(np.linspace(0, self.intervals - 1, _INSTANTS).astype(int)).tolist()
        for _, load, at, columns, values in self._copies():
            for j in chosen:
                before = self._least_before(j)
                after = (at > j) | self._late(columns, before)
                yield (
                    self._moved(load, columns, values, at <= j),
                    self._least_after(j) / self.model.nanoseconds,
                )
                yield self._moved(load, columns, values, after), before / self.model.nanoseconds

    def _copies(
        self,
    ) -> Iterator[tuple[int, float, NDArray[np.int64], NDArray[np.int64], _Floats]]:
        """Yield what moves on each engine of which all GPUs' copies are more than the bus passes at once.

        That is the engine, the time that a nanosecond of it on all GPUs keeps the bus busy, and intervals,
        columns and values of its time.
        """
        rows, columns, values = self._entries()
        for engine, slowest in enumerate(self._slowest_links()):
            load = float(slowest * SECOND * self.cluster.node_gpus / self.cluster.bus_bytes_per_second)
            if load <= 1.0:
                continue  # the engines pass no more than the bus
            interval = np.full(int(rows.max()) + 1, -1)
            interval[self.model.engine_rows[engine]] = np.arange(self.intervals)
            moves = (interval[rows] >= 0) & (columns >= self.intervals)
            yield engine, load, interval[rows[moves]], columns[moves], values[moves]

    def _moved(
        self,
        load: float,
        columns: NDArray[np.int64],
        values: _Floats,
        mine: NDArray[np.bool_],
    ) -> _Floats:
        moved = np.bincount(columns[mine], weights=values[mine], minlength=self.columns)
        return load * np.asarray(moved, dtype=np.float64)

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

    def _entries(self) -> tuple[NDArray[np.int64], NDArray[np.int64], _Floats]:
        """Return rows, columns and values of all entries so far."""
        old = self.model.linear
        return (
            np.concatenate([old.rows, np.array([row for row, _, _ in self.entries], dtype=np.int64)]),
            np.concatenate([old.columns, np.array([c for _, c, _ in self.entries], dtype=np.int64)]),
            np.concatenate([old.values, np.array([v for _, _, v in self.entries], dtype=np.float64)]),
        )
