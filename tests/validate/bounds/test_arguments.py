"""Prices against exhaustive search, against the linear program and against sums worked out by hand."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from chain import chain_instance
from pebbler.heuristics.recomputation.reruns import stages_of
from pebbler.instances.figures import MILLION
from pebbler.instances.files import read_instance
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.suites.tiny import recomputing
from pebbler.instances.transforms import in_pages, with_recomputation
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.model import flow_bound, flow_model, proven
from pebbler.solver.flow.recompute import proven_with_reruns, recompute_bound, recompute_model
from pebbler.solver.linear.facade import solve_linear
from pebbler.validate.bounds.arguments import (
    Prices,
    compute_ns,
    in_whole_pages,
    priced_ns,
)
from pebbler.validate.bounds.certificate import Certificate, check_certificate
from pebbler.validate.bounds.critical_path import critical_path_ns
from pebbler.validate.bounds.reruns import rerun_intervals
from pebbler.validate.bounds.single_peak import Piece, SinglePeak, copied_by
from pebbler.validate.bounds.survival import SurvivalKey

from ...samples import counts, sampled
from ..hostile import drawn_survival, hostile_instance, hugely


def without_recomputation(seeds: range) -> Iterator[Instance]:
    for instance in map(chain_instance, seeds):
        if not any(task.recomputable for task in instance.tasks):
            yield instance


def random_prices(instance: Instance, checkpoints: list[int], rng: Random) -> Prices:
    """Prices of which many are nothing, and some as high as they may be."""
    one, count = 1000, len(checkpoints)
    together = [rng.choice((0, 0, one, rng.randint(0, one))) for _ in range(2 * count + 1)]
    engines = [together]
    if instance.engines == "duplex":
        out = [rng.choice((0, price, rng.randint(0, price))) for price in together]
        engines = [out, [price - part for price, part in zip(together, out, strict=True)]]
    memory = [rng.choice((0, 0, rng.randint(0, 2 * one))) for _ in range(2 * count)]
    reruns = {
        (k, j, d): rng.randint(0, 2 * one)
        for k, intervals in rerun_intervals(instance, checkpoints).items()
        for j in intervals
        for d in instance.tasks[k].blocks
        if rng.random() < 0.6
    }
    survival = drawn_survival(instance, checkpoints, rng, 40, 3 * one) if reruns else {}
    return Prices(one, memory, engines, reruns, survival=survival)


def disturbed(certificate: Certificate, rng: Random) -> Prices:
    """The prices of a certificate, some of them a little or much lower or higher."""

    def changed(price: int, most: int) -> int:
        return min(max(0, round(price * rng.choice((0, 0.5, 0.9, 1, 1, 1, 1, 1, 1.1, 2)))), most)

    one = certificate.denominator
    engines = [list(certificate.engine_prices[0])]
    engines[0] = [changed(price, one) for price in engines[0]]
    for other in certificate.engine_prices[1:]:
        engines.append([changed(p, one - first) for p, first in zip(other, engines[0], strict=True)])
    memory = [changed(price, 100 * one) for price in certificate.memory_prices]
    named = [] if isinstance(certificate.rerun_prices, msgspec.UnsetType) else certificate.rerun_prices
    lost = [] if isinstance(certificate.survival_prices, msgspec.UnsetType) else certificate.survival_prices
    reruns = {(k, j, d): changed(price, 100 * one) for k, j, d, price in named}
    survival = {(t, d, x): changed(price, 100 * one) for t, d, x, price in lost}
    return Prices(one, memory, engines, reruns, survival=survival)


@pytest.mark.parametrize("seeds", sampled(range(8), range(0, 120, 20)))
def test_no_prices_prove_more_than_the_optimum(seeds: range) -> None:
    """Random prices on random checkpoints, and those of the linear program, as they are and disturbed."""
    rng = Random(seeds[0])
    solved = tight = beyond = 0
    for instance in without_recomputation(seeds):
        schedule = brute_force(instance, "divisible")
        if schedule is None:
            continue
        solved += 1
        tasks = range(len(instance.tasks))
        for _ in range(30):
            checkpoints = sorted(rng.sample(tasks, rng.randint(0, len(tasks))))
            bound = priced_ns(instance, checkpoints, random_prices(instance, checkpoints, rng))
            assert bound <= schedule.makespan_ns
        found = flow_bound(instance, tasks)
        assert found is not None
        assert found.certificate is not None
        tight += found.certified_ns == schedule.makespan_ns
        for _ in range(30):
            bound = priced_ns(instance, tasks, disturbed(found.certificate, rng))
            assert bound <= schedule.makespan_ns
            beyond += bound > compute_ns(instance)
    assert solved >= len(seeds) / 2
    assert tight >= solved / 4
    assert beyond >= len(seeds) / 2


@pytest.mark.parametrize("seeds", sampled((7, 12, 28), range(0, 60, 10)))
def test_no_prices_prove_more_than_the_optimum_where_tasks_run_again(seeds: Sequence[int]) -> None:
    """Those of the linear program prove its bound, whatever the checkpoints; others less."""
    rng = Random(seeds[0])
    solved = again = beyond = lost = 0
    for seed in seeds:
        instance = recomputing(seed, parts=seed % 3 > 0)
        try:
            schedule = brute_force(instance, "divisible", most_states=5_000)
        except TimeoutError:
            continue
        if schedule is None:
            continue
        solved += 1
        tasks = range(len(instance.tasks))
        for checkpoints in (tasks, tasks[::2], tasks[1:2], tasks[:0]):
            model = recompute_model(instance, checkpoints, "none")
            result = solve_linear(model.linear)
            found = proven_with_reruns(instance, result, model, "none", "highs")
            assert found is not None
            assert found.certificate is not None
            assert result.bound * model.nanoseconds * (1 - 1e-6) <= found.certified_ns <= schedule.makespan_ns
            named = not isinstance(found.certificate.rerun_prices, msgspec.UnsetType)
            again += named
            lost += not isinstance(found.certificate.survival_prices, msgspec.UnsetType)
            for _ in range(10):
                prices = disturbed(found.certificate, rng)
                bound = priced_ns(instance, found.certificate.checkpoints, prices)
                assert bound <= schedule.makespan_ns
                beyond += named and bound > compute_ns(instance)
        for _ in range(30):
            some = sorted(rng.sample(tasks, rng.randint(0, len(tasks))))
            bound = priced_ns(instance, some, random_prices(instance, some, rng))
            assert bound <= schedule.makespan_ns
    assert solved >= len(seeds) / 2
    assert again >= 1
    assert lost >= (28 in seeds)
    assert beyond >= 2


def test_tasks_may_run_again_where_programs_let_them() -> None:
    """As the search over plans has it, interval by interval; nothing runs again while a checkpoint does."""
    rng = Random(0)
    for seed in range(60):
        instance = recomputing(seed)
        tasks = range(len(instance.tasks))
        some = sorted(rng.sample(tasks, rng.randint(0, len(tasks))))
        stages = {
            (k, 2 * bisect_left(some, t))
            for t, runs in enumerate(stages_of(instance))
            for k in runs
            if k != t
        }
        found = rerun_intervals(instance, some)
        assert {(k, j) for k, intervals in found.items() for j in intervals} == stages


def test_every_position_of_a_single_peak_is_under_the_optimum() -> None:
    for instance in without_recomputation(range(20)):
        schedule = brute_force(instance, "divisible")
        if schedule is not None:
            peaks = SinglePeak(instance)
            assert max(peaks.at(k) for k in range(len(instance.tasks))) <= schedule.makespan_ns


@pytest.mark.parametrize("count", counts(20, 60))
def test_the_prices_of_the_linear_program_prove_its_bound(count: int) -> None:
    """Strong duality: the checker's own model of what a version may do is that of the rows, and integral."""
    beyond = 0
    for instance in without_recomputation(range(count)):
        every = range(len(instance.tasks))
        result = solve_linear(flow_model(instance, every, "none").linear)
        bound = flow_bound(instance, every)
        if result.status == "optimal":
            assert bound is not None
            assert bound.certified
            model = flow_model(instance, every, "none")
            assert bound.lower_bound_ns >= result.bound * model.nanoseconds * (1 - 1e-6)
            beyond += bound.lower_bound_ns > compute_ns(instance)
    assert beyond >= count / 6


