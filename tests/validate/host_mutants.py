"""Kinds of damage to the copies in host memory that ends; see `mutants`."""

from __future__ import annotations

from random import Random

import msgspec

from pebbler.instances.instance import Instance
from pebbler.validate.schedule import HostResidence, Operation, Schedule

from .mutants import Case, InstanceMutation, Mutation, pick, rebuilt, with_operation, with_operations

UNIT = 512
"""Every offset in host memory is a multiple of it."""


# --- when copies are there --------------------------------------------------------------------------------


def release_copy_early(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Replace a release by an earlier operation, or forget one of several."""
    order = [operation.id for operation in schedule.operations]
    c = pick(rng, [c for c, copy in enumerate(schedule.host_copies) if copy.released_after])
    if c is None:
        return None
    releases = list(schedule.host_copies[c].released_after)
    release = rng.choice(releases)
    releases.remove(release)
    earlier = order[: order.index(release)]
    if not releases or rng.random() < 0.5:
        if not earlier:
            return None
        releases.append(rng.choice(earlier[-4:]))
    return with_copy(schedule, c, released_after=tuple(releases))


def release_copy_soon(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Release a copy as soon as it is written, or one from the start after one of the first operations."""
    c = _any(schedule, rng)
    if c is None:
        return None
    copy = schedule.host_copies[c]
    first = rng.choice(schedule.operations[:3]).id if copy.acquired_by is None else copy.acquired_by
    return None if copy.released_after == (first,) else with_copy(schedule, c, released_after=(first,))


def release_copy_late(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Replace all releases by one later operation."""
    order = [operation.id for operation in schedule.operations]
    c = pick(rng, [c for c, copy in enumerate(schedule.host_copies) if copy.released_after])
    if c is None:
        return None
    later = order[max(order.index(i) for i in schedule.host_copies[c].released_after) + 1 :]
    return with_copy(schedule, c, released_after=(rng.choice(later),)) if later else None


def release_copy_never(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    c = pick(rng, [c for c, copy in enumerate(schedule.host_copies) if copy.released_after])
    return None if c is None else with_copy(schedule, c, released_after=())


def release_copy_after_one_more(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Let a release wait for any other operation, too, even for one that comes before the copy."""
    c = pick(rng, [c for c, copy in enumerate(schedule.host_copies) if copy.released_after])
    if c is None:
        return None
    releases = schedule.host_copies[c].released_after
    others = [operation.id for operation in schedule.operations if operation.id not in releases]
    return with_copy(schedule, c, released_after=(*releases, rng.choice(others))) if others else None


def release_last_copies(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Release a copy that lasts to the end after one of the last operations."""
    c = pick(rng, [c for c, copy in enumerate(schedule.host_copies) if not copy.released_after])
    last = rng.choice(schedule.operations[-2:]).id
    return None if c is None else with_copy(schedule, c, released_after=(last,))


def swap_copy_releases(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Exchange when two copies end."""
    pair = _two(schedule, rng)
    if pair is None:
        return None
    a, b = (schedule.host_copies[c].released_after for c in pair)
    swapped = with_copy(with_copy(schedule, pair[0], released_after=b), pair[1], released_after=a)
    return None if a == b else swapped


# --- which copies there are -------------------------------------------------------------------------------


def drop_copy(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    copies = list(schedule.host_copies)
    if not copies:
        return None
    copies.pop(rng.randrange(len(copies)))
    return rebuilt(schedule, host_residences=tuple(copies))


def copy_twice(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Let an offload acquire a second place, the same or another one."""
    c = _any(schedule, rng)
    if c is None:
        return None
    copy = schedule.host_copies[c]
    if copy.offset is not None and rng.random() < 0.5:
        copy = msgspec.structs.replace(copy, offset=copy.offset + UNIT * rng.randint(1, 8))
    return rebuilt(schedule, host_residences=(*schedule.host_copies, copy))


def copy_of_another(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Say that the copy is of another block, of whatever size."""
    c = _any(schedule, rng)
    others = [d for d in range(len(instance.blocks)) if c is None or d != schedule.host_copies[c].block]
    if c is None or not others:
        return None
    d = rng.choice(others)
    return with_copy(schedule, c, block=d, bytes=instance.blocks[d].bytes)


def copy_by_another(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Let any other operation acquire the copy, or none."""
    c = _any(schedule, rng)
    if c is None:
        return None
    choices = [operation.id for operation in schedule.operations] + [None]
    choices.remove(schedule.host_copies[c].acquired_by)
    return with_copy(schedule, c, acquired_by=rng.choice(choices))


def swap_copy_writers(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Exchange the operations that acquire two copies, of one block where there are two."""
    copies = schedule.host_copies
    pairs = [(a, b) for b in range(len(copies)) for a in range(b)]
    again = [(a, b) for a, b in pairs if copies[a].block == copies[b].block]
    pair = pick(rng, again or pairs)
    if pair is None:
        return None
    a, b = (copies[c].acquired_by for c in pair)
    return with_copy(with_copy(schedule, pair[0], acquired_by=b), pair[1], acquired_by=a)


def copy_from_the_start(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Add a copy from the start, of any block, that is released after some operation or never."""
    d = rng.randrange(len(instance.blocks))
    releases = (rng.choice(schedule.operations).id,) if rng.random() < 0.7 else ()
    copy = HostResidence(
        block=d,
        bytes=instance.blocks[d].bytes,
        offset=_offset(instance, schedule, rng),
        released_after=releases,
    )
    return rebuilt(schedule, host_residences=(*schedule.host_copies, copy))


def offload_again(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Insert another offload of a block, with a place of its own, that is released after some operation."""
    operations = list(schedule.operations)
    first = pick(rng, [operation for operation in operations if operation.kind == "offload"])
    if first is None or first.block is None:
        return None
    fresh = 1 + max(operation.id for operation in operations)
    at = rng.randrange(len(operations) + 1)
    after = tuple(operation.id for operation in operations[:at] if rng.random() < 0.8)
    operations.insert(at, msgspec.structs.replace(first, id=fresh, after=after))
    copy = HostResidence(
        block=first.block,
        bytes=instance.blocks[first.block].bytes,
        offset=_offset(instance, schedule, rng),
        acquired_by=fresh,
        released_after=(rng.choice(operations[at:]).id,) if rng.random() < 0.7 else (),
    )
    return rebuilt(schedule, operations=tuple(operations), host_residences=(*schedule.host_copies, copy))


def prefetch_before_the_last_offload(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Put a prefetch before the offload that wrote what it reads, so that it reads an older copy or none."""
    operations = list(schedule.operations)
    pairs = [
        (i, j)
        for j, operation in enumerate(operations)
        if operation.kind == "prefetch"
        for i, earlier in enumerate(operations[:j])
        if earlier.kind == "offload" and earlier.block == operation.block
    ]
    pair = pick(rng, pairs)
    if pair is None:
        return None
    i, j = pair
    operations.insert(i, operations.pop(j))
    return with_operations(schedule, operations)


# --- waits for copies -------------------------------------------------------------------------------------


def drop_wait_for_room(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Let an offload not wait for an operation that releases another copy."""
    releasers = {i for copy in schedule.host_copies for i in copy.released_after}
    return _without_wait(schedule, "offload", releasers, rng)


def drop_wait_for_copy(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Let a prefetch not wait for an offload."""
    offloads = {operation.id for operation in schedule.operations if operation.kind == "offload"}
    return _without_wait(schedule, "prefetch", offloads, rng)


# --- where copies are -------------------------------------------------------------------------------------


def shift_copy_little(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    return _shifted(schedule, rng, rng.choice((-1, 1)) * UNIT)


def shift_copy_far(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    c = _any(schedule, rng)
    if c is None or schedule.memory_model == "divisible":
        return None
    return with_copy(schedule, c, offset=_offset(instance, schedule, rng))


def misalign_copy(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    return _shifted(schedule, rng, rng.choice((-1, 1)) * rng.randrange(1, UNIT))


def copy_on_another(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Give a copy the place of another one."""
    pair = _two(schedule, rng)
    if pair is None or schedule.memory_model == "divisible":
        return None
    return with_copy(schedule, pair[0], offset=schedule.host_copies[pair[1]].offset)


def swap_copies(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Exchange the places of two copies."""
    pair = _two(schedule, rng)
    if pair is None or schedule.memory_model == "divisible":
        return None
    a, b = (schedule.host_copies[c].offset for c in pair)
    return None if a == b else with_copy(with_copy(schedule, pair[0], offset=b), pair[1], offset=a)


def copy_beyond_the_budget(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    c = _any(schedule, rng)
    if c is None or schedule.memory_model == "divisible":
        return None
    first = (_budget(instance) - schedule.host_copies[c].bytes) // UNIT + 1
    return with_copy(schedule, c, offset=max(first, 0) * UNIT)


def shrink_copy(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    c = pick(rng, [c for c, copy in enumerate(schedule.host_copies) if copy.bytes > 1])
    if c is None:
        return None
    return with_copy(schedule, c, bytes=rng.randrange(1, schedule.host_copies[c].bytes))


def grow_copy(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    c = _any(schedule, rng)
    return (
        None
        if c is None
        else with_copy(schedule, c, bytes=schedule.host_copies[c].bytes + rng.choice((1, UNIT)))
    )


# --- the figure, the form and the instance ----------------------------------------------------------------


def wrong_host_peak(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    if schedule.host_peak_bytes is msgspec.UNSET:
        return None
    return rebuilt(schedule, host_peak_bytes=max(schedule.host_peak_bytes + rng.choice((-1, 1, UNIT)), 0))


def no_copies(_: Instance, schedule: Schedule, __: Random) -> Schedule | None:
    """Leave out the keys of host memory."""
    return rebuilt(schedule, host_residences=msgspec.UNSET, host_peak_bytes=msgspec.UNSET)


def no_copy_figure(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Write what is no figure of a file, or no operation of the schedule, where one belongs."""
    c = _any(schedule, rng)
    if c is None:
        return None
    fresh = 1 + max(operation.id for operation in schedule.operations)
    key, wrong = rng.choice(
        (
            *(
                (key, wrong)
                for key in ("block", "bytes", "offset", "acquired_by")
                for wrong in (-1, 1.0, True, 2**53 + 1)
            ),
            ("bytes", 0),
            ("bytes", None),
            ("acquired_by", fresh),
            ("released_after", (fresh,)),
            ("offset", None if schedule.memory_model != "divisible" else 0),
        )
    )
    return with_copy(schedule, c, **{key: wrong})


def smaller_host_budget(instance: Instance, schedule: Schedule, rng: Random) -> Case | None:
    budget = int(_budget(instance) * rng.choice((0.0, 0.5, 0.8, 0.9, 0.97)))
    return msgspec.structs.replace(instance, host_budget_bytes=budget), schedule


def host_budget_at_the_peak(instance: Instance, schedule: Schedule, rng: Random) -> Case | None:
    """Let host memory end where the copies do, or a byte before."""
    if not schedule.host_peak_bytes:
        return None
    budget = schedule.host_peak_bytes - rng.choice((0, 1))
    return msgspec.structs.replace(instance, host_budget_bytes=budget), schedule


def no_host_budget(instance: Instance, schedule: Schedule, _: Random) -> Case | None:
    """Give host memory no end, though the schedule has places there."""
    return msgspec.structs.replace(instance, host_budget_bytes=msgspec.UNSET), schedule


HOST: tuple[Mutation, ...] = (
    release_copy_early,
    release_copy_soon,
    release_copy_late,
    release_copy_never,
    release_copy_after_one_more,
    release_last_copies,
    swap_copy_releases,
    drop_copy,
    copy_twice,
    copy_of_another,
    copy_by_another,
    swap_copy_writers,
    copy_from_the_start,
    offload_again,
    prefetch_before_the_last_offload,
    drop_wait_for_room,
    drop_wait_for_copy,
    shift_copy_little,
    shift_copy_far,
    copy_on_another,
    swap_copies,
    copy_beyond_the_budget,
    shrink_copy,
)
"""Mutations that change what happens in host memory; the figures are made right again afterwards."""

HOST_INSTANCE: tuple[InstanceMutation, ...] = (smaller_host_budget, host_budget_at_the_peak)
"""The schedule is for an instance with another host memory; the figures are made right again."""

HOST_FORM: dict[Mutation | InstanceMutation, str] = {
    misalign_copy: "offsets in host memory are multiples of 512",
    grow_copy: "bytes of a host residence is exactly its block's bytes",
    no_copies: "schedules have host_residences where the instance has host_budget_bytes",
    no_host_budget: "schedules have no host_residences where the instance has no host_budget_bytes",
    no_copy_figure: "figures of host residences are whole numbers, and their operations exist",
}
"""Mutations against a rule of the form, which a machine need not feel; each with its rule."""

HOST_FIGURES: tuple[Mutation, ...] = (wrong_host_peak,)
"""Mutations of what is reported of host memory."""


def _budget(instance: Instance) -> int:
    assert instance.host_budget_bytes is not msgspec.UNSET
    return instance.host_budget_bytes


def _any(schedule: Schedule, rng: Random) -> int | None:
    return pick(rng, range(len(schedule.host_copies)))


def _two(schedule: Schedule, rng: Random) -> tuple[int, int] | None:
    if len(schedule.host_copies) < 2:
        return None
    a, b = rng.sample(range(len(schedule.host_copies)), 2)
    return a, b


def _offset(instance: Instance, schedule: Schedule, rng: Random) -> int | None:
    """Any aligned offset of host memory."""
    if schedule.memory_model == "divisible":
        return None
    return UNIT * rng.randint(0, _budget(instance) // UNIT)


def with_copy(schedule: Schedule, c: int, **changes: object) -> Schedule:
    copies = list(schedule.host_copies)
    copies[c] = msgspec.structs.replace(copies[c], **changes)
    return rebuilt(schedule, host_residences=tuple(copies))


def _shifted(schedule: Schedule, rng: Random, by: int) -> Schedule | None:
    c = _any(schedule, rng)
    if c is None or schedule.memory_model == "divisible":
        return None
    offset = (schedule.host_copies[c].offset or 0) + by
    return None if offset < 0 else with_copy(schedule, c, offset=offset)


def _without_wait(schedule: Schedule, kind: str, others: set[int], rng: Random) -> Schedule | None:
    """Let an operation of a kind not wait for one of the others."""

    def waits(operation: Operation) -> list[int]:
        return [other for other in operation.after if other in others] if operation.kind == kind else []

    i = pick(rng, [i for i, operation in enumerate(schedule.operations) if waits(operation)])
    if i is None:
        return None
    dropped = rng.choice(waits(schedule.operations[i]))
    after = tuple(other for other in schedule.operations[i].after if other != dropped)
    return with_operation(schedule, i, after=after)
