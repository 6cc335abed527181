"""The comparison on MOCCASIN's graphs: its reading of their files, the others as programs, its table."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from against_moccasin import BEGIN, DATA, END, METHOD, PEERS, SECONDS, jobs, main, read_folder, report
from pebbler.benchmark.output.machine import Origin
from pebbler.benchmark.sweeps.jobs import Found
from pebbler.benchmark.sweeps.results import Run, read_latest
from pebbler.heuristics.methods import Limits
from pebbler.instances.errors import PebblerError
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.solver.solve import solve
from pebbler.validate.schedule import MemoryModel
from peers import on_cp_sat, on_highs

from ..benchmark.swept import ABOUT

THEIRS = """
from ortools.sat.python import cp_model
from rockmate.def_op import RunOp


class Saver(cp_model.CpSolverSolutionCallback):
    def on_solution_callback(self):
        self.StopSearch() if self.ObjectiveValue() < 1 else None


def flatten(nested):
    yield from nested


def remat(G, B, C, topo_order, timeout):
    assert dict(G.nodes(data="cost_ram")) == {0: 10485760, 1: 6291456, 2: 4194304, 3: 2097152}
    assert sorted(G.edges) == [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert (B, C, topo_order) == (18874368, 2, [0, 1, 2, 3]) or B == 16777216
    model = cp_model.CpModel()
    again = [model.NewBoolVar(f"again {k}") for k in G]
    model.AddAtLeastOne(flatten(again))
    model.Minimize(again[1])
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = 1e6
    assert solver.Solve(model) == cp_model.OPTIMAL
    assert solver.parameters.max_time_in_seconds <= timeout
    model.Proto().ClearField("objective")
    model.Minimize(cp_model.LinearExpr.WeightedSum(again, [1, 5, 5, 5]))
    assert solver.SolveWithSolutionCallback(model, Saver()) == cp_model.OPTIMAL
    assert solver.Value(again[0])
    print("what it prints")
    return {"schedule": [0, 1, 2, 0, 3]}
"""
"""A program that calls what theirs calls, for the graph below."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder like theirs: a graph where the first task must run again, and one of inference."""
    figures = ((10, 1), (6, 5), (4, 5), (2, 5))
    nodes = [{"id": k, "cost_ram": 1024 * size, "cost_cpu": time} for k, (size, time) in enumerate(figures)]
    links = [{"source": u, "target": v} for u, v in ((0, 1), (1, 2), (0, 3), (2, 3))]
    graph = {"graph": {"name": "net"}, "nodes": nodes, "links": links}
    folder = tmp_path / "moccasin"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "Net (MLSys)_1_train_nx.json").write_text(json.dumps(graph))
    (folder / "data" / "Net (MLSys)_1_test_nx.json").write_text("of inference")
    (folder / "src" / "moccasin").mkdir(parents=True)
    (folder / "src" / "moccasin" / "__init__.py").touch()
    (folder / "src" / "moccasin" / "cp.py").write_text(THEIRS)
    return folder


def test_problems_are_graphs_under_shares_of_their_peak(copy: Path) -> None:
    problems = read_folder(copy)
    assert [(name, problem.budget_bytes) for name, problem in problems.items()] == [
        ("Net, 90 %", 9),
        ("Net, 80 %", 8),
    ]
    assert [block.bytes for block in problems["Net, 90 %"].blocks] == [5, 3, 2, 1]


