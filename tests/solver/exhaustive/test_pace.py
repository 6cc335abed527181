"""Exhaustive search where copies share a link or slow runs down: it may pay to wait, by hand."""

from __future__ import annotations

from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.instances.instance import Algorithm, Block, Instance, Link, Slowdown, Task
from pebbler.instances.units import PAGE_BYTES
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.validate.check import check
from pebbler.validate.replay.machine import replay
from pebbler.validate.schedule import MemoryModel

SIZE = PAGE_BYTES // 2


def task(name: str, duration: int, slowdown: tuple[int, int] = (0, 0), **sets: object) -> Task:
    return Task(
        name=name,
        algorithms=(Algorithm(name="a", duration_ns=duration, workspace_bytes=0),),
        slowdown_ppm=Slowdown(offload=slowdown[0], prefetch=slowdown[1]) if any(slowdown) else UNSET,
        **{"inputs": (), "outputs": (), **sets},
    )


def instance(*tasks: Task, blocks: tuple[Block, ...], link: int | None = None) -> Instance:
    return Instance(
        name="waits",
        engines="duplex",
        budget_bytes=PAGE_BYTES * len(blocks),
        resident_bytes=0,
        blocks=blocks,
        tasks=tasks,
        link=UNSET if link is None else Link(both_bytes_per_second=link),
    )


def makespan(one: Instance, memory: MemoryModel = "divisible") -> int:
    """The least time, of a schedule that the checker and the replay accept."""
    found = brute_force(one, memory)
    assert found is not None
    assert check(one, found).reasons == ()
    assert replay(one, found, None, Random(0)) == []
    return found.makespan_ns


NEEDED = Block(name="needed", bytes=SIZE, offload_ns=None, prefetch_ns=12, initially="host")
KEPT = Block(name="kept", bytes=SIZE, offload_ns=9, prefetch_ns=None, initially="device")


@pytest.mark.parametrize("memory", ["divisible", "paged", "contiguous"])
def test_a_copy_that_would_slow_a_run_down_waits(memory: MemoryModel) -> None:
    """At once it takes 9 of 10 ns from the first task, for 12 ns; behind it, it takes 2 ns of waiting."""
    tasks = task("slow", 10, (0, 900_000)), task("fast", 10), task("reads", 0, inputs=(0,))
    assert makespan(instance(*tasks, blocks=(NEEDED,)), memory) == 22


@pytest.mark.parametrize("memory", ["divisible", "paged", "contiguous"])
def test_a_copy_without_use_ends_when_another_starts_best(memory: MemoryModel) -> None:
    """The copy that is needed starts at an end: of a task, or 1 ns earlier of an offload that nobody needs.
    That 1 ns of it costs the first task 1 ns, but all of it ends 1 ns earlier."""
    tasks = task("slow", 10, (0, 500_000)), task("fast", 10), task("reads", 0, inputs=(0,))
    assert makespan(instance(*tasks, blocks=(NEEDED, KEPT)), memory) == 21
    unmoved = replace(KEPT, offload_ns=None)
    assert makespan(instance(*tasks, blocks=(NEEDED, unmoved)), memory) == 22


def test_copies_share_a_link() -> None:
    """Each alone takes the link's whole rate; both directions take as long as one after the other."""
    out = Block(name="out", bytes=SIZE, offload_ns=8, prefetch_ns=None, initially="device", finally_="host")
    new = task("new", 0, updates=(0,))
    back = Block(name="in", bytes=SIZE, offload_ns=None, prefetch_ns=8, initially="host", finally_="device")
    apart = instance(new, blocks=(out, back))
    assert makespan(apart) == 8
    assert makespan(replace(apart, link=Link(both_bytes_per_second=SIZE * 10**9 // 8))) == 16
    assert makespan(replace(apart, link=Link(both_bytes_per_second=SIZE * 10**9 // 4))) == 8
