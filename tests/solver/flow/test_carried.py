"""FLOW of rounds that carry blocks: its rows are those of the page, and never above the optimum."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.methods import Limits
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import least_budget
from pebbler.instances.suites.tiny import tiny_instance, twisted
from pebbler.solver.bounds import best_bound
from pebbler.solver.cp_sat.model import solve_divisible
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.families import Window
from pebbler.solver.flow.model import Integrality, flow_bound, flow_model, window_model
from pebbler.solver.flow.recompute import recompute_bound
from pebbler.solver.flow.windows import Windows
from pebbler.solver.linear.facade import solve_linear
from pebbler.validate.bounds.arguments import Prices, least_times, priced_ns
from pebbler.validate.bounds.certificate import check_certificate

from ...adversary.instances import with_carried
from ...samples import chunks, counts
from ...validate.hostile import hostile_instance
from .formulas import flow
from .test_formulas import agree

HOW: tuple[Integrality, ...] = ("none", "algorithms", "all")

MIB = 2**20


def carried(seed: int, *, host: bool = False) -> Instance:
    """Return a tiny instance of which most of the first blocks are carried."""
    rng = Random(seed)
    made = (tiny_instance, twisted, lambda n: hostile_instance(Random(n), most_tasks=4))[seed % 3](seed)
    made = replace(made, tasks=tuple(replace(task, recomputable=False) for task in made.tasks))
    instance = _with_weight(rng, with_carried(rng, made))
    if host:
        total = sum(block.bytes for block in instance.blocks)
        instance = replace(instance, host_budget_bytes=rng.randint(0, total))
    return instance


def _with_weight(rng: Random, instance: Instance) -> Instance:
    """Return the instance with another carried block: some tasks read it, perhaps a later one updates it."""
    tasks, d, units = list(instance.tasks), len(instance.blocks), rng.randint(1, 3)
    size = max(min(block.bytes for block in instance.blocks), 1) * units
    times = (rng.choice((0, 1, 2, 2, 3)) * units for _ in range(2))
    out, back = (None if rng.random() < 0.07 else time for time in times)
    reads = sorted(rng.sample(range(len(tasks)), min(rng.randint(1, 2), len(tasks))))
    updater = rng.randrange(reads[-1], len(tasks)) if rng.random() < 0.7 else None
    for k in reads if updater is None else {*reads, updater}:
        touch = "updates" if k == updater else "inputs"
        tasks[k] = replace(tasks[k], **{touch: (*getattr(tasks[k], touch), d)})
    weight = Block(name="weight", bytes=size, offload_ns=out, prefetch_ns=back, initially="carried")
    made = replace(instance, blocks=(*instance.blocks, weight), tasks=tuple(tasks))
    return replace(made, budget_bytes=least_budget(made) + rng.choice((0, 0, size)))


def as_at_first(instance: Instance) -> Instance:
    """Return the relaxation in which carried blocks begin on the device and end anywhere."""
    return replace(
        instance,
        blocks=tuple(
            replace(block, initially="device") if block.initially == "carried" else block
            for block in instance.blocks
        ),
    )


@pytest.mark.parametrize("first", chunks(range(0, 60, 5)))
def test_the_rows_are_those_of_the_page(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 5):
        instance = carried(seed, host=seed % 2 == 1)
        n, before = len(instance.tasks), [0, *accumulate(least_times(instance))]
        windows = [(0, max(n // 2, 1), 11, False), (n - 1, n, 3, True)]
        for how in HOW:
            for checkpoints in ([], list(range(0, n, 2)), list(range(n))):
                for some in (windows[:0], windows):
                    model = flow_model(instance, checkpoints, how, [Window(*window) for window in some])
                    units = model.nanoseconds, model.bytes
                    seen += agree(flow(instance, checkpoints, how, *units, windows=some), model)
            for begin, until, idle in ((0, max(n // 2, 1), False), (n // 2, n, False), (n // 2, n, True)):
                model = window_model(instance, begin, until, how, before, idle=idle)
                page = flow(
                    instance,
                    list(model.checkpoints),
                    how,
                    model.nanoseconds,
                    model.bytes,
                    stretch=(begin, until),
                    idle=idle,
                )
                seen += agree(page, model)
        model = flow_model(instance, range(n), "all", unbroken=True)
        units = model.nanoseconds, model.bytes
        seen += agree(flow(instance, list(range(n)), "all", *units, long=1 / 3), model)
    assert min(seen[family] for family in ("saved", "both ends", "host at both ends", "left")) >= 10


def lower(instance: Instance, checkpoints: list[int], how: Integrality, **options: Any) -> int:
    bound = flow_bound(instance, checkpoints, integrality=how, **options)
    assert bound is not None
    return bound.lower_bound_ns


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("first", chunks(range(0, 400, 8)))
def test_flow_is_never_above_the_optimum(first: int, host: bool) -> None:
    solved = met = 0
    for seed in range(first, first + 8):
        instance = carried(seed, host=host)
        try:
            schedule = brute_force(instance, "divisible", most_states=1500)
        except TimeoutError:
            continue
        if schedule is None:
            continue
        solved += 1
        every = list(range(len(instance.tasks)))
        known = Windows(instance, "all")
        known.prove(1, 60.0, lambda model, seconds: solve_linear(model, time_limit=seconds))
        bounds = [lower(instance, every, how) for how in HOW]
        assert bounds == sorted(bounds)
        others = [
            best_bound(instance).lower_bound_ns,
            *(lower(instance, some, "all") for some in ([], every[::2], every[1::2])),
            lower(instance, every, "all", unbroken=True),
            lower(instance, every[::2], "all", windows=known.known),
        ]
        assert max(*bounds, *others) <= schedule.makespan_ns, (seed, bounds, others)
        met += bounds[-1] == schedule.makespan_ns
    assert solved >= 1
    assert met >= solved / 2


def test_models_that_let_carried_blocks_end_anywhere_bound_rounds_too() -> None:
    judged = 0
    for seed in range(12):
        instance = carried(seed)
        try:
            schedule = brute_force(instance, "divisible", most_states=1000)
        except TimeoutError:
            continue
        if schedule is None:
            continue
        judged += 1
        again = recompute_bound(instance, range(len(instance.tasks)), integrality="all")
        assert again is not None
        assert again.lower_bound_ns <= schedule.makespan_ns
        relaxed = solve_divisible(instance, Limits(5.0)).lower_bound_ns
        assert relaxed is not None
        assert relaxed <= schedule.makespan_ns
    assert judged >= 4


def one_at_a_time(touch: str, *, host: int | None = None) -> Instance:
    """Return two tasks with a carried block each, of which only one fits: tasks take 10, copies 4."""
    run = Algorithm(name="a", duration_ns=10, workspace_bytes=0)
    tasks = (
        Task(name=f"T{d}", outputs=(), algorithms=(run,), **{"inputs": (), touch: (d,)}) for d in range(2)
    )
    blocks = (
        Block(name=f"W{d}", bytes=512, offload_ns=4, prefetch_ns=4, initially="carried") for d in range(2)
    )
    return Instance(
        name="one-at-a-time",
        engines="single",
        budget_bytes=512,
        resident_bytes=0,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
        host_budget_bytes=UNSET if host is None else host,
    )


@pytest.mark.parametrize(
    ("touch", "host", "optimum", "at_first"),
    [
        ("inputs", None, 28, 24),  # the first comes back, or comes at first
        ("inputs", 1024, 28, 24),
        ("updates", None, 36, 24),  # and both are saved
        ("updates", 1024, 36, 24),
    ],
)
def test_a_round_pays_for_what_it_finds(touch: str, host: int | None, optimum: int, at_first: int) -> None:
    instance = one_at_a_time(touch, host=host)
    schedule = brute_force(instance, "contiguous")
    assert schedule is not None
    assert schedule.makespan_ns == optimum
    for how in HOW:
        assert lower(instance, [0, 1], how) == optimum
    assert lower(as_at_first(instance), [0, 1], "all") == at_first


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("count", counts(4, 24))
def test_certificates_say_what_the_linear_program_says(count: int, host: bool) -> None:
    risen = 0
    for seed in range(count):
        instance = carried(seed, host=host)
        for checkpoints in (range(len(instance.tasks)), range(0, len(instance.tasks), 2)):
            model = flow_model(instance, checkpoints, "none")
            result = solve_linear(model.linear)
            bound = flow_bound(instance, checkpoints)
            if bound is None:  # there is no schedule
                continue
            assert bound.certificate is not None
            assert result.objective is not None
            assert check_certificate(instance, bound.certificate).valid
            proven = bound.certificate.lower_bound_ns
            assert proven >= 0.999999 * result.objective * model.nanoseconds - 1e-3
            other = flow_bound(as_at_first(instance), checkpoints)
            risen += other is not None and proven > other.lower_bound_ns
    assert risen >= count / 12


@pytest.mark.parametrize("count", counts(3, 60))
def test_prices_of_any_kind_prove_no_more_than_the_optimum(count: int) -> None:
    rng, proven = Random(1), 0
    for seed in range(count):
        instance = carried(seed, host=seed % 2 == 1)
        try:
            schedule = brute_force(instance, "divisible", most_states=2000)
        except TimeoutError:
            continue
        if schedule is None:
            continue
        checkpoints = sorted(rng.sample(range(len(instance.tasks)), rng.randint(0, len(instance.tasks))))
        instants, engines = 2 * len(checkpoints), 1 if instance.engines == "single" else 2
        size = max(block.bytes for block in instance.blocks)
        for _ in range(10):
            paid = [[rng.choice((0, 0, 1, 2, 4)) for _ in range(instants + 1)] for _ in range(engines)]
            host = [rng.choice((0, 0, 1, 3)) for _ in range(instants)] if instance.has_host_budget else []
            memory = [rng.choice((0, 0, 1, 2, 5)) for _ in range(instants)]
            ends = [rng.choice((0, 1, 4)) for _ in range(1 + instance.has_host_budget)]
            lines = [[size * price for price in line] for line in paid]
            prices = Prices(8 * size, memory, lines, {}, host, ends if instance.carried else [])
            bound = priced_ns(instance, checkpoints, prices)
            assert bound <= schedule.makespan_ns, (seed, checkpoints, prices)
            proven += bound > 0
    assert proven >= 5 * count / 3
