"""The static vDNN policies, on what the paper's figures show.

The text at hand has the figures' captions only: every example is a reconstruction, with sizes of our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

import msgspec
import pytest

from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.validate.check import check
from pebbler.validate.schedule import Operation, Schedule
from pebbler.validate.simulate import simulate

POLICIES = ("vdnn-all-m", "vdnn-all-p", "vdnn-conv-m", "vdnn-conv-p")


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a linear network, with the times of both passes and of the copies of its input X."""

    kind: str = "conv"
    forward_ns: int = 10
    backward_ns: int = 10
    offload_ns: int | None = 5
    prefetch_ns: int | None = 5


def algorithm(duration: int, workspace: int = 0) -> Algorithm:
    return Algorithm(name=f"{duration}/{workspace}", duration_ns=duration, workspace_bytes=workspace)


def block(name: str, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": 8, "offload_ns": None, "prefetch_ns": None, **keys})


def network(layers: list[Layer], pool: int = 1000) -> Instance:
    """Layers 1 to n after one that makes X1 in 1 ns: F1 reads X1 and makes X2, ..., B1 reads X1 and G2.

    Everything is 8 bytes large; the gradients G cannot be copied.
    """
    n = len(layers)
    copies = [(layer.offload_ns, layer.prefetch_ns) for layer in layers]
    blocks = [
        block(f"X{i}", offload_ns=out, prefetch_ns=back) for i, (out, back) in enumerate(copies, start=1)
    ]
    blocks += [block(f"X{n + 1}"), *(block(f"G{i}") for i in range(1, n + 1))]
    index = {b.name: d for d, b in enumerate(blocks)}

    def task(name: str, duration: int, inputs: list[str], output: str) -> Task:
        return Task(
            name=name,
            inputs=tuple(index[x] for x in inputs),
            outputs=(index[output],),
            algorithms=(algorithm(duration),),
        )

    tasks = [task("data", 1, [], "X1")]
    tasks += [
        task(f"F{i}", layer.forward_ns, [f"X{i}"], f"X{i + 1}") for i, layer in enumerate(layers, start=1)
    ]
    tasks += [
        task(f"B{i}", layers[i - 1].backward_ns, [f"X{i}", f"X{n + 1}" if i == n else f"G{i + 1}"], f"G{i}")
        for i in range(n, 0, -1)
    ]
    named = [
        {"name": str(i), "kind": layer.kind, "forward": [i], "backward": [2 * n + 1 - i]}
        for i, layer in enumerate(layers, start=1)
    ]
    return Instance(
        name="linear",
        engines="duplex",
        budget_bytes=pool,
        resident_bytes=0,
        alignment_bytes=8,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
        meta={"layers": [{"name": "data", "kind": "data", "forward": [0], "backward": []}, *named]},
    )


def solve(instance: Instance, method: str = "vdnn-all-m") -> Schedule:
    schedule = find_method(method).call(instance, Limits()).schedule
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    return schedule


def timeline(instance: Instance, schedule: Schedule) -> dict[str, tuple[int, int]]:
    """Start and end of every run by its task's name, and of copies as OFF(block) and PRE(block)."""
    words = {"offload": "OFF", "prefetch": "PRE"}

    def name(o: Operation) -> str:
        if o.task is not None:
            return instance.tasks[o.task].name
        assert o.block is not None
        return f"{words[o.kind]}({instance.blocks[o.block].name})"

    entries = [(name(o), (o.start_ns, o.end_ns)) for o in schedule.operations]
    assert len({entry for entry, _ in entries}) == len(entries), "something is copied twice"
    return dict(entries)


def copied(instance: Instance, schedule: Schedule, kind: str) -> list[str]:
    """Names of the blocks that operations of a kind copy, in order."""
    return [
        instance.blocks[o.block].name for o in schedule.operations if o.kind == kind and o.block is not None
    ]


# --- Fig. 9: performance effect of offload and prefetch ---------------------------------------------------


@pytest.fixture
def figure_9() -> Instance:
    """Copies of X1 are slow (25) and hide behind nothing; those of X2 are fast (6); the layers take 10."""
    return network([Layer(offload_ns=25, prefetch_ns=25), Layer(offload_ns=6, prefetch_ns=6), Layer()])


@pytest.mark.parametrize("method", POLICIES)
def test_figure_9(figure_9: Instance, method: str) -> None:
    """A reconstruction with sizes of our own; section III-B."""
    assert timeline(figure_9, solve(figure_9, method)) == {
        "data": (0, 1),
        "F1": (1, 11),
        "OFF(X1)": (1, 26),  # with the same layer's forward computation
        "F2": (26, 36),  # stalled until the offload is complete
        "OFF(X2)": (26, 32),  # hidden
        "F3": (36, 46),  # not delayed
        "B3": (46, 56),
        "PRE(X2)": (46, 52),  # in the reverse order of the offloads, with the layer after
        "B2": (56, 66),
        "PRE(X1)": (56, 81),
        "B1": (81, 91),  # stalled until the prefetch is finalized
    }


def test_figure_9_baseline(figure_9: Instance) -> None:
    """The baseline can launch the second layer once the first is complete."""
    schedule = solve(figure_9, "network-wide")
    assert timeline(figure_9, schedule)["F2"] == (11, 21)
    assert schedule.makespan_ns == 61


def test_the_synchronisation_is_in_the_program_and_not_in_the_times(figure_9: Instance) -> None:
    """However slow a copy, the next layer's computation starts after it: section III-B."""
    schedule = solve(figure_9)
    by_name = {
        name: i for i, name in enumerate(timeline(figure_9, schedule))
    }  # positions in the list of operations
    for copy, following in (("OFF(X1)", "F2"), ("OFF(X2)", "F3"), ("PRE(X2)", "B2"), ("PRE(X1)", "B1")):
        durations = [1] * len(schedule.operations)
        durations[by_name[copy]] = 1000
        starts, ends = simulate(figure_9, schedule, durations)
        assert starts[by_name[following]] >= ends[by_name[copy]] >= 1000


def test_a_layer_that_copies_nothing_is_not_synchronised() -> None:
    """X2 stays; the slow offload of X1 stalls F2 and nothing later."""
    instance = network([Layer(offload_ns=25), Layer(offload_ns=None), Layer(), Layer()])
    times = timeline(instance, solve(instance))
    assert times["F2"] == (26, 36)
    assert times["F3"][0] == times["F2"][1]
    assert "OFF(X2)" not in times


def test_memory_of_the_offloaded_input_serves_the_next_layer() -> None:
    """X, its layer's output and what is fetched or made beside them: four places are enough for any depth.

    Keeping all would take 9 places.
    """
    deep = network([Layer() for _ in range(8)], pool=4 * 8)
    assert solve(deep).peak_bytes <= 4 * 8
    with pytest.raises(Refusal, match="no place for"):
        find_method("network-wide").call(deep, Limits())


# --- Fig. 3: a fork, and reference counts ---------------------------------------------------------------


@pytest.fixture
def figure_3() -> Instance:
    """Layers 2 and 3 both read Y1, the output of layer 1; layer 4 joins them."""
    names = ("X1", "Y1", "Y2", "Y3", "Y4", "G4", "G3", "G2", "G1")
    index = {name: d for d, name in enumerate(names)}
    blocks = tuple(
        block(name, offload_ns=4, prefetch_ns=4) if name[0] in "XY" else block(name) for name in names
    )
    reads_and_makes = {
        "data": ("", "X1"),
        "F1": ("X1", "Y1"),
        "F2": ("Y1", "Y2"),
        "F3": ("Y1", "Y3"),
        "F4": ("Y2 Y3", "Y4"),
        "B4": ("Y2 Y3 Y4", "G4"),
        "B3": ("Y1 G4", "G3"),
        "B2": ("Y1 G4 G3", "G2"),
        "B1": ("X1 G2", "G1"),
    }
    layers = [{"name": str(i), "kind": "conv", "forward": [i], "backward": [9 - i]} for i in range(1, 5)]
    return Instance(
        name="fork",
        engines="duplex",
        budget_bytes=1000,
        resident_bytes=0,
        alignment_bytes=8,
        blocks=blocks,
        tasks=tuple(
            Task(
                name=name,
                inputs=tuple(index[x] for x in inputs.split()),
                outputs=(index[output],),
                algorithms=(algorithm(10),),
            )
            for name, (inputs, output) in reads_and_makes.items()
        ),
        meta={"layers": layers},
    )


def test_figure_3(figure_3: Instance) -> None:
    """A reconstruction: Y1 leaves with layer 3, its last consumer, and not with layer 2; section III-A."""
    schedule = solve(figure_3)
    times = timeline(figure_3, schedule)
    assert copied(figure_3, schedule, "offload") == ["X1", "Y1"]
    assert times["OFF(Y1)"][0] == times["F3"][0] == times["F2"][1]
    y1 = next(r for r in schedule.residences if r.block == 1)
    released = {o.kind: o.task for o in schedule.operations if o.id in y1.released_after}
    assert released == {"run": 3, "offload": None}


def test_a_shared_input_comes_back_once_for_both(figure_3: Instance) -> None:
    schedule = solve(figure_3)
    times = timeline(figure_3, schedule)
    assert copied(figure_3, schedule, "prefetch") == ["Y1", "X1"]
    assert times["PRE(Y1)"][0] == times["B4"][0]
    assert times["PRE(Y1)"][1] <= times["B3"][0]
    (back,) = (r for r in schedule.residences if r.block == 1 and r.acquired_by != 1 and r.acquired_by != 2)
    (last,) = (o for o in schedule.operations if o.id in back.released_after)
    assert last.task == 7


# --- Fig. 10: the search for a layer to prefetch ---------------------------------------------------------


def searched(kinds: list[str], stays: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """Times on a network of these kinds of layers, of which the inputs of some never leave."""
    layers = [
        Layer(kind=kind, offload_ns=None if i in stays else 5, prefetch_ns=None if i in stays else 5)
        for i, kind in enumerate(kinds, start=1)
    ]
    instance = network(layers)
    return timeline(instance, solve(instance))


def test_figure_10_finds_beyond_layers_that_need_nothing() -> None:
    """A reconstruction: on the way to the next convolution, the search passes over pooling layers."""
    times = searched(["conv", "pool", "pool", "conv"], stays=(2, 3))
    assert times["PRE(X1)"][0] == times["B4"][0]


def test_figure_10_stops_at_the_next_convolution() -> None:
    """A reconstruction: layer 2 is a convolution that needs nothing, and hides layer 1 until B2 starts."""
    times = searched(["conv", "conv", "pool", "conv"], stays=(2, 3))
    assert times["PRE(X1)"][0] == times["B2"][0] > times["B4"][0]
    assert times["B1"][0] == times["B2"][1]


def test_figure_10_searches_the_convolution_at_which_it_stops() -> None:
    times = searched(["conv", "conv", "pool", "conv"], stays=(3,))
    assert times["PRE(X2)"][0] == times["B4"][0]
    assert times["PRE(X1)"][0] == times["B2"][0]  # while B3 runs, layer 2 still ends the search


def test_figure_10_finds_one_layer_at_a_time() -> None:
    """While B4 runs only the nearest layer is fetched, though there is time for both."""
    times = searched(["pool", "pool", "conv", "conv"], stays=(3,))
    assert "PRE(X3)" not in times
    assert times["PRE(X2)"][0] >= times["B4"][1]


# --- copies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engines", ["duplex", "single"])
def test_all_copies_are_in_one_order_whatever_anything_takes(engines: str) -> None:
    layers = [Layer(offload_ns=o, prefetch_ns=p) for o, p in ((30, 2), (1, 40), (25, 7), (3, 3), (9, 1))]
    instance = msgspec.structs.replace(network(layers), engines=engines)
    schedule = solve(instance)
    copies = [i for i, o in enumerate(schedule.operations) if o.kind != "run"]
    assert len(copies) == 8
    rng = Random(1)
    for _ in range(50):
        durations = [rng.choice((0, 1, 10, 1000)) for _ in schedule.operations]
        starts, ends = simulate(instance, schedule, durations)
        assert all(ends[i] <= starts[j] for i, j in pairwise(copies))


def test_prefetches_are_in_the_reverse_order_of_the_offloads() -> None:
    instance = network([Layer() for _ in range(6)])
    schedule = solve(instance)
    offloads = copied(instance, schedule, "offload")
    assert offloads == [f"X{i}" for i in range(1, 6)]
    assert copied(instance, schedule, "prefetch") == offloads[::-1]


# --- what is offloaded ----------------------------------------------------------------------------------


def test_classification_layers_remain_as_they_are() -> None:
    instance = network([Layer(), Layer(kind="fc"), Layer(kind="fc"), Layer(kind="softmax"), Layer(kind="fc")])
    assert copied(instance, solve(instance), "offload") == ["X1"]


def test_conv_offloads_inputs_of_convolutions_and_all_those_of_every_layer() -> None:
    instance = network([Layer(kind="pool"), Layer(), Layer(kind="lrn"), Layer(), Layer()])
    assert copied(instance, solve(instance, "vdnn-conv-m"), "offload") == ["X2", "X4"]
    assert copied(instance, solve(instance, "vdnn-all-m"), "offload") == ["X1", "X2", "X3", "X4"]


def test_the_last_layer_s_input_is_needed_at_once_and_stays() -> None:
    instance = network([Layer()])
    assert copied(instance, solve(instance), "offload") == []


def test_what_may_not_be_copied_stays() -> None:
    instance = network([Layer(prefetch_ns=None), Layer(offload_ns=None), Layer()])
    schedule = solve(instance)
    assert {o.kind for o in schedule.operations} == {"run"}


def test_inputs_that_the_host_has_leave_without_a_copy() -> None:
    made = network([Layer(offload_ns=None), Layer(), Layer()])
    blocks = (msgspec.structs.replace(made.blocks[0], initially="device"), *made.blocks[1:])
    tasks = (msgspec.structs.replace(made.tasks[0], outputs=()), *made.tasks[1:])
    instance = msgspec.structs.replace(made, blocks=blocks, tasks=tasks)
    schedule = solve(instance)
    assert copied(instance, schedule, "offload") == ["X2"]
    assert copied(instance, schedule, "prefetch") == ["X2", "X1"]


def test_an_input_that_its_last_consumer_rewrites_leaves_after_it() -> None:
    made = network([Layer(kind="relu", offload_ns=5), Layer(), Layer()])
    first = msgspec.structs.replace(made.tasks[1], inputs=(), updates=(0,))
    instance = msgspec.structs.replace(made, tasks=(made.tasks[0], first, *made.tasks[2:]))
    times = timeline(instance, solve(instance))
    assert times["OFF(X1)"][0] == times["F1"][1]
    assert times["F2"][0] == times["OFF(X1)"][1]


# --- algorithms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "chosen"), [("vdnn-all-m", 1), ("vdnn-all-p", 2), ("vdnn-conv-p", 2)])
def test_memory_optimal_and_performance_optimal(method: str, chosen: int) -> None:
    made = network([Layer(), Layer(), Layer()])
    algorithms = (algorithm(9, 16), algorithm(10), algorithm(4, 24), algorithm(4, 32))
    tasks = tuple(msgspec.structs.replace(task, algorithms=algorithms) for task in made.tasks)
    schedule = solve(msgspec.structs.replace(made, tasks=tasks), method)
    assert {o.algorithm for o in schedule.operations if o.kind == "run"} == {chosen}


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", POLICIES)
def test_without_room_the_policy_fails_and_says_for_what(method: str) -> None:
    with pytest.raises(Refusal, match=r"no place for block '[XG]\d' \(8 B\)"):
        solve(network([Layer() for _ in range(5)], pool=16), method)


@pytest.mark.parametrize("method", POLICIES)
def test_no_room_at_the_end_is_a_refusal_too(method: str) -> None:
    made = network([Layer()], pool=32)
    heavy = Block(name="w", bytes=32, offload_ns=1, prefetch_ns=1, initially="host", finally_="device")
    kept = msgspec.structs.replace(made.blocks[-1], finally_="device")
    instance = msgspec.structs.replace(made, blocks=(*made.blocks[:-1], kept, heavy))
    with pytest.raises(Refusal, match="no place for block 'w'"):
        solve(instance, method)
