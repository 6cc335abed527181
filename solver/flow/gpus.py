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

The least time for the rest is short of the truth: where memory is tight, the rest takes longer. So one GPU,
the last to reach an instant or the first, may have a point of its own beside the mean of the others. What is
to come for it are its own intervals. Some instants are tried, first those at which the mean violates this
most.

With whole columns, the mean is no solution. But a row of the bus is about the sum over all GPUs, whatever the
columns. Give these rows and the GPUs' intervals prices that are one in all. Then the iteration is no less
than the sum of the rows and of the intervals, each in its share; that is a sum over GPUs. So it is no less
than the sum of what is least for each GPU alone, whose columns are whole. The first prices are those of the
linear program. The rows themselves are in `machine.bus`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from time import monotonic
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from ...instances.instance import Instance
from ...validate.bounds.certificate import name_of_bound
from ..bounds import Bound
from ..linear.facade import solve_linear
from ..linear.model import LinearModel, LinearOptions, LinearResult, ModelBuilder
from ..scaling import proven_ns
from .machine.bus import Extension, Program, Reach, Shared, extended
from .model import FlowModel, Integrality, bound_name

_NONE = np.zeros(0, dtype=np.int64)
"""The rows of a family that a model has not."""

_PAIRS, _BESIDE = 3, 4
"""Numbers of instants for which one GPU has a point of its own: by what they promise, and beside the best."""

_PAIR_SHARE = 0.1
"""Share of the time left for each of these programs."""

_ROUNDS = 10
"""Greatest number of prices with which models with whole columns are solved."""

_CLOSE = 1e-3
"""Share by which other prices have to promise a higher bound."""

_RADIUS = 0.2
"""How far the first other prices may be from those of the linear program."""


def cluster_flow_bound(
    instance: Instance,
    checkpoints: Sequence[int],
    *,
    integrality: Integrality = "none",
    solver: str = "highs",
    **options: Unpack[LinearOptions],
) -> Bound | None:
    """Bound the makespan of all GPUs by FLOW on some checkpoints.

    Parameters and errors are those of `flow_bound`. Before models with whole columns, linear programs are
    solved for prices; from a solver that has none, the model comes without the bus.
    """
    proofs = _Proofs(instance, solver, options)
    mean = cluster_flow_model(instance, checkpoints, "none")
    results = proofs.solve([(mean.linear, mean.nanoseconds)], "none")
    if not results or results[0].values is None:
        return proofs.best
    mine = results[0]
    bus = mean.rows.get("bus", _NONE)
    prices, kept = None, None
    if mine.duals is not None:
        kept = np.flatnonzero(mine.duals[bus]).tolist()  # other rows decide nothing, and are many
        prices = np.append(1.0 + mine.duals[bus].sum(), -mine.duals[bus[kept]])
    at, own = _best_reach(proofs, extended(instance, checkpoints, "none"), mine, kept)
    if integrality != "none":
        whole = extended(instance, checkpoints, integrality)
        prices = prices if at is None else own
        if prices is None or not np.isfinite(prices).all():
            proofs.solve([(whole.linear(), whole.model.nanoseconds)], integrality)
        else:
            _raise_by_prices(proofs, whole, whole.shared(at, kept), prices, integrality)
    return proofs.best


def _best_reach(
    proofs: _Proofs, extension: Extension, mean: LinearResult, kept: Collection[int] | None
) -> tuple[Reach | None, NDArray[np.float64] | None]:
    """Return the GPU and the instant with the highest bound of some, and the prices of the rows it is in.

    The first ones are those whose rows the mean of all GPUs violates most, apart from each other; then the
    instants beside the best one follow. The prices are None from a solver that has none.
    """
    tried: list[Reach] = []
    best: Reach | None = None
    most, prices = mean.bound, None
    while mean.values is not None and len(tried) < _PAIRS + _BESIDE:
        at = extension.violated(mean.values, tried) if len(tried) < _PAIRS else None
        if at is None and best is not None:
            beside = (best._replace(instant=best.instant + step) for step in (1, -1))
            at = next((one for one in beside if one not in tried), None)
        if at is None or not 0 <= at.instant < extension.intervals:
            break
        tried.append(at)
        pair = extension.pair(at, kept)
        results = proofs.solve([(pair.linear, pair.nanoseconds)], "none", share=_PAIR_SHARE)
        if not results or results[0].values is None:
            break
        if results[0].bound > most:
            shared = np.concatenate([pair.rows.get(name, _NONE) for name in ("together", "bus", "reach")])
            duals = results[0].duals
            most, best, prices = results[0].bound, at, None if duals is None else -duals[shared]
    return best, prices


