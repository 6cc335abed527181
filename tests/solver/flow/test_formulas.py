"""FLOW as the page has it, against FLOW as the library builds it: the same columns and the same rows."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, islice
from random import Random

import pytest
from msgspec.structs import replace

from pebbler.instances.instance import Instance
from pebbler.instances.suites.tiny import recomputing, tiny_instance, twisted, without_copies
from pebbler.instances.transforms import split_parts, with_recomputation
from pebbler.instances.workload import Workload
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.families import Window
from pebbler.solver.flow.gpus import cluster_flow_model, pair_flow_model
from pebbler.solver.flow.machine.bus import Reach
from pebbler.solver.flow.model import FlowModel, Integrality, flow_model, window_model
from pebbler.solver.flow.recompute import RecomputeModel, recompute_model
from pebbler.solver.flow.versions import joined
from pebbler.solver.linear.facade import solve_linear
from pebbler.validate.bounds.arguments import least_times

from ...adversary.instances import Shape, adversarial, with_own_inputs, with_own_outputs, with_takeovers
from ...reading import in_place_again
from ...samples import chunks, counts
from ...validate.hostile import hostile_cluster, hostile_instance
from .formulas import Rows, flow, one_and_others, patterns_of, several_gpus, with_second_runs

HOW: tuple[Integrality, ...] = ("none", "algorithms", "all")


def agree(page: Rows, model: FlowModel | RecomputeModel) -> Counter[str]:
    """Require the same rows of every family; how many there are of each."""
    built = patterns_of(model.linear, model.rows)
    assert page.patterns() == built
    linear = model.linear
    columns = [(low, high, cost, whole) for low, high, cost, whole in page.columns.values()]
    made = zip(linear.lower, linear.upper, linear.cost, linear.integer, strict=True)
    assert Counter((round(low, 6), *rest) for low, *rest in columns) == Counter(
        (round(float(low), 6), float(high), float(cost), bool(whole)) for low, high, cost, whole in made
    )
    return Counter({family: rows.total() for family, rows in built.items()})


def tiny(first: int) -> list[Instance]:
    """Instances of all kinds; in four of them and more, tasks may run again, in one after each other."""
    seeds = range(first, first + 4)
    later = map(tiny_instance, range(first + 4, first + 99))
    again = (instance for instance in later if any(task.recomputable for task in instance.tasks))
    return [
        *map(tiny_instance, seeds),
        *islice(again, 3),
        *(without_copies(recomputing(seed)) for seed in seeds),
        *map(twisted, seeds),
        *(hostile_instance(Random(seed), most_tasks=4) for seed in seeds),
        with_recomputation(Workload("lenet", 1 + first, "k40").instance("Mmin+20%")),
    ]


@pytest.mark.parametrize("first", chunks(range(0, 16, 4)))
def test_the_rows_are_those_of_the_page(first: int) -> None:
    seen: Counter[str] = Counter()
    for instance in tiny(first):
        n = len(instance.tasks)
        again = any(task.recomputable for task in instance.tasks)
        windows = [(0, max(n // 2, 1), 11, False), (n // 2, n, 5, False), (n - 1, n, 3, True)]
        for checkpoints in ([], list(range(0, n, 2)), list(range(n))):
            for how in HOW:
                if again:
                    between = instance.nothing_returns
                    other = recompute_model(instance, checkpoints, how, between=between)
                    units = other.nanoseconds, other.bytes
                    joint = instance if how == "all" else joined(instance)[0]
                    page = with_second_runs(joint, checkpoints, how, *units, between=between)
                    seen += agree(page, other)
                    continue
                for some in (windows[:0], windows):
                    model = flow_model(instance, checkpoints, how, [Window(*window) for window in some])
                    units = model.nanoseconds, model.bytes
                    seen += agree(flow(instance, checkpoints, how, *units, windows=some), model)
            if not again:
                model = flow_model(instance, checkpoints, "all", unbroken=True)
                units = model.nanoseconds, model.bytes
                seen += agree(flow(instance, checkpoints, "all", *units, long=1 / 3), model)
    assert len(seen) == 36
    assert min(seen.values()) >= 5


@pytest.mark.parametrize("count", counts(12, 150))
def test_the_rows_of_what_algorithms_read_are_those_of_the_page(count: int) -> None:
    seen: Counter[str] = Counter()
    for how in HOW:
        model = recompute_model(in_place_again(), range(4), how)
        units = model.nanoseconds, model.bytes
        assert agree(with_second_runs(in_place_again(), range(4), how, *units), model)["read"]
    for seed in range(count):
        rng = Random(seed)
        shape = Shape(tasks=5, blocks=5, digits=1, reruns=seed % 3 > 0)
        instance = with_own_inputs(rng, adversarial(rng, shape))
        if seed % 4 > 1:
            instance = with_own_outputs(rng, instance)
        if seed % 2:
            instance = with_takeovers(rng, instance)
        if not instance.reads_vary:
            continue
        n = len(instance.tasks)
        between = instance.nothing_returns
        for checkpoints in (list(range(0, n, 2)), list(range(n))):
            for how in HOW:
                model = recompute_model(instance, checkpoints, how, between=between)
                units = model.nanoseconds, model.bytes
                seen += agree(with_second_runs(instance, checkpoints, how, *units, between=between), model)
    assert min(seen["chosen"], seen["until chosen"], seen["makers"]) >= 5 * count / 12


@pytest.mark.parametrize("first", chunks(range(0, 16, 4)))
def test_the_rows_of_a_window_are_those_of_the_page(first: int) -> None:
    for instance in tiny(first):
        if any(task.recomputable for task in instance.tasks):
            continue
        n, before = len(instance.tasks), [0, *accumulate(least_times(instance))]
        for begin, until, idle in ((0, max(n // 2, 1), False), (n // 2, n, False), (n // 2, n, True)):
            for how in HOW:
                model = window_model(instance, begin, until, how, before, idle=idle)
                units = model.nanoseconds, model.bytes
                checkpoints = list(range(max(begin - 1, 0), until))
                page = flow(instance, checkpoints, how, *units, stretch=(begin, until), idle=idle)
                agree(page, model)


def test_the_rows_of_host_memory_are_those_of_the_page() -> None:
    rows = 0
    rng = Random(1)
    for instance in tiny(0):
        if any(task.recomputable for task in instance.tasks):
            continue
        n = len(instance.tasks)
        for share in (0, rng.random(), 2):
            host = int(share * sum(block.bytes for block in instance.blocks) / 2)
            tight = replace(instance, host_budget_bytes=host)
            for how in HOW:
                model = flow_model(tight, range(n), how)
                page = flow(tight, list(range(n)), how, model.nanoseconds, model.bytes)
                rows += agree(page, model)["host"]
                before = [0, *accumulate(least_times(tight))]
                window = window_model(tight, n // 2, n, how, before)
                units, stretch = (window.nanoseconds, window.bytes), (n // 2, n)
                agree(flow(tight, list(window.checkpoints), how, *units, stretch=stretch), window)
    assert rows >= 100


@pytest.mark.parametrize("first", chunks(range(0, 80, 20)))
def test_the_rows_of_several_gpus_are_those_of_the_page(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 20):
        instance = hostile_cluster(Random(seed))
        for checkpoints in ([], list(range(len(instance.tasks)))):
            for how in HOW:
                model = cluster_flow_model(instance, checkpoints, how)
                units = model.nanoseconds, model.bytes
                seen += agree(several_gpus(instance, checkpoints, how, *units), model)
                for last in (False, True) if how == "none" and "bus" in model.rows else ():
                    at = Reach(0, len(checkpoints), last)
                    page = one_and_others(instance, checkpoints, at, *units)
                    seen += agree(page, pair_flow_model(instance, checkpoints, at))
    assert min(seen[family] for family in ("way", "gradients", "bus", "together", "reach")) >= 20


def test_a_network_has_the_rows_and_the_bound_of_the_page() -> None:
    whole = Workload("alexnet", 512, "v100").instance("1.05xMmin")
    for instance in (whole, split_parts(whole, 64 * 2**20)):
        checkpoints = hot_checkpoints(instance, 9)
        for how in HOW:
            model = flow_model(instance, checkpoints, how)
            page = flow(instance, checkpoints, how, model.nanoseconds, model.bytes)
            agree(page, model)
            if how == "none":
                optima = [solve_linear(linear).objective for linear in (page.linear(), model.linear)]
                assert optima[0] == pytest.approx(optima[1], rel=1e-6)


def test_rows_are_known_by_their_family() -> None:
    instance = Workload("alexnet", 64, "k40").instance("1.05xMmin")
    model = flow_model(instance, hot_checkpoints(instance, 6), "all", unbroken=True)
    assert list(model.rows)[:5] == ["memory", "algorithm", "run", "out", "back"]
    assert model.rows["memory"].tolist() == model.memory_rows.tolist()
    assert model.rows["back"].tolist() == model.engine_rows[1].tolist()
    every = sorted(row for family in model.rows for row in model.rows[family].tolist())
    assert every == list(range(len(model.linear.row_lower)))
    with pytest.raises(KeyError):
        model.rows["nothing"]
