"""Kinds of damage to both ends of a round that carries blocks; see `mutants`."""

from __future__ import annotations

from random import Random

import msgspec

from pebbler.instances.instance import Instance
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.schedule import Carried, HostResidence, Schedule

from .host_mutants import with_copy
from .mutants import Case, InstanceMutation, Mutation, pick, rebuilt, with_operations, with_residence, without

# --- what the list says -----------------------------------------------------------------------------------


def flip_device(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Say that a block is on the device where it is not, or the other way round."""
    e = _any(schedule, rng)
    return None if e is None else _with_entry(schedule, e, device=not schedule.states[e].device)


def flip_host(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    e = _any(schedule, rng)
    return None if e is None else _with_entry(schedule, e, host=not schedule.states[e].host)


def other_places(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Say of a block any other of the three choices."""
    e = _any(schedule, rng)
    if e is None:
        return None
    entry = schedule.states[e]
    ways = [(True, False), (False, True), (True, True)]
    ways.remove((entry.device, entry.host))
    on_device, on_host = rng.choice(ways)
    return _with_entry(schedule, e, device=on_device, host=on_host)


def swap_places(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Exchange what is said of two blocks."""
    if len(schedule.states) < 2:
        return None
    e, f = rng.sample(range(len(schedule.states)), 2)
    a, b = schedule.states[e], schedule.states[f]
    if (a.device, a.host) == (b.device, b.host):
        return None
    return _with_entry(
        _with_entry(schedule, e, device=b.device, host=b.host), f, device=a.device, host=a.host
    )


# --- what is on the device --------------------------------------------------------------------------------


def end_elsewhere(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Put what a block has at one end of the round elsewhere; free pages will do."""
    r = pick(rng, _ends(schedule))
    if r is None or schedule.memory_model == "divisible":
        return None
    residence = schedule.residences[r]
    if schedule.memory_model == "contiguous":
        unit = instance.alignment_bytes
        last = max(instance.pool_bytes - residence.bytes, 0) // unit
        places = [(residence.offset or 0) + unit, (residence.offset or 0) - unit, unit * rng.randint(0, last)]
        offset = rng.choice(places)
        return None if offset < 0 else with_residence(schedule, r, offset=offset)
    pages = rng.sample(range(instance.pool_bytes // PAGE_BYTES), -(-residence.bytes // PAGE_BYTES))
    return with_residence(
        schedule, r, extents=tuple((page * PAGE_BYTES, PAGE_BYTES) for page in sorted(pages))
    )


def release_at_the_end(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Release what must be kept, after one of the last operations."""
    carried = _on(schedule, device=True)
    r = pick(
        rng, [r for r, s in enumerate(schedule.residences) if s.block in carried and not s.released_after]
    )
    last = rng.choice(schedule.operations[-3:]).id
    return None if r is None else with_residence(schedule, r, released_after=(last,))


def keep_at_the_end(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Keep a block that is not on the device when the next round begins."""
    carried = _on(schedule, device=False)
    r = pick(rng, [r for r, s in enumerate(schedule.residences) if s.block in carried and s.released_after])
    return None if r is None else with_residence(schedule, r, released_after=())


def without_beginning(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Leave out what a block has on the device from time 0."""
    carried = _on(schedule, device=True)
    r = pick(
        rng, [r for r, s in enumerate(schedule.residences) if s.block in carried and s.acquired_by is None]
    )
    if r is None:
        return None
    return rebuilt(schedule, residences=(*schedule.residences[:r], *schedule.residences[r + 1 :]))


def begin_on_the_device(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Let a block that is carried on the host have a place on the device from time 0, for a while."""
    d = pick(rng, sorted(_on(schedule, device=False)))
    mine = [residence for residence in schedule.residences if residence.block == d]
    if d is None or not mine:
        return None
    first = msgspec.structs.replace(
        mine[0], acquired_by=None, released_after=(rng.choice(schedule.operations[:3]).id,)
    )
    residences = list(schedule.residences)
    if rng.random() < 0.4:  # it is there in place of what came first
        residences.remove(mine[0])
        first = msgspec.structs.replace(first, released_after=mine[0].released_after)
    return rebuilt(schedule, residences=(*residences, first))


# --- what is on the host ----------------------------------------------------------------------------------


def drop_last_offload(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Leave out the last offload of a block, so that the host has an older version at the end, or none."""
    carried = {entry.block for entry in schedule.states}
    last = {o.block: o for o in schedule.operations if o.kind == "offload" and o.block in carried}
    gone = pick(rng, list(last.values()))
    return None if gone is None else without(schedule, gone)


def last_offload_before_update(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Put the last offload of a block before its last update, so that its copy is stale at the end."""
    operations = list(schedule.operations)
    pairs = []
    for d in instance.carried:
        updates = [
            i for i, o in enumerate(operations) if o.task is not None and d in instance.tasks[o.task].updates
        ]
        offloads = [i for i, o in enumerate(operations) if o.kind == "offload" and o.block == d]
        if updates and offloads and updates[-1] < offloads[-1]:
            pairs.append((updates[-1], offloads[-1]))
    pair = pick(rng, pairs)
    if pair is None:
        return None
    i, j = pair
    operations.insert(i, operations.pop(j))
    following = operations[i + 1]
    operations[i + 1] = msgspec.structs.replace(following, after=(*following.after, operations[i].id))
    return with_operations(schedule, operations)


def copy_ends_elsewhere(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Put what the host has of a block at one end of the round elsewhere."""
    carried = {entry.block for entry in schedule.states}
    c = pick(
        rng,
        [
            c
            for c, copy in enumerate(schedule.host_copies)
            if copy.block in carried and (copy.acquired_by is None or not copy.released_after)
        ],
    )
    if c is None or schedule.memory_model == "divisible":
        return None
    assert instance.host_budget_bytes is not msgspec.UNSET
    last = max(instance.host_budget_bytes - schedule.host_copies[c].bytes, 0) // 512
    offset = 512 * rng.randint(0, last)
    return None if offset == schedule.host_copies[c].offset else with_copy(schedule, c, offset=offset)


def release_copy_at_the_end(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Release the copy that the next round is to find, after one of the last operations."""
    carried = _on(schedule, host=True)
    c = pick(
        rng,
        [
            c
            for c, copy in enumerate(schedule.host_copies)
            if copy.block in carried and not copy.released_after
        ],
    )
    last = rng.choice(schedule.operations[-3:]).id
    return None if c is None else with_copy(schedule, c, released_after=(last,))


def keep_copy_at_the_end(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Keep a copy that the next round does not find."""
    carried = {entry.block for entry in schedule.states}
    c = pick(
        rng,
        [c for c, copy in enumerate(schedule.host_copies) if copy.block in carried and copy.released_after],
    )
    return None if c is None else with_copy(schedule, c, released_after=())


def without_first_copy(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Leave out the copy that the host has of a block from time 0."""
    carried = {entry.block for entry in schedule.states}
    c = pick(
        rng,
        [
            c
            for c, copy in enumerate(schedule.host_copies)
            if copy.block in carried and copy.acquired_by is None
        ],
    )
    if c is None:
        return None
    copies = (*schedule.host_copies[:c], *schedule.host_copies[c + 1 :])
    return rebuilt(schedule, host_residences=copies)


def copy_at_first(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Let the host have a copy from time 0 of a block that is carried on the device alone."""
    if schedule.host_residences is msgspec.UNSET:
        return None
    d = pick(rng, sorted(_on(schedule, host=False)))
    if d is None:
        return None
    mine = [copy for copy in schedule.host_copies if copy.block == d]
    offset = rng.choice(mine).offset if mine else 0
    copy = HostResidence(
        block=d,
        bytes=instance.blocks[d].bytes,
        offset=None if schedule.memory_model == "divisible" else offset,
        released_after=(rng.choice(schedule.operations).id,) if rng.random() < 0.7 else (),
    )
    return rebuilt(schedule, host_residences=(*schedule.host_copies, copy))


# --- the form and the instance ----------------------------------------------------------------------------


def drop_entry(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    e = _any(schedule, rng)
    if e is None:
        return None
    return rebuilt(schedule, carried=(*schedule.states[:e], *schedule.states[e + 1 :]))


def no_entries(_: Instance, schedule: Schedule, __: Random) -> Schedule | None:
    """Leave out the list."""
    return rebuilt(schedule, carried=msgspec.UNSET)


def one_entry_more(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Name a block that is not carried, or one twice."""
    d = rng.randrange(len(instance.blocks))
    entry = Carried(block=d, device=rng.random() < 0.5, host=True)
    entries = sorted((*schedule.states, entry), key=lambda entry: entry.block)
    return rebuilt(schedule, carried=tuple(entries))


def entry_of_another(instance: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Name another block, in the order of the blocks or out of it."""
    e = _any(schedule, rng)
    others = [d for d in range(len(instance.blocks)) if e is None or d != schedule.states[e].block]
    if e is None or not others:
        return None
    changed = list(schedule.states)
    changed[e] = msgspec.structs.replace(changed[e], block=rng.choice(others))
    if rng.random() < 0.7:
        changed.sort(key=lambda entry: entry.block)
    return rebuilt(schedule, carried=tuple(changed))


def no_entry(_: Instance, schedule: Schedule, rng: Random) -> Schedule | None:
    """Write what is no entry of a file."""
    e = _any(schedule, rng)
    if e is None:
        return None
    key, wrong = rng.choice(
        (
            *((key, wrong) for key in ("device", "host") for wrong in (0, 1, "true", None)),
            *(("block", wrong) for wrong in (-1, 1.0, True, 2**20)),
        )
    )
    return _with_entry(schedule, e, **{key: wrong})


def carry_one_more(instance: Instance, schedule: Schedule, rng: Random) -> Case | None:
    """Let a block be carried that was not, whether the list names it or not."""
    others = [d for d, block in enumerate(instance.blocks) if block.initially in ("device", "host")]
    d = pick(rng, others)
    if d is None:
        return None
    blocks = list(instance.blocks)
    blocks[d] = msgspec.structs.replace(blocks[d], initially="carried", finally_="anywhere")
    changed = msgspec.structs.replace(instance, blocks=tuple(blocks))
    if rng.random() < 0.2:
        return changed, schedule
    on_device, on_host = rng.choice(((True, False), (False, True), (True, True)))
    entries = (*schedule.states, Carried(block=d, device=on_device, host=on_host))
    return changed, rebuilt(schedule, carried=tuple(sorted(entries, key=lambda entry: entry.block)))


def carry_one_less(instance: Instance, schedule: Schedule, rng: Random) -> Case | None:
    """Let a carried block begin on the device or the host, whether the list names it or not."""
    e = _any(schedule, rng)
    if e is None:
        return None
    blocks, d = list(instance.blocks), schedule.states[e].block
    if d >= len(blocks):
        return None
    place = rng.choice(("device", "host"))
    end = rng.choice(("anywhere", "device", "host"))
    blocks[d] = msgspec.structs.replace(blocks[d], initially=place, finally_=end)
    changed = msgspec.structs.replace(instance, blocks=tuple(blocks))
    if rng.random() < 0.2:
        return changed, schedule
    entries = (*schedule.states[:e], *schedule.states[e + 1 :])
    return changed, rebuilt(schedule, carried=entries or msgspec.UNSET)


CARRIED: tuple[Mutation, ...] = (
    flip_device,
    flip_host,
    other_places,
    swap_places,
    end_elsewhere,
    release_at_the_end,
    keep_at_the_end,
    without_beginning,
    begin_on_the_device,
    drop_last_offload,
    last_offload_before_update,
)
"""Mutations of what a round leaves and finds; the figures are made right again afterwards."""

CARRIED_ON_HOST: tuple[Mutation, ...] = (
    copy_ends_elsewhere,
    release_copy_at_the_end,
    keep_copy_at_the_end,
    without_first_copy,
    copy_at_first,
)
"""The same of programs with host memory that ends."""

CARRIED_INSTANCE: tuple[InstanceMutation, ...] = (carry_one_more, carry_one_less)
"""The schedule is for an instance that carries other blocks."""

CARRIED_FORM: dict[Mutation | InstanceMutation, str] = {
    drop_entry: "carried has an entry for each carried block of the instance",
    no_entries: "schedules have carried where the instance carries blocks",
    one_entry_more: "carried names carried blocks alone, each once",
    entry_of_another: "carried names the carried blocks in their order",
    no_entry: "device and host are true or false, one of them is true, and the block exists",
}
"""Mutations against a rule of the form; each with its rule."""


def _any(schedule: Schedule, rng: Random) -> int | None:
    return pick(rng, range(len(schedule.states)))


def _on(schedule: Schedule, *, device: bool | None = None, host: bool | None = None) -> set[int]:
    """Blocks of which the list says so."""
    return {
        entry.block
        for entry in schedule.states
        if device in (None, entry.device) and host in (None, entry.host)
    }


def _ends(schedule: Schedule) -> list[int]:
    """Residences of carried blocks that are there at one end of the round or at both."""
    carried = {entry.block for entry in schedule.states}
    return [
        r
        for r, residence in enumerate(schedule.residences)
        if residence.block in carried and (residence.acquired_by is None or not residence.released_after)
    ]


def _with_entry(schedule: Schedule, e: int, **changes: object) -> Schedule:
    entries = list(schedule.states)
    entries[e] = msgspec.structs.replace(entries[e], **changes)
    return rebuilt(schedule, carried=tuple(entries))