def test_merging_versions_in_the_program_does_not_weaken_the_proof() -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    few = hot_checkpoints(instance, 12)
    merged, apart = flow_model(instance, few, "none"), flow_model(instance, few, "all")
    assert len(merged.linear.cost) < len(apart.linear.cost)
    word = solve_linear(merged.linear).bound * merged.nanoseconds
    bound = flow_bound(instance, few)
    assert bound is not None
    assert bound.certified
    assert bound.lower_bound_ns >= word * (1 - 1e-8)


@pytest.mark.parametrize("solver", ["highs", "glop", "pdlp"])
def test_whoever_suggests_the_prices(solver: str) -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    few = hot_checkpoints(instance, 12)
    best, found = flow_bound(instance, few), flow_bound(instance, few, solver=solver)
    assert best is not None
    assert found is not None
    assert found.certificate is not None
    assert found.certificate.bound_by == f"flow-lp-{solver}"
    assert found.certified_ns == pytest.approx(best.certified_ns, rel=1e-3)


def test_duals_that_are_no_numbers_certify_nothing() -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    model = flow_model(instance, hot_checkpoints(instance, 12), "none")
    result = solve_linear(model.linear)
    assert result.duals is not None
    for wrong in (np.nan, np.inf, -np.inf):
        duals = result.duals.copy()
        duals[model.memory_rows[0]] = wrong
        bound = proven(instance, replace(result, duals=duals), model, "flow-lp-highs")
        assert bound is not None
        assert not bound.certified
    huge = proven(instance, replace(result, duals=result.duals * 1e30), model, "flow-lp-highs")
    assert huge is not None
    assert huge.certificate is not None
    assert huge.certified_ns <= round(result.bound * model.nanoseconds) + 1


