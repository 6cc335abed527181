"""Local search: what it simulates is what its program does, and on tiny instances it finds the optimum."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pebbler.heuristics.choices import by_speed, fastest_within
from pebbler.heuristics.gaps import Guide, gaps_of
from pebbler.heuristics.loading import kernels
from pebbler.heuristics.methods import Answer, Limits, Refusal, find_method
from pebbler.heuristics.parts import with_parts
from pebbler.heuristics.search.contiguous import ContiguousSearch
from pebbler.heuristics.search.costs import with_light
from pebbler.heuristics.search.decisions import decisions_from, decisions_of, gap_keys
from pebbler.heuristics.search.kernel import (
    AFTER,
    ANY,
    BLOCK,
    BYTES,
    FORCED,
    IMPOSSIBLE,
    LIGHT,
    UNTIL,
    VERSION,
    same_program,
    simulate,
    state_for,
)
from pebbler.heuristics.search.problem import problem_of
from pebbler.heuristics.search.program import program_of
from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import footprint, with_budget
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.schedule import MemoryModel

from ...samples import counts, crossed, sampled
from .drawn import drawn_decisions


def modelled(seed: int) -> Instance | None:
    instance = tiny_instance(seed)
    return None if any(task.recomputable for task in instance.tasks) else instance


@pytest.mark.parametrize("seeds", sampled(range(10, 13), range(0, 60, 10)))
def test_tiny_instances_are_solved_like_by_brute_force(seeds: range) -> None:
    solved = optimal = 0
    for seed in seeds:
        instance = modelled(seed)
        if instance is None:
            continue
        memories: tuple[MemoryModel, ...] = ("divisible", "contiguous")
        for memory in memories:
            best = brute_force(instance, memory)
            try:
                search = LocalSearch(instance, memory, seed=1)
            except Refusal:
                continue
            for _ in range(4):
                search.run(work=20_000)
            schedule = search.schedule("local-search")
            if best is None:
                assert schedule is None
                continue
            assert schedule is not None
            assert check(instance, schedule).reasons == ()
            assert schedule.makespan_ns <= (search.makespan_ns or 0)
            assert schedule.makespan_ns >= best.makespan_ns
            solved += 1
            optimal += schedule.makespan_ns == best.makespan_ns
    assert solved >= len(seeds)
    assert optimal >= 0.9 * solved


CASES = [("vgg16", 256, "k40", "12GiB"), ("resnet34", 256, "v100", "50%"), ("googlenet", 128, "k40", "40%")]


@pytest.mark.parametrize("memory", ["paged", "contiguous", "divisible"])
@pytest.mark.parametrize("parts", [False, True])
def test_arrays_are_as_the_kernels_were_compiled_for(memory: MemoryModel, parts: bool) -> None:
    """Others would be compiled for anew, for a minute, while the clock of a method runs."""
    instance = Workload("vgg16", 64, "k40").instance("1.2xMmin")
    problem = problem_of(with_parts(instance) if parts else instance, memory)
    arrays = {name: one for name, one in problem._asdict().items() if isinstance(one, np.ndarray)}
    assert len(arrays) == 14
    assert {name for name, one in arrays.items() if one.dtype == np.float64} == {"shares", "slows"}
    assert {one.dtype for one in arrays.values()} == {np.dtype(np.int64), np.dtype(np.float64)}
    assert all(one.flags.c_contiguous and one.flags.writeable for one in arrays.values())


@pytest.mark.parametrize(("case", "memory"), crossed(CASES, ("paged", "contiguous", "divisible"), of=2))
@pytest.mark.parametrize("count", counts(3, 12))
def test_random_decisions_run_as_simulated(
    case: tuple[str, int, str, str], memory: MemoryModel, count: int
) -> None:
    """Makespans agree to the nanosecond unless many ranges were free, and then the program is no slower."""
    network, batch, device, budget = case
    instance = Workload(network, batch, device).instance(budget)
    problem = problem_of(instance, memory)
    rng = np.random.default_rng(3)
    state, stalls = state_for(problem), np.zeros(problem.length, dtype=np.int64)
    ran = exact = 0
    for _ in range(count):
        decisions = drawn_decisions(instance, problem, rng)
        makespan, steps = simulate(problem, decisions, state, stalls, ANY)
        if makespan >= IMPOSSIBLE:
            continue
        schedule = program_of(instance, problem, memory, state.log[:steps]).finish("random")
        assert check(instance, schedule).reasons == ()
        assert schedule.makespan_ns <= makespan
        ran += 1
        exact += schedule.makespan_ns == makespan
        for most in (makespan, makespan - 1, makespan * 9 // 10, makespan // 2):
            least, _ = simulate(problem, decisions, state, stalls, most)
            assert least == makespan if most >= makespan else most < least <= makespan
    assert ran >= count / 4
    assert exact >= 0.8 * ran


@pytest.mark.parametrize("memory", ["paged", "contiguous"])
def test_what_is_not_copied_does_not_matter(memory: MemoryModel) -> None:
    """Turns and holds of copies that are not made leave the program as it is; others make another one."""
    instance = Workload("vgg16", 256, "k40").instance("12GiB")
    problem = problem_of(instance, memory)
    search = LocalSearch(instance, memory, seed=2)
    search.run(work=100_000)
    decisions = search.best()
    gone = decisions.evicted != 0
    assert 2 <= gone.sum() < len(gone)
    assert not problem.gaps[:, FORCED].any()
    state, stalls = state_for(problem), np.zeros(problem.length, dtype=np.int64)
    makespan, steps = simulate(problem, decisions, state, stalls, ANY)
    log = state.log[:steps].copy()
    rng = np.random.default_rng(1)
    for _ in range(20):
        kept = [g for g in decisions.prefetches if not gone[g]]
        order = [g for g in decisions.prefetches if gone[g]]
        for g in rng.permutation(kept):
            order.insert(int(rng.integers(len(order) + 1)), g)
        hold = np.where(gone, decisions.hold, rng.integers(problem.length, size=len(gone)))
        other = decisions._replace(prefetches=np.array(order), hold=hold)
        assert same_program(problem, decisions, other, state)
        assert same_program(problem, other, decisions, state)
        assert simulate(problem, other, state, stalls, ANY) == (makespan, steps)
        assert (state.log[:steps] == log).all()
        first, second = rng.choice(np.flatnonzero(gone[other.prefetches]), 2, replace=False)
        order[first], order[second] = order[second], order[first]
        assert not same_program(problem, decisions, other._replace(prefetches=np.array(order)), state)
        turned = other._replace(algorithm=other.algorithm + (np.arange(problem.length) == rng.integers(70)))
        assert not same_program(problem, decisions, turned, state)
        assert not same_program(problem, decisions, other._replace(hold=hold + gone), state)


def test_the_search_starts_where_a_schedule_is() -> None:
    instance = Workload("vgg16", 256, "k40").instance("12GiB")
    started = find_method("modnn").call(instance, Limits()).schedule
    assert started is not None
    problem = problem_of(instance, "paged")
    decisions = decisions_from(instance, problem, started)
    prefetched = {
        (d, max((use for use in instance.uses[d] if use < ran), default=-1))
        for d, ran in _prefetches(started, instance)
    }
    kept = {key for key, out in zip(gap_keys(problem), decisions.evicted, strict=True) if out}
    assert kept == prefetched & set(gaps_of(instance))
    assert (problem.gaps[:, AFTER] < problem.length).all()
    assert (problem.gaps[:, BLOCK] < len(instance.blocks)).all()
    search = LocalSearch(instance, "paged")
    search.offer(started)
    assert search.makespan_ns is not None
    assert search.makespan_ns <= started.makespan_ns


def _prefetches(schedule, instance):  # type: ignore[no-untyped-def]
    """Block and next task of every prefetch."""
    ran = 0
    for operation in schedule.operations:
        if operation.kind == "run":
            ran = operation.task + 1
        elif operation.kind == "prefetch":
            uses = [use for use in instance.uses[operation.block] if use >= ran]
            yield operation.block, uses[0] if uses else len(instance.tasks)


@pytest.mark.parametrize("memory", ["paged", pytest.param("contiguous", marks=pytest.mark.slow)])
def test_the_same_seed_gives_the_same_bytes_and_never_worse_than_its_start(memory: MemoryModel) -> None:
    instance = Workload("alexnet", 128, "k40").instance("1.1xMmin")
    first = solve(instance, "local-search", memory=memory, seed=5)  # type: ignore[arg-type]
    again = solve(instance, "local-search", memory=memory, seed=5)  # type: ignore[arg-type]
    rule = solve(instance, "modnn", memory=memory)  # type: ignore[arg-type]
    assert first.schedule is not None
    assert again.schedule is not None
    assert rule.makespan_ns is not None
    assert encode(first.schedule) == encode(again.schedule)
    assert first.makespan_ns is not None
    assert first.makespan_ns <= rule.makespan_ns
    assert first.stopped_by == "done"


def test_a_warm_start_is_kept_where_nothing_better_is_found() -> None:
    instance = Workload("vgg16", 256, "k40").instance("12GiB")
    warm = solve(instance, "local-search", memory="paged", time_limit=0.5).schedule
    assert warm is not None
    result = solve(instance, "local-search", memory="paged", time_limit=0, warm_start=warm)
    assert result.makespan_ns == warm.makespan_ns
    assert result.stopped_by == "time limit"


def test_a_warm_start_of_another_memory_model_leads_the_search_but_is_no_answer() -> None:
    instance = Workload("vgg16", 256, "k40").instance("12GiB")
    warm = find_method("modnn").call(instance, Limits()).schedule
    assert warm is not None
    for method in ("local-search", "flow"):
        result = solve(instance, method, memory="paged", time_limit=0.3, warm_start=warm)
        assert result.schedule is not None
        assert result.schedule.memory_model == "paged"


def test_a_warm_start_that_is_not_valid_is_refused() -> None:
    instance = Workload("vgg16", 256, "k40").instance("12GiB")
    warm = find_method("modnn").call(instance, Limits()).schedule
    assert warm is not None
    other = Workload("vgg16", 256, "k40").instance("9GiB")
    with pytest.raises(
        PebblerError, match=r"warm start is not a schedule of vgg16-b256: .*give one that is valid"
    ):
        solve(other, "local-search", warm_start=warm)


def staying(
    budget: int, move_ns: int, sizes: dict[str, int], *uses: tuple[tuple[int, ...], tuple[int, ...]]
) -> Instance:
    """Blocks that cannot leave, and tasks of 10 ns by what they read and write."""
    plain = Algorithm(name="plain", duration_ns=10, workspace_bytes=0)
    return Instance(
        name="staying",
        engines="duplex",
        budget_bytes=budget,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=tuple(
            Block(name=name, bytes=size, offload_ns=None, prefetch_ns=None, move_ns=move_ns)
            for name, size in sizes.items()
        ),
        tasks=tuple(
            Task(name=f"task {k}", inputs=inputs, outputs=outputs, algorithms=(plain,))
            for k, (inputs, outputs) in enumerate(uses)
        ),
    )


def test_a_block_is_moved_where_the_bytes_are_free_but_no_hole_is_large_enough() -> None:
    # makes a, makes b, makes c, reads a and c, reads b and makes d
    uses: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((), (0,)), ((), (1,)), ((), (2,)), ((0, 2), ()), ((1,), (3,)),
    ]  # fmt: skip
    instance = staying(6, 3, {"a": 2, "b": 2, "c": 2, "d": 4}, *uses)
    assert LocalSearch(instance, "contiguous", without=("moves", "places")).schedule("x") is None
    schedule = LocalSearch(instance, "contiguous", without=("places",)).schedule("x")
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    assert [o.kind for o in schedule.operations].count("move") == 1
    assert schedule.makespan_ns == 53
    search = LocalSearch(instance, "contiguous")
    search.run(work=10_000)
    assert search.makespan_ns == 50  # b in a corner from the start


def test_what_is_in_the_way_is_known_and_put_elsewhere() -> None:
    """Of a hundred tasks, two decide; whoever puts just anything elsewhere tries hundreds of programs."""
    # where a and b lie decides whether c finds a hole: neither fits into one to make room
    few: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((), (0,)), ((0,), (1,)), ((), (2,)), ((1, 2), (3,)),
    ]  # fmt: skip
    sizes = {"s": 2, "a": 8, "b": 8, "c": 8}
    instance = staying(25, 1, sizes, *few, *[((), ())] * 96)
    for seed in range(4):
        search = LocalSearch(instance, "contiguous", seed)
        assert search.makespan_ns is None
        search.run(work=25 * 100)
        assert search.makespan_ns == 1000
        schedule = search.schedule("x")
        assert schedule is not None
        assert check(instance, schedule).reasons == ()
    fixed = LocalSearch(staying(25, 1, sizes, *few), "contiguous", without=("places",))
    assert fixed.cost == IMPOSSIBLE + 1


def test_where_bytes_differ_in_cost_cheap_ones_leave_first() -> None:
    """In whole pages, small blocks take many bytes for the time of their copies."""
    instance = Workload("resnet50", 16, "v100").instance("50%")
    models: list[MemoryModel] = ["paged", "contiguous", "divisible"]
    furthest = {model: LocalSearch(instance, model, without=["costs"]).cost for model in models}
    found = {model: LocalSearch(instance, model).cost for model in models}
    assert all(found[model] <= furthest[model] for model in models)
    assert found["paged"] < 0.95 * furthest["paged"]


def test_in_whole_pages_small_blocks_leave_for_good() -> None:
    """Together they take 80 MiB of ResNet-34's pages; one by one they make no program shorter."""
    instance = Workload("resnet34", 256, "v100").instance("60%")
    models: list[MemoryModel] = ["contiguous", "divisible"]
    for model in models:
        assert not with_light(problem_of(instance, model)).gaps[:, LIGHT].any()
    problem = with_light(problem_of(instance, "paged"))
    light = problem.gaps[:, LIGHT] == 1
    small = np.array([block.bytes < 10_000 for block in instance.blocks])[problem.gaps[:, BLOCK]]
    assert 20 < light.sum() < small.sum()  # not where they are needed again soon
    assert small[light].all()
    search = LocalSearch(instance, "paged")
    assert search.best().evicted[light].all()
    assert not LocalSearch(instance, "paged", without=["costs"]).best().evicted[light].all()
    search.run(work=2_000_000)
    assert search.best().evicted[light].all()
    assert search.cost < 547_000_000  # 549.6 ms with the same work where any of them may stay
    schedule = search.schedule("x")
    assert schedule is not None
    assert check(instance, schedule).reasons == ()


