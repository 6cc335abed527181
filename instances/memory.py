"""The memory needs of an instance: footprints, the least budget, and the peak without a limit."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

from .arguments import quoted, require_instance
from .errors import BudgetError, PebblerError
from .instance import Algorithm, Instance, Task
from .units import ceil_to, format_size, parse_size


def require_parts_at_pages(instance: Instance, page_bytes: int) -> None:
    """Refuse parts of a tensor that begin inside a page, because paged memory has no place for them.

    Raises
    ------
    PebblerError
        With the first such part, and what to do.
    """
    for block in instance.blocks:
        if block.begin is not None and block.begin % page_bytes:
            raise PebblerError(
                f"{instance.name}: part '{block.name}' begins at byte {block.begin}, inside a page; paged "
                f"memory needs parts that begin at multiples of {page_bytes} bytes: split the tensors "
                "anew, or take contiguous memory"
            )


def footprint(instance: Instance, task: int) -> int:
    """Return the bytes of the blocks that a task touches (F_k), without workspace and without rounding.

    They are those that it touches with some algorithm.
    """
    return sum(instance.blocks[d].bytes for d in instance.tasks[task].blocks)


def needs(instance: Instance) -> list[int]:
    """Return, per task, the least bytes that it needs: resident bytes, its blocks, its least workspace.

    Sizes are rounded up to the alignment. A task that may run on the host needs nothing of the device.
    """
    require_instance(instance)
    unit = instance.alignment_bytes
    sizes = [ceil_to(block.bytes, unit) for block in instance.blocks]
    return [instance.resident_bytes + sum(_least(task, sizes, unit)) for task in instance.tasks]


def _least(task: Task, sizes: Sequence[int], unit: int) -> tuple[int, int]:
    """Return the bytes of blocks and of workspace of the algorithm that needs least of the device."""
    if task.may_run_on_host or not task.reads_vary:
        return sum(sizes[d] for d in _held(task)), ceil_to(_least_workspace(task), unit)
    return min(
        [
            (
                sum(sizes[d] for d in (*task.holds(a), *task.makes(a), *task.updates)),
                ceil_to(algorithm.workspace_bytes, unit),
            )
            for a, algorithm in enumerate(task.algorithms)
        ],
        key=sum,
    )


def _held(task: Task) -> tuple[int, ...]:
    """Return the blocks that a task must find on the device, or have room for there, in any case."""
    return () if task.may_run_on_host else (*task.must_hold, *task.must_make, *task.updates)


def _least_workspace(task: Task) -> int:
    """Return the least workspace on the device, in bytes."""
    if task.may_run_on_host:
        return 0
    return min(algorithm.workspace_bytes for algorithm in task.algorithms)


def least_budget(instance: Instance) -> int:
    """Return M_min in bytes: the greatest need of a single task.

    This is eq. 7 of moDNN (TPDS 2019) at this sub-batch.
    """
    return max(needs(instance))


def require_budget(instance: Instance) -> None:
    """Refuse a budget below M_min.

    Raises
    ------
    BudgetError
        With the least budget, the task that needs it and its needs, and the bytes that are missing.
    """
    amounts = needs(instance)
    least = max(amounts)
    if instance.budget_bytes < least:
        k = amounts.index(least)
        unit = instance.alignment_bytes
        sizes = [ceil_to(block.bytes, unit) for block in instance.blocks]
        blocks, workspace = _least(instance.tasks[k], sizes, unit)
        raise BudgetError(
            f"{instance.name}: a budget of {_told(instance.budget_bytes)} is under the minimum of "
            f"{_told(least)}, {_told(least - instance.budget_bytes)} are missing: "
            f"task '{instance.tasks[k].name}' needs {format_size(blocks)} of blocks and "
            f"{format_size(workspace)} of workspace at once, beside {format_size(instance.resident_bytes)} "
            "that are resident; give a larger budget or a smaller sub-batch"
        )


def stuck_bytes(instance: Instance) -> list[int]:
    """Return, per task, the bytes between uses that are in memory during the task in every schedule.

    They are of blocks that can neither leave and come back, because a copy is impossible, nor be computed
    again, because no task that may run again has written the version that is read next.
    """
    return _bytes_during(instance, _stuck(instance), [block.bytes for block in instance.blocks])


def _stuck(instance: Instance) -> Iterator[_Stay]:
    """Yield the stays between uses of blocks that can neither leave and come back nor be computed again.

    A use that may be on the host need not be on the device.
    """
    hosted = _hosted(instance)
    for stay in _stays(instance, ("device",)):
        if _is_idle(instance, stay.block):
            continue
        block = instance.blocks[stay.block]
        if any(k in hosted for k in (stay.after, stay.until)):
            continue
        is_new = stay.is_written or _is_renewed(instance, stay.block)
        if is_new and hosted:  # what the host may have written last, it may have without an offload
            before = bisect_right(instance.writers[stay.block], stay.after) - 1  # the last one at the start
            is_new = instance.writers[stay.block][before] not in hosted
        if block.prefetch_ns is None or (block.offload_ns is None and is_new):
            yield stay


def _hosted(instance: Instance) -> frozenset[int]:
    """Return the tasks that may run on the host."""
    if not instance.has_host_work:
        return frozenset()
    return frozenset(k for k, task in enumerate(instance.tasks) if task.may_run_on_host)


def _is_renewed(instance: Instance, block: int) -> bool:
    """Whether a round ends with another version of a carried block than it begins with.

    If the block cannot be offloaded, the host has no valid copy at the end, and so none at the beginning.
    """
    return instance.blocks[block].initially == "carried" and bool(instance.writers[block])


def _is_idle(instance: Instance, block: int) -> bool:
    """Whether a block is carried and need not be used: the host has it at both ends, without any copy."""
    return instance.blocks[block].initially == "carried" and not _sure_uses(instance)[block]


def _sure_uses(instance: Instance) -> Sequence[Sequence[int]]:
    """Return, per block, the tasks that touch it with every algorithm, in order."""
    if not instance.reads_vary:
        return instance.uses
    sure = [{*task.must_read, *task.must_make, *task.updates} for task in instance.tasks]
    return [[k for k in uses if d in sure[k]] for d, uses in enumerate(instance.uses)]


class _Stay(NamedTuple):
    """A block between two tasks that touch it, and whether some task has written it before."""

    block: int
    after: int
    until: int
    is_written: bool


def _stays(instance: Instance, places: tuple[str, ...]) -> Iterator[_Stay]:
    """Yield the stays of blocks whose version no task makes again, between tasks that touch them in any case.

    The start is a use of blocks that begin in one of some places, and the end of those that must end there.
    For carried blocks, which always exist, both are.
    """
    makers = {d: k for k, task in enumerate(instance.tasks) if task.recomputable for d in task.outputs}
    uses = _sure_uses(instance)
    for d, block in enumerate(instance.blocks):
        is_carried = block.initially == "carried"
        marks = [*([-1] if is_carried or block.initially in places else []), *uses[d]]
        marks += [len(instance.tasks)] if is_carried or block.finally_ in places else []
        for after, until in pairwise(marks):
            written = bisect_right(instance.writers[d], after)
            if not written or makers.get(d) != instance.writers[d][written - 1]:
                yield _Stay(d, after, until, written > 0)


def _bytes_during(instance: Instance, stays: Iterable[_Stay], sizes: Sequence[int]) -> list[int]:
    """Return, per task, the bytes of the blocks that are in a stay while it runs."""
    change = [0] * (len(instance.tasks) + 2)
    for stay in stays:
        change[stay.after + 1] += sizes[stay.block]
        change[stay.until] -= sizes[stay.block]
    return list(accumulate(change[: len(instance.tasks)]))


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a task finds in memory or takes, whatever the schedule.

    Attributes
    ----------
    task
        Its name.
    blocks, workspace
        Those that it touches, and its least workspace.
    stuck, resident
        Other blocks that can neither leave nor be computed again, and what is always there.
    carried
        Those of `stuck` that rounds leave to the next.
    """

    task: str
    blocks: int
    workspace: int
    stuck: int
    resident: int
    carried: int = 0

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.blocks + self.workspace + self.stuck + self.resident

    def __str__(self) -> str:
        carried = f" ({format_size(self.carried)} of them carried)" if self.carried else ""
        return (
            f"task '{self.task}' needs {format_size(self.blocks)} of blocks and "
            f"{format_size(self.workspace)} of workspace, while {format_size(self.stuck)} of other blocks"
            f"{carried} can neither be copied to the host and back nor be computed again and "
            f"{format_size(self.resident)} are resident"
        )