# --- hostile instances ---------------------------------------------------------------------------------


def proven_by_anything(instance: Instance, rng: Random, draws: int) -> int:
    """The most that all arguments prove, with random prices on random checkpoints."""
    tasks = range(len(instance.tasks))
    found = [compute_ns(instance), critical_path_ns(instance)]
    if not any(task.recomputable for task in instance.tasks):
        found += [SinglePeak(instance).at(k) for k in tasks]
    for _ in range(draws):
        some = sorted(rng.sample(tasks, rng.randint(0, len(tasks))))
        found.append(priced_ns(instance, some, random_prices(instance, some, rng)))
    return max(found)


@pytest.mark.parametrize("count", counts(10, 100))
def test_nothing_proves_more_than_the_optimum_of_any_instance(count: int) -> None:
    """Every argument at every position, under exhaustive search in divisible memory."""

    @given(rng=st.randoms(use_true_random=False), recomputable=st.booleans(), huge=st.booleans())
    @settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def attacked(rng: Random, recomputable: bool, huge: bool) -> None:
        instance = hostile_instance(rng, recomputable=recomputable, most_tasks=4)
        instance = hugely(instance, rng) if huge else instance
        try:
            schedule = brute_force(instance, "divisible", most_states=1000)
        except TimeoutError:
            reject()
        if schedule is not None:
            assert proven_by_anything(instance, rng, draws=8) <= schedule.makespan_ns

    attacked()


@pytest.mark.parametrize("count", counts(30, 150))
def test_hostile_instances_are_not_harmless(count: int) -> None:
    """Most have a schedule, many bounds beat the compute time, and many are met."""
    solved = beyond = met = 0
    for seed in range(count):
        rng = Random(seed)
        instance = hostile_instance(rng, recomputable=seed % 2 > 0, most_tasks=4)
        with suppress(TimeoutError):
            schedule = brute_force(instance, "divisible", most_states=1000)
            if schedule is not None:
                bound = proven_by_anything(instance, rng, draws=20)
                assert bound <= schedule.makespan_ns
                solved += 1
                beyond += bound > compute_ns(instance)
                met += bound == schedule.makespan_ns
    assert solved >= 2 * count / 3
    assert beyond >= 2 * count / 15
    assert met >= 2 * count / 5


@pytest.mark.parametrize("count", counts(16, 60))
def test_the_duals_of_a_linear_program_prove_no_more_either_on_hostile_instances(count: int) -> None:
    """They are far closer to the optimum than any draw; as they are, and disturbed."""
    beyond = 0
    for seed in range(count):
        rng = Random(seed)
        instance = hostile_instance(rng, recomputable=seed % 2 > 0, most_tasks=4)
        try:
            schedule = brute_force(instance, "divisible", most_states=1000)
        except TimeoutError:
            continue
        if schedule is None:
            continue
        again = any(task.recomputable for task in instance.tasks)
        bound = (recompute_bound if again else flow_bound)(instance, range(len(instance.tasks)))
        assert bound is not None
        assert bound.certificate is not None
        assert bound.certified_ns <= schedule.makespan_ns
        for _ in range(10):
            prices = disturbed(bound.certificate, rng)
            proven_ns = priced_ns(instance, bound.certificate.checkpoints, prices)
            assert proven_ns <= schedule.makespan_ns
            beyond += proven_ns > compute_ns(instance)
    assert beyond >= 5 * count / 3


