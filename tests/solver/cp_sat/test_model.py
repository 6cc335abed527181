"""The interval model against exhaustive search: same optimum in divisible memory, or somebody is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from random import Random

import msgspec
import pytest
from ortools.sat.python import cp_model

from pebbler.heuristics.methods import Limits, Refusal
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import with_budget
from pebbler.instances.suites.tiny import plain, scaled, twisted, without_parts
from pebbler.solver.cp_sat import model as cp_sat
from pebbler.solver.cp_sat.decode import Clock, decode, encode
from pebbler.solver.cp_sat.model import DivisibleModel, solve_divisible
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.result import Status
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

from ...samples import chunks, counts
from ...validate.hostile import hostile_instance, hugely


def agree(instance: Instance) -> bool:
    """Whether there is a schedule; both methods must say the same, and so must the decoded plan."""
    expected = brute_force(instance, "divisible")
    found = solve_divisible(instance, Limits())
    assert found.exact
    if expected is None:
        assert (found.status, found.lower_bound_ns, found.plan) == ("INFEASIBLE", None, None)
        return False
    assert found.plan is not None
    assert (found.status, found.lower_bound_ns) == ("OPTIMAL", expected.makespan_ns), instance.name
    schedule = decode(instance, found.plan, "divisible", "cp-sat")
    assert check(instance, schedule).reasons == ()
    assert schedule.makespan_ns == expected.makespan_ns
    return True


@pytest.mark.parametrize("first", chunks(range(0, 200, 20)))
def test_the_optimum_is_that_of_exhaustive_search(first: int) -> None:
    assert sum(agree(plain(seed)) for seed in range(first, first + 20)) >= 18


@pytest.mark.parametrize("first", chunks(range(0, 200, 20)))
def test_so_it_is_with_places_at_the_end_null_times_and_no_time_at_all(first: int) -> None:
    solved = sum(agree(twisted(seed)) for seed in range(first, first + 20))
    assert 2 <= solved <= 18


def swap(**changes: int | None) -> Instance:
    """A stays or leaves while B and C are used; the tasks use 16 bytes at the most."""
    sizes = {"X": 4, "A": 4, "B": 8, "C": 4}
    run = Algorithm(name="run", duration_ns=10, workspace_bytes=0)
    times = {"offload_ns": 5, "prefetch_ns": 3} | changes
    return Instance(
        name="swap",
        engines="duplex",
        budget_bytes=16,
        resident_bytes=0,
        alignment_bytes=4,
        blocks=tuple(
            Block(name=name, bytes=size, initially="device" if name == "X" else "absent", **times)
            for name, size in sizes.items()
        ),
        tasks=(
            Task(name="a", inputs=(0,), outputs=(1,), algorithms=(run,)),
            Task(name="b", inputs=(0,), outputs=(2,), algorithms=(run,)),
            Task(name="c", inputs=(0, 2), outputs=(3,), algorithms=(run,)),
            Task(name="d", inputs=(0, 1, 3), outputs=(), algorithms=(run,)),
        ),
    )


def test_the_method_proves_what_it_finds() -> None:
    # A must leave while b runs (5 ns, hidden) and come back between c and d (3 ns), as a whole: two bytes are
    # spare, with which a single peak proves 42
    result = solve(with_budget(swap(), 18), "cp-sat")
    assert (result.status, result.makespan_ns) == (Status.OPTIMAL, 43)
    assert (result.bound_by, result.certified) == ("cp-sat", False)
    assert result.stopped_by == "optimal in divisible memory"


def test_the_method_says_that_there_is_no_schedule() -> None:
    result = solve(swap(offload_ns=None), "cp-sat")
    assert (result.status, result.schedule) == (Status.INFEASIBLE, None)


def test_a_block_may_leave_between_two_tasks_in_a_row_that_use_it() -> None:
    # D is small and quick; while E (16 ns) goes, F (16 ns) comes in D's place: 16 + D's 1 ns, not 16 + 16
    sizes = {"D": 4, "E": 12, "F": 12}
    run = Algorithm(name="run", duration_ns=1, workspace_bytes=0)
    instance = Instance(
        name="consecutive",
        engines="duplex",
        budget_bytes=24,
        resident_bytes=0,
        alignment_bytes=4,
        blocks=tuple(
            Block(
                name=name,
                bytes=size,
                offload_ns=16 if name != "D" else 1,
                prefetch_ns=16 if name != "D" else 1,
                initially="absent" if name == "E" else "device",
                finally_="host" if name == "E" else "anywhere",
            )
            for name, size in sizes.items()
        ),
        tasks=(
            Task(name="first", inputs=(0,), outputs=(1,), algorithms=(run,)),
            Task(name="second", inputs=(0, 2), outputs=(), algorithms=(run,)),
        ),
    )
    found = solve_divisible(instance, Limits())
    expected = brute_force(instance, "divisible")
    assert expected is not None
    assert found.plan is not None
    assert found.lower_bound_ns == expected.makespan_ns == 1 + 16 + 1 + 1
    assert [(gap.block, gap.after) for gap in found.plan.prefetches] == [(0, 0), (2, -1)]


def test_recomputation_is_refused() -> None:
    instance = swap()
    tasks = tuple(msgspec.structs.replace(task, recomputable=True) for task in instance.tasks)
    with pytest.raises(Refusal, match="recomputation is not modelled"):
        solve_divisible(msgspec.structs.replace(instance, tasks=tasks), Limits())


@pytest.mark.parametrize("seed", [0, 4, 8])
def test_rounding_leaves_a_bound(seed: int) -> None:
    # times that need ticks of several nanoseconds, sizes that need units of several bytes
    instance = scaled(without_parts(plain(seed)), time=10**8 + 7, size=10**9 + 7)
    blocks = tuple(msgspec.structs.replace(b, bytes=b.bytes + d % 2) for d, b in enumerate(instance.blocks))
    instance = msgspec.structs.replace(instance, blocks=blocks, budget_bytes=instance.budget_bytes + 9)
    found = solve_divisible(instance, Limits(time_limit=3))
    expected = brute_force(instance, "divisible")
    assert not found.exact
    assert expected is not None
    assert found.lower_bound_ns is not None
    assert found.lower_bound_ns <= expected.makespan_ns
    if found.status == "OPTIMAL":
        assert found.lower_bound_ns >= 0.9999 * expected.makespan_ns


@pytest.mark.parametrize("huge", [False, True])
@pytest.mark.parametrize("count", counts(30, 60))
def test_it_says_no_more_than_exhaustive_search_of_hostile_instances(huge: bool, count: int) -> None:
    """Sizes and times to 10^12: a bound is one, and an optimum that it calls exact is one."""
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in range(count):
        rng = Random(seed)
        instance = hostile_instance(rng, most_tasks=3)
        instance = hugely(instance, rng) if huge else instance
        try:
            expected = brute_force(instance, "divisible", most_states=1000)
        except TimeoutError:
            continue
        found = solve_divisible(instance, Limits(time_limit=1))
        seen[found.status, found.exact] += 1
        if expected is None:
            assert not found.exact or found.status in ("INFEASIBLE", "UNKNOWN")
            continue
        assert found.lower_bound_ns is not None
        assert found.lower_bound_ns <= expected.makespan_ns
        if found.exact and found.status == "OPTIMAL":
            assert found.lower_bound_ns == expected.makespan_ns
            assert found.plan is not None
            schedule = decode(instance, found.plan, "divisible", "cp-sat")
            assert check(instance, schedule).reasons == ()
            assert schedule.makespan_ns == expected.makespan_ns
    assert seen["OPTIMAL", True] >= count / 6
    assert not huge or seen["OPTIMAL", False] >= count / 6


def test_optimal_is_what_was_not_rounded() -> None:
    """A divisor that all sizes, or all times, have in common is taken out, and rounds nothing."""
    large = scaled(with_budget(swap(), 18), time=10**11 + 3, size=10**11 + 3)
    assert solve_divisible(large, Limits()).exact
    assert solve(large, "cp-sat").stopped_by == "optimal in divisible memory"
    first, *others = large.tasks
    (run,) = first.algorithms
    longer = msgspec.structs.replace(run, duration_ns=run.duration_ns + 1)
    uneven = msgspec.structs.replace(
        large, tasks=(msgspec.structs.replace(first, algorithms=(longer,)), *others)
    )
    result = solve(uneven, "cp-sat")
    assert result.stopped_by == "optimal for times or sizes rounded down"
    assert result.status is not Status.OPTIMAL
    expected = brute_force(uneven, "divisible")
    assert expected is not None
    assert 0.9999 * expected.makespan_ns <= result.lower_bound_ns <= expected.makespan_ns


def test_a_block_far_larger_than_the_pool_has_no_place_and_breaks_nothing() -> None:
    huge = Block(
        name="huge", bytes=10**13 + 1, offload_ns=1, prefetch_ns=1, initially="host", finally_="device"
    )
    instance = msgspec.structs.replace(swap(), blocks=(*swap().blocks, huge))
    assert solve_divisible(instance, Limits()).status == "INFEASIBLE"


def test_a_block_may_come_to_the_device_for_another_to_take_its_copy_s_place() -> None:
    """`later` leaves for `made`, to where the copy of `read` was, which is on the device by then."""
    run = Algorithm(name="run", duration_ns=0, workspace_bytes=0)
    blocks = tuple(
        Block(name=name, bytes=1, offload_ns=0, prefetch_ns=0, initially=initially)
        for name, initially in (("read", "host"), ("later", "device"), ("made", "absent"))
    )
    tasks = (
        Task(name="make", inputs=(0,), outputs=(2,), algorithms=(run,)),
        Task(name="use", inputs=(1,), outputs=(), algorithms=(run,)),
    )
    instance = Instance(
        name="swap",
        engines="duplex",
        budget_bytes=2,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=blocks,
        tasks=tasks,
        host_budget_bytes=1,
    )
    expected = brute_force(instance, "divisible")
    assert expected is not None
    assert solve_divisible(instance, Limits()).lower_bound_ns == expected.makespan_ns == 0


def test_tasks_that_touch_nothing_take_no_memory() -> None:
    instance = msgspec.structs.replace(
        swap(), blocks=(), tasks=(msgspec.structs.replace(swap().tasks[0], inputs=(), outputs=()),)
    )
    found = solve_divisible(instance, Limits())
    assert (found.status, found.lower_bound_ns) == ("OPTIMAL", 10)


def test_the_time_limit_is_for_model_warm_start_and_search_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second whenever somebody looks, and searches that take all they may."""
    now = 0.0
    given: list[float] = []
    search = cp_sat.solve_interruptibly

    def look() -> float:
        nonlocal now
        now += 1
        return now

    def wait(solver: cp_model.CpSolver, model: cp_model.CpModel) -> tuple[cp_model.CpSolverStatus, bool]:
        nonlocal now
        given.append(solver.parameters.max_time_in_seconds)
        now += given[-1]
        return search(solver, model)

    schedule = brute_force(swap())
    monkeypatch.setattr(cp_sat, "solve_interruptibly", wait)
    monkeypatch.setattr(cp_sat.time, "monotonic", look)
    solve_divisible(swap(), Limits(time_limit=1000, warm_start=schedule))
    assert len(given) == 2
    assert sum(given) > 850
    assert now <= 1000 + 1 + 1  # from the first look on, and what the last one took