def greatest_need(instance: Instance) -> Need:
    """Return the need of the task that needs most: under a smaller budget, no memory model has a schedule."""
    stays, carried = list(_stuck(instance)), set(instance.carried)
    sizes = [block.bytes for block in instance.blocks]
    of_all = _bytes_during(instance, stays, sizes)
    of_these = _bytes_during(instance, (stay for stay in stays if stay.block in carried), sizes)
    needed = [
        Need(
            task.name,
            sum(sizes[d] for d in _held(task)),
            _least_workspace(task),
            of_all[k],
            instance.resident_bytes,
            of_these[k],
        )
        for k, task in enumerate(instance.tasks)
    ]
    return max(needed, key=lambda need: need.bytes)


def why_infeasible(instance: Instance) -> str | None:
    """Return which task proves that no schedule exists in any memory model; None if no single task does.

    Beside the blocks and the least workspace of a task, the blocks that are stuck in memory count; where host
    memory has a budget, all that are wanted later count, in both memories together.
    """
    need = greatest_need(instance)
    if instance.budget_bytes < need.bytes:
        missing = need.bytes - instance.budget_bytes
        return f"{need}: {_told(need.bytes)} together, {_told(missing)} more than the budget"
    return why_host_is_short(instance)


def why_host_is_short(instance: Instance, page_bytes: int = 1) -> str | None:
    """Return which task proves that host memory is too small; None if none does, or it has no budget.

    With `page_bytes`, the proof is for paged memory on the device, with pages of that size.
    """
    if instance.host_budget_bytes is msgspec.UNSET:
        return None
    k, needed = _need_of_the_host(instance)
    missing = needed - instance.host_budget_bytes
    if missing > 0:
        return (
            f"task '{instance.tasks[k].name}' can run on the host alone and needs {_told(needed)} there for "
            f"its blocks and workspace, {_told(missing)} more than host memory has"
        )
    k, needed = _host_need(instance, page_bytes, instance.host_budget_bytes)
    missing = needed - instance.host_budget_bytes
    if missing <= 0:
        return None
    total = instance.budget_bytes + needed
    return (
        f"task '{instance.tasks[k].name}' needs its blocks and workspace while others are wanted later: with "
        f"what is resident {_told(total)}, {_told(missing)} more than device and host memory have together"
    )


