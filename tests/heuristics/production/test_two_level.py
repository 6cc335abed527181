"""torchtitan's plan for a budget: shares of layers, operators within layers, and the schedule of both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from pebbler.heuristics.clock import until
from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.production.saved import layer_groups
from pebbler.heuristics.production.two_level import Choice, Layers, Operator, Share, greedy, program
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget

from .steps import MIB, copies, names_of, runs, solved, transformer

BOTH = ("torchtitan-budget", "torchtitan-budget-ilp")


def operators(*bytes_and_times: tuple[int, int], stays: Sequence[int] = ()) -> list[Operator]:
    """Operators of a layer by MiB and nanoseconds."""
    return [Operator(k, (k,), size * MIB, time, k in stays) for k, (size, time) in enumerate(bytes_and_times)]


def layers_of(instance: Instance) -> Layers:
    return Layers(instance, layer_groups(instance))


def amount(layer: Sequence[Operator], chosen: Sequence[Choice], kind: Choice) -> int:
    return sum(one.bytes for one, choice in zip(layer, chosen, strict=True) if choice == kind)


def freed(instance: Instance, name: str) -> tuple[int, int]:
    """How many tasks run again and how many blocks are copied out."""
    schedule = solved(name, instance, "paged")
    return len(runs(schedule)) - len(instance.tasks), len(copies(schedule, "offload"))


@pytest.mark.parametrize("name", BOTH)
def test_a_tighter_budget_frees_more_and_an_ample_one_nothing(name: str) -> None:
    """As torchtitan's own test of the policy asks, and an impossible budget has no plan."""
    found = [freed(with_budget(transformer(6), budget * MIB), name) for budget in (400, 180, 110)]
    assert found[0] == (0, 0)
    assert 0 < sum(found[1]) < sum(found[2])
    with pytest.raises(Refusal):
        find_method(name).call(with_budget(transformer(6), 35 * MIB), Limits(memory="paged"))


@pytest.mark.parametrize("name", BOTH)
def test_the_whole_budget_of_full_recomputation_is_enough(name: str) -> None:
    """Its test budgets just above what recomputing all takes, and the peak must not be higher."""
    full = solved("checkpoint-layers", transformer(6), "paged")
    instance = with_budget(transformer(6), full.peak_bytes + 40 * MIB)
    schedule = solved(name, instance, "paged")
    assert schedule.peak_bytes <= instance.budget_bytes
    assert schedule.makespan_ns < full.makespan_ns


def test_what_is_kept_does_not_depend_on_times_but_copies_on_the_link() -> None:
    """Two findings of pull request 3881: memory alone says what is kept, and the link what is copied."""
    budget = 150 * MIB
    fast, slow = transformer(6, copy=5), transformer(6, copy=200)
    shares = {name: layers_of(one).shares(budget) for name, one in (("fast", fast), ("slow", slow))}
    longer = replace(
        fast,
        tasks=tuple(
            replace(
                task, algorithms=tuple(replace(a, duration_ns=3 * a.duration_ns) for a in task.algorithms)
            )
            for task in fast.tasks
        ),
    )
    shares["longer"] = layers_of(longer).shares(budget)
    kept = {name: sum(share.keep for share in found or ()) for name, found in shares.items()}
    copied = {name: sum(share.offload for share in found or ()) for name, found in shares.items()}
    assert copied["slow"] < copied["fast"]
    assert kept["longer"] == pytest.approx(kept["fast"])
    layers = layers_of(slow)
    window = layers.forward_ns / 200 * 10 * MIB
    for share, size in zip(shares["slow"] or (), layers.saved, strict=True):
        assert share.offload * size <= window * 1.000001


@pytest.mark.parametrize("budget", range(70, 260, 20))
def test_shares_hold_what_the_outer_program_asks_for(budget: int) -> None:
    layers = layers_of(replace(transformer(6, copy=15), host_budget_bytes=30 * MIB))
    shares = layers.shares(budget * MIB)
    if shares is None:
        assert budget < 110
        return
    size = np.array(layers.saved)
    keep, offload = (np.array([getattr(share, one) for share in shares]) for one in ("keep", "offload"))
    assert (keep + offload <= 1 + 1e-9).all()
    assert offload[-1] == 0
    assert (offload * size).sum() <= 30 * MIB * (1 + 1e-9)
    for i in range(len(size)):
        before = (keep * size)[:i].sum() + (offload * size)[max(i - 1, 0) : i].sum()
        assert before + size[i] + layers.transient[i] <= budget * MIB * (1 + 1e-9)
    assert (keep * size).sum() + layers.outside <= budget * MIB * (1 + 1e-9)


