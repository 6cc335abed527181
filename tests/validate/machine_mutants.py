"""Kinds of damage to programs with a shared link, slowed runs or work on the host; see `mutants`."""

from __future__ import annotations

from random import Random

import msgspec

from pebbler.instances.figures import MILLION
from pebbler.instances.instance import Instance, Link, Slowdown
from pebbler.validate.schedule import HostResidence, Operation, Residence, Schedule

from .host_mutants import UNIT, with_copy
from .machine_programs import retimed, uncoupled
from .mutants import InstanceMutation, Mutation, pick, rebuilt, with_operation, with_operations

# --- where runs are ---------------------------------------------------------------------------------------


def other_side(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Run a task on the other side, with everything else as it was."""
    choices = [
        (i, a, "compute" if algorithm.on == "device" else "host")
        for i, operation in enumerate(schedule.operations)
        if operation.task is not None
        for a, algorithm in enumerate(instance.tasks[operation.task].algorithms)
        if (algorithm.on == "host") != (operation.stream == "host")
    ]
    choice = pick(rng, choices)
    if choice is None:
        return None
    i, a, stream = choice
    return with_operation(schedule, i, algorithm=a, stream=stream)


def swap_runs_on_host(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Exchange two runs on the host, or one there and one on the device."""
    runs = [i for i, operation in enumerate(schedule.operations) if operation.kind == "run"]
    pairs = [
        (i, j)
        for i in runs
        for j in runs
        if i < j and "host" in (schedule.operations[i].stream, schedule.operations[j].stream)
    ]
    pair = pick(rng, pairs)
    if pair is None:
        return None
    a, b = (schedule.operations[i] for i in pair)
    keys = ("task", "algorithm", "stream") if rng.random() < 0.5 else ("task", "algorithm")
    swapped = with_operation(schedule, pair[0], **{key: getattr(b, key) for key in keys})
    return with_operation(swapped, pair[1], **{key: getattr(a, key) for key in keys})


def host_run_twice(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Run a task on the host again, later."""
    i = _any_on_host(schedule, rng)
    if i is None:
        return None
    operations = list(schedule.operations)
    again = msgspec.structs.replace(operations[i], id=1 + max(o.id for o in operations))
    operations.insert(rng.randint(i + 1, len(operations)), again)
    return with_operations(schedule, operations)


def host_run_early(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Put a run on the host earlier in the list, without the waits that it then cannot have."""
    i = _any_on_host(schedule, rng)
    if not i:
        return None
    return _moved(schedule, i, rng.randrange(i))


def prefetch_before_host_run(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Fetch a block before the run on the host that writes it, so that what comes is old or not there."""
    pairs = [
        (i, j)
        for i, operation in enumerate(schedule.operations)
        if operation.stream == "host" and operation.task is not None
        for j in range(i + 1, len(schedule.operations))
        if schedule.operations[j].kind == "prefetch"
        and schedule.operations[j].block in _written(instance, operation)
    ]
    pair = pick(rng, pairs)
    return None if pair is None else _moved(schedule, pair[1], pair[0])


def offload_what_is_stale(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Offload a block from the device after the host has updated its copy."""
    pairs = [
        (i, d)
        for i, operation in enumerate(schedule.operations)
        if operation.stream == "host"
        for d in _written(instance, operation)
        if any(residence.block == d for residence in schedule.residences)
    ]
    pair = pick(rng, pairs)
    if pair is None:
        return None
    operations = list(schedule.operations)
    at, d = rng.randint(pair[0] + 1, len(operations)), pair[1]
    offload = Operation(
        id=1 + max(o.id for o in operations),
        kind="offload",
        stream="copy" if instance.engines == "single" else "d2h",
        block=d,
        after=tuple(o.id for o in operations[:at] if rng.random() < 0.8),
        start_ns=0,
        end_ns=0,
    )
    operations.insert(at, offload)
    changed = with_operations(schedule, operations)
    if not instance.has_host_budget or rng.random() < 0.3:
        return changed
    copy = HostResidence(
        block=d, bytes=instance.blocks[d].bytes, offset=_offset(schedule, rng), acquired_by=offload.id
    )
    return rebuilt(changed, host_residences=(*changed.host_copies, copy))


# --- waits between the streams ----------------------------------------------------------------------------


def drop_wait_of_host_run(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    waits = [
        (i, other)
        for i, operation in enumerate(schedule.operations)
        if operation.stream == "host"
        for other in operation.after
    ]
    return _without_wait(schedule, pick(rng, waits))


def drop_wait_for_host_run(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    on_host = {operation.id for operation in schedule.operations if operation.stream == "host"}
    waits = [
        (i, other)
        for i, operation in enumerate(schedule.operations)
        for other in operation.after
        if other in on_host
    ]
    return _without_wait(schedule, pick(rng, waits))


# --- what runs on the host have there ---------------------------------------------------------------------


def drop_copy_of_host_run(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Leave out an output's or a workspace's place on the host."""
    c = _copy_of_host_run(schedule, rng)
    if c is None:
        return None
    return rebuilt(schedule, host_residences=(*schedule.host_copies[:c], *schedule.host_copies[c + 1 :]))


def copy_of_an_update(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Let a run on the host acquire a place for a block that it updates, or only reads."""
    i = _any_on_host(schedule, rng)
    if i is None or not instance.has_host_budget:
        return None
    operation = schedule.operations[i]
    task = instance.tasks[operation.task or 0]
    d = pick(rng, (*task.updates, *task.updates, *task.inputs))
    if d is None:
        return None
    copy = HostResidence(
        block=d,
        bytes=instance.blocks[d].bytes,
        offset=_offset(schedule, rng),
        acquired_by=operation.id,
        released_after=(operation.id,) if rng.random() < 0.5 else (),
    )
    return rebuilt(schedule, host_residences=(*schedule.host_copies, copy))


def release_what_host_run_uses(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Release a copy after an operation before a run on the host that reads or updates it."""
    order = {operation.id: i for i, operation in enumerate(schedule.operations)}
    pairs = [
        (c, i)
        for i, operation in enumerate(schedule.operations)
        if operation.stream == "host" and operation.task is not None
        for c, copy in enumerate(schedule.host_copies)
        if copy.block in instance.tasks[operation.task].blocks
        and (copy.acquired_by is None or order[copy.acquired_by] < i)
    ]
    pair = pick(rng, pairs)
    if pair is None or not pair[1]:
        return None
    first = order.get(schedule.host_copies[pair[0]].acquired_by or -1, 0)
    releaser = schedule.operations[rng.randrange(min(first, pair[1] - 1), pair[1])].id
    return with_copy(schedule, pair[0], released_after=(releaser,))


def workspace_over_a_copy(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Give a workspace on the host the place of a copy, or of another workspace."""
    if schedule.memory_model == "divisible":
        return None
    c = pick(rng, [c for c, copy in enumerate(schedule.host_copies) if copy.block is None])
    others = [copy.offset for i, copy in enumerate(schedule.host_copies) if i != c]
    return None if c is None or not others else with_copy(schedule, c, offset=rng.choice(others))


# --- the form and the figures -----------------------------------------------------------------------------


def stream_of_other_side(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Put a run on the stream of the other side, with its algorithm."""
    i = pick(rng, [i for i, operation in enumerate(schedule.operations) if operation.kind == "run"])
    if i is None:
        return None
    stream = "compute" if schedule.operations[i].stream == "host" else "host"
    return with_operation(schedule, i, stream=stream)


def workspace_kept(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Hold a workspace on the host for longer, or from before."""
    c = pick(rng, [c for c, copy in enumerate(schedule.host_copies) if copy.block is None])
    if c is None:
        return None
    others = [o.id for o in schedule.operations if o.id != schedule.host_copies[c].workspace_of]
    if not others or rng.random() < 0.3:
        return with_copy(schedule, c, released_after=())
    run, other = schedule.host_copies[c].workspace_of, rng.choice(others)
    return with_copy(schedule, c, **rng.choice(({"acquired_by": other}, {"released_after": (run, other)})))


def workspace_on_the_device(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Give a run on the host a workspace on the device."""
    i = _any_on_host(schedule, rng)
    if i is None:
        return None
    run, task = schedule.operations[i].id, instance.tasks[schedule.operations[i].task or 0]
    size = max(task.algorithms[schedule.operations[i].algorithm or 0].workspace_bytes, 1)
    offset = None if schedule.memory_model == "divisible" else 0
    scratch = Residence(workspace_of=run, bytes=size, offset=offset, acquired_by=run, released_after=(run,))
    return rebuilt(schedule, residences=(*schedule.residences, scratch))


def times_without_a_link(instance: Instance, schedule: Schedule, _: Random) -> Schedule | None:
    """Report times as if copies neither shared a link nor slowed anything down."""
    alone = retimed(uncoupled(instance), schedule)
    return None if alone == schedule else alone


def times_of_another_machine(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Report times as if the link passed a little more or less, or one task lost a little more or less."""
    if instance.link is not msgspec.UNSET and rng.random() < 0.5:
        rate = instance.link.both_bytes_per_second
        link = Link(both_bytes_per_second=max(rate + rng.choice((-1, 1)) * (rate // 3 + 1), 1))
        other = msgspec.structs.replace(instance, link=link)
    else:
        tasks = [
            msgspec.structs.replace(task, slowdown_ppm=_less(task.slowdown_ppm))
            if task.slowdown_ppm is not msgspec.UNSET
            else task
            for task in instance.tasks
        ]
        other = msgspec.structs.replace(instance, tasks=tuple(tasks))
    timed = retimed(other, schedule)
    return None if timed == schedule else timed


def end_later(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Let one operation end a nanosecond later or earlier than it does."""
    i = rng.randrange(len(schedule.operations))
    end = schedule.operations[i].end_ns + rng.choice((-1, 1))
    return None if end < 0 else with_operation(schedule, i, end_ns=end)


ON_MACHINE: tuple[Mutation | InstanceMutation, ...] = (
    other_side,
    swap_runs_on_host,
    host_run_twice,
    host_run_early,
    prefetch_before_host_run,
    offload_what_is_stale,
    drop_wait_of_host_run,
    drop_wait_for_host_run,
    drop_copy_of_host_run,
    copy_of_an_update,
    release_what_host_run_uses,
    workspace_over_a_copy,
)
"""Mutations that change what the host computes; the figures are made right again afterwards."""

ON_HOST_OF_MACHINE: tuple[Mutation | InstanceMutation, ...] = (
    drop_copy_of_host_run,
    copy_of_an_update,
    release_what_host_run_uses,
    workspace_over_a_copy,
    workspace_kept,
)
"""Those of them, and of the form, that are of programs with host memory that ends."""

MACHINE_FORM: dict[Mutation | InstanceMutation, str] = {
    stream_of_other_side: "runs are on the stream of their algorithm's side",
    workspace_kept: "a workspace on the host is held for its run and no longer",
    workspace_on_the_device: "runs on the host have no workspace on the device",
}
"""Mutations against a rule of the form, which a machine need not feel; each with its rule."""

MACHINE_FIGURES: tuple[Mutation, ...] = (times_without_a_link, times_of_another_machine, end_later)
"""Mutations of the times of programs that share a link or are slowed down."""


def _any_on_host(schedule: Schedule, rng: Random) -> int | None:
    return pick(rng, [i for i, operation in enumerate(schedule.operations) if operation.stream == "host"])


def _written(instance: Instance, operation: Operation) -> tuple[int, ...]:
    if operation.task is None:
        return ()
    return (*instance.tasks[operation.task].updates, *instance.tasks[operation.task].outputs)


def _moved(schedule: Schedule, i: int, to: int) -> Schedule:
    """Return the schedule with an operation earlier in the list, which waits for what is before it there."""
    operations = list(schedule.operations)
    operation = operations.pop(i)
    known = {other.id for other in operations[:to]}
    after = tuple(other for other in operation.after if other in known)
    operations.insert(to, msgspec.structs.replace(operation, after=after))
    return with_operations(schedule, operations)


def _without_wait(schedule: Schedule, wait: tuple[int, int] | None) -> Schedule | None:
    if wait is None:
        return None
    i, dropped = wait
    after = tuple(other for other in schedule.operations[i].after if other != dropped)
    return with_operation(schedule, i, after=after)


def _copy_of_host_run(schedule: Schedule, rng: Random) -> int | None:
    on_host = {operation.id for operation in schedule.operations if operation.stream == "host"}
    return pick(rng, [c for c, copy in enumerate(schedule.host_copies) if copy.acquired_by in on_host])


def _offset(schedule: Schedule, rng: Random) -> int | None:
    """Any aligned offset of what is used of host memory."""
    if schedule.memory_model == "divisible":
        return None
    return UNIT * rng.randint(0, int(schedule.host_peak_bytes or 0) // UNIT + 1)


def _less(slowdown: Slowdown | msgspec.UnsetType) -> Slowdown | msgspec.UnsetType:
    """Return a slowdown in which both directions take less."""
    if slowdown is msgspec.UNSET:
        return slowdown
    return Slowdown(offload=slowdown.offload // 2, prefetch=min(slowdown.prefetch // 2, MILLION))
