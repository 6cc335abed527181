"""The dynamic vDNN policy: which pass is adopted, and what it is worth."""

from __future__ import annotations

import re
from random import Random

import msgspec
import pytest

from pebbler.heuristics.methods import Answer, Limits, Refusal, find_method
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import with_budget
from pebbler.instances.workload import Workload
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

from ...samples import counts

STATIC = ("vdnn-all-m", "vdnn-all-p", "vdnn-conv-m", "vdnn-conv-p")
FAST, MEDIUM, SLOW = 2, 1, 0


def network(kinds: str, workspaces: tuple[int, int] = (16, 8), pool: int = 1000) -> Instance:
    """Layers, ``c`` a convolution and ``p`` a pool: Fi reads Xi and makes Xi+1, ..., Bi reads Xi and Gi+1.

    Everything is 8 bytes large. Convolutions have algorithms that take 30 ns with no workspace, and 20 and 10
    with these.
    """
    n = len(kinds)
    names = [*(f"X{i}" for i in range(1, n + 2)), *(f"G{i}" for i in range(1, n + 1))]
    index = {name: d for d, name in enumerate(names)}
    algorithms = {
        "p": (Algorithm(name="only", duration_ns=10, workspace_bytes=0),),
        "c": tuple(
            Algorithm(name=f"{duration}", duration_ns=duration, workspace_bytes=size)
            for duration, size in ((30, 0), (20, workspaces[1]), (10, workspaces[0]))
        ),
    }

    def task(name: str, kind: str, inputs: list[str], output: str) -> Task:
        reads = tuple(index[x] for x in inputs)
        return Task(name=name, inputs=reads, outputs=(index[output],), algorithms=algorithms[kind])

    tasks = [task("data", "p", [], "X1")]
    tasks += [task(f"F{i}", kind, [f"X{i}"], f"X{i + 1}") for i, kind in enumerate(kinds, start=1)]
    tasks += [
        task(f"B{i}", kinds[i - 1], [f"X{i}", f"X{n + 1}" if i == n else f"G{i + 1}"], f"G{i}")
        for i in range(n, 0, -1)
    ]
    layers = [
        {
            "name": f"{i}",
            "kind": {"c": "conv", "p": "pool"}[kind],
            "forward": [i],
            "backward": [2 * n + 1 - i],
        }
        for i, kind in enumerate(kinds, start=1)
    ]
    return Instance(
        name=kinds,
        engines="duplex",
        budget_bytes=pool,
        resident_bytes=0,
        alignment_bytes=8,
        blocks=tuple(
            Block(name=name, bytes=8, offload_ns=copy, prefetch_ns=copy)
            for name in names
            for copy in [5 if name[0] == "X" else None]
        ),
        tasks=tuple(tasks),
        meta={"layers": [{"name": "data", "kind": "data", "forward": [0], "backward": []}, *layers]},
    )


def solve(instance: Instance, method: str = "vdnn-dyn", limits: Limits | None = None) -> Answer:
    answer = find_method(method).call(instance, limits or Limits())
    assert answer.schedule is not None
    assert check(instance, answer.schedule).reasons == ()
    assert answer.schedule.method == method
    return answer


def program_of(answer: Answer) -> tuple[object, ...]:
    assert answer.schedule is not None
    return answer.schedule.operations, answer.schedule.residences


def chosen(answer: Answer) -> list[int | None]:
    assert answer.schedule is not None
    return [o.algorithm for o in answer.schedule.operations if o.kind == "run"]


def copied(schedule: Schedule | None) -> set[int | None]:
    assert schedule is not None
    return {o.block for o in schedule.operations if o.kind == "offload"}


# --- which pass is adopted --------------------------------------------------------------------------------


def test_what_fits_is_not_offloaded() -> None:
    instance = network("ccc")
    answer = solve(instance)
    assert answer.stopped_by == "done: pass 2, no offload"
    assert program_of(answer) == program_of(solve(instance, "network-wide"))
    assert answer.schedule is not None
    assert answer.schedule.makespan_ns == 10 + 6 * 10


