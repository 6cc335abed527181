"""Where copies share a link or slow tasks down, the search foresees copies that are issued later."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.instance import Algorithm, Block, Instance, Link, Slowdown, Task


def task(
    name: str, ns: int, inputs: tuple[int, ...] = (), outputs: tuple[int, ...] = (), slowed_ppm: int = 0
) -> Task:
    return Task(
        name=name,
        inputs=inputs,
        outputs=outputs,
        algorithms=(Algorithm(name="any", duration_ns=ns, workspace_bytes=0),),
        slowdown_ppm=Slowdown(offload=slowed_ppm, prefetch=slowed_ppm) if slowed_ppm else UNSET,
    )


def crossing(link: Link | None, slowed_ppm: int) -> Instance:
    """A block comes while another one leaves, which is issued later; a long task waits for the first."""
    return Instance(
        name="crossing",
        engines="duplex",
        resident_bytes=0,
        alignment_bytes=1,
        rounds=1,
        budget_bytes=2000,
        blocks=(
            Block(name="X", bytes=1000, offload_ns=None, prefetch_ns=1000, initially="host"),
            Block(name="Y", bytes=1000, offload_ns=1000, prefetch_ns=None, finally_="host"),
        ),
        tasks=(
            task("makes Y", 200, outputs=(1,)),
            task("beside both", 400),
            task("reads X", 2000, inputs=(0,), slowed_ppm=slowed_ppm),
        ),
        link=UNSET if link is None else link,
    )


@pytest.mark.parametrize(
    ("rate", "slowed_ppm", "expected_ns"),
    [
        (None, 0, 3000),
        (10**9, 0, 3800),  # the block in has 200 ns by itself, and half the link after that
        (None, 500_000, 3100),  # the last task has the end of the other copy beside it
    ],
)
def test_the_estimate_has_what_is_issued_later(rate: int | None, slowed_ppm: int, expected_ns: int) -> None:
    link = None if rate is None else Link(both_bytes_per_second=rate)
    search = LocalSearch(crossing(link, slowed_ppm), "divisible")
    schedule = search.schedule("any")
    assert schedule is not None
    assert (search.cost, schedule.makespan_ns) == (expected_ns, expected_ns)
