"""Traces of schedules: the check of traces and the checker of schedules, one against the other."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import msgspec
import pytest

from pebbler import Instance, PebblerError, Schedule, Workload, check, check_trace, several_gpus, trace_of
from pebbler.instances.gpus.workload import cluster_instances

from ...samples import counts
from ..machine_programs import host_work_case, retimed
from ..mutants import drop_all_waits, drop_wait
from ..random_programs import random_case

RULES_ONLY = re.compile(
    r"which may have been released by then$|whose earlier (residence|one) may still be live$"
    r"|moves '.*' while an offload may be copying it$|is released by .*, not after it is acquired$"
)
"""Reasons of the checker that name no bytes which two operations touch: rules on residences alone."""


def drawn(rng: Random, k: int) -> tuple[Instance, Schedule]:
    """A valid schedule with addresses, on the device and on the host."""
    while True:
        if k % 3 == 0:
            instance, schedule = host_work_case(rng)
        else:
            instance, schedule = random_case(rng, host=k % 2 == 1, carried=k % 5 == 0)
        if schedule.memory_model != "divisible" and check(instance, schedule).valid:
            return instance, schedule


@pytest.mark.parametrize("count", counts(12, 150))
def test_valid_schedules_have_traces_without_races_and_dropped_waits_are_found_by_both(count: int) -> None:
    rng = Random(4)
    seen: Counter[tuple[bool, bool]] = Counter()
    for k in range(count):
        instance, schedule = drawn(rng, k)
        assert check_trace(trace_of(instance, schedule)).reasons == ()
        for mutate in (drop_wait, drop_wait, drop_wait, drop_all_waits):
            mutant = mutate(instance, schedule, rng)
            if mutant is None:
                continue
            mutant = retimed(instance, mutant)
            told, raced = check(instance, mutant).reasons, check_trace(trace_of(instance, mutant)).reasons
            assert bool(told) >= bool(raced)
            if not raced:
                assert all(map(RULES_ONLY.search, told)), told
            seen[bool(told), bool(raced)] += 1
    assert seen[True, True] > 2 * count
    assert seen[True, False] < seen[True, True] // 20


def test_the_trace_of_a_schedule_says_what_its_operations_touch() -> None:
    rng = Random(1)
    instance, schedule = next(
        (instance, schedule)
        for instance, schedule in (drawn(rng, k) for k in range(1, 100))
        if {"offload", "prefetch"} <= {operation.kind for operation in schedule.operations}
    )
    trace = trace_of(instance, schedule)
    assert len(trace.operations) == len(schedule.operations)
    for operation, issued in zip(schedule.operations, trace.operations, strict=True):
        assert issued.stream == operation.stream
        assert len(issued.waits) == len(operation.after)
        if operation.task is not None:
            assert issued.name == instance.tasks[operation.task].name
        elif operation.block is not None:
            name = instance.blocks[operation.block].name
            there = [one.startswith(name) for one in (*issued.reads, *issued.writes)]
            assert sum(there) >= 2
            source, target = issued.reads[0], issued.writes[0]
            assert (" on the host" in source) == (operation.kind == "prefetch")
            assert (" on the host" in target) == (operation.kind == "offload")


def test_schedules_without_addresses_or_of_several_gpus_have_no_trace() -> None:
    rng = Random(0)
    cases = (random_case(rng) for _ in range(100))
    instance, schedule = next(case for case in cases if case[1].memory_model == "divisible")
    with pytest.raises(PebblerError, match="divisible memory has no addresses"):
        trace_of(instance, schedule)
    work = Workload("lenet", 2, "k40")
    cluster = cluster_instances(work, several_gpus(work, 2), "1GiB")[0]
    empty = msgspec.structs.replace(schedule, operations=(), residences=(), memory_model="contiguous")
    with pytest.raises(PebblerError, match="the schedule is of several GPUs; trace_of takes those of one"):
        trace_of(cluster, empty)


def test_a_schedule_that_uses_what_is_not_there_has_no_trace() -> None:
    rng = Random(2)
    for k in range(1, 100):
        instance, schedule = drawn(rng, k)
        if schedule.residences and schedule.operations:
            break
    bare = msgspec.structs.replace(schedule, residences=())
    with pytest.raises(PebblerError, match=r"operation \d+ \(.*\) uses '.*', which has no residence"):
        trace_of(instance, bare)
