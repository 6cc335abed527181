"""The method ``flow-recompute``: as ``flow``, with recomputation beside transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...heuristics.loading import kernels, loads
from ...heuristics.methods import Answer, Limits, Refusal, register
from ...heuristics.production.partition import load_networkx
from ...heuristics.recomputation.reruns import staying
from ...heuristics.recomputation.rules import planned
from ...heuristics.search.method import RULES as SEARCH_RULES
from ...instances.instance import Instance
from ..bounds import Bound
from ..linear.model import LinearModel, LinearResult
from ..linear.worker import begin_solver, load_solver
from ..packing.pack import load_packing
from .method import RULES, FlowRun
from .recompute import RecomputeModel, decided, proven_with_reruns, recompute_model
from .stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...heuristics.recomputation.search import RerunSearch


FRAMEWORKS = ("torch-memory-budget", "checkpoint-layers")
"""Rules of frameworks whose schedules the search starts from as well."""

_TRANSFERS = "transfers"
"""Name of the rule that is left out for recomputation alone."""


@register(
    "flow-recompute",
    "as flow, with recomputation beside transfers: forward tasks may run again",
    "this project",
    shown="named",
    transform=planned,
    rules=(*RULES, *SEARCH_RULES, _TRANSFERS),
)
@loads(begin_solver, kernels, load_solver, load_packing, load_networkx)
def flow_recompute(instance: Instance, limits: Limits) -> Answer:
    """Solve FLOW with recomputation on more and more checkpoints, and search for schedules meanwhile.

    It ends as `flow` does. If no task may run again, it is `flow` with another model. Without transfers, it
    makes only the copies that the instance requires. If the instance allows others, the models prove nothing
    for it, and the bound is the compute time.

    Raises
    ------
    Refusal
        Where tasks may run on the host.
    """
    if instance.has_host_work:
        raise Refusal("second runs are not modelled together with work on the host; take flow")
    alone = staying(instance)
    if _TRANSFERS in limits.without and alone != instance:
        return _Alone(alone, limits).answer()
    return RecomputeRun(instance, limits).answer()


class RecomputeRun(FlowRun):
    """One call of the method, or of another that plans second runs."""

    name = "flow-recompute"
    rounds = 1
    turn = 0.2  # of the time left: each plan is a program of its own, so that a round may take minutes
    reruns: RerunSearch | None = None
    rules = ("modnn", "memonger-rule", "superneurons-rule", "knapsack-rule", *FRAMEWORKS)

    def _new_search(self) -> RerunSearch | None:
        from ...heuristics.recomputation.search import RerunSearch  # with it comes Numba

        limits = self.limits
        rules = limits.without & set(SEARCH_RULES)
        try:
            self.reruns = RerunSearch(self.instance, limits.memory, limits.seed, rules)
        except Refusal as refusal:
            self.reason = str(refusal)
        return self.reruns

    def _new_windows(self) -> None:
        return None  # they rest on runs that are not repeated

    def _model(
        self, checkpoints: list[int], stage: Stage
    ) -> tuple[LinearModel, Callable[[LinearResult], None]]:
        model = recompute_model(self.modelled, checkpoints, stage.integrality)
        return model.linear, lambda result: self._decide(stage, model, result)

    def _decide(self, stage: Stage, model: RecomputeModel, result: LinearResult) -> None:
        """Use what the solver has proven, and guide the search by its solution."""
        found = proven_with_reruns(self.modelled, result, model, stage.integrality, self.limits.solver)
        if found is not None:
            self._prove(found)
        if result.values is not None and stage.integrality == self.whole and self.reruns is not None:
            self.reruns.offer_plan(*decided(self.modelled, model, result.values))

    def _prove(self, found: Bound) -> None:
        self.bound = self.bound.raised(found)


class _Alone(RecomputeRun):
    """One call of the method without transfers, whose bounds do not hold for the instance itself."""

    def _prove(self, found: Bound) -> None:
        """Leave the bound unchanged."""
