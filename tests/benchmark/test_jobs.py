"""A run measured in this process: of a planner's own instance, of a relaxation."""

from __future__ import annotations

from pebbler.benchmark.jobs import Found, Job, Setting, measure
from pebbler.benchmark.problems import WorkloadProblem, about
from pebbler.instances.files import checksum
from pebbler.instances.transforms import with_recomputation
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import best_bound

PROBLEM = WorkloadProblem(Workload("resnet34", 32, "V100"), "50%")


def found(setting: Setting) -> Found:
    return measure(Job(PROBLEM, about(PROBLEM, PROBLEM.instances()), setting)).found


def test_bound_is_that_of_the_instance_that_was_solved() -> None:
    (whole,) = PROBLEM.instances()
    again = with_recomputation(whole)
    plain, planned = found(Setting("modnn")), found(Setting("memonger-rule"))
    assert plain.instances == (checksum(whole),)
    assert plain.lower_bound_ns == best_bound(whole).lower_bound_ns
    assert planned.instances == (checksum(again),)
    assert planned.lower_bound_ns == best_bound(again).lower_bound_ns
    assert planned.lower_bound_ns < plain.lower_bound_ns


def test_relaxation_has_a_time_and_no_schedule() -> None:
    relaxed = found(Setting("local-search", "divisible", time_limit=0.3))
    assert relaxed.iteration_ns is not None
    assert relaxed.lower_bound_ns is not None
    assert relaxed.lower_bound_ns <= relaxed.iteration_ns
    assert relaxed.schedules == ()
