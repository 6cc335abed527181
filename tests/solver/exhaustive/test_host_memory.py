"""Exhaustive search where host memory ends: by hand, at the ends of the range, and along budgets."""

from __future__ import annotations

import math

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.methods import Refusal
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.units import PAGE_BYTES
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.result import Status
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.schedule import MemoryModel

from ...samples import counts

KIB = 1024
"""Size of each block of the instances by hand."""

MODELS: tuple[MemoryModel, ...] = ("contiguous", "divisible")


def _task(name: str, **blocks: tuple[int, ...]) -> Task:
    return Task(
        name=name,
        inputs=blocks.get("inputs", ()),
        outputs=blocks.get("outputs", ()),
        updates=blocks.get("updates", ()),
        algorithms=(Algorithm(name="run", duration_ns=10, workspace_bytes=0),),
    )


def _instance(blocks: list[Block], tasks: list[Task], pool: int, host: int) -> Instance:
    return Instance(
        name="host",
        engines="duplex",
        budget_bytes=pool,
        resident_bytes=0,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
        host_budget_bytes=host,
    )


def _block(name: str, size: int = KIB, **keys: str) -> Block:
    return Block(name=name, bytes=size, offload_ns=3, prefetch_ns=3, **keys)  # type: ignore[arg-type]


def _twice(host: int) -> Instance:
    """W leaves for the second task and comes back, V leaves for the fourth. W must end on the host."""
    return _instance(
        [_block("W", finally_="host"), _block("all", 3 * KIB), _block("V"), _block("most", 2 * KIB)],
        [
            _task("make W", outputs=(0,)),
            _task("use all memory", outputs=(1,)),
            _task("make V", inputs=(0,), outputs=(2,)),
            _task("leave no room for V", inputs=(0,), outputs=(3,)),
            _task("read V", inputs=(2,)),
        ],
        3 * KIB,
        host,
    )


@pytest.mark.parametrize("memory", MODELS)
def test_a_copy_that_must_be_there_at_the_end_may_go_and_be_made_again(memory: MemoryModel) -> None:
    instance = _twice(KIB)
    found = brute_force(instance, memory)
    assert found is not None
    assert check(instance, found).reasons == ()
    assert (found.host_peak_bytes, found.makespan_ns) == (
        KIB,
        62,
    )  # five runs, four copies that nothing hides
    assert [copy.block for copy in found.host_copies] == [0, 2, 0]
    wide = brute_force(_twice(2 * KIB), memory)
    assert wide is not None
    assert [copy.block for copy in wide.host_copies] == [0, 2]
    assert brute_force(_twice(KIB - 1), memory) is None
    assert solve(_twice(KIB - 1), "brute-force").status is Status.INFEASIBLE


@pytest.mark.parametrize("memory", MODELS)
def test_so_may_one_that_is_there_from_the_start(memory: MemoryModel) -> None:
    """The copy of `kept` gives way to that of `made`, and is made again after that has been read."""
    instance = _instance(
        [_block("kept", initially="host", finally_="host"), _block("made"), _block("x"), _block("y")],
        [
            _task("make", outputs=(1, 2)),
            _task("use", inputs=(0,), outputs=(3,)),
            _task("read", inputs=(1,)),
        ],
        pool=2 * KIB,
        host=KIB,
    )
    schedule = brute_force(instance, memory)
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    assert sum(copy.block == 0 for copy in schedule.host_copies) == 2


@pytest.mark.parametrize("memory", MODELS)
def test_a_stale_copy_makes_room_for_the_next_one(memory: MemoryModel) -> None:
    """W is copied before and after its update, and the host has room for one copy."""
    instance = _instance(
        [_block("W", initially="device", finally_="host"), _block("all")],
        [
            _task("use all memory", outputs=(1,)),
            _task("update W", updates=(0,)),
        ],
        KIB,
        KIB,
    )
    found = brute_force(instance, memory)
    assert found is not None
    assert check(instance, found).reasons == ()
    assert found.makespan_ns == 26
    assert [copy.acquired_by is None for copy in found.host_copies] == [True, False]


@pytest.mark.parametrize("memory", MODELS)
def test_the_copies_that_are_kept_from_the_start_are_a_choice(memory: MemoryModel) -> None:
    """The large block has to leave and cannot be copied; the host has room for its copy, or both others."""
    large = replace(_block("large", 2 * KIB, initially="device"), offload_ns=None)
    small = [_block(name, initially="device", finally_="device") for name in "ab"]
    tasks = [
        _task("read all", inputs=(0, 1, 2)),
        _task("use most memory", inputs=(1, 2), outputs=(3,)),
        _task("read large", inputs=(0,)),
    ]
    instance = _instance([large, *small, _block("most", 2 * KIB)], tasks, 4 * KIB, 2 * KIB)
    found = brute_force(instance, memory)
    assert found is not None
    assert check(instance, found).reasons == ()
    assert found.makespan_ns == 33
    assert [copy.block for copy in found.host_copies] == [0]
    assert brute_force(replace(instance, host_budget_bytes=2 * KIB - 1), memory) is None


