"""Work on the host: the instance that is left for the device, and the runs that are added to its programs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pebbler.heuristics.host_work import (
    HostRun,
    HostWork,
    of_both_sides,
    of_one_side,
    on_sides,
    planned,
)
from pebbler.heuristics.methods import Limits, Refusal
from pebbler.heuristics.papers.modnn import modnn
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.check import check
from pebbler.validate.schedule import Carried

KIB = 1024
"""Size of each block."""

ON_DEVICE = Algorithm(name="gpu", duration_ns=100, workspace_bytes=0)
ON_HOST = Algorithm(name="cpu", duration_ns=400, workspace_bytes=0, on="host")

W, M, X, G = range(4)
"""A weight, what its optimizer keeps, data, and the gradient."""


def block(name: str, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": KIB, "offload_ns": 10, "prefetch_ns": 10, **keys})  # type: ignore[arg-type]


def task(name: str, *algorithms: Algorithm, **keys: object) -> Task:
    return Task(
        **{"name": name, "inputs": (), "outputs": (), "algorithms": algorithms or (ON_DEVICE,), **keys}  # type: ignore[arg-type]
    )


def step(*algorithms: Algorithm, **keys: object) -> Instance:
    """A forward and a backward task, and a step of the optimizer."""
    return Instance(
        **{  # type: ignore[arg-type]
            "name": "step",
            "engines": "duplex",
            "budget_bytes": 4 * KIB,
            "resident_bytes": 0,
            "blocks": (
                block("W", initially="carried"),
                block("M", initially="carried"),
                block("X"),
                block("G"),
            ),
            "tasks": (
                task("forward", inputs=(W,), outputs=(X,)),
                task("backward", inputs=(W, X), outputs=(G,)),
                task("update", *algorithms, inputs=(G,), updates=(W, M)),
            ),
            **keys,
        }
    )


def test_sides() -> None:
    """A task has its algorithms on the device, or the fastest one on the host, where its blocks live."""
    slow = replace(ON_HOST, duration_ns=500)
    instance = step(slow, ON_DEVICE, ON_HOST)
    hosted = on_sides(instance, frozenset({2}), "contiguous")
    assert hosted.tasks[2].algorithms == (ON_HOST,)
    assert [b.initially for b in hosted.blocks] == ["host", "host", "absent", "absent"]
    assert on_sides(instance, frozenset(), "contiguous").tasks[2].algorithms == (ON_DEVICE,)
    assert on_sides(instance, frozenset(), "contiguous").blocks == instance.blocks
    schedule = planned(modnn, hosted, Limits()).schedule
    assert schedule is not None
    whole = of_both_sides(instance, frozenset({2}), schedule)
    assert [o.algorithm for o in whole.operations if o.task == 2] == [2]
    assert of_one_side(instance, frozenset({2}), whole) == schedule
    assert of_one_side(instance, frozenset(), whole) is None


def test_the_device_has_its_tasks_alone() -> None:
    """The gradient must end on the host; the weight is read, and stays there; the moment is not touched."""
    device = HostWork(on_sides(step(ON_HOST), frozenset({2}), "contiguous")).device
    assert [t.name for t in device.tasks] == ["forward", "backward"]
    assert [(b.initially, b.finally_) for b in device.blocks] == [
        ("host", "host"),
        ("host", "host"),
        ("absent", "anywhere"),
        ("absent", "host"),
    ]
    assert not device.has_host_work


@pytest.mark.parametrize("budget", [None, 4 * KIB, 4 * KIB + 1])
def test_a_step_of_the_optimizer_follows_its_gradient(budget: int | None) -> None:
    """It waits for the copy of the gradient, and for the last copy that reads the weight."""
    work = replace(ON_HOST, workspace_bytes=KIB + 1)
    instance = on_sides(step(work), frozenset({2}), "contiguous")
    if budget is not None:
        instance = replace(instance, host_budget_bytes=budget)
        if budget == 4 * KIB:
            with pytest.raises(Refusal, match="host memory has no"):
                planned(modnn, instance, Limits())
            return
    schedule = planned(modnn, instance, Limits()).schedule
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    run = schedule.operations[-1]
    assert (run.stream, run.task) == ("host", 2)
    waited = {(o.kind, o.block) for o in schedule.operations if o.id in run.after}
    assert waited == {("offload", G), ("prefetch", W)}
    assert (run.start_ns, run.end_ns) == (10 + 100 + 100 + 10, 620)
    assert schedule.makespan_ns == 620


def test_what_the_host_makes_first_is_waited_for() -> None:
    """A task that reads what is on the host from the start comes before all copies."""
    instance = Instance(
        name="first",
        engines="duplex",
        budget_bytes=2 * KIB,
        resident_bytes=0,
        blocks=(block("ids", initially="host"), block("rows"), block("Y")),
        tasks=(
            task("look up", ON_HOST, inputs=(0,), outputs=(1,)),
            task("compute", inputs=(1,), outputs=(2,)),
        ),
    )
    work = HostWork(instance)
    assert (work.early, work.late) == ([0], [])
    schedule = planned(modnn, instance, Limits()).schedule
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    assert [(o.kind, o.start_ns) for o in schedule.operations] == [
        ("run", 0),
        ("prefetch", 400),
        ("run", 410),
    ]


def test_what_is_between_is_refused() -> None:
    """The host reads what the device makes, and the device what the host makes of it."""
    tasks = (*step(ON_HOST).tasks, task("evaluate", inputs=(W,)))
    with pytest.raises(
        Refusal, match="'update' would run on the host between tasks of the device that make and use 'W'"
    ):
        HostWork(on_sides(step(ON_HOST, tasks=tasks), frozenset({2}), "contiguous"))


def test_a_copy_that_is_impossible_is_refused() -> None:
    blocks = (*step().blocks[:G], block("G", offload_ns=None))
    with pytest.raises(Refusal, match="would read 'G' on the host, and its offload_ns is null"):
        HostWork(on_sides(step(ON_HOST, blocks=blocks), frozenset({2}), "contiguous"))


@pytest.mark.parametrize("budget", [None, 4 * KIB])
def test_what_the_host_updates_returns_to_the_device(budget: int | None) -> None:
    """The weight is on both sides at both ends: it leaves after its last use, and returns when updated."""
    instance = on_sides(step(ON_HOST, budget_bytes=3 * PAGE_BYTES), frozenset({2}), "paged")
    if budget is not None:
        instance = replace(instance, host_budget_bytes=budget)
    assert [b.initially for b in instance.blocks] == ["carried", "host", "absent", "absent"]
    work = HostWork(instance, returns=True)
    assert [(b.initially, b.finally_) for b in work.device.blocks[:2]] == [
        ("device", "host"),
        ("host", "host"),
    ]
    assert work.runs() == [HostRun(400, (G,), (W,))]
    builder = ProgramBuilder(work.device, memory="paged")
    for k in range(2):
        builder.run(k, 0)
    builder.release(W)
    builder.offload(G)
    builder.prefetch(W)
    schedule = work.completed(builder.finish("by hand"))
    assert check(instance, schedule).reasons == ()
    assert [(o.kind, o.end_ns) for o in schedule.operations][-2:] == [("run", 610), ("prefetch", 620)]
    assert schedule.states == (Carried(block=W, device=True, host=True),)
    left = work.projected(schedule).operations
    assert set(left[-1].after) <= {o.id for o in left}


def test_what_the_device_writes_or_does_not_read_lives_on_the_host() -> None:
    """The device would have to copy it out, or has no need of it."""
    tasks = (task("scale", updates=(W,)), *step(ON_HOST).tasks)
    instance = on_sides(step(ON_HOST, tasks=tasks), frozenset({3}), "paged")
    assert [b.initially for b in instance.blocks[:2]] == ["host", "host"]
    whole = on_sides(step(ON_HOST), frozenset({2}), "paged")
    assert HostWork(whole).device.blocks[W].initially == "host"