@pytest.mark.parametrize(
    ("kinds", "pool", "adopted", "static"),
    [
        ("cccccc", 6 * 8, "pass 2, vdnn-conv (p)", "vdnn-conv-p"),
        ("ppcppp", 6 * 8, "pass 2, vdnn-all (p)", "vdnn-all-p"),
    ],
)
def test_a_static_policy_that_fits_is_adopted_as_it_is(
    kinds: str, pool: int, adopted: str, static: str
) -> None:
    instance = network(kinds, pool=pool)
    answer = solve(instance)
    assert answer.stopped_by == f"done: {adopted}"
    assert program_of(answer) == program_of(solve(instance, static))


def test_without_offload_every_layer_must_run_its_fastest_algorithm() -> None:
    """There is room for all blocks and the medium workspace; a slower layer is worse than offloading."""
    instance = network("cccccc", pool=10 * 8)
    assert MEDIUM in chosen(solve(instance, "network-wide"))
    assert solve(instance).stopped_by == "done: pass 2, vdnn-conv (p)"


def test_pass_3_keeps_the_convolution_policy_and_downgrades_where_it_overflows() -> None:
    """Four blocks and 8 bytes: enough for the fast workspace early in the forward pass, and not later."""
    instance = network("cccccc", pool=5 * 8)
    with pytest.raises(Refusal):
        solve(instance, "vdnn-conv-p")
    answer = solve(instance)
    assert answer.stopped_by.startswith("done: pass 3, vdnn-conv with ")
    assert {FAST, MEDIUM} <= set(chosen(answer))
    assert copied(answer.schedule) == copied(solve(instance, "vdnn-conv-m").schedule)


def test_pass_3_offloads_every_layer_where_the_convolution_policy_cannot_fit() -> None:
    instance = network("pppcpp", pool=5 * 8, workspaces=(100, 8))
    with pytest.raises(Refusal):
        solve(instance, "vdnn-conv-m")
    answer = solve(instance)
    assert answer.stopped_by == "done: pass 3, vdnn-all with 1 downgraded layer"
    assert copied(answer.schedule) == copied(solve(instance, "vdnn-all-m").schedule)
    assert MEDIUM in chosen(answer)


def test_where_no_workspace_has_room_pass_1_is_what_remains() -> None:
    instance = network("pppcpp", pool=5 * 8, workspaces=(100, 90))
    answer = solve(instance)
    assert answer.stopped_by == "done: pass 1, vdnn-all (m)"
    assert program_of(answer) == program_of(solve(instance, "vdnn-all-m"))


def test_what_pass_1_cannot_train_is_refused_with_its_reason() -> None:
    instance = network("cccccc", pool=3 * 8)
    with pytest.raises(Refusal) as static:
        find_method("vdnn-all-m").call(instance, Limits())
    with pytest.raises(Refusal) as dynamic:
        find_method("vdnn-dyn").call(instance, Limits())
    assert str(dynamic.value) == str(static.value)


# --- the greedy choice --------------------------------------------------------------------------------------


def test_each_task_takes_the_fastest_algorithm_for_which_there_is_room() -> None:
    """Reference: try every choice at every task by brute force, the others being memory-optimal."""
    instance = network("cccccc", pool=5 * 8)
    algorithms = chosen(solve(instance))
    assert len(algorithms) == len(instance.tasks)
    for k, algorithm in enumerate(algorithms):
        fits = []
        for a in range(len(instance.tasks[k].algorithms)):
            only = [
                msgspec.structs.replace(task, algorithms=(task.algorithms[a if j == k else SLOW],))
                for j, task in enumerate(instance.tasks)
            ]
            try:
                find_method("vdnn-conv-m").call(
                    msgspec.structs.replace(instance, tasks=tuple(only)), Limits()
                )
            except Refusal:
                continue
            fits.append(a)
        assert algorithm == max(fits)


