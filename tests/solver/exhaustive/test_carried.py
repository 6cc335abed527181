"""Exhaustive search with carried blocks: by hand, and between bounds and the schedules of methods.

That it agrees with the plain enumeration, and with ordinary instances, is attacked in tests/adversary.
"""

from __future__ import annotations

import contextlib
import math

import pytest
from msgspec.structs import replace

from pebbler.heuristics.methods import Refusal
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.units import PAGE_BYTES
from pebbler.solver.bounds import best_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.result import Status
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.schedule import MemoryModel

from ...samples import counts

UNIT = 512
"""Bytes of a unit of size."""

PLANNERS = ("modnn", "save-on-cpu-rule", "vdnn-all-m")
"""Methods that plan carried blocks, beside exhaustive search; tests/adversary has them all."""


def _block(name: str, units: int = 1, copy: int | None = 3, **keys: str) -> Block:
    return Block(name=name, bytes=units * UNIT, offload_ns=copy, prefetch_ns=copy, **keys)  # type: ignore[arg-type]


def _task(name: str, **blocks: tuple[int, ...]) -> Task:
    return Task(
        name=name,
        inputs=blocks.get("inputs", ()),
        outputs=blocks.get("outputs", ()),
        updates=blocks.get("updates", ()),
        algorithms=(Algorithm(name="run", duration_ns=10, workspace_bytes=0),),
    )


def _instance(blocks: list[Block], tasks: list[Task], units: int, host: int | None = None) -> Instance:
    made = Instance(
        name="carrying",
        engines="duplex",
        budget_bytes=units * UNIT,
        resident_bytes=0,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
    )
    return made if host is None else replace(made, host_budget_bytes=host * UNIT)


def _found(instance: Instance, memory: MemoryModel = "contiguous") -> tuple[float, list[tuple[bool, bool]]]:
    """Return the least time, and where carried blocks are; the checker has accepted the schedule."""
    schedule = brute_force(instance, memory)
    if schedule is None:
        return math.inf, []
    assert check(instance, schedule).reasons == ()
    return schedule.makespan_ns, [(state.device, state.host) for state in schedule.states]


KEPT, SAVED, BOTH = (True, False), (False, True), (True, True)


def test_a_block_is_kept_where_there_is_room() -> None:
    """Else it is offloaded while it is read, and comes back."""
    tasks = [_task("read", inputs=(0,)), _task("other", outputs=(1,)), _task("update", updates=(0,))]
    blocks = [_block("W", initially="carried"), _block("x")]
    assert _found(_instance(blocks, tasks, 2)) == (30, [KEPT])
    assert _found(_instance(blocks, tasks, 1)) == (33, [KEPT])
    assert _found(_instance(blocks, tasks, 1, host=1)) == (33, [KEPT])
    assert _found(_instance(blocks, tasks, 1, host=0))[0] == math.inf


def test_a_round_pays_for_what_it_finds_on_the_host() -> None:
    """The last task leaves no room for W. A block that begins on the device may be lost then; W may not."""
    tasks = [_task("make x", outputs=(1,)), _task("update", updates=(0,)), _task("all", outputs=(2,))]
    blocks = [_block("W", initially="carried"), _block("x"), _block("all", 2)]
    instance = _instance(blocks, tasks, 2)
    assert _found(instance)[0] == 33
    ordinary = replace(instance, blocks=(replace(blocks[0], initially="device"), *blocks[1:]))
    assert _found(ordinary)[0] == 30


def test_what_nothing_writes_is_on_the_host_for_nothing() -> None:
    tasks = [_task("all", outputs=(1,)), _task("read", inputs=(0,)), _task("all again", outputs=(2,))]
    blocks = [_block("W", initially="carried"), _block("all", 2), _block("all again", 2)]
    assert _found(_instance(blocks, tasks, 2)) == (33, [SAVED])
    assert _found(_instance(blocks, tasks, 2, host=1)) == (33, [SAVED])
    both = [_task("read", inputs=(0,)), _task("all", outputs=(1,)), _task("read again", inputs=(0,))]
    assert _found(_instance(blocks[:2], both, 2)) == (33, [BOTH])


def test_what_nothing_uses_is_on_the_host_even_if_it_could_not_come_back() -> None:
    idle = replace(_block("W", initially="carried"), prefetch_ns=None)
    instance = _instance([idle, _block("all", 2)], [_task("all", outputs=(1,))], 2)
    assert _found(instance) == (10, [SAVED])
    assert solve(instance, "modnn").makespan_ns == 10


