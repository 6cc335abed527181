"""Exhaustive search where tasks may run on the host, by hand; the attacks have hundreds of instances."""

from __future__ import annotations

from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.methods import Refusal
from pebbler.instances.files import read_instance
from pebbler.instances.instance import Algorithm, Block, Instance, Link, Slowdown, Task
from pebbler.instances.units import PAGE_BYTES
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.validate.check import check
from pebbler.validate.replay.machine import replay
from pebbler.validate.schedule import MemoryModel, Schedule

W, G = 0, 1


def task(name: str, *durations: int, host: int | None = None, workspace: int = 0, **sets: object) -> Task:
    on_device = [Algorithm(name=f"d{a}", duration_ns=t, workspace_bytes=0) for a, t in enumerate(durations)]
    on_host = (
        [] if host is None else [Algorithm(name="h", duration_ns=host, workspace_bytes=workspace, on="host")]
    )
    return Task(name=name, algorithms=(*on_device, *on_host), **{"inputs": (), "outputs": (), **sets})


def step(host: int | None, *durations: int, offload: int = 2, workspace: int = 0, pages: int = 2) -> Instance:
    """A gradient of weights, a step that updates them with it, another task, and one that uses them."""
    return Instance(
        name="step",
        engines="duplex",
        budget_bytes=pages * PAGE_BYTES,
        resident_bytes=0,
        blocks=(
            Block(name="w", bytes=PAGE_BYTES, offload_ns=5, prefetch_ns=3, initially="device"),
            Block(name="g", bytes=PAGE_BYTES, offload_ns=offload, prefetch_ns=1),
        ),
        tasks=(
            task("gradient", 4, inputs=(W,), outputs=(G,)),
            task("step", *durations, host=host, workspace=workspace, inputs=(G,), updates=(W,)),
            task("other", 10),
            task("use", 1, inputs=(W,)),
        ),
    )


def found(instance: Instance, memory: MemoryModel = "divisible") -> Schedule:
    """A shortest schedule, which the checker and the replay accept."""
    schedule = brute_force(instance, memory)
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    assert replay(instance, schedule, None, Random(0)) == []
    return schedule


def sides(schedule: Schedule) -> list[str]:
    """The stream of each run, in the order of the tasks."""
    runs = {o.task: o.stream for o in schedule.operations if o.kind == "run"}
    return [runs[k] for k in sorted(runs)]


@pytest.mark.parametrize("memory", ["divisible", "paged"])
@pytest.mark.parametrize(
    ("instance", "makespan", "side"),
    [
        # beside the other task: 4, out 2, 4 on the host, back 3 by 13, and the use at 14
        (step(4), 15, "host"),
        # the device takes it where it is faster, and where the host is slower than what hides it
        (step(4, 0), 15, "compute"),
        (step(12, 5), 20, "compute"),
        (step(7, 5), 17, "host"),
        # the weights that the device keeps are stale, and have to come back at the end only
        (step(4, offload=9), 21, "host"),
    ],
)
def test_a_task_runs_where_that_is_better(
    memory: MemoryModel, instance: Instance, makespan: int, side: str
) -> None:
    schedule = found(instance, memory)
    assert schedule.makespan_ns == makespan
    assert sides(schedule)[1] == side or makespan == found(replace_side(instance, side), memory).makespan_ns


def replace_side(instance: Instance, side: str) -> Instance:
    """The instance whose step runs on this side only."""
    on = "host" if side == "host" else "device"
    one = instance.tasks[1]
    one = replace(one, algorithms=tuple(a for a in one.algorithms if a.on == on))
    return replace(instance, tasks=(instance.tasks[0], one, *instance.tasks[2:]))


def test_the_budget_of_host_memory_counts_outputs_and_workspaces() -> None:
    instance = replace(step(4, 5, workspace=100), host_budget_bytes=2 * PAGE_BYTES + 100)
    assert found(instance).makespan_ns == 15
    assert found(replace(instance, host_budget_bytes=2 * PAGE_BYTES + 99)).makespan_ns == 20
    alone = replace_side(instance, "host")
    assert brute_force(replace(alone, host_budget_bytes=2 * PAGE_BYTES + 99), "divisible") is None


def test_carried_weights_may_live_on_the_host() -> None:
    """There the step finds them, and the device has one of them from the last round or fetches it."""
    instance = step(4, pages=1)
    blocks = (replace(instance.blocks[W], initially="carried"), instance.blocks[G])
    tasks = (task("gradient", 4, outputs=(G,)), *instance.tasks[1:3])
    schedule = found(replace(instance, blocks=blocks, tasks=tasks))
    assert schedule.makespan_ns == 14
    (state,) = schedule.states
    assert (state.device, state.host) == (False, True)


def test_the_host_may_be_late_for_what_the_device_has_read_already() -> None:
    """The step is before the use of the old weights by nobody: data alone orders the two streams."""
    instance = step(30)
    order = (*instance.tasks[:1], instance.tasks[1], task("other", 10))
    schedule = found(replace(instance, tasks=order))
    assert schedule.makespan_ns == 36
    other = next(o for o in schedule.operations if o.task == 2)
    assert other.end_ns == 14


def test_copies_slow_down_runs_on_the_device_only_and_share_their_link() -> None:
    instance = step(4)
    slowed = tuple(replace(one, slowdown_ppm=Slowdown(offload=500_000)) for one in instance.tasks)
    assert found(replace(instance, tasks=slowed)).makespan_ns == 16
    rate = 10**9 * PAGE_BYTES // 8
    assert found(replace(instance, link=Link(both_bytes_per_second=rate))).makespan_ns == 4 + 8 + 4 + 8 + 1


def test_places_are_not_searched() -> None:
    with pytest.raises(Refusal, match="take paged memory"):
        brute_force(step(4), "contiguous")
    with pytest.raises(Refusal, match="leave out its budget"):
        brute_force(replace(step(4), host_budget_bytes=PAGE_BYTES), "paged")
    assert brute_force(replace(step(4), host_budget_bytes=UNSET), "paged") is not None


def test_a_copy_of_what_ends_on_the_device_is_of_use_while_it_is_there(pytestconfig: pytest.Config) -> None:
    """Another block needs its room meanwhile. The search let the copy go, and found no schedule."""
    data = pytestconfig.rootpath / "tests" / "data"
    instance = read_instance(data / "host_copy_of_what_ends_on_the_device.instance.json")
    found = brute_force(instance, "divisible")
    assert found is not None
    assert found.makespan_ns == 0
