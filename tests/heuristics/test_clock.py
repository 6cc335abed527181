"""Time limits of methods by rule: they give up where they stand, and say so."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pebbler.heuristics import clock
from pebbler.heuristics.clock import OutOfTime, look, until
from pebbler.heuristics.methods import Limits, find_method
from pebbler.heuristics.papers.layerwise import passes
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.heuristics.program.placement import Piece, pack
from pebbler.heuristics.recomputation.reruns import each_stage
from pebbler.heuristics.search.problem import problem_of
from pebbler.instances.instance import Instance
from pebbler.instances.suites.generators import Knobs, generate
from pebbler.instances.suites.shapes import Recurrent
from pebbler.instances.workload import Workload
from pebbler.solver import guests
from pebbler.solver.result import Status
from pebbler.solver.solve import solve


@pytest.fixture(scope="module")
def large() -> Instance:
    """More tasks than any rule schedules in a twentieth of a second."""
    return generate("large", Recurrent(4, 400), Knobs(slack_percent=60), np.random.default_rng(0))


@pytest.fixture(scope="module")
def middling() -> Instance:
    """More tasks than there are readings of the clock within a fifth of a second, one in each millisecond."""
    return generate("middling", Recurrent(4, 100), Knobs(slack_percent=60), np.random.default_rng(0))


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The readings of the clock so far, one more with each; from one to the next, a millisecond passes."""
    made = itertools.count()
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: next(made) / 1000))
    monkeypatch.setattr(clock, "LEAST", 0.0)
    return made


@pytest.mark.parametrize(
    "rule", ["modnn", "vdnn-all-p", "save-on-cpu-rule", "layrub-inter", "modnn-transfers"]
)
def test_a_rule_gives_up_at_its_limit(middling: Instance, rule: str, readings: Iterator[int]) -> None:
    """It looks at the clock for every task, and does not look again when its time is over."""
    with pytest.raises(OutOfTime, match="time limit"):
        find_method(rule).call(middling, Limits(time_limit=0.2))
    assert next(readings) in range(200, 210)
    assert find_method(rule).call(middling, Limits()).schedule is not None
    assert next(readings) > 210 + len(middling.tasks)


@pytest.mark.parametrize("rule", ["vdnn-dyn", "superneurons-rule"])
def test_a_rule_that_tries_one_way_after_the_other_gives_up_with_the_first(
    large: Instance, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of time is a refusal, and a refusal of one way leads to the next: each began its work anew."""
    begun = []
    built = ProgramBuilder.__init__

    def building(self: ProgramBuilder, *arguments: Any, **options: Any) -> None:
        begun.append(self)
        built(self, *arguments, **options)
        monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: math.inf))

    monkeypatch.setattr(ProgramBuilder, "__init__", building)
    with pytest.raises(OutOfTime):
        find_method(rule).call(large, Limits(time_limit=600))
    assert len(begun) == 1


@pytest.mark.parametrize(
    "work",
    [
        lambda instance: problem_of(instance, "contiguous"),
        lambda instance: problem_of(instance, "paged"),
        lambda instance: ProgramBuilder(instance),
        lambda instance: list(each_stage(instance)),
        lambda instance: passes(instance),
        lambda instance: pack([Piece(1, 0, 1)], 512, 512),  # noqa: ARG005
    ],
)
def test_work_over_all_tasks_looks_at_the_clock(large: Instance, work: Callable[[Instance], object]) -> None:
    work(large)
    with until(time.monotonic() - 1), pytest.raises(OutOfTime):
        work(large)


def test_the_copy_that_a_method_gets_is_not_its_own_time(
    large: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it refuses: the seconds of the copy were told as those of the method then."""

    def slowly(instance: Instance) -> Instance:
        time.sleep(0.3)
        return instance

    monkeypatch.setattr(guests, "reread", slowly)
    began = time.perf_counter()
    result = solve(large, "brute-force")
    assert "too many" in result.stopped_by
    assert time.perf_counter() - began - result.solve_seconds >= 0.3


def test_the_limit_is_the_reason_that_is_told(large: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "LEAST", 0.0)
    result = solve(large, "modnn", time_limit=0.05)
    assert (result.status, result.stopped_by, result.schedule) == (Status.UNKNOWN, "time limit", None)


def test_what_goes_on_after_a_rule_has_its_own_clock() -> None:
    """A limit of the rule that a search starts from does not stop the search from writing its schedule."""
    instance = Workload("vgg16", 64, "k40").instance("1.2xMmin")
    result = solve(instance, "local-search", time_limit=0.3)
    assert result.status is Status.FEASIBLE


def test_deadlines_nest_and_end_with_their_block() -> None:
    with until(math.inf):
        look()
        with until(time.monotonic() - 1), pytest.raises(OutOfTime), until(time.monotonic() + 60):
            look()
        look()
