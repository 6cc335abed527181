"""The judge of windows: which copies it takes for known, worked out by hand."""

from __future__ import annotations

import pytest

from pebbler.instances.instance import Algorithm, Block, Instance, Task

from .enumeration import Enumeration


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
