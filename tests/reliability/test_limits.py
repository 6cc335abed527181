"""Time limits on what went past them: a small sample of the study in `limits`."""

from __future__ import annotations

import re
import resource

import pytest
from numpy.random import default_rng

from pebbler.heuristics.methods import Refusal
from pebbler.instances.suites.generators import Knobs, generate
from pebbler.instances.suites.shapes import Layered
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.solve import solve

from ..samples import counts
from .limits import compared, drawn
from .timed import LIMIT

SLACK = 10.0
"""Processor seconds past the limit that are allowed here; the study allows two seconds."""


def processor_seconds() -> float:
    """What this process and those that it has waited for have computed: other work does not count."""
    spent = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


@pytest.mark.parametrize("method", ["checkmate", "poet"])
def test_recomputation_keeps_its_limit(method: str) -> None:
    """Without it, the search over states of such a graph takes all memory, and its model minutes to build."""
    knobs = Knobs(slack_percent=20, recomputable_percent=100, transfer_percent=0, backward=False)
    instance = generate("graph", Layered(240, 20), knobs, default_rng(0))
    began = processor_seconds()
    result = solve(instance, method, time_limit=0.5)
    assert processor_seconds() - began < 0.5 + SLACK
    assert result.stopped_by == "time limit" or "fits" in result.stopped_by


@pytest.mark.parametrize("steps", counts(250, 1250))
def test_a_model_that_takes_minutes_to_build_is_given_up(steps: int) -> None:
    """Thousands of stages of one run each: few decisions, but a column for each block and stage."""
    instance = drawn(steps)
    began = processor_seconds()
    result = solve(instance, "poet", time_limit=0.5)
    assert (result.stopped_by, result.schedule) == ("time limit", None)
    assert processor_seconds() - began < 0.5 + SLACK


def test_exhaustive_search_refuses_what_it_cannot_search() -> None:
    with pytest.raises(Refusal, match="2001 tasks are too many"):
        brute_force(drawn(250))


@pytest.mark.parametrize(
    "limit", [pytest.param(0.2, marks=pytest.mark.landing), pytest.param(LIMIT, marks=pytest.mark.slow)]
)
def test_a_comparison_ends_soon_after_its_row_and_the_limit_of_its_bound(limit: float) -> None:
    began = processor_seconds()
    run = compared("modnn", "contiguous", limit)
    assert re.match(r"modnn: [\d.]+ s a round", run.ended)
    assert processor_seconds() - began < 3 * limit + SLACK
