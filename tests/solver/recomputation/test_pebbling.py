"""Best-first search over what is in memory, against exhaustive search and dynamic programming."""

from __future__ import annotations

import math
import time

import pytest

from checkpointing import chain_optimum, random_chain, training_chain
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import least_budget, unlimited_peak, with_budget
from pebbler.instances.suites.tiny import recomputing, without_copies
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.recomputation.pebbling import pebble, sets_that_stay
from pebbler.solver.result import Status
from pebbler.solver.solve import solve

from ...samples import chunks


@pytest.mark.parametrize("first", chunks(range(0, 40, 20)))
def test_it_meets_exhaustive_search(first: int) -> None:
    """In bytes, at every budget; with places at the end, updates, several algorithms."""
    feasible = again = 0
    for seed in range(first, first + 20):
        instance = without_copies(recomputing(seed))
        if any(block.finally_ == "host" for block in instance.blocks):
            continue
        for budget in range(least_budget(instance), unlimited_peak(instance) + 1, 3):
            limited = with_budget(instance, budget)
            try:
                optimum = brute_force(limited, "divisible", most_states=20_000)
            except TimeoutError:
                continue
            found = pebble(limited)
            if optimum is None:
                assert found.runs is None
                assert found.lower_bound_ns == math.inf
                continue
            assert found.runs is not None
            assert found.lower_bound_ns == optimum.makespan_ns
            assert optimum.makespan_ns == sum(
                instance.tasks[k].algorithms[a].duration_ns for k, a in found.runs
            )
            feasible += 1
            again += len(found.runs) > len(instance.tasks)
    assert feasible >= 20
    assert again >= 5


@pytest.mark.parametrize(
    "budgets", [(3, 16), pytest.param((4, 5, 19, 21), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_chains_of_39_tasks_match_the_dynamic_programme(budgets: tuple[int, ...]) -> None:
    """The tightest budgets and loose ones; the command is `docs/scripts/checkpointing.py` for all of them."""
    forward, backward = random_chain(19, seed=19)
    chain = training_chain(forward, backward, 1, 1)
    assert len(chain.tasks) == 39
    for budget in budgets:
        found = pebble(with_budget(chain, budget))
        assert found.lower_bound_ns == chain_optimum(forward, backward, 1, 1, budget)


def test_what_is_cut_short_is_a_bound() -> None:
    forward, backward = random_chain(12, seed=12)
    chain = with_budget(training_chain(forward, backward, 1, 1), 5)
    optimum = chain_optimum(forward, backward, 1, 1, 5)
    bounds = [pebble(chain, most_states=most).lower_bound_ns for most in (1, 100, 1_000)]
    assert bounds == sorted(bounds)
    assert sum(forward) + sum(backward) < bounds[-1] <= optimum
    late = pebble(with_budget(training_chain(*random_chain(19, 19), 1, 1), 6), deadline=time.monotonic())
    assert late.runs is None


def test_a_program_that_cannot_be_is_proven_so() -> None:
    forward, backward = random_chain(19, seed=19)
    result = solve(with_budget(training_chain(forward, backward, 1, 1), 3), "checkmate")
    assert result.status is Status.INFEASIBLE


def wide(blocks: int) -> Instance:
    """Many blocks, each read once more after a task that leaves room for half of them.

    The state before that task has as many successors as there are ways to let half of them go.
    """
    algorithms = (Algorithm(name="only", duration_ns=1, workspace_bytes=0),)
    sizes = [1] * blocks + [blocks // 2] + [1] * blocks
    made = [
        Block(name=f"b{d}", bytes=size, offload_ns=None, prefetch_ns=None) for d, size in enumerate(sizes)
    ]
    reads = [()] * (blocks + 1) + [(d,) for d in range(blocks)]
    tasks = [
        Task(name=f"t{k}", inputs=read, outputs=(k,), algorithms=algorithms, recomputable=True)
        for k, read in enumerate(reads)
    ]
    return Instance(
        name="wide",
        engines="duplex",
        budget_bytes=blocks + 1,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=tuple(made),
        tasks=tuple(tasks),
    )


def test_the_clock_is_looked_at_within_a_state() -> None:
    """One state can have more successors than there is time for."""
    began = time.process_time()
    found = pebble(wide(60), deadline=time.monotonic() + 0.5)
    assert found.runs is None
    assert time.process_time() - began < 3.0


def test_states_that_wait_count_as_well() -> None:
    began = time.process_time()
    found = pebble(wide(60), most_states=2_000)
    assert found.runs is None
    assert time.process_time() - began < 10.0


def test_what_stays_is_found_without_recursion() -> None:
    """All ways to let blocks go, the largest first, and none that lets one go in vain."""
    blocks = [(3, 0), (2, 1), (2, 2), (1, 3)]
    assert [*sets_that_stay(0b1111, blocks, 4)] == [0b1100, 0b1010, 0b0110, 0b1001]
    assert [*sets_that_stay(0b1111, blocks, 8)] == [0b0000]
    assert [*sets_that_stay(0b1111, blocks, 9)] == []
    assert [*sets_that_stay(0b1111, (), 0)] == [0b1111]
    deep = [(1, d) for d in range(5_000)]
    assert next(sets_that_stay((1 << 5_000) - 1, deep, 4_000)).bit_count() == 1_000
