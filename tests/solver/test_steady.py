"""Carried blocks: where they are at both ends is chosen, and every method has schedules of the original."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace as altered

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.heuristics.clock import is_rule, limited
from pebbler.heuristics.methods import (
    Answer,
    Limits,
    Method,
    MethodInfo,
    Refusal,
    list_methods,
    temporary_methods,
)
from pebbler.heuristics.papers.modnn import modnn
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import unlimited_peak, with_budget
from pebbler.instances.suites.tiny import scaled, tiny_instance
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.solver.answers import Memory
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.solve import solve
from pebbler.solver.steady import completed, settle, settled, thinned
from pebbler.solver.trying import Tried
from pebbler.validate.check import check
from pebbler.validate.schedule import Carried, Schedule

from ..samples import BY_LAYERS, ON_HOST, crossed, sampled

KIB = 1024
"""Size of each block of the small round."""


def carried(seed: int, memory: Memory, *, host: bool) -> Instance:
    """A tiny instance with carried blocks, a fifth of them with much memory; its unit may be a page."""
    made = tiny_instance(seed, carried=True, host_budget=host)
    if seed % 5 == 0:
        made = with_budget(made, 2 * unlimited_peak(made))
    scale = PAGE_BYTES // 4 if memory == "paged" else 128
    budget = made.host_budget_bytes
    return replace(
        scaled(made, size=scale), host_budget_bytes=budget if budget is UNSET else budget * scale // 64
    )


RULES = [info.name for info in list_methods() if is_rule(info.call) and not info.guest]
OTHERS = [
    info.name
    for info in list_methods()
    if not is_rule(info.call) and not info.guest and info.name != "flow-parts"  # which is flow
]


def solved(name: str, instance: Instance, memory: Memory, time_limit: float | None) -> bool:
    """Solve with a method; what it finds is a schedule of the original, or it says in a sentence why not."""
    result = solve(instance, name, memory=memory, time_limit=time_limit)
    if result.schedule is None:
        assert result.stopped_by
        assert "\n" not in result.stopped_by
        return False
    assert check(instance, result.schedule).reasons == ()
    assert tuple(state.block for state in result.schedule.states) == instance.carried
    assert result.makespan_ns is not None
    assert result.lower_bound_ns <= result.makespan_ns
    return True


@pytest.mark.parametrize(
    ("name", "memory", "host"), crossed(RULES, ("contiguous", "paged"), (False, True), of=2)
)
@pytest.mark.parametrize("seeds", sampled((1, 2, 5), range(0, 25, 25)))
def test_rules(name: str, memory: Memory, host: bool, seeds: Sequence[int]) -> None:
    found = [solved(name, carried(seed, memory, host=host), memory, None) for seed in seeds]
    assert any(found) != (name in (*BY_LAYERS, *ON_HOST))


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("memory", ["contiguous", "paged"])
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("seeds", sampled(range(1, 2), range(0, 3, 3)))
def test_other_methods(name: str, memory: Memory, host: bool, seeds: range) -> None:
    for seed in seeds:
        solved(name, carried(seed, memory, host=host), memory, 0.1)


# --- the small round ------------------------------------------------------------------------------------


def block(name: str, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": KIB, "offload_ns": 10, "prefetch_ns": 10, **keys})  # type: ignore[arg-type]


def task(name: str, **keys: object) -> Task:
    run = Algorithm(name="a", duration_ns=100, workspace_bytes=0)
    return Task(**{"name": name, "inputs": (), "outputs": (), "algorithms": (run,), **keys})  # type: ignore[arg-type]


U, W, X, Y = range(4)
"""A weight that is read alone, one that is updated, and two blocks that live between."""


def small(pool: int, **keys: object) -> Instance:
    """A pool for some blocks of four; `U` is used first."""
    return Instance(
        **{  # type: ignore[arg-type]
            "name": "small",
            "engines": "duplex",
            "budget_bytes": pool * KIB,
            "resident_bytes": 0,
            "blocks": (
                block("U", initially="carried"),
                block("W", initially="carried"),
                block("X"),
                block("Y"),
            ),
            "tasks": (
                task("read", inputs=(U,), outputs=(X,)),
                task("read W", inputs=(W, X)),
                task("make Y", inputs=(X,), outputs=(Y,)),
                task("update", inputs=(Y,), updates=(W,)),
            ),
            **keys,
        }
    )


@pytest.fixture
def put() -> Iterator[Callable[..., None]]:
    """Register a method alone."""
    with ExitStack() as stack:

        def put(method: Method, **keys: object) -> None:
            info = MethodInfo("toy", "a toy", "tests", method, **keys)  # type: ignore[arg-type]
            stack.enter_context(temporary_methods([info]))

        yield put


def watching(seen: list[Instance], method: Method) -> Method:
    """A rule that notes the instances that it is given."""

    def watched(instance: Instance, limits: Limits) -> Answer:
        seen.append(instance)
        return method(instance, limits)

    return limited(watched)


def refuse(_instance: Instance, _limits: Limits) -> Answer:
    raise Refusal("not today")


def places(instance: Instance) -> list[tuple[str, str, bool]]:
    """Where U and W begin and end, and whether they may be copied."""
    return [(b.initially, b.finally_, b.prefetch_ns is not None) for b in instance.blocks[:2]]


HOST = ("host", "host", True)


def test_a_method_gets_ordinary_blocks(put: Callable[..., None]) -> None:
    """From most on the device to least: what is used first stays longest."""
    seen: list[Instance] = []
    put(watching(seen, refuse))
    result = solve(small(4), "toy")
    assert (result.schedule, result.stopped_by) == (None, "not today")
    stays = ("device", "device", False)
    assert [places(one) for one in seen] == [[stays, stays], [stays, HOST], [HOST, HOST]]


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_a_method_that_reads_carried_blocks_gets_them(memory: Memory, put: Callable[..., None]) -> None:
    """In contiguous memory, they cannot leave."""
    seen: list[Instance] = []
    put(watching(seen, refuse), carries="read")
    instance = replace(small(4), budget_bytes=4 * PAGE_BYTES)
    solve(instance, "toy", memory=memory)
    stays = ("carried", "anywhere", memory == "paged")
    assert [places(one) for one in seen] == [[stays, stays], [stays, HOST], [HOST, HOST]]


def test_a_method_that_chooses_itself_gets_the_original(put: Callable[..., None]) -> None:
    seen: list[Instance] = []
    put(watching(seen, refuse), carries="chosen")
    solve(small(4), "toy")
    assert seen == [small(4)]


def test_what_has_no_room_is_not_tried(put: Callable[..., None]) -> None:
    """Three blocks: `W`, `X` and `Y` are there together, beside `U`."""
    seen: list[Instance] = []
    put(watching(seen, refuse))
    solve(small(2), "toy")
    assert [places(one) for one in seen] == [[HOST, HOST]]


def test_what_cannot_come_back_stays(put: Callable[..., None]) -> None:
    seen: list[Instance] = []
    put(watching(seen, refuse))
    blocks = list(small(4).blocks)
    blocks[W] = replace(blocks[W], offload_ns=None)
    solve(replace(small(4), blocks=tuple(blocks)), "toy")
    stays = ("device", "device", False)
    assert [places(one) for one in seen] == [[stays, stays], [HOST, stays]]


def test_parts_of_a_tensor_live_together(put: Callable[..., None]) -> None:
    seen: list[Instance] = []
    put(watching(seen, refuse))
    blocks = list(small(4).blocks)
    blocks[U] = replace(blocks[U], tensor="T", begin=0)
    blocks[W] = replace(blocks[W], tensor="T", begin=KIB)
    solve(replace(small(4), blocks=tuple(blocks)), "toy")
    assert [places(one) for one in seen] == [[("device", "device", False)] * 2, [HOST] * 2]


def test_host_memory_limits_what_lives_there(put: Callable[..., None]) -> None:
    seen: list[Instance] = []
    put(watching(seen, refuse))
    solve(small(4, host_budget_bytes=KIB), "toy")
    assert [HOST, HOST] not in map(places, seen)
    assert len(seen) == 2


def test_of_a_rule_the_best_choice_is_returned(put: Callable[..., None]) -> None:
    found: list[int] = []

    def noting(instance: Instance, limits: Limits) -> Answer:
        answer = modnn(instance, limits)
        assert answer.schedule is not None
        found.append(answer.schedule.makespan_ns)
        return answer

    put(limited(noting))
    instance = small(4)
    result = solve(instance, "toy")
    assert len(set(found)) == 3
    assert result.makespan_ns == min(found) == 400
    assert result.schedule is not None
    assert result.schedule.carried == (
        Carried(block=U, device=True, host=True),
        Carried(block=W, device=True, host=False),
    )


def test_other_methods_start_with_the_choice_that_a_rule_likes_best(put: Callable[..., None]) -> None:
    """They go on with the next one only where they find nothing."""
    seen: list[Instance] = []

    def once(instance: Instance, limits: Limits) -> Answer:
        seen.append(instance)
        return modnn(instance, limits) if len(seen) == 2 else refuse(instance, limits)

    put(once)
    result = solve(small(3), "toy")
    assert len(seen) == 2
    makespans = [modnn(one, Limits()).schedule.makespan_ns for one in seen]  # type: ignore[union-attr]
    assert makespans == sorted(makespans)
    assert result.makespan_ns == makespans[1]


def test_a_search_finds_choices_that_do_not_follow_the_order_of_use() -> None:
    """There is room for one of two beside the rest, and the one that is used last takes long to copy."""
    instance = small(3)
    blocks = list(instance.blocks)
    blocks[W] = replace(blocks[W], offload_ns=1000, prefetch_ns=1000)
    result = solve(replace(instance, blocks=tuple(blocks)), "local-search")
    assert result.schedule is not None
    assert result.schedule.states[1].device
    assert result.makespan_ns == 410


def test_ctrl_c_keeps_what_the_choices_have_found_with_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(tries: Sequence[Tried], *_: object) -> list[Tried]:
        for one in tries:
            one.search.run()
        raise KeyboardInterrupt

    monkeypatch.setattr("pebbler.solver.steady.halved", interrupt)
    rule, result = solve(small(3), "modnn"), solve(small(3), "local-search")
    assert result.stopped_by == "interrupted"
    assert result.makespan_ns is not None
    assert rule.makespan_ns is not None
    assert result.makespan_ns < rule.makespan_ns


@pytest.mark.parametrize("name", ["local-search", "flow"])
def test_what_is_on_the_device_leaves_and_comes_back_to_its_place(name: str) -> None:
    """From the host, it would come twice, and the first task and the end would wait for copies."""
    tasks = (
        task("read", inputs=(W,), outputs=(X,)),
        task("make Y", inputs=(X,), outputs=(Y,)),
        task("read Y", inputs=(Y,)),
        task("update", updates=(W,)),
    )
    blocks = (block("U"), block("W", initially="carried"), block("X"), block("Y"))
    instance = small(2, tasks=tasks, blocks=blocks)
    best = brute_force(instance, "contiguous")
    assert best is not None
    result = solve(instance, name, time_limit=2)
    assert result.schedule is not None
    assert result.makespan_ns == best.makespan_ns == 410
    (state,) = result.schedule.states
    assert state.device
    places = {stay.offset for stay in result.schedule.residences if stay.block == W}
    assert len(places) == 1
    assert [o.kind for o in result.schedule.operations if o.block == W] == ["offload", "prefetch"]


def test_the_choice_whose_schedule_is_shortest_with_addresses_is_planned_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here, the choice that looks worst is said to be the best."""
    starts: list[Schedule | None] = []
    chosen: list[frozenset[int]] = []

    def method(instance: Instance, limits: Limits) -> Answer:
        chosen.append(frozenset(d for d in (U, W) if instance.blocks[d].initially == "host"))
        starts.append(limits.warm_start)
        return Answer(limits.warm_start)

    def last(tries: Sequence[Tried], *_: object) -> list[Tried]:
        chosen.append(tries[-1].choice)
        assert all(one.stays for one in tries)
        tries[-1].search.run()
        return [tries[-1]]

    monkeypatch.setattr("pebbler.solver.steady.halved", last)
    info = MethodInfo("toy", "a toy", "tests", method, carries="read")
    answer = settle(small(6), info, method, Limits())
    assert answer.schedule is not None
    assert check(small(6), answer.schedule).reasons == ()
    assert len(starts) == 1
    assert starts[0] is not None
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_a_method_that_reads_carried_blocks_is_no_longer_than_the_rule(memory: Memory) -> None:
    """Here the method finds nothing, or only what takes very long."""

    def late(instance: Instance, limits: Limits) -> Answer:
        found = modnn(instance, limits).schedule
        assert found is not None
        return Answer(replace(found, makespan_ns=10 * found.makespan_ns), "time limit")

    instance = scaled(small(3), size=1 if memory == "contiguous" else PAGE_BYTES // KIB)
    rule = solve(instance, "modnn", memory=memory)
    for method in (refuse, late):
        info = MethodInfo("toy", "a toy", "tests", method, carries="read")
        answer = settle(instance, info, method, Limits(memory=memory))
        assert answer.schedule is not None
        assert answer.schedule.makespan_ns == rule.makespan_ns
        assert check(instance, answer.schedule).reasons == ()


def test_a_thinned_choice_is_spread_over_what_one_task_uses() -> None:
    """Of eight blocks, the first two have two users; every third of the others moves, in their order."""
    tasks = (task("a", inputs=tuple(range(8))), task("b", inputs=(0, 1)))
    instance = small(8, blocks=tuple(block(f"W{d}", initially="carried") for d in range(8)), tasks=tasks)
    assert thinned(instance, frozenset(), 0.0) == frozenset()
    assert thinned(instance, frozenset(), 0.25) == {3, 6}
    assert thinned(instance, frozenset({3}), 2 / 7) == {3, 4, 6}
    assert thinned(instance, frozenset(), 0.75) == set(range(2, 8))


def test_bounds_of_one_choice_are_left_out(put: Callable[..., None]) -> None:
    def bold(instance: Instance, limits: Limits) -> Answer:
        return altered(modnn(instance, limits), lower_bound_ns=10**6, bound_by="bold")

    def hopeless(_instance: Instance, _limits: Limits) -> Answer:
        return Answer(None, "no", infeasible=True)

    put(bold)
    assert solve(small(4), "toy").bound_by != "bold"
    put(hopeless)
    assert str(solve(small(4), "toy").status) == "unknown"


def test_a_method_may_offer_choices_and_bound_the_original() -> None:
    """As one does that settles the instance itself."""
    seen: list[Instance] = []

    def sure(instance: Instance, limits: Limits) -> Answer:
        bound = 100 + len(seen)
        return altered(modnn(instance, limits), lower_bound_ns=bound, bound_by="sure")

    method = watching(seen, sure)
    info = MethodInfo("toy", "a toy", "tests", method)
    answer = settle(small(4), info, method, Limits(), [frozenset({U})], bounded=True)
    assert places(seen[0]) == [HOST, ("device", "device", False)]
    assert (answer.lower_bound_ns, answer.bound_by) == (100 + len(seen), "sure")
    assert answer.schedule is not None
    assert check(small(4), answer.schedule).reasons == ()


def test_ctrl_c_gives_the_best_schedule_so_far(put: Callable[..., None]) -> None:
    seen: list[Instance] = []

    def pressed(instance: Instance, limits: Limits) -> Answer:
        if len(seen) == 2:
            raise KeyboardInterrupt
        return modnn(instance, limits)

    put(watching(seen, pressed))
    result = solve(small(4), "toy")
    assert (result.stopped_by, len(seen)) == ("interrupted", 2)
    assert result.schedule is not None
    seen[:] = [small(4)]
    with pytest.raises(KeyboardInterrupt):
        solve(small(4), "toy")


def test_after_the_time_limit_no_further_choice_is_tried(put: Callable[..., None]) -> None:
    seen: list[Instance] = []
    put(watching(seen, modnn))
    result = solve(small(4), "toy", time_limit=0)
    assert (result.stopped_by, len(seen)) == ("time limit", 1)
    assert result.schedule is not None


def test_better_schedules_are_told_once(put: Callable[..., None]) -> None:
    def telling(instance: Instance, limits: Limits) -> Answer:
        answer = modnn(instance, limits)
        assert answer.schedule is not None
        assert limits.on_better is not None
        limits.on_better(answer.schedule.makespan_ns, 5)
        return answer

    told: list[tuple[int | None, int | None]] = []
    put(limited(telling))
    result = solve(small(4), "toy", on_better=lambda makespan, bound: told.append((makespan, bound)))
    assert told == [(result.makespan_ns, None)]  # the first choice is the best one


# --- warm starts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_a_warm_start_names_the_first_choice(memory: Memory) -> None:
    instance = small(3, budget_bytes=3 * (PAGE_BYTES if memory == "paged" else KIB))
    for hosted in (frozenset({U, W}), frozenset({W}), frozenset({U})):
        one = settled(instance, hosted, memory, "homing")
        answer = modnn(one, Limits(memory=memory))
        assert answer.schedule is not None
        start = completed(instance, answer.schedule)
        assert check(instance, start).reasons == ()
        result = solve(instance, "local-search", memory=memory, time_limit=0, warm_start=start)
        assert result.makespan_ns is not None
        assert result.makespan_ns <= start.makespan_ns


def test_a_warm_start_in_which_a_block_leaves_and_comes_back_to_its_place() -> None:
    """The search goes on from there, also where it has no time to find it by itself."""
    instance = small(3)
    kept = settled(instance, frozenset({W}), "paged", "homing")
    builder = ProgramBuilder(
        replace(
            kept, blocks=(replace(kept.blocks[U], initially="device", finally_="device"), *kept.blocks[1:])
        )
    )
    builder.run(0, 0)
    builder.release(U)
    for k in (1, 2, 3):
        builder.fetch([W])
        builder.run(k, 0)
        builder.release_dead(k)
    start = completed(instance, builder.finish("by hand"))
    assert check(instance, start).reasons == ()
    for time_limit in (0, 1):
        result = solve(instance, "local-search", time_limit=time_limit, warm_start=start)
        assert result.makespan_ns is not None
        assert result.makespan_ns <= start.makespan_ns
    given: list[Schedule | None] = []

    def noted(_: Instance, limits: Limits) -> Answer:
        given.append(limits.warm_start)
        return Answer(limits.warm_start)

    info = MethodInfo("toy", "a toy", "tests", noted, carries="homing")
    settle(instance, info, noted, Limits(warm_start=start))
    assert given[0] is not None
    assert given[0].makespan_ns <= start.makespan_ns


# --- completion -----------------------------------------------------------------------------------------


def host_round(copies: int) -> tuple[Instance, Schedule]:
    """`W` lives on the host, where `X` takes the room that its stale copy leaves."""
    instance = replace(
        small(3, host_budget_bytes=copies * KIB),
        tasks=(
            task("make X", outputs=(X,)),
            task("update", updates=(W,)),
            task("make Y", outputs=(Y,)),
            task("read", inputs=(X, Y)),
        ),
        blocks=(block("U"), block("W", initially="carried"), block("X"), block("Y")),
    )
    builder = ProgramBuilder(settled(instance, frozenset({W}), "contiguous", "homing"))
    builder.run(0, 0)
    builder.prefetch(W)
    builder.run(1, 0)
    builder.offload(X)
    builder.release(X)
    builder.offload(W)
    builder.release(W)
    builder.run(2, 0)
    builder.prefetch(X)
    builder.run(3, 0)
    builder.release_dead(3)
    return instance, builder.finish("by hand")


def test_the_last_copy_lies_where_the_first_one_does() -> None:
    """Its place is kept while the copy in it is stale."""
    instance, schedule = host_round(copies=2)
    first, *_, last = (copy for copy in schedule.host_copies if copy.block == W)
    assert first.offset == last.offset
    assert check(instance, completed(instance, schedule)).reasons == ()
    with pytest.raises(Refusal, match="host memory has no place for a copy of block 'X'"):
        host_round(copies=1)


def test_a_method_that_copies_it_elsewhere_is_refused() -> None:
    instance, schedule = host_round(copies=2)
    *before, last = schedule.host_copies
    assert last.block == W
    assert last.offset is not None
    elsewhere = replace(last, offset=last.offset + 512)
    with pytest.raises(
        Refusal, match="the last copy of 'W' on the host does not lie where the first one does"
    ):
        completed(instance, replace(schedule, host_residences=(*before, elsewhere)))


def test_what_lives_on_the_host_leaves_after_its_last_use() -> None:
    """A method may keep it, as the end of an ordinary instance allows."""
    instance = small(4)
    one = settled(instance, frozenset({U, W}), "contiguous", "settled")
    builder = ProgramBuilder(one)
    builder.fetch([U, W])
    for k in range(4):
        builder.run(k, 0)
    builder.offload(W)
    schedule = builder.finish("by hand")
    assert any(not r.released_after for r in schedule.residences if r.block in (U, W))
    whole = completed(instance, schedule)
    assert check(instance, whole).reasons == ()
    assert [state.device for state in whole.states] == [False, False]


# --- a network ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network() -> Instance:
    """VGG-16 with weights that its rounds carry and update, under half of the memory that it would like."""
    whole = Workload("vgg16", 64, "p100", weights_as_blocks=True).instance(2**45)
    weights = [d for d, b in enumerate(whole.blocks) if b.initially == "host"]
    tasks = list(whole.tasks)
    for d in weights:
        last = tasks[whole.uses[d][-1]]
        inputs = tuple(i for i in last.inputs if i != d)
        tasks[whole.uses[d][-1]] = replace(last, inputs=inputs, updates=(*last.updates, d))
    blocks = tuple(replace(b, initially="carried") if d in weights else b for d, b in enumerate(whole.blocks))
    made = replace(whole, blocks=blocks, tasks=tuple(tasks))
    return with_budget(made, unlimited_peak(made) // 2)


@pytest.mark.parametrize("memory", ["contiguous", pytest.param("paged", marks=pytest.mark.slow)])
def test_vgg16(network: Instance, memory: Memory) -> None:
    by_rule = solve(network, "modnn", memory=memory)
    searched = solve(network, "local-search", memory=memory, time_limit=3)
    assert len(network.carried) == 16
    assert by_rule.makespan_ns is not None
    assert searched.makespan_ns is not None
    assert searched.makespan_ns < by_rule.makespan_ns
    assert solve(network, "modnn", memory=memory).schedule == by_rule.schedule
