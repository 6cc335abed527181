"""Local search with blocks that rounds carry: what it simulates is what its valid program does."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from pebbler.heuristics.gaps import gaps_of
from pebbler.heuristics.parts import with_parts
from pebbler.heuristics.search.decisions import decisions_from
from pebbler.heuristics.search.kernel import ANY, IMPOSSIBLE, simulate, state_for
from pebbler.heuristics.search.problem import problem_of
from pebbler.heuristics.search.program import program_of
from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.buffers import Buffer
from pebbler.instances.instance import Instance
from pebbler.instances.memory import unlimited_peak, with_budget
from pebbler.instances.workload import Workload
from pebbler.solver.packing.pack import places
from pebbler.validate.check import check
from pebbler.validate.packing import check_packing
from pebbler.validate.schedule import MemoryModel

from ...samples import counts, crossed
from .drawn import drawn_decisions


def _carrying(name: str, batch: int, share: float) -> Instance:
    """A network that carries its weights, every other one of which its backward pass updates."""
    whole = Workload(name, batch, "k40", weights_as_blocks=True).instance(2**45)
    weights = [d for d, block in enumerate(whole.blocks) if block.initially == "host"]
    tasks = list(whole.tasks)
    for d in weights[::2]:
        last = tasks[whole.uses[d][-1]]
        inputs = tuple(i for i in last.inputs if i != d)
        tasks[whole.uses[d][-1]] = replace(last, inputs=inputs, updates=(*last.updates, d))
    blocks = tuple(
        replace(block, initially="carried") if d in weights else block for d, block in enumerate(whole.blocks)
    )
    made = replace(whole, blocks=blocks, tasks=tuple(tasks))
    return with_budget(made, int(share * unlimited_peak(made)))


CASES = {
    "chain": _carrying("vgg16", 16, 0.75),
    "branches, one engine": replace(_carrying("googlenet", 16, 0.6), engines="single"),
    "parts": with_parts(_carrying("vgg16", 16, 0.75)),
    "host memory that ends": replace(_carrying("resnet18", 32, 0.9), host_budget_bytes=600_000_000),
}


@pytest.mark.parametrize(
    ("case", "memory"), crossed(tuple(CASES), ("paged", "contiguous", "divisible"), of=2)
)
@pytest.mark.parametrize("count", counts(1, 6))
def test_random_decisions_run_as_simulated(case: str, memory: MemoryModel, count: int) -> None:
    rng = np.random.default_rng(7)
    instance = CASES[case]
    problem = problem_of(instance, memory)
    state, stalls = state_for(problem), np.zeros(problem.length, dtype=np.int64)
    ran, out, back = 0, set(), set()
    for share in (0.3, 0.6, 0.9, 1.0):
        for _ in range(count):
            decisions = drawn_decisions(instance, problem, rng, share)
            makespan, steps = simulate(problem, decisions, state, stalls, ANY)
            if makespan >= IMPOSSIBLE:
                continue
            schedule = program_of(instance, problem, memory, state.log[:steps]).finish("random")
            assert check(instance, schedule).reasons == ()
            assert schedule.makespan_ns <= makespan
            ran += 1
            out |= {o.block for o in schedule.operations if o.kind == "offload"}
            back |= {o.block for o in schedule.operations if o.kind == "prefetch"}
    assert ran >= 2 * count / 3
    carried = set(instance.carried)
    assert out & carried
    assert (back - out) & carried or memory == "contiguous"  # what nobody writes leaves for nothing


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_the_search_ends_as_it_begins(memory: MemoryModel) -> None:
    """Its own schedule is a start for it, which has the same evictions."""
    instance = CASES["chain"]
    search = LocalSearch(instance, memory)
    search.run(work=200_000)
    schedule = search.schedule("local-search")
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    assert all(state.device for state in schedule.states)
    again = decisions_from(instance, search.problem, schedule)
    assert (again.evicted == search.best().evicted).all()


def test_all_stays_of_a_block_have_one_place() -> None:
    """Places for a program without addresses are those of its stays, with the gaps between them."""
    instance = CASES["chain"]
    search = LocalSearch(instance, "contiguous", addresses=False)
    search.run(work=200_000)
    lifetimes = search.lifetimes(search.best())
    away = [one for one in lifetimes if one.piece.gaps]
    assert away
    assert all(one.side in instance.carried for one in away)
    assert len({one.side for one in lifetimes}) == len(lifetimes)
    pieces, unit = [one.piece for one in lifetimes], instance.alignment_bytes
    assert places(pieces, instance.pool_bytes // 2, unit) is None
    found = 0
    for more in (1.0, 1.1, 1.3):
        offsets = places(pieces, int(more * instance.pool_bytes), unit)
        if offsets is None:
            continue
        found += 1
        buffers = [Buffer(str(i), p.begin, p.end, p.bytes, gaps=p.gaps) for i, p in enumerate(pieces)]
        assert check_packing(buffers, offsets) == ()
    assert found


def test_gaps_of_carried_blocks_reach_the_end() -> None:
    instance = CASES["chain"]
    ends = {d for (d, _), until in gaps_of(instance).items() if until == len(instance.tasks)}
    last = len(instance.tasks) - 1
    assert ends == {d for d in instance.carried if instance.uses[d][-1] < last}