class _Proofs:
    """Solves programs as long as there is time, and keeps the best bound.

    There is no certificate, as prices of the extended model are none of one GPU's.
    """

    def __init__(self, instance: Instance, solver: str, options: LinearOptions) -> None:
        self._instance, self.solver, self._options = instance, solver, options
        limit = options.get("time_limit")
        self._ends = math.inf if limit is None else monotonic() + limit
        self.best: Bound | None = None

    def solve(
        self, programs: Sequence[Program], integrality: Integrality, share: float = 1.0
    ) -> list[LinearResult]:
        """Solve programs the sum of whose bounds is one, in a share of the time that is left.

        Return the results, or none if no time is left.
        """
        results = []
        for i, (program, _) in enumerate(programs):
            left, options = self._ends - monotonic(), self._options
            if left <= 0.0:
                return []
            if math.isfinite(left):
                options = options | LinearOptions(time_limit=share * left / (len(programs) - i))
            results.append(solve_linear(program, solver=self.solver, **options))
        if all(math.isfinite(result.bound) for result in results):
            parts = [
                proven_ns(result.bound, len(program.cost), unit)
                for result, (program, unit) in zip(results, programs, strict=True)
            ]
            found = max(sum(parts) - (len(parts) - 1), 0)  # each was rounded up, which only the sum may be
            name = name_of_bound(self._instance, bound_name(integrality, f"gpus-{self.solver}"))
            bound = Bound(found, name, certified=False)
            self.best = bound if self.best is None else self.best.raised(bound)
        return results


def _raise_by_prices(
    proofs: _Proofs, whole: Extension, shared: Shared, prices: NDArray[np.float64], integrality: Integrality
) -> None:
    """Solve models with whole columns with prices of the rows that GPUs share, and then with better ones.

    The least of the priced rows is concave in the prices. The points that are found bound it from above; the
    next prices are those with the highest such bound that are not far from the best so far.
    """
    centre = np.maximum(prices, 0.0)
    centre = prices = centre / max(float(centre.sum()), _CLOSE)
    most, radius, cuts = -math.inf, _RADIUS, []
    for _ in range(_ROUNDS):
        programs = whole.programs(shared, prices)
        results = proofs.solve(programs, integrality)
        points = [result.values for result in results if result.values is not None]
        if not points or len(points) < len(programs):
            return
        cuts.append(shared.sums(points))
        least = sum(r.bound * unit for r, (_, unit) in zip(results, programs, strict=True))
        if least > most:
            most, centre, radius = least, prices, min(1.5 * radius, 1.0)
        else:
            radius *= 0.7
        found = solve_linear(_next_prices(np.array(cuts), centre, radius), solver=proofs.solver)
        if found.values is None or -found.bound * whole.model.nanoseconds <= most * (1.0 + _CLOSE):
            return
        prices = np.maximum(found.values[:-1], 0.0)
        prices /= prices.sum()


def _next_prices(cuts: NDArray[np.float64], centre: NDArray[np.float64], radius: float) -> LinearModel:
    """Return the program of prices whose highest bound is greatest; the bound is the last column, negative.

    Parameters
    ----------
    cuts
        Per points that were found, and per row that is priced, what the row comes to.
    centre, radius
        From what each price differs by no more than the radius.
    """
    builder = ModelBuilder()
    lower, upper = np.maximum(centre - radius, 0.0), np.minimum(centre + radius, 1.0)
    prices = builder.columns(len(centre), lower=lower, upper=upper)
    bound = builder.columns(1, lower=-np.inf, cost=-1.0)
    builder.entries(builder.rows(1, lower=1.0, upper=1.0), prices, 1.0)
    for cut in cuts:
        row = builder.rows(1, upper=0.0)
        builder.entries(row, prices, -cut)
        builder.entries(row, bound, 1.0)
    return builder.build()


def cluster_flow_model(instance: Instance, checkpoints: Sequence[int], integrality: Integrality) -> FlowModel:
    """Build FLOW of one GPU of several, with gradients; errors as for `flow_model`.

    A linear program is that of the mean of all GPUs of a node, and has the rows of the bus.
    """
    extension = extended(instance, checkpoints, integrality)
    if integrality == "none":
        extension.share_bus()
    rows = extension.model.rows.and_then(extension.families)
    return replace(extension.model, linear=extension.linear(), rows=rows)


def pair_flow_model(instance: Instance, checkpoints: Sequence[int], at: Reach) -> FlowModel:
    """Build FLOW of a GPU of a node, and of the mean of the others, as one linear program.

    The columns of the one come first, and the iteration is the last one. Rows of FLOW and of gradients are
    there twice, those of the bus once; ``together`` and ``reach`` are (60).
    """
    return extended(instance, checkpoints, "none").pair(at)
