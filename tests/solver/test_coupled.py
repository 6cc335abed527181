"""A link for both directions, and copies that slow compute down: every method's schedules have true times."""

from __future__ import annotations

from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.clock import is_rule
from pebbler.heuristics.methods import list_methods
from pebbler.instances.instance import Instance, Link, Slowdown
from pebbler.instances.memory import unlimited_peak, with_budget
from pebbler.instances.suites.tiny import scaled, tiny_instance
from pebbler.instances.units import PAGE_BYTES
from pebbler.solver.answers import Memory
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.simulate import simulate

from ..samples import counts

METHODS = [info for info in list_methods() if not info.guest and info.name != "flow-parts"]  # which is flow


def coupled(seed: int, memory: Memory, keys: str) -> Instance:
    """A tiny instance whose link is about as fast as its copies, or whose tasks are slowed down, or both."""
    rng = Random(f"coupled {seed}")
    made = tiny_instance(seed, carried=seed % 3 == 0, host_budget=seed % 4 == 0)
    if seed % 2:
        made = with_budget(made, (made.budget_bytes + unlimited_peak(made)) // 2)
    scale = PAGE_BYTES // 4 if memory == "paged" else 128
    host = made.host_budget_bytes
    made = replace(scaled(made, size=scale), host_budget_bytes=host if host is UNSET else host * scale // 64)
    if "link" in keys:
        rate = 4 * scale * 10**9 // rng.choice((1, 2, 3))
        made = replace(made, link=Link(both_bytes_per_second=rate + rng.choice((0, 1))))
    if "slowdown" in keys:
        tasks = [
            replace(
                task,
                slowdown_ppm=Slowdown(offload=rng.randint(0, 500_000), prefetch=rng.choice((0, 500_000))),
            )
            for task in made.tasks
        ]
        made = replace(made, tasks=tuple(tasks))
    return made


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
@pytest.mark.parametrize("name", [info.name for info in METHODS])
@pytest.mark.parametrize("count", counts(3, 9))
def test_every_method(name: str, memory: Memory, count: int) -> None:
    """What a method finds is valid with the times of the simulation, or it says in a sentence why not."""
    by_rule = is_rule(next(info.call for info in METHODS if info.name == name))
    for seed in range(count):
        instance = coupled(seed, memory, ("link", "slowdown", "link and slowdown")[seed % 3])
        result = solve(instance, name, memory=memory, time_limit=None if by_rule else 0.1)
        if result.schedule is None:
            assert result.stopped_by
            assert "\n" not in result.stopped_by
            continue
        assert check(instance, result.schedule).reasons == ()
        starts, ends = simulate(instance, result.schedule)
        assert [o.start_ns for o in result.schedule.operations] == starts
        assert result.makespan_ns == max(ends)
        assert result.lower_bound_ns <= result.makespan_ns
