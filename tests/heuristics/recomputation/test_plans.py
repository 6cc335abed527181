"""The search over plans, without copies and with them: against exhaustive search, and within the method."""

from __future__ import annotations

import math
from random import Random

import msgspec
import pytest
from numpy.random import default_rng

from pebbler.heuristics.methods import Limits, Refusal
from pebbler.heuristics.recomputation.plans import PlanSearch, is_alone
from pebbler.heuristics.recomputation.readings import Readings
from pebbler.heuristics.recomputation.reruns import staying, unrolled
from pebbler.heuristics.recomputation.search import RerunSearch, makers_of
from pebbler.heuristics.recomputation.takeovers import without_takeovers
from pebbler.heuristics.recomputation.unrolling import overwrites_of
from pebbler.heuristics.search.columns import columns_of
from pebbler.instances.instance import Instance
from pebbler.instances.memory import unlimited_peak, with_budget
from pebbler.instances.suites.generators import Knobs, generate
from pebbler.instances.suites.shapes import Layered
from pebbler.instances.suites.tiny import recomputing, scaled, without_copies
from pebbler.instances.transforms import split_parts, with_recomputation
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.decode import plan_in
from pebbler.solver.flow.recompute import recompute_model
from pebbler.solver.flow.recompute_method import flow_recompute
from pebbler.solver.linear.facade import solve_linear
from pebbler.validate.check import check

from ...adversary.instances import Shape, adversarial, with_own_inputs, with_own_outputs, with_takeovers
from ...reading import overwriting
from ...samples import chunks, sampled


def tiny(seed: int) -> Instance:
    """A tiny instance in which nothing can be copied, and nothing has to be."""
    return tiny_ends(without_copies(recomputing(seed)))


def tiny_ends(instance: Instance) -> Instance:
    """The instance in which nothing has to end on the host."""
    blocks = tuple(
        msgspec.structs.replace(block, finally_="anywhere" if block.finally_ == "host" else block.finally_)
        for block in instance.blocks
    )
    return msgspec.structs.replace(instance, blocks=blocks)


def layered(seed: int, percent: int = 60) -> Instance:
    """A random graph without copies, in some share of what the pool could give and take."""
    alone = Knobs(
        backward=False, recomputable_percent=100, transfer_percent=0, fast_percent=0, slack_percent=percent
    )
    return generate("layered", Layered(size=40, width=5), alone, default_rng(seed))


def search_of(instance: Instance, seed: int = 0) -> PlanSearch:
    """The search over plans of an instance in divisible memory."""
    columns = columns_of(without_takeovers(instance), "divisible")
    makers = makers_of(instance)
    return PlanSearch(columns, makers.of, makers.last, seed, overwrites_of(instance, columns))


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in range(0, 80, 20)])
def test_tiny_instances_are_solved_as_by_exhaustive_search(seeds: range) -> None:
    solved = 0
    for seed in seeds:
        instance = tiny(seed)
        optimum = brute_force(instance, "divisible", most_states=30_000)
        search = search_of(instance)
        search.run(work=200_000)
        assert search.time_ns == (None if optimum is None else optimum.makespan_ns), seed
        solved += optimum is not None
    assert solved > 5


@pytest.mark.parametrize("seeds", [range(0, 20), range(20, 40)])
def test_so_are_those_whose_outputs_take_over_places(seeds: range) -> None:
    solved = shorter = 0
    for seed in seeds:
        instance = overwriting(tiny(seed))
        instance = with_budget(instance, unlimited_peak(without_takeovers(instance)) - 512)
        optimum = brute_force(instance, "divisible", most_states=30_000)
        beside = search_of(without_takeovers(instance))
        search = search_of(instance)
        for one in (search, beside):
            one.run(work=200_000)
        assert search.time_ns == (None if optimum is None else optimum.makespan_ns), seed
        solved += optimum is not None
        shorter += search.time_ns != beside.time_ns
    assert min(solved, shorter) > 2


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_takes_as_long_as_it_says(seed: int) -> None:
    instance = layered(seed)
    plans = search_of(instance, seed)
    plans.run(work=3_000_000)
    assert plans.time_ns is not None
    assert plans.best()
    search = RerunSearch(instance, "divisible", seed)
    search.offer_plan(plans.best(), None)
    assert search.makespan_ns is not None
    assert search.makespan_ns <= plans.time_ns
    in_pages = RerunSearch(scaled(instance, size=PAGE_BYTES), "paged", seed)
    in_pages.offer_plan(plans.best(), None)
    schedule = in_pages.schedule("plans")
    assert schedule is not None
    assert schedule.makespan_ns == plans.time_ns
    assert check(scaled(instance, size=PAGE_BYTES), schedule).reasons == ()


