"""How much memory an instance needs: footprints, the least budget and the peak without a limit."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import accumulate

import msgspec

from .errors import BudgetError
from .instance import Algorithm, Instance
from .units import ceil_to, format_size, parse_size


def footprint(instance: Instance, task: int) -> int:
    """Bytes of the blocks that a task touches (F_k), without its workspace and without rounding."""
    return sum(instance.blocks[d].bytes for d in instance.tasks[task].blocks)


def needs(instance: Instance) -> list[int]:
    """Per task, the bytes that it cannot run without: resident bytes, its blocks, its least workspace.

    Sizes are rounded up to the alignment.
    """
    unit = instance.alignment_bytes
    sizes = [ceil_to(block.bytes, unit) for block in instance.blocks]
    return [
        instance.resident_bytes
        + sum(sizes[d] for d in task.blocks)
        + ceil_to(min(algorithm.workspace_bytes for algorithm in task.algorithms), unit)
        for task in instance.tasks
    ]


def least_budget(instance: Instance) -> int:
    """M_min: the greatest need of a single task (moDNN, TPDS 2019, eq. 7, at this sub-batch)."""
    return max(needs(instance))


def require_budget(instance: Instance) -> None:
    """Refuse a budget under M_min.

    Raises
    ------
    BudgetError
        With the least budget and the task that needs it.
    """
    amounts = needs(instance)
    least = max(amounts)
    if instance.budget_bytes < least:
        task = instance.tasks[amounts.index(least)]
        raise BudgetError(
            f"{instance.name}: a budget of {instance.budget_bytes} bytes "
            f"({format_size(instance.budget_bytes)}) is under the minimum of {least} bytes "
            f"({format_size(least)}), which task '{task.name}' needs with its blocks and the resident bytes; "
            "give a larger budget or a smaller sub-batch"
        )


def fastest(instance: Instance) -> tuple[Algorithm, ...]:
    """Per task, its fastest algorithm; of equally fast ones the one with the least workspace."""
    return tuple(min(task.algorithms, key=_speed) for task in instance.tasks)


def ideal_ns(instance: Instance) -> int:
    """Time of a round without a memory limit: the sum of the fastest tasks."""
    return sum(algorithm.duration_ns for algorithm in fastest(instance))


def live_bytes(instance: Instance) -> list[int]:
    """Per task, the bytes of the blocks that are live while it runs when nothing is evicted."""
    count = len(instance.tasks)
    change = [0] * (count + 1)
    for block, uses in zip(instance.blocks, instance.uses, strict=True):
        if not uses and block.finally_ != "device" and block.initially != "device":
            continue
        first = 0 if block.initially == "device" else uses[0] if uses else 0
        last = count - 1 if block.finally_ == "device" else uses[-1] if uses else -1
        if last >= first:
            change[first] += block.bytes
            change[last + 1] -= block.bytes
    return list(accumulate(change[:-1]))


def unlimited_peak(instance: Instance) -> int:
    """Peak without a limit: resident bytes + largest live sum, fastest algorithms with their workspaces."""
    live = live_bytes(instance)
    return instance.resident_bytes + max(
        amount + algorithm.workspace_bytes for amount, algorithm in zip(live, fastest(instance), strict=True)
    )


def parse_budget(text: str, instance: Instance) -> int:
    """Read a budget for an instance: ``12GiB``, ``50%`` of the peak without a limit, ``1.05xMmin``.

    Fractions of a byte round up.

    Raises
    ------
    PebblerError
        When `text` is none of these.
    """
    if match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text):
        exact = Fraction(match[1]) / 100 * unlimited_peak(instance)
    elif match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*x\s*Mmin\s*", text):
        exact = Fraction(match[1]) * least_budget(instance)
    else:
        return parse_size(text, "a budget; write it as 12GiB, 50% or 1.05xMmin")
    return -(-exact.numerator // exact.denominator)


def with_budget(instance: Instance, budget_bytes: int) -> Instance:
    """Return the instance under another budget."""
    return msgspec.structs.replace(instance, budget_bytes=budget_bytes)


def _speed(algorithm: Algorithm) -> tuple[int, int]:
    return algorithm.duration_ns, algorithm.workspace_bytes
