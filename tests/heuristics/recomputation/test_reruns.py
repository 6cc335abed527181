"""Plans of second runs: unrolled to tasks, searched, and rolled up again."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from msgspec.structs import replace

from chain import page_sized
from checkpointing import chain_optimum, random_chain, training_chain
from pebbler.heuristics.gaps import Guide
from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.parts import with_parts
from pebbler.heuristics.recomputation.reruns import (
    Plan,
    order_of,
    plan_of,
    rolled_up,
    stages_of,
    unrolled,
    useful,
)
from pebbler.heuristics.recomputation.search import RerunSearch
from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import least_budget, unlimited_peak, with_budget
from pebbler.instances.suites.tiny import plain, recomputing, tiny_instance
from pebbler.instances.transforms import with_recomputation
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.validate.check import check
from pebbler.validate.schedule import MemoryModel

from ...samples import chunks


def chain(budget: int) -> Instance:
    """Three layers without copies: Y0 -> Y1 -> Y2 -> Y3, then back; only Y1 and Y2 can be made again."""

    def block(name: str, *, there: bool = False) -> Block:
        where = "device" if there else "absent"
        return Block(name=name, bytes=1, offload_ns=None, prefetch_ns=None, initially=where)

    def task(name: str, reads: tuple[int, ...], writes: tuple[int, ...], *, again: bool = False) -> Task:
        plain = Algorithm(name="plain", duration_ns=10, workspace_bytes=0)
        return Task(name=name, inputs=reads, outputs=writes, algorithms=(plain,), recomputable=again)

    return Instance(
        name="three",
        engines="duplex",
        budget_bytes=budget,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(block("Y0", there=True), *(block(f"Y{i}") for i in (1, 2, 3)), block("D3"), block("D2")),
        tasks=(
            task("F0", (0,), (1,), again=True),
            task("F1", (1,), (2,), again=True),
            task("F2", (2,), (3,)),
            task("L", (3,), (4,)),
            task("B2", (2, 4), (5,)),
            task("B1", (1, 5), ()),
        ),
    )


def some_plan(instance: Instance, rng: np.random.Generator) -> Plan:
    """Second runs that may be, each with an even chance of one in three."""
    allowed = [(k, t) for t, stage in enumerate(stages_of(instance)) for k in stage if k != t]
    return useful(instance, [run for run in allowed if rng.random() < 0.35])


def test_second_runs_are_tasks_that_write_copies() -> None:
    instance = chain(4)
    again = unrolled(instance, {(0, 5), (1, 4)})
    assert again.runs == ((0, 0), (1, 1), (2, 2), (3, 3), (1, 4), (4, 4), (0, 5), (5, 5))
    assert again.copies[len(instance.blocks) :] == ((2, (1, 4)), (1, (0, 5)))
    made_again, last = again.instance.tasks[4], again.instance.tasks[7]
    assert (made_again.inputs, made_again.outputs) == ((1,), (6,))
    assert last.inputs == (7, 5)
    assert not any(task.recomputable for task in again.instance.tasks)


def test_what_nobody_reads_is_left_out() -> None:
    instance = chain(4)
    assert useful(instance, {(0, 2), (0, 5), (1, 5)}) == {(0, 5)}
    assert useful(instance, {(0, 4), (1, 4)}) == {(0, 4), (1, 4)}
    assert order_of(instance, ())[2] == (2, 2)


@pytest.mark.parametrize("first", chunks(range(0, 60, 20)))
def test_schedules_of_unrolled_instances_roll_up_to_valid_ones(first: int) -> None:
    """Whatever runs again, in every memory model: as long as before, or shorter for a copy that is shared."""
    rolled = again_run = 0
    for seed in range(first, first + 20):
        instance = recomputing(seed, parts=seed % 2 == 0)
        plan = some_plan(instance, np.random.default_rng(seed))
        again = unrolled(instance, plan)
        memories: tuple[MemoryModel, ...] = ("contiguous", "divisible")
        for memory in memories:
            try:
                search = LocalSearch(again.instance, memory)
            except Refusal:
                continue
            search.run(work=5_000)
            found = search.schedule("search")
            if found is None:
                continue
            assert check(again.instance, found).reasons == ()
            schedule = rolled_up(instance, again, found, "rolled")
            assert check(instance, schedule).reasons == ()
            assert schedule.makespan_ns <= found.makespan_ns
            assert plan_of(schedule) == plan
            rolled += 1
            again_run += bool(plan)
    assert rolled >= 15
    assert again_run >= 8


def test_a_guide_is_translated_from_plan_to_plan() -> None:
    """Gaps of blocks and runs that the other plan has, too, are kept; others are dropped."""
    instance = chain(4)
    one, other = unrolled(instance, {(1, 4)}), unrolled(instance, {(1, 4), (0, 5)})
    guide = Guide([(1, 1), (6, 4)], [(0, 0)], [0] * len(one.runs))
    told = one.translated(guide, other)
    assert told == Guide([(1, 1), (6, 4)], [(0, 0)], [0] * len(other.runs))
    back = other.translated(Guide([(7, 6)], [], [0] * len(other.runs)), one)
    assert back.returning == []


@pytest.mark.parametrize(
    ("seeds", "work"),
    [
        (range(2, 4), 10_000),
        *(pytest.param(range(first, first + 20), 30_000, marks=pytest.mark.slow) for first in (0, 20)),
    ],
)
def test_the_search_meets_exhaustive_search(seeds: range, work: int) -> None:
    solved = met = again = 0
    for seed in seeds:
        instance = recomputing(seed)
        try:
            optimum = brute_force(instance, "divisible", most_states=5_000)
            search = RerunSearch(instance, "contiguous", seed=1)
        except (TimeoutError, Refusal):
            continue
        search.run(work=work)
        schedule = search.schedule("search")
        if optimum is None:
            assert schedule is None
            continue
        assert schedule is not None
        assert check(instance, schedule).reasons == ()
        assert schedule.makespan_ns >= optimum.makespan_ns
        solved += 1
        met += schedule.makespan_ns == optimum.makespan_ns
        again += bool(plan_of(optimum))
    assert solved >= 0.6 * len(seeds)
    assert met >= 0.9 * solved
    assert again >= 1


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_without_copies_the_search_meets_the_dynamic_programme_on_a_chain(step: int) -> None:
    """At every budget at which there is a schedule; where the pool is too small for the first plan, too."""
    forward, backward = random_chain(4, seed=4)
    instance = training_chain(forward, backward, 1, 1)
    feasible = 0
    for budget in range(least_budget(instance), unlimited_peak(instance) + 1, step):
        limited = with_budget(instance, budget)
        search = RerunSearch(limited, "contiguous")
        search.run(work=30_000)
        optimum = chain_optimum(forward, backward, 1, 1, budget)
        schedule = search.schedule("search")
        if optimum == math.inf:
            assert schedule is None
            continue
        assert schedule is not None
        assert check(limited, schedule).reasons == ()
        assert schedule.makespan_ns == optimum
        feasible += 1
    assert feasible >= 3 / step


def test_the_same_seed_gives_the_same_schedule() -> None:
    instance = with_recomputation(Workload("alexnet", 128, "v100").instance("1.2xMmin"))
    found = []
    for _ in range(2):
        search = RerunSearch(instance, "paged", seed=3)
        search.run(work=20_000)
        found.append(search.schedule("search"))
    assert found[0] == found[1] is not None


def test_a_rule_s_second_runs_are_where_the_search_sets_off() -> None:
    instance = with_recomputation(Workload("resnet50", 32, "v100").instance("80%"))
    ruled = find_method("memonger-rule").call(instance, Limits()).schedule
    assert ruled is not None
    assert plan_of(ruled)
    search = RerunSearch(instance, "contiguous")
    search.offer(ruled)
    assert search.makespan_ns is not None
    assert search.makespan_ns <= ruled.makespan_ns


def test_without_tasks_that_may_run_again_it_is_local_search() -> None:
    instance = plain(12)
    search = RerunSearch(instance, "contiguous")
    search.run()
    alone = LocalSearch(instance, "contiguous")
    alone.run(work=search.round)
    assert search.done
    assert search.makespan_ns == alone.makespan_ns is not None


def test_parts_of_a_tensor_that_are_made_again_lie_together() -> None:
    """What a run writes of a tensor is a tensor of its own, at an address of its own."""
    instance = with_parts(with_recomputation(Workload("vgg16", 64, "v100").instance("1.2xMmin")))
    search = RerunSearch(instance, "contiguous")
    search.run(work=20_000)
    schedule = search.schedule("search")
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    made_again = {d for k, _ in plan_of(schedule) for d in instance.tasks[k].outputs}
    assert any(instance.blocks[d].tensor is not None for d in made_again)


def test_parts_that_are_not_alike_have_no_addresses() -> None:
    instance = next(
        one
        for one in map(tiny_instance, range(50))
        for parts in [[block for block in one.blocks if block.tensor is not None]]
        if None in {part.offload_ns for part in parts} != {None}
    )
    with pytest.raises(Refusal, match="such parts are placed in paged memory only"):
        RerunSearch(instance, "contiguous")
    search = RerunSearch(page_sized(instance), "paged")
    search.run(work=5_000)
    schedule = search.schedule("search")
    assert schedule is not None
    assert check(page_sized(instance), schedule).reasons == ()


def test_work_on_the_host_is_refused() -> None:
    instance = chain(4)
    *tasks, last = instance.tasks
    hosted = replace(last, algorithms=(replace(last.algorithms[0], on="host"),))
    with pytest.raises(Refusal, match="together with work on the host"):
        RerunSearch(replace(instance, tasks=(*tasks, hosted)), "contiguous")


def test_a_search_goes_on_from_other_plans_after_it_is_done() -> None:
    """Each descent starts anew, and the best program remains."""
    instance = chain(4)
    search = RerunSearch(instance, "contiguous", seed=2)
    search.run()
    while not search.done:
        search.run()
    found = search.makespan_ns
    assert found is not None
    for _ in range(2):
        search.offer_plan(frozenset(), Guide([], [], [0] * len(instance.tasks)))
    began = time.monotonic()
    search.run(seconds=0.3, work=10**12)
    assert time.monotonic() - began >= 0.3
    assert search.makespan_ns <= found
    schedule = search.schedule("search")
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
