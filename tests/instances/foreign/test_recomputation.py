from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from pebbler.instances.errors import FormatError, PebblerError
from pebbler.instances.foreign.read import read_foreign
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget, unlimited_peak, with_budget
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.validate.check import check


def names(instance: Instance, blocks: tuple[int, ...]) -> list[str]:
    return [instance.blocks[d].name for d in blocks]


# --- node-link JSON -----------------------------------------------------------------------------------


def moccasin() -> dict[str, Any]:
    """A diamond a -> b, c -> d as MOCCASIN writes it: nodes known by name, ends of links 0 and 1."""
    costs = {7: (5, 1), 3: (4, 10), 5: (6, 20), 1: (2, 2)}
    return {
        "directed": True,
        "multigraph": False,
        "graph": {"name": "diamond", "order": [7, 5, 3, 1], "max_cost": 1},
        "nodes": [
            {"name": name, "out_cost": size, "duration": time, "param_cost": 1}
            for name, (size, time) in costs.items()
        ],
        "links": [{"0": 7, "1": 3}, {"0": 7, "1": 5}, {"0": 3, "1": 1}, {"0": 5, "1": 1}],
    }


def put(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "diamond.json"
    path.write_text(json.dumps(document, indent=2))
    return path


def test_moccasin_s_graphs(tmp_path: Path) -> None:
    instance = read_foreign(put(tmp_path, moccasin()))
    assert instance.name == "diamond"
    assert [task.name for task in instance.tasks] == ["7", "5", "3", "1"]
    assert [task.algorithms[0].duration_ns for task in instance.tasks] == [1, 20, 10, 2]
    assert [names(instance, task.inputs) for task in instance.tasks] == [[], ["7"], ["7"], ["5", "3"]]
    assert [names(instance, task.outputs) for task in instance.tasks] == [["7"], ["5"], ["3"], ["1"]]
    assert [block.bytes for block in instance.blocks] == [5, 6, 4, 2]
    assert all(task.recomputable for task in instance.tasks)
    assert all(
        (block.offload_ns, block.prefetch_ns, block.move_ns) == (None,) * 3 for block in instance.blocks
    )
    assert (instance.resident_bytes, instance.alignment_bytes) == (4, 1)
    assert unlimited_peak(instance) == 4 + 5 + 6 + 4


def test_what_networkx_writes_is_read(tmp_path: Path) -> None:
    graph = nx.DiGraph([("x", "y"), ("x", "z"), ("y", "z")])
    nx.set_node_attributes(graph, {"x": 3, "y": 4, "z": 5}, "cost_ram")
    nx.set_node_attributes(graph, 7, "cost_cpu")
    instance = read_foreign(put(tmp_path, nx.node_link_data(graph, edges="links")))
    assert [task.name for task in instance.tasks] == ["x", "y", "z"]
    assert instance.tasks[2].inputs == (0, 1)
    assert sum(task.algorithms[0].duration_ns for task in instance.tasks) == 21


def test_a_list_in_no_order_is_sorted(tmp_path: Path) -> None:
    document = moccasin()
    document["nodes"].reverse()
    del document["graph"]["order"]
    instance = read_foreign(put(tmp_path, document))
    assert [task.name for task in instance.tasks] == ["7", "5", "3", "1"]


def test_an_output_of_no_bytes_takes_no_memory(tmp_path: Path) -> None:
    document = moccasin()
    document["nodes"][0]["out_cost"] = 0
    instance = read_foreign(put(tmp_path, document))
    assert instance.tasks[0].outputs == instance.tasks[1].inputs == ()
    assert len(instance.blocks) == 3


def test_recomputing_pays_where_memory_is_short(tmp_path: Path) -> None:
    """x is needed by the first and the last of three; there is no room for it in between."""
    chain = {
        "nodes": [
            {"id": k, "out_cost": size, "duration": time}
            for k, (size, time) in enumerate([(1, 3), (1, 1), (3, 1), (1, 1)])
        ],
        "links": [{"source": a, "target": b} for a, b in [(0, 1), (1, 2), (2, 3), (0, 3)]],
    }
    instance = read_foreign(put(tmp_path, chain))
    assert (least_budget(instance), unlimited_peak(instance)) == (5, 5)
    document = {
        **chain,
        "nodes": [*chain["nodes"][:2], {"id": 2, "out_cost": 2, "duration": 1}, chain["nodes"][3]],
    }
    instance = read_foreign(put(tmp_path, document))
    best = {}
    for budget in (3, 4):
        schedule = brute_force(with_budget(instance, budget))
        best[budget] = None if schedule is None else schedule.makespan_ns
    assert best == {3: None, 4: 6}


def edit(*keys: Any) -> Callable[[dict[str, Any]], None]:
    *path, last, value = keys

    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path:
            place = place[key]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (edit("nodes", 1, {"out_cost": 1, "duration": 1}), "nodes[1]: it has no 'id'"),
        (edit("nodes", 1, "name", 7), "nodes[1]: node 7 is there twice"),
        (edit("nodes", 2, "out_cost", -1), "nodes[2], 'out_cost': expected `int` >= 0"),
        (edit("nodes", 2, "duration", "long"), "nodes[2], 'duration': expected `int`"),
        (edit("nodes", 2, "duration", None), "nodes[2], 'duration': expected `int`"),
        (edit("links", 0, {"0": 7}), "links[0]: it has no 'target'"),
        (edit("links", 0, "1", 8), "links[0]: there is no node 8"),
        (edit("graph", "order", [7, 5, 3]), "graph.order: it does not list every node once"),
        (edit("graph", "order", [1, 3, 5, 7]), "graph.order: it is not topological"),
        (edit("graph", "order", 5), "graph.order: it does not list"),
        (edit("nodes", []), "there is no node 7"),
        (edit("nodes", 5), "expected `array`"),
    ],
)
def test_a_bad_graph_is_refused_with_its_place(
    change: Callable[[dict[str, Any]], None], told: str, tmp_path: Path
) -> None:
    document = moccasin()
    change(document)
    with pytest.raises(FormatError) as caught:
        read_foreign(put(tmp_path, document))
    sentence = str(caught.value)
    assert told.lower() in sentence.lower()
    assert str(tmp_path / "diamond.json") in sentence
    assert "\n" not in sentence


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    document = moccasin()
    del document["graph"]["order"]
    document["links"].append({"0": 1, "1": 7})
    with pytest.raises(FormatError, match="links: they form a cycle"):
        read_foreign(put(tmp_path, document))


