"""The three strategies of Layrub, on what the paper's figures show.

The text at hand has the figures' captions only: every example is a reconstruction, with sizes of our own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import msgspec
import pytest

from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.papers.layrub import has_mask, planned
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import with_budget
from pebbler.instances.workload import Workload
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

from ...samples import crossed

STRATEGIES = ("layrub-intra", "layrub-inter", "layrub-hybrid")
SIZE = 8


def network(depth: int, *, compute_ns: int = 10, copy_ns: int = 5) -> Instance:
    """Layers 1 to `depth`, with data of one size, as in Fig. 4, in the coordinated sequence.

    F1 reads Y0 and makes Y1, and so on; the loss reads the last Y and makes its gradient; backward, Pi (the
    gradient of the weights) reads Y(i-1) and dYi, then Gi reads dYi and makes dY(i-1). Y0 is made by a task.
    """
    names = [f"Y{i}" for i in range(depth + 1)] + [f"dY{i}" for i in range(1, depth + 1)]
    index = {name: d for d, name in enumerate(names)}
    steps: list[tuple[str, str, str]] = [("data", "", "Y0")]
    steps += [(f"F{i}", f"Y{i - 1}", f"Y{i}") for i in range(1, depth + 1)]
    steps += [("loss", f"Y{depth}", f"dY{depth}")]
    for i in range(depth, 0, -1):
        steps.append((f"P{i}", f"Y{i - 1} dY{i}", ""))
        if i > 1:
            steps.append((f"G{i}", f"dY{i}", f"dY{i - 1}"))
    at = {name: k for k, (name, _, _) in enumerate(steps)}
    layers = [{"name": "data", "kind": "data", "forward": [0], "backward": []}]
    layers += [
        {
            "name": str(i),
            "kind": "conv",
            "forward": [at[f"F{i}"]],
            "backward": [at[f"P{i}"], *([at[f"G{i}"]] if i > 1 else [])],
        }
        for i in range(1, depth + 1)
    ]
    layers.append({"name": "loss", "kind": "softmax", "forward": [], "backward": [at["loss"]]})
    return Instance(
        name="layers",
        engines="duplex",
        budget_bytes=1000,
        resident_bytes=0,
        alignment_bytes=SIZE,
        blocks=tuple(Block(name=name, bytes=SIZE, offload_ns=copy_ns, prefetch_ns=copy_ns) for name in names),
        tasks=tuple(
            Task(
                name=name,
                inputs=tuple(index[x] for x in inputs.split()),
                outputs=tuple(index[x] for x in outputs.split()),
                algorithms=(Algorithm(name="only", duration_ns=compute_ns, workspace_bytes=0),),
            )
            for name, inputs, outputs in steps
        ),
        meta={"layers": layers},
    )


def solve(instance: Instance, method: str, memory: Literal["contiguous", "paged"] = "contiguous") -> Schedule:
    schedule = find_method(method).call(instance, Limits(memory=memory)).schedule
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    return schedule


def offsets(instance: Instance, schedule: Schedule) -> dict[str, list[int | None]]:
    """Where each block lies, in the order of its stays."""
    found: dict[str, list[int | None]] = {}
    for residence in schedule.residences:
        if residence.block is not None:
            found.setdefault(instance.blocks[residence.block].name, []).append(residence.offset)
    return found


def timeline(instance: Instance, schedule: Schedule) -> dict[str, tuple[int, int]]:
    words = {"offload": "OFF", "prefetch": "PRE"}
    entries = [
        (
            instance.tasks[o.task].name
            if o.task is not None
            else f"{words[o.kind]}({instance.blocks[o.block or 0].name})",
            (o.start_ns, o.end_ns),
        )
        for o in schedule.operations
    ]
    assert len(dict(entries)) == len(entries), "something is copied twice"
    return dict(entries)


# --- Fig. 5: intra-layer space reuse --------------------------------------------------------------------


def test_figure_5_a_gradient_takes_the_place_of_its_data() -> None:
    """A reconstruction: the data serves the gradient of the weights, then the gradient overwrites it."""
    instance = network(3)
    schedule = solve(instance, "layrub-intra")
    where = offsets(instance, schedule)
    assert where["dY1"] == where["Y1"]
    assert where["dY2"] == where["Y2"]
    assert where["dY3"] != where["Y3"]  # the loss reads what it would overwrite
    assert len({tuple(x) for name, x in where.items() if name[0] == "Y"}) == 4
    assert {o.kind for o in schedule.operations} == {"run"}
    assert schedule.makespan_ns == 10 * len(instance.tasks)


def test_figure_5_half_of_what_a_wide_layer_takes() -> None:
    """Caffe has a place for every gradient; here only the last gradient has one of its own."""
    deep = network(50)
    assert solve(deep, "caffe-rule").peak_bytes == (51 + 50) * SIZE
    assert solve(deep, "layrub-intra").peak_bytes == (51 + 1) * SIZE


# --- Fig. 6: inter-layer space reuse and data migration -------------------------------------------------


def test_figure_6() -> None:
    """A reconstruction with copies that take half as long as a layer: all of them hide."""
    instance = network(3)
    assert timeline(instance, solve(instance, "layrub-inter")) == {
        "data": (0, 10),
        "F1": (10, 20),
        "OFF(Y0)": (10, 15),  # with the layer that refers to it last
        "F2": (20, 30),
        "OFF(Y1)": (20, 25),
        "F3": (30, 40),
        "OFF(Y2)": (30, 35),
        "loss": (40, 50),
        "PRE(Y2)": (40, 45),  # one layer ahead
        "P3": (50, 60),
        "G3": (60, 70),
        "PRE(Y1)": (50, 55),
        "P2": (70, 80),
        "G2": (80, 90),
        "PRE(Y0)": (70, 75),
        "P1": (90, 100),
    }


def test_figure_6_streams_are_synchronised_after_every_layer() -> None:
    instance = network(3, copy_ns=30)
    times = timeline(instance, solve(instance, "layrub-inter"))
    for copy, following in (("OFF(Y0)", "F2"), ("OFF(Y1)", "F3"), ("OFF(Y2)", "loss"), ("PRE(Y1)", "P2")):
        assert times[following][0] == times[copy][1]


def test_figure_6_a_constant_amount_of_memory_whatever_the_depth() -> None:
    """Two pairs of places: data and gradient of a layer, the gradient behind it, the data ahead."""
    for depth in (5, 10, 60):
        assert solve(network(depth), "layrub-inter").peak_bytes == 4 * SIZE


def test_data_that_several_layers_refer_to_leaves_with_the_last_of_them() -> None:
    """Reference counts: F3 reads Y0 once more, so it is offloaded there, and comes back for P3."""
    instance = network(5)
    tasks = list(instance.tasks)
    tasks[3] = msgspec.structs.replace(tasks[3], inputs=(*tasks[3].inputs, 0))
    times = timeline(
        forked := msgspec.structs.replace(instance, tasks=tuple(tasks)), solve(forked, "layrub-inter")
    )
    assert times["OFF(Y0)"][0] == times["F3"][0]


def test_loading_looks_one_layer_ahead_and_no_further() -> None:
    """Y0 could come back while P3 runs, but its turn is while P2 does."""
    instance = network(3, copy_ns=1)
    times = timeline(instance, solve(instance, "layrub-inter"))
    assert times["PRE(Y0)"][0] == times["P2"][0] > times["P3"][0]


# --- Fig. 7: the hybrid -----------------------------------------------------------------------------------


def test_figure_7_a_place_less_than_inter_layer_reuse() -> None:
    """A reconstruction: the loaded data and its gradient share a place (section 5.3.2: at least three)."""
    for depth in (5, 10, 60):
        instance = network(depth)
        schedule = solve(instance, "layrub-hybrid")
        assert schedule.peak_bytes == 3 * SIZE
        where = offsets(instance, schedule)
        for i in range(1, depth - 1):
            assert where[f"dY{i}"][0] == where[f"Y{i}"][-1]


def test_figure_7_takes_as_long_as_inter_layer_reuse() -> None:
    for copy in (1, 5, 30):
        instance = network(6, copy_ns=copy)
        times = [solve(instance, name).makespan_ns for name in ("layrub-inter", "layrub-hybrid")]
        assert times[0] == times[1]


def test_three_places_are_enough_and_two_are_not() -> None:
    instance = network(20)
    assert solve(with_budget(instance, 3 * SIZE), "layrub-hybrid").peak_bytes == 3 * SIZE
    with pytest.raises(Refusal, match="no place for"):
        find_method("layrub-hybrid").call(with_budget(instance, 2 * SIZE), Limits())


# --- the memory-efficient ReLU --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masked() -> Instance:
    return planned(Workload("vgg16", 4, "K40").instance("12GiB"))


def test_comparisons_plan_with_the_mask_where_there_are_relus(masked: Instance) -> None:
    assert has_mask(masked)
    assert planned(masked) is masked
    without = Workload("lstm_rnn:steps=2", 4, "K40").instance("12GiB")
    assert planned(without) is without
    paper = Workload("vgg16", 4, "K40", "paper").instance("12GiB")
    assert planned(paper) is paper


def test_the_mask_lets_gradients_take_the_place_of_what_relus_made(masked: Instance) -> None:
    plain = Workload("vgg16", 4, "K40").instance("12GiB")
    for instance, shared in ((plain, False), (masked, True)):
        where = offsets(instance, solve(instance, "layrub-intra"))
        assert (where["dY(conv4_1)"] == where["Y(conv4_1)"]) is shared


def test_signs_are_on_the_host_between_the_passes_and_nothing_else_is_copied(masked: Instance) -> None:
    schedule = solve(masked, "layrub-intra")
    for kind in ("offload", "prefetch"):
        copied = [masked.blocks[o.block or 0].name for o in schedule.operations if o.kind == kind]
        assert len(copied) == 15
        assert all(name.startswith("M(") for name in copied)


def test_a_region_holds_what_is_never_together(masked: Instance) -> None:
    """Places are few: each offset is used by many blocks."""
    schedule = solve(masked, "layrub-hybrid")
    stays = [r for r in schedule.residences if r.bytes > 2**20]
    assert len({r.offset for r in stays}) <= len(stays) / 4


# --- everything else ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "method", "memory", "engines", "graph"),
    crossed(
        *(("googlenet", "resnet18"), STRATEGIES, ("contiguous", "paged")),
        *(("duplex", "single"), ("paper", "executable")),
        of=5,
    ),
)
def test_networks_with_forks_joins_and_norms(
    name: str,
    method: str,
    memory: Literal["contiguous", "paged"],
    engines: str,
    graph: Literal["paper", "executable"],
) -> None:
    plain = Workload(name, 8, "K40", graph).instance("12GiB")
    instance = planned(msgspec.structs.replace(plain, engines=engines))
    schedule = solve(instance, method, memory)
    assert solve(instance, method, memory) == schedule


def test_copies_run_beside_one_layer_each() -> None:
    """No copy is issued before the layer that it runs beside: starts never precede that layer's start."""
    instance = network(6, copy_ns=7)
    schedule = solve(instance, "layrub-hybrid")
    runs = [o for o in schedule.operations if o.kind == "run"]
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(runs))
    starts = {o.start_ns for o in runs}
    assert all(o.start_ns in starts for o in schedule.operations)