@pytest.mark.parametrize("memory", MODELS)
def test_the_copy_of_what_can_be_computed_again_may_go_although_the_device_has_none(
    memory: MemoryModel,
) -> None:
    """A comes back by a copy first, and is computed again when C has taken the place of its copy."""
    instance = _instance(
        [_block("A"), _block("all", 2 * KIB), _block("C"), _block("D"), _block("all again", 2 * KIB)],
        [
            replace(_task("make A", outputs=(0,)), recomputable=True),
            _task("use all memory", outputs=(1,)),
            _task("read A", inputs=(0,)),
            _task("make C and D", outputs=(2, 3)),
            _task("use all memory again", outputs=(4,)),
            _task("read C", inputs=(2,)),
            _task("read A again", inputs=(0,)),
        ],
        2 * KIB,
        KIB,
    )
    found = brute_force(instance, memory)
    assert found is not None
    assert check(instance, found).reasons == ()
    assert found.makespan_ns == 89  # eight runs, and three copies that nothing hides
    assert [copy.block for copy in found.host_copies] == [0, 2]


def _copyless(instance: Instance) -> Instance:
    """Return the instance without copies, where host memory has no budget."""
    blocks = tuple(replace(block, offload_ns=None, prefetch_ns=None) for block in instance.blocks)
    return replace(instance, blocks=blocks)


def _least(instance: Instance, memory: MemoryModel, host: int | None) -> float:
    """Return the least time of a checked schedule with so much host memory; infinite where there is none."""
    budgeted = replace(instance, host_budget_bytes=UNSET if host is None else host)
    found = brute_force(budgeted, memory, most_states=4000)
    if found is None:
        return math.inf
    assert check(budgeted, found).reasons == ()
    return found.makespan_ns


@pytest.mark.parametrize("count", counts(4, 24))
def test_between_no_copies_and_as_many_as_one_likes(count: int) -> None:
    """With plenty of host memory nothing changes, with none there are no copies, and in between more is never
    worse. In contiguous memory a schedule is no shorter than in divisible."""
    steps = judged = 0
    for seed in range(count):
        instance = tiny_instance(seed)
        total = sum(-(-block.bytes // 512) * 512 for block in instance.blocks)
        for memory in MODELS:
            if memory == "contiguous" and seed % 4:
                continue
            try:
                unlimited = _least(instance, memory, None)
                times = [_least(instance, memory, host) for host in (0, total // 4, total // 2, total)]
            except TimeoutError:
                continue
            judged += 1
            assert times == sorted(times, reverse=True)
            assert times[-1] == unlimited
            steps += len(set(times)) - 1
            if not any(block.finally_ == "host" for block in instance.blocks):
                assert times[0] == _least(_copyless(instance), memory, None)
    assert judged >= 0.8 * count
    assert steps >= count / 3


def test_too_many_places_on_the_host_are_refused() -> None:
    blocks = [_block("a", 512), _block("b", 512 * 100)]
    instance = _instance(blocks, [_task("make", outputs=(0, 1))], 2 * PAGE_BYTES, 512 * 100)
    with pytest.raises(Refusal, match="100 possible places in host memory"):
        brute_force(instance, "paged")
    assert brute_force(replace(instance, host_budget_bytes=512 * 101), "paged") is not None


def test_what_must_end_on_the_host_may_wait_on_the_device() -> None:
    """Host memory has no room for b beside a: a comes to the device while b is away, and goes back after."""

    def task(name: str, *outputs: int) -> Task:
        only = Algorithm(name="only", duration_ns=1, workspace_bytes=0)
        return Task(name=name, inputs=(), outputs=outputs, algorithms=(only,))

    def block(name: str, size: int, **keys: str) -> Block:
        return Block(name=name, bytes=size, offload_ns=1, prefetch_ns=1, **keys)  # type: ignore[arg-type]

    instance = Instance(
        name="waiting",
        engines="duplex",
        budget_bytes=5,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(
            block("a", 2, initially="host", finally_="host"),
            block("b", 3, finally_="device"),
            block("c", 3),
        ),
        tasks=(task("make b", 1), task("make c", 2)),
        host_budget_bytes=4,
    )
    found = brute_force(instance, "divisible")
    assert found is not None
    assert check(instance, found).reasons == ()
    moved = [(o.kind, o.block) for o in found.operations if o.task is None]
    assert sorted(moved) == [("offload", 0), ("offload", 1), ("prefetch", 0), ("prefetch", 1)]
