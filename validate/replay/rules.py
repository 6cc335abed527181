"""Rules of the format, and the breaches of them that do not depend on speed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from msgspec import UNSET

from ..schedule import HostResidence, Residence
from .binding import Binding, Side
from .durations import copy_ns, number
from .fault import Fault

HOST_ALIGNMENT_BYTES = 512
"""Every offset in host memory is a multiple of it."""


def broken_rules(bound: Binding) -> Iterator[Fault]:
    """Yield the broken rules of tasks, operations and residences."""
    yield from _look_at_tasks(bound)
    yield from _look_at_operations(bound)
    yield from _look_at_residences(bound)
    yield from _look_at_host_residences(bound)
    yield from _look_at_carried(bound)


def _look_at_tasks(bound: Binding) -> Iterator[Fault]:
    """Check that all tasks run, first runs in order on each stream; re-runs where allowed, before updates."""
    done: set[int] = set()
    latest: dict[Side, int] = {"device": -1, "host": -1}
    sides = [{algorithm.on for algorithm in task.algorithms} for task in bound.instance.tasks]
    awaited = {side: deque(k for k, on in enumerate(sides) if on == {side}) for side in latest}
    for i, operation in enumerate(bound.schedule.operations):
        if operation.kind != "run":
            continue
        k = number(operation.task)
        task = bound.instance.tasks[k]
        if k not in done:
            side: Side = "host" if bound.is_on_host(i) else "device"
            while awaited[side] and awaited[side][0] in done:
                awaited[side].popleft()
            if k < latest[side] or (awaited[side] and awaited[side][0] < k):
                yield Fault("rule", f"{bound.name(i)} is out of order")
            latest[side] = k
        elif not task.recomputable:
            yield Fault("rule", f"{bound.name(i)} runs again, and is not recomputable")
        elif any(w in done for d in task.outputs for w in bound.instance.writers[d] if w != k):
            yield Fault("rule", f"{bound.name(i)} runs again after an update of what it wrote")
        done.add(k)
    for k, task in enumerate(bound.instance.tasks):
        if k not in done:
            yield Fault("data", f"task '{task.name}' never runs")


def _look_at_operations(bound: Binding) -> Iterator[Fault]:
    """Check that streams fit the kind and the engines; a null time forbids a copy."""
    single = bound.instance.engines == "single"
    streams = {
        "run": "compute",
        "move": "compute",
        "offload": "copy" if single else "d2h",
        "prefetch": "copy" if single else "h2d",
    }
    if bound.schedule.instance != bound.instance.name:
        yield Fault("rule", f"the schedule is for '{bound.schedule.instance}'")
    for i, operation in enumerate(bound.schedule.operations):
        stream = "host" if bound.is_on_host(i) else streams[operation.kind]
        if operation.stream != stream:
            yield Fault("rule", f"{bound.name(i)} is on stream {operation.stream}")
        if operation.kind != "run" and copy_ns(bound.instance, operation) is None:
            yield Fault("rule", f"{bound.name(i)}: the block never moves that way")


def _look_at_residences(bound: Binding) -> Iterator[Fault]:
    """Check sizes, alignment, the pool, and which operations acquire and release each residence."""
    instance, schedule, layout = bound.instance, bound.schedule, bound.layouts["device"]
    if instance.pool_bytes < 0:
        yield Fault("data", "resident bytes are above the budget")
    if schedule.page_bytes is not None:
        for block in instance.blocks:
            if block.begin is not None and block.begin % schedule.page_bytes:
                yield Fault("rule", f"part '{block.name}' does not begin on a page")
    for r, residence in enumerate(schedule.residences):
        where = layout.name(r)
        if residence.bytes != layout.needed[r]:
            yield Fault("rule", f"{where} has {residence.bytes} bytes for {layout.needed[r]}")
        if residence.offset is not None:
            if residence.offset % instance.alignment_bytes:
                yield Fault("rule", f"{where} is not aligned")
            if residence.offset + residence.bytes > instance.pool_bytes:
                yield Fault("data", f"{where} lies outside the pool")
        if residence.extents is not None:
            yield from _look_at_extents(bound, where, residence)
        if residence.block is None:
            yield from _look_at_workspace(bound, "device", r, residence)
        else:
            yield from _look_at_acquirer(bound, where, r, residence.block)
    yield from _look_for_twins(bound, "device")


def _look_for_twins(bound: Binding, side: Side) -> Iterator[Fault]:
    """Check that no operation acquires two residences of one thing in one memory."""
    layout = bound.layouts[side]
    for i, acquired in enumerate(layout.acquires):
        blocks = [layout.residences[r].block for r in acquired]
        if len(set(blocks)) != len(blocks):
            yield Fault("rule", f"{bound.name(i)} acquires two residences of one thing")


def _look_at_extents(bound: Binding, where: str, residence: Residence) -> Iterator[Fault]:
    page = number(bound.schedule.page_bytes)
    extents = residence.extents or ()
    if any(edge % page for extent in extents for edge in extent):
        yield Fault("rule", f"{where} is not of whole pages")
    if sum(size for _, size in extents) != -(-residence.bytes // page) * page:
        yield Fault("rule", f"{where} has too many or too few pages")
    if max((address + size for address, size in extents), default=0) > bound.instance.pool_bytes:
        yield Fault("data", f"{where} lies outside the pool")
    edges = sorted((address, address + size) for address, size in extents)
    if any(end > begin for (_, end), (begin, _) in pairwise(edges)):
        yield Fault("rule", f"{where} has a page twice")


def _look_at_workspace(
    bound: Binding, side: Side, r: int, residence: Residence | HostResidence
) -> Iterator[Fault]:
    run, layout = residence.workspace_of, bound.layouts[side]
    i, where = bound.index[number(run)], layout.name(r)
    is_there = bound.schedule.operations[i].kind == "run" and bound.is_on_host(i) == (side == "host")
    if not is_there or not layout.needed[r]:
        yield Fault("rule", f"{where} is a workspace of nothing that needs one")
    if residence.acquired_by != run or residence.released_after != (run,):
        yield Fault("rule", f"{where} is not held for its run and no longer")


def _look_at_acquirer(bound: Binding, where: str, r: int, block: int) -> Iterator[Fault]:
    i = bound.layouts["device"].acquirer[r]
    if i is None:
        if "device" not in bound.begins[block]:
            yield Fault("rule", f"{where} is there from the start, and its block is not")
        return
    operation = bound.schedule.operations[i]
    writes = operation.kind in ("prefetch", "move") and operation.block == block
    if operation.kind == "run" and not bound.is_on_host(i):
        task = bound.instance.tasks[number(operation.task)]
        made = task.algorithms[number(operation.algorithm)].outputs
        writes = block in (task.outputs if made is UNSET else made)
    if not writes:
        yield Fault("rule", f"{where} is acquired by {bound.name(i)}, which does not write it")


def _look_at_host_residences(bound: Binding) -> Iterator[Fault]:
    """Check sizes, alignment, the budget of host memory, and which operations acquire each residence."""
    instance, schedule, layout = bound.instance, bound.schedule, bound.layouts["host"]
    if instance.has_host_budget != (schedule.host_residences is not UNSET):
        has = "has" if instance.has_host_budget else "has no"
        yield Fault("rule", f"the instance {has} host_budget_bytes, unlike the schedule's host_residences")
    if instance.host_budget_bytes is UNSET:
        return
    for r, residence in enumerate(schedule.host_copies):
        where = layout.name(r)
        if residence.bytes != layout.needed[r]:
            yield Fault("rule", f"{where} has {residence.bytes} bytes for {layout.needed[r]}")
        if residence.offset is not None:
            if residence.offset % HOST_ALIGNMENT_BYTES:
                yield Fault("rule", f"{where} is not aligned")
            if residence.offset + residence.bytes > instance.host_budget_bytes:
                yield Fault("data", f"{where} lies outside host memory")
        if residence.block is None:
            yield from _look_at_workspace(bound, "host", r, residence)
        else:
            yield from _look_at_writer(bound, where, r, residence.block)
    yield from _look_for_twins(bound, "host")


def _look_at_writer(bound: Binding, where: str, r: int, block: int) -> Iterator[Fault]:
    """Check that what acquires a copy on the host is an offload of the block, or the run that outputs it."""
    i = bound.layouts["host"].acquirer[r]
    if i is None:
        if "host" not in bound.begins[block]:
            yield Fault("rule", f"{where} is there from the start, and its block is nowhere")
        return
    operation = bound.schedule.operations[i]
    writes = (
        block in bound.instance.tasks[number(operation.task)].outputs
        if bound.is_on_host(i)
        else operation.kind == "offload" and operation.block == block
    )
    if not writes:
        yield Fault("rule", f"{where} is acquired by {bound.name(i)}, which does not write it")


def _look_at_carried(bound: Binding) -> Iterator[Fault]:
    """Check that the schedule gives each carried block a state, and that residences at both ends fit it."""
    instance, schedule = bound.instance, bound.schedule
    named = None if schedule.carried is UNSET else [state.block for state in schedule.carried]
    if named != (list(instance.carried) or None):
        yield Fault("rule", f"the list carried is of {named}, the instance carries {list(instance.carried)}")
    for side, layout in bound.layouts.items():
        if side == "host" and not instance.has_host_budget:
            continue
        for d in instance.carried:
            what = bound.block_name(side, d)
            first = [r for r in layout.stays[d] if layout.acquirer[r] is None]
            last = bound.last_place[side].get(d)
            if side not in bound.begins[d]:
                if any(not layout.release_count[r] for r in layout.stays[d]):
                    yield Fault("rule", f"{what} lasts to the end, unlike its state")
            elif not first:
                yield Fault("rule", f"{what} is not there from the start, unlike its state")
            elif layout.residences[first[-1]].offset != layout.residences[number(last)].offset:
                yield Fault("rule", f"{what} ends at another offset than it begins")
