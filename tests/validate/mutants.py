"""Kinds of damage to a valid schedule, or to the instance that it is for.

A mutation returns None where the case offers nothing to damage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

import msgspec

from pebbler.instances.instance import Instance
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.schedule import Operation, Residence, Schedule

Mutation = Callable[[Instance, Schedule, Random], Schedule | None]
Case = tuple[Instance, Schedule]
InstanceMutation = Callable[[Instance, Schedule, Random], Case | None]

_T = TypeVar("_T")


# --- mutations of the operations -------------------------------------------------------------------------


def drop_wait(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    i = pick(rng, [i for i, operation in enumerate(schedule.operations) if operation.after])
    if i is None:
        return None
    after = list(schedule.operations[i].after)
    after.remove(rng.choice(after))
    return with_operation(schedule, i, after=tuple(after))


def drop_all_waits(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    i = pick(rng, [i for i, operation in enumerate(schedule.operations) if operation.after])
    return None if i is None else with_operation(schedule, i, after=())


def add_wait(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    if len(schedule.operations) < 2:
        return None
    i = rng.randrange(1, len(schedule.operations))
    other = rng.choice(schedule.operations[:i]).id
    return with_operation(schedule, i, after=(*schedule.operations[i].after, other))


def swap_operations(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    operations = list(schedule.operations)
    if len(operations) < 2:
        return None
    i = rng.randrange(len(operations) - 1)
    j = i + 1 if rng.random() < 0.7 else rng.randrange(i + 1, len(operations))
    operations[i], operations[j] = operations[j], operations[i]
    return with_operations(schedule, operations)


def swap_neighbours_on_stream(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    operations = list(schedule.operations)
    pairs = [
        (i, j)
        for i, operation in enumerate(operations)
        for j in range(i + 1, len(operations))
        if operations[j].stream == operation.stream
        and all(between.stream != operation.stream for between in operations[i + 1 : j])
    ]
    pair = pick(rng, pairs)
    if pair is None:
        return None
    i, j = pair
    operations[i], operations[j] = operations[j], operations[i]
    return with_operations(schedule, operations)


def swap_tasks(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    runs = [i for i, operation in enumerate(schedule.operations) if operation.kind == "run"]
    if len(runs) < 2:
        return None
    i, j = rng.sample(runs, 2)
    a, b = schedule.operations[i], schedule.operations[j]
    swapped = with_operation(schedule, i, task=b.task, algorithm=b.algorithm)
    return with_operation(swapped, j, task=a.task, algorithm=a.algorithm)


def drop_operation(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    return without(schedule, rng.choice(schedule.operations))


def drop_offload(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    gone = pick(rng, [operation for operation in schedule.operations if operation.kind == "offload"])
    return None if gone is None else without(schedule, gone)


def offload_before_write(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Offload a block before the run that updates it, so that a later prefetch brings stale data."""
    operations = list(schedule.operations)
    pairs = [
        (i, j)
        for i, operation in enumerate(operations)
        if operation.task is not None
        for j in range(i + 1, len(operations))
        if operations[j].kind == "offload" and operations[j].block in instance.tasks[operation.task].updates
    ]
    pair = pick(rng, pairs)
    if pair is None:
        return None
    i, j = pair
    operations.insert(i, operations.pop(j))
    operations[i + 1] = msgspec.structs.replace(
        operations[i + 1], after=(*operations[i + 1].after, operations[i].id)
    )
    return with_operations(schedule, operations)


