from __future__ import annotations

import pytest

import execution
import forced_faults


@pytest.mark.landing
def test_predicted_and_measured_stand_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "NETWORKS", (("lenet", 1),))
    monkeypatch.setattr(execution, "BUDGETS", ("64MiB",))
    monkeypatch.setattr(execution, "SECONDS", 0.1)
    found = list(execution.cases(1))
    assert {case.memory for case in found} == {"contiguous", "paged"}
    assert all(case.trial.identical for case in found)
    for case in found:
        assert case.trial.mapping_cost is not None
        assert case.trial.predicted_ns >= case.trial.scheduled_ns
        if not any(case.trial.mappings_ns):  # no pages are mapped after the first iteration
            assert case.trial.predicted_ns == case.trial.scheduled_ns
    assert {case.memory for case in found if any(case.trial.mappings_ns)} == {"paged"}
    lines = execution.table(found).splitlines()
    assert len([line for line in lines if line.startswith("| lenet (1) | 64MiB")]) == len(found)
    assert [line.split(",")[0].split(":")[0] for line in lines[-7:]] == [
        "- Error of the median iteration",
        "- Error of the iteration from the least times",
        "- Least over predicted time of a run",
        "- Least over predicted time of a copy",
        "- Host time of an operation",
        "- Mapping pages",
        "- Error of the median iteration in paged memory",
    ]


def test_cases_of_forced_faults_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced_faults, "NETWORKS", (("lenet", 1),))
    monkeypatch.setattr(forced_faults, "METHODS", ("modnn", "vdnn-all-m"))
    found = forced_faults.study(12, seed=1)
    assert sum(counts.total() for counts in found.values()) == 12
    *_, one, every = forced_faults.table(found).splitlines()
    assert one.replace("lenet-b1", "all") == every
    assert every.startswith("| all | 12 |")