def test_a_suggestion_waits_for_the_end_of_a_descent_unless_it_is_better() -> None:
    instance = Workload("vgg16", 64, "v100").instance("75%")
    everything = Guide(list(gaps_of(instance)), [], [by_speed(task)[0] for task in instance.tasks])
    alone, tentative, waiting = (LocalSearch(instance, "paged") for _ in range(3))
    before = alone.cost
    tentative.suggest(everything._replace(tentative=True))
    waiting.suggest(everything)
    assert tentative.cost == waiting.cost == before
    for descent in (1, 2):
        for search in (alone, tentative, waiting):
            while search.descents < descent:
                search.run(work=len(instance.tasks))
        (cost, end), same, other = (search.rest() for search in (alone, tentative, waiting))
        assert same[0] == cost
        assert all(map(np.array_equal, same[1], end))
        assert (other[0] == cost and all(map(np.array_equal, other[1], end))) == (descent == 1)
    alone.run(work=200_000)
    assert alone.cost < before
    again = LocalSearch(instance, "paged")
    again.suggest(alone.guide()._replace(tentative=True))
    assert again.cost < before


def test_recomputation_is_refused() -> None:
    instance = next(i for i in map(tiny_instance, range(99)) if any(t.recomputable for t in i.tasks))
    with pytest.raises(Refusal, match="recomputation"):
        LocalSearch(instance, "paged")


