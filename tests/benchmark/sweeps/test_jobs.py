"""A run measured in this process: of a planner's own instance, of a relaxation."""

from __future__ import annotations

import msgspec
import pytest

from pebbler.benchmark.sweeps.jobs import Found, Job, Setting, measure
from pebbler.benchmark.sweeps.problems import WorkloadProblem, about
from pebbler.instances.files import checksum, decode
from pebbler.instances.instance import Instance
from pebbler.instances.transforms import with_recomputation
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import Bound, best_bound, certified_bound
from pebbler.validate.bounds.certificate import Certificate, certify, sealed
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

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


def test_contradiction_is_a_row_without_figures_and_with_both_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(instance: Instance, *_: object) -> Bound:
        return certified_bound(
            sealed(msgspec.structs.replace(certify(instance, "compute", "wrong"), lower_bound_ns=10**15))
        )

    monkeypatch.setattr("pebbler.benchmark.comparison.compare.best_bound", wrong)
    measured = measure(Job(PROBLEM, about(PROBLEM, PROBLEM.instances()), Setting("modnn")))
    assert (measured.found.status, measured.found.iteration_ns) == ("error", None)
    assert "contradicts the wrong bound of 1000000000000000 ns" in measured.found.stopped_by
    instance = decode(measured.instances[0], Instance, "an instance", "here")
    assert check(instance, decode(measured.schedules[0], Schedule, "a schedule", "here")).valid
    (certificate,) = measured.certificates
    assert decode(certificate, Certificate, "a certificate", "here").lower_bound_ns == 10**15
