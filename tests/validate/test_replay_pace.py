"""The replay where copies share a link and slow compute down: how long operations take, by hand."""

from __future__ import annotations

from random import Random
from typing import Literal

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.instances.instance import Algorithm, Block, Instance, Link, Slowdown, Task
from pebbler.validate.replay.machine import replay
from pebbler.validate.schedule import Operation, Residence, Schedule

OUT, IN = 0, 1

RUN, OFFLOAD, PREFETCH = range(3)

Copy = tuple[int, int]
"""Bytes of a block, and the time of its copy alone."""


def instance_of(
    out: Copy,
    back: Copy,
    *,
    link: int | None = None,
    slowdown: tuple[int, int] = (0, 0),
    run_ns: int = 10,
    engines: Literal["duplex", "single"] = "duplex",
) -> Instance:
    """One task, and two blocks that are copied meanwhile: one out, and one in."""
    return Instance(
        name="meanwhile",
        engines=engines,
        budget_bytes=1000,
        resident_bytes=0,
        blocks=(
            Block(name="out", bytes=out[0], offload_ns=out[1], prefetch_ns=1, initially="device"),
            Block(name="in", bytes=back[0], offload_ns=1, prefetch_ns=back[1], initially="host"),
        ),
        tasks=(
            Task(
                name="task",
                inputs=(),
                outputs=(),
                algorithms=(Algorithm(name="a", duration_ns=run_ns, workspace_bytes=0),),
                slowdown_ppm=Slowdown(offload=slowdown[0], prefetch=slowdown[1]) if any(slowdown) else UNSET,
            ),
        ),
        link=UNSET if link is None else Link(both_bytes_per_second=link * 10**9),
    )


def program(instance: Instance, *times: tuple[int, int]) -> Schedule:
    """The run and both copies, at these times."""
    single = instance.engines == "single"
    (run, offload, prefetch), peak = times, sum(block.bytes for block in instance.blocks)
    return Schedule(
        format="pebbler/schedule/1",
        instance="meanwhile",
        method="hand",
        memory_model="divisible",
        operations=(
            Operation(
                id=RUN, stream="compute", kind="run", task=0, algorithm=0, start_ns=run[0], end_ns=run[1]
            ),
            Operation(
                id=OFFLOAD,
                stream="copy" if single else "d2h",
                kind="offload",
                block=OUT,
                start_ns=offload[0],
                end_ns=offload[1],
            ),
            Operation(
                id=PREFETCH,
                stream="copy" if single else "h2d",
                kind="prefetch",
                block=IN,
                start_ns=prefetch[0],
                end_ns=prefetch[1],
            ),
        ),
        residences=(
            Residence(block=OUT, bytes=instance.blocks[OUT].bytes),
            Residence(block=IN, bytes=instance.blocks[IN].bytes, acquired_by=PREFETCH),
        ),
        makespan_ns=max(end for _, end in times),
        peak_bytes=peak,
    )


def faults(instance: Instance, schedule: Schedule) -> list[str]:
    return [str(fault) for fault in replay(instance, schedule, None, Random(0))]


@pytest.mark.parametrize(
    ("instance", "ends"),
    [
        # two bytes a nanosecond: the slower copy takes its one, and leaves one
        (instance_of((8, 8), (8, 2), link=2), (10, 8, 8)),
        # nobody is held up by a link as fast as both
        (instance_of((8, 8), (8, 4), link=3), (10, 8, 4)),
        # two of three for the faster copy, until it has the link to itself
        (instance_of((4, 4), (20, 5), link=3), (10, 4, 8)),
        # both want more than half; what is left then has the link to itself
        (instance_of((12, 2), (9, 3), link=3), (10, 7, 6)),
        # a third of the second copy is left when the first has gone
        (instance_of((6, 2), (9, 3), link=3), (10, 4, 5)),
        # 9 of 10 bytes pass in the 3 ns that its time was rounded down to: these are its load
        (instance_of((10, 3), (1, 0), link=3), (10, 3, 0)),
        # 13 bytes need 4 1/3 ns, although its own time is 3 ns
        (instance_of((13, 3), (1, 0), link=3), (10, 5, 0)),
        # at half its speed for 4 ns, at a half for 5 with a fraction at the end
        (instance_of((8, 4), (1, 0), slowdown=(500_000, 0)), (12, 4, 0)),
        (instance_of((8, 5), (1, 0), slowdown=(300_000, 0)), (12, 5, 0)),
        # each direction takes its part, and both stop it
        (instance_of((8, 4), (8, 6), slowdown=(500_000, 500_000)), (15, 4, 6)),
        # a copy without time slows nothing down
        (instance_of((8, 0), (8, 6), slowdown=(500_000, 0)), (10, 0, 6)),
        # a link makes copies longer, and these slow the run down for longer
        (instance_of((12, 2), (9, 3), link=3, slowdown=(250_000, 250_000)), (14, 7, 6)),
    ],
)
def test_times_are_those_that_follow_from_the_shares(instance: Instance, ends: tuple[int, int, int]) -> None:
    schedule = program(instance, *((0, end) for end in ends))
    assert faults(instance, schedule) == []
    longer = program(instance, *((0, end + 1) for end in ends))
    assert len(faults(instance, longer)) == 4


def test_one_engine_takes_the_link_as_it_is() -> None:
    instance = instance_of((10, 2), (3, 3), link=3, slowdown=(100_000, 1_000_000), engines="single")
    assert faults(instance, program(instance, (0, 14), (0, 4), (4, 7))) == []


def test_drawn_durations_are_taken_as_they_are() -> None:
    """So every order of events can be asked for."""
    instance = instance_of((12, 2), (9, 3), link=3, slowdown=(250_000, 250_000))
    schedule = program(instance, (0, 14), (0, 7), (0, 6))
    assert replay(instance, schedule, (10, 2, 3), Random(0)) == []


def test_times_without_a_link_are_as_before() -> None:
    instance = instance_of((12, 2), (9, 3), link=3, slowdown=(250_000, 250_000))
    alone = replace(instance, link=UNSET, tasks=(replace(instance.tasks[0], slowdown_ppm=UNSET),))
    assert faults(alone, program(alone, (0, 10), (0, 2), (0, 3))) == []
