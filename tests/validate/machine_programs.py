"""Random valid programs where copies share a link and slow runs down, and where tasks run on the host.

Programs with work on the host are random walks through the machine of the exhaustive search. What is there is
then placed, and waits that are not needed are taken out, so that each of those that are left is.
"""

from __future__ import annotations

from random import Random

import msgspec

from pebbler.instances.instance import Instance
from pebbler.instances.units import ceil_to
from pebbler.solver.exhaustive.host_work import HostWork
from pebbler.validate.check import check
from pebbler.validate.measures import highest_byte, memory_curve, with_host
from pebbler.validate.schedule import HostResidence, Residence, Schedule
from pebbler.validate.simulate import simulate

from ..adversary.instances import (
    Shape,
    adversarial,
    with_host_budget,
    with_host_work,
    with_link,
    with_slowdown,
)
from ..adversary.instances import with_carried as with_some_carried
from .random_programs import random_case

UNIT = 512
"""Every offset in host memory is a multiple of it."""


def retimed(instance: Instance, schedule: Schedule) -> Schedule:
    """Return the program with the figures that it really has, so that only its structure is judged."""
    starts, ends = simulate(instance, schedule)
    operations = tuple(
        msgspec.structs.replace(operation, start_ns=start, end_ns=end)
        for operation, start, end in zip(schedule.operations, starts, ends, strict=True)
    )
    timed = msgspec.structs.replace(schedule, operations=operations, makespan_ns=max(ends, default=0))
    if schedule.memory_model == "divisible":
        peak = max(memory_curve(instance, timed)[1])
    else:
        peak = instance.resident_bytes + highest_byte(timed)
    timed = msgspec.structs.replace(timed, peak_bytes=peak)
    return timed if timed.host_residences is msgspec.UNSET else with_host(timed, timed.host_residences)


def uncoupled(instance: Instance) -> Instance:
    """Return the instance without a link and without slowed tasks."""
    tasks = tuple(msgspec.structs.replace(task, slowdown_ppm=msgspec.UNSET) for task in instance.tasks)
    return msgspec.structs.replace(instance, link=msgspec.UNSET, tasks=tasks)


def coupled_case(rng: Random) -> tuple[Instance, Schedule]:
    """Draw a program whose copies share a link or slow runs down, or both; any memory model."""
    instance, schedule = random_case(rng, host=rng.random() < 0.3, carried=rng.random() < 0.3)
    instance = _coupled(instance, rng)
    schedule = retimed(instance, schedule)
    if schedule.memory_model == "divisible":  # there the sum at these times counts
        instance = _with_room(instance, schedule)
    return instance, schedule


def host_work_case(rng: Random, *, host: bool = False) -> tuple[Instance, Schedule]:
    """Draw a program with runs on the host, in contiguous or in divisible memory.

    With `host`, host memory ends, and a run has something there of its own.
    """
    while True:
        shape = Shape(tasks=5, blocks=5, digits=1, parts=False, reruns=rng.random() < 0.3)
        instance = adversarial(rng, shape)
        if rng.random() < 0.3:
            instance = with_some_carried(rng, instance)
        instance = with_host_work(rng, instance)
        if rng.random() < 0.5:
            instance = _coupled(instance, rng)
        if host or rng.random() < 0.6:
            instance = with_host_budget(rng, instance)
        schedule = _walk(instance, rng)
        if schedule is None or len(schedule.residences) < 2:  # of which some kinds of damage take one
            continue
        runs = {operation.id for operation in schedule.operations if operation.stream == "host"}
        if not runs or (host and not any(copy.acquired_by in runs for copy in schedule.host_copies)):
            continue
        if not instance.carried and rng.random() < 0.7:  # carried ones would have to end where they begin
            instance, schedule = _placed(instance, schedule)
        return instance, _without_useless_waits(instance, schedule, rng)


def _coupled(instance: Instance, rng: Random) -> Instance:
    """Give an instance a link, or tasks that copies slow down, or both."""
    kind = rng.choice(("link", "slowdown", "both"))
    if kind != "slowdown":
        instance = with_link(rng, instance)
    return instance if kind == "link" else with_slowdown(rng, instance)


