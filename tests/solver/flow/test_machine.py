"""A link for both directions and slowed tasks in FLOW: the page's rows, and bounds that hold."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.methods import Limits, Refusal
from pebbler.instances.figures import MILLION
from pebbler.instances.instance import Algorithm, Block, Instance, Link, Slowdown, Task
from pebbler.instances.suites.tiny import tiny_instance, twisted
from pebbler.solver.bounds import best_bound, single_peak_bound
from pebbler.solver.cp_sat.model import solve_divisible
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.families import Window
from pebbler.solver.flow.model import Integrality, flow_bound, flow_model, window_model
from pebbler.solver.flow.recompute import recompute_bound, recompute_model
from pebbler.solver.flow.windows import Windows
from pebbler.solver.linear.facade import solve_linear
from pebbler.validate.bounds.arguments import Prices, least_times, priced_ns
from pebbler.validate.bounds.certificate import (
    check_certificate,
    read_certificate,
    sealed,
    write_certificate,
)
from pebbler.validate.bounds.machine import fair_time_beside, fair_time_of_leader
from pebbler.validate.simulate import simulate

from ...samples import chunks
from ...validate.hostile import hostile_instance
from .formulas import flow, with_second_runs
from .test_carried import carried
from .test_formulas import agree

HOW: tuple[Integrality, ...] = ("none", "algorithms", "all")


def plain(seed: int) -> Instance:
    """Return a tiny instance of some kind, with copies that delay nothing but themselves."""
    rng = Random(f"machine {seed}")
    if seed % 4 == 0:
        return tiny_instance(seed, carried=rng.random() < 0.4, host_budget=rng.random() < 0.3)
    if seed % 4 == 1:
        return hostile_instance(Random(seed), most_tasks=4, recomputable=rng.random() < 0.3)
    return carried(seed, host=rng.random() < 0.4) if seed % 4 == 2 else twisted(seed)


def coupled(seed: int, instance: Instance) -> Instance:
    """Return the instance with a link, with slowed tasks, or with both."""
    rng = Random(f"coupled {seed}")
    if seed % 3:
        most = max(block.bytes for block in instance.blocks)
        rate = rng.choice((3 * 10**8, 5 * 10**8, 10**9, 10**9 + 7, 2 * 10**9)) * rng.choice((1, 2, most))
        instance = replace(instance, link=Link(both_bytes_per_second=rate))
    if seed % 3 != 1:
        tasks = []
        for task in instance.tasks:
            out = rng.choice((0, 100_000, 300_000, 500_000, MILLION))
            back = rng.choice((0, MILLION - out, (MILLION - out) // 2))
            lost = Slowdown(offload=out, prefetch=back)
            tasks.append(replace(task, slowdown_ppm=lost) if rng.random() < 0.8 else task)
        instance = replace(instance, tasks=tuple(tasks))
    return instance


@pytest.mark.parametrize("first", chunks(range(0, 48, 12)))
def test_the_rows_are_those_of_the_page(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 12):
        instance = coupled(seed, plain(seed))
        n, before = len(instance.tasks), [0, *accumulate(least_times(instance))]
        for how in HOW:
            for checkpoints in ([], list(range(0, n, 2)), list(range(n))):
                if any(task.recomputable for task in instance.tasks):
                    other = recompute_model(instance, checkpoints, how)
                    units = other.nanoseconds, other.bytes
                    seen += agree(with_second_runs(instance, checkpoints, how, *units), other)
                    continue
                model = flow_model(instance, checkpoints, how, [Window(n - 1, n, 3, idle=True)])
                units, windows = (model.nanoseconds, model.bytes), [(n - 1, n, 3, True)]
                seen += agree(flow(instance, checkpoints, how, *units, windows=windows), model)
            if any(task.recomputable for task in instance.tasks):
                continue
            for begin, until, idle in ((0, max(n // 2, 1), False), (n // 2, n, False), (n // 2, n, True)):
                model = window_model(instance, begin, until, how, before, idle=idle)
                units, stretch = (model.nanoseconds, model.bytes), (begin, until)
                page = flow(instance, list(model.checkpoints), how, *units, stretch=stretch, idle=idle)
                seen += agree(page, model)
    assert min(seen["link"], seen["slowed"]) >= 20


@pytest.mark.parametrize("first", chunks(range(0, 48, 12)))
def test_no_bound_is_above_a_schedule(first: int) -> None:
    """Programs that are best without the keys take at least as long with them, and no less than any bound."""
    judged = 0
    for seed in range(first, first + 12):
        before = plain(seed)
        try:
            schedule = brute_force(before, "contiguous", most_states=800)
        except (TimeoutError, Refusal):
            continue
        if schedule is None:
            continue
        judged += 1
        instance = coupled(seed, before)
        makespan = max(simulate(instance, schedule)[1])
        every = list(range(len(instance.tasks)))
        found = [best_bound(instance).lower_bound_ns]
        if any(task.recomputable for task in instance.tasks):
            solved = [recompute_bound(instance, every, integrality=how) for how in HOW]
        else:
            known = Windows(instance, "all")
            known.prove(1, 60.0, lambda model, seconds: solve_linear(model, time_limit=seconds))
            solved = [flow_bound(instance, every, integrality=how) for how in HOW]
            solved += [flow_bound(instance, some, integrality="all") for some in ([], every[::2])]
            solved.append(flow_bound(instance, every, integrality="all", unbroken=True))
            solved.append(flow_bound(instance, every[::2], integrality="all", windows=known.known))
            relaxed = solve_divisible(instance, Limits(10.0))
            found.append(relaxed.lower_bound_ns or 0)
        for bound in solved:
            assert bound is not None
            found.append(bound.lower_bound_ns)
            if bound.certificate is not None:
                assert check_certificate(instance, bound.certificate).valid
        assert max(found) <= makespan, (seed, found, makespan)
    assert judged >= 2


def one_block_away(**keys: object) -> Instance:
    """Return three tasks of 10 ns; a block of 8 bytes leaves before the second and comes back after it."""
    run = Algorithm(name="a", duration_ns=10, workspace_bytes=0)
    blocks = tuple(
        Block(name=name, bytes=8, offload_ns=4, prefetch_ns=4, initially=at)
        for name, at in (("kept", "device"), ("other", "host"))
    )
    tasks = (
        Task(name="F", inputs=(), outputs=(), updates=(0,), algorithms=(run,)),
        Task(name="M", inputs=(1,), outputs=(), algorithms=(run,)),
        Task(name="B", inputs=(0,), outputs=(), algorithms=(run,)),
    )
    made = Instance(
        name="one-block-away",
        engines="duplex",
        budget_bytes=8,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=blocks,
        tasks=tasks,
    )
    return replace(made, **keys)


@pytest.mark.parametrize(
    ("rate", "bound"),
    [
        (4 * 10**9, 38),  # one leaves while the other comes, in 4 ns, and the first returns in 4
        (2 * 10**9, 42),  # a copy alone is as fast as the link, two at once take twice as long
        (10**9, 54),  # three copies, of 8 ns each
    ],
)
def test_what_a_link_adds_is_what_the_rows_say(rate: int, bound: int) -> None:
    instance = one_block_away(link=Link(both_bytes_per_second=rate))
    for how in HOW:
        found = flow_bound(instance, [0, 1, 2], integrality=how)
        assert found is not None
        assert found.lower_bound_ns == bound
    assert found is not None
    assert single_peak_bound(instance).lower_bound_ns <= bound


@pytest.mark.parametrize(("out", "back", "bound"), [(0, 0, 30), (500_000, 0, 32), (250_000, 500_000, 35)])
def test_what_slowed_tasks_add_is_what_the_rows_say(out: int, back: int, bound: int) -> None:
    """With M as the only checkpoint, F runs beside two copies and B beside one, of 4 ns each."""
    instance = one_block_away()
    lost = Slowdown(offload=out, prefetch=back)
    tasks = tuple(replace(task, slowdown_ppm=lost) for task in instance.tasks)
    for how in HOW:
        found = flow_bound(replace(instance, tasks=tasks), [1], integrality=how)
        assert found is not None
        assert found.lower_bound_ns == bound


def test_prices_of_the_link_prove_no_more_than_the_optimum() -> None:
    rng, proven = Random(1), 0
    for seed in range(20):
        before = plain(seed)
        try:
            schedule = brute_force(before, "divisible", most_states=400)
        except (TimeoutError, Refusal):
            continue
        if schedule is None:
            continue
        instance = coupled(seed, before)
        makespan = max(simulate(instance, schedule)[1])
        checkpoints = sorted(rng.sample(range(len(instance.tasks)), rng.randint(0, len(instance.tasks))))
        instants, engines = 2 * len(checkpoints), 1 if instance.engines == "single" else 2
        size = max(block.bytes for block in instance.blocks)
        has_link = isinstance(instance.link, Link)
        for _ in range(10):
            shares = rng.choice((1, 3)) if has_link else 0
            paid = [
                [rng.choice((0, 0, 1, 2, 3)) for _ in range(instants + 1)] for _ in range(engines + shares)
            ]
            lines = [[size * price for price in line] for line in paid]
            memory = [rng.choice((0, 0, 1, 2, 5)) for _ in range(instants)]
            most = max(9, *map(sum, zip(*paid, strict=True)))
            prices = Prices(most * size, memory, lines[:engines], link=lines[engines:])
            bound = priced_ns(instance, checkpoints, prices)
            assert bound <= makespan, (seed, checkpoints)
            proven += bound > 0
    assert proven >= 30


def test_prices_of_a_link_are_for_instances_that_have_one() -> None:
    link = [[0] * 7]
    prices = Prices(5, [0] * 6, [[0] * 7, [0] * 7], link=link)
    with pytest.raises(ValueError, match="prices of a link"):
        priced_ns(one_block_away(), [0, 1, 2], prices)
    linked = one_block_away(link=Link(both_bytes_per_second=10**9))
    assert priced_ns(linked, [0, 1, 2], prices) == 30
    with pytest.raises(ValueError, match=r"interval 0: .* above one together"):
        priced_ns(linked, [0, 1, 2], Prices(5, [0] * 6, [[3] * 7, [0] * 7], link=[[3] * 7]))
    for wrong in ([[0] * 7, [0] * 7], [[0] * 7, [0] * 7, [0] * 6]):
        with pytest.raises(ValueError, match="one for each interval"):
            priced_ns(linked, [0, 1, 2], Prices(5, [0] * 6, [[0] * 7, [0] * 7], link=wrong))


def test_a_copy_that_waits_for_its_share_takes_time_from_the_other_direction() -> None:
    """Two blocks leave and one comes at 3 bytes a ns each, on a link of 4.

    The link could pass all 36 bytes in 9 ns. But while both directions copy, each gets 2 bytes a ns. So 12
    bytes leave in the 6 ns in which the other block comes, and 12 in the 4 ns after it.
    """
    instance = two_out_and_one_in()
    optimum = brute_force(instance, "divisible")
    assert optimum is not None
    assert optimum.makespan_ns == 10
    for how in HOW:
        found = flow_bound(instance, [0], integrality=how)
        assert found is not None
        assert found.lower_bound_ns == 10, how
        assert found.certificate is None or not check_certificate(instance, found.certificate).reasons


def test_fair_prices_are_part_of_a_certificate(tmp_path: Path) -> None:
    instance = two_out_and_one_in()
    found = flow_bound(instance, [0])
    assert found is not None
    assert found.certificate is not None
    honest = found.certificate
    assert honest.lower_bound_ns == 10
    assert honest.fair_prices is not UNSET
    write_certificate(honest, tmp_path / "c.json")
    assert read_certificate(tmp_path / "c.json") == honest
    nothing = ((0, 0, 0), (0, 0, 0))
    for fair, reason in (
        (nothing, "prove a bound of"),
        (UNSET, "prove a bound of"),
        (((honest.denominator + 1,) * 3, honest.fair_prices[1]), "above one together"),
        ((honest.fair_prices[0][:2], honest.fair_prices[1]), "one for each interval"),
    ):
        changed = sealed(replace(honest, fair_prices=fair))
        (told,) = check_certificate(instance, changed).reasons
        assert reason in told
    without = replace(instance, link=UNSET)
    (told,) = check_certificate(without, honest).reasons
    assert "the directions share none" in told


def two_out_and_one_in() -> Instance:
    """Return a task of no time, with blocks of 12 bytes that all have to be on the other side in the end."""
    blocks = tuple(
        Block(name=name, bytes=12, initially=first, finally_=last, offload_ns=4, prefetch_ns=4)
        for name, first, last in (("a", "device", "host"), ("b", "device", "host"), ("c", "host", "device"))
    )
    made = Algorithm(name="a", duration_ns=0, workspace_bytes=0)
    task = Task(name="t", inputs=(), outputs=(), updates=(0, 1), algorithms=(made,))
    return replace(
        one_block_away(),
        budget_bytes=48,
        blocks=blocks,
        tasks=(task,),
        link=Link(both_bytes_per_second=4 * 10**9),
    )


def _speeds(first: Fraction, second: Fraction) -> tuple[Fraction, Fraction]:
    """Return what two copies, one of each direction, get of a link in shares of what each gets alone."""
    half = Fraction(1, 2)
    return min(max(1 - second, half), first) / first, min(max(1 - first, half), second) / second


@pytest.mark.parametrize("lead", [Fraction(k, 20) for k in range(10, 21)])
def test_no_moment_pays_more_than_it_lasts(lead: Fraction) -> None:
    """The proof of (52) and (53), for all paces: of a copy that leads, one beside it, and either alone."""
    paces = [Fraction(k, 20) for k in range(1, 21)]
    tight = 0
    for mine in paces:
        own = fair_time_of_leader(mine, Fraction(1), lead)
        assert 0 <= own <= 1
        for other in paces:
            beside = fair_time_beside(other, Fraction(1), lead)
            assert 0 <= beside <= 1
            speed, its = _speeds(mine, other)
            assert own * speed + beside * its <= 1
            tight += own * speed + beside * its == 1
    assert tight >= 10