def least_host_bytes(instance: Instance, page_bytes: int = 1) -> int:
    """Return the bytes that the host needs at least: with less there, nothing works.

    They are those of wanted blocks that the device cannot hold, or of a task that can run on the host alone.

    With `page_bytes`, this holds for paged memory on the device: blocks there take whole pages, and copies on
    the host exact bytes.
    """
    return max(_host_need(instance, page_bytes)[1], _need_of_the_host(instance)[1], 0)


def _need_of_the_host(instance: Instance) -> tuple[int, int]:
    """Return the task that can run on the host alone and needs most there, and how many bytes; 0 of none."""
    needed = [
        0
        if task.device_algorithms
        else footprint(instance, k) + min(algorithm.workspace_bytes for algorithm in task.algorithms)
        for k, task in enumerate(instance.tasks)
    ]
    return max(enumerate(needed), key=lambda item: item[1])


def least_bytes(instance: Instance) -> int:
    """Return a budget under which no schedule exists, in bytes.

    It is M_min, or more where blocks are stuck in memory, or where host memory has too little for the others.
    """
    least = max(least_budget(instance), greatest_need(instance).bytes)
    if instance.host_budget_bytes is msgspec.UNSET:
        return least
    needed = instance.budget_bytes + _host_need(instance, 1)[1]
    return max(least, needed - instance.host_budget_bytes)