def test_the_inputs_of_layers_stay() -> None:
    """What a layer reads of the one before is neither copied nor made again, so that layers are alone."""
    instance = with_budget(transformer(6, copy=15), 110 * MIB)
    for name in BOTH:
        schedule = solved(name, instance, "paged")
        assert not any(block.startswith("x") for block in names_of(instance, schedule, "offload"))
        again = names_of(instance, schedule, "run")
        assert not {f"FP(h{i}_add)" for i in range(5)}.intersection(again)


def test_the_greedy_choice_copies_what_is_dear_and_makes_what_is_cheap_again() -> None:
    """Of 20 MiB, 8 are to be copied, 4 kept: the dearest that fit leave, the cheapest are made again."""
    layer = operators((4, 100), (8, 40), (4, 60), (3, 1), (1, 90))
    assert greedy(layer, Share(keep=0.2, offload=0.4)) == [
        "offload",
        "recompute",
        "keep",
        "offload",
        "offload",
    ]


def test_the_greedy_choice_closes_the_gap_with_one_operator_more() -> None:
    """Nothing fits the 5 MiB to be made again, so the least one that is enough is taken."""
    layer = operators((10, 10), (6, 30))
    chosen = greedy(layer, Share(keep=11 / 16, offload=0.0))
    assert chosen == ["keep", "recompute"]
    assert greedy(operators((10, 10), (6, 30), stays=(1,)), Share(11 / 16, 0.0)) == ["recompute", "keep"]


@pytest.mark.parametrize("seed", range(6))
def test_no_choice_within_the_shares_takes_less_time_than_the_inner_program(seed: int) -> None:
    """Also of a layer with equal operators, which are counted."""
    random = np.random.default_rng(seed)
    drawn = [(int(random.integers(1, 9)), int(random.integers(1, 99))) for _ in range(6)]
    layer = operators(*(drawn if seed % 2 else drawn[:3] * 2), stays=(0,))
    saved = sum(one.bytes for one in layer)
    keep = max(layer[0].bytes / saved, float(random.uniform(0.1, 0.6)))
    share = Share(keep, float(random.uniform(0, 1 - keep)))
    bandwidth = saved / 200

    def cost(chosen: Sequence[Choice]) -> float:
        again = sum(one.time_ns for one, c in zip(layer, chosen, strict=True) if c == "recompute")
        return again + max(amount(layer, chosen, "offload") - share.offload * saved, 0) / bandwidth

    def fits(chosen: Sequence[Choice]) -> bool:
        return (
            chosen[0] == "keep"
            and amount(layer, chosen, "keep") <= keep * saved * (1 + 1e-6)
            and amount(layer, chosen, "offload") <= share.offload * saved * 1.05
        )

    chosen = program(layer, share, float(saved), bandwidth)
    choices: tuple[Choice, ...] = ("keep", "offload", "recompute")
    assert fits(chosen)
    assert cost(chosen) == pytest.approx(min(cost(one) for one in product(choices, repeat=6) if fits(one)))


def test_a_layer_of_many_equal_operators_is_counted_not_searched() -> None:
    """Four kinds of sixty, whose worth by the byte is nearly the same."""
    layer = operators(*((5 + kind, 5000 + 1001 * kind) for kind in range(4) for _ in range(60)))
    with until(time.monotonic() + 20):
        chosen = program(layer, Share(0.517, 0.213), 1e12, 1.0)
    assert amount(layer, chosen, "keep") <= 0.517 * sum(one.bytes for one in layer) * (1 + 1e-6)


def test_the_inner_program_obeys_the_time_limit() -> None:
    random = np.random.default_rng(3)
    layer = operators(*((int(random.integers(500, 999)), int(random.integers(1, 99))) for _ in range(200)))
    with pytest.raises(Refusal, match="time limit"), until(time.monotonic() - 1):
        program(layer, Share(0.4, 0.3), 1e12, 1.0)


def test_what_must_stay_and_is_more_than_the_share_has_no_program() -> None:
    with pytest.raises(Refusal, match="the inner program has no solution"):
        program(operators((4, 1), stays=(0,)), Share(0.5, 0.0), 0.0, 1.0)


def frontier(name: str, copy: int) -> list[int]:
    """Times of a rule under rising budgets, from the first for which it has a schedule."""
    times: list[int] = []
    for budget in range(110, 320, 35):
        try:
            instance = with_budget(transformer(6, copy=copy), budget * MIB)
            times.append(solved(name, instance, "paged").makespan_ns)
        except Refusal:
            assert not times
    return times


@pytest.mark.parametrize("name", ["torch-memory-budget", "deepcompile-offload"])
def test_more_memory_never_takes_longer(name: str) -> None:
    times = frontier(name, copy=15)
    assert len(times) >= 3
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("name", BOTH)
def test_shares_of_a_larger_budget_may_take_longer(name: str) -> None:
    """What the outer program can share out of more memory, operators need not fill as well."""
    times = frontier(name, copy=15)
    assert [times[i] > times[i - 1] for i in range(1, len(times))] == [False, False, True, False, False]
    assert times[3] == times[2] + 10
