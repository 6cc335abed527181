"""Local search where host memory has a budget: what it simulates is what its program does, and that fits."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.parts import with_parts
from pebbler.heuristics.search.kernel import ANY, IMPOSSIBLE, simulate, state_for
from pebbler.heuristics.search.problem import problem_of
from pebbler.heuristics.search.program import program_of
from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.instance import Block, Instance, Task
from pebbler.instances.memory import least_host_bytes
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.measures import pinned_bytes
from pebbler.validate.schedule import MemoryModel, Schedule

from ...samples import counts, crossed
from .drawn import drawn_decisions


def _network(name: str, batch: int, device: str, budget: str, **keys: bool) -> Instance:
    return Workload(name, batch, device, **keys).instance(budget)


CASES = {
    "chain": _network("vgg16", 64, "k40", "1.1xMmin"),
    "branches, one engine": replace(_network("googlenet", 64, "k40", "1.2xMmin"), engines="single"),
    "weights that are updated": _network("resnet18", 32, "v100", "1.3xMmin", weights_as_blocks=True),
    "parts": with_parts(_network("vgg16", 64, "k40", "1.2xMmin")),
}


@pytest.mark.parametrize(
    ("case", "memory"), crossed(tuple(CASES), ("paged", "contiguous", "divisible"), of=2)
)
@pytest.mark.parametrize("count", counts(1, 8))
def test_random_decisions_run_as_simulated(case: str, memory: MemoryModel, count: int) -> None:
    """Where an offload finds no room on the host in time, its block stays."""
    rng = np.random.default_rng(5)
    ran = tight = 0
    for share in (0.0, 0.3, 0.6, 0.9, 3.0):
        least = least_host_bytes(CASES[case])
        instance = replace(CASES[case], host_budget_bytes=int(least * (1 + share)) + 10_000_000)
        problem = problem_of(instance, memory)
        state, stalls = state_for(problem), np.zeros(problem.length, dtype=np.int64)
        for _ in range(count):
            decisions = drawn_decisions(instance, problem, rng)
            makespan, steps = simulate(problem, decisions, state, stalls, ANY)
            if makespan >= IMPOSSIBLE:
                continue
            schedule = program_of(instance, problem, memory, state.log[:steps]).finish("random")
            assert check(instance, schedule).reasons == ()
            assert schedule.makespan_ns <= makespan
            offloads = sum(operation.kind == "offload" for operation in schedule.operations)
            wanted = int(np.count_nonzero(decisions.evicted))
            ran += 1
            tight += offloads < wanted
    assert ran >= count
    assert tight


@pytest.mark.parametrize("memory", ["paged", "contiguous"])
def test_with_plenty_of_host_memory_the_search_is_the_same(memory: MemoryModel) -> None:
    instance = CASES["chain"]
    plenty = replace(instance, host_budget_bytes=sum(block.bytes for block in instance.blocks) * 2)
    found = []
    for problem in (instance, plenty):
        search = LocalSearch(problem, memory, seed=3)
        search.run(work=200_000)
        schedule = search.schedule("local-search")
        assert schedule is not None
        found.append(schedule)
    without, within = found
    assert without.operations == within.operations
    assert without.residences == within.residences
    assert within.host_peak_bytes is not UNSET


def _searched(instance: Instance, work: int) -> Schedule:
    search = LocalSearch(instance, "contiguous", seed=1)
    search.run(work=work)
    schedule = search.schedule("local-search")
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    return schedule


def test_the_search_finds_what_a_tight_host_allows() -> None:
    """With a fifth less than without a budget it is shorter than moDNN's; with nothing, nothing leaves."""
    instance = CASES["chain"]
    pinned = pinned_bytes(instance, _searched(instance, 400_000))
    tight = replace(instance, host_budget_bytes=pinned * 4 // 5)
    greedy = solve(tight, "modnn").makespan_ns
    assert greedy is not None
    assert _searched(tight, 1_000_000).makespan_ns < 0.97 * greedy
    none = replace(instance, budget_bytes=10 * instance.budget_bytes, host_budget_bytes=0)
    assert not any(operation.kind == "offload" for operation in _searched(none, 10_000).operations)


def _scaled(tiny: Instance) -> Instance:
    """Return an instance with all sizes times 512."""

    def block(one: Block) -> Block:
        return replace(one, bytes=512 * one.bytes, begin=None if one.begin is None else 512 * one.begin)

    def task(one: Task) -> Task:
        found = (replace(a, workspace_bytes=512 * a.workspace_bytes) for a in one.algorithms)
        return replace(one, algorithms=tuple(found))

    return replace(
        tiny,
        blocks=tuple(map(block, tiny.blocks)),
        tasks=tuple(map(task, tiny.tasks)),
        budget_bytes=512 * tiny.budget_bytes,
        resident_bytes=512 * tiny.resident_bytes,
        alignment_bytes=512 * tiny.alignment_bytes,
    )


@pytest.mark.parametrize("count", counts(25, 60))
def test_tiny_instances_with_any_host_memory(count: int) -> None:
    """Sizes are multiples of 512 here, as the search counts them."""
    solved = 0
    for seed in range(count):
        tiny = tiny_instance(seed)
        if any(task.recomputable for task in tiny.tasks):
            continue
        large = _scaled(tiny)
        for extra in range(3):
            instance = replace(large, host_budget_bytes=least_host_bytes(large) + 512 * extra)
            search = LocalSearch(instance, "divisible", seed=seed)
            search.run(work=5_000)
            schedule = search.schedule("local-search")
            if schedule is not None:
                assert check(instance, schedule).reasons == ()
                solved += 1
    assert solved >= count
