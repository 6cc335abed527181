"""Columns of unrolled instances: those of the instance that `unrolled` makes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from pebbler.heuristics.recomputation.reruns import Plan, order_of, stages_of, unrolled, useful
from pebbler.heuristics.recomputation.takeovers import without_takeovers
from pebbler.heuristics.recomputation.unrolling import excess, overwrites_of, unrolling
from pebbler.heuristics.search.columns import Columns, columns_of
from pebbler.instances.instance import Instance, Link, Slowdown
from pebbler.instances.memory import footprint, stuck_bytes
from pebbler.instances.suites.tiny import recomputing
from pebbler.validate.schedule import MemoryModel

from ...reading import overwriting
from ...samples import chunks

MEMORIES: tuple[MemoryModel, ...] = ("contiguous", "divisible")


def varied(seed: int) -> Instance:
    """A tiny instance with tasks that may run again; some share a link, are slowed or have a host budget."""
    instance = recomputing(seed, parts=seed % 2 == 0)
    if seed % 3 == 1:
        return replace(instance, link=Link(both_bytes_per_second=700_000_000), host_budget_bytes=2048)
    if seed % 3 == 2:
        slowed = Slowdown(offload=100_000 + seed, prefetch=seed)
        tasks = [
            replace(task, slowdown_ppm=slowed) if k % 2 else task for k, task in enumerate(instance.tasks)
        ]
        return replace(instance, tasks=tuple(tasks))
    return instance


def any_plan(instance: Instance, rng: np.random.Generator) -> Plan:
    """Second runs that may be, useful or not."""
    chance = rng.random()
    allowed = [(k, t) for t, stage in enumerate(stages_of(instance)) for k in stage if k != t]
    return frozenset(run for run in allowed if rng.random() < chance)


def numbered(columns: Columns) -> Columns:
    """The same columns with tensors numbered as they come."""
    found: dict[int, int] = {-1: -1}
    return columns._replace(
        tensor=np.array([found.setdefault(t, len(found)) for t in columns.tensor.tolist()])
    )


@pytest.mark.parametrize("first", chunks(range(0, 90, 30)))
def test_columns_of_a_plan_are_those_of_the_unrolled_instance(first: int) -> None:
    copies = 0
    for seed in range(first, first + 30):
        instance, rng = varied(seed), np.random.default_rng(seed)
        for memory in MEMORIES:
            plan = any_plan(instance, rng)
            again = unrolled(instance, plan)
            made = unrolling(instance, columns_of(instance, memory), plan)
            assert (made.runs, made.copies) == (again.runs, again.copies)
            one, other = numbered(made.columns), numbered(columns_of(again.instance, memory))
            for name, value in one._asdict().items():
                np.testing.assert_equal(value, getattr(other, name), err_msg=f"{name} of {seed}")
            copies += len(again.copies) - len(instance.blocks)
    assert copies > 100


@pytest.mark.parametrize("first", chunks(range(0, 60, 30)))
def test_one_block_stands_for_an_output_and_the_input_that_it_overwrites(first: int) -> None:
    merges = second = 0
    for seed in range(first, first + 30):
        instance, rng = overwriting(recomputing(seed, parts=False)), np.random.default_rng(seed)
        if seed % 3 == 0:  # some blocks pass more of the link than others
            loads = (replace(d, load_bytes=500 + i % 2) for i, d in enumerate(instance.blocks))
            link = Link(both_bytes_per_second=700_000_000)
            instance = replace(instance, blocks=tuple(loads), link=link)
        for memory in MEMORIES:
            plan = useful(instance, any_plan(instance, rng))
            again = unrolled(instance, plan)
            columns = columns_of(without_takeovers(instance), memory)
            made = unrolling(instance, columns, plan, overwrites_of(instance, columns))
            assert made.merges == again.merges
            assert by_task(made.columns) == by_task(columns_of(again.instance, memory))
            np.testing.assert_equal(made.columns.last, columns_of(again.instance, memory).last)
            changes = [i for changes in made.merges.values() for i, _ in changes]
            merges += len(changes)
            second += sum(again.runs[i][0] != again.runs[i][1] for i in changes)
            for block, after, until in zip(*made.stays(), strict=True):
                if until < len(again.runs):  # the run that ends a stay touches the original block of it
                    k = again.runs[until][0]
                    assert block in instance.tasks[k].blocks
                assert after < 0 or block in instance.tasks[again.runs[after][0]].blocks
    assert min(merges, second) > 20


def by_task(columns: Columns) -> list[list[tuple[int, int]]]:
    """What each task touches, and how."""
    each = zip(columns.touches.block.tolist(), columns.touches.kind.tolist(), strict=True)
    touches = list(each)
    begin = columns.touches.begin.tolist()
    return [sorted(touches[i:j]) for i, j in pairwise(begin)]


@pytest.mark.parametrize("first", chunks(range(0, 90, 30)))
def test_excess_is_what_no_eviction_makes_room_for(first: int) -> None:
    short = 0
    for seed in range(first, first + 30):
        instance = varied(seed)
        instance = replace(instance, budget_bytes=instance.budget_bytes * 2 // 3)
        plan = any_plan(instance, np.random.default_rng(seed))
        again = unrolled(instance, plan).instance
        expected = sum(
            max(
                stuck
                + footprint(again, k)
                + min(one.workspace_bytes for one in again.tasks[k].algorithms)
                - again.pool_bytes,
                0,
            )
            for k, stuck in enumerate(stuck_bytes(again))
        )
        assert excess(unrolling(instance, columns_of(instance, "divisible"), plan).columns) == expected
        short += expected > 0
    assert short > 5


def is_read(instance: Instance, plan: Plan, run: tuple[int, int]) -> bool:
    """Whether something that a second run writes is read before it is written again, or has to be there."""
    runs = order_of(instance, plan)
    written = instance.tasks[run[0]].outputs
    for k, _ in runs[runs.index(run) + 1 :]:
        task = instance.tasks[k]
        if not set(written).isdisjoint((*task.inputs, *task.updates)):
            return True
        if k == run[0]:
            return False
    return any(instance.blocks[d].finally_ == "device" for d in written)


@pytest.mark.parametrize("first", chunks(range(0, 90, 30)))
def test_what_nobody_reads_does_not_run_again(first: int) -> None:
    left_out = 0
    for seed in range(first, first + 30):
        instance, rng = recomputing(seed), np.random.default_rng(seed)
        plan = any_plan(instance, rng)
        left = plan
        while idle := {run for run in left if not is_read(instance, left, run)}:
            left -= idle
        assert useful(instance, plan) == left
        left_out += len(plan) - len(left)
    assert left_out > 20
