"""Checked results: what a row says is what its files say, or the run is named."""

from __future__ import annotations

import json
import os
import sqlite3
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pebbler.benchmark.report import checked as module
from pebbler.benchmark.report.checked import Checked, check_runs
from pebbler.benchmark.report.report import write_report
from pebbler.benchmark.sweeps.results import Results, Run
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode, read_instance, write_instance
from pebbler.instances.gpus.workload import cluster_instances, several_gpus
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import best_bound, compute_bound
from pebbler.validate.bounds.certificate import sealed
from pebbler.validate.schedule import read_schedule

from ..swept import swept

CHAIN = """
title = "a chain"

[[sweep]]
suites = ["tiny"]
select = ["chain2-s1"]
methods = ["modnn"]
"""
"""A run that has a schedule of 4 or 5 operations."""

WORKLOAD = """
title = "rounds of two sizes, in two memory models"

[[sweep]]
methods = ["modnn", "vdnn-dyn"]
memory = ["contiguous", "paged"]

[[sweep.workloads]]
network = "alexnet"
batch = 5
device = "K40"
budgets = ["1.2xMmin"]
sub_batch = 2
"""

AT_ITS_BEST = WORKLOAD.replace("sub_batch = 2", 'sub_batch = "auto"').replace(', "paged"', "")

IN_PARTS = WORKLOAD.replace('"modnn", "vdnn-dyn"', '"modnn-parts"').replace("sub_batch = 2", "")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return swept(tmp_path, CHAIN)


def checked(path: Path) -> Checked:
    with Results(path) as results:
        return check_runs(results)


def run_of(path: Path) -> Run:
    with Results(path) as results:
        (run,) = results.runs()
    return run


def files(path: Path) -> tuple[Path, Path]:
    """Instance and schedule of the one run."""
    found = run_of(path).found
    with Results(path) as results:
        return results.instance_file(found.instances[0]), results.schedule_file(found.schedules[0])


def change(path: Path, **cells: object) -> None:
    with sqlite3.connect(path) as database:
        for name, value in cells.items():
            database.execute(f"UPDATE runs SET {name} = ?", [value])


def by_protocol(path: Path, title: str = "a protocol of mine") -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE protocols (title TEXT, rules TEXT)")
        rules = '{"solved_gap": 0.001, "overtime": "5s"}'
        database.execute("INSERT INTO protocols VALUES (?, ?)", [title, rules])


def refused(path: Path) -> str:
    """The sentence with which results are refused; nothing is written."""
    with Results(path) as results, pytest.raises(PebblerError) as caught:
        write_report(results, path.parent / "r", check=True)
    assert not (path.parent / "r").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "schedules", "proven", "unproven"),
    [(CHAIN, 1, 1, 0), (WORKLOAD, 4, 4, 0), (AT_ITS_BEST, 2, 0, 2), (IN_PARTS, 2, 2, 0)],
)
def test_honest_results_pass(text: str, schedules: int, proven: int, unproven: int, tmp_path: Path) -> None:
    found = checked(swept(tmp_path, text))
    assert (found.schedules, found.proven, found.unproven) == (schedules, proven, unproven)
    assert str(found).startswith(f"schedules of {schedules} runs checked, {proven} of ")


def test_several_gpus_pass_their_own_checker(tmp_path: Path) -> None:
    workload = Workload("lenet", 8, "k40")
    (instance,) = cluster_instances(workload, several_gpus(workload, 2), "1.1xMmin")
    write_instance(instance, tmp_path / "two.instance.json")
    path = swept(tmp_path, 'title = "two"\n[[sweep]]\nfiles = ["two.instance.json"]\nmethods = ["modnn"]\n')
    assert checked(path).schedules == 1
    change(path, stall_ns=0)
    assert refused(path).startswith("two, modnn, seed 0: its row has stall_ns 0")


def test_runs_without_a_schedule_pass(tmp_path: Path) -> None:
    path = swept(tmp_path, CHAIN.replace("modnn", "network-wide"))
    assert run_of(path).found.iteration_ns is None
    assert checked(path).schedules == 0


