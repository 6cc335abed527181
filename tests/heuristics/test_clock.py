"""Time limits of methods by rule: they give up where they stand, and say so."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from pebbler.heuristics import clock
from pebbler.heuristics.clock import OutOfTime, look, until
from pebbler.heuristics.methods import Limits, find_method
from pebbler.instances.generators import Knobs, generate
from pebbler.instances.instance import Instance
from pebbler.instances.shapes import Recurrent
from pebbler.instances.workload import Workload
from pebbler.solver.solve import Status, solve


@pytest.fixture(scope="module")
def large() -> Instance:
    """More tasks than any rule schedules in a twentieth of a second."""
    return generate("large", Recurrent(4, 400), Knobs(slack_percent=60), np.random.default_rng(0))


@pytest.mark.parametrize(
    "rule", ["modnn", "vdnn-all-p", "save-on-cpu-rule", "layrub-inter", "modnn-transfers"]
)
def test_a_rule_gives_up_at_its_limit(large: Instance, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "LEAST", 0.0)
    began = time.monotonic()
    with pytest.raises(OutOfTime, match="time limit"):
        find_method(rule).call(large, Limits(time_limit=0.05))
    assert time.monotonic() - began < 2.0
    assert find_method(rule).call(large, Limits(time_limit=600)).schedule is not None


def test_the_limit_is_the_reason_that_is_told(large: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "LEAST", 0.0)
    result = solve(large, "modnn", time_limit=0.05)
    assert (result.status, result.stopped_by, result.schedule) == (Status.UNKNOWN, "time limit", None)


def test_what_goes_on_after_a_rule_has_its_own_clock() -> None:
    """A limit of the rule that a search starts from does not stop the search from writing its schedule."""
    instance = Workload("vgg16", 64, "k40").instance("1.2xMmin")
    result = solve(instance, "local-search", time_limit=1.0)
    assert result.status is Status.FEASIBLE


def test_deadlines_nest_and_end_with_their_block() -> None:
    with until(math.inf):
        look()
        with until(time.monotonic() - 1), pytest.raises(OutOfTime), until(time.monotonic() + 60):
            look()
        look()
