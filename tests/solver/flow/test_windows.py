"""Windows against the times of optimal schedules, and in FLOW."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from pebbler.heuristics.methods import Limits, find_method
from pebbler.instances.files import read_instance
from pebbler.instances.instance import Instance
from pebbler.instances.suites.tiny import plain as plain_instance
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.transforms import in_pages
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.families import Window
from pebbler.solver.flow.model import flow_bound, window_model
from pebbler.solver.flow.windows import Windows
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.linear.model import LinearModel, LinearResult
from pebbler.validate.bounds.arguments import least_times
from pebbler.validate.schedule import Schedule
from pebbler.validate.simulate import simulate

from ...samples import counts, sampled

DATA = Path(__file__).parent / "data"


def solved(model: LinearModel, seconds: float) -> LinearResult:
    return solve_linear(model, time_limit=seconds)


def windows_of(instance: Instance, *lengths: int) -> list[Window]:
    windows = Windows(instance, "all")
    for length in lengths:
        windows.prove(length, 60.0, solved)
    return windows.known


def ends_of_tasks(instance: Instance, schedule: Schedule) -> list[int]:
    """The end of each task's run, after a zero."""
    _, ends = simulate(instance, schedule)
    runs = [(op.task, end) for op, end in zip(schedule.operations, ends, strict=True) if op.task is not None]
    return [0, *(end for _, end in sorted(runs))]


def idle_ns(instance: Instance, schedule: Schedule, begin: int) -> int:
    """For how long the engine of prefetches is idle from some time to the end.

    Copies count that FLOW knows: one offload of a version, and one prefetch between uses that do not follow
    each other at once.
    """
    starts, ends = simulate(instance, schedule)
    runs = ends_of_tasks(instance, schedule)
    busy: dict[tuple[str, int, int], int] = {}
    for op, start, end in zip(schedule.operations, starts, ends, strict=True):
        if op.block is None or op.kind == "move":
            continue
        before = [k for k in instance.uses[op.block] if runs[k + 1] <= start]
        written = [k for k in instance.writers[op.block] if runs[k + 1] <= start]
        took = max(end - max(start, begin), 0)
        if op.kind == "prefetch":
            after = before[-1] if before else -1
            if after + 1 not in instance.uses[op.block] or after < 0:
                busy["prefetch", op.block, after] = took
        elif instance.engines == "single":
            busy.setdefault(("offload", op.block, len(written)), took)
    return schedule.makespan_ns - begin - sum(busy.values())


@pytest.mark.parametrize("seeds", sampled(range(10, 13), range(0, 120, 12)))
def test_no_schedule_passes_a_window_faster(seeds: range) -> None:
    windows = waits = idle = 0
    for seed in seeds:
        instance = tiny_instance(seed)
        if any(task.recomputable for task in instance.tasks):
            continue
        every = [w for length in (1, 2, 3, len(instance.tasks)) for w in windows_of(instance, length)]
        windows += len(every)
        for memory in ("divisible", "contiguous"):
            schedule = brute_force(instance, memory)  # type: ignore[arg-type]
            if schedule is None:
                continue
            ends = ends_of_tasks(instance, schedule)
            for window in every:
                took = ends[window.until] - ends[window.first]
                if window.until == len(instance.tasks):
                    took = schedule.makespan_ns - ends[window.first]
                if window.idle:
                    took = idle_ns(instance, schedule, ends[window.first])
                    idle += window.first > 0
                assert window.least_ns <= took, (seed, window)
                waits += 1
            few = range(0, len(instance.tasks), 3)
            plain = flow_bound(instance, few, integrality="all")
            with_windows = flow_bound(instance, few, integrality="all", windows=every)
            assert plain is not None
            assert with_windows is not None
            assert plain.lower_bound_ns <= with_windows.lower_bound_ns <= schedule.makespan_ns
    assert windows > 20 * len(seeds) / 12
    assert waits > 40 * len(seeds) / 12
    assert idle > 20 * len(seeds) / 12