def test_without_an_order_tasks_run_as_networkx_sorts_them(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("against_moccasin.SHARES", (100,))
    file = copy / "data" / "Net (MLSys)_1_train_nx.json"
    graph = json.loads(file.read_bytes())
    graph["nodes"] = [{"id": k, "cost_ram": 8, "cost_cpu": k} for k in (0, 3, 1, 2)]
    graph["links"] = [{"source": u, "target": v} for u, v in ((0, 3), (3, 1), (0, 2))]
    for order, times in ((None, [0, 3, 2, 1]), ([0, 2, 3, 1], [0, 2, 3, 1])):
        graph["graph"] = {} if order is None else {"order": order}
        file.write_text(json.dumps(graph))
        tasks = next(iter(read_folder(copy).values())).tasks
        assert [task.algorithms[0].duration_ns for task in tasks] == times


def test_what_cannot_be_read_is_told(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PebblerError, match="has no graphs of training steps in data; copy moccasin anew"):
        read_folder(copy / "data")
    for text in ("", "[]", '{"graph": {}}', '{"graph": {}, "nodes": [], "links": [{"source": 1}]}'):
        (copy / "data" / "Bad (MLSys)_1_train_nx.json").write_text(text)
        with pytest.raises(PebblerError, match="Bad"):
            read_folder(copy)
    with pytest.raises(SystemExit):
        main([str(copy), "--data", str(copy / "data.sqlite")])
    assert "copy moccasin anew" in capsys.readouterr().err


@pytest.mark.parametrize("find", [on_highs, on_cp_sat])
@pytest.mark.parametrize("seed", range(3))
def test_checkmates_program_has_one_value_on_both_solvers(copy: Path, find: object, seed: int) -> None:
    assert callable(find)
    problem = read_folder(copy)["Net, 80 %"]
    limits = Limits(time_limit=10.0, seed=seed)
    assert list(find(problem, limits)) == [0, 1, 2, 0, 3]
    assert solve(problem, "checkmate").makespan_ns == 17


def run(
    name: str,
    makespan: int | None,
    bound: int,
    method: str = METHOD,
    seconds: float = 60.0,
    memory: MemoryModel = "paged",
) -> Run:
    setting = jobs({name: tiny_instance(0)}, SECONDS)[0].setting
    return Run(
        fingerprint=f"{name} {method} {memory}",
        about=dataclasses.replace(ABOUT, problem=name),
        seed=0,
        setting=dataclasses.replace(setting, method=method, memory_model=memory),
        found=Found(
            status="unknown" if makespan is None else "feasible",
            stopped_by="done" if seconds < SECONDS else "time limit",
            iteration_ns=makespan,
            ideal_ns=1000,
            lower_bound_ns=bound,
            trace=() if makespan is None else ((1.0, 2 * makespan, 1), (2.5, makespan, bound)),
            solve_seconds=seconds,
        ),
        wall_seconds=None,
        date="2026-01-02",
        origin=Origin("a machine", "3.11.7", {"pebbler": "0.1.0"}, None),
    )


def test_the_table_has_all_side_by_side() -> None:
    theirs, highs, _ = PEERS.values()
    told = report(
        [
            run("a, 80 %", 1100, 1099),
            run("a, 80 %", 1200, 1099, memory="contiguous"),
            run("a, 80 %", 1110, 0, theirs),
            run("a, 80 %", None, 0, highs),
            run("a, 90 %", 1050, 1050, seconds=4.0),
            run("a, 90 %", 1050, 0, theirs, 24.6),
            run("b, 90 %", 1300, 1000),
            run("b, 90 %", 1250, 0, highs, 59.0),
        ]
    )
    assert "Of 3 problems, pebbler's schedule is shorter than all others' in 1, as long as" in told
    assert "the best of them in 1, and longer in 1. It is proven to 0.01 % in 1." in told
    lines = [line for line in told.splitlines() if "| 10 |" in line]
    assert lines[0].startswith("| a, 90 % | 10 | +5.000% | +5.000% | 4.0 s | 2.5 s |  | +5.000% | 24.6 s |")
    assert lines[1].startswith(
        "| a, 80 % | 10 | +10.000% | +9.900% | limit | 2.5 s | +20.000% | +11.000% | limit | none | limit |"
    )
    assert lines[2].startswith(
        "| b, 90 % | 10 | +30.000% | +0.000% | limit | not met |  |  |  | +25.000% | limit |"
    )


def test_the_page_is_what_the_data_say() -> None:
    page = Path("docs/against-others.md").read_text()
    assert page.partition(BEGIN)[2].partition(END)[0] == report(read_latest(DATA))


@pytest.mark.slow
def test_the_script_runs_all_programs(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("against_moccasin.SECONDS", 30.0)
    monkeypatch.setattr("against_moccasin.SHARES", (90,))
    data = tmp_path / "data.sqlite"
    main([str(copy), "--data", str(data)])
    first = capsys.readouterr().out
    assert "Of 1 problems, pebbler's schedule is shorter than all others' in 0, as long as the best" in first
    assert first.count("+6.250%") == 6
    assert "limit" not in first
    main(["--data", str(data)])
    assert capsys.readouterr().out == first