def test_blocks_that_had_to_be_placed_together_stay_where_they_are() -> None:
    """VGG-16 (256) in 12 GiB: block by block there is no place for dY(conv1_2), all at once there is."""
    instance = Workload("vgg16", 256, "titanx", graph="paper").instance("12GiB")
    answer, static = solve(instance), solve(instance, "vdnn-conv-m")

    def places(schedule: Schedule | None) -> list[tuple[int | None, int | None]]:
        assert schedule is not None
        return [(r.block, r.offset) for r in schedule.residences if r.block is not None]

    assert answer.stopped_by == "done: pass 3, vdnn-conv with 3 downgraded layers"
    assert places(answer.schedule) == places(static.schedule)


def test_parts_and_pages_need_no_plan() -> None:
    workload = Workload("vgg16", 256, "titanx", graph="paper")
    paged = solve(workload.instance("12GiB"), limits=Limits(memory="paged"))
    assert paged.stopped_by is not None
    assert re.fullmatch(r"done: pass 3, vdnn-conv with \d+ downgraded layers?", paged.stopped_by)
    made = network("cccccc", pool=5 * 8)
    first = msgspec.structs.replace(made.blocks[0], tensor="X1", begin=0)
    parts = msgspec.structs.replace(made, blocks=(first, *made.blocks[1:]))
    assert chosen(solve(parts)) == chosen(solve(made))


# --- on everything ------------------------------------------------------------------------------------------


def instances(seed: int) -> Instance:
    rng = Random(seed)
    kinds = "".join(rng.choice("ccp") for _ in range(rng.randint(3, 12)))
    made = network(kinds, workspaces=(rng.choice((16, 24, 40)), 8))
    blocks = tuple(
        msgspec.structs.replace(
            block,
            bytes=8 * rng.randint(1, 6),
            offload_ns=None if block.offload_ns is None else rng.randint(0, 40),
            prefetch_ns=None if block.prefetch_ns is None else rng.randint(0, 40),
        )
        for block in made.blocks
    )
    pool = 8 * rng.randint(12, 12 + 6 * len(kinds))
    return msgspec.structs.replace(made, blocks=blocks, budget_bytes=pool)


@pytest.mark.parametrize("count", counts(30, 300))
def test_never_worse_than_falling_back_to_pass_1(count: int) -> None:
    """Never refused where vDNN_all (m) fits, never slower, and the same every time."""
    adopted = set()
    for seed in range(count):
        instance = instances(seed)
        try:
            fallback = solve(instance, "vdnn-all-m").schedule
        except Refusal:
            continue
        answer = solve(instance)
        assert fallback is not None
        assert answer.schedule is not None
        assert answer.schedule.makespan_ns <= fallback.makespan_ns, seed
        assert solve(instance) == answer
        adopted.add(answer.stopped_by.split(" with ")[0])
    assert adopted >= {
        "done: pass 2, no offload",
        "done: pass 2, vdnn-conv (p)",
        "done: pass 2, vdnn-all (p)",
        "done: pass 3, vdnn-conv",
        "done: pass 3, vdnn-all",
    }


@pytest.mark.parametrize(
    ("network_name", "batch", "memory"),
    [
        *(("alexnet", 128, "contiguous"), ("alexnet", 128, "paged"), ("resnet18", 32, "contiguous")),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("resnet18", 32, "paged"),
                ("googlenet", 32, "contiguous"),
                ("googlenet", 32, "paged"),
            )
        ),
    ],
)
def test_valid_and_no_slower_on_networks(network_name: str, batch: int, memory: str) -> None:
    workload = Workload(network_name, batch, "titanx")
    least = workload.minimum_budget()
    solved = 0
    for percent in (105, 115, 130, 160, 250):
        instance = with_budget(workload.instance(least), least * percent // 100)
        limits = Limits(memory=memory)  # type: ignore[arg-type]
        try:
            fallback = solve(instance, "vdnn-all-m", limits).schedule
        except Refusal:
            continue
        answer = solve(instance, limits=limits).schedule
        assert fallback is not None
        assert answer is not None
        assert answer.memory_model == memory
        assert answer.makespan_ns <= fallback.makespan_ns
        solved += 1
    assert solved >= 3
