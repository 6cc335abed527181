"""Sides of tasks and places of carried blocks together: what is changed, and what is never worse for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.host_work import on_sides
from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.instance import Algorithm, Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.workload import Workload
from pebbler.solver.choosing import Choice
from pebbler.solver.jointly import choose_jointly
from pebbler.solver.steady import movable, settled
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

from ..samples import counts
from .test_sides import step


def made(
    instance: Instance,
    sides: Choice = frozenset(),
    places: Sequence[Choice] = (frozenset(),),
    limits: Limits | None = None,
) -> Schedule:
    """Choose jointly from some sides and places, and plan with local search."""
    info = find_method("local-search")

    limits = Limits(memory="paged") if limits is None else limits
    answer = choose_jointly(instance, info, info.call, limits, sides, places, bounded=False)
    assert answer.schedule is not None
    assert check(instance, answer.schedule).reasons == ()
    return answer.schedule


def either(instance: Instance) -> Choice:
    return frozenset(k for k, task in enumerate(instance.tasks) if task.may_run_on_host)


def test_nothing_stays_on_a_slow_host_that_need_not() -> None:
    """Not even if all begins there, and is alone among what is offered."""
    freed = 0
    for seed in range(60):
        instance = with_budget(step(seed), 2**30)
        tasks = tuple(
            replace(task, algorithms=tuple(slowed(one) for one in task.algorithms)) for task in instance.tasks
        )
        instance = replace(instance, tasks=tasks, host_budget_bytes=UNSET)
        free = either(instance)
        if free and all(instance.tasks[k].device_algorithms for k in free) and instance.carried:
            schedule = made(instance, free, [frozenset(instance.carried)])
            assert not any(operation.stream == "host" for operation in schedule.operations)
            freed += 1
    assert freed


def slowed(one: Algorithm) -> Algorithm:
    return replace(one, duration_ns=1000 * one.duration_ns) if one.on == "host" else one


@pytest.mark.parametrize("count", counts(2, 60))
def test_it_is_never_worse_than_without_changes_and_mostly_the_best(count: int) -> None:
    """Of all sides and places of tiny steps, those that look best are found from the first ones."""
    best = 0
    seeds = [seed for seed in range(4 * count) if step(seed).carried and either(step(seed))][:count]
    for seed in seeds:
        instance = step(seed)
        must = frozenset(k for k in either(instance) if not instance.tasks[k].device_algorithms)
        free = sorted(either(instance) - must)
        groups = movable(instance)
        found = {}
        for on_host, there in product(
            product((False, True), repeat=len(free)), product((0, 1), repeat=len(groups))
        ):
            sides = must | {k for k, one in zip(free, on_host, strict=True) if one}
            hosted = frozenset(d for group, one in zip(groups, there, strict=True) if one for d in group)
            try:
                found[sides, hosted] = unchanged(instance, sides, hosted)
            except Refusal:
                continue
        start = (must, frozenset(instance.carried))
        if start not in found:
            continue
        makespan = made(instance, start[0], [start[1]]).makespan_ns
        assert makespan <= found[start]
        assert makespan >= min(found.values())
        best += makespan == min(found.values())
    assert best >= 0.5 * len(seeds)


def unchanged(instance: Instance, sides: Choice, hosted: Choice) -> int:
    """Return the makespan of what local search finds for given sides and places."""
    sided = on_sides(instance, sides, "paged")
    given = settled(sided, hosted.intersection(sided.carried), "paged", "homing")
    schedule = find_method("local-search").call(given, Limits(memory="paged")).schedule
    assert schedule is not None
    return schedule.makespan_ns


def test_a_warm_start_is_where_it_begins() -> None:
    instance = next(one for one in map(step, range(40)) if one.carried and either(one))
    first = made(instance, either(instance), [frozenset(instance.carried)])
    again = made(instance, either(instance), [], Limits(memory="paged", warm_start=first))
    assert again.makespan_ns <= first.makespan_ns


def test_ctrl_c_while_choices_are_looked_at_keeps_the_best_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    searched = LocalSearch.run

    def pressed(search: LocalSearch, seconds: float, work: int) -> None:
        if len(looked) == 3:
            raise KeyboardInterrupt
        searched(search, seconds, work)
        looked.append(search.cost)

    monkeypatch.setattr(LocalSearch, "run", pressed)
    workload = Workload("lenet", 4, "K40", steady=True, optimizer="adam", optimizer_on="choose")
    instance = workload.instance("64MiB")
    assert made(instance, either(instance), [frozenset(instance.carried)]).makespan_ns == min(looked)
