"""What torch.compile saves: a minimum cut between the passes, and a knapsack under a budget.

After `torch._functorch.partitioners`. In the cut, a node stands for each block of the forward pass, which
costs its bytes to save. What may not be computed again is on the side of the forward pass, what the backward
pass reads on the other. The blocks that are cut are saved; all others are computed again from them.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...instances.instance import Instance
from ..methods import Limits
from ..recomputation.plan import restorable, turn
from ..recomputation.rules import fill
from .saved import Operators, activations

if TYPE_CHECKING:
    import networkx as nx

_STEEP, _FAR = 1.1, 100
"""Factor of a block's weight for each task that lies between it and what the backward pass reads, and the
greatest number of these that counts: what is saved near the backward pass leaves less to compute again.
"""

_SOURCE, _SINK = "forward", "backward"


def load_networkx(_: Limits) -> None:
    """Import what cuts graphs, for a method that cuts one: it takes a fifth of a second."""
    import networkx  # noqa: F401 - used below


class Partition:
    """The forward pass as a graph to be cut.

    Attributes
    ----------
    made, read, once
        Blocks that the forward pass makes; those of them that the backward pass reads; and those that can be
        made again.
    expensive
        The tasks that torch.compile never computes again of its own accord: products, convolutions,
        attention, lookups in tables and choices of experts.
    weights
        What it costs to save each block, in bytes times a factor.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance, self.end = instance, turn(instance)
        self.read = set(activations(instance))
        again = restorable(instance)
        self.made = [d for d, writers in enumerate(instance.writers) if writers and writers[0] < self.end]
        self.once = {d for d in self.made if d in again}
        found = Operators(instance)
        self.expensive = frozenset(
            k
            for k in range(self.end)
            if found.is_linear(k)
            or found.is_experts(k)
            or found.is_routing(k)
            or found.is_attention(k)
            or found.is_lookup(k)
            or len(instance.tasks[k].algorithms) > 1
        )
        self.weights = self._weighted()

    def saved(self, again: Collection[int] = ()) -> set[int]:
        """Return the blocks to save, where some expensive tasks may be computed again."""
        import networkx as nx

        graph: nx.DiGraph[Any] = nx.DiGraph()
        banned = self.expensive.difference(again)
        for d in self.made:
            maker = self.instance.writers[d][0]
            graph.add_edge((d, 0), (d, 1), capacity=self.weights[d])
            if maker in banned or d not in self.once:
                graph.add_edge(_SOURCE, (d, 0))  # without an end
            for x in self.instance.tasks[maker].inputs:
                if self.instance.writers[x] and self.instance.writers[x][0] < self.end:
                    graph.add_edge((x, 1), (d, 0))
            if d in self.read:
                graph.add_edge((d, 1), _SINK)
        if _SINK not in graph or _SOURCE not in graph:
            return set()
        _, (reachable, _) = nx.minimum_cut(graph, _SOURCE, _SINK)
        return {d for d in self.made if (d, 0) in reachable and (d, 1) not in reachable}

    @cached_property
    def most(self) -> set[int]:
        """What is saved without a budget."""
        return self.saved()

    def bytes_of(self, blocks: Collection[int]) -> int:
        """Return how many bytes some blocks have."""
        return sum(self.instance.blocks[d].bytes for d in blocks)

    def within(self, share: float) -> set[int]:
        """Return the blocks to save with a share of the bytes that are saved without a budget.

        A knapsack chooses which expensive tasks keep what they make: its values are their times.

        Parameters
        ----------
        share
            torch's ``activation_memory_budget``: from 0, at which all is computed again, to 1.
        """
        if share >= 1:
            return self.most
        if share <= 0:
            return self.saved(self.expensive)
        tasks = sorted(self.expensive, key=lambda k: (-self._outputs(k), k))
        times = [min(a.duration_ns for a in self.instance.tasks[k].algorithms) for k in tasks]
        kept = fill(times, [self._outputs(k) for k in tasks], int(share * self.bytes_of(self.most)))
        return self.saved([k for k, keeps in zip(tasks, kept, strict=True) if not keeps])

    def _outputs(self, k: int) -> int:
        return self.bytes_of(self.instance.tasks[k].outputs)

    def _weighted(self) -> dict[int, int]:
        """Return what it costs to save each block."""
        away = {d: 0 if d in self.read else _FAR for d in self.made}
        for k in reversed(range(self.end)):
            task = self.instance.tasks[k]
            after = min((away[d] for d in task.outputs if d in away), default=_FAR)
            for x in task.inputs:
                if x in away:
                    away[x] = min(away[x], after + 1)
        return {
            d: int(self.instance.blocks[d].bytes * _STEEP ** max(min(away[d], _FAR), 1)) for d in self.made
        }