def duplicate_operation(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    operations = list(schedule.operations)
    copied = rng.choice(operations)
    fresh = 1 + max(operation.id for operation in operations)
    at = rng.randrange(operations.index(copied) + 1, len(operations) + 1)
    operations.insert(at, msgspec.structs.replace(copied, id=fresh, after=(copied.id,)))
    return with_operations(schedule, operations)


def run_again(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Insert a re-run, with a workspace-free algorithm where there is one."""
    operations = list(schedule.operations)
    first = pick(rng, [operation for operation in operations if operation.task is not None])
    if first is None or first.task is None:
        return None
    algorithms = instance.tasks[first.task].algorithms
    least = min(range(len(algorithms)), key=lambda a: algorithms[a].workspace_bytes)
    fresh = 1 + max(operation.id for operation in operations)
    at = rng.randrange(operations.index(first) + 1, len(operations) + 1)
    operations.insert(at, msgspec.structs.replace(first, id=fresh, after=(first.id,), algorithm=least))
    return with_operations(schedule, operations)


def change_algorithm(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    runs = [
        (i, a)
        for i, operation in enumerate(schedule.operations)
        if operation.task is not None
        for a in range(len(instance.tasks[operation.task].algorithms))
        if a != operation.algorithm
    ]
    pair = pick(rng, runs)
    return None if pair is None else with_operation(schedule, pair[0], algorithm=pair[1])


def change_stream(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    i = rng.randrange(len(schedule.operations))
    streams = {"compute", "d2h", "h2d", "copy"} - {schedule.operations[i].stream}
    return with_operation(schedule, i, stream=rng.choice(sorted(streams)))


def retarget_copy(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    i = pick(rng, [i for i, operation in enumerate(schedule.operations) if operation.block is not None])
    others = [d for d in range(len(instance.blocks)) if i is None or d != schedule.operations[i].block]
    return None if i is None or not others else with_operation(schedule, i, block=rng.choice(others))


# --- mutations of the residences --------------------------------------------------------------------------


def release_early(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Replace a release by an earlier operation, or forget one of several."""
    held = [r for r, residence in enumerate(schedule.residences) if residence.released_after]
    r = pick(rng, held)
    if r is None:
        return None
    releases = list(schedule.residences[r].released_after)
    release = rng.choice(releases)
    releases.remove(release)
    order = [operation.id for operation in schedule.operations]
    earlier = order[: order.index(release)]
    if not releases or rng.random() < 0.5:
        if not earlier:
            return None
        releases.append(rng.choice(earlier[-3:]))
    return with_residence(schedule, r, released_after=tuple(releases))


def release_late(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Replace all releases by one later operation."""
    order = [operation.id for operation in schedule.operations]
    r = rng.randrange(len(schedule.residences))
    later = order[
        max((order.index(i) for i in schedule.residences[r].released_after), default=len(order)) + 1 :
    ]
    return None if not later else with_residence(schedule, r, released_after=(rng.choice(later),))


def release_never(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    r = pick(rng, [r for r, residence in enumerate(schedule.residences) if residence.released_after])
    return None if r is None else with_residence(schedule, r, released_after=())


def release_at_acquisition(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Release a block as soon as it is there, whoever uses it later."""
    held = [
        r
        for r, residence in enumerate(schedule.residences)
        if residence.acquired_by is not None and residence.released_after != (residence.acquired_by,)
    ]
    r = pick(rng, held)
    if r is None:
        return None
    acquirer = schedule.residences[r].acquired_by
    assert acquirer is not None
    return with_residence(schedule, r, released_after=(acquirer,))


def drop_residence(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    residences = list(schedule.residences)
    residences.pop(rng.randrange(len(residences)))
    return msgspec.structs.replace(schedule, residences=tuple(residences))


def duplicate_residence(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    copied = rng.choice(schedule.residences)
    return msgspec.structs.replace(schedule, residences=(*schedule.residences, copied))


def shrink_workspace(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    large = [
        r
        for r, residence in enumerate(schedule.residences)
        if residence.workspace_of is not None and residence.bytes > 1
    ]
    r = pick(rng, large)
    return None if r is None else _resized(schedule, r, rng.randrange(1, schedule.residences[r].bytes))


def shrink_residence(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    large = [r for r, residence in enumerate(schedule.residences) if residence.bytes > 1]
    r = pick(rng, large)
    return None if r is None else _resized(schedule, r, rng.randrange(1, schedule.residences[r].bytes))


def grow_residence(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    r = rng.randrange(len(schedule.residences))
    return _resized(schedule, r, schedule.residences[r].bytes + rng.choice((1, 512, PAGE_BYTES)))


def retarget_residence(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Say that another block lies there, of whatever size."""
    r = pick(rng, [r for r, residence in enumerate(schedule.residences) if residence.block is not None])
    others = [d for d in range(len(instance.blocks)) if r is None or d != schedule.residences[r].block]
    if r is None or not others:
        return None
    d = rng.choice(others)
    return _resized(with_residence(schedule, r, block=d), r, instance.blocks[d].bytes)


def retarget_acquirer(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    r = rng.randrange(len(schedule.residences))
    choices = [operation.id for operation in schedule.operations] + [None]
    choices.remove(schedule.residences[r].acquired_by)
    return with_residence(schedule, r, acquired_by=rng.choice(choices))


def swap_releases(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Exchange when two residences end."""
    if len(schedule.residences) < 2:
        return None
    r, s = rng.sample(range(len(schedule.residences)), 2)
    a, b = schedule.residences[r].released_after, schedule.residences[s].released_after
    return (
        None if a == b else with_residence(with_residence(schedule, r, released_after=b), s, released_after=a)
    )


# --- mutations of the places ------------------------------------------------------------------------------


def shift_offset_little(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    return _shifted(schedule, rng, rng.choice((-1, 1)) * instance.alignment_bytes)


def shift_offset_far(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    unit = instance.alignment_bytes
    return _shifted(
        schedule, rng, rng.choice((-1, 1)) * unit * rng.randint(1, max(instance.pool_bytes // unit, 1))
    )


def misalign_offset(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    return _shifted(schedule, rng, rng.randrange(1, max(instance.alignment_bytes, 2)))


def place_on_another(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Give a residence the place of another one."""
    if len(schedule.residences) < 2 or schedule.memory_model == "divisible":
        return None
    r, s = rng.sample(range(len(schedule.residences)), 2)
    there = schedule.residences[s]
    if schedule.memory_model == "paged":
        own = schedule.residences[r].extents or ()
        pages = _pages(there) + [page for page in _pages(schedule.residences[r]) if page not in _pages(there)]
        count = sum(size for _, size in own) // PAGE_BYTES
        return with_residence(schedule, r, extents=tuple((page, PAGE_BYTES) for page in pages[:count]))
    return with_residence(schedule, r, offset=there.offset)


def out_of_pool(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    r = rng.randrange(len(schedule.residences))
    residence = schedule.residences[r]
    if residence.offset is not None:
        unit = instance.alignment_bytes
        first = (instance.pool_bytes - residence.bytes) // unit + 1
        return with_residence(schedule, r, offset=max(first, 0) * unit)
    if residence.extents is not None:
        (_, size), *others = residence.extents
        beyond = instance.pool_bytes // PAGE_BYTES * PAGE_BYTES
        return with_residence(schedule, r, extents=((beyond, size), *others))
    return None


def swap_pages(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Exchange the pages of two residences, as many as both have."""
    if schedule.memory_model != "paged" or len(schedule.residences) < 2:
        return None
    r, s = rng.sample(range(len(schedule.residences)), 2)
    a, b = _pages(schedule.residences[r]), _pages(schedule.residences[s])
    a[0], b[0] = b[0], a[0]
    swapped = with_residence(schedule, r, extents=tuple((page, PAGE_BYTES) for page in a))
    return with_residence(swapped, s, extents=tuple((page, PAGE_BYTES) for page in b))


def swap_offsets(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    if schedule.memory_model != "contiguous" or len(schedule.residences) < 2:
        return None
    r, s = rng.sample(range(len(schedule.residences)), 2)
    a, b = schedule.residences[r].offset, schedule.residences[s].offset
    return None if a == b else with_residence(with_residence(schedule, r, offset=b), s, offset=a)


def drop_page(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    if schedule.memory_model != "paged":
        return None
    r = rng.randrange(len(schedule.residences))
    pages = _pages(schedule.residences[r])
    pages.pop(rng.randrange(len(pages)))
    return with_residence(schedule, r, extents=tuple((page, PAGE_BYTES) for page in pages))


def repeat_page(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Map one page twice into the same residence."""
    if schedule.memory_model != "paged":
        return None
    r = pick(rng, [r for r, residence in enumerate(schedule.residences) if len(_pages(residence)) > 1])
    if r is None:
        return None
    pages = _pages(schedule.residences[r])
    pages[0] = pages[1]
    return with_residence(schedule, r, extents=tuple((page, PAGE_BYTES) for page in pages))


def misalign_page(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    if schedule.memory_model != "paged":
        return None
    r = rng.randrange(len(schedule.residences))
    (offset, size), *others = schedule.residences[r].extents or ()
    return with_residence(schedule, r, extents=((offset + rng.choice((1, 512)), size), *others))


def part_apart(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Shift one part of a tensor."""
    parts = [
        r
        for r, residence in enumerate(schedule.residences)
        if residence.block is not None and instance.blocks[residence.block].tensor is not None
    ]
    r = pick(rng, parts)
    if r is None or schedule.memory_model != "contiguous":
        return None
    offset = (schedule.residences[r].offset or 0) + rng.choice((-1, 1)) * instance.alignment_bytes
    return None if offset < 0 else with_residence(schedule, r, offset=offset)


def other_memory_model(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Turn the places into those of another model, as far as the format allows."""
    if schedule.memory_model == "divisible":
        return None
    if schedule.memory_model == "contiguous" and rng.random() < 0.5:
        residences = tuple(
            msgspec.structs.replace(r, extents=((r.offset or 0, r.bytes),), offset=None)
            for r in schedule.residences
        )
        return rebuilt(schedule, memory_model="paged", page_bytes=PAGE_BYTES, residences=residences)
    residences = tuple(msgspec.structs.replace(r, extents=None, offset=None) for r in schedule.residences)
    copies = schedule.host_residences
    if copies is not msgspec.UNSET:
        copies = tuple(msgspec.structs.replace(copy, offset=None) for copy in copies)
    return rebuilt(
        schedule, memory_model="divisible", page_bytes=None, residences=residences, host_residences=copies
    )


# --- mutations of the figures and of the form -------------------------------------------------------------


def wrong_time(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    i = rng.randrange(len(schedule.operations))
    operation = schedule.operations[i]
    by = rng.choice((1, 1000))
    match rng.randrange(3):
        case 0:
            return with_operation(schedule, i, start_ns=operation.start_ns + by)
        case 1:
            return with_operation(schedule, i, end_ns=operation.end_ns + by)
        case _:
            return with_operation(schedule, i, start_ns=operation.start_ns + by, end_ns=operation.end_ns + by)


def wrong_makespan(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    return rebuilt(schedule, makespan_ns=max(schedule.makespan_ns + rng.choice((-1, 1, 1000)), 0))


def wrong_peak(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    return rebuilt(schedule, peak_bytes=schedule.peak_bytes + rng.choice((-1, 1, 512)))


def wrong_instance(_: Instance, schedule: Schedule, __: Random) -> Schedule | None:
    return rebuilt(schedule, instance="another")


def late_wait(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Wait for an operation later in the list."""
    if len(schedule.operations) < 2:
        return None
    i = rng.randrange(len(schedule.operations) - 1)
    later = rng.choice(schedule.operations[i + 1 :]).id
    return with_operation(schedule, i, after=(*schedule.operations[i].after, later))


def unknown_index(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    i = rng.randrange(len(schedule.operations))
    if schedule.operations[i].kind == "run":
        return with_operation(schedule, i, task=len(instance.tasks))
    return with_operation(schedule, i, block=len(instance.blocks))


def no_figure(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Write what is no figure of a file where one belongs."""
    wrong = rng.choice((-1, -(2**20), True, 1.0, float("nan"), "0", 2**53 + 1, 10**30, [0], {}))
    if rng.random() < 0.5 or not schedule.residences:
        key = rng.choice(("id", "gpu", "after", "start_ns", "end_ns"))
        return with_operation(schedule, rng.randrange(len(schedule.operations)), **{key: wrong})
    r = rng.randrange(len(schedule.residences))
    places = {"contiguous": "offset", "paged": "extents", "divisible": "bytes"}
    key = rng.choice(("bytes", "gpu", "acquired_by", places[schedule.memory_model]))
    if key == "extents":
        wrong = ((wrong, PAGE_BYTES),)
    return with_residence(schedule, r, **{key: wrong})


def no_word(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Write a text that is no word of the format, or that does not print on one line."""
    wrong = rng.choice(("", "a\nb", "\x1b[31m", "\x00", "\ud800", "x" * 501, 7, None))
    if rng.random() < 0.5:
        return rebuilt(schedule, **{rng.choice(("instance", "method", "memory_model", "format")): wrong})
    key = rng.choice(("kind", "stream"))
    return with_operation(schedule, rng.randrange(len(schedule.operations)), **{key: wrong})


def unmapped_pages(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Give pages that no GPU maps, or pages to what has none."""
    return rebuilt(schedule, page_bytes=rng.choice((1, 512, 4096, PAGE_BYTES - 1, PAGE_BYTES + 512)))


# --- mutations of the instance ----------------------------------------------------------------------------


def smaller_budget(instance: Instance, schedule: Schedule, rng: Random) -> Case | None:
    budget = int(instance.budget_bytes * rng.choice((0.5, 0.8, 0.9, 0.97)))
    return msgspec.structs.replace(instance, budget_bytes=budget), schedule


def null_time(instance: Instance, schedule: Schedule, rng: Random) -> Case | None:
    key = rng.choice(("offload_ns", "prefetch_ns", "move_ns"))
    return _with_block(instance, rng.randrange(len(instance.blocks)), **{key: None}), schedule


def not_recomputable(instance: Instance, schedule: Schedule, rng: Random) -> Case | None:
    tasks = [operation.task for operation in schedule.operations if operation.task is not None]
    k = pick(rng, [k for k in range(len(instance.tasks)) if tasks.count(k) > 1])
    return None if k is None else (_with_task(instance, k, recomputable=False), schedule)


def another_end(instance: Instance, schedule: Schedule, rng: Random) -> Case | None:
    """Ask for a block on the device or on the host when the round ends."""
    d = rng.randrange(len(instance.blocks))
    return _with_block(instance, d, finally_=rng.choice(("device", "host"))), schedule


def another_beginning(instance: Instance, schedule: Schedule, rng: Random) -> Case | None:
    """Let a block begin on the host instead of the device."""
    there = [d for d, block in enumerate(instance.blocks) if block.initially == "device"]
    d = pick(rng, there)
    return None if d is None else (_with_block(instance, d, initially="host"), schedule)


def read_becomes_update(instance: Instance, schedule: Schedule, rng: Random) -> Case | None:
    """Let a task rewrite what it only read, so that later copies and re-runs meet another version."""
    pairs = [(k, d) for k, task in enumerate(instance.tasks) for d in task.inputs]
    pair = pick(rng, pairs)
    if pair is None:
        return None
    k, d = pair
    task = instance.tasks[k]
    inputs = tuple(other for other in task.inputs if other != d)
    return _with_task(instance, k, inputs=inputs, updates=(*task.updates, d)), schedule


PROGRAM: tuple[Mutation, ...] = (
    drop_wait,
    drop_all_waits,
    add_wait,
    swap_operations,
    swap_neighbours_on_stream,
    swap_tasks,
    drop_operation,
    drop_offload,
    offload_before_write,
    duplicate_operation,
    run_again,
    change_algorithm,
    retarget_copy,
    release_early,
    release_late,
    release_never,
    release_at_acquisition,
    drop_residence,
    shrink_workspace,
    shrink_residence,
    retarget_residence,
    retarget_acquirer,
    swap_releases,
    shift_offset_little,
    shift_offset_far,
    place_on_another,
    out_of_pool,
    swap_offsets,
    swap_pages,
    drop_page,
    repeat_page,
    part_apart,
)
"""Mutations that change what the machine does; the figures are made right again afterwards."""

INSTANCE: tuple[InstanceMutation, ...] = (
    smaller_budget,
    another_end,
    another_beginning,
    read_becomes_update,
)
"""The schedule is for an instance with another rule; the figures are made right again."""

FORM: dict[Mutation | InstanceMutation, str] = {
    null_time: "a null time forbids the copy",
    not_recomputable: "only recomputable tasks run again",
    change_stream: "every kind of operation has its stream: compute, d2h, h2d, or copy with a single engine",
    duplicate_residence: "one residence of a block is live at a time, one workspace residence a run",
    grow_residence: "bytes of a residence is exactly its block's or workspace's bytes",
    misalign_offset: "offsets are multiples of alignment_bytes",
    misalign_page: "extents are whole pages",
    other_memory_model: "extents are whole pages (divisible: accepted where the capacity suffices)",
    wrong_instance: "a schedule names its instance",
    late_wait: "after names only operations earlier in the list",
    unknown_index: "indices exist",
    no_figure: "figures are whole numbers from 0 (sizes: 1) to 2^53",
    no_word: "texts are one printable line, and words are those of the format",
    unmapped_pages: "pages are multiples of 2 MiB, of paged schedules only",
}
"""Mutations against a rule of the form or a permission, which a machine need not feel; each with its rule."""

FIGURES: tuple[Mutation, ...] = (wrong_time, wrong_makespan, wrong_peak)
"""Mutations of what is reported."""


def pick(rng: Random, choices: Sequence[_T]) -> _T | None:
    return rng.choice(choices) if choices else None


def rebuilt(schedule: Schedule, **changes: object) -> Schedule:
    return msgspec.structs.replace(schedule, **changes)


def with_operation(schedule: Schedule, i: int, **changes: object) -> Schedule:
    operations = list(schedule.operations)
    operations[i] = msgspec.structs.replace(operations[i], **changes)
    return rebuilt(schedule, operations=tuple(operations))


def with_residence(schedule: Schedule, r: int, **changes: object) -> Schedule:
    residences = list(schedule.residences)
    residences[r] = msgspec.structs.replace(residences[r], **changes)
    return rebuilt(schedule, residences=tuple(residences))


def with_operations(schedule: Schedule, operations: Sequence[Operation]) -> Schedule:
    """Put another list in place; waits for what is not earlier any more are dropped."""
    seen: set[int] = set()
    kept = []
    for operation in operations:
        after = tuple(i for i in operation.after if i in seen)
        kept.append(msgspec.structs.replace(operation, after=after))
        seen.add(operation.id)
    return rebuilt(schedule, operations=tuple(kept))


def without(schedule: Schedule, gone: Operation) -> Schedule:
    """Drop an operation and what it acquired; who waited for it waits for what it waited for."""
    operations = []
    for operation in schedule.operations:
        if gone.id in operation.after:
            after = {*operation.after, *gone.after} - {gone.id}
            operation = msgspec.structs.replace(operation, after=tuple(sorted(after)))
        if operation.id != gone.id:
            operations.append(operation)
    residences = []
    for residence in schedule.residences:
        if gone.id not in (residence.acquired_by, residence.workspace_of):
            releases = tuple(i for i in residence.released_after if i != gone.id)
            residences.append(msgspec.structs.replace(residence, released_after=releases))
    copies = tuple(
        msgspec.structs.replace(copy, released_after=tuple(i for i in copy.released_after if i != gone.id))
        for copy in schedule.host_copies
        if copy.acquired_by != gone.id
    )
    return rebuilt(
        schedule,
        operations=tuple(operations),
        residences=tuple(residences),
        host_residences=schedule.host_residences and copies,
    )


def _resized(schedule: Schedule, r: int, size: int) -> Schedule:
    """Give a residence another size; extents follow as far as whole pages are gone or missing."""
    residence = schedule.residences[r]
    if residence.extents is None:
        return with_residence(schedule, r, bytes=size)
    count = -(-size // PAGE_BYTES)
    pages = _pages(residence)
    pages += [pages[-1] + PAGE_BYTES * (n + 1) for n in range(count - len(pages))]
    return with_residence(
        schedule, r, bytes=size, extents=tuple((page, PAGE_BYTES) for page in pages[:count])
    )


def _shifted(schedule: Schedule, rng: Random, by: int) -> Schedule | None:
    if schedule.memory_model != "contiguous":
        return None
    r = rng.randrange(len(schedule.residences))
    offset = (schedule.residences[r].offset or 0) + by
    return None if offset < 0 else with_residence(schedule, r, offset=offset)


def _pages(residence: Residence) -> list[int]:
    return [
        page for offset, size in residence.extents or () for page in range(offset, offset + size, PAGE_BYTES)
    ]


def _with_block(instance: Instance, d: int, **changes: object) -> Instance:
    blocks = list(instance.blocks)
    blocks[d] = msgspec.structs.replace(blocks[d], **changes)
    return msgspec.structs.replace(instance, blocks=tuple(blocks))


def _with_task(instance: Instance, k: int, **changes: object) -> Instance:
    tasks = list(instance.tasks)
    tasks[k] = msgspec.structs.replace(tasks[k], **changes)
    return msgspec.structs.replace(instance, tasks=tuple(tasks))
