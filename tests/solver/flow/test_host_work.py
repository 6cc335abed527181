"""Work on the host in FLOW and in certificates: no bound is above the optimum, and toys have theirs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.gaps import Guide
from pebbler.heuristics.loading import kernels
from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.instance import Algorithm, Block, Instance, Link, Task
from pebbler.instances.memory import (
    ideal_ns,
    least_budget,
    least_bytes,
    least_host_bytes,
    live_bytes,
    why_infeasible,
)
from pebbler.instances.suites.tiny import tiny_instance, twisted
from pebbler.solver.bounds import best_bound
from pebbler.solver.cp_sat.model import solve_divisible
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.model import Integrality, flow_bound, flow_model
from pebbler.solver.flow.recompute import recompute_model
from pebbler.solver.flow.stages import refine_bound
from pebbler.solver.linear.facade import solve_linear
from pebbler.validate.bounds.arguments import Prices, compute_ns, priced_ns
from pebbler.validate.bounds.certificate import check_certificate

from ...adversary.instances import with_host_work, with_link, with_slowdown
from ...adversary.theorems import TINY
from ...samples import chunks, sampled
from ...validate.hostile import hostile_instance
from .formulas import flow
from .test_carried import carried
from .test_formulas import agree

HOW: tuple[Integrality, ...] = ("none", "algorithms", "all")
SOLVED = (9, 13, 20, 27, 33)
"""Seeds of instances whose exhaustive search ends soon."""


def hosted(seed: int, *, coupled: bool = False) -> Instance:
    """Return a tiny instance some of whose tasks may run on the host; half of them have an optimizer."""
    rng = Random(f"hosted {seed}")
    if seed % 4 == 0:
        made = tiny_instance(seed, carried=rng.random() < 0.4, host_budget=rng.random() < 0.2)
    elif seed % 4 == 1:
        made = hostile_instance(Random(seed), most_tasks=3, host=rng.random() < 0.2)
    else:
        made = carried(seed, host=rng.random() < 0.2) if seed % 4 == 2 else twisted(seed)
    tasks = tuple(replace(task, recomputable=False) for task in made.tasks)
    made = replace(made, tasks=tasks, layers=UNSET)
    made = _with_optimizer(rng, made) if rng.random() < 0.5 else with_host_work(rng, made)
    if coupled:
        made = with_slowdown(rng, with_link(rng, made))
    return replace(made, budget_bytes=max(least_budget(made), 1) + rng.choice((0, 0, 1, 2, 4, 8)))


def _with_optimizer(rng: Random, instance: Instance) -> Instance:
    """Return the instance with weights, their gradient, what an optimizer keeps, and its step."""
    tasks, blocks, d = list(instance.tasks), list(instance.blocks), len(instance.blocks)
    size = min(block.bytes for block in blocks)
    times = {"offload_ns": rng.choice((0, 1, 2)), "prefetch_ns": rng.choice((1, 2))}
    weights = Block(name="w", bytes=size, initially=rng.choice(("carried", "device", "host")), **times)
    kept = Block(name="m", bytes=size * rng.choice((1, 2)), initially="carried", **times)
    gradient = Block(name="g", bytes=size, **times)
    reads = sorted(rng.sample(range(len(tasks)), min(2, len(tasks))))
    for k in reads:
        tasks[k] = replace(tasks[k], inputs=(*tasks[k].inputs, d))
    last = reads[-1]
    tasks[last] = replace(tasks[last], outputs=(*tasks[last].outputs, d + 2))
    sides = [Algorithm(name="h", duration_ns=rng.randint(0, 9), workspace_bytes=0, on="host")]
    if rng.random() < 0.6:
        sides.append(Algorithm(name="d", duration_ns=rng.randint(0, 4), workspace_bytes=0))
    step = Task(name="step", inputs=(d + 2,), outputs=(), updates=(d, d + 1), algorithms=tuple(sides))
    tasks.insert(rng.randint(last + 1, len(tasks)), step)
    return replace(instance, blocks=(*blocks, weights, kept, gradient), tasks=tuple(tasks))


def optimum(instance: Instance, states: int = 1500) -> int | None:
    """Return the least time of a schedule, or None if the search is too large or there is none."""
    try:
        schedule = brute_force(instance, "divisible", most_states=states)
    except (TimeoutError, Refusal):
        return None
    return None if schedule is None else schedule.makespan_ns


@pytest.mark.parametrize("first", chunks(range(0, 48, 12)))
def test_the_rows_are_those_of_the_page(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 12):
        instance = hosted(seed, coupled=seed % 3 == 0)
        if seed % 3 == 0:
            instance = replace(instance, link=Link(both_bytes_per_second=10**9))
        n = len(instance.tasks)
        for checkpoints in ([], list(range(0, n, 2)), list(range(n))):  # in the others, some become one
            model = flow_model(instance, checkpoints, "all")
            page = flow(instance, list(model.checkpoints), "all", model.nanoseconds, model.bytes)
            seen += agree(page, model)
    assert min(seen[family] for family in ("choice", "host stream", "host done", "arrived", "made")) >= 5


def test_a_task_without_blocks_takes_its_time_on_one_side_or_the_other() -> None:
    run = Algorithm(name="device", duration_ns=10, workspace_bytes=0)
    later = Algorithm(name="host", duration_ns=25, workspace_bytes=0, on="host")
    tasks = [Task(name=f"t{k}", inputs=(), outputs=(), algorithms=(run,)) for k in range(2)]
    tasks[1] = replace(tasks[1], algorithms=(run, later))
    instance = Instance(
        name="no blocks", engines="duplex", budget_bytes=1, resident_bytes=0, blocks=(), tasks=tuple(tasks)
    )
    bound, schedule = flow_bound(instance, [0], integrality="all"), brute_force(instance, "divisible")
    assert bound is not None
    assert schedule is not None
    assert bound.lower_bound_ns == schedule.makespan_ns == 20


def test_tasks_that_are_one_prove_as_much_where_they_are_alike() -> None:
    """Two layers between two checkpoints, with steps of 1 : 2: the model has one step and no lower bound."""
    instance = two_layers(2)
    every = flow_model(instance, [0, 1], "none")
    assert every.on_host[2] == every.on_host[3]
    apart = flow_model(instance, [0, 1], "all")
    assert apart.on_host[2] != apart.on_host[3]
    other = flow_model(two_layers(3, odd=1), [0, 1], "none")
    assert other.on_host[2] != other.on_host[3]
    relaxed = dataclasses.replace(apart.linear, integer=apart.linear.integer & False)
    optima = [solve_linear(linear).objective for linear in (every.linear, relaxed)]
    assert optima[0] == pytest.approx(optima[1], rel=1e-6)


def two_layers(factor: int, odd: int = 0) -> Instance:
    """Return two tasks that each write a gradient, and the steps that update the weights with them."""
    run = (Algorithm(name="a", duration_ns=10, workspace_bytes=0),)
    blocks, tasks, steps = [], [], []
    for i, size in enumerate((8, 8 * factor)):
        copies = {"offload_ns": size, "prefetch_ns": size}
        d = len(blocks)
        blocks += [
            Block(name=f"W{i}", bytes=size, initially="carried", **copies),
            Block(name=f"m{i}", bytes=size + odd * i, initially="carried", **copies),
            Block(name=f"dW{i}", bytes=size, **copies),
        ]
        tasks.append(Task(name=f"B{i}", inputs=(d,), outputs=(d + 2,), algorithms=run))
        sides = (
            Algorithm(name="h", duration_ns=2 * size, workspace_bytes=0, on="host"),
            Algorithm(name="d", duration_ns=size, workspace_bytes=0),
        )
        steps.append(Task(name=f"S{i}", inputs=(d + 2,), outputs=(), updates=(d, d + 1), algorithms=sides))
    reads = replace(tasks[0], inputs=(0, 3)), replace(tasks[1], inputs=(0, 3))
    both = replace(reads[1], outputs=(2, 5))
    return Instance(
        name="two-layers",
        engines="duplex",
        budget_bytes=24 * factor,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=tuple(blocks),
        tasks=(replace(reads[0], outputs=()), both, *steps),
    )


@pytest.mark.parametrize("is_coupled", [False, True])
@pytest.mark.parametrize("seeds", sampled(SOLVED[:3], range(0, 48, 16)))
def test_no_bound_is_above_the_optimum(seeds: Sequence[int], is_coupled: bool) -> None:
    judged = met = 0
    for seed in seeds:
        instance = hosted(seed, coupled=is_coupled)
        least = optimum(instance)
        if least is None:
            continue
        judged += 1
        every = list(range(len(instance.tasks)))
        found = [best_bound(instance).lower_bound_ns]
        for checkpoints in (every, every[::2], []):
            for how in HOW:
                bound = flow_bound(instance, checkpoints, integrality=how)
                assert bound is not None, seed
                found.append(bound.lower_bound_ns)
                if bound.certificate is not None:
                    assert check_certificate(instance, bound.certificate).valid
        unbroken = flow_bound(instance, every, integrality="all", unbroken=True)
        assert unbroken is not None
        assert max(*found, unbroken.lower_bound_ns) <= least, (seed, found, least)
        met += max(found) == least
    assert judged >= 2
    assert met >= 1


@pytest.mark.parametrize("seeds", sampled(SOLVED, range(0, 40, 40)))
def test_prices_of_the_host_prove_no_more_than_the_optimum(seeds: Sequence[int]) -> None:
    rng, proven = Random(1), 0
    for seed in seeds:
        instance = hosted(seed)
        least = optimum(instance, 800)
        if least is None:
            continue
        possible = [k for k, task in enumerate(instance.tasks) if not task.may_run_on_host]
        checkpoints = sorted(rng.sample(possible, rng.randint(0, len(possible))))
        instants, engines = 2 * len(checkpoints), 1 if instance.engines == "single" else 2
        size = max(block.bytes for block in instance.blocks)
        for _ in range(10):
            *lines, stream = (
                [size * rng.choice((0, 0, 1, 2, 3)) for _ in range(instants + 1)] for _ in range(engines + 1)
            )
            memory = [rng.choice((0, 0, 1, 2, 5)) for _ in range(instants)]
            bound = priced_ns(instance, checkpoints, Prices(9 * size, memory, lines, stream=stream))
            assert bound <= least, (seed, checkpoints)
            proven += bound > 0
    assert proven >= 3 * len(seeds) / 4


def step_of_an_optimizer(*, on_host: int | None = 6, on_device: int | None = 2) -> Instance:
    """Return a forward and a backward task of 10 ns with weights, and the step that updates them.

    Weights, gradient and what the step keeps have 8 bytes each, and copies take 4 ns. Under 16 bytes, what
    the step keeps is not on the device with the weights and the gradient.
    """
    run = (Algorithm(name="a", duration_ns=10, workspace_bytes=0),)
    sides = [Algorithm(name="h", duration_ns=on_host, workspace_bytes=0, on="host")] if on_host else []
    sides += [Algorithm(name="d", duration_ns=on_device, workspace_bytes=0)] if on_device else []
    copies = {"bytes": 8, "offload_ns": 4, "prefetch_ns": 4}
    return Instance(
        name="step-of-an-optimizer",
        engines="duplex",
        budget_bytes=24,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(
            Block(name="W", initially="carried", **copies),
            Block(name="dW", **copies),
            Block(name="m", initially="carried", **copies),
        ),
        tasks=(
            Task(name="F", inputs=(0,), outputs=(), algorithms=run),
            Task(name="B", inputs=(0,), outputs=(1,), algorithms=run),
            Task(name="S", inputs=(1,), outputs=(), updates=(0, 2), algorithms=tuple(sides)),
        ),
    )


@pytest.mark.parametrize(
    ("sides", "budget", "least"),
    [
        ({"on_host": None}, 24, 22),  # on the device, with everything there
        (
            {"on_device": None},
            16,
            34,
        ),  # weights come in 4, the gradient leaves in 4, the host updates
        ({}, 24, 22),  # the device is faster
        ({}, 16, 34),  # and has no room
        ({"on_host": 1}, 24, 22),  # 10 + 10 + 4 + 1 on the host, and the weights have to come back
    ],
)
def test_where_a_step_runs(sides: dict[str, int | None], budget: int, least: int) -> None:
    instance = replace(step_of_an_optimizer(**sides), budget_bytes=budget)
    schedule = brute_force(instance, "divisible")
    assert schedule is not None
    assert schedule.makespan_ns == least
    bound = flow_bound(instance, [0, 1], integrality="all")
    assert bound is not None
    assert bound.lower_bound_ns <= least
    linear = flow_bound(instance, [0, 1])
    assert linear is not None
    assert linear.certificate is not None
    assert check_certificate(instance, linear.certificate).valid


def test_where_every_task_may_run_on_the_host_there_is_no_checkpoint() -> None:
    instance = step_of_an_optimizer()
    tasks = tuple(replace(task, algorithms=instance.tasks[-1].algorithms) for task in instance.tasks)
    bound = refine_bound(replace(instance, tasks=tasks), 1.0, thresholds=TINY)
    assert bound.lower_bound_ns <= 3 * 2


def test_the_device_needs_nothing_for_what_may_run_on_the_host() -> None:
    instance = step_of_an_optimizer()
    assert least_budget(instance) == 16
    assert least_budget(step_of_an_optimizer(on_host=None)) == 24
    assert ideal_ns(instance) == compute_ns(instance) == 20
    assert compute_ns(step_of_an_optimizer(on_host=50, on_device=None)) == 50
    assert live_bytes(step_of_an_optimizer(on_device=None)) == [8, 16, 8]
    assert why_infeasible(replace(instance, budget_bytes=16)) is None
    alone = replace(step_of_an_optimizer(on_device=None), host_budget_bytes=23)
    assert least_host_bytes(alone) == 24
    assert "can run on the host alone and needs 24 bytes" in (why_infeasible(alone) or "")
    assert least_host_bytes(replace(instance, host_budget_bytes=23)) == 0
    stuck = replace(instance, blocks=tuple(replace(block, prefetch_ns=None) for block in instance.blocks))
    assert least_bytes(replace(stuck, budget_bytes=16)) == 16
    lost = replace(instance, blocks=tuple(replace(block, offload_ns=None) for block in instance.blocks))
    assert why_infeasible(replace(lost, budget_bytes=16)) is None  # the host may have made all that it needs


def test_what_has_no_model_of_work_on_the_host_says_so() -> None:
    instance = step_of_an_optimizer()
    with pytest.raises(Refusal, match="work on the host is not modelled"):
        solve_divisible(instance, Limits(1.0))
    again = tuple(replace(task, recomputable=not task.may_run_on_host) for task in instance.tasks)
    both = replace(instance, tasks=again)
    with pytest.raises(ValueError, match="does not cover tasks that may run on the host"):
        recompute_model(both, [0, 1], "none")
    assert refine_bound(both, 1.0).lower_bound_ns == 20
    with pytest.raises(Refusal, match="work on the host"):
        find_method("flow-recompute").call(both, Limits(1.0))
    prices = Prices(1, [0] * 4, [[0] * 5, [0] * 5])
    with pytest.raises(ValueError, match="second runs and work on the host"):
        priced_ns(both, [0, 1], prices)
    with pytest.raises(ValueError, match="checkpoint 2 is a task that may run on the host"):
        priced_ns(instance, [0, 1, 2], Prices(1, [0] * 6, [[0] * 7, [0] * 7]))
    with pytest.raises(ValueError, match="prices of the host's time"):
        priced_ns(instance, [0, 1], replace_stream(prices, [0] * 4))
    assert flow_model(instance, [0, 1, 2], "none").checkpoints == (0, 1)


def replace_stream(prices: Prices, stream: list[int]) -> Prices:
    """Return the prices with others of the host's time."""
    return Prices(prices.denominator, prices.memory, prices.engines, stream=stream)


def test_a_solution_names_algorithms_of_the_instance_that_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The original's fastest algorithm is the second one; the instance that is searched has one alone."""
    device, host = (
        Algorithm(name=name, duration_ns=1, workspace_bytes=scratch, on=on)
        for name, scratch, on in (("a", 7, "device"), ("h", 0, "host"))
    )
    instance = Instance(
        name="made on either side",
        engines="single",
        budget_bytes=14,
        resident_bytes=1,
        alignment_bytes=4,
        blocks=(Block(name="Y", bytes=2, offload_ns=3, prefetch_ns=1, finally_="host"),),
        tasks=(Task(name="K", inputs=(), outputs=(0,), algorithms=(device, host)),),
    )
    suggested: list[list[int]] = []

    def noted(_: LocalSearch, guide: Guide) -> None:
        suggested.append(guide.algorithms)

    kernels(Limits())  # which run a search of their own
    monkeypatch.setattr(LocalSearch, "suggest", noted)
    answer = find_method("flow").call(instance, Limits(time_limit=0.3))
    assert answer.schedule is not None
    assert suggested
    assert {tuple(algorithms) for algorithms in suggested} == {(0,)}
