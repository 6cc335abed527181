from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from pebbler import solve
from pebbler.benchmark.report.trial import as_dict, operations_table, told, trial_trace
from pebbler.instances.origin import MappingTimes
from pebbler.instances.workload import Workload
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.trial import Trial, attempt


@pytest.fixture(scope="module")
def trial() -> Trial:
    instance = Workload("lenet", 4, "K40").instance("1.5xMmin", sub_batch=2, rounds=2)
    schedule = solve(instance, "vdnn-all-m").schedule
    assert schedule is not None
    return attempt(instance, schedule, CpuBackend, repeat=2)


def test_wrong_numbers_are_called_wrong(trial: Trial) -> None:
    assert "same bits as without a budget" in told(trial)
    wrong = replace(trial, identical=False, max_abs_error=0.5, close=False)
    assert "WRONG: a gradient differs by 0.5 from that without a budget" in told(wrong)
    assert not wrong.right
    assert not replace(wrong, close=True).right
    near = replace(wrong, close=True, deterministic=False)
    assert near.right
    assert "within tolerance" in told(near)


def test_without_a_reference_nothing_is_claimed_of_it(trial: Trial) -> None:
    alone = attempt(trial.instance, trial.schedule, CpuBackend, repeat=1, reference=False)
    assert alone.identical
    assert as_dict(alone)["identical_to_unbudgeted"] is None
    assert "not compared with a run without a budget" in told(alone)
    assert "no budget:" not in told(alone)


def test_predictions_are_of_all_rounds_and_operations_of_one(trial: Trial) -> None:
    found = as_dict(trial, operations=True)
    assert found["predicted_ns"] == 2 * trial.schedule.makespan_ns
    assert found["executions_ns"] == sorted(found["executions_ns"])
    assert found["measured_ns"] in found["executions_ns"]
    count = len(trial.schedule.operations)
    assert len(found["operations"]) == count
    assert len(operations_table(trial).splitlines()) == count + 1


def test_in_paged_memory_the_prediction_says_what_mapping_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    instance = Workload("cifar10_quick", 64, "K40").instance("64MiB")
    schedule = solve(instance, "vdnn-all-m", memory="paged").schedule
    assert schedule is not None
    trial = attempt(instance, schedule, CpuBackend, repeat=1, reference=False)
    assert "what mapping pages costs is unknown and counts as 0; the schedule alone" in told(trial)
    cost = MappingTimes(call_ns=10**12, page_ns=0)
    origin = msgspec.structs.replace(instance.made_from, mapping=cost)
    known = replace(trial, instance=msgspec.structs.replace(instance, origin=origin))
    assert "unknown" not in told(known)
    assert operations_table(trial).splitlines()[0].split()[-1] == "mapping"
    assert known.predicted_ns > trial.predicted_ns >= trial.scheduled_ns == as_dict(trial)["scheduled_ns"]
    found = as_dict(known)
    assert sum(found["error_ns"].values()) == found["measured_ns"] - found["predicted_ns"]
    assert found["error_ns"]["mapping"] < 0, "what was measured is less than what is claimed"


def test_the_trace_has_what_was_measured_as_a_second_process(trial: Trial) -> None:
    measured = [e for e in trial_trace(trial)["traceEvents"] if e["pid"] == 2 and e["ph"] == "X"]
    timed = trial.median.rounds[0]
    assert [round(e["dur"] * 1000) for e in measured] == [one.end_ns - one.start_ns for one in timed]