def test_what_holds_in_whole_pages_holds_for_paged_schedules() -> None:
    beyond = 0
    for seed in range(150):
        rng = Random(seed)
        instance = hostile_instance(rng, unit=PAGE_BYTES // 2, most_tasks=3)
        with suppress(TimeoutError):
            schedule = brute_force(instance, "paged", most_states=1000)
            bound = proven_by_anything(in_whole_pages(instance, PAGE_BYTES), rng, draws=10)
            assert schedule is None or bound <= schedule.makespan_ns
            beyond += schedule is not None and bound > proven_by_anything(instance, rng, draws=10)
    assert beyond >= 3


@pytest.mark.parametrize("seed", range(10))
def test_whole_pages_are_those_of_the_transform(seed: int) -> None:
    instance = hostile_instance(Random(seed), unit=PAGE_BYTES // 4)
    ours, theirs = in_whole_pages(instance, PAGE_BYTES), in_pages(instance, PAGE_BYTES)
    assert (ours.blocks, ours.tasks, ours.pool_bytes) == (theirs.blocks, theirs.tasks, theirs.pool_bytes)


def test_a_block_that_only_the_end_needs_is_not_in_memory_before_it(pytestconfig: pytest.Config) -> None:
    """W is on the host, no task uses it, and it must end on the device: it comes in 1 ns while tasks run.

    It was counted as live throughout, so that a block of 1000 ns each way had to go: 2030 ns were proven.
    """
    data = Path(pytestconfig.rootpath) / "tests" / "data"
    instance = read_instance(data / "host_unused_finally_device.instance.json")
    schedule = brute_force(instance, "divisible")
    assert schedule is not None
    assert schedule.makespan_ns == 40
    assert [SinglePeak(instance).at(k) for k in range(4)] == [40, 40, 40, 40]
    from_start = msgspec.structs.replace(instance.blocks[0], initially="device")
    there = msgspec.structs.replace(instance, blocks=(from_start, *instance.blocks[1:]))
    assert max(SinglePeak(there).at(k) for k in range(4)) == 40  # it leaves for nothing, and comes back


# --- by hand --------------------------------------------------------------------------------------------


def one_gap() -> Instance:
    """A of 6 bytes is made (5 ns), waits while B of 8 is used (7 ns) in a pool of 10, and is read (3 ns).

    A byte takes 2 ns out and 1 ns back: 4 bytes of excess take 8 ns before the peak and 4 after it.
    """

    def task(name: str, time: int, reads: tuple[int, ...] = (), writes: tuple[int, ...] = ()) -> Task:
        only = Algorithm(name="only", duration_ns=time, workspace_bytes=0)
        return Task(name=name, inputs=reads, outputs=writes, algorithms=(only,))

    return Instance(
        name="one-gap",
        engines="duplex",
        budget_bytes=10,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(
            Block(name="a", bytes=6, offload_ns=12, prefetch_ns=6),
            Block(name="b", bytes=8, offload_ns=None, prefetch_ns=None),
        ),
        tasks=(task("make", 5, writes=(0,)), task("peak", 7, writes=(1,)), task("read", 3, reads=(0,))),
    )


def test_prices_worked_out_by_hand() -> None:
    """At 3 ns a byte, 2 at the start of the peak and 1 at its end, copying is as dear as staying."""
    tight = Prices(1, memory=[0, 0, 2, 1, 0, 0], engines=[[0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0]])
    assert priced_ns(one_gap(), [0, 1, 2], tight) == 5 + 7 + 3 + 3 * (6 + 8 - 10)
    free = replace(tight, engines=[[0] * 7, [0] * 7])
    assert priced_ns(one_gap(), [0, 1, 2], free) == 15 - 3 * (10 - 8)
    nothing = replace(free, memory=[0] * 6)
    assert priced_ns(one_gap(), [0, 1, 2], nothing) == 15
    assert priced_ns(one_gap(), [], Prices(1, [], [[0], [0]])) == 15


def slowly_copied_by(pieces: list[Piece], excess: int, work: int) -> Fraction | None:
    """After each instant, the quickest bytes of those that are available from it on, without cleverness."""
    left = excess - sum(piece.size for piece in pieces)
    if left > 0:
        return None
    best, later = Fraction(0), []
    for _, available, size, time, lost in pieces:
        later = sorted([*later, (Fraction((time << 40) // size, 1 << 40), size)])
        left += size
        rest, copied = left, Fraction(0)
        for rate, many in later:
            copied += rate * max(min(many, rest), 0)
            rest -= many
        if left > 0:
            slower = Fraction(int(copied * 2**40) * lost // MILLION, 2**40)
            best = max(best, available + copied, work + slower if lost else Fraction(0))
    return best


@pytest.mark.parametrize("count", counts(100, 300))
def test_the_bytes_that_are_left_out_are_the_slowest(count: int) -> None:
    @given(
        pieces=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9), st.integers(0, 30)), max_size=12),
        excess=st.integers(-3, 60),
        losses=st.lists(st.sampled_from((0, 1, 400_000, MILLION)), min_size=12, max_size=12),
        work=st.integers(0, 60),
    )
    @settings(max_examples=count, deadline=None, derandomize=True)
    def compared(pieces: list[tuple[int, int, int]], excess: int, losses: list[int], work: int) -> None:
        ordered = enumerate(sorted(pieces, reverse=True))
        made = [Piece(place, *piece, losses[place]) for place, piece in ordered]
        assert copied_by(made, excess, work) == slowly_copied_by(made, excess, work)

    compared()


def test_fractions_round_up_once() -> None:
    half = Prices(2, memory=[0, 0, 1, 0, 0, 0], engines=[[0, 0, 1, 0, 0, 0, 0], [0] * 7])
    assert priced_ns(one_gap(), [0, 1, 2], half) == 15 + 2
    third = Prices(3, memory=[0, 0, 1, 0, 0, 0], engines=[[0, 0, 1, 0, 0, 0, 0], [0] * 7])
    assert priced_ns(one_gap(), [0, 1, 2], third) == 15 + 2  # 4 bytes a third of a nanosecond each: 4/3


@pytest.mark.parametrize(
    ("checkpoints", "changes", "reason"),
    [
        ([0, 1], {"denominator": 0}, "denominator"),
        ([0, 1], {"memory": [0, 0, -1, 0]}, "negative"),
        ([0, 1], {"memory": [0, 0, 0]}, "not a price for every instant"),
        ([0, 1], {"engines": [[0] * 5]}, "not a price for every instant"),
        ([0, 1], {"engines": [[0] * 5, [0] * 4]}, "not a price for every instant"),
        ([0, 1], {"engines": [[0, 0, 3, 0, 0], [0, 0, 3, 0, 0]]}, "interval 2: .* above one together"),
        ([0, 1], {"engines": [[0, 0, 6, 0, 0], [0, 0, -3, 0, 0]]}, "interval 2: .* negative"),
        ([1, 0], {}, "increasing order"),
        ([1, 1], {}, "increasing order"),
        ([1, 3], {}, "increasing order"),
    ],
)
def test_what_are_no_prices_is_refused(
    checkpoints: list[int], changes: dict[str, object], reason: str
) -> None:
    prices = replace(Prices(5, [0] * 4, [[0] * 5, [0] * 5]), **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=reason):
        priced_ns(one_gap(), checkpoints, prices)


def made_again() -> Instance:
    """One gap whose block is never copied, but can be made again in 5 ns, after the peak in interval 4."""
    instance = one_gap()
    (block, other), (first, *others) = instance.blocks, instance.tasks
    return msgspec.structs.replace(
        instance,
        blocks=(msgspec.structs.replace(block, offload_ns=None), other),
        tasks=(msgspec.structs.replace(first, recomputable=True), *others),
    )


def test_a_second_run_is_worth_its_price_worked_out_by_hand() -> None:
    """The block stays at 2 ns a byte, or is made again at its price, by a run of 5 ns if that pays."""
    one = 6  # so that a price is what the 6 bytes cost, in nanoseconds

    def bound(price: int) -> int:
        prices = Prices(one, [0, 0, one, one, 0, 0], [[0] * 7, [0] * 7], {(0, 4, 0): price})
        return priced_ns(made_again(), [0, 1, 2], prices)

    nothing = 15 - 2 * (10 - 8)
    assert bound(0) == nothing
    assert bound(3) == nothing + 3
    assert bound(5) == nothing + 5
    assert bound(7) == nothing + 7 - (7 - 5)
    assert bound(20) == nothing + 6 * 2 - (20 - 5)


def test_a_single_peak_has_no_bound_for_recomputable_tasks() -> None:
    with pytest.raises(ValueError, match="recomputable"):
        SinglePeak(made_again())


@pytest.mark.parametrize(
    ("reruns", "reason"),
    [
        ({(0, 4, 0): -1}, "task 0, interval 4: a price of block 0 is negative"),
        ({(0, 3, 0): 1}, "task 0 has no second run in interval 3"),
        ({(0, 0, 0): 1}, "task 0 has no second run in interval 0"),
        ({(0, 6, 0): 1}, "task 0 has no second run in interval 6"),
        ({(0, 4, 1): 1}, "touches block 1"),
        ({(1, 4, 1): 1}, "task 1 has no second run"),
    ],
)
def test_prices_of_what_does_not_run_again_are_refused(
    reruns: dict[tuple[int, int, int], int], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        priced_ns(made_again(), [0, 1, 2], Prices(5, [0] * 6, [[0] * 7, [0] * 7], reruns))


@pytest.mark.parametrize(
    ("survival", "reason"),
    [
        ({(0, 0, 0): -1}, "the price of survival is negative"),
        ({(6, 0, 0): 1}, "there is no such instant"),
        ({(0, 0, 0): 1}, "it is written later"),
        ({(2, 9, 9): 1}, "only what a task writes"),
        ({(4, 1, 0): 1}, "the one is not made of the other"),
    ],
)
def test_prices_of_what_need_not_survive_are_refused(survival: dict[SurvivalKey, int], reason: str) -> None:
    prices = Prices(5, [0] * 6, [[0] * 7, [0] * 7], survival=survival)
    with pytest.raises(ValueError, match=reason):
        priced_ns(made_again(), [0, 1, 2], prices)


@pytest.mark.parametrize(
    "module",
    [
        *("arguments.py", "single_peak.py", "carried.py", "reruns.py", "machine.py", "host_work.py"),
        *("divisor.py", "certificate.py", "critical_path.py", "survival.py", "reads.py"),
    ],
)
def test_the_proof_imports_nothing_that_solves(module: str, pytestconfig: pytest.Config) -> None:
    """No solver, no heuristic, no floating-point arrays: the standard library, msgspec and the formats.

    Nor what solvers share: what is in memory when is worked out anew, not asked of `instances.memory`.
    """
    file = Path(pytestconfig.rootpath) / "validate" / "bounds" / module
    tree = ast.parse(file.read_text(encoding="utf-8"))
    named = {
        node.module if node.level == 0 else f"{'.' * node.level}{node.module}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    } | {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {name for name in named if name is not None and name.startswith(".")}
    assert (
        ours
        == {
            "arguments.py": {
                "...instances.instance",
                "...instances.figures",  # what a million is
                *(f".{name}" for name in ("carried", "host_work", "machine", "reads", "reruns", "survival")),
            },
            "single_peak.py": {
                "...instances.instance",
                "...instances.figures",
                *(".arguments", ".machine", ".reads"),
            },
            "reads.py": {"...instances.instance"},
            "carried.py": {"...instances.instance", ".machine"},
            "reruns.py": {"...instances.instance", ".machine"},
            "survival.py": {"...instances.instance", ".reruns"},
            "machine.py": {"...instances.instance"},
            "critical_path.py": {"...instances.instance", ".arguments", ".machine", ".reads"},
            "divisor.py": {"...instances.instance"},
            "host_work.py": {"...instances.instance", ".carried", ".machine"},
            "certificate.py": {
                *(f"...instances.{name}" for name in ("arguments", "errors", "files", "instance")),
                "...instances.transforms",  # what says that an instance is in whole pages already
                *(f"...instances.{name}" for name in ("applied", "units")),  # which pages can be mapped
                "..check",
                ".arguments",
                ".critical_path",
                ".divisor",
                ".single_peak",
            },
        }[module]
    )
    assert not {"numpy", "ortools", "pulp"} & named


def test_little_of_an_input_cannot_make_all_of_what_is_lost() -> None:
    """What is lost of a network is made again of what is there, and the checker finds the same bound."""
    instance = with_recomputation(Workload("gpt2:layers=2", 8, "a100", precision="bf16").instance("Mmin+25%"))
    checkpoints = hot_checkpoints(instance, 12)
    found = recompute_bound(instance, checkpoints)
    assert found is not None
    assert found.certificate is not None
    assert not check_certificate(instance, found.certificate).reasons
    assert found.certified_ns == found.lower_bound_ns
    prices = found.certificate.survival_prices
    assert not isinstance(prices, msgspec.UnsetType)
    assert any(d != x for _, d, x, _ in prices)
