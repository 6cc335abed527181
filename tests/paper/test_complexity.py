"""The reduction of the text's first proposition: a partition into triples is a schedule without a pause."""

from __future__ import annotations

import pytest

import pebbler
from pebbler.instances.instance import Algorithm, Block, Instance, Task


def reduced(numbers: tuple[int, ...], page: int = 1) -> Instance:
    """Return the instance of a problem of 3-Partition, as the proof has it."""
    parts = len(numbers) // 3
    large = len(numbers) + 1
    length = sum(numbers) // parts

    def block(name: str, pages: int, offload: int, *, stays: bool = False) -> Block:
        return Block(
            name=name,
            bytes=pages * page,
            offload_ns=offload,
            prefetch_ns=None,
            finally_="anywhere" if stays else "host",
        )

    def task(name: str, time: int, *outputs: int) -> Task:
        return Task(
            name=name,
            inputs=(),
            outputs=outputs,
            algorithms=(Algorithm(name="only", duration_ns=time, workspace_bytes=0),),
        )

    small = [block(f"a{i}", 1, number) for i, number in enumerate(numbers)]
    tall = [block(f"y{j}", large, 1, stays=j == parts - 1) for j in range(parts)]
    tasks = [task("T", 1, *range(len(small)))]
    for j in range(parts):
        tasks.append(task(f"P{j}", length, len(small) + j))
        if j < parts - 1:
            tasks.append(task(f"S{j}", 1))
    return Instance(
        name="3-partition",
        engines="duplex",
        alignment_bytes=1,
        budget_bytes=(large + len(small)) * page,
        resident_bytes=0,
        blocks=(*small, *tall),
        tasks=tuple(tasks),
    )


@pytest.mark.parametrize(
    ("numbers", "possible"),
    [((4, 4, 4, 5, 5, 4), True), ((4, 4, 4, 4, 4, 6), False)],
)
def test_a_schedule_without_a_pause_is_a_partition(numbers: tuple[int, ...], possible: bool) -> None:
    instance = reduced(numbers)
    total = sum(task.algorithms[0].duration_ns for task in instance.tasks)
    assert total == 2 * (sum(numbers) // 2 + 1)
    result = pebbler.solve(instance, "cp-sat", time_limit=60)
    assert result.status == "optimal"
    assert result.makespan_ns is not None
    assert (result.makespan_ns == total) == possible