def test_in_contiguous_memory_a_block_ends_where_it_began() -> None:
    """W leaves room for x and y, which cannot be moved, and is in time in another place only."""
    blocks = [_block("W", 2, 1, initially="carried"), _block("x", 2, None), _block("y", 2, None)]
    tasks = [
        _task("read W", inputs=(0,)),
        _task("update W", updates=(0,), outputs=(1,)),
        _task("make y", inputs=(1,), outputs=(2,)),
        _task("read y", inputs=(2,)),
    ]
    assert _found(_instance(blocks, tasks, 5), "contiguous")[0] == 42
    assert _found(_instance(blocks, tasks, 5), "divisible")[0] == 41
    pages = tuple(replace(block, bytes=block.bytes // UNIT * PAGE_BYTES) for block in blocks)
    paged = replace(_instance(blocks, tasks, 5), blocks=pages, budget_bytes=5 * PAGE_BYTES)
    assert _found(paged, "paged")[0] == 41


def test_a_copy_that_is_carried_ends_where_it_began() -> None:
    """There is no room on the device at either end. Each copy is stale after the update, and made again."""
    blocks = [_block("W", initially="carried"), _block("V", 2, initially="carried")]
    blocks += [_block("all", 3), _block("all again", 3)]
    tasks = [
        _task("use all memory", outputs=(2,)),
        _task("update both", updates=(0, 1)),
        _task("use all memory again", outputs=(3,)),
    ]
    for host in (3, 4):
        instance = _instance(blocks, tasks, 3, host=host)
        schedule = brute_force(instance)
        assert schedule is not None
        assert check(instance, schedule).reasons == ()
        assert schedule.makespan_ns == 42
        for d in (0, 1):
            first, last = [copy for copy in schedule.host_copies if copy.block == d]
            assert first.offset == last.offset
            assert first.released_after
            assert not last.released_after
    assert brute_force(_instance(blocks, tasks, 3, host=2)) is None


@pytest.mark.parametrize("host_budget", [False, True])
@pytest.mark.parametrize("count", counts(4, 40))
def test_bounds_then_exhaustive_search_then_every_method(host_budget: bool, count: int) -> None:
    judged = solved = found = 0
    for seed in range(count):
        instance = tiny_instance(seed, carried=True, host_budget=host_budget)
        try:
            divisible = brute_force(instance, "divisible", most_states=4000)
        except TimeoutError:
            continue
        judged += 1
        if divisible is not None:
            assert check(instance, divisible).reasons == ()
            assert best_bound(instance).lower_bound_ns <= divisible.makespan_ns
        least = math.inf if divisible is None else divisible.makespan_ns
        if len(instance.blocks) <= 6:
            with contextlib.suppress(TimeoutError, Refusal):
                contiguous = brute_force(instance, "contiguous", most_states=2000)
                solved += 1
                assert contiguous is None or check(instance, contiguous).reasons == ()
                assert least <= (math.inf if contiguous is None else contiguous.makespan_ns)
        for name in PLANNERS:
            result = solve(instance, name, time_limit=5.0)
            assert result.status is not Status.INFEASIBLE or least == math.inf
            if result.makespan_ns is not None:
                found += 1
                assert least <= result.makespan_ns
    assert judged >= 0.6 * count
    assert solved >= 1
    assert found >= judged


def test_the_tiny_instances_with_weights_have_what_they_promise() -> None:
    instances = [tiny_instance(seed, carried=True) for seed in range(150)]
    features = {
        "updated": lambda i, d: bool(i.writers[d]),
        "read only": lambda i, d: bool(i.uses[d]) and not i.writers[d],
        "no offload": lambda i, d: i.blocks[d].offload_ns is None,
        "no prefetch": lambda i, d: i.blocks[d].prefetch_ns is None,
        "moves": lambda i, d: i.blocks[d].move_ns is not None,
    }
    for name, has in features.items():
        assert sum(any(has(i, d) for d in i.carried) for i in instances) >= 10, name
    assert all(i.carried for i in instances)
    assert sum(len(i.carried) > 1 for i in instances) >= 20
    budgets = [tiny_instance(seed, carried=True, host_budget=True).host_budget_bytes for seed in range(20)]
    assert len(set(budgets)) >= 4