@pytest.mark.parametrize("count", counts(20, 40))
def test_the_longest_window_is_flow_on_every_task(count: int) -> None:
    compared = 0
    for seed in range(count):
        instance = tiny_instance(seed)
        if any(task.recomputable for task in instance.tasks):
            continue
        total = len(instance.tasks)
        whole = flow_bound(instance, range(total), integrality="all")
        assert whole is not None
        for window in windows_of(instance, total):
            if window.idle:
                continue
            assert window.least_ns == whole.lower_bound_ns
            compared += 1
    assert compared > 5


def test_the_last_tensors_wait_for_room_while_nothing_comes_back() -> None:
    instance = Workload("resnet34", 256, "v100").instance("1.05xMmin")
    total = len(instance.tasks)
    (window,) = (w for w in windows_of(instance, 12) if w.idle)
    assert window == Window(total - 12, total, pytest.approx(14_577_249, abs=100), True)
    few = hot_checkpoints(instance, 32)
    plain = flow_bound(instance, few, windows=[w for w in windows_of(instance, 12) if not w.idle])
    better = flow_bound(instance, few, windows=windows_of(instance, 12))
    assert plain is not None
    assert better is not None
    assert better.lower_bound_ns > 1.008 * plain.lower_bound_ns


def test_repeated_layers_are_solved_once_and_say_more_than_few_checkpoints() -> None:
    instance = Workload("vgg:groups=30-30-2-2-2", 32, "v100").instance("1.05xMmin")
    calls: list[float] = []

    def counted(model: LinearModel, seconds: float) -> LinearResult:
        calls.append(seconds)
        return solved(model, seconds)

    windows = Windows(instance, "all")
    windows.prove(12, 60.0, counted)
    assert len(calls) < len(instance.tasks) / 12
    assert all(0 < seconds <= 15.0 for seconds in calls)
    few = hot_checkpoints(instance, 16)
    plain = flow_bound(instance, few)
    better = flow_bound(instance, few, windows=windows.known)
    assert plain is not None
    assert better is not None
    assert better.lower_bound_ns > 1.05 * plain.lower_bound_ns
    assert (plain.bound_by, better.bound_by) == ("flow-lp-highs", "flow-lp-highs+windows")
    assert plain.certified
    assert not better.certified
    assert better.certificate is not None
    assert better.certified_ns <= plain.lower_bound_ns


@pytest.mark.slow
def test_whole_evictions_say_far_more_of_the_last_tasks_than_their_relaxation() -> None:
    instance = in_pages(Workload("vgg:groups=2-24-64-4-4", 128, "v100").instance("1.05xMmin"))
    total, before = len(instance.tasks), [0, *accumulate(least_times(instance))]
    relaxed, whole = (
        solved(model.linear, 60.0).bound * model.nanoseconds / 1e6
        for integrality in ("none", "all")
        for model in [window_model(instance, total - 24, total, integrality, before)]  # type: ignore[arg-type]
    )
    assert whole > 1.2 * relaxed


def test_windows_at_the_ends_alone_are_those_of_all_stretches_and_have_half_the_time_each() -> None:
    instance = Workload("resnet34", 256, "v100").instance("1.05xMmin")
    total = len(instance.tasks)
    calls: list[float] = []

    def counted(model: LinearModel, seconds: float) -> LinearResult:
        calls.append(seconds)
        return solved(model, seconds)

    windows = Windows(instance, "all")
    windows.prove(12, 60.0, counted, ends=True)
    ends = {(0, 12), (total - 12, total)}
    every = [w for w in windows_of(instance, 12) if w[:2] in ends and not w.idle]
    assert len(every) == 2
    assert sorted(windows.known) == sorted(every)
    assert len(calls) == 2
    assert all(29.0 < seconds <= 30.0 for seconds in calls)


