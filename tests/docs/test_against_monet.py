"""The comparison with MONeT's published schedules: its reading of their files, its runs, its table."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from against_monet import (
    BEGIN,
    DATA,
    END,
    PUBLISHED,
    jobs,
    main,
    report,
    wide,
)
from monet_files import Published, read_folder, read_network, read_program, told_by
from pebbler.benchmark.output.machine import Origin
from pebbler.benchmark.sweeps.jobs import Found
from pebbler.benchmark.sweeps.results import Run, read_latest
from pebbler.instances.errors import PebblerError
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.validate.schedule import MemoryModel

from ..benchmark.swept import ABOUT

SMALL = tiny_instance(0)

LOG = """Explored 1 nodes (2 simplex iterations) in 3.50 seconds
Thread count was 12 (of 48 available processors)
Best objective -, best bound 1.640000000000e+03, gap -

Explored 9106 nodes (37189075 simplex iterations) in 86400.57 seconds
Thread count was 12 (of 48 available processors)

Best objective 1.700000000000e+03, best bound 1.650400000000e+03, gap 2.9%

Explored 0 nodes (0 simplex iterations) in 4.25 seconds
Thread count was 1 (of 48 available processors)

Best objective 1.800000000000e+03, best bound -, gap -

Explored 0 nodes (0 simplex iterations) in 5.25 seconds
"""


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Classes with the names of theirs, which cannot be imported where their files are read."""
    module = ModuleType("monet.solver_info")

    class SolverInfo:
        pass

    class Node:
        class D:
            pass

    for kind, name in ((SolverInfo, "SolverInfo"), (Node, "Node"), (Node.D, "Node.D")):
        kind.__module__, kind.__qualname__ = module.__name__, name
    module.SolverInfo, module.Node = SolverInfo, Node  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "monet", ModuleType("monet"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return SimpleNamespace(SolverInfo=SolverInfo, Node=Node)


def written(theirs: Any, path: Path) -> Path:
    """A schedule of theirs: a chain of four operators with a loss and its gradients."""
    information = theirs.SolverInfo()
    information.model_name, information.bs = "small", 4
    information.nodes = {}
    for i, (size, time) in enumerate(((512, 2.5), (512, 1.0), (512, 1.0), (0, 0.004))):
        node = theirs.Node()
        node.mem, node.fixed_mem = np.int64(size * 1024), 100 * 1024 + i
        node.workspace_compute = [np.float32(time)]
        node.inner = theirs.Node.D
        information.nodes[i] = node
    information.edge_list = [(0, 1, 0), (1, 2, 0), (0, 2, 0), (2, 3, 0)]
    path.write_bytes(pickle.dumps([information, theirs.Node()], protocol=3))
    return path


@pytest.fixture
def zoo(theirs: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "zoo" / "checkmate_small_4_24hr"
    folder.mkdir(parents=True)
    written(theirs, folder / "checkmate_solution_small_4_normal_1.50.pkl")
    (folder / "checkmate_small_4_01.5").write_text(LOG)
    (folder / "checkmate_small_normal_2_new").write_text("Model is infeasible")
    (tmp_path / "zoo" / "checkmate_empty").mkdir()
    return tmp_path / "zoo"


def run(
    name: str, makespan: int | None, bound: int, seconds: float = 60.0, memory: MemoryModel = "paged"
) -> Run:
    setting = jobs({name: SMALL}, seconds)[0].setting
    return Run(
        fingerprint=f"{name} {seconds} {memory}",
        about=dataclasses.replace(ABOUT, problem=name),
        seed=0,
        setting=dataclasses.replace(setting, memory_model=memory),
        found=Found(
            status="unknown" if makespan is None else "feasible",
            stopped_by="time limit",
            iteration_ns=makespan,
            lower_bound_ns=bound,
            bound_by="flow-recompute-lp-highs",
            certified=True,
            trace=[] if makespan is None else [(1.0, 2 * makespan, 1), (2.5, makespan, bound)],
        ),
        wall_seconds=None,
        date="2026-01-02",
        origin=Origin("a machine", "3.11.7", {"pebbler": "0.1.0"}, None),
    )


def test_a_schedule_gives_their_graph_in_their_units(theirs: Any, tmp_path: Path) -> None:
    network = read_network(written(theirs, tmp_path / "a.pkl"))
    assert (network.name, network.resident) == ("small/4", 100)
    assert [block.bytes for block in network.instance.blocks] == [512, 512, 512]
    assert [task.algorithms[0].duration_ns for task in network.instance.tasks] == [250, 100, 100, 0]
    assert network.instance.tasks[2].inputs == (0, 1)


def test_a_log_gives_the_best_that_it_says() -> None:
    assert told_by(LOG) == Published(1700, 1650, 86400.57, 12)
    unsolved = LOG.replace("1.700000000000e+03", "-").replace("1.800000000000e+03", "-")
    assert told_by(unsolved) == Published(None, 1650, 86400.57, 12)
    assert (
        told_by("Explored 0 in 1.0 seconds\nThread count was 1\nBest objective -, best bound -, gap -")
        is None
    )
    assert told_by("Academic license") is None


def test_a_folder_gives_problems_under_the_budgets_of_its_logs(zoo: Path) -> None:
    problems, published = read_folder(zoo)
    assert list(problems) == list(published) == ["small/4, 1.5 GB"]
    (instance,) = problems.values()
    assert instance.budget_bytes == 1.5 * 1024 * 1024 - 100
    assert [task.algorithms[0].duration_ns for task in instance.tasks] == [250, 100, 100, 0]
    assert len(instance.blocks) == 3  # what has no bytes is no block
    assert all(task.recomputable for task in instance.tasks)


def program(theirs: Any, path: Path, mode: str, **changes: Any) -> Path:
    """A schedule of MONeT's program in a mode: convolution, ReLU, mask, convolution, loss, and gradients."""
    rows = [  # operator, megabytes, fixed megabytes, what it reads, workspaces in megabytes, milliseconds
        ("aten::_convolution", 8, 100, [[]], [1.0, 0.0, 3.0], [2.0, 3.5, -1000.0]),
        ("aten::relu_", 8, 100, [[0]], [0.0, 0.0], [1.0, 1.5]),
        ("int::mask", 1, 100, [[1]], [2.0], [0.5]),
        ("aten::_convolution", 4, 100, [[1]], [0.0], [2.0]),
        ("loss::loss", 4, 100, [[3]], [0.0], [0.0]),
        ("aten::_convolution_param_grad", 0, 130, [[1, 4]], [0.0], [1.0]),
        ("aten::_convolution_ip_grad", 8, 130, [[4]], [0.0], [1.0]),
        ("aten::relu__ip_grad", 8, 130, [[0, 6], [1, 6], [2, 6]], [-8.0, -8.0, -7.0], [1.0, 1.0, 1.25]),
        ("aten::_convolution_param_grad", 0, 160, [[7]], [0.0], [1.0]),
    ]
    information = theirs.SolverInfo()
    information.model_name, information.bs, information.mode, information.loss = "small", 4, mode, 4
    information.conv_list, information.inplace_list = {0: 0}, {1: 0, 2: 0}
    information.nodes = {}
    for i, (op, size, fixed, args, workspaces, times) in enumerate(rows):
        node = theirs.Node()
        node.op, node.args = op, args
        node.mem, node.fixed_mem = np.int64(size * 2**20), np.int64(fixed * 2**20)
        node.workspace_mem, node.workspace_compute = workspaces, times
        node.recompute_workspace_mem, node.recompute_workspace_compute = list(workspaces), list(times)
        node.inplace_workspace_mem, node.inplace_workspace_compute = {
            1: ([-8.0, -8.0], [0.9, 0.9]),
            2: ([-6.0], [0.4]),
        }.get(i, (workspaces, times))
        node.intermediates = [(1, 2)] if i == 1 else []
        for key, value in changes.get(f"node_{i}", {}).items():
            setattr(node, key, value)
        information.nodes[i] = node
    path.write_bytes(pickle.dumps([information, theirs.Node()], protocol=3))
    return path


def test_a_schedule_of_monet_gives_its_program(theirs: Any, tmp_path: Path) -> None:
    """What operators overwrite, make beside, read in place of each other, and what stays to the end."""
    network = read_program(program(theirs, tmp_path / "a.pkl", "conv_multiway_newnode"))
    assert network is not None
    assert (network.name, network.resident) == ("small/4 icmn", 100 * 1024)
    instance, kib = network.instance, 1024
    names = [block.name for block in instance.blocks]
    assert names == ["0", "1", "2", "3", "4", "5 kept", "6", "7", "8 kept"]
    assert [block.name for block in instance.blocks if block.finally_ == "device"] == ["5 kept", "8 kept"]
    assert [task.recomputable for task in instance.tasks] == [True] * 4 + [False] * 4
    convolution, relu, _, _, _, _, back, _ = instance.tasks
    assert [(a.duration_ns, a.workspace_bytes) for a in convolution.algorithms] == [(200, kib), (350, 0)]
    assert [
        (a.name, a.duration_ns, a.workspace_bytes, relu.makes(k), a.takes_over)
        for k, a in enumerate(relu.algorithms)
    ] == [
        ("apart", 100, 0, (1,), ()),
        ("apart, and 2", 150, 2 * kib, (1, 2), ()),
        ("in place", 90, 0, (1,), ((1, 0),)),
        ("in place, and 2", 130, 2 * kib, (1, 2), ((1, 0),)),
    ]
    assert [(back.reads(k), a.workspace_bytes, a.takes_over) for k, a in enumerate(back.algorithms)] == [
        ((0, 6), 0, ((7, 6),)),
        ((1, 6), 0, ((7, 6),)),
        ((2, 6), kib, ((7, 6),)),
    ]


def test_what_an_instance_cannot_say_is_left_out_or_refused(theirs: Any, tmp_path: Path) -> None:
    again = {"node_1": {"recompute_workspace_compute": [0.5, 1.5]}}
    assert read_program(program(theirs, tmp_path / "a.pkl", "multiway_newnode", **again)) is None
    several = {"node_1": {"intermediates": [(1, 2), (1, 2)]}}
    with pytest.raises(PebblerError, match="several things"):
        read_program(program(theirs, tmp_path / "a.pkl", "multiway_newnode", **several))


def test_a_folder_gives_problems_of_both_programs(theirs: Any, zoo: Path) -> None:
    place = zoo / "monet_small_4_24hr"
    place.mkdir()
    program(theirs, place / "solution_small_4_inplace_multiway_newnode_2.00.pkl", "multiway_newnode")
    program(theirs, place / "solution_small_4_inplace_multiway_newnode_3.00.pkl", "multiway_newnode")
    (place / "monet_small_imn_4_02.out").write_text(f"Memory budget  2.0  GB\n{LOG}")
    (place / "monet_small_im_4_03.out").write_text(f"Memory budget  3.0  GB\n{LOG}")
    problems, published = read_folder(zoo)
    assert list(problems) == list(published) == ["small/4, 1.5 GB", "small/4 imn, 2 GB"]
    assert problems["small/4 imn, 2 GB"].budget_bytes == 2 * 1024 * 1024 - 100 * 1024


def test_what_is_no_copy_of_theirs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="copy monet-schedules anew"):
        read_folder(tmp_path)
    broken = tmp_path / "a.pkl"
    broken.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(PebblerError, match="cannot be read"):
        read_network(broken)
    broken.write_bytes(b"")
    with pytest.raises(PebblerError, match="cannot be read"):
        read_network(broken)


def test_the_script_says_so_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--data", str(tmp_path / "data.sqlite")])
    assert "copy monet-schedules anew" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_nothing_of_a_file_is_executed(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "harm",)

    for harm in (Harm(), print, np.save):
        harmful = tmp_path / "a.pkl"
        harmful.write_bytes(pickle.dumps([harm, 2]))
        with pytest.raises(PebblerError, match="which is not read"):
            read_network(harmful)
    assert not (tmp_path / "harm").exists()


def test_problems_with_a_wide_gap_get_more_time() -> None:
    problems = {"a/1, 5 GB": SMALL, "a/1, 6 GB": SMALL}
    runs = [
        run("a/1, 5 GB", 120, 100),
        run("a/1, 6 GB", 100, 100),
        run("a/1, 6 GB", 150, 100, memory="contiguous"),
    ]
    assert list(wide(problems, runs)) == ["a/1, 5 GB"]


def test_the_table_puts_both_side_by_side() -> None:
    runs = [
        run("a/1, 5 GB", 1300, 1000),
        run("a/1, 5 GB", 1200, 1100, seconds=600.0),
        run("a/1, 5 GB", 1212, 1000, memory="contiguous"),
        run("a/1, 10 GB", 1001, 1000),
    ]
    published = {
        "a/1, 5 GB": Published(1250, 1150, 86400.4, 12),
        "a/1, 10 GB": Published(1000, 1000, 7.61, 48),
        "a/1, 7 GB": Published(None, 1, 1.0, 1),  # without a run
    }
    told = report(runs, published)
    assert "met or beaten in 1 of 2 problems, and its bound in 1." in told
    assert "The gap is 4.60% in the median and 9.09% at worst." in told
    lines = [line for line in told.splitlines() if line.startswith("| a/1")]
    assert [line.split(" | ")[0] for line in lines] == ["| a/1, 10 GB", "| a/1, 5 GB"]
    assert "| 1,250 | 1,150 | 86,400 s, 12 threads | 1,200 | 1,100 | 9.09% | 600 s | 2.5 s | +1.00% |" in told
    assert "| not met | none |" in told
    assert "MONeT's own program" not in told
    both = report(
        [*runs, run("a/1 im, 5 GB", 90, 90)], published | {"a/1 im, 5 GB": Published(90, 90, 1.0, 12)}
    )
    assert "**MONeT's own program.** Gurobi's value is met or beaten in 1 of 1 problems" in both


def test_the_page_is_what_the_data_say() -> None:
    page = Path("docs/against-others.md").read_text()
    published = msgspec.json.decode(PUBLISHED.read_bytes(), type=dict[str, Published])
    assert page.partition(BEGIN)[2].partition(END)[0] == report(read_latest(DATA), published)


def test_the_script_makes_runs_and_tells(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("against_monet.SHORT", 0.3)
    monkeypatch.setattr("against_monet.LONG", 0.3)
    data = tmp_path / "data.sqlite"
    main([str(zoo), "--data", str(data)])
    first = capsys.readouterr().out
    assert "met or beaten in 1 of 1 problems" in first
    main(["--data", str(data)])
    assert capsys.readouterr().out == first