@pytest.mark.parametrize("name", [*module.FIGURES, "rounds", "ideal_ns", "tasks", "budget_bytes"])
def test_a_changed_figure_names_the_run(name: str, path: Path) -> None:
    was = run_of(path).flat()[name]
    change(path, **{name: was + 1})
    said = refused(path)
    assert said.startswith("tiny/chain2-s1, modnn, seed 0: ")
    assert f"its row has {name} {was + 1}, and " in said
    assert f" {was}; the row was changed" in said


def test_a_standing_bought_by_the_bound_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE runs SET iteration_ns = lower_bound_ns - 1")
    assert "its row has iteration_ns" in refused(path)


def test_a_time_of_no_schedule_is_refused(path: Path) -> None:
    change(path, schedules="[]")
    assert "and names 0 schedules for 1 instances" in refused(path)
    change(path, instances="[]")
    assert "and names 0 schedules for 0 instances" in refused(path)
    change(path, iteration_ns=None)
    assert "has stall_ns" in refused(path)


def test_a_status_follows_from_the_figures(path: Path) -> None:
    assert run_of(path).found.status == "optimal"
    change(path, status="error")
    assert "its row has status error, and by its iteration and its bound it is optimal" in refused(path)
    change(path, status="feasible", **dict.fromkeys(module.FIGURES))
    assert "its row has status feasible, and no iteration_ns" in refused(path)


def test_a_trace_has_no_shorter_time(path: Path) -> None:
    change(path, trace="[[0.1, 1, null]]")
    assert "its trace has a shorter time than its schedules" in refused(path)


def test_another_memory_model_is_refused(path: Path) -> None:
    change(path, memory_model="paged")
    assert "its row has memory_model paged, and its schedule says contiguous" in refused(path)


@pytest.mark.parametrize("name", ["problem_sha256", "family_sha256"])
def test_another_problem_is_refused(name: str, path: Path) -> None:
    change(path, **{name: "0" * 64})
    assert f"its row has {name} {'0' * 64}, and the suite has" in refused(path)


def test_an_easier_instance_is_not_that_of_the_suite(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = swept(tmp_path / "other", CHAIN.replace("s1", "s2"))
    change(other, problem="tiny/chain2-s1")
    assert "and the suite has" in refused(other)


def test_a_protocol_has_no_instances_of_a_method(tmp_path: Path) -> None:
    path = swept(tmp_path, IN_PARTS)
    by_protocol(path)
    assert "for another instance than its problem, and a protocol has no such runs" in refused(path)


def test_a_setting_that_its_protocol_does_not_have_names_the_run(path: Path) -> None:
    by_protocol(path, "Protocol 2026, on suite tiny")
    said = refused(path)
    assert said.startswith(
        "tiny/chain2-s1, modnn, seed 0: its time_limit is None, and Protocol 2026, on suite"
    )


def test_a_workload_is_that_of_its_instances(tmp_path: Path) -> None:
    path = swept(tmp_path, WORKLOAD)
    change(path, family_sha256="0" * 64)
    assert "and its instances say" in refused(path)


def test_instances_of_a_method_have_the_budget_of_the_problem(tmp_path: Path) -> None:
    path = swept(tmp_path, IN_PARTS)
    change(path, budget_bytes=1)
    assert "its row has budget_bytes 1, and its instances say" in refused(path)


# --- files --------------------------------------------------------------------------------------------


def test_a_missing_file_is_named(path: Path) -> None:
    instance, schedule = files(path)
    schedule.unlink()
    said = refused(path)
    assert said.startswith("tiny/chain2-s1, modnn, seed 0: ")
    assert f"{schedule} cannot be read" in said
    assert f"--check needs what bench wrote into {path.with_suffix('.files')}" in said
    instance.unlink()
    assert f"{instance} cannot be read" in refused(path)


def test_a_changed_file_is_named(path: Path) -> None:
    for file in files(path):
        data = file.read_bytes()
        file.write_bytes(data + b"\n")
        assert f"{file} has another checksum than its name" in refused(path)
        file.write_bytes(data)
    assert checked(path).schedules == 1


def put(path: Path, data: bytes) -> None:
    """Let the run have another schedule, under the name that it should have."""
    name = sha256(data).hexdigest()
    with Results(path) as results:
        results.schedule_file(name).write_bytes(data)
    change(path, schedules=json.dumps([name]))


def test_a_broken_schedule_is_named(path: Path) -> None:
    put(path, b"{")
    assert "is not a schedule" in refused(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"makespan_ns": 1}, "its schedule is not valid: makespan_ns is 1"),
        ({"instance": "another"}, "its schedule is not valid: the schedule is for instance 'another'"),
        ({"instance_sha256": "0" * 64}, "its schedule is not valid: instance_sha256 is not"),
        ({"residences": ()}, "its schedule is not valid: "),
    ],
)
def test_a_schedule_that_is_not_valid_is_refused(changes: dict[str, Any], said: str, path: Path) -> None:
    instance, schedule = files(path)
    put(path, encode(replace(read_schedule(schedule, read_instance(instance)), **changes)))
    assert said in refused(path)