def bytes_of(model: LinearModel) -> tuple[bytes, ...]:
    arrays = (model.cost, model.rows, model.columns, model.values, model.row_lower, model.row_upper)
    return tuple(array.tobytes() for array in arrays)


@pytest.mark.parametrize("count", counts(25, 100))
def test_a_window_that_is_not_looked_at_takes_no_longer_than_its_tasks(count: int) -> None:
    skipped = kept = 0
    looked_at: set[tuple[bytes, ...]] = set()

    def noted(model: LinearModel, seconds: float) -> LinearResult:
        looked_at.add(bytes_of(model))
        return solved(model, seconds)

    for seed in range(count):
        instance = tiny_instance(seed)
        if any(task.recomputable for task in instance.tasks):
            continue
        looked_at.clear()
        Windows(instance, "all").prove(2, 60.0, noted)
        before = [0, *accumulate(least_times(instance))]
        for first in range(2, len(instance.tasks) - 2, 2):
            until = first + 2
            model = window_model(instance, first, until, "all", before)
            kept += bytes_of(model.linear) in looked_at
            if bytes_of(model.linear) not in looked_at:
                found = solve_linear(model.linear).objective
                assert found is not None
                assert found * model.nanoseconds == pytest.approx(before[until] - before[first]), seed
                skipped += 1
    assert skipped > 0.3 * count
    assert kept > 0.3 * count


def test_what_has_no_time_or_is_stopped_stays_unknown() -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    windows = Windows(instance, "all")
    windows.prove(12, 0.0, solved)
    assert windows.known == []
    calls = []

    def stopped(model: LinearModel, seconds: float) -> LinearResult | None:
        calls.append(seconds)
        return solved(model, seconds) if len(calls) == 1 else None

    windows.prove(12, 60.0, stopped)
    assert len(calls) == 2
    assert len(windows.known) <= 1


def test_where_everything_fits_nothing_is_solved() -> None:
    instance = Workload("alexnet", 16, "v100").instance("100%")

    def refused(model: LinearModel, seconds: float) -> LinearResult:  # noqa: ARG001
        pytest.fail("there is nothing to solve")

    Windows(instance, "all").prove(12, 60.0, refused)


def above(name: str, length: int) -> tuple[int, int, int]:
    """Bounds of FLOW on some tasks, the last among them, without windows and with; time of a schedule."""
    instance = read_instance(DATA / f"{name}.instance.json")
    some = range(len(instance.tasks) - 1, -1, -5)
    plain = flow_bound(instance, some)
    better = flow_bound(instance, some, windows=windows_of(instance, length))
    schedule = find_method("modnn").call(instance, Limits()).schedule
    assert plain is not None
    assert better is not None
    assert schedule is not None
    return plain.lower_bound_ns, better.lower_bound_ns, schedule.makespan_ns


def test_what_comes_after_the_last_task_counts_once() -> None:
    """Of 1570 ns, 1000 are a copy behind the last task: once in the window's time, and once after it."""
    plain, better, schedule = above("finally_tail", 12)
    assert plain < better <= schedule == 1570


def test_stretches_that_are_alike_but_for_the_unit_of_time_have_their_own_times() -> None:
    plain, better, schedule = above("windows_digest", 12)
    assert plain < better <= schedule == 41280


def test_what_is_nothing_to_a_solver_makes_no_nanosecond() -> None:
    """A stretch of some nanoseconds, of which a solver says a millionth part more or less."""
    instance = plain_instance(0)

    def noisy(model: LinearModel, seconds: float) -> LinearResult:
        result = solved(model, seconds)
        return replace(result, bound=result.bound * (1 + 5e-7) + 1e-3)

    exact, noise = Windows(instance, "all"), Windows(instance, "all")
    for length in range(1, len(instance.tasks) + 1):
        exact.prove(length, 60.0, solved)
        noise.prove(length, 60.0, noisy)
    assert exact.known
    assert noise.known == exact.known