def test_the_same_seed_gives_the_same_plan_however_it_is_stopped() -> None:
    instance = layered(0)
    once, twice = search_of(instance), search_of(instance)
    once.run(work=2_000_000)
    other = search_of(instance)
    other.run(work=2_000_000)
    assert (once.time_ns, once.best()) == (other.time_ns, other.best())
    while twice.time_ns is None or twice.time_ns > (once.time_ns or math.inf):
        assert not twice.done
        twice.run(work=100_000)


def test_cycles_begin_with_what_a_relaxation_suggests_even_if_memory_is_too_small_for_it() -> None:
    instance = staying(with_recomputation(Workload("resnet18", 8, "v100").instance("60%")))
    model = recompute_model(instance, range(0, len(instance.tasks), 3), "none")
    values = solve_linear(model.linear).values
    assert values is not None
    alike, led = search_of(instance, seed=1), search_of(instance, seed=1)
    led.suggest(plan_in(instance, model, values))
    assert led.time_ns is None
    for search in (alike, led):
        for _ in range(3):
            search.run(work=1, cycle=True)
    assert alike.time_ns is not None
    assert led.time_ns is not None
    assert led.time_ns < alike.time_ns


def test_a_plan_that_is_offered_is_where_the_search_goes_on() -> None:
    instance = layered(1)
    known = search_of(instance)
    known.run(work=3_000_000)
    search = search_of(instance, seed=1)
    assert search.time_ns is None
    search.offer(known.best())
    assert search.time_ns == known.time_ns
    assert search.best() == known.best()
    search.offer(frozenset())
    assert search.best() == known.best()
    assert not search.done
    search.run(work=200_000)
    assert search.time_ns <= known.time_ns


def test_plans_in_a_part_of_the_pool_are_no_shorter() -> None:
    search = search_of(layered(1))
    search.run(work=3_000_000)
    whole = search.time_ns
    search.keep_to(0.93)
    assert not search.done
    search.run(work=6_000_000)
    part = search.time_ns
    search.keep_to(1.0)
    assert search.time_ns == part  # what fits a part fits the whole
    search.run(work=3_000_000)
    assert whole is not None
    assert part is not None
    assert whole < part


def test_the_search_ends_after_cycles_without_a_better_plan() -> None:
    search = search_of(tiny(0))
    while not search.done:
        search.run(work=1_000_000)


def copying(name: str, batch: int, budget: str, device: str = "v100") -> Instance:
    """A network whose tasks may run again, and whose blocks may be copied."""
    return with_recomputation(Workload(name, batch, device).instance(budget))


def planning(instance: Instance, work: int) -> tuple[RerunSearch, PlanSearch]:
    """A search in paged memory, and its search for plans alone after so many runs."""
    search = RerunSearch(instance, "paged")
    plans = search.plans()
    assert plans is not None
    plans.run(work=work)
    return search, plans


@pytest.mark.parametrize(
    ("name", "batch", "budget"),
    [("resnet18", 64, "1.2xMmin"), ("googlenet", 32, "40%"), ("alexnet", 256, "1.1xMmin")],
)
@pytest.mark.parametrize("parts", [False, True])
def test_a_plan_with_copies_takes_about_as_long_as_it_says(
    name: str, batch: int, budget: str, parts: bool
) -> None:
    instance = copying(name, batch, budget)
    if parts:
        instance = split_parts(instance, 32 << 20)
    search, plans = planning(instance, 3_000_000)
    point = search.planned(plans)
    assert plans.time_ns is not None
    assert point.search.makespan_ns is not None
    assert 0.98 * plans.time_ns < point.search.makespan_ns < 1.02 * plans.time_ns
    assert plans.absences()
    search.offer_plan(point.plan, point.guide)
    schedule = search.schedule("plans")
    assert schedule is not None
    assert check(instance, schedule).reasons == ()


def test_blocks_are_away_between_uses_in_the_order_in_which_they_leave() -> None:
    instance = copying("resnet18", 64, "1.2xMmin")
    _, plans = planning(instance, 4_000_000)
    found, again = plans.absences(), unrolled(instance, plans.best())
    assert found
    assert [gap.after for gap in found] == sorted(gap.after for gap in found)
    touched = [instance.tasks[k].blocks for k, _ in again.runs]
    for gap in found:
        assert gap.after < gap.last < gap.until
        assert gap.block in touched[gap.after]
        assert gap.block in touched[gap.until]
        assert not any(gap.block in touched[i] for i in range(gap.after + 1, gap.until))


