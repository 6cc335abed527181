"""Protocols: what is shipped, what a configuration means as one, and the kernel that times a machine."""

from __future__ import annotations

import inspect
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.benchmark.sweeps import kernel
from pebbler.benchmark.sweeps.config import (
    list_protocols,
    read_config,
    read_protocol,
    settings,
    shipped_protocol,
)
from pebbler.benchmark.sweeps.jobs import Found, Setting
from pebbler.benchmark.sweeps.protocol import Protocol
from pebbler.benchmark.sweeps.results import Results
from pebbler.instances.errors import DefectError, PebblerError

from ..swept import FEWER, SMALL, jobs_of, swept, write_config

BENCH = Path(__file__).parents[3] / "docs" / "data" / "bench.sqlite"
"""Results of the first version of the file's tables."""

RULES = '[protocol]\nsolved_gap = 0.01\novertime = "2s"\n'


def test_shipped_protocols_ask_for_what_there_is() -> None:
    assert list_protocols() == ("2026",)
    for name in list_protocols():
        config = read_protocol(name)
        assert config.protocol is not None
        for sweep in config.sweep:
            assert all(setting.time_limit == 60.0 for setting in settings(sweep))


def test_a_shipped_protocol_is_found_by_its_title() -> None:
    for config in (read_protocol("2026"), read_protocol("2026", suite="tiny")):
        assert shipped_protocol(config.title) == config
    assert shipped_protocol("a protocol of mine") is None


def test_a_protocol_may_have_another_suite_and_other_methods() -> None:
    own, other = read_protocol("2026"), read_protocol("2026", suite="tiny", methods=["modnn"])
    assert {sweep.suites for sweep in own.sweep} == {("pebbler-2026",)}
    assert other == replace(
        own,
        title="Protocol 2026, on suite tiny",
        sweep=(replace(own.sweep[0], suites=("tiny",), methods=("modnn",)),),
    )
    with pytest.raises(PebblerError, match="there is no protocol '1999'; there are 2026"):
        read_protocol("1999")


def test_a_method_of_another_instance_is_left_out(tmp_path: Path) -> None:
    text = SMALL.replace("chain2-s?", "chain2-*s0").replace('"modnn", ', '"flow-recompute", "modnn", ')
    plain = jobs_of(write_config(tmp_path, text))
    ruled = jobs_of(write_config(tmp_path, text + RULES))
    left_out = {job.about.problem for job in plain if job not in ruled}
    assert {job.setting.method for job in plain if job not in ruled} == {"flow-recompute"}
    assert "tiny/chain2-recompute-s0" not in left_out
    assert "tiny/chain2-s0" in left_out


def test_solvers_are_settings(tmp_path: Path) -> None:
    text = FEWER.replace("s[01]", "s0").replace('"modnn", "vdnn-all-m"', '"milp"')
    (plain,) = jobs_of(write_config(tmp_path, text))
    both = jobs_of(write_config(tmp_path, text + 'solvers = ["highs", "scip"]\n'))
    assert plain.setting.solver is UNSET
    assert [job.setting.solver for job in both] == ["highs", "scip"]
    assert len({job.fingerprint for job in (plain, *both)}) == 3


@pytest.mark.slow
def test_solvers_that_are_not_there_are_refused(tmp_path: Path) -> None:
    text = FEWER.replace("s[01]", "s0").replace('"modnn", "vdnn-all-m"', '"milp"')
    with pytest.raises(PebblerError, match="linear solver 'hihgs' is not available"):
        jobs_of(write_config(tmp_path, text + 'solvers = ["hihgs"]\n'))


@pytest.mark.parametrize(
    "rules", [RULES.replace("0.01", "-1"), RULES.replace("2s", "soon"), RULES + "a = 1\n"]
)
def test_wrong_rules_are_refused(rules: str, tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="is not a configuration"):
        read_config(write_config(tmp_path, SMALL + rules))


def test_a_run_counts_within_its_limit_and_the_overtime() -> None:
    rules, limited = Protocol(solved_gap=0.01, overtime="2s"), Setting("modnn", time_limit=10.0)

    def after(seconds: float | None, status: str = "feasible") -> Found:
        return Found(status=status, stopped_by="", solve_seconds=seconds)

    ends = [rules.in_time(limited, after(seconds)) for seconds in (1.0, 12.0, 12.1, None)]
    assert ends == [True, True, False, False]
    assert rules.in_time(Setting("modnn"), after(99.0))
    assert rules.solves(limited, after(1.0), 0.01)
    assert not rules.solves(limited, after(1.0), 0.011)
    assert not rules.solves(limited, after(12.1), 0.0)
    assert not rules.solves(limited, after(1.0, "error"), 0.0)


def test_a_file_has_runs_by_one_protocol(tmp_path: Path) -> None:
    rules = Protocol(solved_gap=0.01, overtime="2s")
    with Results(tmp_path / "a.sqlite", write=True) as results:
        assert results.protocol() is None
        results.set_protocol("one", rules)
        results.set_protocol("one", rules)
        assert results.protocol() == ("one", rules)
        for title, other in (("two", rules), ("one", replace(rules, overtime="3s")), ("one", None)):
            with pytest.raises(PebblerError, match=r"a\.sqlite has runs by one; give another file"):
                results.set_protocol(title, other)
    with Results(swept(tmp_path, FEWER), write=True) as results:
        results.set_protocol("any", None)
        with pytest.raises(PebblerError, match="has runs by no protocol"):
            results.set_protocol("one", rules)


@pytest.mark.parametrize("rules", ["NULL", "'{}'", "'{'", "1"])
def test_damaged_rules_are_a_sentence(rules: str, tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with Results(path, write=True) as results:
        results.set_protocol("one", Protocol(solved_gap=0.01, overtime="2s"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE protocols SET rules = {rules}")
    with Results(path) as results, pytest.raises(PebblerError, match=r"a\.sqlite is damaged"):
        results.protocol()


def test_results_of_the_first_version_are_read_and_extended(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    shutil.copyfile(BENCH, path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
    with Results(path) as results:
        before = results.runs()
    assert {(run.setting.solver, run.kernel_seconds) for run in before} == {(UNSET, None)}
    changed = replace(before[0], kernel_seconds=0.5, fingerprint="new")
    with Results(path, write=True) as results:
        results.add(changed)
        assert results.runs() == [*before, changed]
    with Results(path) as results:
        assert results.runs() == [*before, changed]
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)


# --- the kernel -----------------------------------------------------------------------------------------

SOURCE = "fe8d73a12336c06109b9c939d42540c650faab0a3ba296329e6cabab92c8a112"
"""SHA-256 of the source of the work, which is never changed."""


def test_the_work_is_what_it_always_was() -> None:
    assert kernel.work() == kernel.RESULT
    assert sha256(inspect.getsource(kernel.work).encode()).hexdigest() == SOURCE


def test_the_time_is_the_median_of_some_tries() -> None:
    clock = iter([0.0, 9.0, 10.0, 11.0, 20.0, 23.0, 30.0, 32.0, 40.0, 45.0])
    assert kernel.measure_kernel(lambda: kernel.RESULT, lambda: next(clock)) == 3.0
    assert list(clock) == []


def test_a_machine_that_computes_something_else_is_a_defect() -> None:
    with pytest.raises(DefectError, match="the kernel that times this machine gives 000000000000 and not"):
        kernel.measure_kernel(lambda: "0" * 64)