def test_a_model_that_is_not_built_in_time_is_given_up() -> None:
    result = solve(swap(), "cp-sat", time_limit=1e-6)
    assert result.status == Status.UNKNOWN
    assert "time limit" in result.stopped_by


@pytest.mark.parametrize("factor", [1, 10**8 + 7])
@pytest.mark.parametrize("count", counts(10, 30))
def test_a_warm_start_is_a_complete_hint(factor: int, count: int) -> None:
    kept = 0
    for seed in range(count):
        instance = scaled(without_parts(twisted(seed)), time=factor)
        schedule = brute_force(instance, "divisible")
        if schedule is not None:
            assert is_kept(instance, schedule)
            kept += 1
    assert kept >= count / 3


def test_a_warm_start_changes_no_proof() -> None:
    schedule = brute_force(swap())
    assert schedule is not None
    found = solve_divisible(swap(), Limits(warm_start=schedule))
    assert (found.status, found.lower_bound_ns) == ("OPTIMAL", 43)


def is_kept(instance: Instance, schedule: Schedule) -> bool:
    """Whether a plan from the schedule, and nothing else, satisfies the model."""
    model = DivisibleModel(instance)
    plan = encode(instance, schedule, model.clock)
    assert plan is not None
    model.hint(plan, Limits(time_limit=5))
    return len(model.cp.proto.solution_hint.values) == len(model.cp.proto.variables)


def test_a_schedule_with_moves_is_no_warm_start() -> None:
    instance = next(i for i in map(plain, range(200)) if all(block.move_ns is not None for block in i.blocks))
    schedule = brute_force(instance)
    assert schedule is not None
    plan = encode(instance, schedule, Clock(1, 1))
    assert (plan is None) == any(operation.kind == "move" for operation in schedule.operations)


def test_an_interrupt_keeps_the_best_plan() -> None:
    code = """
import os, signal, threading, time
import pebbler
from ortools.sat.python import cp_model
from pebbler.instances.memory import parse_budget, with_budget

search = cp_model.CpSolver.solve

def interrupted(*arguments):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    return search(*arguments)

cp_model.CpSolver.solve = interrupted
instance = pebbler.Workload("vgg16", batch=64, device="k40").instance("64GiB")
instance = with_budget(instance, parse_budget("75%", instance))
result = pebbler.solve(instance, "cp-sat", time_limit=600, workers=2)
print(result.stopped_by)
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    print("and the next one reaches Python")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert "interrupted" in first or "divisible memory" in first
    assert second == "and the next one reaches Python"