def test_a_plan_is_offered_with_the_blocks_that_are_away() -> None:
    instance = copying("resnet18", 64, "1.2xMmin")
    search, known = planning(instance, 4_000_000)
    other = search.plans()
    assert other is not None
    again = search.planned(known).again
    other.offer(known.best())
    assert other.time_ns is None
    other.offer(known.best(), away=again.away(again.guide(known.absences())))
    assert known.time_ns is not None
    assert other.time_ns == pytest.approx(known.time_ns, rel=0.01)


def test_what_a_search_for_transfers_finds_in_long_is_found_at_once() -> None:
    """A search for transfers after each change of a plan needs many times as long."""
    instance = copying("resnet50", 64, "25%")
    _, plans = planning(instance, 10_000_000)
    assert plans.time_ns is not None
    ideal = sum(min(one.duration_ns for one in task.algorithms) for task in instance.tasks)
    assert plans.time_ns < 1.19 * ideal  # 1.217 after a minute of the other; 1.137 is proven


@pytest.mark.parametrize("seeds", sampled(range(12), range(0, 120, 20)))
def test_with_copies_no_schedule_is_shorter_than_exhaustive_search_allows(seeds: range) -> None:
    solved = met = 0
    for seed in seeds:
        instance = recomputing(seed)
        try:
            optimum = brute_force(instance, "divisible", most_states=5_000)
        except TimeoutError:
            continue
        try:
            search = RerunSearch(scaled(instance, size=PAGE_BYTES), "paged", seed)
        except Refusal:
            continue
        search.run(work=100_000)
        if optimum is None:
            assert search.makespan_ns is None
        elif search.makespan_ns is not None:
            solved += 1
            met += search.makespan_ns == optimum.makespan_ns
            assert search.makespan_ns >= optimum.makespan_ns
    assert solved >= len(seeds) / 3
    assert met >= 0.8 * solved


def test_plans_say_all_where_nothing_is_copied() -> None:
    assert is_alone(columns_of(tiny(0), "paged"))
    copied = [is_alone(columns_of(recomputing(seed), "paged")) for seed in range(20)]
    assert not all(copied)
    for seed in range(20):
        instance = recomputing(seed)
        if any(block.prefetch_ns is not None for block in instance.blocks):
            assert not copied[seed]


def test_the_method_plans_so() -> None:
    instance = scaled(layered(2), size=PAGE_BYTES)
    plans = search_of(layered(2))
    plans.run(work=3_000_000)
    answer = flow_recompute(instance, Limits(4.0, memory="paged"))
    assert answer.schedule is not None
    assert plans.time_ns is not None
    assert answer.schedule.makespan_ns <= 1.02 * plans.time_ns


@pytest.mark.parametrize("first", chunks(range(0, 120, 60)))
def test_plans_and_readings_are_searched_together(first: int) -> None:
    """Each plan is a program of its reading, and no shorter than the optimum, whose runs may differ."""
    solved = met = several = 0
    for seed in range(first, first + 60):
        rng = Random(seed)
        instance = without_copies(adversarial(rng, Shape(tasks=6, blocks=6, digits=1, reruns=True)))
        instance = with_own_inputs(rng, tiny_ends(instance))
        instance = with_takeovers(rng, with_own_outputs(rng, instance) if seed % 2 else instance)
        if not instance.reads_vary:
            continue
        readings = Readings(instance)
        plans = readings.plans("divisible", seed)
        optimum = brute_force(instance, "divisible", most_states=30_000)
        if plans is None:
            continue
        plans.run(work=100_000)
        if plans.time_ns is None:
            continue
        reading = tuple(plans.ways().get(k, 0) for k in readings.tasks)
        search = RerunSearch(readings.instance(reading), "divisible")
        search.offer_plan(plans.best(), None)
        assert search.makespan_ns is not None
        assert search.makespan_ns <= plans.time_ns
        assert optimum is not None
        assert optimum.makespan_ns <= plans.time_ns
        solved += 1
        met += optimum.makespan_ns == plans.time_ns
        several += any(reading)
    assert solved > 8
    assert met > 0.7 * solved
    assert several > 2
