"""The plain enumeration: which copies it takes for known, and places of copies in host memory that ends."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from pebbler.instances.instance import Algorithm, Block, Instance, Link, Task
from pebbler.instances.transforms import in_pages
from pebbler.instances.units import PAGE_BYTES, ceil_to
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.validate.check import check

from ..samples import counts
from .enumeration import Enumeration, TooManyError
from .instances import Shape, adversarial, with_carried


@pytest.mark.parametrize(("reads_again", "idle"), [(False, 1), (True, 0)])
def test_a_copy_is_known_where_its_block_was_absent(reads_again: bool, idle: int) -> None:
    """After the first task nothing takes time but the third and, on the one engine, offloads. An offload
    beside the third is known only where the block is absent at the fourth and comes back for a fifth."""
    block = Block(name="b", bytes=1, offload_ns=1, prefetch_ns=0)
    tasks = [
        Task(
            name=f"k{k}",
            inputs=(0,) if k == 2 or (k == 4 and reads_again) else (),
            outputs=(0,) if k == 0 else (),
            algorithms=(Algorithm(name="a", duration_ns=int(k == 2), workspace_bytes=0),),
        )
        for k in range(5)
    ]
    instance = Instance(
        name="late",
        engines="single",
        budget_bytes=1,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(block,),
        tasks=tuple(tasks),
    )
    assert Enumeration(instance, 100_000).idle(1) == idle


@pytest.mark.parametrize(
    ("bytes_per_second", "idle"), [(1_000_000_000, 0), (333_333_333, 3), (400_000_000, 2)]
)
def test_a_known_copy_on_a_slow_link_counts_for_as_long_as_it_takes_alone(
    bytes_per_second: int, idle: int
) -> None:
    """The rest of its time is idle, as in FLOW, whose rows have the times of copies alone."""
    instance = Instance(
        name="ends on the host",
        engines="single",
        budget_bytes=1,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(Block(name="b", bytes=1, offload_ns=1, prefetch_ns=1, finally_="host"),),
        tasks=(
            Task(
                name="k",
                inputs=(),
                outputs=(0,),
                algorithms=(Algorithm(name="a", duration_ns=1, workspace_bytes=0),),
            ),
        ),
        link=Link(both_bytes_per_second=bytes_per_second),
    )
    assert Enumeration(instance, 100_000).idle(1) == idle


STEP = 512
"""Places of copies in host memory are multiples of it."""


def _few_places(rng: Random, *, carried: bool) -> Instance:
    """Return an instance whose blocks take a page each, and a few steps of a scarce host memory."""
    instance = adversarial(rng, Shape(tasks=4, blocks=3, digits=0, parts=False))
    if carried:
        instance = with_carried(rng, instance)
    blocks = tuple(replace(block, bytes=rng.randint(1, 3 * STEP)) for block in instance.blocks)
    tasks = tuple(
        replace(
            task,
            algorithms=tuple(replace(a, workspace_bytes=min(a.workspace_bytes, 1)) for a in task.algorithms),
        )
        for task in instance.tasks
    )
    pages = max(len(task.blocks) + min(a.workspace_bytes for a in task.algorithms) for task in tasks)
    steps = sum(ceil_to(block.bytes, STEP) for block in blocks) // STEP
    return replace(
        instance,
        blocks=blocks,
        tasks=tasks,
        budget_bytes=max(pages, 1) * PAGE_BYTES,
        resident_bytes=0,
        host_budget_bytes=max(STEP * rng.randint(0, steps) + rng.choice((0, 0, 1, -1)), 0),
    )


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("count", counts(20, 200))
def test_copies_at_multiples_of_the_greatest_common_divisor_suffice(carried: bool, count: int) -> None:
    """Exhaustive search tries these offsets on the host, and the plain enumeration all multiples of 512."""
    judged = copied = 0
    for seed in range(count):
        instance = _few_places(Random(seed), carried=carried)
        # in whole pages on the device; copies on the host have exact bytes
        paged = replace(in_pages(instance), host_budget_bytes=instance.host_budget_bytes)
        search = Enumeration(paged, 1500, host_step=STEP, copies=[block.bytes for block in instance.blocks])
        try:
            least = search.shortest()
            found = brute_force(instance, "paged", most_states=1500)
        except (TooManyError, TimeoutError):
            continue
        judged += 1
        assert (None if found is None else found.makespan_ns) == least, instance
        if found is not None:
            assert check(instance, found).reasons == (), instance
            copied += bool(found.host_peak_bytes)
    assert judged >= 0.5 * count
    assert copied >= 0.05 * count