def test_copies_keep_the_order_of_a_guide() -> None:
    instance = Workload("vgg16", 256, "v100").instance("75%")
    problem = problem_of(instance, "paged")
    keys = gap_keys(problem)
    rng = np.random.default_rng(5)
    for _ in range(20):
        gaps = [keys[g] for g in rng.permutation(len(keys))[:12]]
        others = [keys[g] for g in rng.permutation(len(keys))[:12]]
        decisions = decisions_of(problem, Guide(gaps, others, [0] * len(instance.tasks)))
        assert sorted(decisions.prefetches) == list(range(len(keys)))
        assert sorted(decisions.offloads) == list(range(len(problem.versions)))
        assert [keys[g] for g in decisions.prefetches if keys[g] in gaps] == gaps
        wanted = [int(problem.gaps[keys.index(gap), VERSION]) for gap in others]
        versions = list(dict.fromkeys(v for v in wanted if v >= 0))
        assert [v for v in decisions.offloads if v in versions] == versions
        for early, late in pairwise(g for g in decisions.prefetches if keys[g] not in gaps):
            assert problem.gaps[early, UNTIL] <= problem.gaps[late, UNTIL]


def test_places_of_their_own_leave_every_task_its_fastest_algorithm() -> None:
    """The first layers' fastest algorithms leave 0.3 MB of the pool; the smallest blocks take more."""
    roomy = Workload("vgg16", 64, "k40").instance("63%")
    tight = with_budget(roomy, roomy.budget_bytes - min(_spare(roomy)) + 300_000)
    assert 0 <= min(_spare(tight)) < 1_000_000


def _spare(instance: Instance) -> list[int]:
    """What the fastest algorithm of each task leaves of the part of the pool that blocks share."""
    problem = problem_of(instance, "contiguous")
    assert (problem.private >= 0).any()
    spare = []
    for k, task in enumerate(instance.tasks):
        fastest = task.algorithms[fastest_within(task, instance.pool_bytes - footprint(instance, k))]
        held = sum(int(problem.blocks[d, BYTES]) for d in task.blocks)
        spare.append(problem.capacity - held - fastest.workspace_bytes)
    return spare


def test_ctrl_c_before_there_is_a_schedule_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def refused(_: Instance, __: Limits) -> Answer:
        raise Refusal("no place")

    kernels(Limits())
    rule = replace(find_method("modnn"), call=refused)
    monkeypatch.setattr("pebbler.heuristics.search.method.find_method", lambda _: rule)
    monkeypatch.setattr(ContiguousSearch, "lead", interrupted)
    monkeypatch.setattr(ContiguousSearch, "schedule", lambda *_: None)
    instance = Workload("vgg16", 64, "k40").instance("1.05xMmin")
    answer = find_method("local-search").call(instance, Limits())
    assert (answer.schedule, answer.stopped_by) == (None, "interrupted")