@pytest.mark.parametrize("data", [b"", b"[", b"[]", b"\xff", b"[" * 100_000, b'{"nodes": [], "links": []}'])
def test_bytes_of_neither_format(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(data)
    with pytest.raises(
        FormatError, match="is no config of G10, no graph in node-link JSON and no DTR log"
    ) as caught:
        read_foreign(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="cannot be read: No such file"):
        read_foreign(tmp_path / "none")


# --- DTR's logs ---------------------------------------------------------------------------------------


def line(instruction: str, **keys: Any) -> str:
    return json.dumps({"INSTRUCTION": instruction, **{key.upper(): value for key, value in keys.items()}})


def result(name: str, memory: int, alias: int = -1) -> list[str]:
    return [line("MEMORY", name=name, memory=str(memory)), line("ALIAS", name=name, alias=str(alias))]


LOG = [
    line("CONSTANT", name="before"),
    line("MEMORY", name="before", memory="99"),
    line("ANNOTATE", annotation="START"),
    line("CONSTANT", name="x0"),
    line("MEMORY", name="x0", memory="4"),
    line("CALL", name="conv", args=["x0"], result=["x1"], time="10"),
    *result("x1", 8),
    line("CALL", name="view", args=["x1"], result=["x2"], time="1"),
    *result("x2", 8, alias=0),
    line("MUTATE", name="relu_", args=["x2"], mutate=[0], time="3"),
    line("COPY", dst="x3", src="x2"),
    line("RELEASE", name="x1"),
    line("ANNOTATE", annotation="BACKWARD"),
    line("CALL", name="split", args=["x3", "x0"], result=["x4", "x5"], time="5"),
    *result("x4", 2),
    *result("x5", 0),
    line("RELEASE", name="x2"),
    line("COPY_FROM", dst="x3", src="x4"),
    line("RELEASE", name="x4"),
    line("RELEASE", name="nobody"),
]


def put_log(tmp_path: Path, lines: list[str]) -> Path:
    path = tmp_path / "step.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_dtr_s_logs(tmp_path: Path) -> None:
    instance = read_foreign(put_log(tmp_path, LOG))
    assert instance.name == "step"
    assert [(block.name, block.bytes) for block in instance.blocks] == [
        ("x0#0", 4),
        ("x1#1", 8),
        ("x2#3", 8),
        ("x4#4", 2),
    ]
    assert [task.name for task in instance.tasks] == ["conv#0", "view#1", "relu_#2", "split#3"]
    assert [task.algorithms[0].duration_ns for task in instance.tasks] == [10, 1, 3, 5]
    assert [task.inputs for task in instance.tasks] == [(0,), (1,), (1,), (2, 0)]
    assert [task.outputs for task in instance.tasks] == [(1,), (), (2,), (3,)]
    assert [block.initially for block in instance.blocks] == ["device", "absent", "absent", "absent"]
    kept = [block.name for block in instance.blocks if block.finally_ == "device"]
    assert kept == ["x0#0", "x4#4"], "x3 still means x4's tensor when the log ends"


def test_a_log_without_start_begins_at_once(tmp_path: Path) -> None:
    instance = read_foreign(put_log(tmp_path, [text for text in LOG if "START" not in text]))
    assert "before#0" in [block.name for block in instance.blocks]


def test_a_name_still_means_its_tensor_after_its_release(tmp_path: Path) -> None:
    instance = read_foreign(
        put_log(
            tmp_path,
            [
                line("CALL", name="a", args=[], result=["a"], time=1),
                *result("a", 2),
                line("RELEASE", name="a"),
                line("CALL", name="b", args=["a"], result=["b"], time=1),
                *result("b", 1),
            ],
        )
    )
    assert instance.tasks[1].inputs == (0,)
    assert [block.finally_ for block in instance.blocks] == ["anywhere", "device"]


def test_a_log_has_a_schedule_that_recomputes(tmp_path: Path) -> None:
    """a is read by the last operator; between there is no room for it beside b and c."""
    lines = [line("CALL", name="a", args=[], result=["a"], time=2), *result("a", 2)]
    for name, size, reads in (("b", 1, ["a"]), ("c", 2, ["b"]), ("d", 1, ["c"]), ("e", 1, ["a", "d"])):
        lines += [line("CALL", name=name, args=reads, result=[name], time=1), *result(name, size)]
    lines += [line("RELEASE", name=name) for name in "abcd"]
    instance = with_budget(read_foreign(put_log(tmp_path, lines)), 4)
    schedule = brute_force(instance)
    assert schedule is not None
    assert check(instance, schedule).valid
    assert schedule.makespan_ns == 6 + 2


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([line("JUMP", name="x")], "line 1: Invalid value 'JUMP'"),
        ([line("MEMORY", name="x", memory="1")], "line 1: there is no tensor 'x'"),
        ([line("CALL", name="f", args=["x"], result=[], time=1)], "line 1: there is no tensor 'x'"),
        ([line("CALL", name="f", args=[], result=["y"], time=-1)], "line 1: Expected `int` >= 0"),
        ([line("CALL", name="f", args=[], result=["y"])], "line 1: Object missing required field `TIME`"),
        ([line("CALL", name="f", args=[], result=["y"], time=1)], "tensor 'y#0' has no MEMORY line"),
        ([line("CONSTANT", name="c"), line("ALIAS", name="c", alias=0)], "line 2: 'c' is no result of"),
        (
            [line("CALL", name="f", args=[], result=["y"], time=1), *result("y", 1, alias=0)],
            "line 3: 'y' is a view of argument 0, which f#0 has not",
        ),
        ([line("MUTATE", name="f", args=[], mutate=[0], time=1)], "line 1: f changes an argument"),
        ([line("CONSTANT", name="c"), "{"], "line 2: Input data was truncated"),
    ],
)
def test_a_bad_log_is_refused_with_its_line(lines: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        read_foreign(put_log(tmp_path, lines))
    assert told.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)


# --- names --------------------------------------------------------------------------------------------


def test_names_become_distinct_and_printable(tmp_path: Path) -> None:
    graph = moccasin()
    for node, name in zip(graph["nodes"], ("relu", "relu", "", "a\nb" + "x" * 600), strict=True):
        node |= {"id": node["name"], "name": name}
    instance = read_foreign(put(tmp_path, graph))
    found = [task.name for task in instance.tasks]
    assert found[:3] == ["relu", "?", "relu#2"]
    assert found[3].startswith("a\\nbxxx")
    assert found == [block.name for block in instance.blocks]
    assert len(found[3]) <= 500


def test_a_graph_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, moccasin())
    path.write_text(path.read_text().replace('"out_cost": 5', '"out_cost": 6, "out_cost": 5'))
    with pytest.raises(FormatError, match="the key 'out_cost' is there twice"):
        read_foreign(path)