def _walk(instance: Instance, rng: Random) -> Schedule | None:
    """Take any step of the machine after any other; None at a dead end, or after a long way."""
    machine = HostWork(instance, "divisible")
    starts = list(machine.initial_states())
    if not starts:
        return None
    state = rng.choice(starts)
    path = [(state, None)]
    for _ in range(150):
        if machine.is_done(state):
            return machine.program(path)
        steps = [(step, following) for step, following, _ in machine.steps(state)]
        if not steps:
            return None
        begun = [pair for pair in steps if pair[0].kind in ("run", "host")]
        step, state = rng.choice(begun if begun and rng.random() < 0.6 else steps)
        path.append((state, step))
    return None


def _placed(instance: Instance, schedule: Schedule) -> tuple[Instance, Schedule]:
    """Return the program in contiguous memory, in pools that are as large as it takes."""
    at = _offsets(schedule, schedule.residences, instance.alignment_bytes)
    residences = [msgspec.structs.replace(r, offset=o) for r, o in zip(schedule.residences, at, strict=True)]
    at = _offsets(schedule, schedule.host_copies, UNIT)
    copies = [msgspec.structs.replace(r, offset=o) for r, o in zip(schedule.host_copies, at, strict=True)]
    placed = msgspec.structs.replace(
        schedule,
        memory_model="contiguous",
        residences=tuple(residences),
        host_residences=tuple(copies) if instance.has_host_budget else msgspec.UNSET,
    )
    placed = retimed(instance, placed)
    return _with_room(instance, placed), placed


def _offsets(
    schedule: Schedule, residences: tuple[Residence, ...] | tuple[HostResidence, ...], unit: int
) -> list[int]:
    """Return the lowest free offset of each residence: over what all waits together have made free."""
    times = {operation.id: (i, operation) for i, operation in enumerate(schedule.operations)}

    def begins(r: Residence | HostResidence) -> tuple[int, int]:
        return (
            (-1, 0) if r.acquired_by is None else (times[r.acquired_by][0], times[r.acquired_by][1].start_ns)
        )

    found: dict[int, int] = {}
    for i in sorted(range(len(residences)), key=lambda i: begins(residences[i])):
        position, start = begins(residences[i])
        taken = []
        for j, offset in found.items():
            releases = [times[other] for other in residences[j].released_after]
            is_gone = releases and all(p < position and o.end_ns <= start for p, o in releases)
            if not is_gone:
                taken.append((offset, offset + ceil_to(residences[j].bytes, unit)))
        at = 0
        for begin, end in sorted(taken):
            if at + residences[i].bytes > begin:
                at = max(at, end)
        found[i] = at
    return [found[i] for i in range(len(residences))]


def _with_room(instance: Instance, schedule: Schedule) -> Instance:
    """Return the instance with budgets that are no less than the peaks."""
    changes = {"budget_bytes": max(instance.budget_bytes, schedule.peak_bytes)}
    if instance.host_budget_bytes is not msgspec.UNSET and schedule.host_peak_bytes is not msgspec.UNSET:
        changes["host_budget_bytes"] = max(instance.host_budget_bytes, schedule.host_peak_bytes)
    return msgspec.structs.replace(instance, **changes)


def _without_useless_waits(instance: Instance, schedule: Schedule, rng: Random) -> Schedule:
    """Take out most of the waits without which the program is still valid."""
    waits = [(i, other) for i, operation in enumerate(schedule.operations) for other in operation.after]
    for i, other in rng.sample(waits, len(waits)):
        operations = list(schedule.operations)
        left = tuple(one for one in operations[i].after if one != other)
        operations[i] = msgspec.structs.replace(operations[i], after=left)
        thinned = retimed(instance, msgspec.structs.replace(schedule, operations=tuple(operations)))
        if rng.random() < 0.9 and check(instance, thinned).valid:
            schedule = thinned
    return schedule
