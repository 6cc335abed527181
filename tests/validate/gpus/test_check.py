"""The checker for several GPUs: right schedules pass, and each thing that can be wrong is told."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.instances.errors import FormatError
from pebbler.instances.instance import Instance
from pebbler.validate.check import check as check_one_gpu
from pebbler.validate.gpus.check import check, check_cluster
from pebbler.validate.gpus.program import clocks, cluster_of, gpu_programs, one_gpu
from pebbler.validate.gpus.simulate import simulate_cluster
from pebbler.validate.replay.machine import replay
from pebbler.validate.schedule import GRADIENT_KINDS, Kind, Operation, Schedule, Stream

from ...samples import counts
from ..cluster_programs import random_cluster_case


def retimed(instance: Instance, schedule: Schedule) -> Schedule:
    """The same program with the times that simulation gives it."""
    starts, ends = simulate_cluster(instance, schedule)
    operations = tuple(
        replace(operation, start_ns=start, end_ns=end)
        for operation, start, end in zip(schedule.operations, starts, ends, strict=True)
    )
    return replace(schedule, operations=operations, makespan_ns=max(ends))


def changed(schedule: Schedule, old: Operation, new: Operation | None) -> Schedule:
    """The schedule with another operation in place of one, or without it."""
    operations = []
    for operation in schedule.operations:
        if operation is old:
            operations += [] if new is None else [new]
        elif new is None:
            operations.append(replace(operation, after=tuple(i for i in operation.after if i != old.id)))
        else:
            operations.append(operation)
    return replace(schedule, operations=tuple(operations))


def of_kind(schedule: Schedule, kind: str, gpu: int = 1) -> Operation:
    """The last operation of a kind on a GPU."""
    return [o for o in schedule.operations if o.kind == kind and o.gpu == gpu][-1]


@pytest.fixture(scope="module")
def case() -> tuple[Instance, Schedule]:
    """Two GPUs that add up gradients on the host, with copies of their own."""
    rng = Random(11)
    while True:
        instance, _, schedule = random_cluster_case(rng, 2)
        kinds = {operation.kind for operation in schedule.operations}
        last = cluster_of(instance).gradients[-1:]
        if {"offload", "prefetch", "send"} <= kinds and last[0].offload_ns and last[0].prefetch_ns:
            return instance, schedule


@pytest.mark.parametrize("count", counts(20, 80))
def test_random_schedules_of_all_are_valid(count: int) -> None:
    rng = Random(5)
    for _ in range(count):
        instance, _, schedule = random_cluster_case(rng)
        assert check_cluster(instance, schedule).reasons == ()
        assert check(instance, schedule).valid
        assert not check_one_gpu(instance, schedule).valid


def test_each_gpu_survives_a_replay_of_its_part() -> None:
    rng = Random(6)
    for _ in range(25):
        instance, _, schedule = random_cluster_case(rng)
        known = clocks(cluster_of(instance), schedule.operations)
        for part in gpu_programs(instance, schedule, known):
            durations = [rng.choice((0, 1, 1000)) for _ in part.operations]
            faults = replay(one_gpu(instance), part, durations, rng)
            assert [fault for fault in faults if fault.kind != "figure"] == []


@pytest.mark.parametrize("kind", ["send", "accumulate", "return"])
def test_every_step_of_a_gradient_must_be_there(case: tuple[Instance, Schedule], kind: str) -> None:
    instance, schedule = case
    without = retimed(instance, changed(schedule, of_kind(schedule, kind), None))
    reasons = check_cluster(instance, without).reasons
    assert any(f"has 0 operations '{kind}', not 1" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("send", "may start before it is complete"),
        ("accumulate", "may start before it is on the host"),
        ("return", "may start before all of them are added up"),
    ],
)
def test_steps_of_a_gradient_wait_for_each_other(
    case: tuple[Instance, Schedule], kind: str, words: str
) -> None:
    instance, schedule = case
    found = False
    for old in [o for o in schedule.operations if o.kind == kind]:
        early = retimed(instance, changed(schedule, old, replace(old, after=())))
        found |= any(words in reason for reason in check_cluster(instance, early).reasons)
    assert found


def test_weights_return_when_nobody_reads_the_old_ones(case: tuple[Instance, Schedule]) -> None:
    instance, schedule = case
    cluster = cluster_of(instance)
    late = tuple(replace(g, used_by=(len(instance.tasks) - 1,)) for g in cluster.gradients)
    instance = replace(instance, cluster=replace(cluster, gradients=late))
    reasons = check_cluster(instance, schedule).reasons
    assert any("before the last task that reads the weights has ended" in reason for reason in reasons)


def test_a_gradient_is_computed_once(case: tuple[Instance, Schedule]) -> None:
    instance, schedule = case
    runs = [o for o in schedule.operations if o.kind == "run" and o.gpu == 0]
    task = cluster_of(instance).gradients[0].produced_by
    again = replace(next(o for o in runs if o.task == task), id=10**6, after=(schedule.operations[-1].id,))
    twice = retimed(instance, replace(schedule, operations=(*schedule.operations, again)))
    assert any("which would count twice" in reason for reason in check_cluster(instance, twice).reasons)


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("kind", ["send", "offload", "run", "accumulate"])
def test_times_are_those_of_the_bus_to_the_nanosecond(
    case: tuple[Instance, Schedule], kind: str, shift: int
) -> None:
    instance, schedule = case
    old = of_kind(schedule, kind)
    wrong = changed(schedule, old, replace(old, end_ns=old.end_ns + shift))
    assert not check_cluster(instance, wrong).valid


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: replace(s, makespan_ns=s.makespan_ns + 1), "the last operation ends at"),
        (lambda s: replace(s, peak_bytes=s.peak_bytes + 1), "peak_bytes is"),
        (lambda s: replace(s, instance="other"), "not for 'random'"),
        (
            lambda s: changed(s, of_kind(s, "send"), replace(of_kind(s, "send"), stream="h2d")),
            "is on stream h2d",
        ),
        (lambda s: replace(s, residences=s.residences[:-1]), "GPU 1: "),
    ],
)
def test_what_else_is_told(
    case: tuple[Instance, Schedule], change: Callable[[Schedule], Schedule], words: str
) -> None:
    instance, schedule = case
    reasons = check_cluster(instance, change(schedule)).reasons
    assert any(words in reason for reason in reasons), reasons


@pytest.mark.parametrize("kind", ["exchange", "reduce"])
def test_links_that_are_not_there_pass_nothing(case: tuple[Instance, Schedule], kind: Kind) -> None:
    instance, schedule = case
    stream: Stream = "network" if kind == "exchange" else "nvlink"
    extra = Operation(id=10**6, stream=stream, kind=kind, gradient=0, start_ns=0, end_ns=0)
    reasons = check_cluster(instance, replace(schedule, operations=(*schedule.operations, extra))).reasons
    assert any(f"1 operations '{kind}', not 0" in reason for reason in reasons)


def test_operations_of_several_gpus_are_no_schedule_of_one(case: tuple[Instance, Schedule]) -> None:
    instance, schedule = case
    with pytest.raises(FormatError, match=r"gpu 1 is out of range|gradient 0 does not exist"):
        check_one_gpu(replace(instance, cluster=UNSET), schedule)


@pytest.mark.parametrize("count", counts(5, 12))
def test_without_a_wait_every_fault_of_a_gradient_shows_at_some_speed(count: int) -> None:
    """Waits of gradients' operations are dropped one by one: what passes the checker survives every speed."""
    rng = Random(8)
    refused = 0
    for _ in range(count):
        instance, _, schedule = random_cluster_case(rng, 2)
        for old in schedule.operations:
            if old.kind in GRADIENT_KINDS and old.after:
                left = rng.choice(old.after)
                fewer = tuple(i for i in old.after if i != left)
                mutant = retimed(instance, changed(schedule, old, replace(old, after=fewer)))
                if check_cluster(instance, mutant).valid:
                    for _ in range(5):
                        durations = [rng.choice((0, 1, 1000)) for _ in mutant.operations]
                        assert in_order(instance, mutant, *simulate_cluster(instance, mutant, durations))
                else:
                    refused += 1
    assert refused > 5 * count / 3


def in_order(instance: Instance, schedule: Schedule, starts: list[int], ends: list[int]) -> bool:
    """Whether in one execution every gradient is passed on right: what the checker proves for all."""
    cluster = cluster_of(instance)
    when: dict[tuple[str, int, int], tuple[int, int]] = {}
    for operation, start, end in zip(schedule.operations, starts, ends, strict=True):
        item = operation.task if operation.gradient is None else operation.gradient
        if item is not None:
            before = when.get((operation.kind, operation.gpu, item), (start, end))
            when[operation.kind, operation.gpu, item] = min(before[0], start), max(before[1], end)
    for g, gradient in enumerate(cluster.gradients):
        for gpu in range(cluster.gpus):
            complete = when["run", gpu, gradient.produced_by][1]
            read = max([when["run", gpu, k][1] for k in gradient.used_by], default=0)
            if not cluster.joins_on_host:
                if when["reduce", 0, g][0] < max(complete, read):
                    return False
                continue
            added = max(when["accumulate", other, g][1] for other in range(cluster.gpus))
            if (
                when["send", gpu, g][0] < complete
                or when["accumulate", gpu, g][0] < when["send", gpu, g][1]
                or when["return", gpu, g][0] < max(added, read)
            ):
                return False
    return True