def test_only_checksums_name_files(path: Path) -> None:
    change(path, schedules='["../../secret"]')
    assert "'../../secret' is no checksum" in refused(path)


def test_a_pipe_is_not_waited_for(path: Path) -> None:
    _, schedule = files(path)
    schedule.unlink()
    os.mkfifo(schedule)
    assert f"{schedule} is no file" in refused(path)


# --- bounds -------------------------------------------------------------------------------------------


@pytest.fixture
def claimed(tmp_path: Path) -> Path:
    """A run that is not optimal, and says that it is, by a bound of its own."""
    path = swept(tmp_path, CHAIN.replace("chain2-s1", "chain2-sizes-s1"))
    with sqlite3.connect(path) as database:
        database.execute(
            "UPDATE runs SET lower_bound_ns = iteration_ns, status = 'optimal', bound_by = 'mine'"
        )
    return path


def test_a_claimed_bound_is_not_certified(claimed: Path) -> None:
    found = checked(claimed)
    (run,) = found.runs
    assert (found.schedules, found.proven, found.unproven) == (1, 0, 1)
    assert (run.found.certified, run.found.bound_by, run.found.gap) == (False, "mine", 0)


def test_by_a_protocol_a_claimed_bound_does_not_count(claimed: Path) -> None:
    by_protocol(claimed)
    (run,) = checked(claimed).runs
    assert (run.found.certified, run.found.status) == (True, "feasible")
    assert run.found.gap > 0
    for check, solved in ((False, "1,1,1"), (True, "1,0,0")):
        with Results(claimed) as results:
            write_report(results, claimed.parent / "r", check=check)
        assert f"modnn,1,0,{solved}," in (claimed.parent / "r" / "standing.csv").read_text()


def test_a_certificate_is_proven_before_it_counts(claimed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "best_bound", lambda instance, **_: compute_bound(instance))
    file, _ = files(claimed)
    instance = read_instance(file)
    known = best_bound(instance).certificate
    assert known is not None
    assert known.lower_bound_ns > compute_bound(instance).lower_bound_ns
    change(claimed, lower_bound_ns=known.lower_bound_ns, status="feasible")
    assert checked(claimed).proven == 0
    proof = replace(known, instance_sha256=file.name.split(".")[0])
    place = claimed.with_suffix(".files") / "certificates" / "mine.certificate.json"
    place.parent.mkdir()
    place.write_bytes(encode(sealed(proof)))
    assert checked(claimed).proven == 1
    place.write_bytes(encode(sealed(replace(proof, lower_bound_ns=10**12))))
    assert f"{place} proves nothing: its figures prove a bound of" in refused(claimed)
    place.write_bytes(encode(replace(proof, lower_bound_ns=10**12)))
    assert f"{place} proves nothing: the checksum is not" in refused(claimed)
    place.write_bytes(b"{")
    assert f"{place} is not a certificate" in refused(claimed)
