"""Random decisions of the search."""

from __future__ import annotations

import numpy as np

from pebbler.heuristics.gaps import Guide
from pebbler.heuristics.search.decisions import decisions_of, gap_keys
from pebbler.heuristics.search.kernel import UNTIL, Decisions, Problem
from pebbler.instances.instance import Instance


def drawn_decisions(
    instance: Instance, problem: Problem, rng: np.random.Generator, share: float = 0.85
) -> Decisions:
    """Return decisions with a share of all gaps evicted, and any algorithms and sides of holes."""
    by_use = np.argsort(problem.gaps[:, UNTIL], kind="stable")
    evicted = [gap_keys(problem)[g] for g in by_use if rng.random() < share]
    algorithms = [int(rng.integers(len(task.algorithms))) for task in instance.tasks]
    decisions = decisions_of(problem, Guide(evicted, [], algorithms))
    decisions.side[:] = rng.integers(5, size=len(decisions.side))
    return decisions