def _host_need(instance: Instance, page_bytes: int, enough: int = 0) -> tuple[int, int]:
    """Return the task during which most bytes of wanted blocks have no room on the device, and how many.

    Wanted blocks are not touched by the task, and no task that may run again has written the version that is
    used next: they are on the device or on the host. The bytes are negative where there is room for more. The
    device holds what leaves least to the host:
    the blocks that waste least of their pages, and a share of the next one (the bound of the knapsack
    problem, Dantzig 1957). What a run on the host reads or makes may be gone, or not yet made, during any
    task, unless it is carried: that is always somewhere. Among needs of `enough` bytes or less, which one is
    returned does not matter.
    """
    hosted = _hosted(instance)
    stays = [
        stay
        for stay in _stays(instance, ("device", "host"))
        if instance.blocks[stay.block].initially == "carried"
        or not any(k in hosted for k in (stay.after, stay.until))
    ]
    sizes = [block.bytes for block in instance.blocks]
    pages = [ceil_to(size, page_bytes) for size in sizes]
    pool = instance.pool_bytes // page_bytes * page_bytes
    wanted = _bytes_during(instance, stays, pages)
    room = [
        pool - sum(pages[d] for d in _held(task)) - ceil_to(_least_workspace(task), page_bytes)
        for task in instance.tasks
    ]
    most = [held - free for held, free in zip(wanted, room, strict=True)]  # if the host had pages, too
    ranked = sorted(range(len(most)), key=lambda k: (-most[k], k))
    if page_bytes == 1:
        return ranked[0], most[ranked[0]]
    found, needed = ranked[0], min(most[ranked[0]], 0)
    stays.sort(key=lambda stay: (Fraction(pages[stay.block], sizes[stay.block]), stay.block))
    for k in ranked:
        if most[k] <= max(needed, enough):
            break
        free, left = max(room[k], 0), 0
        for d in (stay.block for stay in stays if stay.after < k < stay.until):
            held = min(free, pages[d])
            free -= held
            left += -(-sizes[d] * (pages[d] - held) // pages[d])
        if left > needed:
            found, needed = k, left
    return found, needed


def fastest(instance: Instance) -> tuple[Algorithm, ...]:
    """Return each task's fastest algorithm; of equally fast ones, the one with the least workspace.

    It is one of the device, if the task has any.
    """
    require_instance(instance)
    return tuple(min(task.device_algorithms or task.algorithms, key=_speed) for task in instance.tasks)


def ideal_ns(instance: Instance) -> int:
    """Return the time of a round without a memory limit: the sum of the fastest tasks, in nanoseconds.

    Tasks that may run on the host do not count: the device may do its work without them.
    """
    chosen = fastest(instance)
    pairs = zip(instance.tasks, chosen, strict=True)
    return sum(algorithm.duration_ns for task, algorithm in pairs if not task.may_run_on_host)


def live_ranges(instance: Instance) -> list[range]:
    """Return, per block, the tasks during which it is live when no block is evicted.

    A block that must end on the device is live during the last task, even if only the end needs it. Carried
    blocks that are used are live during all tasks. Tasks that run on the host alone use nothing here, and
    others what their fastest algorithms touch.
    """
    count = len(instance.tasks)
    ranges = []
    for block, uses in zip(instance.blocks, _uses_on_device(instance), strict=True):
        is_carried = block.initially == "carried" and bool(uses)
        needed = [*uses, *([count - 1] if is_carried or block.finally_ == "device" else [])]
        first = needed[0] if needed and not is_carried and block.initially != "device" else 0
        ranges.append(range(first, needed[-1] + 1 if needed else 0))
    return ranges


def _uses_on_device(instance: Instance) -> Sequence[Sequence[int]]:
    """Return, per block, the tasks with an algorithm of the device that touch it, with the fastest one."""
    tasks = instance.tasks
    if instance.reads_vary:
        pairs = zip(tasks, fastest(instance), strict=True)
        touched = [task.touches(task.algorithms.index(chosen)) for task, chosen in pairs]
        return [[k for k in uses if d in touched[k]] for d, uses in enumerate(instance.uses)]
    if not instance.has_host_work:
        return instance.uses
    return [[k for k in uses if tasks[k].device_algorithms] for uses in instance.uses]


def live_bytes(instance: Instance) -> list[int]:
    """Return, per task, the bytes of the blocks that are live while it runs when no block is evicted."""
    change = [0] * (len(instance.tasks) + 1)
    for block, live in zip(instance.blocks, live_ranges(instance), strict=True):
        change[live.start] += block.bytes
        change[live.stop] -= block.bytes
    return list(accumulate(change[:-1]))


def unlimited_peak(instance: Instance) -> int:
    """Return the peak without a limit in bytes: resident bytes plus the greatest live sum.

    A live sum has the blocks, and the workspace of the fastest algorithm if it is one of the device.
    """
    live = live_bytes(instance)
    return instance.resident_bytes + max(
        amount + (algorithm.workspace_bytes if algorithm.on == "device" else 0)
        for amount, algorithm in zip(live, fastest(instance), strict=True)
    )


def parse_budget(text: str, instance: Instance) -> int:
    """Read a budget for an instance: ``12GiB``, ``50%`` of the peak without a limit, ``1.05xMmin``.

    ``Mmin+25%`` is the least budget and a quarter of what the peak is above it: budgets in which networks of
    any shape are equally tight. Fractions of a byte are rounded up.

    Raises
    ------
    PebblerError
        When the text has none of these forms.
    """
    if match := re.fullmatch(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*%\s*", text):
        exact = Fraction(match[1]) / 100 * unlimited_peak(instance)
    elif match := re.fullmatch(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*x\s*Mmin\s*", text):
        exact = Fraction(match[1]) * least_budget(instance)
    elif match := re.fullmatch(r"\s*Mmin\s*\+\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*%\s*", text):
        least = least_budget(instance)
        exact = least + Fraction(match[1]) / 100 * max(unlimited_peak(instance) - least, 0)
    else:
        return parse_size(text, "a budget; write it as 12GiB, 50% or 1.05xMmin")
    return -(-exact.numerator // exact.denominator)


def with_budget(instance: Instance, budget: int | str) -> Instance:
    """Return the instance under another budget: whole bytes, or a text as `parse_budget` reads it.

    Raises
    ------
    PebblerError
        When it is neither.
    """
    require_instance(instance)
    if isinstance(budget, str):
        budget = parse_budget(budget, instance)
    elif type(budget) is not int or budget < 0:
        raise PebblerError(
            f"budget is {quoted(budget)}; give whole bytes, or a text: '12GiB', '50%' or '1.05xMmin'"
        )
    return msgspec.structs.replace(instance, budget_bytes=budget)


def with_host_memory(instance: Instance, size: int | str) -> Instance:
    """Return the instance with a budget of host memory: whole bytes, or a text such as ``64GiB``.

    Raises
    ------
    PebblerError
        When it is neither, or the instance has several GPUs.
    """
    require_instance(instance)
    return msgspec.structs.replace(instance, host_budget_bytes=parse_host_memory(size))


def parse_host_memory(size: int | str) -> int:
    """Read a budget of host memory in bytes.

    Raises
    ------
    PebblerError
        When it is neither whole bytes nor a text such as ``64GiB``.
    """
    if isinstance(size, str):
        return parse_size(size, "host memory; write it as 64GiB")
    if type(size) is not int or size < 0:
        raise PebblerError(f"host_memory is {quoted(size)}; give whole bytes, or a text such as '64GiB'")
    return size


def _speed(algorithm: Algorithm) -> tuple[int, int]:
    return algorithm.duration_ns, algorithm.workspace_bytes


def _told(size: int) -> str:
    return f"{size} bytes ({format_size(size)})"
